"""Scores against brute force and closed forms in float64; estimates against many more draws."""

import math

import pytest
import torch

from onmt_varattn.analysis.evaluation import Measures, Scores, measure, score
from onmt_varattn.analysis.informative import Informative
from onmt_varattn.latent import KMax
from onmt_varattn.nmt.model.reading import Reader
from tests import models
from tests.unit.test_reading import PAIRS, brute_force

TOKENS = sum(len(target) + 1 for _, target in PAIRS)
WORDS = 11
FINE = {"rel": 1e-11, "abs": 1e-12}
FOUR_ERRORS = 4  # standard errors: a right estimate fails in 1 of 16,000 seeds, and the seed is fixed


def attention_of(flags):
    return flags.split()[1]


def read(flags, batch_size=3, pairs=PAIRS, seed=0):
    """A model, and all its readings."""
    model, _ = models.model(flags, seed)
    return model, list(Reader(model, models.fields(), batch_size).read(pairs))


def scores_of(flags, kmax=(1, 2), samples=10, **kwargs):
    return score(read(flags, **kwargs)[1], attention_of(flags), WORDS, kmax, samples)


@torch.no_grad()
def soft_and_mixture(model, source, target):
    """By hand, for one pair: log f(x, E_p[z]) at the gold words, and the mixture of all words."""
    stoi = [models.fields()[side].base_field.vocab.stoi for side in ("src", "tgt")]
    src = torch.tensor([stoi[0][word] for word in source]).view(-1, 1, 1)
    tgt = torch.tensor([stoi[1][word] for word in ["<s>", *target, "</s>"]]).view(-1, 1, 1)
    trace, _ = model(src, tgt, torch.tensor([len(source)]))
    p, gold = torch.softmax(trace.prior[0], -1), tgt[1:, 0]

    def words(context):
        hidden = models.emit(model, trace.queries[0], context)
        return torch.softmax(model.generator.output_layer(hidden), -1)

    soft = words(p @ trace.memory.vectors[0])
    mixture = sum(
        p[:, i, None] * words(x.expand(len(gold), -1)) for i, x in enumerate(trace.memory.vectors[0])
    )
    return soft, mixture, gold


@pytest.mark.parametrize(
    ("flags", "seed"),
    [("-attention variational", 0), ("-attention marginal", 0), ("-attention soft", 34)],
)
def test_all_numbers_are_those_of_brute_force(flags, seed):
    """The seed of soft is one whose accuracy tells soft from exact."""
    model, readings = read(flags, seed=seed)
    found = score(readings, attention_of(flags), WORDS, (1, 2), 10)
    sums = dict.fromkeys(
        ["exact", "kmax1", "kmax2", "soft", "kl", "elbo", "H(p)", "H(q)", "H(exact)", "correct"], 0.0
    )
    for pair in PAIRS:
        p, q, l = brute_force(model, *pair)
        soft, mixture, gold = soft_and_mixture(model, *pair)
        sums["soft"] += soft.gather(1, gold).log().sum()
        natural = soft if attention_of(flags) == "soft" else mixture
        sums["correct"] += (natural.argmax(1) == gold[:, 0]).sum()
        for j in range(len(gold)):
            row = sorted(zip(p[j].tolist(), l[j].tolist(), strict=True), reverse=True)
            for way, k in (("exact", len(row)), ("kmax1", 1), ("kmax2", 2)):
                mass = sum(pi for pi, _ in row[:k])
                sums[way] += math.log(sum(pi * math.exp(li) for pi, li in row[:k]) / mass)
            joint = [pi * math.exp(li) for pi, li in row]
            sums["H(exact)"] -= sum(x / sum(joint) * math.log(x / sum(joint)) for x in joint)
        sums["H(p)"] -= (p * p.log()).sum()
        if q is not None:
            sums["H(q)"] -= (q * q.log()).sum()
            sums["kl"] += (q * (q / p).log()).sum()
            sums["elbo"] += (q * l).sum() - (q * (q / p).log()).sum()
    for way in ("exact", "kmax1", "kmax2", "soft"):
        assert found.ppl[way] == pytest.approx(math.exp(-sums[way] / TOKENS), **FINE)
        assert found.word_ppl[way] == pytest.approx(math.exp(-sums[way] / WORDS), **FINE)
    assert found.tokens == TOKENS
    assert found.accuracy == pytest.approx(100 * float(sums["correct"]) / TOKENS, **FINE)
    assert 0 < found.accuracy < 100, "or the comparison would say little"
    assert found.prior_entropy == pytest.approx(float(sums["H(p)"]) / TOKENS, **FINE)
    assert found.exact_posterior_entropy == pytest.approx(sums["H(exact)"] / TOKENS, **FINE)
    others = [found.elbo, found.kl, found.posterior_entropy]
    if attention_of(flags) == "variational":
        right = [float(sums[name]) / TOKENS for name in ("elbo", "kl", "H(q)")]
        assert others == pytest.approx(right, **FINE)
    else:
        assert others == [None] * 3
    assert found.ppl_standard_error == {}
    assert found.elbo_standard_error is None
    right = informative_by_pair(model, ["prior", *["posterior"] * ("variational" in flags)])
    for kind, one in right.items():
        assert found.relative_entropy[kind] == pytest.approx(one.relative_entropy, **FINE)
        assert found.relative_information[kind] == pytest.approx(one.relative_information, **FINE)
    assert found.relative_information.keys() == {*right, "exact"}
    assert found.findings == [], "four pairs are too few"


def informative_by_pair(model, kinds):
    """What alignments say, by each pair's own matrix."""
    found = {kind: Informative() for kind in kinds}
    for pair in PAIRS:
        for informative, probs in zip(found.values(), brute_force(model, *pair), strict=False):
            informative.add(probs)
    return found


def test_alignments_that_say_nothing_are_findings():
    """Sums made up: a uniform prior, a posterior of one position for all, and an exact one that is fine."""
    others = {"correct": 0.0, "prior_entropy": 195.0, "uniform_entropy": 200.0, "prior_information": 2.0}
    others |= {"posterior_entropy": 40.0, "posterior_information": 3.0}
    others |= {"exact_posterior_entropy": 40.0, "exact_posterior_information": 150.0}
    found = Scores.of(Measures({"exact": -6.0}, others), "variational", tokens=100, words=100)
    assert found.relative_entropy == pytest.approx({"prior": 0.975, "posterior": 0.2, "exact": 0.2})
    assert found.relative_information == pytest.approx({"prior": 0.01, "posterior": 0.015, "exact": 0.75})
    assert [finding.partition(" (")[0] for finding in found.findings] == [
        "the alignments of the prior are uniform",
        "the alignments of the posterior are the same for all words of a sentence",
    ]


def test_kmax_from_what_is_enumerated_is_the_mixture_of_kmax():
    for reading in read("-attention variational")[1]:
        found = measure(reading, "variational", (1, 2, 3, 99)).log_likelihood
        for k in (1, 2, 3, 99):
            right = reading.mixture(KMax(k)).log_marginal
            torch.testing.assert_close(found[f"kmax{k}"], right, rtol=0, atol=1e-12)
        torch.testing.assert_close(found["kmax99"], found["exact"], rtol=0, atol=1e-12)
        best = reading.prior.probs.argmax(1, keepdim=True)
        l = reading.enumerated.log_likelihood.gather(1, best).squeeze(1)
        torch.testing.assert_close(found["kmax1"], l, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "flags", ["-attention variational", "-attention variational -attention_estimator sparse"]
)
def test_the_bound_is_off_by_the_divergence_to_the_exact_posterior(flags):
    """log p(y) - ELBO = KL(q, p(z | y)), at every position."""
    for reading in read(flags, batch_size=4)[1]:
        found = measure(reading, "variational")
        gap = found.log_likelihood["exact"] - found.others["elbo"]
        q, right = reading.posterior.probs, reading.exact_posterior.probs
        terms = torch.where(q > 0, q * (q / right).log(), torch.zeros_like(q))
        torch.testing.assert_close(gap, terms.sum(1), rtol=0, atol=1e-12)
        assert (gap > -1e-12).all()
        assert gap.sum() > 1e-3


def test_the_bound_is_tight_where_the_posterior_is_exact():
    found = scores_of("-attention variational -posterior svi -svi_steps 500 -svi_lr 1")
    assert -found.elbo == pytest.approx(math.log(found.ppl["exact"]), abs=1e-7)
    assert found.posterior_entropy == pytest.approx(found.exact_posterior_entropy, abs=1e-3)


@pytest.mark.parametrize("flags", ["-attention variational", "-attention soft"])
def test_neither_batches_nor_order_matter(flags):
    one = scores_of(flags)
    for other in (scores_of(flags, batch_size=1), scores_of(flags, batch_size=9, pairs=PAIRS[::-1])):
        for name, value in vars(one).items():
            if isinstance(value, float | dict):
                value = pytest.approx(value, **FINE)
            assert vars(other)[name] == value


@torch.no_grad()
def by_many_draws(model, reading, draws):
    """log E_p[f] and E_q[log f] - KL(q, p) of one sentence, by torch's own Dirichlet: their sums."""
    positions = reading.positions
    p, q = (torch.distributions.Dirichlet(x.exp()) for x in (positions.prior, positions.posterior))

    def log_f(z):  # draws x T x S -> draws x T
        context = z @ positions.memory.vectors[0]
        hidden = models.emit(model, positions.queries.expand(draws, -1, -1), context)
        words = torch.log_softmax(model.generator.output_layer(hidden), -1)
        return words.gather(2, positions.gold.view(1, -1, 1).expand(draws, -1, 1)).squeeze(2)

    likelihood = torch.logsumexp(log_f(p.sample((draws,))), 0) - math.log(draws)
    kl = torch.distributions.kl_divergence(q, p)
    return float(likelihood.sum()), float((log_f(q.sample((draws,))).mean(0) - kl).sum())


def test_relaxed_attention_is_estimated_with_its_standard_error():
    """Over many repetitions, and against many more draws."""
    samples, repetitions = 30, 60
    model, readings = read("-attention relaxed", pairs=PAIRS[1:2])
    torch.manual_seed(3)
    likelihood, elbo = (
        x / len(readings[0].positions.gold) for x in by_many_draws(model, readings[0], 20_000)
    )
    few = [score(readings, "relaxed", WORDS, samples=samples) for _ in range(repetitions)]
    for values, errors, right in (
        (
            [x.ppl["samples"] for x in few],
            [x.ppl_standard_error["samples"] for x in few],
            math.exp(-likelihood),
        ),
        ([x.elbo for x in few], [x.elbo_standard_error for x in few], elbo),
    ):
        values, errors = torch.tensor(values), torch.tensor(errors)
        assert float(values.std()) == pytest.approx(float(errors.mean()), rel=0.4)  # known to 9 percent
        assert abs(values.mean() - right) < FOUR_ERRORS * values.std() / math.sqrt(repetitions)
        outside = ((values - right).abs() > 1.96 * errors).double().mean()
        assert outside < 0.05 + FOUR_ERRORS * math.sqrt(0.05 * 0.95 / repetitions)


def test_few_draws_make_the_perplexity_of_relaxed_attention_too_high():
    _, readings = read("-attention relaxed", batch_size=4)
    torch.manual_seed(4)
    mean = [
        sum(math.log(score(readings, "relaxed", WORDS, samples=n).ppl["samples"]) for _ in range(20)) / 20
        for n in (2, 50)
    ]
    assert mean[0] > mean[1] + 1e-4


def test_relaxed_attention_has_no_single_alignments():
    found = scores_of("-attention relaxed", kmax=(1, 2))
    assert set(found.ppl) == set(found.word_ppl) == {"soft", "samples"}
    assert found.natural == "samples"
    assert found.exact_posterior_entropy is None
    assert found.kl >= 0


@pytest.mark.parametrize(
    ("attention", "natural"), [("soft", "soft"), ("hard", "exact"), ("variational", "exact")]
)
def test_means_of_a_made_up_text(attention, natural):
    sums = Measures({"exact": -6.0, "soft": -9.0}, {"correct": 2.0, "prior_entropy": 1.0}, {})
    found = Scores.of(sums, attention, tokens=6, words=3)
    assert found.natural == natural
    assert found.ppl == pytest.approx({"exact": math.e, "soft": math.exp(1.5)})
    assert found.word_ppl == pytest.approx({"exact": math.exp(2), "soft": math.exp(3)})
    assert found.accuracy == pytest.approx(100 / 3)
    assert found.prior_entropy == pytest.approx(1 / 6)
    assert found.finite
    assert not Scores.of(Measures({"exact": math.nan}, sums.others), attention, 6, 3).finite

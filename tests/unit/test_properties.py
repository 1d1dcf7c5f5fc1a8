"""Properties that hold for every batch, size, objective and score: hypothesis looks for a counterexample."""

import itertools
import math
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onmt_varattn.errors import UserError
from onmt_varattn.latent import Exact, KMax, Samples, SoftContext
from onmt_varattn.latent.distributions import Categorical, Dirichlet, Refinement
from onmt_varattn.latent.estimators import ESTIMATORS, EstimatorSettings
from onmt_varattn.latent.objectives import OBJECTIVES
from onmt_varattn.latent.scores import SCORES
from tests import models

DOUBLE = torch.float64
MINUS_INFINITY = float("-inf")


def examples(count):
    """The same examples in every run, without a limit on the time of one."""
    return settings(max_examples=count, derandomize=True, deadline=None)


# Batches: a list of (source, target) lengths, longest source first, as OpenNMT-py sorts them.
lengths = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=5).map(
    lambda pairs: sorted(pairs, key=lambda pair: -pair[0])
)
seeds = st.integers(0, 1000)
RAGGED = [(8, 3), (5, 8), (5, 1), (2, 4), (1, 2)]
SIZE = "-enc_rnn_size 4 -dec_rnn_size 3 -global_attention mlp "


@st.composite
def sizes(draw):
    """Options for the sizes and kinds of all parts of a model."""
    encoder, decoder = 2 * draw(st.integers(1, 4)), draw(st.integers(1, 8))
    score = draw(st.sampled_from(list(SCORES)))
    if score == "dot":
        decoder = encoder
    return (
        f"-enc_rnn_size {encoder} -dec_rnn_size {decoder} -global_attention {score} "
        f"-attention_size {draw(st.integers(1, 6))} -word_vec_size {draw(st.integers(1, 6))} "
        f"-layers {draw(st.integers(1, 2))} -rnn_type {draw(st.sampled_from(['LSTM', 'GRU']))} "
        f"-encoder_type {draw(st.sampled_from(['rnn', 'brnn']))} "
        f"-decoder_init {draw(st.sampled_from(['zero', 'encoder']))} "
    )


# What scores are like: ordinary, and three ways to be extreme.
SHAPES = {
    "ordinary": lambda scores: scores,
    "huge": lambda scores: 1e4 * scores,
    "equal": lambda scores: 0 * scores,
    "dominated": lambda scores: scores + 1e4 * (torch.arange(scores.size(-1)) == 0),
}
shapes = st.sampled_from(list(SHAPES))


def reshape(module, shape):
    """Have a module's scores in some shape, padding but for its minus infinity left alone."""

    def hook(_, __, scores):
        real = scores != MINUS_INFINITY
        return torch.where(real, SHAPES[shape](scores.masked_fill(~real, 0.0)), scores)

    module.register_forward_hook(hook)


def build(flags, prior="ordinary", posterior="ordinary", dtype=DOUBLE):
    model, opt = models.model(flags, dtype=dtype)
    reshape(model.decoder.attention.score, prior)
    if model.posterior is not None:
        reshape(model.posterior, posterior)
    return model, opt


def batch(pairs, seed, pad_source=0, pad_target=0):
    """A random batch, with alignments: links of about half of the target words."""
    made = models.batch(pairs, seed, pad_source, pad_target)
    generator = torch.Generator().manual_seed(seed)
    links = [
        (n, j + 1, i)
        for n, (source, target) in enumerate(pairs)
        for j, i in itertools.product(range(target), range(source))
        if torch.rand((), generator=generator) < 1 / (2 * source)
    ]
    made.align = torch.tensor(links, dtype=torch.long).view(-1, 3)
    return made


def part(whole, pairs, rows):
    """Some sentences of a batch, as a batch of their own."""
    source, target = (max(pairs[n][side] for n in rows) for side in (0, 1))
    links = [(rows.index(n), j, i) for n, j, i in whole.align.tolist() if n in rows]
    return SimpleNamespace(
        src=(whole.src[0][:source, rows], whole.src[1][rows]),
        tgt=whole.tgt[: target + 2, rows],
        align=torch.tensor(links, dtype=torch.long).view(-1, 3),
        batch_size=len(rows),
    )


def combinations():
    """Every objective, estimator and posterior that goes together, as options."""
    found = []
    for name, objective in OBJECTIVES.items():
        for estimator, posterior in itertools.product(
            objective.estimators, [None, "amortized", "svi", "savi", "external"]
        ):
            flags = f"-attention {name}"
            flags += "" if estimator == "none" else f" -attention_estimator {estimator}"
            flags += f" -posterior {posterior}" if posterior else ""
            if posterior is None and objective.has_posterior:
                continue
            try:
                models.options(models.SMALL + flags)
            except UserError:
                continue
            found.append(flags)
    return found


COMBINATIONS = combinations()
DETERMINISTIC = [
    flags
    for flags in COMBINATIONS
    if flags in ("-attention soft", "-attention marginal -attention_estimator enum")
    or "estimator enum" in flags
    or "estimator sparse" in flags
]


def test_the_combinations_are_those_that_are_offered():
    assert len(COMBINATIONS) == 1 + 1 + 4 + (10 + 2 + 10) + 1
    assert len(DETERMINISTIC) == 1 + 1 + 1 + 6


def extreme(test):
    """All pairs of the extreme shapes that matter most, whatever else hypothesis thinks of."""
    fixed = {"pairs": [(4, 2), (1, 3)], "size": SIZE, "seed": 1, "warm_up": 0}
    for prior, posterior in [
        ("huge", "huge"),
        ("dominated", "huge"),
        ("huge", "dominated"),
        ("equal", "equal"),
    ]:
        test = example(**fixed, prior=prior, posterior=posterior)(test)
    return test


@pytest.mark.parametrize("flags", COMBINATIONS)
@examples(6)
@extreme
@given(
    pairs=lengths,
    size=sizes(),
    seed=seeds,
    prior=shapes,
    posterior=shapes,
    warm_up=st.sampled_from([0, 0, 1]),
)
def test_loss_and_gradients_are_finite(flags, pairs, size, seed, prior, posterior, warm_up):
    flags += "" if "soft" in flags else f" -attention_warmup_steps {warm_up}"
    model, opt = build(f"{size} {flags}", prior, posterior, torch.float32)
    torch.manual_seed(seed)
    some = batch(pairs, seed, pad_source=seed % 2, pad_target=seed % 3)
    for train in (False, True):
        loss, stats = models.loss_of(model, opt, some, train)
        assert torch.isfinite(loss)
        assert all(math.isfinite(value) for value in stats.metrics().values())
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("flags", DETERMINISTIC)
@pytest.mark.parametrize("train", [True, False])
@examples(6)
@example(
    pairs=RAGGED, size=SIZE, seed=1, prior="ordinary", posterior="ordinary", padding=(2, 3),
    shuffle=random.Random(1), cut=3,
)  # fmt: skip
@given(
    pairs=lengths,
    size=sizes(),
    seed=seeds,
    prior=shapes,
    posterior=shapes,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    shuffle=st.randoms(use_true_random=False),
    cut=st.integers(0, 5),
)
def test_padding_order_and_splitting_do_not_matter(
    train, flags, pairs, size, seed, prior, posterior, padding, shuffle, cut
):
    """The loss of a batch is the sum of those of its parts, whatever the parts and their padding."""
    model, opt = build(f"{size} {flags}", prior, posterior)
    whole = batch(pairs, seed)

    def loss(some):
        return models.loss_of(model, opt, some, train)[0].item()

    right = pytest.approx(loss(whole), rel=1e-9, abs=1e-9)
    assert loss(batch(pairs, seed, *padding)) == right
    order = shuffle.sample(range(len(pairs)), len(pairs))
    order.sort(key=lambda n: -pairs[n][0])  # sorted as before, but those of one length are exchanged
    assert loss(part(whole, pairs, order)) == right
    parts = [rows for rows in (order[:cut], order[cut:]) if rows]
    assert sum(loss(part(whole, pairs, rows)) for rows in parts) == right


@st.composite
def tables(draw, most=6, padded=True):
    """A position a row: l, and the scores of p and q, R x S; minus infinity where the source is padding."""
    rows, source = draw(st.integers(1, 4)), draw(st.integers(1, most))
    generator = torch.Generator().manual_seed(draw(seeds))
    l, p, q = (3 * torch.randn(rows, source, generator=generator, dtype=DOUBLE) for _ in range(3))
    l, p, q = -SHAPES[draw(shapes)](l.abs()), SHAPES[draw(shapes)](p), SHAPES[draw(shapes)](q)
    real = torch.ones(rows, source, dtype=torch.bool)
    if padded:
        counts = torch.randint(1, source + 1, (rows, 1), generator=generator)
        real = torch.arange(source) < counts
    return (
        l.masked_fill(~real, 0.0),
        p.masked_fill(~real, MINUS_INFINITY),
        q.masked_fill(~real, MINUS_INFINITY),
    )


ROUNDING = 1e-9  # in float64, for values of up to 1e5


def bound_of(estimator, l, p, q, **options):
    """The bound of a posterior with scores q, all alignments enumerated: R."""
    built = ESTIMATORS[estimator](EstimatorSettings(**options))
    distribution = built.distribution(q)
    every = built.candidates(distribution, None)
    return built.estimate(l, Categorical(p), distribution, every, torch.zeros(len(l)), 1.0).bound


@examples(100)
@given(table=tables(), steps=st.integers(1, 5), rate=st.sampled_from([0.1, 1.0, 10.0]))
def test_no_bound_is_above_the_log_marginal(table, steps, rate):
    l, p, q = table
    log_p = Categorical(p).log_probs
    log_marginal = torch.logsumexp(log_p + l, 1)
    bounds = {"variational": bound_of("enum", l, p, q), "hard": Categorical(p).expectation(l)}
    for name in ("entmax15", "sparsemax"):
        bounds[name] = bound_of("sparse", l, p, q, sparse=name)
    for flat in (True, False):
        refined = Refinement(steps, rate, flat)(q, l, p)
        bounds[f"refined, {flat}"] = bound_of("enum", l, p, refined)
    for name, bound in bounds.items():
        assert torch.isfinite(bound).all(), name
        assert (bound <= log_marginal + ROUNDING).all(), name
    best = bound_of("enum", l, p, log_p + l)  # the exact posterior
    torch.testing.assert_close(best, log_marginal, rtol=0, atol=ROUNDING)


@examples(40)
@given(table=tables(most=4, padded=False))
def test_more_samples_make_a_bound_tighter(table):
    """E over all K-tuples of draws: ELBO = L_1 <= L_2 <= L_3 <= log marginal; and each one, Jensen's."""
    for row in range(len(table[0])):
        l, p, q = (part[row] for part in table)
        source = len(l)
        log_marginal = torch.logsumexp(torch.log_softmax(p, 0) + l, 0)
        expected = [bound_of("enum", *(x.unsqueeze(0) for x in (l, p, q))).item()]
        for samples in (1, 2, 3):
            index = torch.tensor(list(itertools.product(range(source), repeat=samples)))  # R x K
            prior, posterior, best = (
                Categorical(scores.expand(len(index), -1)) for scores in (p, q, torch.log_softmax(p, 0) + l)
            )
            draws = SimpleNamespace(index=index)
            for name in ("rws", "vimco") if samples > 1 else ("rws",):
                estimate = ESTIMATORS[name](EstimatorSettings(samples=samples)).estimate
                bound = estimate(l[index], prior, posterior, draws, None, 1.0).bound
                log_w = prior.log_prob(index) + l[index] - posterior.log_prob(index)
                assert (bound <= log_w.amax(1) + ROUNDING).all()
                assert (bound >= log_w.mean(1) - ROUNDING).all()
                certain = estimate(l[index], prior, best, draws, None, 1.0).bound
                torch.testing.assert_close(certain, log_marginal.expand_as(certain), rtol=0, atol=ROUNDING)
            expected.append((posterior.probs[0][index].prod(1) * bound).sum().item())
        assert expected[1] == pytest.approx(expected[0], abs=ROUNDING)
        for fewer, more in itertools.pairwise([*expected[1:], log_marginal.item()]):
            assert fewer <= more + ROUNDING


@examples(100)
@given(table=tables(), dtype=st.sampled_from([torch.float32, DOUBLE]), k=st.integers(1, 10), seed=seeds)
def test_distributions_over_alignments_sum_to_one(table, dtype, k, seed):
    _, p, q = (part.to(dtype) for part in table)
    real = p != MINUS_INFINITY
    torch.manual_seed(seed)
    every = {
        "softmax": Categorical(p).probs,
        "log": Categorical(p).log_probs.exp(),
        "mean": Dirichlet(p).probs,
    }
    every |= {f"gumbel {hard}": Categorical(p).gumbel_sample(0.5, hard) for hard in (True, False)}
    every["draw"] = Dirichlet(p).rsample()
    for name in ("entmax15", "sparsemax"):
        sparse = ESTIMATORS["sparse"](EstimatorSettings(sparse=name)).distribution(p)
        every |= {name: sparse.probs, f"log {name}": sparse.log_probs.exp()}
    for name, probs in every.items():
        assert (probs >= 0).all(), name
        assert (probs[~real] == 0).all(), name
        torch.testing.assert_close(probs.sum(1), torch.ones(len(p), dtype=dtype), rtol=0, atol=1e-5, msg=name)
    index, log_weights = Categorical(p).kmax(k)
    assert torch.equal(log_weights == MINUS_INFINITY, ~real.gather(1, index))
    torch.testing.assert_close(log_weights.exp().sum(1), torch.ones(len(p), dtype=dtype), rtol=0, atol=1e-5)
    for prior, posterior in (
        (Categorical(p), Categorical(q)),
        (Dirichlet(p.double()), Dirichlet(q.double())),
    ):
        assert (posterior.kl(prior) >= -1e-4).all()
        entropy = prior.entropy_of_mean()
        assert (entropy >= -1e-5).all()
        assert (entropy <= real.sum(1).log() + 1e-5).all()


ways = st.one_of(
    st.sampled_from([SoftContext(), Exact()]), st.integers(1, 10).map(KMax), st.integers(1, 4).map(Samples)
)


@examples(40)
@given(pairs=lengths, size=sizes(), seed=seeds, prior=shapes, way=ways, alone=st.booleans())
def test_distributions_over_words_sum_to_one(pairs, size, seed, prior, way, alone):
    """The prior, and the mixture by both of the generator's ways, quick and differentiable."""
    model, _ = build(size, prior, dtype=torch.float32)
    model.decoder.mixture = way
    some = batch(pairs, seed)
    source, sources = some.src
    final, memory, _ = model.encoder(source, sources)
    model.decoder.init_state(source, memory, final)
    states, attention = model.decoder(some.tgt[:-1], memory, memory_lengths=sources)
    real = (torch.arange(len(memory)) < sources.unsqueeze(1)).expand_as(attention["std"])
    assert (attention["std"] >= 0).all()
    assert (attention["std"][~real] == 0).all()
    torch.testing.assert_close(attention["std"].sum(2), torch.ones(len(some.tgt) - 1, len(pairs)))
    plain = model.generator(states).exp()
    with torch.no_grad():
        quick = model.generator(states).exp()
    for probs in (plain, quick):
        assert (probs >= 0).all()
        torch.testing.assert_close(probs.sum(2), torch.ones(len(some.tgt) - 1, len(pairs)), rtol=0, atol=1e-5)
    torch.testing.assert_close(plain, quick, rtol=1e-4, atol=1e-6)


@examples(50)
@given(
    sentences=st.lists(
        st.lists(st.sampled_from(["w000", "w003", "w007", "new"]), max_size=8), min_size=1, max_size=5
    ),
    size=sizes(),
    seed=seeds,
    prior=shapes,
    beam=st.integers(1, 6),
    best=st.integers(1, 6),
    kmax=st.integers(0, 10),
    longest=st.integers(1, 12),
    eos_norm=st.sampled_from([0.0, 3.0]),
)
def test_translations_end(sentences, size, seed, prior, beam, best, kmax, longest, eos_norm):
    """And have finite scores, best first, and no words that are none; with parameters that know nothing."""
    model, _ = build(f"{size} -param_init {1 + seed % 5}", prior, dtype=torch.float32)
    model.decoder.mixture = KMax(kmax) if kmax else Exact()
    best = min(best, beam)
    translate = models.translator(model, eos_norm, beam_size=beam, n_best=best, max_length=longest)
    found = translate.hypotheses([" ".join(words) for words in sentences], batch_size=3)
    assert len(found) == len(sentences)
    for words, hypotheses in zip(sentences, found, strict=True):
        assert len(hypotheses) == best
        scores = [float(hypothesis.score) for hypothesis in hypotheses]
        assert all(-1e4 < score <= 0 for score in scores), scores
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            assert len(hypothesis.tokens) <= (longest if words else 0)
            assert not {"<blank>", "<s>", "</s>"} & set(hypothesis.tokens)

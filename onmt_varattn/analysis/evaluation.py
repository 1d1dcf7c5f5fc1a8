"""Likelihood of given translations under each test-time mixture of alignments.

With l_i the log-likelihood of a gold word under alignment i, p the prior and q the posterior:

    exact     log sum_i p_i exp(l_i)
    kmaxK     the same over the K most probable alignments, renormalised
    soft      log f(x, E_p[z])
    samples   log 1/K sum_k exp(l_k) with z_k ~ p: relaxed attention, whose z are mixtures of positions
    ELBO      E_q[l] - KL(q, p)

The logarithm of a mean of samples is on average below that of the expectation (Jensen), by about half
of its variance. So the perplexity by samples is biased upwards, less with more samples; its standard
error is that of the sampling noise, without this bias.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from onmt_varattn.analysis.informative import Informative
from onmt_varattn.analysis.reading import Reading
from onmt_varattn.latent import OBJECTIVES, KMax, Samples, SoftContext
from onmt_varattn.latent.positions import mutual_information, uniform_entropy

PREFIXES = {"prior": "prior", "posterior": "posterior", "exact": "exact_posterior"}
"""Distributions over alignments, and the prefixes of the names of their values."""

MOST_NATS = 100.0  # largest mean that is exponentiated; only a broken model is beyond it


@dataclass
class Measures:
    """Values of R target positions, or their sums; values that a model does not have are absent."""

    log_likelihood: dict[str, Any]  # by test-time mixture: "exact", "kmax1", ..., "soft", "samples"
    others: dict[str, Any]  # "correct", "elbo", "kl", "prior_entropy", "posterior_entropy", ...
    variance: dict[str, Any] = field(default_factory=dict)  # of those that are estimates: "samples", "elbo"


def decoding_options(way: str, samples: int) -> dict[str, Any]:
    """The options of onmt_translate for a test-time mixture."""
    if way == "samples":
        return {"attention_samples": samples}
    return {"test_attention": way} if way in ("exact", "soft") else {"kmax": int(way.removeprefix("kmax"))}


@torch.no_grad()
def measure(reading: Reading, attention: str, kmax: Sequence[int] = (), samples: int = 10) -> Measures:
    """All values of a batch.

    Args:
        reading: the batch.
        attention: objective that the model was trained with.
        kmax: values of K, above 0, for K-max.
        samples: samples per position, at least 2, for relaxed attention.
    """
    mean, natural = reading.mixture(SoftContext()), OBJECTIVES[attention].natural
    found = _sampled(reading, samples) if natural == "samples" else _enumerated(reading, kmax)
    found.log_likelihood["soft"] = mean.log_marginal
    if natural == "soft":
        found.others["correct"] = mean.correct
    found.others["prior_entropy"] = reading.prior.entropy()
    found.others["uniform_entropy"] = uniform_entropy(reading.positions.prior)
    for kind, prefix in PREFIXES.items():
        if f"{prefix}_entropy" in found.others:
            probs = reading.distribution(kind).probs
            found.others[f"{prefix}_information"] = mutual_information(reading.positions, probs)
    return found


def _enumerated(reading: Reading, kmax: Sequence[int]) -> Measures:
    """Values by enumeration of all alignments."""
    p, q = reading.prior, reading.posterior
    l = reading.enumerated.log_likelihood  # R x S
    likelihood = {"exact": reading.enumerated.log_marginal}
    for k in kmax:
        index, log_weights = p.kmax(k)
        likelihood[KMax(k).name] = torch.logsumexp(log_weights + l.gather(1, index), 1)
    others = {
        "correct": reading.enumerated.correct,
        "exact_posterior_entropy": reading.exact_posterior.entropy(),
    }
    if q is not None:
        kl = q.kl(p)
        others |= {"elbo": q.expectation(l) - kl, "kl": kl, "posterior_entropy": q.entropy()}
    return Measures(likelihood, others)


def _sampled(reading: Reading, samples: int) -> Measures:
    """Values by sampling from distributions over mixtures, with their variance."""
    test, positions = Samples(samples, reading.objective.prior), reading.positions
    found = reading.mixture(test)
    # By the delta method: var(log mean) is about var(mean) / mean^2.
    share = (found.log_likelihood - found.log_marginal.unsqueeze(1)).exp()  # R x samples, of mean 1
    others, variance = {"correct": found.correct}, {"samples": share.var(1) / samples}
    q = reading.posterior
    if positions.posterior is not None:
        drawn = test.marginals(replace(positions, prior=positions.posterior), reading.emitter)  # from q
        l, kl = drawn.log_likelihood, q.kl(reading.objective.prior(positions.prior))
        others |= {"elbo": l.mean(1) - kl, "kl": kl, "posterior_entropy": q.entropy_of_mean()}
        variance["elbo"] = l.var(1) / samples
    return Measures({"samples": found.log_marginal}, others, variance)


def _add(sums: Measures, batch: Measures) -> None:
    """Add a batch's values, summed in double precision."""
    names = [(part, name) for part, values in vars(batch).items() for name in values]
    values = torch.stack([getattr(batch, part)[name].double().sum() for part, name in names])
    for (part, name), value in zip(names, values.tolist(), strict=True):  # one wait for the device
        so_far = getattr(sums, part)
        so_far[name] = so_far.get(name, 0.0) + value


def _informative(sums: Measures) -> dict[str, Informative]:
    """Informativeness of the alignments of each distribution."""
    others = sums.others
    return {
        kind: Informative(
            others[f"{prefix}_entropy"], others[f"{prefix}_information"], others["uniform_entropy"]
        )
        for kind, prefix in PREFIXES.items()
        if f"{prefix}_information" in others
    }


@dataclass(frozen=True)
class Scores:
    """Scores of a model on a text; None where the model has no such value.

    Perplexities are by test-time mixture. Tokens (subwords) and words both include one end of sentence per
    line. ELBO, KL divergence and entropies are in nats per token, the accuracy is in percent of
    tokens, tested in the natural way. Relative entropy and information are by distribution over
    alignments, as `Informative` has them.
    """

    tokens: int
    words: int
    natural: str
    ppl: dict[str, float]  # per token
    word_ppl: dict[str, float]  # the same likelihood, per word
    ppl_standard_error: dict[str, float]
    accuracy: float
    elbo: float | None
    elbo_standard_error: float | None
    kl: float | None
    prior_entropy: float
    posterior_entropy: float | None
    exact_posterior_entropy: float | None
    relative_entropy: dict[str, float]
    relative_information: dict[str, float]
    findings: list[str]  # sentences about uninformative alignments

    @classmethod
    def of(cls, sums: Measures, attention: str, tokens: int, words: int) -> "Scores":
        """Scores from sums over a text."""
        ppl, word_ppl = (
            {way: math.exp(min(-value / count, MOST_NATS)) for way, value in sums.log_likelihood.items()}
            for count in (tokens, words)
        )
        means = {name: value / tokens for name, value in sums.others.items()}
        errors = {name: math.sqrt(value) / tokens for name, value in sums.variance.items()}
        informative = _informative(sums)
        findings = [one.finding(kind) for kind, one in informative.items()]
        return cls(
            tokens=tokens,
            words=words,
            natural=OBJECTIVES[attention].natural,
            ppl=ppl,
            word_ppl=word_ppl,
            ppl_standard_error={way: ppl[way] * error for way, error in errors.items() if way in ppl},
            accuracy=100 * means["correct"],
            elbo=means.get("elbo"),
            elbo_standard_error=errors.get("elbo"),
            kl=means.get("kl"),
            prior_entropy=means["prior_entropy"],
            posterior_entropy=means.get("posterior_entropy"),
            exact_posterior_entropy=means.get("exact_posterior_entropy"),
            relative_entropy={kind: one.relative_entropy for kind, one in informative.items()},
            relative_information={kind: one.relative_information for kind, one in informative.items()},
            findings=[finding for finding in findings if finding],
        )

    @property
    def finite(self) -> bool:
        """Whether all scores are finite; non-finite parameters give non-finite scores."""
        most = math.exp(MOST_NATS)
        return all(ppl < most for ppl in self.ppl.values()) and all(
            map(math.isfinite, [self.elbo or 0.0, self.prior_entropy])
        )


def score(
    readings: Iterable[Reading], attention: str, words: int, kmax: Sequence[int] = (), samples: int = 10
) -> Scores:
    """Score a text.

    Args:
        readings: the text as read by a model.
        attention: objective that the model was trained with.
        words: number of words of the target text, with one end of sentence per line.
        kmax: see `measure`.
        samples: likewise.
    """
    tokens, sums = 0, Measures({}, {})
    for reading in readings:
        tokens += sum(reading.target_lengths)
        _add(sums, measure(reading, attention, kmax, samples))
    return Scores.of(sums, attention, tokens, words)

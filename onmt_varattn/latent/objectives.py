"""Objectives: what is maximised. One small class each, found by the name users give `-attention`.

With f(x, z) the distribution of the next word given the alignment z, l its log at the gold word,
p the prior over z and q the posterior:

    soft          log f(x, E_p[z])                  the expected context stands in for the alignment
    marginal      log sum_i p_i exp(l_i)            exact
    hard          E_p[l]                            Jensen's bound: variational with q = p
    variational   E_q[l] - KL(q, p)
    relaxed       E_q[log f(x, X z)] - KL(q, p)     with Dirichlet p and q

How expectations are taken is the estimator's business.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from onmt_varattn.latent.alignment import Categorical, Dirichlet
from onmt_varattn.latent.emission import Emission
from onmt_varattn.latent.estimators import Estimate, Estimator
from onmt_varattn.latent.likelihood import (
    CHUNK_LOGITS,
    Candidates,
    Cells,
    Marginals,
    Triples,
    Vocabulary,
    marginalise,
    maximise,
)
from onmt_varattn.latent.registry import Registry

OBJECTIVES: Registry[type["Objective"]] = Registry("attention objective")

Report = dict[str, Tensor]
"""Sums over positions by name."""


@dataclass
class Positions:
    """The real target positions of a batch: no padding among the R rows."""

    queries: Tensor  # R x D
    contexts: Tensor  # R x M, E_p[x_z]
    prior: Tensor  # R x S, scores; minus infinity where the source is padding
    posterior: Tensor | None  # R x S, likewise, where there is an inference network
    memory: Tensor  # N x S x M
    place: Tensor  # R, where a position stands in the flattened T x N batch
    steps: int  # T
    gold: Tensor  # R, the words to predict

    @property
    def sentence(self) -> Tensor:
        """The row of `memory` that a position belongs to: R."""
        return self.place % len(self.memory)

    def mix(self, weights: Tensor) -> Tensor:
        """Contexts from weights over source positions: R x S -> R x M."""
        sentences, source = self.memory.shape[:2]
        every = weights.new_zeros(self.steps * sentences, source).index_copy(0, self.place, weights)
        mixed = every.view(self.steps, sentences, source).transpose(0, 1) @ self.memory  # N x T x M
        return mixed.transpose(0, 1).flatten(0, 1).index_select(0, self.place)


def _identity(states: Tensor) -> Tensor:
    return states


@dataclass
class Emitter:
    """f: from queries and alignments to the likelihood of words."""

    emission: Emission
    vocabulary: Vocabulary
    dropout: Callable[[Tensor], Tensor] = _identity
    chunk_logits: int = CHUNK_LOGITS

    def cells(self, positions: Positions, candidates: Candidates) -> Cells:
        """What to compute for some candidates."""
        queries = self.emission.query(positions.queries)  # R x D
        triples = Triples.of(candidates, len(queries), queries.device)
        if candidates.index is not None:
            memory = positions.memory.flatten(0, 1)  # N*S x M
            index = candidates.index[triples.position, triples.candidate]
            which = positions.sentence[triples.position] * positions.memory.size(1) + index
            if 2 * len(which) < len(memory):  # a draw or two a memory: the rest of it is not needed
                memory, which = memory.index_select(0, which), torch.arange(len(which), device=which.device)
            # Each source position is projected once, whatever number of candidates it is.
            contexts = self.emission.context(memory)  # N*S x D, or C x D
            width = candidates.index.size(1)
        else:
            assert candidates.contexts is not None
            contexts = self.emission.context(candidates.contexts).flatten(0, 1)  # R*K x D
            width = candidates.contexts.size(1)
            which = triples.position * width + triples.candidate
        return Cells(queries, contexts, which, triples, width, positions.gold, self._activation)

    def _activation(self, sums: Tensor) -> Tensor:
        return self.dropout(torch.tanh(sums))


class Notes:
    """Sums of what is worth reporting, taken chunk by chunk."""

    def __init__(self) -> None:
        self.sums: Report = defaultdict(lambda: torch.zeros(()))

    def add(self, **values: Tensor) -> None:
        """Add tensors' sums under their names."""
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value.detach().sum()


@dataclass
class Loss:
    """The outcome of an objective on a batch."""

    loss: Tensor  # scalar with gradient, summed over positions
    report: Report = field(default_factory=dict)


class Objective:
    """Base class: a bound on the log-likelihood, by way of an estimator.

    Args:
        estimator: how expectations are taken.
        baseline: "soft" (log f at the expected context), "average" (of past rewards) or "none".
        entropy_weight: of the prior's entropy, added to the bound.
        refine: improves posterior scores given l and the prior (stochastic variational inference).
    """

    estimators: ClassVar[dict[str, str]] = {}  # what users call an estimator -> its name; default first
    has_posterior: ClassVar[bool] = False
    linear: ClassVar[bool] = True  # in l, so that smoothed labels make sense
    prior: ClassVar[type] = Categorical

    def __init__(
        self,
        estimator: Estimator,
        baseline: str = "soft",
        entropy_weight: float = 0.0,
        refine: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.estimator, self.baseline = estimator, baseline
        self.entropy_weight, self.refine = entropy_weight, refine
        self.average_reward = 0.0

    def __call__(self, positions: Positions, emitter: Emitter, kl_weight: float = 1.0) -> Loss:
        """The loss over all positions, and what to report of it."""
        rows = [positions.prior]
        if self.has_posterior:
            assert positions.posterior is not None
            rows.append(positions.posterior)
        candidates = self.candidates(positions)
        baseline, soft = self._baseline(positions, emitter)
        notes = Notes()
        if soft is not None:
            notes.add(correct=soft.correct)

        def bound(l: Tensor, correct: Tensor, chunk: slice, scores: tuple[Tensor, ...]) -> Tensor:
            p = self.prior(scores[0])
            q_scores = scores[-1]
            if self.refine is not None:
                q_scores = self.refine(q_scores, l.detach(), scores[0])
            q = self.estimator.distribution(q_scores) if self.has_posterior else p
            found = self.estimate(l, p, q, candidates.rows(chunk), baseline[chunk], kl_weight)
            surrogate = found.surrogate
            if self.entropy_weight:
                surrogate = surrogate + self.entropy_weight * p.entropy()
            notes.add(bound=found.bound, xent=-found.log_likelihood, kl=found.kl)
            notes.add(prior_entropy=p.entropy_of_mean())
            if self.has_posterior:
                notes.add(posterior_entropy=q.entropy_of_mean())
            if found.reward is not None:
                notes.add(reward=found.reward.mean(1), squared_reward=found.reward.square().mean(1))
            if soft is None:
                notes.add(correct=_of_likeliest(correct, q, candidates.rows(chunk)))
            return surrogate.sum()

        cells = emitter.cells(positions, candidates)
        loss = maximise(bound, emitter.vocabulary, cells, tuple(rows), emitter.chunk_logits)
        if self.baseline == "average" and len(positions.gold):
            mean = -float(notes.sums["xent"]) / len(positions.gold)
            if math.isfinite(mean):
                self.average_reward = 0.9 * self.average_reward + 0.1 * mean
        return Loss(loss, dict(notes.sums))

    def candidates(self, positions: Positions) -> Candidates:
        """The alignments to look at."""
        if positions.posterior is None or not self.has_posterior:
            q = self.prior(positions.prior)
        else:
            q = self.estimator.distribution(positions.posterior)
        return self.estimator.candidates(q, positions.mix)

    def estimate(
        self, l: Tensor, p: Any, q: Any, candidates: Candidates, baseline: Tensor, kl_weight: float
    ) -> Estimate:
        """The bound at each position."""
        return self.estimator.estimate(l, p, q, candidates, baseline, kl_weight)

    def _baseline(self, positions: Positions, emitter: Emitter) -> tuple[Tensor, Marginals | None]:
        """B for each position, R; and, where it is the soft one, all that is known of it."""
        zeros = positions.queries.new_zeros(len(positions.gold), dtype=emitter.vocabulary.wide)
        if not self.estimator.needs_baseline or self.baseline == "none":
            return zeros, None
        if self.baseline == "average":
            return zeros + self.average_reward, None
        soft = soft_marginals(positions, emitter)
        return soft.log_marginal, soft


def _of_likeliest(values: Tensor, q: Any, candidates: Candidates) -> Tensor:
    """A candidate's value for the one that q gives the most mass: R x K -> R."""
    if candidates.index is None:
        return values[:, 0]
    likeliest = q.log_probs.detach().gather(1, candidates.index).argmax(1, keepdim=True)
    return values.gather(1, likeliest).squeeze(1)


@torch.no_grad()
def uniform_entropy(scores: Tensor) -> Tensor:
    """The entropy of uniform alignments, log S: R x S -> R."""
    return (scores != float("-inf")).sum(-1).to(torch.promote_types(scores.dtype, torch.float32)).log()


@torch.no_grad()
def mutual_information(positions: Positions, probs: Tensor) -> Tensor:
    """What a target position tells of the source position that it is aligned with, in nats: R.

        I = H(mean_j p_j) - mean_j H(p_j)  over the positions j of a sentence

    It is 0 if all positions have the same distribution, be it uniform or one source position for all of
    them, and near log S if each has a source position of its own. Summed over a sentence's rows it is the
    sentence's information times its length. Where sentences are single positions, as questions about an
    image are, there is nothing to compare, and it is how far from uniform they are: log S - H(p).

    Args:
        positions: where the rows belong.
        probs: distributions over source positions, R x S.
    """
    probs = probs.to(torch.promote_types(probs.dtype, torch.float32))
    entropy = torch.special.entr(probs).sum(1)  # R
    if positions.steps == 1:
        return uniform_entropy(positions.prior) - entropy
    sentence, sentences = positions.sentence, len(positions.memory)
    used = probs.new_zeros(sentences, probs.size(1)).index_add(0, sentence, probs)
    used = used / used.sum(1, keepdim=True).clamp(min=1e-9)  # N x S, the mean over positions
    return torch.special.entr(used).sum(1)[sentence] - entropy


def warm_up(first: Objective, objective: Objective, positions: Positions, emitter: Emitter) -> Loss:
    """Train with a simpler objective first, while the posterior learns to be like the prior."""
    outcome = first(positions, emitter)
    if not objective.has_posterior or positions.posterior is None:
        return outcome
    q, p = objective.estimator.distribution(positions.posterior), objective.prior(positions.prior)
    return Loss(outcome.loss + q.misfit(p).sum(), {**outcome.report, "kl": q.kl(p).detach().sum()})


@torch.no_grad()
def soft_marginals(positions: Positions, emitter: Emitter) -> Marginals:
    """log f(x, E_p[z]) at the gold words."""
    cells = emitter.cells(positions, Candidates(contexts=positions.contexts.unsqueeze(1)))
    zeros = positions.contexts.new_zeros(len(positions.gold), 1, dtype=emitter.vocabulary.wide)
    return marginalise(emitter.vocabulary, cells, zeros, emitter.chunk_logits)


class _NoEstimate(Objective):
    """An objective with one formula: nothing to estimate, no posterior."""

    def value(self, l: Tensor, p: Any) -> Tensor:
        """The log-likelihood (bound) at each position: R x K -> R."""
        raise NotImplementedError

    def estimate(
        self, l: Tensor, p: Any, q: Any, candidates: Candidates, baseline: Tensor, kl_weight: float
    ) -> Estimate:
        """See the base class."""
        value = self.value(l, p)
        known = value.detach()
        return Estimate(value, known, known, torch.zeros_like(known))


@OBJECTIVES.register("soft")
class Soft(_NoEstimate):
    """log f(x, E_p[z])."""

    estimators: ClassVar[dict[str, str]] = {"none": "enum"}

    def candidates(self, positions: Positions) -> Candidates:
        """The expected context."""
        return Candidates(contexts=positions.contexts.unsqueeze(1))

    def value(self, l: Tensor, p: Any) -> Tensor:
        """See the base class."""
        return l.squeeze(1)


@OBJECTIVES.register("marginal")
class Marginal(_NoEstimate):
    """log sum_i p_i exp(l_i)."""

    linear: ClassVar[bool] = False
    estimators: ClassVar[dict[str, str]] = {"enum": "enum"}

    def value(self, l: Tensor, p: Any) -> Tensor:
        """See the base class."""
        return torch.logsumexp(p.log_probs + l, dim=1)


@OBJECTIVES.register("hard")
class Hard(Objective):
    """E_p[l], the variational bound with q = p."""

    estimators: ClassVar[dict[str, str]] = {"sample": "sample", "enum": "enum"}

    def estimate(
        self, l: Tensor, p: Any, q: Any, candidates: Candidates, baseline: Tensor, kl_weight: float
    ) -> Estimate:
        """See the base class; KL(p, p) is nothing, value and gradient."""
        surrogate, value, reward = self.estimator.expectation(l, p, candidates, baseline)
        known = value.detach()
        return Estimate(surrogate, known, known, torch.zeros_like(known), reward)


@OBJECTIVES.register("variational")
class Variational(Objective):
    """E_q[l] - KL(q, p), or what an estimator of many samples makes of it."""

    estimators: ClassVar[dict[str, str]] = {
        name: name for name in ("sample", "enum", "gumbel", "rws", "vimco", "sum_and_sample", "sparse")
    }
    has_posterior: ClassVar[bool] = True


@OBJECTIVES.register("relaxed")
class Relaxed(Objective):
    """E_q[log f(x, X z)] - KL(q, p) with Dirichlet p and q."""

    estimators: ClassVar[dict[str, str]] = {"sample": "reparameterised"}
    has_posterior: ClassVar[bool] = True
    prior: ClassVar[type] = Dirichlet

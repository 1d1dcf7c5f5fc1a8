"""Predictive inference: which alignments are mixed once there is no gold word to see."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from onmt_varattn.latent.alignment import Categorical, Dirichlet
from onmt_varattn.latent.estimators import Enum, Settings
from onmt_varattn.latent.likelihood import Candidates, Marginals, marginalise
from onmt_varattn.latent.objectives import Emitter, Objective, Positions, Report

VALIDATION_SAMPLES = 10  # of a Dirichlet prior


@dataclass(frozen=True)
class TestAttention:
    """Which alignments validation mixes: `exact`, `soft` or `samples`; K-max for k above 0."""

    kind: str
    k: int = 0
    samples: int = VALIDATION_SAMPLES

    @property
    def enumerates(self) -> bool:
        """All alignments are looked at."""
        return self.kind == "exact" and not self.k

    @torch.no_grad()
    def marginals(self, positions: Positions, emitter: Emitter, every_word: bool = False) -> Marginals:
        """The likelihood of the gold words, and with `every_word` of all others."""
        candidates, log_weights = self.candidates(positions)
        cells = emitter.cells(positions, candidates)
        return marginalise(emitter.vocabulary, cells, log_weights, emitter.chunk_logits, every_word)

    def candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        """The alignments, or contexts, that are mixed, and their log weights: R x K."""
        prior = Categorical(positions.prior)
        if self.k:
            index, log_weights = prior.kmax(self.k)
            return Candidates(index=index, real=log_weights > float("-inf")), log_weights
        if self.kind == "exact":
            return Enum(Settings()).candidates(prior, positions.mix), prior.log_probs
        contexts = [positions.contexts]
        if self.kind == "samples":
            contexts = [positions.mix(Dirichlet(positions.prior).rsample()) for _ in range(self.samples)]
        weights = positions.contexts.new_full((len(positions.gold), len(contexts)), -math.log(len(contexts)))
        return Candidates(contexts=torch.stack(contexts, 1)), weights


@dataclass
class Inference:
    """What a model believes of R positions. Nothing is computed before it is asked for.

    With `every_word` mixtures have the log probabilities of all words, R x V.
    """

    positions: Positions
    emitter: Emitter
    objective: Objective
    every_word: bool = field(default=False, kw_only=True)

    @cached_property
    def prior(self) -> Categorical:
        """p(z); for relaxed attention its mean: R x S."""
        return Categorical(self.positions.prior)

    @cached_property
    def enumerated(self) -> Marginals:
        """The mixture of all alignments, with l at each: R, and R x S."""
        return TestAttention("exact").marginals(self.positions, self.emitter, self.every_word)

    @cached_property
    def posterior(self) -> Any:
        """q(z), refined where the model was trained to: R x S. None if the model has none."""
        scores = self.positions.posterior
        if scores is None:
            return None
        if self.objective.refine is not None:
            scores = self.objective.refine(scores, self.enumerated.log_likelihood, self.positions.prior)
        return self.objective.estimator.distribution(scores)

    @cached_property
    def exact_posterior(self) -> Categorical:
        """p(z | x, y), proportional to p exp(l): R x S."""
        return Categorical(self.prior.log_probs + self.enumerated.log_likelihood)

    def distribution(self, kind: str) -> Any:
        """The "prior", the "posterior" or the "exact" posterior."""
        names = {"prior": "prior", "posterior": "posterior", "exact": "exact_posterior"}
        return getattr(self, names[kind])

    def bound(self) -> Report:
        """The bound, its two parts and the posterior's entropy, for a model that has a posterior: R each."""
        q, l = self.posterior, self.enumerated.log_likelihood
        expected, kl = q.expectation(l), q.kl(self.prior)
        return {"elbo": expected - kl, "xent": -expected, "kl": kl, "posterior_entropy": q.entropy()}

    def mixture(self, attention: TestAttention) -> Marginals:
        """The likelihood of the gold words when these alignments are mixed."""
        if attention.enumerates:
            return self.enumerated
        return attention.marginals(self.positions, self.emitter, self.every_word)

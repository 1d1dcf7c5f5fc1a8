"""What a trained model believes of some positions: prior, posteriors, bounds and mixtures."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from onmt_varattn.latent.distributions import Categorical
from onmt_varattn.latent.emission import Emitter
from onmt_varattn.latent.likelihood import Marginals
from onmt_varattn.latent.mixtures import Exact, Mixture
from onmt_varattn.latent.objectives import Objective, Report
from onmt_varattn.latent.positions import Positions


@dataclass
class Inference:
    """Prior, posteriors, bounds and likelihoods at R positions, each computed on first access.

    >>> attention = LatentAttention(8, 6, words=20, objective="marginal")
    >>> found = attention.infer(torch.randn(3, 4, 8), torch.randn(3, 5, 6), torch.randint(20, (3, 4)))
    >>> found.prior.probs.shape  # 3 sentences of 4 words: R = 12
    torch.Size([12, 5])
    >>> found.positions.spread(found.exact_posterior.argmax()).shape
    torch.Size([3, 4])
    >>> found.mixture(KMax(2)).log_marginal.shape
    torch.Size([12])

    Attributes:
        positions: the R real target positions.
        emitter: readout and output layer.
        objective: what the model was trained with.
        every_word: whether mixtures have the log probabilities of all words, R x V.
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
        return Exact().marginals(self.positions, self.emitter, self.every_word)

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
        if not isinstance(self.posterior, Categorical):
            raise ValueError("posterior: the bound is enumerated, for models with a posterior over positions")
        q, l = self.posterior, self.enumerated.log_likelihood
        expected, kl = q.expectation(l), q.kl(self.prior)
        return {"elbo": expected - kl, "xent": -expected, "kl": kl, "posterior_entropy": q.entropy()}

    def mixture(self, mixture: Mixture) -> Marginals:
        """The likelihood of the gold words under a mixture."""
        if mixture.enumerates:
            return self.enumerated
        return mixture.marginals(self.positions, self.emitter, self.every_word)

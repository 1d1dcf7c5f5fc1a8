"""Latent attention as one module, for any decoder.

attention = LatentAttention(query_size, memory_size, words, objective="variational")
out = attention(queries, memory, gold, memory_padding=padding, posterior=scores)
out.loss.backward()
log_probs = attention.log_probs(queries, memory, memory_padding=padding, mixture=KMax(5))
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from onmt_varattn.latent.baselines import BASELINES, Baseline
from onmt_varattn.latent.distributions import MINUS_INFINITY, Categorical, Refinement, flat_posterior
from onmt_varattn.latent.estimators import ESTIMATORS, EstimatorSettings
from onmt_varattn.latent.likelihood import (
    CHUNK_LOGITS,
    Emitter,
    Marginals,
    OutputLayer,
    Workspace,
    candidate_states,
)
from onmt_varattn.latent.mixtures import Exact, Mixture, Samples
from onmt_varattn.latent.objectives import (
    OBJECTIVES,
    WARM_UPS,
    Objective,
    Report,
    Schedule,
    ScheduledObjective,
)
from onmt_varattn.latent.positions import Memory, Positions, no_padding
from onmt_varattn.latent.readout import READOUTS
from onmt_varattn.latent.scores import SCORES

CHECKED_CALLS = 10  # calls whose values are checked on a GPU, where a check waits for the device


@dataclass
class Outcome:
    """Loss and statistics of a batch, the result of `LatentAttention.forward`.

    The loss is a surrogate: its gradient is (an estimate of) the gradient of the bound, but its value may
    differ from the bound (with rws, vimco or a learned baseline). Compare models by `report` or `log_probs`.

    >>> outcome = Outcome(torch.tensor(6.0), {"log_likelihood": torch.tensor(-6.0)}, positions=3)
    >>> outcome.loss, outcome.report
    (tensor(2.), {'log_likelihood': -2.0})

    Attributes:
        total: the loss, summed over the real target positions, with gradient.
        sums: statistics, summed over the same positions. "log_likelihood" is the value of the objective (a
            log-likelihood or a bound on it); "correct" is the number of gold words that are the most
            probable ones; the others, depending on the objective, are "elbo", "xent" (-E_q[l]), "kl",
            "prior_entropy", "posterior_entropy", "uniform_entropy" (log S), "reward", "squared_reward",
            "prior_information" and "posterior_information" (see `mutual_information`).
        positions: the number of real target positions.
    """

    total: Tensor
    sums: Report
    positions: int

    @property
    def loss(self) -> Tensor:
        """The mean loss per target position, with gradient."""
        return self.total / max(self.positions, 1)

    @property
    def report(self) -> dict[str, float]:
        """Means of `sums` per target position, as floats; on a GPU this waits for the device."""
        values = torch.stack([value.double() for value in self.sums.values()]).tolist()
        return {name: value / max(self.positions, 1) for name, value in zip(self.sums, values, strict=True)}


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
        objective: objective of the training.
        every_word: whether mixtures contain the log probabilities of all words, R x V. Default: False.
    """

    positions: Positions
    emitter: Emitter
    objective: Objective
    every_word: bool = field(default=False, kw_only=True)

    @cached_property
    def prior(self) -> Categorical:
        """p(z), for relaxed attention its mean: R x S."""
        return Categorical(self.positions.prior)

    @cached_property
    def enumerated(self) -> Marginals:
        """The mixture of all alignments, and l of each: R, and R x S."""
        return Exact().marginals(self.positions, self.emitter, self.every_word)

    @cached_property
    def posterior(self) -> Any:
        """q(z), refined if the objective refines it, R x S; None without a posterior."""
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
        """The distribution named "prior", "posterior" or "exact" (the exact posterior)."""
        names = {"prior": "prior", "posterior": "posterior", "exact": "exact_posterior"}
        return getattr(self, names[kind])

    def bound(self) -> Report:
        """The bound, its two parts and the entropy of the posterior, by enumeration: R each."""
        if not isinstance(self.posterior, Categorical):
            raise ValueError("posterior: the bound needs a posterior over single source positions")
        q, l = self.posterior, self.enumerated.log_likelihood
        expected, kl = q.expectation(l), q.kl(self.prior)
        return {"elbo": expected - kl, "xent": -expected, "kl": kl, "posterior_entropy": q.entropy()}

    def mixture(self, mixture: Mixture) -> Marginals:
        """The likelihood of the gold words under a mixture."""
        if mixture.enumerates:
            return self.enumerated
        return mixture.marginals(self.positions, self.emitter, self.every_word)


class LatentAttention(nn.Module):
    """Attention whose alignment is a latent variable: prior, readout, output layer and objective.

    Its inputs are the states of a decoder ("queries"), the vectors that are attended to ("memory") and, for
    objectives with a posterior, the scores of an inference network. Calling the module returns the loss;
    `log_probs` returns word probabilities at test time; `infer` returns prior, posterior and bounds for
    analysis.

    Shapes: ``*B`` is any number of batch dimensions (including none), T is the number of target positions, S
    that of source positions, D is ``query_size``, M is ``memory_size``, V is ``words``.

    >>> attention = LatentAttention(query_size=8, memory_size=6, words=20, objective="marginal")
    >>> queries, memory = torch.randn(3, 4, 8), torch.randn(3, 5, 6)
    >>> out = attention(queries, memory, gold=torch.randint(20, (3, 4)))
    >>> out.loss.backward()
    >>> attention.log_probs(queries, memory).shape
    torch.Size([3, 4, 20])

    Args:
        query_size: D, size of the decoder states.
        memory_size: M, size of the vectors that are attended to.
        words: V, vocabulary size; None if the output layer belongs to another module, see
            `use_output_layer`.
        objective: function that is maximised: "soft", "marginal", "hard", "variational" (default) or
            "relaxed".
        estimator: estimator of its expectation, a name in `ESTIMATORS`. Default: "sample" for hard,
            variational and relaxed, "enum" for marginal.
        baseline: baseline of sampled rewards: "soft" (default), "average", "learned" or "none".
        score: function of query and memory: "mlp" (default), "general", "dot" or "scaled_dot".
        attention_size: hidden size of the score (mlp, scaled_dot). Default: D.
        readout: network from query and context to the state of a word: "additive" (default) or "residual".
        dropout: dropout rate in the readout. Default: 0.
        null (bool): add a NULL source position with a learned vector, for words without a source word. It is
            the last position of all distributions, also of posterior scores, which then have S + 1 columns.
            Default: False.
        ignore_index: index of padding among the gold words. Default: -100.
        label_smoothing: mass of the target distribution that is spread over all words. Only for objectives
            that are linear in the log-likelihood (not marginal, rws, iwae and vimco). Default: 0.
        unpredicted: a word that is never a target and gets no smoothing mass (padding). Default: none.
        warm_up_steps: number of training steps of soft attention before the objective; "auto": until
            alignments have formed. The module counts its calls in training mode. Default: 0.
        kl_weight: weight of the KL divergence. Default: 1.
        entropy_weight: weight of the prior's entropy, which is added to the bound. Default: 0.
        refine: refinement of posterior scores by gradient steps, see `Refinement`. Default: none.
        chunk_logits: number of logits per chunk, which bounds the memory. Default: 2**22.
        settings: settings of the estimator by name, see `EstimatorSettings`: samples=5, temperature=0.5, ...

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    null: nn.Parameter | None

    def __init__(
        self,
        query_size: int,
        memory_size: int,
        words: int | None,
        *,
        objective: str = "variational",
        estimator: str | None = None,
        baseline: str | None = None,
        score: str = "mlp",
        attention_size: int | None = None,
        readout: str = "additive",
        dropout: float = 0.0,
        null: bool = False,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        unpredicted: int | None = None,
        warm_up_steps: int | str = 0,
        kl_weight: float = 1.0,
        entropy_weight: float = 0.0,
        refine: Refinement | None = None,
        chunk_logits: int = CHUNK_LOGITS,
        **settings: Any,
    ) -> None:
        super().__init__()
        sizes = {"query_size": query_size, "memory_size": memory_size, "words": words}
        for name, size in {**sizes, "attention_size": attention_size}.items():
            if size is not None and size < 1:
                raise ValueError(f"{name}: {size} must be at least 1")
        if unpredicted is not None and words is not None and not 0 <= unpredicted < words:
            raise ValueError(f"unpredicted: {unpredicted} is not one of {words} words")
        self.query_size, self.memory_size, self.ignore_index = query_size, memory_size, ignore_index
        self.label_smoothing, self.unpredicted, self.chunk_logits = label_smoothing, unpredicted, chunk_logits
        self.score = SCORES.chosen("score", score)(query_size, memory_size, attention_size or query_size)
        self.readout = READOUTS.chosen("readout", readout)(query_size, memory_size, dropout)
        self.register_parameter("null", nn.Parameter(0.1 * torch.randn(memory_size)) if null else None)
        self.words = None if words is None else nn.Linear(query_size, words)
        self.objective = _objective(
            objective, estimator, baseline, query_size, entropy_weight, refine, settings
        )
        if label_smoothing and not (self.objective.linear and self.objective.estimator.linear):
            raise ValueError("label_smoothing: the objective is not linear in the log-likelihood; use 0")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing: {label_smoothing} must be at least 0 and below 1")
        if not kl_weight >= 0:
            raise ValueError(f"kl_weight: {kl_weight} must not be negative")
        if warm_up_steps != "auto" and not (type(warm_up_steps) is int and warm_up_steps >= 0):
            raise ValueError(f'warm_up_steps: {warm_up_steps!r} must be an integer of at least 0, or "auto"')
        steps = None if isinstance(warm_up_steps, str) else warm_up_steps
        self.scheduled = ScheduledObjective(self.objective, Schedule(steps, kl_weight))
        self.start = WarmUpCounter(self.scheduled) if steps != 0 else None
        self._output: list[nn.Linear] = []
        self._workspace = Workspace()
        self._calls = 0

    @property
    def output_layer(self) -> nn.Linear:
        """The output layer, from states to words."""
        layer = self.words if self.words is not None else next(iter(self._output), None)
        if layer is None:
            raise ValueError("words: None, but no output layer is set; call use_output_layer")
        return layer

    def use_output_layer(self, layer: nn.Linear) -> None:
        """Use an output layer that belongs to another module, which saves and trains it.

        Args:
            layer: linear layer D -> V, which is not registered as a submodule here.

        Raises:
            ValueError: the module has an output layer, or the layer does not fit.
        """
        if self.words is not None:
            raise ValueError("words: the module has an output layer; set words=None to use another")
        if not isinstance(layer, nn.Linear) or layer.in_features != self.query_size:
            raise ValueError(f"layer: {layer}, expected a torch.nn.Linear from states of {self.query_size}")
        self._output = [layer]

    def schedule(self, schedule: Schedule) -> None:
        """Replace the schedule; the caller then sets `scheduled.step` and calls `scheduled.watch`.

        Args:
            schedule: schedule instead of `warm_up_steps` and `kl_weight`.
        """
        if self.label_smoothing and not WARM_UPS[schedule.warm_up_objective].linear:
            raise ValueError("label_smoothing: the warm-up is not linear in the log-likelihood; use 0")
        self.scheduled, self.start = ScheduledObjective(self.objective, schedule), None

    def prepare(self, memory: Tensor, padding: Tensor | None = None) -> Memory:
        """Compute keys and padding of a memory once for all queries; valid until parameters change.

        Args:
            memory: N x S x M.
            padding: True where a position is padding, N x S. Default: no padding.
        """
        if padding is None:
            padding = no_padding(memory)
        if self.null is not None:
            memory = torch.cat([memory, self.null.to(memory.dtype).expand(len(memory), 1, -1)], 1)
            padding = nn.functional.pad(padding, (0, 1))
        return Memory(memory, padding, self.score.keys(memory), null=self.null is not None)

    def step(self, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """The prior and its expected context, for decoders that feed the context back (input feeding).

        Args:
            queries: N x Q x D, or N x D for one query per sentence.
            memory: result of `prepare`.

        Returns:
            E_p[x_z], N x Q x M, and the prior scores, N x Q x S; without Q for queries N x D.
        """
        one = queries.dim() == 2
        prior = Categorical(
            self.score(queries.unsqueeze(1) if one else queries, memory.keys), memory.padding.unsqueeze(1)
        )
        context = prior.mean(memory.vectors)
        return (context.squeeze(1), prior.scores.squeeze(1)) if one else (context, prior.scores)

    def forward(
        self,
        queries: Tensor,
        memory: Tensor | Memory,
        gold: Tensor,
        *,
        memory_padding: Tensor | None = None,
        posterior: Tensor | None = None,
        prior: Tensor | None = None,
        contexts: Tensor | None = None,
    ) -> Outcome:
        """Loss and statistics of a batch.

        Args:
            queries: states of the decoder, ``*B x T x D``.
            memory: ``*B x S x M``, or the result of `prepare`.
            gold: words to predict, ``*B x T``; `ignore_index` at padding.
            memory_padding: True where a source position is padding, ``*B x S``. Default: no padding.
            posterior: scores (unnormalised log probabilities) of an inference network, ``*B x T x S``.
                Ignored by objectives without a posterior.
            prior: scores from `step`, ``*B x T x S``. Default: computed from queries and memory.
            contexts: expected contexts from `step`, ``*B x T x M``. Default: computed from the prior.

        Raises:
            ValueError: an argument is invalid; the message names it. Shapes are always checked. Values are
                checked in every call on a CPU, and in the first ten calls on a GPU, where checks are slow.
        """
        given = self._batch(queries, memory, gold, memory_padding, posterior, prior, contexts)
        if self.objective.has_posterior and given.posterior is None:
            raise ValueError("posterior: this objective needs the scores of an inference network")
        outcome = self.evaluate(given)
        if self.start is not None and self.training:
            self.start.count(outcome)
        return outcome

    def evaluate(self, positions: Positions) -> Outcome:
        """Loss and statistics of given positions at the current step of the schedule."""
        loss, report = self.scheduled(positions, self.emitter(self.label_smoothing))
        return Outcome(loss, report, len(positions))

    @torch.no_grad()
    def log_probs(
        self,
        queries: Tensor,
        memory: Tensor | Memory,
        *,
        memory_padding: Tensor | None = None,
        mixture: Mixture | None = None,
        prior: Tensor | None = None,
        contexts: Tensor | None = None,
    ) -> Tensor:
        """Log probabilities of all words under the prior, ``*B x T x V``. No gradient.

        Args:
            queries: ``*B x T x D``.
            memory: ``*B x S x M``, or the result of `prepare`.
            memory_padding: ``*B x S``.
            mixture: the alignments that are mixed: `Exact`, `KMax`, `SoftContext` or `Samples`. Default:
                `SoftContext` for soft attention, `Samples` for relaxed attention, else `Exact`.
            prior: see `forward`.
            contexts: see `forward`.
        """
        positions = self._batch(queries, memory, None, memory_padding, None, prior, contexts)
        found = self._mixture(mixture).marginals(positions, self.emitter(), every_word=True)
        assert found.log_probs is not None
        return positions.spread(found.log_probs).view(*queries.shape[:-1], -1)

    def _mixture(self, mixture: Mixture | None) -> Mixture:
        """Check a mixture, and fill in defaults."""
        if mixture is None:
            return self.objective.mixture()
        if not isinstance(mixture, Mixture):
            raise ValueError(f"mixture: {mixture!r}, expected Exact(), KMax(5), SoftContext() or Samples(10)")
        if not isinstance(mixture, Samples):
            return mixture
        if self.objective.natural != "samples":
            raise ValueError("mixture: Samples is for relaxed attention; use Exact, KMax or SoftContext")
        return mixture if mixture.distribution else replace(mixture, distribution=self.objective.prior)

    @torch.no_grad()
    def infer(
        self,
        queries: Tensor,
        memory: Tensor | Memory,
        gold: Tensor,
        *,
        memory_padding: Tensor | None = None,
        posterior: Tensor | None = None,
        prior: Tensor | None = None,
        contexts: Tensor | None = None,
    ) -> Inference:
        """Prior, posteriors, bounds and likelihoods of given words, each computed on first access.

        The arguments are those of `forward`. ``infer(...).positions.spread(values)`` turns values of the
        real positions (R x ...) into a padded batch (N x T x ...), N the product of the batch dimensions.
        """
        positions = self._batch(queries, memory, gold, memory_padding, posterior, prior, contexts)
        return self.inference(positions)

    def states(self, positions: Positions, mixture: Mixture) -> tuple[Tensor, Tensor]:
        """The states of the candidates of a mixture, R x K x D, and their log weights, R x K."""
        candidates, log_weights = mixture.candidates(positions)
        return candidate_states(self.readout, positions, candidates), log_weights

    def inference(self, positions: Positions, every_word: bool = False) -> Inference:
        """`Inference` at given positions."""
        return Inference(positions, self.emitter(), self.objective, every_word=every_word)

    def emitter(self, label_smoothing: float = 0.0) -> Emitter:
        """Readout and output layer with the current parameters: f(x, z)."""
        layer = self.output_layer
        bias = layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias
        output = OutputLayer(layer.weight, bias, label_smoothing, self.unpredicted, self._workspace)
        return Emitter(self.readout, output, self.chunk_logits)

    def _batch(
        self,
        queries: Tensor,
        memory: Tensor | Memory,
        gold: Tensor | None,
        memory_padding: Tensor | None,
        posterior: Tensor | None,
        prior: Tensor | None,
        contexts: Tensor | None,
    ) -> Positions:
        """Check arguments and remove padding; without gold words, no position is padding."""
        given = {"queries": queries, "gold": gold, "memory_padding": memory_padding, "prior": prior}
        for name, value in {**given, "posterior": posterior, "contexts": contexts}.items():
            if value is not None and not isinstance(value, Tensor):
                raise ValueError(f"{name}: a {type(value).__name__}, expected a tensor")
        if not isinstance(memory, Tensor | Memory):
            raise ValueError(
                f"memory: a {type(memory).__name__}, expected a tensor or the result of `prepare`"
            )
        if contexts is not None and prior is None:
            raise ValueError("contexts: given without the prior scores that they belong to; give prior, too")
        batch = queries.shape[:-2]

        def flat(name: str, values: Tensor | None, *sizes: int) -> Tensor | None:
            if values is None:
                return None
            if values.shape != (*batch, *sizes):
                shape = tuple(values.shape)
                raise ValueError(f"{name}: shape {shape}, expected {(*batch, *sizes)} for the given queries")
            return values.reshape(-1, *sizes)

        if queries.dim() < 2 or queries.size(-1) != self.query_size:
            raise ValueError(
                f"queries: shape {tuple(queries.shape)}, expected (*batch, T, {self.query_size})"
            )
        steps = queries.size(-2)
        if not isinstance(memory, Memory):
            if memory.dim() < 2 or memory.size(-1) != self.memory_size:
                shape = tuple(memory.shape)
                raise ValueError(f"memory: shape {shape}, expected (*batch, S, {self.memory_size})")
            source = memory.size(-2)
            if source == 0:
                raise ValueError("memory: no source positions")
            vectors = flat("memory", memory, source, self.memory_size)
            padding = flat("memory_padding", memory_padding, source)
            if padding is not None and padding.dtype != torch.bool:
                raise ValueError(f"memory_padding: {padding.dtype}, expected torch.bool, True at padding")
            assert vectors is not None
            memory = self.prepare(vectors, padding)
        elif memory_padding is not None:
            raise ValueError("memory_padding: a prepared memory contains its padding; leave it out")
        sentences = queries.shape[:-2].numel()
        if memory.sentences != sentences:
            raise ValueError(f"memory: {memory.sentences} sentences, but queries have {sentences}")
        if gold is not None and (gold.is_floating_point() or gold.dtype == torch.bool):
            raise ValueError(f"gold: {gold.dtype}, expected integers")
        rows = queries.reshape(-1, steps, self.query_size)
        words = torch.zeros(queries.shape[:-1], dtype=torch.long, device=queries.device)
        gold_rows = flat("gold", words if gold is None else gold.long(), steps)
        posterior = flat("posterior", posterior, steps, memory.width)
        prior = flat("prior", prior, steps, memory.width)
        contexts = flat("contexts", contexts, steps, self.memory_size)
        assert gold_rows is not None
        real = (
            torch.ones_like(gold_rows, dtype=torch.bool) if gold is None else gold_rows != self.ignore_index
        )
        self._check_values(gold_rows, real, memory, posterior, prior)
        if prior is None:
            contexts, prior = self.step(rows, memory)
        else:
            prior = prior.masked_fill(memory.padding.unsqueeze(1), MINUS_INFINITY)
        if posterior is not None:
            posterior = posterior.masked_fill(memory.padding.unsqueeze(1), MINUS_INFINITY)
        elif self.objective.has_posterior and getattr(self.objective.refine, "flat", False):
            posterior = flat_posterior(prior)
        return Positions.of(rows, memory, gold_rows, real, prior, contexts, posterior)

    @torch.no_grad()
    def _check_values(
        self, gold: Tensor, real: Tensor, memory: Memory, posterior: Tensor | None, prior: Tensor | None
    ) -> None:
        """Raise a ValueError for values that are certainly wrong; see `forward`."""
        if gold.is_cuda:
            self._calls += 1
            if self._calls > CHECKED_CALLS:
                return
        if bool(memory.padding.all(1).any()):
            raise ValueError("memory_padding: all positions of a sentence are padding")
        words = self.output_layer.out_features
        if bool(((gold < 0) | (gold >= words))[real].any()):
            raise ValueError(f"gold: words must be 0 to {words - 1}, or {self.ignore_index} at padding")
        for name, scores in (("posterior", posterior), ("prior", prior)):
            if scores is None:
                continue
            here = scores.masked_fill(memory.padding.unsqueeze(1), 0.0)[real]  # R x S
            if bool(here.isnan().any()):
                raise ValueError(f"{name}: some scores are NaN")
            like_probabilities = (here >= 0).all() & ((here.sum(1) - 1).abs() < 1e-3).all()
            if memory.width > 1 and len(here) and bool(like_probabilities):
                raise ValueError(f"{name}: probabilities, expected scores (log probabilities)")


class WarmUpCounter(nn.Module):
    """Counts the training steps of a `LatentAttention` and ends its warm-up; part of its state_dict."""

    def __init__(self, scheduled: ScheduledObjective) -> None:
        super().__init__()
        self.scheduled = scheduled

    def count(self, outcome: Outcome) -> None:
        """Count a training step. In the warm-up, statistics are summed over all processes."""
        if self.scheduled.warming_up:
            seen = torch.stack([outcome.sums[name].double() for name in self.scheduled.watched])
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(seen)
            self.scheduled.watch(*seen.tolist())
        self.scheduled.step += 1

    def get_extra_state(self) -> dict[str, Any]:
        """The step and the state of the warm-up."""
        return {"step": self.scheduled.step, "start": self.scheduled.start_state()}

    def set_extra_state(self, state: Any) -> None:
        """Restore the step and the state of the warm-up."""
        if type(state["step"]) is not int or state["step"] < 1:
            raise ValueError("state_dict: the step of the warm-up is damaged")
        self.scheduled.load_start_state(state["start"])
        self.scheduled.step = state["step"]


def _objective(
    name: str,
    estimator: str | None,
    baseline: str | None,
    query_size: int,
    entropy_weight: float,
    refine: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
    settings: dict[str, Any],
) -> Objective:
    """Build an objective by names."""
    kind = OBJECTIVES.chosen("objective", name)
    estimator = estimator or next(iter(kind.estimators))
    if estimator not in kind.estimators:
        fits = ", ".join(kind.estimators)
        raise ValueError(f"estimator: {name} attention has no {estimator!r}; there are {fits}")
    if unknown := settings.keys() - vars(EstimatorSettings()).keys():
        raise ValueError(f"{min(unknown)}: no such argument or setting of an estimator")
    if refine is not None and (name, estimator) != ("variational", "enum"):
        raise ValueError("refine: only for variational attention with estimator enum; leave it out")
    if entropy_weight and name == "relaxed":
        raise ValueError("entropy_weight: not for relaxed attention, whose prior has no entropy; use 0")
    way = ESTIMATORS[kind.estimators[estimator]]
    built = way(EstimatorSettings(**{"samples": way.usual_samples, **settings}))
    if "samples" in way.uses and built.settings.samples < way.fewest_samples:
        raise ValueError(f"samples: {estimator} needs at least {way.fewest_samples}")
    compared: Baseline | None = None
    if way.needs_baseline:
        compared = BASELINES.chosen("baseline", baseline or "soft")(query_size)
    elif baseline is not None:
        raise ValueError(f"baseline: {estimator} needs none; leave it out")
    return kind(built, compared, entropy_weight, refine)

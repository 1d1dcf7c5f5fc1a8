"""Latent attention as one module: for a decoder of your own, and for the models of this package.

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
from onmt_varattn.latent.distributions import MINUS_INFINITY, Categorical, Refinement, Registry
from onmt_varattn.latent.estimators import ESTIMATORS, Settings
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

CHECKED_CALLS = 10  # on a GPU, where looking at values makes the CPU wait, only so many calls are checked


@dataclass
class Outcome:
    """Loss and statistics of a batch: what `LatentAttention.forward` returns.

    The loss is a surrogate: its gradient is the estimate of the bound's gradient, but its value need not be
    the bound's (with rws, vimco or a learned baseline it is not). Compare models by `report` or `log_probs`.

    >>> outcome = Outcome(torch.tensor(6.0), {"log_likelihood": torch.tensor(-6.0)}, positions=3)
    >>> outcome.loss, outcome.report
    (tensor(2.), {'log_likelihood': -2.0})

    Attributes:
        total: the loss, summed over the real target positions, with gradient.
        sums: statistics, summed over the same positions. "log_likelihood" is the value of what is
            maximised (a likelihood or a bound on it); "correct" counts gold words that are the most
            probable ones; the others are "elbo", "xent" (-E_q[l]), "kl", "prior_entropy",
            "posterior_entropy", "uniform_entropy" (log S), "reward", "squared_reward",
            "prior_information" and "posterior_information" (see `mutual_information`), as far as the
            objective has them.
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
        """Means of `sums` per target position, as numbers; on a GPU this waits for the device."""
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


class LatentAttention(nn.Module):
    """Attention whose alignment is a latent variable: prior, readout, output layer and objective.

    The caller has the decoder's states ("queries"), the vectors that are attended to ("memory") and, for
    objectives with a posterior, the scores of an inference network. Calling the module gives the loss;
    `log_probs` gives word probabilities at test time; `infer` gives prior, posterior and bounds for analysis.

    Sizes beside tensors: ``*B`` is any number of batch dimensions (also none), T is the number of target
    positions, S of source positions, D is ``query_size``, M is ``memory_size``, V is ``words``.

    >>> attention = LatentAttention(query_size=8, memory_size=6, words=20, objective="marginal")
    >>> queries, memory = torch.randn(3, 4, 8), torch.randn(3, 5, 6)
    >>> out = attention(queries, memory, gold=torch.randint(20, (3, 4)))
    >>> out.loss.backward()
    >>> attention.log_probs(queries, memory).shape
    torch.Size([3, 4, 20])

    Args:
        query_size: D, size of the decoder's states.
        memory_size: M, size of the vectors that are attended to.
        words: V, vocabulary size; None if the output layer belongs to another module, see
            `use_output_layer`.
        objective: what is maximised: "soft", "marginal", "hard", "variational" or "relaxed".
        estimator: how its expectation is computed, a name in `ESTIMATORS`; default: "sample" for hard,
            variational and relaxed, "enum" for marginal.
        baseline: what sampled rewards are compared with: "soft", "average", "learned" or "none".
            Default: "soft".
        score: function of query and memory: "mlp", "general", "dot" or "scaled_dot".
        attention_size: hidden size of the score (mlp, scaled_dot). Default: D.
        readout: network from query and context to the state of a word: "additive" or "residual".
        dropout: dropout rate in the readout.
        null (bool): add a NULL source position with a learned vector, for words without a source word. It is
            the last position of all distributions, also of posterior scores, which then have S + 1 columns.
        ignore_index: gold words with this number are padding.
        label_smoothing: share of the target distribution that is spread over all words. Only for
            objectives that are linear in the log-likelihood (not marginal, rws, iwae and vimco).
        unpredicted: a word that never is a target and gets no share of it (the padding word, say).
        warm_up_steps: training steps of soft attention before the objective; "auto": until alignments
            have formed. The module counts its own calls in training mode.
        kl_weight: weight of the KL divergence.
        entropy_weight: weight of the prior's entropy, added to the bound.
        refine: refines posterior scores by gradient steps, see `Refinement`.
        chunk_logits: number of logits that are held in memory at a time.
        settings: settings of the estimator by name, see `Settings`: samples=5, temperature=0.5, ...

    Raises:
        ValueError: names the argument that is wrong.
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
        kind = _chosen(SCORES, "score", score)
        self.score = kind(query_size, memory_size, attention_size or query_size)
        self.readout = _chosen(READOUTS, "readout", readout)(query_size, memory_size, dropout)
        self.register_parameter("null", nn.Parameter(0.1 * torch.randn(memory_size)) if null else None)
        self.words = None if words is None else nn.Linear(query_size, words)
        self.objective = _objective(
            objective, estimator, baseline, query_size, entropy_weight, refine, settings
        )
        if label_smoothing and not (self.objective.linear and self.objective.estimator.linear):
            raise ValueError("label_smoothing: the objective takes logarithms of sums of likelihoods; use 0")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing: {label_smoothing} must be at least 0 and below 1")
        if not kl_weight >= 0:
            raise ValueError(f"kl_weight: {kl_weight} must not be negative")
        if warm_up_steps != "auto" and not (type(warm_up_steps) is int and warm_up_steps >= 0):
            raise ValueError(f'warm_up_steps: {warm_up_steps!r} must be a number from 0, or "auto"')
        steps = None if isinstance(warm_up_steps, str) else warm_up_steps
        self.scheduled = ScheduledObjective(self.objective, Schedule(steps, kl_weight))
        self.start = Start(self.scheduled) if steps != 0 else None
        self._output: list[nn.Linear] = []
        self._workspace = Workspace()
        self._calls = 0

    @property
    def output_layer(self) -> nn.Linear:
        """The layer from states to words, W and b."""
        layer = self.words if self.words is not None else next(iter(self._output), None)
        if layer is None:
            raise ValueError("words: there is no output layer; give their number, or call use_output_layer")
        return layer

    def use_output_layer(self, layer: nn.Linear) -> None:
        """Use an output layer that belongs to another module, which saves and trains it.

        Args:
            layer: D -> V. It is not registered as a submodule here.

        Raises:
            ValueError: there is one already, or the layer is not one from states to words.
        """
        if self.words is not None:
            raise ValueError("words: there is an output layer of its own; give None to use another")
        if not isinstance(layer, nn.Linear) or layer.in_features != self.query_size:
            raise ValueError(f"layer: {layer}, expected a torch.nn.Linear from states of {self.query_size}")
        self._output = [layer]

    def schedule(self, schedule: Schedule) -> None:
        """Let the caller drive the schedule of the objective, by `scheduled.step` and `scheduled.watch`.

        Args:
            schedule: replaces the one of `warm_up_steps` and `kl_weight`.
        """
        if self.label_smoothing and not WARM_UPS[schedule.warm_up_objective].linear:
            raise ValueError("label_smoothing: the warm-up takes logarithms of sums of likelihoods; use 0")
        self.scheduled, self.start = ScheduledObjective(self.objective, schedule), None

    def prepare(self, memory: Tensor, padding: Tensor | None = None) -> Memory:
        """Compute once what all queries need of a memory. It is valid until parameters change.

        Args:
            memory: N x S x M.
            padding: True where a position is padding, N x S; default: nowhere.
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
            memory: from `prepare`.

        Returns:
            E_p[x_z], N x Q x M, and the prior's scores, N x Q x S; without Q where the queries have none.
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
            gold: the words to predict, ``*B x T``; `ignore_index` where there is none.
            memory_padding: True where a source position is padding, ``*B x S``; default: nowhere.
            posterior: scores (unnormalised log probabilities) of an inference network, ``*B x T x S``.
                Objectives without a posterior ignore it.
            prior: scores from `step`, ``*B x T x S``; default: computed from queries and memory.
            contexts: expected contexts from `step`, ``*B x T x M``.

        Raises:
            ValueError: names the argument that is wrong. Shapes are always checked. Values are checked
                in every call on a CPU, and in the first ten calls on a GPU, where checks are slow.
        """
        given = self._batch(queries, memory, gold, memory_padding, posterior, prior, contexts)
        if self.objective.has_posterior and given.posterior is None:
            raise ValueError("posterior: this objective needs the scores of an inference network")
        outcome = self.evaluate(given)
        if self.start is not None and self.training:
            self.start.count(outcome)
        return outcome

    def evaluate(self, positions: Positions) -> Outcome:
        """Loss and statistics of positions that the caller has made, at the present step of the schedule."""
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
            mixture: which alignments are mixed: `Exact`, `KMax`, `SoftContext` or `Samples`; default:
                `SoftContext` for soft attention, `Samples` for relaxed attention, else `Exact`.
            prior: see `forward`.
            contexts: see `forward`.
        """
        positions = self._batch(queries, memory, None, memory_padding, None, prior, contexts)
        found = self._mixture(mixture).marginals(positions, self.emitter(), every_word=True)
        assert found.log_probs is not None
        return positions.spread(found.log_probs).view(*queries.shape[:-1], -1)

    def _mixture(self, mixture: Mixture | None) -> Mixture:
        """What is mixed at test time."""
        if mixture is None:
            return self.objective.mixture()
        if not isinstance(mixture, Mixture):
            raise ValueError(f"mixture: {mixture!r}, expected Exact(), KMax(5), SoftContext() or Samples(10)")
        if not isinstance(mixture, Samples):
            return mixture
        if self.objective.natural != "samples":
            raise ValueError("mixture: samples are of relaxed attention; use Exact, KMax or SoftContext")
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
        real positions (R x ...) into a padded batch (N x T x ...).
        """
        positions = self._batch(queries, memory, gold, memory_padding, posterior, prior, contexts)
        return self.inference(positions)

    def states(self, positions: Positions, mixture: Mixture) -> tuple[Tensor, Tensor]:
        """The states that a mixture emits words from, R x K x D, and its log weights, R x K."""
        candidates, log_weights = mixture.candidates(positions)
        return candidate_states(self.readout, positions, candidates), log_weights

    def inference(self, positions: Positions, every_word: bool = False) -> Inference:
        """`Inference` for positions that the caller has made."""
        return Inference(positions, self.emitter(), self.objective, every_word=every_word)

    def emitter(self, label_smoothing: float = 0.0) -> Emitter:
        """f(x, z) with the present parameters: readout and output layer."""
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
        """Check arguments, and take the padding out; without gold words every position is real."""
        given = {"queries": queries, "gold": gold, "memory_padding": memory_padding, "prior": prior}
        for name, value in {**given, "posterior": posterior, "contexts": contexts}.items():
            if value is not None and not isinstance(value, Tensor):
                raise ValueError(f"{name}: a {type(value).__name__}, expected a tensor")
        if not isinstance(memory, Tensor | Memory):
            raise ValueError(f"memory: a {type(memory).__name__}, expected a tensor, or what `prepare` gives")
        if contexts is not None and prior is None:
            raise ValueError("contexts: they are those of a prior; give its scores, too")
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
                raise ValueError("memory: there is no source position")
            vectors = flat("memory", memory, source, self.memory_size)
            padding = flat("memory_padding", memory_padding, source)
            if padding is not None and padding.dtype != torch.bool:
                raise ValueError(f"memory_padding: {padding.dtype}, expected torch.bool, True at padding")
            assert vectors is not None
            memory = self.prepare(vectors, padding)
        elif memory_padding is not None:
            raise ValueError("memory_padding: a prepared memory has its own; leave it out")
        sentences = queries.shape[:-2].numel()
        if memory.sentences != sentences:
            raise ValueError(f"memory: {memory.sentences} sentences, but queries have {sentences}")
        if gold is not None and (gold.is_floating_point() or gold.dtype == torch.bool):
            raise ValueError(f"gold: {gold.dtype}, expected numbers of words")
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
        """Refuse values that cannot be meant; see `forward`."""
        if gold.is_cuda:
            self._calls += 1
            if self._calls > CHECKED_CALLS:
                return
        if bool(memory.padding.all(1).any()):
            raise ValueError("memory_padding: a sentence has no position that is not padding")
        words = self.output_layer.out_features
        if bool(((gold < 0) | (gold >= words))[real].any()):
            raise ValueError(f"gold: words must be from 0 to {words - 1}, or {self.ignore_index} for padding")
        for name, scores in (("posterior", posterior), ("prior", prior)):
            if scores is None:
                continue
            here = scores.masked_fill(memory.padding.unsqueeze(1), 0.0)[real]  # R x S
            if bool(here.isnan().any()):
                raise ValueError(f"{name}: some scores are not numbers")
            like_probabilities = (here >= 0).all() & ((here.sum(1) - 1).abs() < 1e-3).all()
            if memory.width > 1 and len(here) and bool(like_probabilities):
                raise ValueError(f"{name}: probabilities, where scores (their logarithms) are expected")


class Start(nn.Module):
    """Counts the training steps of a `LatentAttention`, and ends its warm-up. Saved in its state_dict."""

    def __init__(self, scheduled: ScheduledObjective) -> None:
        super().__init__()
        self.scheduled = scheduled

    def count(self, outcome: Outcome) -> None:
        """A training step is done. Until the warm-up is over, processes add up what they saw."""
        if self.scheduled.warming_up:
            seen = torch.stack([outcome.sums[name].double() for name in self.scheduled.watched])
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(seen)
            self.scheduled.watch(*seen.tolist())
        self.scheduled.step += 1

    def get_extra_state(self) -> dict[str, Any]:
        """The step, and how far alignments have formed."""
        return {"step": self.scheduled.step, "start": self.scheduled.start_state()}

    def set_extra_state(self, state: Any) -> None:
        """Go on from there."""
        if type(state["step"]) is not int or state["step"] < 1:
            raise ValueError("state_dict: the step of the start is damaged")
        self.scheduled.load_start_state(state["start"])
        self.scheduled.step = state["step"]


def flat_posterior(prior: Tensor) -> Tensor:
    """Scores of a uniform posterior, to be refined: those of the prior's real positions are zero."""
    return torch.zeros_like(prior).masked_fill(prior == MINUS_INFINITY, MINUS_INFINITY)


def _chosen(registry: Registry[Any], argument: str, name: str) -> Any:
    try:
        return registry[name]
    except KeyError:
        raise ValueError(f"{argument}: no {name!r}; there are {', '.join(registry)}") from None


def _objective(
    name: str,
    estimator: str | None,
    baseline: str | None,
    query_size: int,
    entropy_weight: float,
    refine: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
    settings: dict[str, Any],
) -> Objective:
    """An objective by names."""
    kind = _chosen(OBJECTIVES, "objective", name)
    estimator = estimator or next(iter(kind.estimators))
    if estimator not in kind.estimators:
        fits = ", ".join(kind.estimators)
        raise ValueError(f"estimator: {name} attention has no {estimator!r}; there are {fits}")
    if unknown := settings.keys() - vars(Settings()).keys():
        raise ValueError(f"{min(unknown)}: there is no such argument or setting of estimators")
    if refine is not None and (name, estimator) != ("variational", "enum"):
        raise ValueError("refine: posteriors are refined for variational attention by enum; leave it out")
    if entropy_weight and name == "relaxed":
        raise ValueError("entropy_weight: mixtures of positions have no such entropy; use 0")
    way = ESTIMATORS[kind.estimators[estimator]]
    built = way(Settings(**{"samples": way.usual_samples, **settings}))
    if "samples" in way.uses and built.settings.samples < way.fewest_samples:
        raise ValueError(f"samples: {estimator} needs at least {way.fewest_samples}")
    compared: Baseline | None = None
    if way.needs_baseline:
        compared = _chosen(BASELINES, "baseline", baseline or "soft")(query_size)
    elif baseline is not None:
        raise ValueError(f"baseline: {estimator} has no use for one; leave it out")
    return kind(built, compared, entropy_weight, refine)

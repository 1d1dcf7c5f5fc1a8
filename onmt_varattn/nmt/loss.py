"""The loss computers: an objective of latent/ in the shape OpenNMT's trainer calls."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from onmt.utils.logging import logger
from onmt.utils.loss import LossComputeBase
from torch import Tensor

from onmt_varattn.latent.alignment import Categorical, Dirichlet
from onmt_varattn.latent.estimators import Enum, Estimator, Settings
from onmt_varattn.latent.likelihood import Candidates, Marginals, Vocabulary, Workspace, marginalise
from onmt_varattn.latent.objectives import (
    OBJECTIVES,
    Emitter,
    Hard,
    Objective,
    Positions,
    Soft,
    soft_marginals,
    warm_up,
)
from onmt_varattn.latent.refinement import Refinement
from onmt_varattn.nmt.decoder import Trace
from onmt_varattn.nmt.model import AlignmentModel
from onmt_varattn.nmt.statistics import AlignmentStatistics
from onmt_varattn.opts import estimator_of

VALIDATION_SAMPLES = 10  # of a Dirichlet prior


class AlignmentLossCompute(LossComputeBase):
    """Loss and statistics of a batch, on its real target positions only.

    Args:
        model: emits states and has the vocabulary.
        padding: the index of the padding word.
        smoothing: label smoothing.

    Attributes:
        external_smoothing: make the posterior of the batch's alignments, with this share for all words.
    """

    external_smoothing: float | None = None

    def __init__(self, model: AlignmentModel, padding: int, smoothing: float = 0.0) -> None:
        super().__init__(criterion=None, generator=model.generator)
        self.decoder, self.padding, self.smoothing = model.decoder, padding, smoothing
        self.workspace = Workspace()

    @property
    def padding_idx(self) -> int:
        """OpenNMT's name for it."""
        return self.padding

    def __call__(
        self,
        batch: Any,
        output: Trace,
        attns: dict[str, Tensor],
        normalization: float = 1.0,
        shard_size: int = 0,
        trunc_start: int = 0,
        trunc_size: int | None = None,
    ) -> tuple[Tensor, AlignmentStatistics]:
        """The normalised loss, still to be differentiated, and the batch's statistics.

        `shard_size` is not needed: the vocabulary is chunked where its logits arise.
        """
        if self.external_smoothing is not None:
            output.posterior = external_posterior(batch.align, output.prior, self.external_smoothing)
        positions = real_positions(output, batch.tgt[1:, :, 0], self.padding)
        vocabulary = self.generator.vocabulary
        emitter = Emitter(
            self.decoder.emission,
            Vocabulary(vocabulary.weight, vocabulary.bias, self.smoothing, self.padding, self.workspace),
            self.decoder.dropout,
        )
        loss, report = self.evaluate(positions, emitter)
        names = list(report)
        values = torch.stack([report[name].double() for name in names]).tolist()  # one wait for the device
        sums = dict(zip(names, values, strict=True))
        loss_sum, correct = -sums.pop("log_likelihood"), int(sums.pop("correct"))
        return loss / normalization, AlignmentStatistics(loss_sum, len(positions.gold), correct, sums=sums)

    def evaluate(self, positions: Positions, emitter: Emitter) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and sums to report: "log_likelihood" (for the perplexity), "correct", and others."""
        raise NotImplementedError


@dataclass(frozen=True)
class Schedule:
    """What changes in the course of training."""

    warm_up_steps: int = 0
    kl_weight: float = 1.0
    kl_warm_up_steps: int = 0
    temperature: float = 1.0
    least_temperature: float = 1.0
    anneal_steps: int = 1
    warm_up_objective: str = "soft"

    def kl_weight_at(self, step: int) -> float:
        """Grows linearly from 0; counted from the end of the warm-up."""
        if not self.kl_warm_up_steps:
            return self.kl_weight
        return self.kl_weight * min(1.0, max(0, step - self.warm_up_steps) / self.kl_warm_up_steps)

    def temperature_at(self, step: int) -> float:
        """Falls linearly to the least one."""
        part = min(1.0, step / self.anneal_steps)
        return self.temperature + part * (self.least_temperature - self.temperature)


class TrainingLoss(AlignmentLossCompute):
    """An objective, after a warm-up.

    Attributes:
        step: the training step, set by the trainer.
    """

    def __init__(
        self, model: AlignmentModel, padding: int, smoothing: float, objective: Objective, schedule: Schedule
    ) -> None:
        super().__init__(model, padding, smoothing)
        self.objective, self.schedule = objective, schedule
        enumerated = Enum(Settings())
        self.first = {"soft": Soft, "hard": Hard}[schedule.warm_up_objective](enumerated)
        self.step = 1

    def carried(self) -> Tensor:
        """What goes from step to step: the average reward."""
        return torch.tensor([self.objective.average_reward], dtype=torch.float64)

    def take_up(self, carried: Tensor) -> None:
        """Go on with what `carried` gave."""
        self.objective.average_reward = float(carried[0])

    def evaluate(self, positions: Positions, emitter: Emitter) -> tuple[Tensor, dict[str, Tensor]]:
        """See the base class. The perplexity is that of the bound."""
        if self.step <= self.schedule.warm_up_steps:
            outcome = warm_up(self.first, self.objective, positions, emitter)
            report = dict(outcome.report)
            return outcome.loss, {"log_likelihood": report.pop("bound"), **report}
        self.objective.estimator.settings.temperature = self.schedule.temperature_at(self.step)
        outcome = self.objective(positions, emitter, self.schedule.kl_weight_at(self.step))
        report = dict(outcome.report)
        bound = report.pop("bound")
        if not self.objective.has_posterior:  # bound and cross-entropy are one, and there is no divergence
            return outcome.loss, {"log_likelihood": bound, **_without(report, "xent", "kl")}
        return outcome.loss, {"log_likelihood": bound, "elbo": bound, **report}


def _without(report: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: value for name, value in report.items() if name not in names}


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

    def marginals(self, positions: Positions, emitter: Emitter) -> Marginals:
        """The likelihood of the gold words."""
        if self.kind == "soft" and not self.k:
            return soft_marginals(positions, emitter)
        candidates, log_weights = self._candidates(positions)
        cells = emitter.cells(positions, candidates)
        return marginalise(emitter.vocabulary, cells, log_weights, emitter.chunk_logits)

    def _candidates(self, positions: Positions) -> tuple[Candidates, Tensor]:
        prior = Categorical(positions.prior)
        if self.k:
            index, log_weights = prior.kmax(self.k)
            return Candidates(index=index, real=log_weights > float("-inf")), log_weights
        if self.kind == "exact":
            return Enum(Settings()).candidates(prior, positions.mix), prior.log_probs
        draws = [positions.mix(Dirichlet(positions.prior).rsample()) for _ in range(self.samples)]
        weights = positions.contexts.new_full((len(positions.gold), self.samples), -math.log(self.samples))
        return Candidates(contexts=torch.stack(draws, 1)), weights


class ValidationLoss(AlignmentLossCompute):
    """The perplexity a model has at test time; with all alignments at hand, its bound as well."""

    def __init__(
        self, model: AlignmentModel, padding: int, objective: Objective, test_attention: TestAttention
    ) -> None:
        super().__init__(model, padding)
        self.objective, self.test_attention = objective, test_attention

    @torch.no_grad()
    def evaluate(self, positions: Positions, emitter: Emitter) -> tuple[Tensor, dict[str, Tensor]]:
        """See the base class."""
        found = self.test_attention.marginals(positions, emitter)
        total = found.log_marginal.sum()
        prior = Categorical(positions.prior)
        report = {
            "log_likelihood": total,
            "correct": found.correct.sum(),
            "prior_entropy": prior.entropy().sum(),
        }
        if self.test_attention.enumerates and positions.posterior is not None:
            scores = positions.posterior
            if self.objective.refine is not None:
                scores = self.objective.refine(scores, found.log_likelihood, positions.prior)
            q = self.objective.estimator.distribution(scores)
            expected, kl = q.expectation(found.log_likelihood).sum(), q.kl(prior).sum()
            report |= {
                "elbo": expected - kl,
                "xent": -expected,
                "kl": kl,
                "posterior_entropy": q.entropy().sum(),
            }
        return -total, report


def real_positions(trace: Trace, gold: Tensor, padding: int) -> Positions:
    """Take the padding out of a batch: T x N positions -> R."""
    flat_gold = gold.flatten()  # T*N
    place = flat_gold.ne(padding).nonzero().squeeze(1)  # R

    def rows(tensor: Tensor) -> Tensor:
        return tensor.flatten(0, 1).index_select(0, place)

    return Positions(
        queries=rows(trace.queries),
        contexts=rows(trace.contexts),
        prior=rows(trace.prior),
        posterior=None if trace.posterior is None else rows(trace.posterior),
        memory=trace.memory,
        place=place,
        steps=len(gold),
        gold=flat_gold.index_select(0, place),
    )


def external_posterior(links: Tensor, prior: Tensor, smoothing: float) -> Tensor:
    """A posterior's scores from given links.

    A target word with links has 1 - smoothing spread over them and smoothing over all source
    words; a word without any (the end of the sentence, say) has a uniform posterior.

    Args:
        links: L x 3, each (sentence, target position counted from 1, source position).
        prior: T x N x S, minus infinity where the source is padding.
        smoothing: above 0.
    """
    real = prior != float("-inf")
    linked = torch.zeros_like(prior)
    linked[links[:, 1] - 1, links[:, 0], links[:, 2]] = 1.0
    uniform = real / real.sum(-1, keepdim=True)
    count = linked.sum(-1, keepdim=True)
    probs = torch.where(
        count > 0, (1 - smoothing) * linked / count.clamp(min=1) + smoothing * uniform, uniform
    )
    return probs.log()


def build_alignment_loss(
    model: AlignmentModel, tgt_field: Any, opt: Any, train: bool = True
) -> AlignmentLossCompute:
    """The loss computer that the options ask for; validation has no label smoothing."""
    compute = _build(model, tgt_field, opt, train)
    compute.external_smoothing = opt.posterior_smoothing
    return compute


def _build(model: AlignmentModel, tgt_field: Any, opt: Any, train: bool) -> AlignmentLossCompute:
    padding = tgt_field.vocab.stoi[tgt_field.pad_token]
    objective = build_objective(opt)
    if not train:
        return ValidationLoss(model, padding, objective, test_attention_of(opt, opt.attention))
    schedule = Schedule(
        opt.attention_warmup_steps or 0,
        1.0 if opt.kl_weight is None else opt.kl_weight,
        opt.kl_warmup_steps or 0,
        opt.gumbel_temperature or 1.0,
        opt.gumbel_min_temperature or opt.gumbel_temperature or 1.0,
        opt.gumbel_anneal_steps or 1,
        opt.attention_warmup or "soft",
    )
    describe(opt)
    return TrainingLoss(model, padding, opt.label_smoothing, objective, schedule)


def describe(opt: Any) -> None:
    """Say in the log what is trained."""
    parts = [opt.attention]
    if opt.attention_estimator != "none":
        parts.append(f"by {opt.attention_estimator}")
    if opt.posterior:
        network = f" ({opt.posterior_rnn})" if opt.posterior_rnn else ""
        parts.append(f"with posterior {opt.posterior}{network}")
    steps = opt.attention_warmup_steps
    if steps:
        first = {"soft": "soft attention", "hard": "hard attention by enum"}[opt.attention_warmup]
        parts.append(f"after {steps} steps of {first}")
    logger.info("Attention: %s", " ".join(parts))
    if steps and steps >= opt.train_steps > 0:
        logger.warning(
            "-attention_warmup_steps %d: the warm-up is not over by -train_steps %d", steps, opt.train_steps
        )


def test_attention_of(opt: Any, attention: str) -> TestAttention:
    """How a model is to be used at test time: as the options say, or as it was trained."""
    natural = {"soft": "soft", "relaxed": "samples"}.get(attention, "exact")
    return TestAttention(opt.test_attention or natural, opt.kmax)


def build_objective(opt: Any) -> Objective:
    """The objective that the options ask for."""
    refine = None
    if opt.posterior in ("svi", "savi"):
        refine = Refinement(opt.svi_steps, opt.svi_lr, flat=opt.posterior == "svi")
    return OBJECTIVES[opt.attention](
        build_estimator(opt),
        baseline=opt.baseline or "none",
        entropy_weight=opt.entropy_weight or 0.0,
        refine=refine,
    )


def build_estimator(opt: Any) -> Estimator:
    """The estimator that the options ask for."""
    return estimator_of(opt)(
        Settings(
            samples=opt.attention_samples or 1,
            top=opt.attention_top or 3,
            temperature=opt.gumbel_temperature or 1.0,
            hard_gumbel=opt.gumbel_hard,
            reward_weight=1.0 if opt.reward_weight is None else opt.reward_weight,
            normalise=_sparse_function(opt.sparse_function) if opt.sparse_function else None,
        )
    )


def _sparse_function(name: str) -> Any:
    import entmax

    function = getattr(entmax, name)
    return lambda scores: function(scores, dim=-1)

"""Loss computers: objectives of latent/ with the interface of OpenNMT's loss."""

from argparse import Namespace
from typing import Any

import torch
from onmt.utils.logging import logger
from onmt.utils.loss import LossComputeBase
from torch import Tensor

from onmt_varattn.latent import Mixture, Positions, SoftContext
from onmt_varattn.latent.objectives import Report, ScheduledObjective
from onmt_varattn.latent.positions import mutual_information, uniform_entropy
from onmt_varattn.modules import Trace
from onmt_varattn.nmt.model.building import AlignmentModel
from onmt_varattn.nmt.settings import LatentSettings
from onmt_varattn.nmt.training.statistics import AlignmentStatistics
from onmt_varattn.training.attention import describe_attention, mixture_of
from onmt_varattn.training.settings import MixtureSettings
from onmt_varattn.utils.settings import from_options


class AlignmentLossCompute(LossComputeBase):
    """Loss and statistics of a batch, on its real target positions only.

    Args:
        model: model whose attention has the objective.
        padding: index of the padding token.

    Attributes:
        external_smoothing: with a value, the posterior is made from the alignments of the batch, with this
            share spread over all source words.
    """

    external_smoothing: float | None = None

    def __init__(self, model: AlignmentModel, padding: int) -> None:
        super().__init__(criterion=None, generator=model.generator)
        self.attention, self.padding = model.decoder.attention, padding

    @property
    def padding_idx(self) -> int:
        """OpenNMT's name for `padding`."""
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
        """The normalised loss, with gradient, and the statistics of the batch.

        `shard_size` is not needed: the vocabulary is chunked where its logits arise.
        """
        if self.external_smoothing is not None:
            output.posterior = external_posterior(
                batch.align, output.prior, self.external_smoothing, output.memory.null
            )
        gold = batch.tgt[1:, :, 0].t()  # N x T
        positions = output.positions(gold, gold != self.padding)
        loss, report = self.evaluate(positions)
        names = list(report)
        values = torch.stack([report[name].double() for name in names]).tolist()  # one wait for the device
        sums = dict(zip(names, values, strict=True))
        loss_sum, correct = -sums.pop("log_likelihood"), int(sums.pop("correct"))
        return loss / normalization, AlignmentStatistics(loss_sum, len(positions), correct, sums=sums)

    def evaluate(self, positions: Positions) -> tuple[Tensor, Report]:
        """The loss, and sums to report: "log_likelihood" (for the perplexity), "correct", and others."""
        raise NotImplementedError


class TrainingLoss(AlignmentLossCompute):
    """An objective, after a warm-up."""

    @property
    def scheduled(self) -> ScheduledObjective:
        """The objective with its schedule."""
        return self.attention.scheduled

    @property
    def step(self) -> int:
        """The training step, set by the trainer."""
        return self.scheduled.step

    @step.setter
    def step(self, step: int) -> None:
        self.scheduled.step = step

    def evaluate(self, positions: Positions) -> tuple[Tensor, Report]:
        """See the base class. The perplexity is that of the bound."""
        outcome = self.attention.evaluate(positions)
        return outcome.total, outcome.sums


class ValidationLoss(AlignmentLossCompute):
    """Perplexity as at test time and, where alignments are enumerated, the bound."""

    def __init__(self, model: AlignmentModel, padding: int, mixture: Mixture) -> None:
        super().__init__(model, padding)
        self.mixture = mixture

    @torch.no_grad()
    def evaluate(self, positions: Positions) -> tuple[Tensor, Report]:
        """See the base class."""
        inference = self.attention.inference(positions)
        found = inference.mixture(self.mixture)
        total = found.log_marginal.sum()
        report = {
            "log_likelihood": total,
            "correct": found.correct.sum(),
            "prior_entropy": inference.prior.entropy().sum(),
            "prior_information": mutual_information(positions, inference.prior.probs).sum(),
            "uniform_entropy": uniform_entropy(positions.prior).sum(),
        }
        if self.mixture.name != "soft":
            soft = inference.mixture(SoftContext())
            report["soft_log_likelihood"] = soft.log_marginal.sum()
        if self.mixture.enumerates and positions.posterior is not None:
            report |= {name: values.sum() for name, values in inference.bound().items()}
            report["posterior_information"] = mutual_information(positions, inference.posterior.probs).sum()
        return -total, report


def external_posterior(links: Tensor, prior: Tensor, smoothing: float, null: bool = False) -> Tensor:
    """Scores of a posterior from given links: N x T x S.

    A target word with links has 1 - smoothing spread over them and smoothing over all source
    words; a word without any (the end of the sentence, say) has a uniform posterior or, where there
    is a NULL position, is linked to it.

    Args:
        links: L x 3, each (sentence, target position counted from 1, source position).
        prior: N x T x S, minus infinity where the source is padding.
        smoothing: above 0.
        null: the last source position is NULL.
    """
    real = prior != float("-inf")
    linked = torch.zeros_like(prior)
    linked[links[:, 0], links[:, 1] - 1, links[:, 2]] = 1.0
    if null:
        linked[:, :, -1] = (linked.sum(-1) == 0).to(linked.dtype)
    uniform = real.to(torch.promote_types(prior.dtype, torch.float32)) / real.sum(-1, keepdim=True)
    count = linked.sum(-1, keepdim=True)
    probs = torch.where(
        count > 0, (1 - smoothing) * linked / count.clamp(min=1) + smoothing * uniform, uniform
    )
    return probs.log()


def build_alignment_loss(
    model: AlignmentModel, tgt_field: Any, opt: Namespace, train: bool = True
) -> AlignmentLossCompute:
    """The loss computer for the options; validation has no label smoothing."""
    compute = _build(model, tgt_field, opt, train)
    compute.external_smoothing = opt.posterior_smoothing
    return compute


def _build(model: AlignmentModel, tgt_field: Any, opt: Namespace, train: bool) -> AlignmentLossCompute:
    padding = tgt_field.vocab.stoi[tgt_field.pad_token]
    if not train:
        return ValidationLoss(
            model, padding, mixture_of(from_options(MixtureSettings, opt), model.decoder.attention.objective)
        )
    describe(opt)
    return TrainingLoss(model, padding)


def describe(opt: Namespace) -> None:
    """Log the objective, and warn of a warm-up without an end."""
    settings = from_options(LatentSettings, opt)
    logger.info("Attention: %s", describe_attention(settings, settings.posterior_rnn))
    steps = settings.attention_warmup_steps
    if steps and steps != "auto" and steps >= opt.train_steps > 0:
        logger.warning(
            "-attention_warmup_steps %d: the warm-up is not over by -train_steps %d", steps, opt.train_steps
        )

"""The loss computer: an objective of latent/ in the shape OpenNMT's trainer calls."""

from typing import Any

import torch
from onmt.utils import Statistics
from onmt.utils.loss import LossComputeBase
from torch import Tensor

from onmt_varattn.latent.alignment import Categorical
from onmt_varattn.latent.likelihood import GoldWords, gold_words
from onmt_varattn.latent.objectives import OBJECTIVES, Objective, Positions
from onmt_varattn.nmt.decoder import AttentionDecoder, Trace
from onmt_varattn.nmt.generator import MixtureGenerator
from onmt_varattn.nmt.model import AlignmentModel


class AlignmentLossCompute(LossComputeBase):
    """Loss and statistics of a batch, on its real target positions only.

    Args:
        objective: what is maximised.
        decoder: emits states.
        generator: has the vocabulary.
        padding: the index of the padding word.
        smoothing: label smoothing.
    """

    def __init__(
        self,
        objective: Objective,
        decoder: AttentionDecoder,
        generator: MixtureGenerator,
        padding: int,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__(criterion=None, generator=generator)
        self.objective, self.decoder = objective, decoder
        self.padding, self.smoothing = padding, smoothing

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
    ) -> tuple[Tensor, Statistics]:
        """The normalised loss, still to be differentiated, and the batch's statistics.

        `shard_size` is not needed: the vocabulary is chunked where its logits arise.
        """
        positions = real_positions(output, batch.tgt[1:, :, 0], self.padding)
        words = self.objective(positions, self)
        loss, correct = torch.stack([-words.log_likelihood.sum(), words.correct.sum()]).tolist()
        return words.loss / normalization, Statistics(loss, len(positions.gold), int(correct))

    def states(self, queries: Tensor, contexts: Tensor) -> Tensor:
        """The states words are emitted from: ... x D and ... x M -> ... x D."""
        return self.decoder.dropout(self.decoder.emission(queries, contexts))

    def gold(self, states: Tensor, gold: Tensor) -> GoldWords:
        """The likelihood of the gold words: R x D and R."""
        vocabulary = self.generator.vocabulary
        return gold_words(states, vocabulary.weight, vocabulary.bias, gold, self.smoothing, self.padding)


def real_positions(trace: Trace, gold: Tensor, padding: int) -> Positions:
    """Take the padding out of a batch: T x N positions -> R."""
    flat_gold = gold.flatten()  # T*N
    real = flat_gold.ne(padding).nonzero().squeeze(1)  # R

    def rows(tensor: Tensor) -> Tensor:
        return tensor.flatten(0, 1).index_select(0, real)

    return Positions(
        queries=rows(trace.queries),
        contexts=rows(trace.contexts),
        prior=Categorical(rows(trace.prior.scores)),
        memory=trace.memory,
        sentence=real % gold.size(1),
        gold=flat_gold.index_select(0, real),
    )


def build_alignment_loss(
    model: AlignmentModel, tgt_field: Any, opt: Any, train: bool = True
) -> AlignmentLossCompute:
    """The loss computer that the options ask for; validation has no label smoothing."""
    return AlignmentLossCompute(
        OBJECTIVES[opt.attention](),
        model.decoder,
        model.generator,
        padding=tgt_field.vocab.stoi[tgt_field.pad_token],
        smoothing=opt.label_smoothing if train else 0.0,
    )

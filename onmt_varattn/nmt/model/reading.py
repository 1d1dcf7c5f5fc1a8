"""Runs a translation model over sentence pairs for analysis."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onmt_varattn.analysis.reading import Reading
from onmt_varattn.latent import Positions
from onmt_varattn.nmt.model.building import AlignmentModel

Tokens = Sequence[str]


class Reader:
    """Reads sentence pairs with a model.

    Args:
        model: model trained with `-attention`.
        fields: fields of the checkpoint, with the vocabularies.
        batch_size: sentence pairs per batch.
    """

    def __init__(self, model: AlignmentModel, fields: dict[str, Any], batch_size: int = 32) -> None:
        self.model, self.batch_size = model, batch_size
        self.fields = {side: fields[side].base_field for side in ("src", "tgt")}

    @torch.no_grad()
    def read(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> Iterator[Reading]:
        """Read pairs of tokens in batches of similar length, the longest sources first.

        Args:
            pairs: token pairs with at least one token per side.
        """
        order = sorted(range(len(pairs)), key=lambda i: (-len(pairs[i][0]), -len(pairs[i][1])))
        for start in range(0, len(order), self.batch_size):
            yield self._read([(i, *pairs[i]) for i in order[start : start + self.batch_size]])

    def positions(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> Positions:
        """The target positions of one batch, with a gradient where gradients are enabled.

        Args:
            pairs: token pairs with at least one token per side, the longest source first.
        """
        device = self.model.generator.output_layer.weight.device
        tgt_field = self.fields["tgt"]
        src = self._indices("src", [source for source, _ in pairs], device)
        framed = [[tgt_field.init_token, *target, tgt_field.eos_token] for _, target in pairs]
        tgt = self._indices("tgt", framed, device)
        lengths = torch.tensor([len(source) for source, _ in pairs], device=device)
        trace, _ = self.model(src, tgt, lengths)
        gold = tgt[1:, :, 0].t()  # N x T
        return trace.positions(gold, gold != tgt_field.vocab.stoi[tgt_field.pad_token])

    def _read(self, batch: list[tuple[int, Tokens, Tokens]]) -> Reading:
        attention = self.model.decoder.attention
        return Reading(
            lines=[i for i, _, _ in batch],
            source_lengths=[len(source) for _, source, _ in batch],
            target_lengths=[len(target) + 1 for _, _, target in batch],
            positions=self.positions([(source, target) for _, source, target in batch]),
            emitter=attention.emitter(),
            objective=attention.objective,
        )

    def _indices(self, side: str, lines: Sequence[Tokens], device: torch.device) -> Tensor:
        """Token indices, padded: length x N x 1."""
        vocab, padding = self.fields[side].vocab, self.fields[side].pad_token
        rows = [torch.tensor([vocab.stoi[token] for token in line], device=device) for line in lines]
        return nn.utils.rnn.pad_sequence(rows, padding_value=vocab.stoi[padding]).unsqueeze(2)

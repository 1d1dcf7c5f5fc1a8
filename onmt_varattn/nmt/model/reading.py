"""A trained model reading sentence pairs: what analysis is made of.

For each target position of a batch of pairs a `Reading` has the prior p(z), the inference network's
posterior q(z), the log-likelihood l_i of the gold word under every alignment, and from them the
exact posterior p(z | x, y), proportional to p_i exp(l_i).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onmt_varattn.latent import Inference, Positions
from onmt_varattn.nmt.model.building import AlignmentModel

Tokens = Sequence[str]


@dataclass
class Reading(Inference):
    """A batch of N sentence pairs. Its R positions are all target tokens and ends of sentences.

    Nothing is computed before it is asked for.
    """

    lines: list[int]  # N, which of the given pairs
    source_lengths: list[int]  # N
    target_lengths: list[int]  # N, with the end of the sentence

    def by_sentence(self, values: Tensor) -> list[Tensor]:
        """Split R x ... values by sentence: N of T_n x ..., the end of the sentence last.

        Values over source positions (R x S) lose those that are padding: T_n x S_n, and if the model has
        a NULL position T_n x (S_n + 1), NULL being the last.
        """
        sentence = self.positions.sentence.to(values.device)
        rows = [values[sentence == n] for n in range(len(self.lines))]
        if values.dim() == 2 and values.size(1) == self.positions.prior.size(1):
            real = ~self.positions.memory.padding.to(values.device)  # N x S
            rows = [row[:, real[n]] for n, row in enumerate(rows)]
        return rows


class Reader:
    """A model that reads.

    Args:
        model: with `-attention`.
        fields: the checkpoint's, with the vocabularies.
        batch_size: pairs read at a time.
    """

    def __init__(self, model: AlignmentModel, fields: dict[str, Any], batch_size: int = 32) -> None:
        self.model, self.batch_size = model, batch_size
        self.fields = {side: fields[side].base_field for side in ("src", "tgt")}

    @torch.no_grad()
    def read(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> Iterator[Reading]:
        """Read pairs of tokens in batches of like length, the longest sources first.

        Args:
            pairs: of at least one token a side.
        """
        order = sorted(range(len(pairs)), key=lambda i: (-len(pairs[i][0]), -len(pairs[i][1])))
        for start in range(0, len(order), self.batch_size):
            yield self._read([(i, *pairs[i]) for i in order[start : start + self.batch_size]])

    def positions(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> Positions:
        """The target positions of one batch, with a gradient where gradients are enabled.

        Args:
            pairs: of at least one token a side, the longest source first.
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
        """Words to numbers, padded: length x N x 1."""
        vocab, padding = self.fields[side].vocab, self.fields[side].pad_token
        longest = max(map(len, lines))
        rows = [
            [vocab.stoi[token] for token in [*line, *[padding] * (longest - len(line))]] for line in lines
        ]
        return torch.tensor(rows, device=device).t().unsqueeze(2)

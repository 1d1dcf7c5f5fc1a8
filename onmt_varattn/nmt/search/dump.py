"""Attention between tokens as JSON lines, for other programs.

One line per source sentence:

    {"line": 1, "source": [...],
     "hypothesis": {"tokens": [..., "</s>"], "prior": [[...], ...]},
     "reference": {"tokens": [..., "</s>"], "prior": ..., "posterior": ..., "exact": ...}}

A matrix has one row per token and one column per source token. With -null_alignment a record has
"null": true, and its matrices have one more column, the last, for NULL. The hypothesis is the best one,
with the prior used in the search; it lacks "</s>" where -max_length cut it off. The reference is there if
one was given, with the distributions that the model has. Where a side is blank there are no tokens and no
matrix.
"""

import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

from onmt.constants import DefaultTokens
from torch import Tensor

from onmt_varattn.analysis.reading import Reading
from onmt_varattn.nmt.model.decoder import has_null
from onmt_varattn.nmt.model.reading import Reader
from onmt_varattn.nmt.search.translator import Hypothesis
from onmt_varattn.utils.progress import progress

DECIMALS = 5
CHUNK = 256  # pairs whose matrices are in memory at a time

Tokens = list[str]


class AttentionDump:
    """Writes a file of attention in the order of the source.

    Args:
        file: file, open for writing.
        reader: reads references with the model.
        exact: whether the model has an exact posterior.
    """

    def __init__(self, file: IO[str], reader: Reader, exact: bool) -> None:
        self.file, self.reader, self.exact, self.line = file, reader, exact, 0
        self.mark = {"null": True} if has_null(reader.model.decoder) else {}

    def write(
        self, sources: Sequence[Tokens], hypotheses: Sequence[Hypothesis], targets: Sequence[Tokens] | None
    ) -> None:
        """Write the next lines, from source tokens, best translations and, if given, tokens of references."""
        for start in progress(range(0, len(sources), CHUNK), desc="writing attention", unit="chunks"):
            chunk = slice(start, start + CHUNK)
            references = None
            if targets is not None:
                references = self._references(list(zip(sources[chunk], targets[chunk], strict=True)))
            for n, (source, best) in enumerate(zip(sources[chunk], hypotheses[chunk], strict=True)):
                self.line += 1
                record = {"line": self.line, "source": source, **self.mark, "hypothesis": _hypothesis(best)}
                if references is not None:
                    record["reference"] = references[n]
                self.file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _references(self, pairs: list[tuple[Tokens, Tokens]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"tokens": []} for _ in pairs]
        whole = [i for i, pair in enumerate(pairs) if all(pair)]
        for reading in self.reader.read([pairs[i] for i in whole]):
            for kind, rows in self._distributions(reading):
                for n, matrix in zip(reading.lines, rows, strict=True):
                    tokens = [*pairs[whole[n]][1], DefaultTokens.EOS]
                    found[whole[n]] |= {"tokens": tokens, kind: _rounded(matrix)}
        return found

    def _distributions(self, reading: Reading) -> Iterator[tuple[str, list[Tensor]]]:
        """The available distributions, by sentence."""
        kinds = ["prior", *["posterior"] * (reading.posterior is not None), *["exact"] * self.exact]
        for kind in kinds:
            yield kind, reading.by_sentence(reading.distribution(kind).probs.cpu())


def _hypothesis(best: Hypothesis) -> dict[str, Any]:
    if best.attention is None:
        return {"tokens": []}
    ended = len(best.attention) > len(best.tokens)
    return {"tokens": [*best.tokens, *[DefaultTokens.EOS] * ended], "prior": _rounded(best.attention)}


def _rounded(matrix: Tensor) -> list[list[float]]:
    return [[round(p, DECIMALS) for p in row] for row in matrix.tolist()]

"""The explorer: an HTML page with all distributions over alignments of some sentence pairs.

The page contains its numbers as JSON: probabilities in thousandths, log-likelihoods in hundredths,
entropies and the like rounded to three decimals. The page itself is `explorer.html`.
"""

import math
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onmt_varattn.analysis.attention import NULL
from onmt_varattn.analysis.informative import Informative
from onmt_varattn.analysis.reading import Reading, ReadingModel
from onmt_varattn.latent import Categorical, KMax, Mixture
from onmt_varattn.latent.mixtures import SAMPLES
from onmt_varattn.utils.files import to_json

SHORT = {"prior": "p", "posterior": "q", "exact": "e"}
PLACE = "DATA"  # in the template
MIXED = {"soft": "soft", "exact": "exact", "samples": f"{SAMPLES} samples"}


class Pair(NamedTuple):
    """A line of two parallel files, from 1."""

    line: int
    source: str
    target: str


class Explorer:
    """Data of the page for a model.

    Args:
        model: model trained with -attention.
        kmax: number of alignments to mark per word; 0 for none.
    """

    def __init__(self, model: ReadingModel, kmax: int = 5) -> None:
        self.model, self.opt = model, model.model_opt
        self.attention = getattr(self.opt, "attention", None)
        self.kinds = [SHORT[kind] for kind in model.kinds]
        self.kmax = kmax if "exact" in model.kinds else 0
        self._informative = {kind: Informative() for kind in model.kinds}

    @cached_property
    def own(self) -> Mixture:
        """The mixture that the model decodes with."""
        return self.model.mixture

    def sentences(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Index and data of each pair; pairs of similar length come together."""
        read = [self.model.sentences(pair.source, pair.target) for pair in pairs]
        for reading in self.model.read(read):
            split = {
                name: reading.by_sentence(values.cpu()) for name, values in self._values(reading).items()
            }
            for n, i in enumerate(reading.lines):
                for kind, informative in self._informative.items():
                    informative.add(split[SHORT[kind]][n])
                source, target = self.model.pieces(*read[i])
                yield (
                    i,
                    {
                        "line": pairs[i].line,
                        "text": [pairs[i].source, pairs[i].target],
                        "source": [*source, *[NULL] * self.model.null],
                        "target": target,
                        **_packed({name: rows[n] for name, rows in split.items()}, self.kinds),
                    },
                )

    def findings(self) -> list[str]:
        """Sentences about uninformative alignments of the pairs read so far."""
        found = [informative.finding(kind) for kind, informative in self._informative.items()]
        return [finding for finding in found if finding]

    def page(self, sentences: Sequence[dict[str, Any]], name: str, files: Sequence[str]) -> str:
        """The HTML file.

        Args:
            sentences: from `sentences`, in the order to show them.
            name: of the model's file.
            files: source and target.
        """
        template = resources.files(__package__).joinpath("explorer.html").read_text("utf-8")
        data = {
            "model": os.path.basename(name),
            "about": self._about(sentences, files),
            "warnings": self.findings(),
            "kinds": self.kinds,
            "kmax": self.kmax,
            "null": self.model.null,
            "mixed": MIXED[self.own.name],
            "figures": self._figures(sentences),
            "sentences": sentences,
        }
        # Within a script element only "<" can end or confuse it.
        packed = to_json(data, separators=(",", ":")).replace("<", "\\u003c")
        before, after = template.split(f">{PLACE}<")
        return f"{before}>{packed}<{after}"

    def _values(self, reading: Reading) -> dict[str, Tensor]:
        """Values per target token (R) and per cell (R x S)."""
        prior, q = reading.prior, reading.posterior
        values = {"p": prior.probs, "hp": prior.entropy()}
        if "q" in self.kinds:
            before = reading.objective.prior(reading.positions.prior)
            values |= {"q": q.probs, "hq": q.entropy_of_mean(), "kl": q.kl(before)}
        if "e" in self.kinds:
            exact = reading.exact_posterior
            values |= {"e": exact.probs, "he": exact.entropy(), "l": reading.enumerated.log_likelihood}
        own = reading.mixture(self.own)
        values["ll"] = own.log_marginal
        if self.kmax:
            values["ll_kmax"] = reading.mixture(KMax(self.kmax)).log_marginal
            values["rank"] = _ranks(prior, self.kmax)
        return values

    def _about(self, sentences: Sequence[dict[str, Any]], files: Sequence[str]) -> str:
        estimator = getattr(self.opt, "attention_estimator", None)
        by = f" by {estimator}" if estimator not in (None, "none") else ""
        names = " → ".join(os.path.basename(path) for path in files)
        pairs = f"{len(sentences):,} sentence pair{'s' * (len(sentences) > 1)}"
        return f"{self.attention} attention{by} · {pairs} of {names}"

    def _figures(self, sentences: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
        """Perplexities, and means per token."""

        def mean(values: Sequence[Sequence[float]]) -> float:
            return math.fsum(map(math.fsum, values)) / sum(map(len, values))

        found = [(f"perplexity, {MIXED[self.own.name]}", math.exp(-mean([s["ll"] for s in sentences])))]
        if self.kmax:
            name = f"perplexity, K-max {self.kmax}"
            found.append((name, math.exp(-mean([s["ll_kmax"] for s in sentences]))))
        names = {"p": "entropy of p", "q": "entropy of q", "e": "entropy of exact"}
        found += [(names[kind], mean([s["entropy"][kind] for s in sentences])) for kind in self.kinds]
        if "q" in self.kinds:
            found.append(("KL(q, p)", mean([s["kl"] for s in sentences])))
        return [(name, round(value, 4)) for name, value in found]


def _ranks(prior: Categorical, k: int) -> Tensor:
    """1 to K at the K most probable positions, best first, and 0 elsewhere: R x S."""
    index, log_weights = prior.kmax(k)
    order = torch.arange(1, index.size(1) + 1, device=index.device).expand_as(index)
    order = order.masked_fill(log_weights == float("-inf"), 0)  # shorter sentences than K
    return torch.zeros_like(prior.scores, dtype=torch.long).scatter(1, index, order)


def _packed(values: dict[str, Tensor], kinds: Sequence[str]) -> dict[str, Any]:
    """The values of one sentence, rounded, as lists; those of cells row by row."""

    def rounded(name: str) -> list[float]:
        # Adding zero turns minus zero into zero.
        return [round(value, 3) + 0.0 for value in values[name].tolist()]

    packed: dict[str, Any] = {
        "probs": {kind: (values[kind].double() * 1000).round().long().flatten().tolist() for kind in kinds},
        "entropy": {kind: rounded(f"h{kind}") for kind in kinds},
        "ll": rounded("ll"),
        "kmax": [[] for _ in values["ll"]],
    }
    for name in ("kl", "ll_kmax"):
        if name in values:
            packed[name] = rounded(name)
    if "l" in values:
        packed["l"] = (values["l"].double() * -100).round().long().flatten().tolist()
    if "rank" in values:
        packed["kmax"] = [
            sorted((i for i, rank in enumerate(row) if rank), key=row.__getitem__)
            for row in values["rank"].tolist()
        ]
    return packed

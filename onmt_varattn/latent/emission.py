"""f(x, z): from positions and alignments to the likelihood of words."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from onmt_varattn.latent.likelihood import (
    CHUNK_LOGITS,
    Candidates,
    Cells,
    Marginals,
    OutputLayer,
    Pairs,
    Words,
    log_likelihood,
    marginalise,
)
from onmt_varattn.latent.positions import Positions
from onmt_varattn.latent.readout import Readout


class _Parts(NamedTuple):
    """What the states of candidates are made of."""

    queries: Tensor  # R x D, the queries' parts
    contexts: Tensor  # B x D, the contexts' parts
    which: Tensor  # R x K, the context of each candidate


def _parts(readout: Readout, positions: Positions, candidates: Candidates, few: bool = False) -> _Parts:
    """What states are made of; with `few`, only the vectors that are looked at are projected."""
    queries = readout.project_query(positions.queries)  # R x D
    device = queries.device
    if candidates.index is None:
        assert candidates.contexts is not None
        contexts = readout.project_context(candidates.contexts).flatten(0, 1)  # R*K x D
        every = torch.arange(len(contexts), device=device).view(candidates.contexts.shape[:2])
        return _Parts(queries, contexts, every)
    memory, index = positions.memory, candidates.index
    which = positions.sentence.unsqueeze(1) * memory.width + index  # R x K
    vectors = memory.vectors.flatten(0, 1)  # N*S x M
    if few and memory.projected is None and 2 * which.numel() < len(vectors):
        contexts = readout.project_context(vectors.index_select(0, which.flatten()))  # R*K x D
        return _Parts(queries, contexts, torch.arange(len(contexts), device=device).view(which.shape))
    # Each source position is projected once, whatever number of candidates it is.
    return _Parts(queries, memory.project(readout).flatten(0, 1), which)


def candidate_states(readout: Readout, positions: Positions, candidates: Candidates) -> Tensor:
    """The states of all candidates, padded ones too: R x K x D."""
    queries, contexts, which = _parts(readout, positions, candidates)
    found = contexts.index_select(0, which.flatten()).view(*which.shape, -1)
    return readout(queries.unsqueeze(1), found)


@dataclass
class Emitter:
    """f(x, z): word likelihoods from positions and alignments, by a readout and an output layer.

    >>> attention = LatentAttention(8, 6, words=20)
    >>> positions = attention.infer(torch.randn(4, 8), torch.randn(5, 6), torch.randint(20, (4,))).positions
    >>> candidates = Candidates(index=torch.zeros(4, 1, dtype=torch.long))  # the first source position
    >>> attention.emitter().log_likelihood(positions, candidates).log_likelihood.shape
    torch.Size([4, 1])

    Attributes:
        readout: from queries and contexts to states.
        output: from states to words.
        chunk_logits: number of logits that are held in memory at a time.
    """

    readout: Readout
    output: OutputLayer
    chunk_logits: int = CHUNK_LOGITS

    def cells(self, positions: Positions, candidates: Candidates) -> Cells:
        """The real (position, candidate) pairs with the projections that their states are made of."""
        pairs = Pairs.of(candidates, len(positions), positions.queries.device)
        queries, contexts, which = _parts(self.readout, positions, candidates, few=True)
        chosen = which[pairs.position, pairs.candidate]
        return Cells(queries, contexts, chosen, pairs, which.size(1), positions.gold, self.readout)

    def log_likelihood(self, positions: Positions, candidates: Candidates) -> Words:
        """l of the gold words under each candidate, with gradient: R x K."""
        return log_likelihood(self.output, self.cells(positions, candidates), self.chunk_logits)

    def marginals(
        self, positions: Positions, candidates: Candidates, log_weights: Tensor, every_word: bool = False
    ) -> Marginals:
        """The mixture of some candidates, with these log weights (R x K). No gradient."""
        cells = self.cells(positions, candidates)
        return marginalise(self.output, cells, log_weights, self.chunk_logits, every_word)

    @torch.no_grad()
    def soft_marginals(self, positions: Positions) -> Marginals:
        """log f(x, E_p[z]) at the gold words."""
        zeros = positions.contexts.new_zeros(len(positions), 1, dtype=self.output.wide)
        return self.marginals(positions, Candidates(contexts=positions.contexts.unsqueeze(1)), zeros)

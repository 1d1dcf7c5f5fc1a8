"""Log-likelihood of the gold word under many alignments, without ever holding all vocabulary logits.

R positions times K candidate alignments times V words is by far the largest tensor of a latent
alignment model. Here positions are taken in chunks. A chunk holds all candidates of its
positions, so the whole objective can be computed inside it: candidate states, logits, the log
likelihoods l, and the bound that the objective makes of them. It is differentiated on the spot,
and what outlives the chunk is the gradient with respect to small things: queries, memory, prior,
posterior and the vocabulary. So no logits outlive their chunk, and nothing is computed twice:
three matrix products with the vocabulary, as many as the plain way takes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_LOGITS = 2**22  # numbers in a chunk's logits; 16 MB in float32


class Words(NamedTuple):
    """What is known of the gold words under each candidate."""

    log_likelihood: Tensor  # l, with gradient; smoothed if labels are
    correct: Tensor  # bool: no other word is more probable than the gold one


class Softmax(NamedTuple):
    """softmax(W h + b) of some states, not yet divided by its sum. No gradients."""

    exponentials: Tensor  # C x V, exp(logit - largest logit); overwritten by the next call
    total: Tensor  # C, their sums
    log_likelihood: Tensor  # C
    correct: Tensor  # C


class Workspace:
    """Memory for logits that is used again, chunk after chunk and batch after batch.

    Memory that was written a moment ago is mapped, and in part still in the cache.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def rows(self, count: int, width: int, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows on the device of `like`, with anything in them: count x width."""
        memory = self._memory
        if memory.numel() < count * width or memory.dtype != dtype or memory.device != like.device:
            self._memory = memory = torch.empty(count * width, dtype=dtype, device=like.device)
        return memory[: count * width].view(count, width)


class Vocabulary:
    """softmax(W h + b), and the gradients of W and b as chunks add to them.

    With label smoothing e the target distribution has 1 - e on the gold word and shares e among
    all other words but `unpredicted`; l is the negative cross-entropy to it.

    All logits are computed in one workspace. Its rows begin at multiples of 16 numbers, which matrix
    products are a third faster with, unless the vocabulary is so small that this would be a waste.

    Args:
        weight: W, V x D.
        bias: b, V.
        smoothing: e.
        unpredicted: a word that never is a target and gets no smoothing mass (padding).
        workspace: where logits are computed; default: one of its own.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        smoothing: float = 0.0,
        unpredicted: int | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        self.weight, self.bias = weight, bias
        self.size = len(weight)
        self.stride = self.size + (-self.size % 16 if self.size >= 1024 else 0)  # of a row of logits
        self.unpredicted = unpredicted
        self.others = smoothing / (self.size - 1 - (unpredicted is not None)) if smoothing else 0.0
        self.on_gold = 1 - smoothing - self.others  # beyond what the gold word gets as one of all words
        # Under autocast the matrix products run in its type; sums and logarithms do not.
        device = weight.device.type
        autocast = torch.is_autocast_enabled(device)
        self.narrow = torch.get_autocast_dtype(device) if autocast else weight.dtype
        self.wide = torch.promote_types(self.narrow, torch.float32)
        self.narrow_weight, self.narrow_bias = (x.detach().to(self.narrow) for x in (weight, bias))
        self.gradients: tuple[Tensor, Tensor] | None = None
        self.workspace = workspace or Workspace()

    def softmax(self, states: Tensor, gold: Tensor) -> Softmax:
        """The distribution of words and its logarithm at the gold ones: C x D and C."""
        logits = self.logits(states)[:, : self.size]
        at_gold = logits.gather(1, gold.unsqueeze(1))  # C x 1
        largest = logits.amax(1, keepdim=True)  # C x 1
        logits.sub_(largest)
        every = self._of_all_words(logits) if self.others else None  # C
        exponentials = logits.exp_()
        total = exponentials.sum(1)  # C
        log_total = total.log()
        log_likelihood = (at_gold - largest).squeeze(1) - log_total
        if every is not None:
            words = self.size - (self.unpredicted is not None)
            log_likelihood = self.on_gold * log_likelihood + self.others * (every - words * log_total)
        return Softmax(exponentials, total, log_likelihood, (at_gold == largest).squeeze(1))

    def gold(self, states: Tensor, gold: Tensor) -> Words:
        """The gold words' log-likelihoods: C x D and C -> C."""
        return Words(*_Gold.apply(states, gold, self))

    def add_gradient(self, residual: Tensor, states: Tensor) -> None:
        """Add a chunk's d loss / d logits (C x V, in the narrow type) to the gradients of W and b."""
        of_bias = residual.sum(0, dtype=self.wide)
        if self.gradients is None:
            self.gradients = (residual.t() @ states).to(self.wide), of_bias
            return
        weight, bias = self.gradients
        bias += of_bias
        if self.wide == self.narrow:
            weight.addmm_(residual.t(), states)
        else:
            weight += residual.t() @ states

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """W h + b, in the workspace, until the next call: C x D -> C x stride. No gradient.

        What a row has beyond V is minus infinity.
        """
        rows = self.workspace.rows(len(states), self.stride, states, self.wide)
        rows[:, self.size :] = float("-inf")
        logits = rows[:, : self.size]
        with torch.autocast(states.device.type, enabled=False):
            inputs = (self.narrow_bias, states.to(self.narrow), self.narrow_weight.t())
            if self.wide == self.narrow:
                torch.addmm(*inputs, out=logits)
            else:
                logits.copy_(torch.addmm(*inputs))
        return rows

    def _of_all_words(self, logits: Tensor) -> Tensor:
        """The sum over all words that can be predicted: C x V -> C."""
        every = logits.sum(1)
        return every if self.unpredicted is None else every - logits[:, self.unpredicted]


@torch.no_grad()
def log_mixture(logits: Tensor, log_weights: Tensor, starts: Sequence[int], words: int) -> Tensor:
    """log sum_k w_k softmax(logits_k) over the candidates k of each position.

    Probabilities of mixtures below the smallest float (exp(-87) in float32) are given as that.

    Args:
        logits: position by position, C x at least `words`; minus infinity beyond.
        log_weights: log w, C.
        starts: where the candidates of each position begin, and the end: r + 1.
        words: V.

    Returns:
        Log probabilities of words, r x V.
    """
    if len(starts) == len(logits) + 1:  # one candidate each has all the weight
        return torch.log_softmax(logits[:, :words], dim=1)
    probs = torch.softmax(logits, dim=1)[:, :words]
    mixed = _mix(probs, log_weights.to(probs.dtype).exp(), starts)
    return mixed.clamp_(min=torch.finfo(mixed.dtype).tiny).log_()


def _mix(values: Tensor, weights: Tensor, starts: Sequence[int]) -> Tensor:
    """Weighted sums of the rows of each position: C x V and C -> r x V."""
    mixed = values.new_empty(len(starts) - 1, values.size(1))
    for row, (start, stop) in enumerate(pairwise(starts)):
        torch.mv(values[start:stop].t(), weights[start:stop], out=mixed[row])
    return mixed


class _Gold(torch.autograd.Function):
    """log p(gold word), whose backward turns the exponentials into the gradient in place."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, gold: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
        found = vocabulary.softmax(states, gold)
        if ctx.needs_input_grad[0]:
            ctx.vocabulary = vocabulary
            # Saved in this way, autograd notices if the workspace was overwritten in between.
            ctx.save_for_backward(states, gold, found.exponentials, found.total)
        ctx.mark_non_differentiable(found.correct)
        return found.log_likelihood, found.correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        states, gold, exponentials, total = ctx.saved_tensors
        vocabulary: Vocabulary = ctx.vocabulary
        weights = grads[0].to(vocabulary.wide)  # C
        # d l / d logits = target - softmax
        residual = exponentials.mul_((-weights / total).unsqueeze(1))
        residual.scatter_add_(1, gold.unsqueeze(1), vocabulary.on_gold * weights.unsqueeze(1))
        if vocabulary.others:
            residual += vocabulary.others * weights.unsqueeze(1)
            if vocabulary.unpredicted is not None:
                residual[:, vocabulary.unpredicted] -= vocabulary.others * weights
        narrow = residual.to(vocabulary.narrow)
        vocabulary.add_gradient(narrow, states.to(vocabulary.narrow))
        return (narrow @ vocabulary.narrow_weight).to(states.dtype), None, None


@dataclass
class Candidates:
    """The alignments that are looked at: K a position, of which some may be padding.

    Either single source positions (`index`) or contexts of any kind (`contexts`).
    """

    index: Tensor | None = None  # R x K
    real: Tensor | None = None  # R x K, bool; None: all
    contexts: Tensor | None = None  # R x K x M

    def rows(self, chunk: slice) -> "Candidates":
        """The candidates of some positions."""
        return Candidates(*(x if x is None else x[chunk] for x in (self.index, self.real, self.contexts)))


class Triples(NamedTuple):
    """The real (position, candidate) pairs of all positions, and where each position's begin."""

    position: Tensor  # C
    candidate: Tensor  # C
    starts: list[int]  # R + 1

    @classmethod
    def of(cls, candidates: Candidates, positions: int, device: torch.device) -> "Triples":
        """List them, position by position."""
        if candidates.real is not None:
            position, candidate = candidates.real.nonzero(as_tuple=True)
            counts = candidates.real.sum(1)
            starts = [0, *counts.cumsum(0).tolist()]
            return cls(position, candidate, starts)
        one = candidates.index if candidates.index is not None else candidates.contexts
        assert one is not None
        each = one.size(1)
        position = torch.arange(positions, device=device).repeat_interleave(each)
        candidate = torch.arange(each, device=device).repeat(positions)
        return cls(position, candidate, list(range(0, positions * each + 1, each)))

    def of_chunk(self, chunk: slice) -> tuple[slice, list[int]]:
        """The candidates of a run of positions, and where each position's begin within the run."""
        starts = self.starts[chunk.start : chunk.stop + 1]
        return slice(starts[0], starts[-1]), [start - starts[0] for start in starts]

    def chunks(self, most: int) -> Iterator[slice]:
        """Runs of positions with at most so many candidates together, but at least one position.

        They are about equally long: a short last one would be a slow matrix product.
        """
        start = 0
        positions = len(self.starts) - 1
        total = self.starts[-1]
        widest = max((stop - start for start, stop in pairwise(self.starts)), default=1)
        chunks = max(1, math.ceil(total / most))
        most = min(most, math.ceil(total / chunks) + widest - 1)
        while start < positions:
            stop = start + 1
            while stop < positions and self.starts[stop + 1] - self.starts[start] <= most:
                stop += 1
            yield slice(start, stop)
            start = stop


@dataclass
class Cells:
    """The real (position, candidate) cells to compute, and what their states are made of."""

    queries: Tensor  # R x D, the queries' parts of the states
    contexts: Tensor  # B x D, the contexts' parts
    which: Tensor  # C, the context of each cell, in the order of `triples`
    triples: Triples
    width: int  # K of the widest position
    gold: Tensor  # R
    activation: Callable[[Tensor], Tensor]  # from the sum of both parts to a state

    def states(self, part: slice, position: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
        """The emission states of some cells: C x D."""
        return self.activation(queries.index_select(0, position) + contexts.index_select(0, self.which[part]))

    def spread(self, values: Tensor, positions: int, position: Tensor, part: slice) -> Tensor:
        """A number a cell as a number a candidate, zero where a candidate is padding: C -> r x K."""
        empty = values.new_zeros(positions, self.width)
        return empty.index_put((position, self.triples.candidate[part]), values)


Bound = Callable[[Tensor, Tensor, slice, tuple[Tensor, ...]], Tensor]
"""From l (r x K, zero where a candidate is padding), whether the gold word is the most probable
(r x K), the chunk, and its rows of the given tensors, to the sum to be maximised."""


def maximise(
    bound: Bound,
    vocabulary: Vocabulary,
    cells: Cells,
    rows: tuple[Tensor, ...],
    chunk_logits: int = CHUNK_LOGITS,
) -> Tensor:
    """The negative of a bound on the log-likelihood, summed over positions, with its gradient.

    Args:
        bound: what the objective makes of the log-likelihoods; it may take notes.
        vocabulary: W and b.
        cells: what to compute.
        rows: tensors with a row a position, handed to the bound and differentiated.
        chunk_logits: how many logits to hold at a time, at least one position's.
    """
    leaves = (cells.queries, cells.contexts, *rows)
    learn = torch.is_grad_enabled() and any(x.requires_grad for x in (vocabulary.weight, *leaves))
    gradients = [torch.zeros_like(x) if learn and x.requires_grad else None for x in leaves]
    total = cells.queries.new_zeros((), dtype=vocabulary.wide)
    contexts = cells.contexts.detach().requires_grad_(gradients[1] is not None)
    for chunk, part, position in _chunks(cells, vocabulary, chunk_logits):
        with torch.set_grad_enabled(learn):
            here = [
                x[chunk].detach().requires_grad_(learn and x.requires_grad) for x in (cells.queries, *rows)
            ]
            hidden = cells.states(part, position, here[0], contexts)
            words = vocabulary.gold(hidden, cells.gold[chunk].index_select(0, position))
            positions = chunk.stop - chunk.start
            l = cells.spread(words.log_likelihood, positions, position, part)
            correct = cells.spread(words.correct, positions, position, part)
            value = bound(l, correct, chunk, tuple(here[1:]))
            if value.requires_grad:
                value.neg().backward()
        total -= value.detach()
        for leaf, gradient in zip(here, [gradients[0], *gradients[2:]], strict=True):
            if gradient is not None and leaf.grad is not None:
                gradient[chunk] = leaf.grad
    if not learn:
        return total
    gradients[1] = contexts.grad
    known = (*(vocabulary.gradients or (None, None)), *gradients)
    return _Known.apply(total, known, vocabulary.weight, vocabulary.bias, *leaves)


class Marginals(NamedTuple):
    """What a mixture over candidates says about words, above all the gold ones. No gradients."""

    log_marginal: Tensor  # R, log sum_k w_k exp(l_k)
    log_likelihood: Tensor  # l, R x K, zero where a candidate is padding
    correct: Tensor  # R, bool: the gold word is the mixture's most probable one
    log_probs: Tensor | None = None  # R x V, of every word, where it is asked for


@torch.no_grad()
def marginalise(
    vocabulary: Vocabulary,
    cells: Cells,
    log_weights: Tensor,
    chunk_logits: int = CHUNK_LOGITS,
    every_word: bool = False,
) -> Marginals:
    """The mixture of all candidates with the given log weights, R x K (minus infinity at padding).

    With `every_word` all log probabilities of the mixture are kept, those below the smallest float as that.
    """
    found, log_probs = [], []
    for chunk, part, position in _chunks(cells, vocabulary, chunk_logits):
        gold = cells.gold[chunk]
        states = cells.states(part, position, cells.queries[chunk], cells.contexts)
        words = vocabulary.softmax(states, gold.index_select(0, position))
        l = cells.spread(words.log_likelihood, len(gold), position, part)
        log_marginal = torch.logsumexp(log_weights[chunk] + l, dim=1)
        correct = words.correct
        if cells.width > 1 or every_word:
            weights = log_weights[chunk][position, cells.triples.candidate[part]].exp() / words.total
            mixed = _mix(words.exponentials, weights, cells.triples.of_chunk(chunk)[1])  # r x V
            correct = mixed.argmax(1) == gold
            if every_word:
                log_probs.append(mixed.clamp_(min=torch.finfo(mixed.dtype).tiny).log_())
        found.append((log_marginal, l, correct))
    log_marginal, l, correct = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Marginals(log_marginal, l, correct, torch.cat(log_probs) if every_word else None)


def _chunks(cells: Cells, vocabulary: Vocabulary, chunk_logits: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Chunks of positions, their cells, and the position of each cell within the chunk."""
    for chunk in cells.triples.chunks(max(1, chunk_logits // vocabulary.stride)):
        part, _ = cells.triples.of_chunk(chunk)
        yield chunk, part, cells.triples.position[part] - chunk.start


class _Known(torch.autograd.Function):
    """A scalar whose gradient is known already, up to the factor that comes in from above."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: tuple[Tensor | None, ...], *leaves: Tensor) -> Tensor:
        ctx.gradients = [None if g is None else g.to(x.dtype) for g, x in zip(gradients, leaves, strict=True)]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale = grads[0]
        return None, None, *(None if g is None else g * scale.to(g.dtype) for g in ctx.gradients)

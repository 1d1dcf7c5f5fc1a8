"""Log-likelihood of the gold word under many alignments, without holding the logits of all of them.

The logits of R positions, K candidate alignments and V words are by far the largest tensor of a latent
alignment model. Here they are computed in chunks of positions and freed after each chunk. There are two
functions with a gradient:

`log_likelihood` returns l of every real (position, candidate) pair as an ordinary differentiable tensor.
Logits are computed again in the backward pass: four matrix products with the output layer. An objective may
be any function of l, also one in which positions depend on each other.

`maximise` is for objectives that are a sum over positions. A chunk contains all candidates of its positions,
so that the objective is computed and differentiated inside the chunk; kept are the gradients of the smaller
tensors: queries, memory, prior, posterior and output layer. Nothing is computed twice: three matrix products,
as many as without chunks.

`Emitter` is f(x, z), the readout and output layer that both need, and computes mixtures at test time.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from onmt_varattn.latent.positions import Positions
from onmt_varattn.latent.readout import Readout

CHUNK_LOGITS = 2**22  # logits per chunk; 16 MB in float32


class GoldWords(NamedTuple):
    """Likelihood of the gold words under each candidate."""

    log_likelihood: Tensor  # l, with gradient; with label smoothing, the negative cross-entropy
    correct: Tensor  # bool: no other word is more probable than the gold word


class Softmax(NamedTuple):
    """softmax(W h + b) of C states, not yet normalised. No gradients."""

    exponentials: Tensor  # C x V, exp(logit - largest logit); overwritten by the next call
    total: Tensor  # C, their sums
    log_likelihood: Tensor  # C
    correct: Tensor  # C


class Workspace(threading.local):
    """Memory for logits that is reused by all chunks and batches; one per thread.

    Reused memory is already mapped by the operating system, and in part still in the cache.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def __reduce__(self) -> tuple[type["Workspace"], tuple[()]]:
        """Copies get their own memory."""
        return Workspace, ()

    def rows(self, count: int, width: int, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Uninitialised rows on the device of `like`: count x width."""
        memory = self._memory
        if memory.numel() < count * width or memory.dtype != dtype or memory.device != like.device:
            with torch.inference_mode(False):  # the memory outlives the mode
                self._memory = memory = torch.empty(count * width, dtype=dtype, device=like.device)
        return memory[: count * width].view(count, width)


class OutputLayer:
    """softmax(W h + b) for one batch, and the gradients of W and b, summed over chunks.

    With label smoothing e the target distribution has mass 1 - e on the gold word and spreads e evenly over
    all other words except `unpredicted`; l is the negative cross-entropy with this target.

    >>> output = OutputLayer(torch.zeros(10, 4), torch.zeros(10))  # ten equally likely words
    >>> output.gold(torch.randn(2, 4), torch.tensor([3, 7])).log_likelihood  # -log 10
    tensor([-2.3026, -2.3026])

    All logits are computed in one workspace. Unless the vocabulary is small, its rows are aligned to 16
    numbers, which makes matrix products a third faster.

    Args:
        weight: W, V x D.
        bias: b, V.
        smoothing: e. Default: 0.
        unpredicted: a word that is never a target and gets no smoothing mass (padding). Default: none.
        workspace: memory for logits. Default: a new one.

    Attributes:
        collects: whether the gradients of W and b are summed in `gradients` instead of passed to autograd.
    """

    collects = False

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
        self.stride = self.size + (-self.size % 16 if self.size >= 1024 else 0)  # row length of the logits
        self.unpredicted = unpredicted
        self.others = smoothing / (self.size - 1 - (unpredicted is not None)) if smoothing else 0.0
        self.on_gold = 1 - smoothing - self.others  # besides the share that every word gets
        # Under autocast, matrix products are computed in its dtype, sums and logarithms are not.
        device = weight.device.type
        autocast = torch.is_autocast_enabled(device)
        self.narrow = torch.get_autocast_dtype(device) if autocast else weight.dtype
        self.wide = torch.promote_types(self.narrow, torch.float32)
        self.narrow_weight, self.narrow_bias = (x.detach().to(self.narrow) for x in (weight, bias))
        self.gradients: tuple[Tensor, Tensor] | None = None
        self.workspace = workspace or Workspace()

    def softmax(self, states: Tensor, gold: Tensor) -> Softmax:
        """The distribution of words and the log-likelihood of the gold words: C x D and C."""
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

    def gold(self, states: Tensor, gold: Tensor) -> GoldWords:
        """The log-likelihoods of the gold words, with gradient: C x D and C -> C."""
        return GoldWords(*_Gold.apply(states, self.weight, self.bias, gold, self))

    def add_gradient(self, residual: Tensor, states: Tensor) -> None:
        """Add d loss / d logits of a chunk (C x V, in the narrow dtype) to the gradients of W and b."""
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
        """W h + b, valid until the next call: C x D -> C x stride. No gradient.

        Columns beyond V are minus infinity.
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
        """The sum over all words that can be targets: C x V -> C."""
        every = logits.sum(1)
        return every if self.unpredicted is None else every - logits[:, self.unpredicted]


@torch.no_grad()
def log_mixture(logits: Tensor, log_weights: Tensor, starts: Sequence[int], words: int) -> Tensor:
    """log sum_k w_k softmax(logits_k) over the candidates k of each position.

    Probabilities below the smallest float (exp(-87) in float32) are raised to it.

    Args:
        logits: logits in the order of positions, C x at least V; minus infinity beyond V.
        log_weights: log w, C.
        starts: index of the first candidate of each position, and the total number C: r + 1 numbers.
        words: V.

    Returns:
        Log probabilities of words, r x V.
    """
    if len(starts) == len(logits) + 1:  # one candidate per position, of weight 1
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
    """log p(gold word); the backward pass turns the exponentials into the gradient in place."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, gold: Tensor, output: OutputLayer
    ) -> tuple[Tensor, Tensor]:
        found = output.softmax(states, gold)
        if any(ctx.needs_input_grad):
            ctx.output = output
            # With save_for_backward, autograd detects a workspace that was overwritten in between.
            ctx.save_for_backward(states, gold, found.exponentials, found.total)
        ctx.mark_non_differentiable(found.correct)
        return found.log_likelihood, found.correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, gold, exponentials, total = ctx.saved_tensors
        output: OutputLayer = ctx.output
        weights = grads[0].to(output.wide)  # C
        # d l / d logits = target - softmax
        residual = exponentials.mul_((-weights / total).unsqueeze(1))
        residual.scatter_add_(1, gold.unsqueeze(1), output.on_gold * weights.unsqueeze(1))
        if output.others:
            residual += output.others * weights.unsqueeze(1)
            if output.unpredicted is not None:
                residual[:, output.unpredicted] -= output.others * weights
        narrow, narrow_states = residual.to(output.narrow), states.to(output.narrow)
        of_weight = of_bias = None
        if output.collects:
            output.add_gradient(narrow, narrow_states)
        else:
            of_weight = (narrow.t() @ narrow_states).to(output.weight.dtype)
            of_bias = narrow.sum(0, dtype=output.wide).to(output.bias.dtype)
        of_states = (narrow @ output.narrow_weight).to(states.dtype)
        return of_states, of_weight, of_bias, None, None


@dataclass
class Candidates:
    """The alignments whose likelihood is computed: K per position, some of which may be padding.

    They are either single source positions (`index`) or arbitrary contexts (`contexts`).

    >>> index, real = torch.tensor([[0, 2], [1, 0]]), torch.tensor([[True, True], [True, False]])
    >>> Candidates(index=index, real=real).rows(slice(1, 2)).index  # those of the second position
    tensor([[1, 0]])

    Attributes:
        index: source positions, R x K.
        real: False where a candidate is padding, R x K. Default: all are real.
        contexts: context vectors, R x K x M.
        drawn: the source position that an estimator drew for its contexts, R x 1.
    """

    index: Tensor | None = None
    real: Tensor | None = None
    contexts: Tensor | None = None
    drawn: Tensor | None = None

    def rows(self, chunk: slice) -> "Candidates":
        """The candidates of a range of positions."""
        return Candidates(*(x if x is None else x[chunk] for x in vars(self).values()))


class Pairs(NamedTuple):
    """The indices of the real (position, candidate) pairs, in the order of positions."""

    position: Tensor  # C
    candidate: Tensor  # C
    starts: list[int]  # R + 1: the first pair of each position, and C

    @classmethod
    def of(cls, candidates: Candidates, positions: int, device: torch.device) -> "Pairs":
        """The pairs of R positions with the given candidates."""
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
        """The pairs of a chunk of positions, and the `starts` within the chunk."""
        starts = self.starts[chunk.start : chunk.stop + 1]
        return slice(starts[0], starts[-1]), [start - starts[0] for start in starts]

    def chunks(self, most: int) -> Iterator[slice]:
        """Chunks of positions with at most `most` pairs together, but at least one position.

        They are of about equal length: a short last chunk would be a slow matrix product.
        """
        start = 0
        positions = len(self.starts) - 1
        if not positions:
            yield slice(0, 0)
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
    """The real cells of an R x K grid of positions and candidates, with the inputs of their states."""

    queries: Tensor  # R x D, projected queries
    contexts: Tensor  # B x D, projected contexts
    which: Tensor  # C, index of the context of each cell, in the order of `pairs`
    pairs: Pairs
    width: int  # K
    gold: Tensor  # R
    readout: Readout

    def states(self, part: slice, position: Tensor, queries: Tensor, contexts: Tensor) -> Tensor:
        """The states of a range of cells: C x D."""
        return self.readout(queries.index_select(0, position), contexts.index_select(0, self.which[part]))

    def spread(self, values: Tensor, positions: int, position: Tensor, part: slice) -> Tensor:
        """Values of cells as a grid, zero where a candidate is padding: C -> r x K."""
        empty = values.new_zeros(positions, self.width)
        return empty.index_put((position, self.pairs.candidate[part]), values)


def log_likelihood(output: OutputLayer, cells: Cells, chunk_logits: int = CHUNK_LOGITS) -> GoldWords:
    """l of every candidate, R x K, with gradient (zero where a candidate is padding).

    Logits are computed in chunks, freed, and computed again in the backward pass.

    >>> attention = LatentAttention(8, 6, words=20, objective="marginal")
    >>> found = attention.infer(torch.randn(4, 8), torch.randn(5, 6), torch.randint(20, (4,)))
    >>> candidates, log_p = Exact().candidates(found.positions)  # every source position
    >>> emitter = attention.emitter()
    >>> l = log_likelihood(emitter.output, emitter.cells(found.positions, candidates)).log_likelihood
    >>> torch.allclose((log_p + l).logsumexp(1), found.enumerated.log_marginal)
    True

    Args:
        output: the output layer.
        cells: the (position, candidate) pairs, from `Emitter.cells`.
        chunk_logits: number of logits per chunk; a chunk has at least one position. Default: 2**22.
    """

    def words(queries: Tensor, contexts: Tensor, part: slice, position: Tensor, gold: Tensor) -> GoldWords:
        return output.gold(cells.states(part, position, queries, contexts), gold)

    found: list[tuple[Tensor, ...]] = []
    draws = cells.readout.training and cells.readout.dropout.p > 0
    for chunk, part, position in _chunks(cells, output, chunk_logits):
        gold = cells.gold[chunk].index_select(0, position)
        given = (cells.queries[chunk], cells.contexts, part, position, gold)
        if torch.is_grad_enabled():
            values = checkpoint(words, *given, use_reentrant=False, preserve_rng_state=draws)
        else:
            values = words(*given)
        found.append(tuple(cells.spread(x, chunk.stop - chunk.start, position, part) for x in values))
    return GoldWords(*(torch.cat(parts) for parts in zip(*found, strict=True)))


Bound = Callable[[Tensor, Tensor, slice, tuple[Tensor, ...]], Tensor]
"""Function to be maximised, of l (r x K, zero where a candidate is padding), whether the gold word is the
most probable (r x K), the chunk, and its rows of the given tensors; returns a scalar."""


def maximise(
    bound: Bound,
    output: OutputLayer,
    cells: Cells,
    rows: tuple[Tensor, ...],
    chunk_logits: int = CHUNK_LOGITS,
) -> Tensor:
    """The negative of a bound on the log-likelihood, summed over positions, with its gradient.

    Args:
        bound: the bound of a chunk as a function of its log-likelihoods, see `Bound`.
        output: the output layer.
        cells: the (position, candidate) pairs, from `Emitter.cells`.
        rows: tensors with one row per position that are passed to the bound and differentiated.
        chunk_logits: number of logits per chunk; a chunk has at least one position. Default: 2**22.
    """
    inside = cells.readout.combining_parameters()
    leaves = (cells.queries, *rows, cells.contexts, *inside)
    layer = (output.weight, output.bias)
    learn = torch.is_grad_enabled() and any(x.requires_grad for x in (*layer, *leaves))
    gradients = [torch.zeros_like(x) if learn and x.requires_grad else None for x in leaves]
    total = cells.queries.new_zeros((), dtype=output.wide)
    contexts = cells.contexts.detach().requires_grad_(learn and cells.contexts.requires_grad)
    output.collects, output.gradients = True, None
    for chunk, part, position in _chunks(cells, output, chunk_logits):
        with torch.set_grad_enabled(learn):
            here = [
                x[chunk].detach().requires_grad_(learn and x.requires_grad) for x in (cells.queries, *rows)
            ]
            hidden = cells.states(part, position, here[0], contexts)
            words = output.gold(hidden, cells.gold[chunk].index_select(0, position))
            positions = chunk.stop - chunk.start
            l = cells.spread(words.log_likelihood, positions, position, part)
            correct = cells.spread(words.correct, positions, position, part)
            value = bound(l, correct, chunk, tuple(here[1:]))
        total -= value.detach()
        if not value.requires_grad:
            continue
        parts = [x for x, g in zip((*here, contexts, *inside), gradients, strict=True) if g is not None]
        inputs = [*parts, *(x for x in layer if x.requires_grad)]
        found = iter(torch.autograd.grad(value.neg(), inputs, allow_unused=True))
        for i, gradient in enumerate(gradients):
            one = next(found) if gradient is not None else None
            if gradient is None or one is None:
                continue
            if i < len(here):  # rows of this chunk only
                gradient[chunk] = one
            else:
                gradient += one
    of_layer = output.gradients or (None, None)
    output.collects, output.gradients = False, None
    if not learn:
        return total
    known = (*of_layer, *gradients)
    return _Known.apply(total, known, *layer, *leaves)


class Marginals(NamedTuple):
    """Word likelihoods under a mixture of candidates with weights w. No gradients.

    >>> attention = LatentAttention(8, 6, words=20)
    >>> found = attention.infer(torch.randn(4, 8), torch.randn(5, 6), torch.randint(20, (4,)))
    >>> marginals = found.mixture(Exact())
    >>> marginals.log_marginal.shape, marginals.log_likelihood.shape
    (torch.Size([4]), torch.Size([4, 5]))

    Attributes:
        log_marginal: log sum_k w_k exp(l_k) of the gold words, R.
        log_likelihood: l, zero where a candidate is padding, R x K.
        correct: whether the gold word is the most probable word of the mixture, R.
        log_probs: log probabilities of all words, R x V; None unless they were requested.
    """

    log_marginal: Tensor
    log_likelihood: Tensor
    correct: Tensor
    log_probs: Tensor | None = None


@torch.no_grad()
def marginalise(
    output: OutputLayer,
    cells: Cells,
    log_weights: Tensor,
    chunk_logits: int = CHUNK_LOGITS,
    every_word: bool = False,
) -> Marginals:
    """The mixture of all candidates with the given log weights, R x K (minus infinity at padding).

    With `every_word` the log probabilities of all words are returned, as `log_mixture` computes them.
    """
    found, log_probs = [], []
    for chunk, part, position in _chunks(cells, output, chunk_logits):
        gold = cells.gold[chunk]
        states = cells.states(part, position, cells.queries[chunk], cells.contexts)
        words = output.softmax(states, gold.index_select(0, position))
        l = cells.spread(words.log_likelihood, len(gold), position, part)
        log_marginal = torch.logsumexp(log_weights[chunk] + l, dim=1)
        correct = words.correct
        if cells.width > 1 or every_word:
            weights = log_weights[chunk][position, cells.pairs.candidate[part]].exp() / words.total
            mixed = _mix(words.exponentials, weights, cells.pairs.of_chunk(chunk)[1])  # r x V
            correct = mixed.argmax(1) == gold
            if every_word:
                log_probs.append(mixed.clamp_(min=torch.finfo(mixed.dtype).tiny).log_())
        found.append((log_marginal, l, correct))
    log_marginal, l, correct = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Marginals(log_marginal, l, correct, torch.cat(log_probs) if every_word else None)


def _chunks(cells: Cells, output: OutputLayer, chunk_logits: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Chunks of positions, the range of their cells, and the position of each cell within the chunk."""
    for chunk in cells.pairs.chunks(max(1, chunk_logits // output.stride)):
        part, _ = cells.pairs.of_chunk(chunk)
        yield chunk, part, cells.pairs.position[part] - chunk.start


class _Known(torch.autograd.Function):
    """A scalar whose gradients are known already, up to the incoming gradient as a factor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: tuple[Tensor | None, ...], *leaves: Tensor) -> Tensor:
        ctx.gradients = [None if g is None else g.to(x.dtype) for g, x in zip(gradients, leaves, strict=True)]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: the known gradients would appear constant
            raise RuntimeError(
                "the loss of latent attention can be differentiated once; leave create_graph out"
            )
        scale = grads[0]
        return None, None, *(None if g is None else g * scale.to(g.dtype) for g in ctx.gradients)


class _Parts(NamedTuple):
    """The inputs of the states of candidates."""

    queries: Tensor  # R x D, projected queries
    contexts: Tensor  # B x D, projected contexts
    which: Tensor  # R x K, index of the context of each candidate


def _parts(readout: Readout, positions: Positions, candidates: Candidates, few: bool = False) -> _Parts:
    """Project queries and contexts; with `few`, only the vectors of candidates if these are few."""
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
    # Each source position is projected once, however many candidates it is.
    return _Parts(queries, memory.project(readout).flatten(0, 1), which)


def candidate_states(readout: Readout, positions: Positions, candidates: Candidates) -> Tensor:
    """The states of all candidates, including padding: R x K x D."""
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
        readout: network from queries and contexts to states.
        output: output layer, from states to words.
        chunk_logits: number of logits per chunk. Default: 2**22.
    """

    readout: Readout
    output: OutputLayer
    chunk_logits: int = CHUNK_LOGITS

    def cells(self, positions: Positions, candidates: Candidates) -> Cells:
        """The real (position, candidate) pairs, with projected queries and contexts."""
        pairs = Pairs.of(candidates, len(positions), positions.queries.device)
        queries, contexts, which = _parts(self.readout, positions, candidates, few=True)
        chosen = which[pairs.position, pairs.candidate]
        return Cells(queries, contexts, chosen, pairs, which.size(1), positions.gold, self.readout)

    def log_likelihood(self, positions: Positions, candidates: Candidates) -> GoldWords:
        """l of the gold words under each candidate, with gradient: R x K."""
        return log_likelihood(self.output, self.cells(positions, candidates), self.chunk_logits)

    def marginals(
        self, positions: Positions, candidates: Candidates, log_weights: Tensor, every_word: bool = False
    ) -> Marginals:
        """The mixture of candidates with the given log weights, R x K. No gradient."""
        cells = self.cells(positions, candidates)
        return marginalise(self.output, cells, log_weights, self.chunk_logits, every_word)

"""The RNN of a decoder with input feeding, with as few operations as possible in the loop over time.

Each step multiplies the context and the last state with weights and adds the products of the words, which are
computed for all steps at once, because the words are known in advance. Likewise for the gradients of the
weights: autograd would compute a full-sized gradient at every step and add them up. Here the loop uses
detached weights, and one product over all steps computes the gradient at the end:

    gates_t = parts_t + A a_t + H h_t        d A = sum_t d gates_t a_t',  d H = sum_t d gates_t h_t'

"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CELLS: dict[str, Any] = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell}


class StackedCells(nn.Module):
    """The parameters of a stack of RNN cells, which `Recurrence` runs.

    >>> cells = StackedCells("GRU", layers=2, input_size=5 + 6, size=8)
    >>> cells.is_lstm, len(cells.layers)
    (False, 2)

    Args:
        rnn_type: "LSTM" or "GRU".
        layers: number of cells.
        input_size: input size of the first cell: that of embedding and context.
        size: D, state size.
        dropout: dropout rate between layers. Default: 0.
    """

    def __init__(self, rnn_type: str, layers: int, input_size: int, size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        sizes = [input_size, *[size] * (layers - 1)]
        self.layers = nn.ModuleList(CELLS[rnn_type](first, size) for first in sizes)

    @property
    def is_lstm(self) -> bool:
        """Whether the cells are LSTM cells, which have two states; GRU cells have one."""
        return isinstance(self.layers[0], nn.LSTMCell)


class _AllSteps(torch.autograd.Function):
    """The identity on the parts of all steps, whose backward pass also computes the gradients of the weights.

    `inputs` has one list per weight, to which the loop appends the factor of each step.
    """

    @staticmethod
    def forward(ctx: Any, parts: Tensor, inputs: tuple[list[Tensor], ...], *weights: Tensor) -> Tensor:
        ctx.inputs = inputs
        return parts.view_as(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gates = grads[0]  # T x N x G
        flat = gates.flatten(0, 1).t()
        return gates, None, *(flat @ torch.cat(steps).to(flat.dtype) for steps in ctx.inputs)


class _Products:
    """parts_t + A a_t (+ H h_t) for one layer, step by step.

    Args:
        parts: T x N x G.
        weights: A and H, each G x size.
    """

    def __init__(self, parts: Tensor, *weights: Tensor) -> None:
        self.weights = [weight.detach().t() for weight in weights]
        self.inputs: tuple[list[Tensor], ...] = tuple([] for _ in weights)
        self.parts = _AllSteps.apply(parts, self.inputs, *weights).unbind(0)

    def at(self, step: int, *inputs: Tensor) -> Tensor:
        """The gates of a step: N x G."""
        gates = self.parts[step]
        for x, weight, seen in zip(inputs, self.weights, self.inputs, strict=True):
            gates = torch.addmm(gates, x, weight)
            if gates.requires_grad:
                seen.append(x.detach())
        return gates


class Recurrence:
    """One run of a stacked RNN over given words, with a context as further input of every step.

    >>> words, hidden, context = torch.randn(7, 3, 5), (torch.zeros(1, 3, 8),), torch.zeros(3, 6)
    >>> recurrence = Recurrence(StackedCells("GRU", 1, 5 + 6, 8), words)
    >>> query, hidden = recurrence.step(0, context, hidden)
    >>> query.shape
    torch.Size([3, 8])

    Args:
        rnn: stack of cells; the input of the first cell is [word; context].
        words: embeddings, T x N x E.
    """

    def __init__(self, rnn: StackedCells, words: Tensor) -> None:
        self.dropout, self.is_lstm = rnn.dropout, rnn.is_lstm
        size = words.size(2)
        self.layers: list[tuple[_Products, ...]] = []
        cell: Any
        for i, cell in enumerate(rnn.layers):
            if i == 0:
                inner = cell.weight_ih[:, size:]
                parts = nn.functional.linear(words, cell.weight_ih[:, :size], cell.bias_ih)
            else:
                inner = cell.weight_ih
                parts = cell.bias_ih.expand(*words.shape[:2], -1)
            hidden_bias = cell.bias_hh.expand(*words.shape[:2], -1)
            if self.is_lstm:
                self.layers.append((_Products(parts + hidden_bias, inner, cell.weight_hh),))
            else:  # a GRU's reset gate stands between the two products
                self.layers.append((_Products(parts, inner), _Products(hidden_bias, cell.weight_hh)))

    def step(
        self, step: int, context: Tensor, hidden: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one step.

        Args:
            step: number of the word, counted from 0; steps must come in order.
            context: N x M.
            hidden: hidden states, each layers x N x D.

        Returns:
            The query N x D, and the new hidden states.
        """
        cell: Any = self._lstm if self.is_lstm else self._gru
        x, states = context, []
        for i, products in enumerate(self.layers):
            if i > 0:
                x = self.dropout(x)
            states.append(cell(step, x, [part[i] for part in hidden], *products))
            x = states[-1][0]
        return x, tuple(torch.stack(parts) for parts in zip(*states, strict=True))

    @staticmethod
    def _lstm(step: int, x: Tensor, hidden: list[Tensor], products: _Products) -> tuple[Tensor, ...]:
        h, c = hidden
        i, f, g, o = products.at(step, x, h).chunk(4, 1)
        c = torch.addcmul(torch.sigmoid(f) * c, torch.sigmoid(i), torch.tanh(g))
        return torch.sigmoid(o) * torch.tanh(c), c

    @staticmethod
    def _gru(
        step: int, x: Tensor, hidden: list[Tensor], inner: _Products, outer: _Products
    ) -> tuple[Tensor, ...]:
        (h,) = hidden
        xr, xz, xn = inner.at(step, x).chunk(3, 1)
        hr, hz, hn = outer.at(step, h).chunk(3, 1)
        n = torch.tanh(torch.addcmul(xn, torch.sigmoid(xr + hr), hn))
        return (n + torch.sigmoid(xz + hz) * (h - n),)

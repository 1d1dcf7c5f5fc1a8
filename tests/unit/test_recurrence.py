"""The RNN of the decoder against a stack of torch cells, with the gradients of every weight."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from onmt_varattn.modules.recurrence import Recurrence, StackedCells

T, N, E, M, D = 5, 3, 4, 6, 7

pytestmark = pytest.mark.torch_only


class Stack(nn.Module):
    """Cells of torch, one on the other."""

    def __init__(self, cell, layers, input_size, size, dropout):
        super().__init__()
        self.layers = nn.ModuleList(cell(input_size if i == 0 else size, size) for i in range(layers))

    def forward(self, x, hidden):
        states = []
        for i, cell in enumerate(self.layers):
            parts = tuple(part[i] for part in hidden)
            state = cell(x, parts if isinstance(cell, nn.LSTMCell) else parts[0])
            states.append(state if isinstance(state, tuple) else (state,))
            x = states[-1][0]
        return x, tuple(torch.stack(parts) for parts in zip(*states, strict=True))


LSTM, GRU = partial(Stack, nn.LSTMCell), partial(Stack, nn.GRUCell)


def world(kind, layers):
    torch.manual_seed(0)
    plain = kind(layers, E + M, D, 0.0).double()
    is_lstm = isinstance(plain.layers[0], nn.LSTMCell)
    rnn = StackedCells("LSTM" if is_lstm else "GRU", layers, E + M, D).double()
    rnn.load_state_dict(plain.state_dict())
    words = torch.randn(T, N, E, dtype=torch.float64, requires_grad=True)
    hidden = tuple(
        torch.randn(layers, N, D, dtype=torch.float64, requires_grad=True) for _ in range(1 + is_lstm)
    )
    feedback = torch.randn(D, M, dtype=torch.float64, requires_grad=True)  # the context depends on the query
    return plain, rnn, words, hidden, feedback


def run(step, words, hidden, feedback):
    context = words.new_zeros(N, M)
    total = 0
    for t in range(T):
        query, hidden = step(t, context, hidden)
        context = torch.tanh(query @ feedback)
        total = total + (t + 1) * query.square().sum() + context.sum()
    return total + sum(part.sum() for part in hidden)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_values_and_gradients_equal_those_of_plain_cells(kind, layers):
    assert_same(kind, layers)


def assert_same(kind, layers):
    """Values and gradients are those of a stack of cells with the same parameters."""
    plain, rnn, words, hidden, feedback = world(kind, layers)
    leaves = [words, feedback, *hidden]
    right = run(lambda t, c, h: plain(torch.cat([words[t], c], 1), h), words, hidden, feedback)
    ours = run(Recurrence(rnn, words).step, words, hidden, feedback)
    torch.testing.assert_close(ours, right, rtol=0, atol=1e-10)
    for found, expected in zip(
        torch.autograd.grad(ours, [*leaves, *rnn.parameters()]),
        torch.autograd.grad(right, [*leaves, *plain.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


class WeightGradients(TorchDispatchMode):
    """Counts matrix products as large as a weight of the first cell, and all their arithmetic."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "mm" in func.__name__ and 4 * D in out.shape and out.size(0) != N and out.size(0) != T * N:
            self.count += 1
        return out


def test_it_takes_no_more_arithmetic_and_three_weight_gradients_for_all_steps():
    plain, rnn, words, hidden, feedback = world(LSTM, 1)
    counts, flops = [], []
    for step in (lambda t, c, h: plain(torch.cat([words[t], c], 1), h), None):
        for mode in (WeightGradients(), FlopCounterMode(display=False)):
            with mode:
                run(step or Recurrence(rnn, words).step, words, hidden, feedback).backward()
            if isinstance(mode, WeightGradients):
                counts.append(mode.count)
            else:
                flops.append(mode.get_total_flops())
    assert counts == [2 * T, 3]
    assert flops[1] <= flops[0]

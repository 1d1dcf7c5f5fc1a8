"""RNN decoder with latent attention.

At each step j, with x_1..x_S the source states ("memory"):

    query       q_j = RNN(q_{j-1}, [embedding of y_{j-1}; c_{j-1}])
    prior       p(z_j = i) = softmax_i score(q_j, x_i)
    context     c_j = E_p[x_z], fed back at the next step (c_0 = 0)

Without input feeding the input of the RNN is the embedding alone, and no loop over time is needed. Readout,
output layer and loss follow the loop, for all positions at once.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onmt_varattn.latent.attention import LatentAttention
from onmt_varattn.latent.positions import Memory, Positions
from onmt_varattn.modules.recurrence import Recurrence, StackedCells


@dataclass
class State:
    """State of an `RNNDecoder` between two words, for N sentences of Q hypotheses each.

    >>> attention = LatentAttention(query_size=8, memory_size=6, words=20)
    >>> decoder = RNNDecoder(nn.Embedding(20, 5), StackedCells("LSTM", 2, 5 + 6, 8), attention)
    >>> state = decoder.start(attention.prepare(torch.randn(3, 4, 6)))
    >>> [one.shape for one in state.hidden], state.context.shape
    ([torch.Size([2, 3, 8]), torch.Size([2, 3, 8])], torch.Size([3, 6]))

    Attributes:
        hidden: states of the RNN, each layers x N*Q x D; two for an LSTM, one for a GRU.
        context: expected context of the last step, N*Q x M; None without input feeding.
        memory: the memory of the N sentences.
    """

    hidden: tuple[Tensor, ...]
    context: Tensor | None
    memory: Memory


@dataclass
class Trace:
    """Queries, contexts and prior scores of given words, for N sentences of Q hypotheses each.

    >>> attention = LatentAttention(query_size=8, memory_size=6, words=20, objective="marginal")
    >>> decoder = RNNDecoder(nn.Embedding(20, 5), nn.LSTM(5, 8), attention)  # nothing is fed back
    >>> gold = torch.randint(20, (3, 7))
    >>> state = decoder.start(attention.prepare(torch.randn(3, 4, 6)))
    >>> trace, _ = decoder.run(decoder.embed(gold.roll(1, 1)), state)
    >>> outcome = attention.evaluate(trace.positions(gold, real=torch.ones(3, 7, dtype=torch.bool)))
    >>> outcome.positions
    21

    Attributes:
        queries: N*Q x T x D.
        contexts: E_p[x_z], N*Q x T x M.
        prior: prior scores, minus infinity at source padding, N*Q x T x S.
        memory: the memory of the N sentences.
        posterior: scores of an inference network, N*Q x T x S, set by the caller. Default: none.
    """

    queries: Tensor
    contexts: Tensor
    prior: Tensor
    memory: Memory
    posterior: Tensor | None = None

    def positions(self, gold: Tensor, real: Tensor) -> Positions:
        """The positions of N sentences where `real` is True, with their gold words: N x T each."""
        return Positions.of(self.queries, self.memory, gold, real, self.prior, self.contexts, self.posterior)

    def every_position(self) -> Positions:
        """All positions of all hypotheses, ordered by step, without gold words."""
        rows, steps = self.queries.shape[:2]
        sentences, device = self.memory.sentences, self.queries.device
        row = torch.arange(rows, device=device)
        time = torch.arange(steps, device=device).repeat_interleave(rows)  # T*N*Q
        each = rows // sentences  # Q

        def flat(values: Tensor) -> Tensor:
            return values.transpose(0, 1).flatten(0, 1)

        return Positions(
            queries=flat(self.queries),
            contexts=flat(self.contexts),
            prior=flat(self.prior),
            posterior=None,
            memory=self.memory,
            sentence=(row // each).repeat(steps),
            step=(row % each).repeat(steps) * steps + time,
            steps=each * steps,
            gold=torch.zeros_like(time),
        )


class RNNDecoder(nn.Module):
    """RNN decoder with latent attention; the sizes of embeddings, states and memory are independent.

    >>> attention = LatentAttention(query_size=8, memory_size=6, words=20, objective="marginal")
    >>> decoder = RNNDecoder(nn.Embedding(20, 5), StackedCells("LSTM", 1, 5 + 6, 8), attention)
    >>> state = decoder.start(attention.prepare(torch.randn(3, 4, 6)))
    >>> trace, state = decoder.run(decoder.embed(torch.zeros(3, 7, dtype=torch.long)), state)
    >>> trace.queries.shape, trace.prior.shape
    (torch.Size([3, 7, 8]), torch.Size([3, 7, 4]))

    Args:
        embeddings: module from words to vectors.
        rnn: `StackedCells` with input [embedding; context], for input feeding of the expected context; or
            torch.nn.LSTM or GRU, time first, with the embedding as input, without input feeding.
        attention: latent attention; its query size is the state size D, its memory size is M.
        initial: initial state: "zero" (default), or "encoder" for the final state of the encoder.
    """

    def __init__(
        self, embeddings: nn.Module, rnn: nn.Module, attention: LatentAttention, initial: str = "zero"
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.rnn = rnn
        self.attention = attention
        self.size, self.memory_size = attention.query_size, attention.memory_size
        self.input_feed = isinstance(rnn, StackedCells)
        self.has_cell = rnn.is_lstm if isinstance(rnn, StackedCells) else isinstance(rnn, nn.LSTM)
        self.layers = len(rnn.layers) if isinstance(rnn, StackedCells) else int(rnn.num_layers)  # type: ignore[arg-type]
        self.bridge: nn.Module | None = None
        if initial == "encoder":
            same = self.size == self.memory_size
            self.bridge = nn.Identity() if same else nn.Linear(self.memory_size, self.size)

    def embed(self, words: Any) -> Tensor:
        """Embeddings of words: N x T -> N x T x E."""
        return self.embeddings(words)

    def start(self, memory: Memory, final: tuple[Tensor, ...] | None = None) -> State:
        """The state before the first word.

        Args:
            memory: result of `LatentAttention.prepare`.
            final: final states of the encoder, each layers x N x M; required for ``initial="encoder"``.
        """
        vectors, batch = memory.vectors, memory.sentences
        if self.bridge is None:
            zeros = vectors.new_zeros(self.layers, batch, self.size)
            hidden = (zeros, zeros) if self.has_cell else (zeros,)
        else:
            assert final is not None
            hidden = tuple(self.bridge(one) for one in final)
        context = vectors.new_zeros(batch, self.memory_size) if self.input_feed else None
        return State(hidden, context, memory)

    def run(self, words: Tensor, state: State) -> tuple[Trace, State]:
        """Run the decoder on given words.

        Args:
            words: embeddings of the words before each position, N*Q x T x E.
            state: initial state, from `start` or an earlier call.

        Returns:
            Queries, contexts and prior scores of all positions, and the state after the last word.
        """
        words = words.transpose(0, 1)  # T x N*Q x E
        if not self.input_feed:
            return self._run_at_once(words, state)
        memory, hidden, context = state.memory, state.hidden, state.context
        assert isinstance(self.rnn, StackedCells)
        assert context is not None
        queries, contexts, scores = [], [], []
        recurrence = Recurrence(self.rnn, words)
        for step in range(len(words)):
            query, hidden = recurrence.step(step, context, hidden)  # N*Q x D
            mean, prior = self.attention.step(query.view(memory.sentences, -1, self.size), memory)
            context = mean.flatten(0, 1)  # N*Q x M
            queries.append(query)
            contexts.append(context)
            scores.append(prior.flatten(0, 1))  # N*Q x S
        trace = Trace(torch.stack(queries, 1), torch.stack(contexts, 1), torch.stack(scores, 1), memory)
        return trace, State(hidden, context, memory)

    def _run_at_once(self, words: Tensor, state: State) -> tuple[Trace, State]:
        """`run` without input feeding: embeddings T x N*Q x E."""
        memory = state.memory
        found, hidden = self.rnn(words, state.hidden if self.has_cell else state.hidden[0])
        queries = found.transpose(0, 1)  # N*Q x T x D
        rows = queries.reshape(memory.sentences, -1, self.size)  # N x Q*T x D
        shape = queries.shape[:2]
        contexts, prior = (values.view(*shape, -1) for values in self.attention.step(rows, memory))
        trace = Trace(queries, contexts, prior, memory)
        return trace, State(hidden if self.has_cell else (hidden,), None, memory)

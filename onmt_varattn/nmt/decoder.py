"""The attention decoder: an RNN over target words whose attention is an alignment distribution.

At each step j, with x_1..x_S the source states ("memory"):

    query       q_j = RNN(q_{j-1}, [embedding of y_{j-1}; c_{j-1}])
    prior       p(z_j = i) = softmax_i score(q_j, x_i)
    context     c_j = E_p[x_z], fed back at the next step (c_0 = 0)
    emission    f(x, z) = softmax(W tanh(U [q_j; x_z]))

Only what the next step needs is inside the loop over time. Emission states, the vocabulary and
the loss come after it, for all positions at once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from onmt.decoders.decoder import DecoderBase
from onmt.utils.misc import sequence_mask
from torch import Tensor, nn

from onmt_varattn.latent.alignment import Categorical, Dirichlet
from onmt_varattn.latent.emission import Emission
from onmt_varattn.latent.scores import SCORES, Score
from onmt_varattn.nmt.recurrence import RNNS, Recurrence


@dataclass
class Trace:
    """What the loop over time leaves behind."""

    queries: Tensor  # T x N x D
    contexts: Tensor  # T x N x M, E_p[x_z]
    prior: Tensor  # T x N x S, scores; minus infinity where the source is padding
    memory: Tensor  # N x S x M; in a beam, one entry for all hypotheses of a sentence
    posterior: Tensor | None = None  # T x N x S, likewise, in training


@dataclass
class CandidateStates:
    """Emission states of the candidate alignments, with their weights in the mixture.

    OpenNMT's search squeezes the decoder's output and hands it to the generator, no more; so
    this object passes through beam search, sampling, gold scoring and ensembles untouched.
    """

    states: Tensor  # T x N x K x D
    log_weights: Tensor  # T x N x K, log-normalised over K

    def squeeze(self, dim: int) -> "CandidateStates":
        """As for a tensor, on a leading dimension."""
        return CandidateStates(self.states.squeeze(dim), self.log_weights.squeeze(dim))


class _Memory:
    """The source states of the sentences being decoded, with their keys.

    Beam search repeats every sentence `beam` times and reorders the repetitions at every step.
    The memory is the same for all of them, so it is held once a sentence, and changes only when
    sentences come or go.
    """

    def __init__(self, vectors: Tensor, score: Score) -> None:
        self.vectors = vectors  # N x S x M
        self.keys = score.keys(vectors)  # N x S x A
        self.emitted: Tensor | None = None  # N x S x D, the memory's part of emission states
        self.sentences = torch.arange(len(vectors), device=vectors.device).unsqueeze(0)  # 1 x N*Q
        self.queries = 1  # Q, hypotheses a sentence

    def map(self, fn: Callable[[Tensor, int], Tensor]) -> None:
        """Follow the search: `fn` repeats, reorders or drops hypotheses."""
        before = self.sentences.size(1)
        self.sentences = fn(self.sentences, 1)
        now = self.sentences.size(1)
        if now > before:
            self.queries *= now // before
        elif now < before:
            self._drop()

    def _drop(self) -> None:
        sentences = self.sentences.view(-1)
        if self.queries > 1:
            # A beam ends as a whole; sampled hypotheses may end one by one, and then each goes
            # on by itself.
            groups = sentences.view(-1, self.queries) if len(sentences) % self.queries == 0 else None
            if groups is not None and bool((groups == groups[:, :1]).all()):
                sentences = groups[:, 0]
            else:
                self.queries = 1
        self.vectors = self.vectors.index_select(0, sentences)
        self.keys = self.keys.index_select(0, sentences)
        if self.emitted is not None:
            self.emitted = self.emitted.index_select(0, sentences)
        positions = torch.arange(len(sentences), device=sentences.device)
        self.sentences = positions.repeat_interleave(self.queries).unsqueeze(0)


class AttentionDecoder(DecoderBase):
    """An input-feeding decoder whose encoder, decoder and attention sizes are independent.

    Args:
        embeddings: OpenNMT's target embeddings, E wide.
        rnn_type: LSTM or GRU.
        layers: RNN layers.
        size: D.
        memory_size: M.
        score: the attention score's name.
        attention_size: A.
        initial: where the first state comes from: "zero", or the "encoder"'s final state.
        dropout: between RNN layers and on emission states.
    """

    def __init__(
        self,
        embeddings: Any,
        rnn_type: str,
        layers: int,
        size: int,
        memory_size: int,
        score: str,
        attention_size: int,
        initial: str,
        dropout: float,
    ) -> None:
        super().__init__(attentional=True)
        self.embeddings = embeddings
        self.layers, self.size, self.memory_size = layers, size, memory_size
        self.has_cell = rnn_type == "LSTM"
        self.rnn = RNNS[rnn_type](layers, embeddings.embedding_size + memory_size, size, dropout)
        self.score = SCORES[score](size, memory_size, attention_size)
        self.emission = Emission(size, memory_size)
        self.dropout = nn.Dropout(dropout)
        self.bridge: nn.Module | None = None
        if initial == "encoder":
            self.bridge = nn.Identity() if size == memory_size else nn.Linear(memory_size, size)
        self.alternatives: Alternatives = soft
        self.state: dict[str, Any] = {}

    @classmethod
    def from_opt(cls, opt: Any, embeddings: Any) -> "AttentionDecoder":
        """OpenNMT's constructor."""
        return cls(
            embeddings,
            rnn_type=opt.rnn_type,
            layers=opt.dec_layers,
            size=opt.dec_rnn_size,
            memory_size=opt.enc_rnn_size,
            score=opt.global_attention,
            attention_size=opt.attention_size or opt.dec_rnn_size,
            initial=opt.decoder_init,
            dropout=opt.dropout[0] if isinstance(opt.dropout, list) else opt.dropout,
        )

    def init_state(self, src: Any, memory_bank: Tensor, encoder_final: Any) -> None:
        """Stand before the first word.

        Args:
            src: unused; OpenNMT's interface.
            memory_bank: S x N x M.
            encoder_final: the encoder's last states, (layers * directions) x N x M / directions;
                a pair of them for LSTMs.
        """
        memory = _Memory(memory_bank.transpose(0, 1).contiguous(), self.score)
        batch = memory_bank.size(1)
        if self.bridge is None:
            zeros = memory_bank.new_zeros(self.layers, batch, self.size)
            hidden = (zeros, zeros) if self.has_cell else (zeros,)
        else:
            finals = encoder_final if isinstance(encoder_final, tuple) else (encoder_final,)
            hidden = tuple(self.bridge(_join_directions(final, self.layers)) for final in finals)
        self.state = {
            "hidden": hidden,
            "context": memory_bank.new_zeros(1, batch, self.memory_size),
            "memory": memory,
        }

    def map_state(self, fn: Callable[[Tensor, int], Tensor]) -> None:
        """Repeat, reorder or drop hypotheses; called by the search."""
        self.state["hidden"] = tuple(fn(hidden, 1) for hidden in self.state["hidden"])
        self.state["context"] = fn(self.state["context"], 1)
        self.state["memory"].map(fn)

    def detach_state(self) -> None:
        """Called after each training step: let go of the batch, nothing carries over."""
        self.state = {}

    def trace(self, words: Tensor, lengths: Tensor) -> Trace:
        """Run the loop over time on known words, from the current state on.

        Args:
            words: the words before each position, T x N x features.
            lengths: source lengths, N.
        """
        memory: _Memory = self.state["memory"]
        sentences, positions = memory.keys.shape[:2]
        padding = ~sequence_mask(lengths[:: memory.queries], positions).unsqueeze(1)  # N x 1 x S
        hidden, context = self.state["hidden"], self.state["context"].squeeze(0)
        queries, contexts, scores = [], [], []
        recurrence = Recurrence(self.rnn, self.embeddings(words))
        for step in range(len(words)):
            query, hidden = recurrence.step(step, context, hidden)  # N*Q x D
            prior = Categorical(self.score(query.view(sentences, -1, self.size), memory.keys), padding)
            context = prior.mean(memory.vectors).flatten(0, 1)  # N*Q x M
            queries.append(query)
            contexts.append(context)
            scores.append(prior.scores.flatten(0, 1))  # N*Q x S
        self.state.update(hidden=hidden, context=context.unsqueeze(0))
        return Trace(torch.stack(queries), torch.stack(contexts), torch.stack(scores), memory.vectors)

    def forward(
        self, tgt: Tensor, memory_bank: Tensor, memory_lengths: Tensor, step: int | None = None, **_: Any
    ) -> tuple[CandidateStates, dict[str, Tensor]]:
        """Decode known words, for search and scoring.

        Args:
            tgt: T x N x features.
            memory_bank: unused: the decoder holds the memory it was given by `init_state`.
            memory_lengths: source lengths, N.
            step: unused; OpenNMT's interface.

        Returns:
            The candidate states, and the prior as attention ("std", T x N x S).
        """
        trace = self.trace(tgt, memory_lengths)
        prior = Categorical(trace.prior)
        return self.alternatives(self, trace, prior), {"std": prior.probs}

    def update_dropout(self, dropout: float, attention_dropout: float | None = None) -> None:
        """Change the dropout rate in the course of training."""
        self.dropout.p = self.rnn.dropout.p = dropout
        self.embeddings.update_dropout(dropout)

    def emit_aligned(self, trace: Trace, index: Tensor, log_weights: Tensor) -> CandidateStates:
        """Emission states of single source positions: index and log weights, both T x N x K."""
        memory: _Memory = self.state["memory"]
        if memory.emitted is None:
            memory.emitted = self.emission.context(memory.vectors)
        sentences, source, size = memory.emitted.shape
        queries = self.emission.query(trace.queries).unsqueeze(2)  # T x N x 1 x D
        first = torch.arange(sentences, device=index.device).repeat_interleave(memory.queries) * source
        rows = memory.emitted.view(-1, size).index_select(0, (index + first.view(1, -1, 1)).flatten())
        states = torch.tanh(queries + rows.view(*index.shape, size))
        return CandidateStates(self.dropout(states), log_weights)

    def emit_mixed(self, trace: Trace, contexts: Tensor, log_weights: Tensor) -> CandidateStates:
        """Emission states of any contexts: T x N x K x M."""
        states = self.emission(trace.queries.unsqueeze(2), contexts)
        return CandidateStates(self.dropout(states), log_weights)


Alternatives = Callable[[AttentionDecoder, Trace, Categorical], CandidateStates]
"""Which alignments decoding mixes. All use the prior alone."""


def soft(decoder: AttentionDecoder, trace: Trace, prior: Categorical) -> CandidateStates:
    """The expected context, as if it were one alignment."""
    weights = trace.contexts.new_zeros(*trace.contexts.shape[:2], 1)
    return decoder.emit_mixed(trace, trace.contexts.unsqueeze(2), weights)


def exact(decoder: AttentionDecoder, trace: Trace, prior: Categorical) -> CandidateStates:
    """Every source position, with its probability."""
    index = torch.arange(prior.scores.size(-1), device=prior.scores.device).expand_as(prior.scores)
    return decoder.emit_aligned(trace, index, prior.log_probs)


@dataclass(frozen=True)
class KMax:
    """The K most probable source positions, renormalised."""

    k: int

    def __call__(self, decoder: AttentionDecoder, trace: Trace, prior: Categorical) -> CandidateStates:
        """See `Alternatives`."""
        return decoder.emit_aligned(trace, *prior.kmax(self.k))


@dataclass(frozen=True)
class Samples:
    """Draws from a Dirichlet prior, equally weighted."""

    samples: int

    def __call__(self, decoder: AttentionDecoder, trace: Trace, prior: Categorical) -> CandidateStates:
        """See `Alternatives`."""
        memory: _Memory = decoder.state["memory"]
        steps, rows, source = prior.scores.shape
        scores = prior.scores.unsqueeze(2).expand(-1, -1, self.samples, -1)  # T x N*Q x K x S
        draws = Dirichlet(scores).rsample().view(steps, len(memory.vectors), -1, source)  # T x N x Q*K x S
        contexts = (draws @ memory.vectors).view(steps, rows, self.samples, -1)
        weights = contexts.new_full((steps, rows, self.samples), -math.log(self.samples))
        return decoder.emit_mixed(trace, contexts, weights)


def _join_directions(final: Tensor, layers: int) -> Tensor:
    """(layers * directions) x N x H -> layers x N x (directions * H)."""
    batch = final.size(1)
    return final.view(layers, -1, batch, final.size(2)).transpose(1, 2).reshape(layers, batch, -1)

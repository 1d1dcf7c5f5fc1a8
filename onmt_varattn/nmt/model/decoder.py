"""The RNN decoder of modules/ with the interface of OpenNMT-py's decoders."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from onmt.decoders.decoder import DecoderBase
from onmt.decoders.ensemble import EnsembleDecoder
from onmt.utils.misc import sequence_mask
from torch import Tensor, nn

from onmt_varattn.latent import LatentAttention, Memory, Mixture
from onmt_varattn.modules import RNNDecoder, StackedCells, State, Trace
from onmt_varattn.nmt.settings import LatentSettings
from onmt_varattn.training.attention import build_attention
from onmt_varattn.utils.settings import from_options


@dataclass
class CandidateStates:
    """Emission states of the candidate alignments, with their weights in the mixture.

    OpenNMT-py's search only squeezes the output of the decoder before it calls the generator, so this object
    passes unchanged through beam search, sampling, gold scoring and ensembles.
    """

    states: Tensor  # T x N x K x D
    log_weights: Tensor  # T x N x K, log-normalised over K

    def squeeze(self, dim: int) -> "CandidateStates":
        """As `Tensor.squeeze`, for a leading dimension."""
        return CandidateStates(self.states.squeeze(dim), self.log_weights.squeeze(dim))


class _Sentences:
    """The sentences being decoded, and the sentence of every hypothesis.

    Beam search repeats every sentence `beam` times and reorders the copies at every step. The memory is the
    same for all of them, so it is stored once per sentence, and changes only when sentences are finished.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.of_hypothesis = torch.arange(memory.sentences, device=memory.vectors.device).unsqueeze(
            0
        )  # 1 x N*Q
        self.hypotheses = 1  # Q, per sentence

    def map(self, fn: Callable[[Tensor, int], Tensor]) -> None:
        """Apply a function of the search that repeats, reorders or drops hypotheses."""
        before = self.of_hypothesis.size(1)
        self.of_hypothesis = fn(self.of_hypothesis, 1)
        now = self.of_hypothesis.size(1)
        if now > before:
            self.hypotheses *= now // before
        elif now < before:
            self._drop()

    def _drop(self) -> None:
        sentences = self.of_hypothesis.view(-1)
        if self.hypotheses > 1:
            # All hypotheses of a beam end together. Sampled ones may end one by one; then each becomes a
            # sentence of its own.
            groups = sentences.view(-1, self.hypotheses) if len(sentences) % self.hypotheses == 0 else None
            if groups is not None and bool((groups == groups[:, :1]).all()):
                sentences = groups[:, 0]
            else:
                self.hypotheses = 1
        self.memory = self.memory.select(sentences)
        positions = torch.arange(len(sentences), device=sentences.device)
        self.of_hypothesis = positions.repeat_interleave(self.hypotheses).unsqueeze(0)


class AttentionDecoder(RNNDecoder, DecoderBase):
    """A decoder with latent attention, time first and with a state, as in OpenNMT-py.

    Args:
        embeddings: OpenNMT-py's target embeddings.
        rnn: see `RNNDecoder`.
        attention: attention without its own output layer.
        initial: see `RNNDecoder`.

    Attributes:
        mixture: mixture over alignments in decoding.
    """

    embeddings: Any

    def __init__(self, embeddings: Any, rnn: nn.Module, attention: LatentAttention, initial: str) -> None:
        super().__init__(embeddings, rnn, attention, initial)
        self.mixture: Mixture = attention.objective.mixture()
        self.state: dict[str, Any] = {}

    @classmethod
    def from_opt(cls, opt: Namespace, embeddings: Any) -> "AttentionDecoder":
        """Build the decoder from options; OpenNMT-py's interface."""
        dropout = opt.dropout[0] if isinstance(opt.dropout, list) else opt.dropout
        width, size = embeddings.embedding_size, opt.dec_rnn_size
        if opt.input_feed:
            width += opt.enc_rnn_size
            rnn: nn.Module = StackedCells(opt.rnn_type, opt.dec_layers, width, size, dropout)
        else:
            between = dropout if opt.dec_layers > 1 else 0.0
            rnn = getattr(nn, opt.rnn_type)(width, size, opt.dec_layers, dropout=between)
        settings = from_options(LatentSettings, opt)
        attention = build_attention(
            settings,
            query_size=size,
            memory_size=opt.enc_rnn_size,
            attention_size=opt.attention_size or size,
            words=None,
            null=settings.null_alignment,
            label_smoothing=settings.label_smoothing,
            relaxed=settings.relaxed_distribution or "dirichlet",
            dropout=dropout,
            ignore_index=embeddings.word_padding_idx,
            unpredicted=embeddings.word_padding_idx,
        )
        return cls(embeddings, rnn, attention, opt.decoder_init)

    def embed(self, words: Tensor) -> Tensor:
        """Embeddings of OpenNMT-py's words: T x N x features -> N x T x E."""
        return self.embeddings(words).transpose(0, 1)

    def init_state(self, src: Any, memory_bank: Tensor, encoder_final: Any) -> None:
        """Initialise the state before the first word.

        Args:
            src: unused; OpenNMT-py's interface.
            memory_bank: encoder states, S x N x M.
            encoder_final: last states of the encoder, (layers * directions) x N x M / directions; a pair of
                them for LSTMs.
        """
        finals = encoder_final if isinstance(encoder_final, tuple) else (encoder_final,)
        final = None
        if self.bridge is not None:
            final = tuple(_join_directions(one, self.layers) for one in finals)
        # The lengths are not known here: `trace` adds the padding.
        state = self.start(self.attention.prepare(memory_bank.transpose(0, 1).contiguous()), final)
        self.state = {"at": state, "sentences": _Sentences(state.memory)}

    def map_state(self, fn: Callable[[Tensor, int], Tensor]) -> None:
        """Repeat, reorder or drop hypotheses; called by the search."""
        at: State = self.state["at"]
        self.state["sentences"].map(fn)
        self.state["at"] = State(
            tuple(fn(hidden, 1) for hidden in at.hidden),
            None if at.context is None else fn(at.context.unsqueeze(0), 1).squeeze(0),
            self.state["sentences"].memory,
        )

    def detach_state(self) -> None:
        """Discard the state after a training step."""
        self.state = {}

    def trace(self, words: Tensor, lengths: Tensor) -> Trace:
        """Run over given words from the current state.

        Args:
            words: previous words of all positions, T x N x features.
            lengths: source lengths, N.
        """
        at, sentences = self.state["at"], self.state["sentences"]
        memory = at.memory
        null = int(memory.null)
        padding = ~sequence_mask(lengths[:: sentences.hypotheses], memory.width - null)  # N x S
        memory.padding = nn.functional.pad(padding, (0, null))
        trace, self.state["at"] = self.run(self.embed(words), replace(at, memory=memory))
        return trace

    def forward(
        self, tgt: Tensor, memory_bank: Tensor, memory_lengths: Tensor, step: int | None = None, **_: Any
    ) -> tuple[CandidateStates, dict[str, Tensor]]:
        """Run over given words, for search and scoring.

        Args:
            tgt: words, T x N x features.
            memory_bank: unused: `init_state` has stored the memory.
            memory_lengths: source lengths, N.
            step: unused; OpenNMT-py's interface.

        Returns:
            The candidate states, and the prior over source positions as attention ("std", T x N x S). The
            probability of NULL is one minus the sum of a row (`with_null`): OpenNMT-py cuts rows to the
            source length, and uses them for coverage penalties and to replace unknown words.
        """
        positions = self.trace(tgt, memory_lengths).every_position()
        states, log_weights = self.attention.states(positions, self.mixture)
        shape = tgt.shape[:2]
        prior = torch.softmax(positions.prior, -1)[:, : positions.memory.width - positions.memory.null]
        return (
            CandidateStates(states.view(*shape, *states.shape[1:]), log_weights.view(*shape, -1)),
            {"std": prior.reshape(*shape, -1)},
        )

    def update_dropout(self, dropout: float, attention_dropout: float | None = None) -> None:
        """Change the dropout rate during training."""
        self.attention.readout.dropout.p = dropout
        if isinstance(self.rnn, StackedCells):
            self.rnn.dropout.p = dropout
        elif self.layers > 1:
            self.rnn.dropout = dropout  # type: ignore[assignment]
        self.embeddings.update_dropout(dropout)


def parts_of(decoder: Any) -> list[Any]:
    """The decoders of an ensemble, or the single decoder."""
    return list(decoder.model_decoders) if isinstance(decoder, EnsembleDecoder) else [decoder]


def has_null(decoder: Any) -> bool:
    """Whether a decoder, or any decoder of an ensemble, has a NULL position."""
    return any(
        isinstance(part, AttentionDecoder) and part.attention.null is not None for part in parts_of(decoder)
    )


def with_null(attention: Tensor) -> Tensor:
    """Append the probability of NULL to the attention of a decoder: T x S -> T x (S + 1)."""
    null = (1 - attention.double().sum(1, keepdim=True)).clamp(min=0)
    return torch.cat([attention, null.to(attention.dtype)], 1)


def _join_directions(final: Tensor, layers: int) -> Tensor:
    """(layers * directions) x N x H -> layers x N x (directions * H)."""
    batch = final.size(1)
    return final.view(layers, -1, batch, final.size(2)).transpose(1, 2).reshape(layers, batch, -1)

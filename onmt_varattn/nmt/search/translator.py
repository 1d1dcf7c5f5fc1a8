"""Translation of raw text with the text processing in the checkpoint."""

import itertools
import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onmt.translate
import onmt.translate.translator
from onmt.constants import DefaultTokens, ModelTask
from onmt.decoders.transformer import TransformerDecoderBase
from torch import Tensor

from onmt_varattn.analysis.alignment import Links, argmax_links, pharaoh
from onmt_varattn.analysis.attention import by_words
from onmt_varattn.errors import UserError
from onmt_varattn.nmt.model.decoder import AttentionDecoder, has_null, parts_of, with_null
from onmt_varattn.nmt.search.tally import Tallying
from onmt_varattn.nmt.text.processing import TextProcessing
from onmt_varattn.utils.progress import Progress

FORBIDDEN = -1e20  # the log probability that OpenNMT's search gives a word it must not pick


@dataclass(frozen=True)
class Hypothesis:
    """A translation of a line; empty for an empty line."""

    score: Any = 0.0
    text: str = ""
    tokens: list[str] = field(default_factory=list)  # T, as the model wrote them
    links: Links | None = frozenset()  # between words; None unless asked for
    attention: Tensor | None = None  # T or, with the end of the sentence, T + 1 x source tokens (and NULL)

    def __str__(self) -> str:
        """The text, with links in OpenNMT-py's format: "a translation ||| 0-0 1-1"."""
        aligned = "" if self.links is None else DefaultTokens.ALIGNMENT_SEPARATOR + pharaoh(self.links)
        return self.text + aligned


class Translator(Tallying, onmt.translate.translator.Translator):
    """OpenNMT-py's translator with the text processing of the checkpoint.

    A model without text processing, such as a stock OpenNMT-py model, translates tokens to tokens.

    Attributes:
        processing: text processing of the model; None: text is split at spaces.
        model_opt: options that the model was trained with.
        progress: progress bar that counts sentences, or None.
        report_align: OpenNMT-py's flag: alignments from the heads of a transformer.
        aligns: add links to each translation, from those heads or from the attention of the search.
        keeps_attention: add the attention of the search to the best translation of each line.
    """

    processing: TextProcessing | None = None
    model_opt: Namespace | None = None
    progress: Progress | None = None
    aligns: bool = False
    keeps_attention: bool = False

    @classmethod
    def from_opt(
        cls, model: Any, fields: Any, opt: Namespace, model_opt: Namespace, **kwargs: Any
    ) -> "Translator":
        """Build the translator from options; OpenNMT-py's interface."""
        aligns = kwargs.pop("report_align", False)
        if aligns and not model.decoder.attentional:
            raise UserError("-report_align needs a model with attention")
        heads = aligns and _is_transformer(model.decoder)
        translator = super().from_opt(model, fields, opt, model_opt, report_align=heads, **kwargs)
        translator.model_opt, translator.aligns = model_opt, aligns
        translator.keeps_attention = bool(getattr(opt, "dump_attention", None))
        saved = getattr(model_opt, "text_processing", None)
        if saved and not getattr(opt, "pretokenized", False):
            translator.processing = TextProcessing.from_dict(saved, opt.models[0])
        return translator

    def translate(
        self, src: Sequence[str | bytes], *args: Any, **kwargs: Any
    ) -> tuple[list[list[Any]], list[list[str]]]:
        """Scores and translations, both `len(src)` x `n_best`; OpenNMT-py's interface.

        With -report_align, each translation is followed by its links.
        """
        found = self.hypotheses(src, *args, **kwargs)
        return (
            [[hypothesis.score for hypothesis in line] for line in found],
            [[str(hypothesis) for hypothesis in line] for line in found],
        )

    def hypotheses(
        self,
        src: Sequence[str | bytes],
        src_feats: dict[str, Any] | None = None,
        tgt: Sequence[str | bytes] | None = None,
        batch_size: int | None = None,
        batch_type: str = "sents",
        attn_debug: bool = False,
        align_debug: bool = False,
        phrase_table: str = "",
    ) -> list[list[Hypothesis]]:
        """Translate lines, in the order given.

        An empty line has empty translations. Batches have lines of similar length, to reduce padding, unless
        translations are printed on the way.

        Returns:
            `len(src)` x `n_best`.
        """
        source = [self.encode(line, "src") for line in src]
        target = None if tgt is None else [self.encode(line, "tgt") for line in tgt]
        order = [i for i, line in enumerate(source) if line]
        if not (self.verbose or attn_debug or align_debug or src_feats):
            order.sort(key=lambda i: -len(source[i].split()))
        empty = Hypothesis(links=frozenset() if self.aligns else None)
        results = [[empty] * self.n_best for _ in source]
        self._characters = [len(src[i]) for i in order]
        self._attention: dict[int, list[Tensor | None]] = {}
        if order:
            scores, found = super().translate(
                [source[i] for i in order],
                src_feats={name: [lines[i] for i in order] for name, lines in (src_feats or {}).items()},
                tgt=None if target is None else [target[i] for i in order],
                batch_size=batch_size,
                batch_type=batch_type,
                attn_debug=attn_debug,
                align_debug=align_debug,
                phrase_table=phrase_table,
            )
            for n, i in enumerate(order):
                results[i] = self._hypotheses(source[i], scores[n], found[n], self._attention.pop(n, []))
        return results

    def translate_dynamic(self, *args: Any, **kwargs: Any) -> Any:
        """Translate with transforms; only transformers have links there."""
        if self.aligns and not self.report_align:
            raise UserError("-report_align does not go with -transforms for this model; give its tokens")
        return super().translate_dynamic(*args, **kwargs)

    def translate_batch(self, batch: Any, src_vocabs: Any, attn_debug: bool) -> dict[str, Any]:
        """Translate a batch, update the progress bar and keep the attention."""
        wanted = (self.n_best if self.aligns else 1) if self.aligns or self.keeps_attention else 0
        result = super().translate_batch(batch, src_vocabs, attn_debug or wanted > 0)
        if wanted:
            found = result["alignment" if self.report_align else "attention"]
            lengths = batch.src[1].tolist()
            for i, length, matrices in zip(batch.indices.tolist(), lengths, found, strict=True):
                # Copies: those of the search are views of all hypotheses, with padding.
                self._attention[i] = [
                    None if matrix is None else self._of_sentence(matrix[:, :length].to("cpu", copy=True))
                    for matrix in matrices[:wanted]
                ]
        if self.progress is not None:
            work = sum(self._characters[i] for i in batch.indices.tolist())
            self.progress.update(batch.batch_size, work)
        return result

    def _decode_and_generate(
        self, *args: Any, step: int | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """One step of OpenNMT-py's search; models with -attention never predict padding or <s>."""
        log_probs, attention = super()._decode_and_generate(*args, step=step, **kwargs)
        if step is None and log_probs.dim() == 2:  # empty references: OpenNMT-py has squeezed T = 1
            log_probs = log_probs.unsqueeze(0)
        if step is not None and any(
            isinstance(part, AttentionDecoder) for part in parts_of(self.model.decoder)
        ):
            for word in (self._tgt_pad_idx, self._tgt_bos_idx):
                log_probs[:, word] = FORBIDDEN
        return log_probs, attention

    def _hypotheses(
        self, source: str, scores: list[Any], lines: list[str], attention: list[Tensor | None]
    ) -> list[Hypothesis]:
        """The n_best translations of a line of tokens.

        A beam with fewer than n_best possible translations has some of probability 0, which stay empty.
        """
        hypotheses: list[Hypothesis] = []
        for score, line, matrix in itertools.zip_longest(scores, lines, attention):
            if float(score) == -math.inf:
                hypotheses.append(Hypothesis(score, links=frozenset() if self.aligns else None))
                continue
            if self.report_align:  # OpenNMT-py has appended links between tokens
                line = line.rpartition(DefaultTokens.ALIGNMENT_SEPARATOR)[0]
            tokens = line.split(" ") if line else []
            links = self._links(source.split(" "), tokens, matrix) if self.aligns else None
            kept = matrix if self.keeps_attention and not hypotheses else None
            hypotheses.append(Hypothesis(score, self._decode(line), tokens, links, kept))
        return hypotheses

    def _links(self, source: list[str], target: list[str], attention: Tensor | None) -> Links:
        """Links to the most probable source word of each target word; none if that is NULL."""
        if attention is None or not target:
            return frozenset()
        rows = attention[: len(target)]  # without the end of the sentence
        if self.processing is None:
            return argmax_links(rows, self.null)
        words = self.processing.src.words(source), self.processing.tgt.words(target)
        return argmax_links(by_words(rows, *words, self.null), self.null)

    def _of_sentence(self, attention: Tensor) -> Tensor:
        """Attention over source tokens, with NULL if the model has it."""
        return with_null(attention) if self.null else attention

    @property
    def null(self) -> bool:
        """Whether the last column of attention is NULL."""
        return has_null(self.model.decoder)

    @property
    def lowercase(self) -> bool:
        """Whether the text of the model is lower-cased."""
        return self.processing is not None and self.processing.tgt.lowercase

    def encode(self, line: str | bytes, side: str) -> str:
        """The tokens of a line, separated by spaces."""
        text = line.decode("utf-8") if isinstance(line, bytes) else line
        if self.processing is None:
            return " ".join(text.split())
        return getattr(self.processing, side).encode(text)

    def _decode(self, tokens: str) -> str:
        return tokens if self.processing is None else self.processing.tgt.decode(tokens)


def _is_transformer(decoder: Any) -> bool:
    """Whether a decoder, or all decoders of an ensemble, have attention heads to align with."""
    return all(isinstance(part, TransformerDecoderBase) for part in parts_of(decoder))


class Nowhere:
    """A file that discards the translator's own output, which is neither raw text nor in order."""

    def write(self, text: str) -> None:
        """Discard the text."""

    def flush(self) -> None:
        """Nothing to do."""


def searcher(
    model: Any,
    fields: dict[str, Any],
    opt: Namespace,
    model_opt: Namespace,
    report_align: bool = False,
    **kwargs: Any,
) -> Any:
    """The translator of a loaded model; a language model continues its lines.

    Args:
        model: model of `load_test_model`.
        fields: its fields.
        opt: options of onmt_translate.
        model_opt: options that the model was trained with.
        report_align: add links to each translation.
        kwargs: further arguments of OpenNMT-py's translator.
    """
    is_language_model = model_opt.model_task == ModelTask.LANGUAGE_MODEL
    kind = onmt.translate.translator.GeneratorLM if is_language_model else Translator
    return kind.from_opt(
        model,
        fields,
        opt,
        model_opt,
        global_scorer=onmt.translate.GNMTGlobalScorer.from_opt(opt),
        out_file=Nowhere(),
        report_align=report_align,
        **{"report_score": False, **kwargs},
    )

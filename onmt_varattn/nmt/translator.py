"""Translation of raw text: the processing a model was trained with is undone on its output."""

from collections.abc import Sequence
from typing import Any

import onmt.translate.translator
from tqdm import tqdm

from onmt_varattn.text import TextProcessing


class Translator(onmt.translate.translator.Translator):
    """OpenNMT's translator, with the text processing that travelled in the checkpoint.

    A model without any (a stock OpenNMT-py model, say) translates tokens to tokens as ever.

    Attributes:
        processing: how raw text becomes tokens and tokens become text; None for neither.
        progress: a progress bar that counts sentences, or None.
    """

    processing: TextProcessing | None = None
    progress: tqdm | None = None

    @classmethod
    def from_opt(cls, model: Any, fields: Any, opt: Any, model_opt: Any, **kwargs: Any) -> "Translator":
        """OpenNMT's constructor."""
        translator = super().from_opt(model, fields, opt, model_opt, **kwargs)
        saved = getattr(model_opt, "text_processing", None)
        if saved and not getattr(opt, "pretokenized", False):
            translator.processing = TextProcessing.from_dict(saved)
        return translator

    def translate(
        self,
        src: Sequence[str | bytes],
        src_feats: dict[str, Any] | None = None,
        tgt: Sequence[str | bytes] | None = None,
        batch_size: int | None = None,
        batch_type: str = "sents",
        attn_debug: bool = False,
        align_debug: bool = False,
        phrase_table: str = "",
    ) -> tuple[list[list[Any]], list[list[str]]]:
        """Translate lines; line i of the results is that of source line i.

        An empty source line has empty translations. Lines are translated in order of length, so
        that a batch wastes little on padding, unless they are to be printed on the way.

        Returns:
            Scores and translations, both `len(src)` x `n_best`.
        """
        source = [self._encode(line, "src") for line in src]
        target = None if tgt is None else [self._encode(line, "tgt") for line in tgt]
        order = [i for i, line in enumerate(source) if line]
        if not (self.verbose or attn_debug or align_debug or src_feats):
            order.sort(key=lambda i: -len(source[i].split()))
        scores: list[list[Any]] = [[0.0] * self.n_best for _ in source]
        translations = [[""] * self.n_best for _ in source]
        if order:
            found_scores, found = super().translate(
                [source[i] for i in order],
                src_feats={name: [lines[i] for i in order] for name, lines in (src_feats or {}).items()},
                tgt=None if target is None else [target[i] for i in order],
                batch_size=batch_size,
                batch_type=batch_type,
                attn_debug=attn_debug,
                align_debug=align_debug,
                phrase_table=phrase_table,
            )
            for i, line_scores, lines in zip(order, found_scores, found, strict=True):
                scores[i], translations[i] = line_scores, [self._decode(line) for line in lines]
        return scores, translations

    def translate_batch(self, batch: Any, src_vocabs: Any, attn_debug: bool) -> dict[str, Any]:
        """OpenNMT's, counting on the progress bar."""
        result = super().translate_batch(batch, src_vocabs, attn_debug)
        if self.progress is not None:
            self.progress.update(batch.batch_size)
        return result

    @property
    def lowercase(self) -> bool:
        """The model knows lower case only."""
        return self.processing is not None and self.processing.tgt.lowercase

    def _encode(self, line: str | bytes, side: str) -> str:
        text = line.decode("utf-8") if isinstance(line, bytes) else line
        if self.processing is None:
            return " ".join(text.split())
        return getattr(self.processing, side).encode(text)

    def _decode(self, tokens: str) -> str:
        return tokens if self.processing is None else self.processing.tgt.decode(tokens)


class Nowhere:
    """A file for the translator's own output, which knows neither raw text nor line order."""

    def write(self, text: str) -> None:
        """Forget it."""

    def flush(self) -> None:
        """Nothing to do."""

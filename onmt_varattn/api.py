"""Translation from Python."""

import os
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from onmt_varattn.analysis.attention import Attention, by_words
from onmt_varattn.errors import UserError
from onmt_varattn.opts import check_translate
from onmt_varattn.plugin import register
from onmt_varattn.text import TextProcessing, TextSide


class Model:
    """A translation model, or an ensemble of several.

    Args:
        models: paths of checkpoints.
        options: any option of onmt_translate by its name, as the default for all translations:
            `gpu=0`, `beam=10`, `length_penalty="wu"`, `alpha=1`, ...

    Raises:
        UserError: a file or an option is wrong.
    """

    def __init__(self, *models: str | os.PathLike[str], **options: Any) -> None:
        register()
        import onmt.decoders.ensemble
        import onmt.model_builder

        if not models:
            raise UserError("no model to load: give the path of a checkpoint")
        self._models, self._options = [os.fspath(model) for model in models], options
        opt = self._parse(options)
        loader = onmt.model_builder if len(models) == 1 else onmt.decoders.ensemble
        self.fields, self.model, self.model_opt = loader.load_test_model(opt)

    def translate(self, sentences: Sequence[str], with_score: bool = False, **options: Any) -> list[Any]:
        """Translate sentences; an empty one gives an empty translation.

        Args:
            sentences: raw text, if the model carries its text processing; otherwise tokens
                separated by spaces.
            with_score: give (translation, score) instead of the translation.
            options: any option of onmt_translate by its name, for this call.

        Returns:
            A translation for each sentence; with `n_best` above 1, a list of them, best first.
        """
        if isinstance(sentences, str):
            raise TypeError("translate() takes a list of sentences, not one string")
        import onmt.translate
        from onmt.translate.translator import Translator

        from onmt_varattn.nmt.translator import Nowhere

        opt = self._parse({**self._options, **options})
        translator = Translator.from_opt(
            self.model,
            self.fields,
            opt,
            self.model_opt,
            global_scorer=onmt.translate.GNMTGlobalScorer.from_opt(opt),
            out_file=Nowhere(),
            report_align=False,
            report_score=False,
        )
        scores, translations = translator.translate(
            list(sentences), batch_size=opt.batch_size, batch_type=opt.batch_type
        )
        results: list[list[Any]] = translations
        if with_score:
            results = [
                [(text, float(score)) for text, score in zip(*both, strict=True)]
                for both in zip(translations, scores, strict=True)
            ]
        return results if opt.n_best > 1 else [best[0] for best in results]

    def attention(self, source: str, target: str, kind: str = "prior") -> Attention:
        """A distribution over alignments for each word of a translation.

        Subwords are merged to words where the model carries its text processing; the end of the
        sentence is left out.

        Args:
            source: a sentence, as for `translate`.
            target: its translation, likewise.
            kind: "prior" (what translation looks at, word by word), "posterior" (the inference
                network's, which has seen the whole target) or "exact" (the true posterior of the
                model, by enumeration).
        """
        saved = getattr(self.model_opt, "text_processing", None)
        processing = TextProcessing.from_dict(saved) if saved else TextProcessing(TextSide(), TextSide())
        tokens = [processing.src.encode(source).split(), processing.tgt.encode(target).split()]
        if not all(tokens):
            raise UserError("attention needs a source and a target of at least one word")
        probs = self._alignment(tokens[0], tokens[1], kind)
        sides = (processing.src, processing.tgt)
        words = [side.words(line) for side, line in zip(sides, tokens, strict=True)]
        labels = [
            [
                side.decode(" ".join(token for token, w in zip(line, of, strict=True) if w == word))
                for word in range(max(of) + 1)
            ]
            for side, line, of in zip(sides, tokens, words, strict=True)
        ]
        return Attention(labels[0], labels[1], by_words(probs, words[0], words[1]))

    @torch.no_grad()
    def _alignment(self, source: list[str], target: list[str], kind: str) -> Tensor:
        """p(z), q(z) or p(z | x, y) for each target token: T x S."""
        from onmt_varattn.nmt.loss import build_estimator, exact_posterior
        from onmt_varattn.nmt.model import AlignmentModel

        fields = [self.fields[side].base_field for side in ("src", "tgt")]
        framed = [fields[1].init_token, *target, fields[1].eos_token]
        device = next(self.model.parameters()).device
        src, tgt = (
            torch.tensor([field.vocab.stoi[token] for token in line], device=device).view(-1, 1, 1)
            for field, line in zip(fields, (source, framed), strict=True)
        )
        lengths = torch.tensor([len(source)], device=device)
        if kind == "prior":
            final, memory, lengths = self.model.encoder(src, lengths)
            self.model.decoder.init_state(src, memory, final)
            _, attention = self.model.decoder(tgt[:-1], memory, memory_lengths=lengths)
            return attention["std"][: len(target), 0].cpu()
        if not isinstance(self.model, AlignmentModel):
            raise UserError(f"only a single model trained with -attention has the attention '{kind}'")
        if kind == "exact" and self.model_opt.attention == "relaxed":
            raise UserError("a model trained with -attention relaxed has no single alignments to enumerate")
        trace, _ = self.model(src, tgt, lengths)
        if kind == "exact":
            return exact_posterior(self.model, trace, tgt[1:, :, 0])[: len(target)].cpu()
        if kind != "posterior":
            raise UserError(f"there is no attention '{kind}'; there are prior, posterior and exact")
        if trace.posterior is None or self.model.posterior is None:
            raise UserError("this model has no posterior: it was not trained with an inference network")
        estimator = build_estimator(self.model_opt)
        return estimator.distribution(trace.posterior[: len(target), 0]).probs.cpu()

    def _parse(self, options: dict[str, Any]) -> Any:
        """Options by name -> the namespace that OpenNMT works with, checked as on the command line."""
        from onmt.utils.parse import ArgumentParser

        from onmt_varattn.bin.translate import translate_parser

        parser = translate_parser()
        parser.error = _raise  # type: ignore[method-assign]
        words = ["-model", *self._models, "-src", "given by the caller"]
        for name, value in options.items():
            if name in ("model", "src", "tgt", "output", "src_feats"):
                raise UserError(
                    f"'{name}' is for the command line; translate() takes sentences and returns them"
                )
            if value is not False:
                words += [f"-{name}"] if value is True else [f"-{name}", str(value)]
        opt = parser.parse_args(words)
        check_translate(opt)
        ArgumentParser.validate_translate_opts(opt)
        return opt


def _raise(message: str) -> NoReturn:
    raise UserError(message)

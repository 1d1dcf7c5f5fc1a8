"""Translation from Python."""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from onmt_varattn.analysis.attention import Attention, by_words
from onmt_varattn.analysis.reading import Reading, Sentence
from onmt_varattn.errors import UserError
from onmt_varattn.latent import Mixture
from onmt_varattn.nmt.model.building import AlignmentModel, choose_mixture
from onmt_varattn.nmt.model.decoder import has_null, with_null
from onmt_varattn.nmt.model.reading import Reader
from onmt_varattn.nmt.parsers import translate_options
from onmt_varattn.nmt.search.loading import Loaded
from onmt_varattn.nmt.text.processing import TextProcessing, TextSide


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
        if not models:
            raise UserError("no model to load: give the path of a checkpoint")
        self._models, self._options = [os.fspath(model) for model in models], options
        self._loaded = Loaded.from_opt(self._parse(options))
        self.fields = self._loaded.fields
        self.model: Any = self._loaded.model
        self.model_opt = self._loaded.model_opt
        saved = getattr(self.model_opt, "text_processing", None)
        self.processing = TextProcessing(TextSide(), TextSide())
        if saved:
            self.processing = TextProcessing.from_dict(saved, self._models[0])

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
        opt = self._parse({**self._options, **options})
        choose_mixture(self.model, opt)
        translator = self._loaded.translator(opt)
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

    @property
    def name(self) -> str:
        """The paths of its checkpoints."""
        return " ".join(self._models)

    @property
    def kinds(self) -> list[str]:
        """Available distributions over alignments, see `attention`."""
        if not isinstance(self.model, AlignmentModel):
            return ["prior"]
        has_posterior = self.model.posterior is not None or self.model.has_flat_posterior
        has_exact = self.model_opt.attention != "relaxed"
        return ["prior", *["posterior"] * has_posterior, *["exact"] * has_exact]

    @property
    def null(self) -> bool:
        """Whether the last alignment position is NULL; in an ensemble, that of any model."""
        return has_null(self.model.decoder)

    @property
    def mixture(self) -> Mixture:
        """The mixture over alignments that the model decodes with by default."""
        return self.model.decoder.attention.objective.mixture()

    def attention(self, source: str, target: str, kind: str = "prior") -> Attention:
        """The distribution over alignments of each word of a translation.

        Subwords are merged to words if the checkpoint contains the text processing; the end of the
        sentence is left out. With `-null_alignment` the last column is NULL.

        Args:
            source: source sentence, as for `translate`.
            target: its translation, likewise.
            kind: "prior" (used in translation), "posterior" (of the inference network, which has read the
                whole target) or "exact" (the true posterior of the model, by enumeration).
        """
        return next(self.attentions([(source, target)], [kind]))[1][kind]

    @torch.no_grad()
    def attentions(
        self,
        pairs: Sequence[tuple[str | Sentence, str | Sentence]],
        kinds: Sequence[str] = ("prior",),
        batch_size: int = 32,
    ) -> Iterator[tuple[int, dict[str, Attention]]]:
        """`attention` for many pairs and several kinds, read in batches.

        Args:
            pairs: sentence pairs, as text or as `sentences` returns them.
            kinds: distributions, see `attention`.
            batch_size: sentence pairs per batch.

        Yields:
            Index of a pair, and its distributions by kind. Pairs of similar length come together, not in
            the order given.
        """
        self.check_kinds(kinds)
        read = [self.sentences(source, target) for source, target in pairs]
        for i, found in self._alignments(read, kinds, batch_size):
            source, target = read[i]
            words = source.words, target.words, self.null
            yield (
                i,
                {
                    kind: Attention(source.labels, target.labels, by_words(probs, *words), self.null)
                    for kind, probs in found.items()
                },
            )

    def sentences(self, source: str | Sentence, target: str | Sentence) -> tuple[Sentence, Sentence]:
        """A pair as the model reads it; a `Sentence` is returned as it is.

        Raises:
            UserError: a side has no words.
        """
        sides = (source, self.processing.src), (target, self.processing.tgt)
        both = tuple(text if isinstance(text, Sentence) else side.sentence(text) for text, side in sides)
        if not all(side.tokens for side in both):
            raise UserError("attention needs a source and a target of at least one word")
        return both[0], both[1]

    def pieces(self, source: Sentence, target: Sentence) -> tuple[list[str], list[str]]:
        """The tokens of a pair for display, with the target's end of sentence."""
        end = self.fields["tgt"].base_field.eos_token
        return self.processing.src.pieces(source), [*self.processing.tgt.pieces(target), end]

    def read(self, pairs: Sequence[tuple[Sentence, Sentence]], batch_size: int = 32) -> Iterator[Reading]:
        """Run the model over pairs, in batches of similar length.

        Raises:
            UserError: this is an ensemble, or not a model trained with -attention.
        """
        if not isinstance(self.model, AlignmentModel):
            raise UserError(f"{self.name}: not a single model trained with -attention")
        if len(list(self.fields["src"])) > 1:
            raise UserError(f"{self.name}: models with source features can translate only")
        reader = Reader(self.model, self.fields, batch_size)
        return reader.read([(source.tokens, target.tokens) for source, target in pairs])

    def check_kinds(self, kinds: Sequence[str]) -> None:
        """Check that the model has these distributions.

        Raises:
            UserError: it has not; the message names one that it has.
        """
        for kind in kinds:
            if kind in self.kinds:
                continue
            if kind not in ("prior", "posterior", "exact"):
                raise UserError(f"there is no attention '{kind}'; there are prior, posterior and exact")
            if not isinstance(self.model, AlignmentModel):
                raise UserError(f"{self.name}: only a single model trained with -attention has '{kind}'")
            attention = self.model_opt.attention
            if kind == "exact":
                raise UserError(
                    f"{self.name}: a model trained with -attention {attention} mixes positions, so it has no "
                    "single alignments to enumerate; use prior or posterior"
                )
            raise UserError(
                f"{self.name}: this model, trained with -attention {attention}, has no posterior network; "
                "use exact, the true posterior, or train with -attention variational"
            )

    def _alignments(
        self, pairs: Sequence[tuple[Sentence, Sentence]], kinds: Sequence[str], batch_size: int
    ) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """p(z), q(z) or p(z | x, y) for each target token: T x S, or T x (S + 1) with NULL."""
        if not isinstance(self.model, AlignmentModel):
            for i, pair in enumerate(pairs):
                yield i, {"prior": self._stock_attention(*pair)}
            return
        for reading in self.read(pairs, batch_size):
            split = {kind: reading.by_sentence(reading.distribution(kind).probs.cpu()) for kind in kinds}
            for n, i in enumerate(reading.lines):
                yield i, {kind: rows[n][:-1] for kind, rows in split.items()}

    def _stock_attention(self, source: Sentence, target: Sentence) -> Tensor:
        """Attention of OpenNMT-py's own decoders, or of an ensemble: T x S, or T x (S + 1) with NULL."""
        fields = [self.fields[side].base_field for side in ("src", "tgt")]
        device = next(self.model.parameters()).device
        src, tgt = (
            torch.tensor([field.vocab.stoi[token] for token in tokens], device=device).view(-1, 1, 1)
            for field, tokens in zip(
                fields, (source.tokens, [fields[1].init_token, *target.tokens]), strict=True
            )
        )
        final, memory, lengths = self.model.encoder(src, torch.tensor([len(src)], device=device))
        self.model.decoder.init_state(src, memory, final)
        _, attention = self.model.decoder(tgt, memory, memory_lengths=lengths)
        found = attention["std"][: len(target.tokens), 0].cpu()
        return with_null(found) if self.null else found

    def _parse(self, options: dict[str, Any]) -> Namespace:
        for name in ("model", "src", "tgt", "output", "src_feats", "report_align", "dump_attention"):
            if name in options:
                raise UserError(
                    f"'{name}' is for the command line; translate() takes sentences and returns them"
                )
        return translate_options(self._models, options)

r"""Raw text to tokens and back, in a form that is stored in checkpoints.

One language side is encoded in four steps, and decoded by their inverses in the opposite order:

    normalise   any run of whitespace becomes one space; lower case if set
    tokenise    moses, or nothing
    escape      the subword marker, where the text itself contains it, becomes a code such as \u2581
    segment     sentencepiece, subword-nmt or nothing; a piece that equals a special token of
                OpenNMT-py gets a backslash (\<s>), so that text can never end a sentence

So `decode(encode(x))` is `x` up to whitespace, upper case if lower-casing is set, and with moses the
spaces that its detokeniser does not restore. Sentencepiece runs without its own Unicode normalisation for
the same reason.
"""

import base64
import binascii
import contextlib
import dataclasses
import functools
import io
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import sentencepiece
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from onmt_varattn.analysis.reading import Sentence
from onmt_varattn.errors import UserError
from onmt_varattn.nmt.text import SUBWORDS, TOKENIZERS, VOCAB_SIZE, WORDS_A_SUBWORD
from onmt_varattn.utils.files import atomic_write

FORMAT_VERSION = 1
BEYOND_CHARACTERS = 100  # smallest number of subwords besides single characters, if there are as many

MOST_CACHED = 100_000  # words whose subwords are cached

SPACE_MARKER = "▁"  # sentencepiece: a word starts here
JOIN_MARKER = "@@"  # subword-nmt: the word continues in the next token
NO_MERGES = "#version: 0.2\n#no merges\n"  # subword-nmt: single characters; it writes nothing for that
SPECIAL_TOKEN = r"(\\*<(?:unk|blank|s|/s)>)(?!\S)"


class _Reserved(NamedTuple):
    """A character that text must not pass to a subword model, and its code."""

    character: str
    where: str  # pattern of the occurrences to escape
    code: str

    def escape(self, words: str) -> str:
        r"""Put a backslash and the code for the character; double the backslashes before either."""

        def quoted(match: re.Match[str]) -> str:
            return match[1] * 2 + (self.code if match[2] == self.code else "\\" + self.code)

        return re.sub(rf"(?<!\\)(\\*)({self.where}|{self.code})", quoted, words)

    def unescape(self, words: str) -> str:
        """The inverse of `escape`: an odd number of backslashes means the character."""

        def plain(match: re.Match[str]) -> str:
            half, odd = divmod(len(match[1]), 2)
            return "\\" * half + (self.character if odd else self.code)

        return re.sub(rf"(?<!\\)(\\+){self.code}", plain, words)


_RESERVED = {
    "sentencepiece": _Reserved(SPACE_MARKER, SPACE_MARKER, "u2581"),
    "bpe": _Reserved("@", r"(?<=@)@(?!\S)", "u0040"),  # only a word's end reads like a join marker
}


@dataclasses.dataclass(frozen=True)
class TextSide:
    """Text processing of one language.

    Args:
        lowercase: lower-case the text.
        tokenize: one of `TOKENIZERS`.
        language: two-letter code; only moses looks at it.
        subword: one of `SUBWORDS`.
        model: what `learn_subwords` returned; may be empty as long as nothing is segmented.
    """

    lowercase: bool = False
    tokenize: str = "none"
    language: str = "en"
    subword: str = "none"
    model: str = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not isinstance(getattr(self, field.name), type(field.default)):
                raise ValueError(f"{field.name} is not a {type(field.default).__name__}")
        if self.tokenize not in TOKENIZERS or self.subword not in SUBWORDS:
            raise ValueError(f"tokenize '{self.tokenize}' or subword '{self.subword}' is unknown")
        if not re.fullmatch(r"[\w-]{0,40}", self.language):
            raise ValueError(f"language {self.language[:40]!r} is not the code of one")

    def check(self) -> None:
        """See that there is a whole subword model where one is needed.

        Raises:
            ValueError: there is not.
        """
        if self.subword in _MODELS:
            if not self.model:
                raise ValueError("its subword model is empty")
            _MODELS[self.subword](self.model)

    def encode(self, line: str) -> str:
        """Raw text to tokens, separated by single spaces and free of any other whitespace."""
        return self.segment(self.prepare(line))

    def prepare(self, line: str) -> str:
        """The steps before the subword model, which is learned from their result."""
        words = " ".join(line.split())
        if self.lowercase:
            words = words.lower()
        if self.tokenize == "moses":
            # Without escape, so that no &apos; and the like enters the vocabulary.
            tokens = _moses_tokenizer(self.language).tokenize(words, escape=False)
            words = " ".join(" ".join(tokens).split())
        if self.subword in _RESERVED:
            words = _RESERVED[self.subword].escape(words)
        return words

    def segment(self, words: str) -> str:
        """The subword model on the result of `prepare`."""
        if self.subword == "sentencepiece":
            words = " ".join(_sentencepiece(self.model).encode(words, out_type=str))
        elif self.subword == "bpe":
            subwords = _bpe(self.model)
            words = subwords.segment(words)
            if len(subwords.cache) > MOST_CACHED:  # it keeps every word it has seen
                subwords.cache.clear()
        return re.sub(r"(?<!\S)" + SPECIAL_TOKEN, r"\\\1", words)

    def decode(self, tokens: str) -> str:
        """Tokens to text; a word that the tokens break off in the middle stays as far as it goes."""
        words = re.sub(r"(?<!\S)\\" + SPECIAL_TOKEN, r"\1", " ".join(tokens.split()))
        if self.subword == "sentencepiece":
            words = words.replace(" ", "").replace(SPACE_MARKER, " ").strip()
        elif self.subword == "bpe":
            words = re.sub(f"{JOIN_MARKER}( |$)", "", words)
        if self.subword in _RESERVED:
            words = _RESERVED[self.subword].unescape(words)
        if self.tokenize == "moses":
            words = _moses_detokenizer(self.language).detokenize(words.split(), unescape=False)
        return words

    def sentence(self, line: str) -> Sentence:
        """Raw text to tokens, with the words that they belong to."""
        tokens = self.encode(line).split()
        words = self.words(tokens)
        parts: list[list[str]] = [[] for _ in range(words[-1] + 1 if words else 0)]
        for token, word in zip(tokens, words, strict=True):
            parts[word].append(token)
        return Sentence(tokens, words, [self.decode(" ".join(part)) for part in parts])

    def pieces(self, sentence: Sentence) -> list[str]:
        """Tokens for display: without subword markers, with a leading dot where a word continues."""
        markers = {"sentencepiece": (SPACE_MARKER, ""), "bpe": ("", JOIN_MARKER)}
        first, last = markers.get(self.subword, ("", ""))
        continues = [False, *(one == other for one, other in itertools.pairwise(sentence.words))]
        return [
            "·" * joined + (token.removeprefix(first).removesuffix(last) or token)
            for token, joined in zip(sentence.tokens, continues, strict=True)
        ]

    def words(self, tokens: Sequence[str]) -> list[int]:
        """Index of the word that each token belongs to."""
        if self.subword == "sentencepiece":
            # A model may write a marker alone and then a word with its own: one word, as decoded.
            before = ["", *tokens[:-1]]
            starts = [
                i == 0 or (token.startswith(SPACE_MARKER) and before[i] != SPACE_MARKER)
                for i, token in enumerate(tokens)
            ]
        elif self.subword == "bpe":
            starts = [not token.endswith(JOIN_MARKER) for token in ["", *tokens[:-1]]]
        else:
            starts = [True] * len(tokens)
        return [number - 1 for number in itertools.accumulate(starts)]


@dataclasses.dataclass(frozen=True)
class TextProcessing:
    """Both sides of a translation model."""

    src: TextSide
    tgt: TextSide

    def to_dict(self) -> dict[str, Any]:
        """Strings, booleans, numbers and dictionaries only, which `torch.load` reads without trust."""
        return {"version": FORMAT_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Any, place: str = "") -> "TextProcessing":
        """The inverse of `to_dict`.

        Args:
            values: of `to_dict`.
            place: the file they come from, which an error names.

        Raises:
            UserError: the values are of another version, have a damaged subword model, or are no text
                processing at all.
        """
        try:
            return cls._from_dict(values)
        except UserError as error:
            raise UserError(f"{place}: {error}" if place else str(error)) from None

    @classmethod
    def _from_dict(cls, values: Any) -> "TextProcessing":
        if not isinstance(values, dict) or "version" not in values:
            raise UserError("not a text processing description as onmt_preprocess writes it")
        if values["version"] != FORMAT_VERSION:
            raise UserError(
                f"text processing of format version {values['version']}, but this release reads "
                f"version {FORMAT_VERSION} only; use the release that wrote it, or preprocess again"
            )
        try:
            found = cls(TextSide(**values["src"]), TextSide(**values["tgt"]))
            found.src.check()
            found.tgt.check()
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"damaged text processing description ({error}); preprocess again") from None
        return found

    def to_json(self) -> str:
        """`to_dict` as the text of a file."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n"

    def save(self, path: str) -> None:
        """Write a JSON file, whole or not at all."""
        with atomic_write(path) as file:
            file.write(self.to_json())

    @classmethod
    def load(cls, path: str) -> "TextProcessing":
        """Read what `save` wrote; any problem is a `UserError` that names the file."""
        try:
            with open(path, encoding="utf-8") as file:
                values = json.load(file)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError:
            raise UserError(f"{path}: not a JSON file as onmt_preprocess writes it") from None
        return cls.from_dict(values, path)


class Subwords(NamedTuple):
    """A subword model with an automatically chosen size."""

    model: str  # of a `TextSide`
    size: int  # number of subwords, single characters included
    reason: str  # why this size was chosen


def learn_subwords(kind: str, lines: Sequence[str], vocab_size: int, name: str = "training text") -> str:
    """Learn a subword model: the `model` of a `TextSide`.

    Args:
        kind: one of `SUBWORDS`.
        lines: results of `TextSide.prepare`.
        vocab_size: number of subwords, single characters included.
        name: name of the text in error messages.

    Raises:
        UserError: the text does not allow so many subwords, or has more characters than that.
    """
    if kind == "none":
        return ""
    least = _fewest(kind, lines)
    if vocab_size < least:
        raise UserError(
            f"-vocab_size {vocab_size} is less than the characters of the {name} need (at least {least}); "
            f"use -vocab_size {least} or more"
        )
    model, most = _LEARNERS[kind](lines, vocab_size, name)
    if most < least:
        raise UserError(f"the {name} has no pair of characters twice to learn from; use -subword none")
    if most < vocab_size:
        raise UserError(
            f"-vocab_size {vocab_size} is more than the {name} allows (at most {most}); "
            f"use -vocab_size {most}"
        )
    return model


def learn_suitable_subwords(kind: str, lines: Sequence[str], name: str = "training text") -> Subwords:
    """Learn a subword model whose size is chosen by the size of the text.

    The size is one subword per `WORDS_A_SUBWORD` running words, at most `VOCAB_SIZE`, and at least
    `BEYOND_CHARACTERS` more than the characters; or all subwords of the text, if these are fewer.

    Args:
        kind: "sentencepiece" or "bpe".
        lines: results of `TextSide.prepare`.
        name: name of the text in error messages.
    """
    by_words = sum(len(line.split()) for line in lines) // WORDS_A_SUBWORD
    by_characters = _fewest(kind, lines) + BEYOND_CHARACTERS
    wanted = max(min(by_words, VOCAB_SIZE), by_characters)
    model, size = _LEARNERS[kind](lines, wanted, name)
    if size < wanted:
        reason = "all that the training text has"
    elif wanted == by_characters:
        reason = f"its characters and {BEYOND_CHARACTERS} more"
    elif by_words > VOCAB_SIZE:
        reason = "the most that are chosen"
    else:
        reason = f"one per {WORDS_A_SUBWORD} words of training text"
    return Subwords(model, size, reason)


def learn_merges(lines: Sequence[str], merges: int, name: str = "training text") -> str:
    """Learn a byte pair encoding with a given number of merges: the `model` of a `TextSide`.

    Raises:
        UserError: the text has fewer pairs to merge.
    """
    model, learned = _merges(lines, merges)
    if learned < merges:
        way_out = f"use -merges {learned}" if learned else "use -subword none"
        raise UserError(f"-merges {merges} is more than the {name} allows (at most {learned}); {way_out}")
    return model


def moses_knows(language: str) -> bool:
    """Whether moses has rules for a language; for any other it uses the English ones."""
    from sacremoses.corpus import NonbreakingPrefixes

    return language in NonbreakingPrefixes().available_langs


def _fewest(kind: str, lines: Sequence[str]) -> int:
    """Smallest model size of a text: all of its characters, and one more."""
    if kind == "bpe":
        return _bpe_characters(lines) + 1
    characters = {" "}  # a model has its marker, whether or not there is a space
    for line in lines:
        characters.update(line)
    return len(characters) + 1  # the unknown one


def _bpe_characters(lines: Sequence[str]) -> int:
    """Number of characters; subword-nmt distinguishes those inside a word from those at its end."""
    words = {word for line in lines for word in line.split()}
    return len({c for word in words for c in word[:-1]}) + len({word[-1] for word in words})


def _learn_sentencepiece(lines: Sequence[str], vocab_size: int, name: str) -> tuple[str, int]:
    """A model of `vocab_size` subwords, or of fewer if the text has no more; and its size."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=1 << 24,  # bytes; by default longer lines than 4,192 are left out
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # the same model on every machine
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(f"sentencepiece cannot learn from the {name}: {error}") from None
    learned = base64.b64encode(model.getvalue()).decode("ascii")
    return learned, _sentencepiece(learned).get_piece_size()


def _learn_bpe(lines: Sequence[str], vocab_size: int, name: str) -> tuple[str, int]:
    """The same with subword-nmt, which may find nothing to merge."""
    characters = _bpe_characters(lines)
    model, learned = _merges(lines, vocab_size - characters)
    return model if learned else NO_MERGES, characters + learned


_LEARNERS = {"sentencepiece": _learn_sentencepiece, "bpe": _learn_bpe}


def _merges(lines: Sequence[str], number: int) -> tuple[str, int]:
    """A byte pair encoding, and its number of merges."""
    model = io.StringIO()
    if any(len(word) > 1 for line in lines for word in line.split()):  # learn_bpe cannot do without a pair
        with contextlib.redirect_stderr(io.StringIO()):
            learn_bpe(lines, model, number)
    return model.getvalue(), max(0, model.getvalue().count("\n") - 1)  # the first line is a version number


# Large objects are built on first use and are not part of `TextSide`, which remains plain data that can be
# pickled, compared and stored.


@functools.lru_cache(maxsize=8)
def _sentencepiece(model: str) -> Any:
    try:
        content = base64.b64decode(model, validate=True)
        specs = _protobuf_fields(content, _NORMALIZER_SPEC)
        if any(one for spec in specs for one in _protobuf_fields(spec, _CHARACTER_MAP)):
            # Ours do not, and such a map can make a million characters out of one.
            raise ValueError("its sentencepiece model replaces characters, which is not supported")
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except (RuntimeError, IndexError, binascii.Error):  # its own, and of what is no such model
        raise ValueError("its sentencepiece model cannot be read") from None


_NORMALIZER_SPEC, _CHARACTER_MAP = 3, 2  # numbers of fields in sentencepiece's ModelProto and NormalizerSpec


def _protobuf_fields(message: bytes, wanted: int) -> list[bytes]:
    """All values of a length-delimited field of a Protocol Buffers message.

    Raises:
        IndexError: this is not such a message.
    """
    found, position = [], 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position, value, shift = position + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while position < len(message):
        field, kind = divmod(number(), 8)
        if kind == 0:
            number()
            continue
        length = number() if kind == 2 else {1: 8, 5: 4}.get(kind, len(message))
        if position + length > len(message):
            raise IndexError
        if field == wanted and kind == 2:
            found.append(message[position : position + length])
        position += length
    return found


@functools.lru_cache(maxsize=8)
def _bpe(model: str) -> Any:
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            found = BPE(io.StringIO(model), merges=0 if model == NO_MERGES else -1)  # -1: all
            found.segment("ab")  # merges of an unknown version fail only at a word
            return found
    # subword-nmt ends the program after a message of its own
    except (SystemExit, ValueError, IndexError, NotImplementedError):
        reason = " ".join(message.getvalue().split()).removeprefix("Error: ") or "no version number"
        raise ValueError(f"its merges cannot be read: {reason:.200}") from None


_MODELS = {"sentencepiece": _sentencepiece, "bpe": _bpe}


@functools.lru_cache(maxsize=8)
def _moses_tokenizer(language: str) -> Any:
    from sacremoses import MosesTokenizer  # slow to import

    return MosesTokenizer(language)


@functools.lru_cache(maxsize=8)
def _moses_detokenizer(language: str) -> Any:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(language)

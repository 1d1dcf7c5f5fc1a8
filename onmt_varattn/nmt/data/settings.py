"""Settings and parser of onmt_preprocess."""

from dataclasses import dataclass
from typing import Any

from onmt_varattn.nmt.text import SUBWORDS, TOKENIZERS, VOCAB_SIZE, WORDS_A_SUBWORD
from onmt_varattn.utils.cli import Parser
from onmt_varattn.utils.settings import Settings, add_to, setting


def _text(part: str, side: str, **kwargs: Any) -> Any:
    return setting(help=f"Raw {part} text, {side} side: UTF-8, one sentence per line.", **kwargs)


def _alignments(name: str) -> Any:
    return setting(
        None,
        help=f"Word alignments of -{name}_src and -{name}_tgt in Pharaoh format (0-0 1-2 ...), for "
        "onmt_train -posterior external. Pairs without links are dropped.",
    )


def _language(side: str, option: str) -> Any:
    return setting(
        None,
        help=f"Language of the {side} side for moses, such as de. Default: the extension of -train_{option}.",
    )


def _length(side: str) -> Any:
    return setting(
        125,
        at_least=1,
        help=f"Drop training and validation pairs whose {side} has more tokens after segmentation. Pairs "
        "with a blank side are dropped too; test sets keep every line.",
    )


@dataclass(kw_only=True)
class CorpusSettings(Settings):
    """The text files."""

    title = "Data"
    train_src: str = _text("training", "source")
    train_tgt: str = _text("training", "target")
    valid_src: str = _text("validation", "source")
    valid_tgt: str = _text("validation", "target")
    test_src: str | None = _text("test", "source", default=None)
    test_tgt: str | None = _text("test", "target", default=None)


@dataclass(kw_only=True)
class TextSettings(Settings):
    """Tokenisation, subwords and vocabularies."""

    title = "Text"
    subword: str = setting(
        "sentencepiece",
        choices=SUBWORDS,
        help="Subword model, learned from the training text: sentencepiece (byte pair encoding on raw text), "
        "bpe (subword-nmt, '@@' marks) or none (whole words).",
    )
    vocab_size: int | None = setting(
        None,
        at_least=1,
        help="Number of subwords, for both sides together with -share_vocab or -joint_subwords, else per "
        f"side. Default: one per {WORDS_A_SUBWORD} words of the training text, at most {VOCAB_SIZE:,}, at "
        "least one per character, and no more than the text allows. With -subword none: number of words, the "
        f"most frequent ones; {VOCAB_SIZE:,} by default.",
    )
    merges: int | None = setting(
        None, at_least=1, help="Number of merges of -subword bpe, instead of -vocab_size."
    )
    share_vocab: bool = setting(False, help="One subword model and one vocabulary for both sides.")
    joint_subwords: bool = setting(
        False, help="One subword model, learned from both sides, but one vocabulary per side."
    )
    lowercase: bool = setting(False, help="Lower-case the text.")
    tokenize: str = setting(
        "none",
        choices=TOKENIZERS,
        help="Tokeniser before the subword model: moses, or none for text that is already tokenised or that "
        "the subword model reads raw.",
    )
    src_lang: str | None = _language("source", "src")
    tgt_lang: str | None = _language("target", "tgt")


@dataclass(kw_only=True)
class LinkSettings(Settings):
    """Word alignments of the corpora."""

    title = "Alignments"
    train_align: str | None = _alignments("train")
    valid_align: str | None = _alignments("valid")
    align_units: str = setting(
        "words",
        choices=["words", "subwords"],
        help="Units of the alignments: words after -tokenize, whose links then apply to all of their "
        "subwords, or subwords.",
    )


@dataclass(kw_only=True)
class FilterSettings(Settings):
    """Sentence pairs that are dropped."""

    title = "Filtering"
    src_seq_length: int = _length("source")
    tgt_seq_length: int = _length("target")


@dataclass(kw_only=True)
class PreprocessSettings(FilterSettings, LinkSettings, TextSettings, CorpusSettings):
    """All settings of onmt_preprocess."""

    title = "Output"
    save_data: str = setting(
        help="Prefix of all output files, such as data/run; onmt_train reads data/run.yaml."
    )
    overwrite: bool = setting(False, help="Replace existing files.")
    num_threads: int = setting(
        0, at_least=0, help="Number of worker processes, 0 for one per core. It does not change the result."
    )


def preprocess_parser() -> Parser:
    """All options of onmt_preprocess."""
    parser = Parser(description="Tokenise, learn and apply subwords, filter, and build vocabularies.")
    group = parser.add_argument_group("Configuration")
    for name, kind, help_text in (
        ("config", "is_config_file_arg", "Path of a YAML file of options."),
        ("save_config", "is_write_out_config_file_arg", "Path to which the options are written as YAML."),
    ):
        group.add_argument(f"-{name}", f"--{name}", help=help_text, **{kind: True})
    add_to(parser, PreprocessSettings)
    return parser

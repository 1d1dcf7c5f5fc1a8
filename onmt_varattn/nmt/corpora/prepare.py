"""Preparation of public corpora for `onmt_train`."""

import contextlib
import dataclasses
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sacremoses

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.corpora.cleaning import Cleaning, Pair, Tokenizer, tokenized
from onmt_varattn.nmt.corpora.download import fetch
from onmt_varattn.nmt.corpora.reading import FORMS, corpus_lines
from onmt_varattn.nmt.corpora.unpack import unpack
from onmt_varattn.utils.cli import logger
from onmt_varattn.utils.files import atomic_write, check_writable
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.settings import Settings, setting
from onmt_varattn.utils.stages import Stages

SPLITS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True)
class Archive:
    """A published archive.

    Args:
        url: address.
        checksum: published checksum as algorithm:hexadecimal; None if none is known.
        path: local path; by default in the output directory.
    """

    url: str
    checksum: str | None = None
    path: str | None = None


@dataclasses.dataclass(frozen=True)
class Text:
    """Two parallel files of an archive."""

    archive: str  # name of the archive in the corpus
    src: str
    tgt: str
    form: str  # one of `FORMS`


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Where the splits of a corpus come from, and what becomes of them.

    Args:
        name: of the directory it goes to.
        src, tgt: languages.
        archives: by name.
        train: cleaned.
        valid: not cleaned; empty if held out of the training text.
        test: not cleaned.
        held_out: if not 0, each pair of the cleaned training text whose number this divides is
            validation text.
        lowercase: whether case is lost.
        pairs: in each split, as others have counted them.
    """

    name: str
    src: str
    tgt: str
    archives: dict[str, Archive]
    train: tuple[Text, ...]
    valid: tuple[Text, ...]
    test: tuple[Text, ...]
    held_out: int = 0
    lowercase: bool = False
    pairs: dict[str, int] = dataclasses.field(default_factory=dict)

    def texts(self) -> tuple[Text, ...]:
        """The texts of all splits."""
        return self.train + self.valid + self.test


@dataclasses.dataclass(kw_only=True)
class PrepareSettings(Settings):
    """Settings that all corpora have."""

    output: str = setting(
        help="Directory for everything; onmt_train reads data.yaml there. A run that was stopped continues "
        "where it was."
    )
    merges: int = setting(
        32000,
        help="Merges of byte pair encoding, learned from both sides of the training text together.",
        at_least=1,
    )
    share_vocab: bool = setting(
        False, help="One vocabulary for both sides; without it, one subword model but two vocabularies."
    )
    max_length: int = setting(
        Cleaning.max_length, help="Maximum number of tokens per side of a training pair.", at_least=1
    )
    max_ratio: float = setting(
        Cleaning.max_ratio,
        help="Maximum ratio of the lengths of the two sides of a training pair, in tokens.",
        at_least=1,
    )
    num_threads: int = setting(
        0, help="Worker processes, 0: one per core; the result is the same for any number.", at_least=0
    )


def prepare(corpus: Corpus, opt: PrepareSettings, preprocess: Callable[[Sequence[str]], Any]) -> None:
    """Run all stages that are not finished.

    Args:
        corpus: the corpus.
        opt: settings.
        preprocess: `onmt_preprocess`.
    """
    paths = {
        name: archive.path or os.path.join(opt.output, os.path.basename(archive.url))
        for name, archive in corpus.archives.items()
    }
    _check(corpus, opt, paths)
    stages = Stages(os.path.join(opt.output, "stages.json"))
    for name, archive in corpus.archives.items():
        _fetch(stages, archive, paths[name], opt.output)
    for name, path in paths.items():
        _unpack(stages, corpus, name, path, opt.output)
    counts = {}
    for split in SPLITS:
        if getattr(corpus, split):
            counts.update(_tokenize(stages, corpus, opt, split))
    _encode(stages, corpus, opt, preprocess)
    _report(corpus, opt, counts)


def _check(corpus: Corpus, opt: PrepareSettings, paths: dict[str, str]) -> None:
    written = {os.path.realpath(path) for split in SPLITS for path in _files(corpus, opt, split)}
    for path in paths.values():
        if os.path.realpath(path) in written:
            raise UserError(f"{path} is an input file and would be written over; change -output")
    check_writable(os.path.join(opt.output, "stages.json"))


def _files(corpus: Corpus, opt: PrepareSettings, split: str) -> list[str]:
    """The tokenised text of a split."""
    return [os.path.join(opt.output, f"{split}.{language}") for language in (corpus.src, corpus.tgt)]


def _fetch(stages: Stages, archive: Archive, path: str, output: str) -> None:
    record = os.path.join(output, f"{os.path.basename(path)}.sha256")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    stages.run(
        f"archive {path}",
        [],
        [path],
        {"url": archive.url, "checksum": archive.checksum},
        lambda: fetch(archive.url, path, archive.checksum, record),
    )


def _unpack(stages: Stages, corpus: Corpus, name: str, path: str, output: str) -> None:
    members = [side for text in corpus.texts() if text.archive == name for side in (text.src, text.tgt)]
    directory = os.path.join(output, "original")
    files = [os.path.join(directory, member) for member in members]
    stages.run(f"files of {path}", [path], files, {}, lambda: unpack(path, members, directory))


def _tokenize(stages: Stages, corpus: Corpus, opt: PrepareSettings, split: str) -> dict[str, int]:
    """Write the text of a split and of what is held out of it; returns the number of pairs of each."""
    splits = ["train", "valid"] if split == "train" and corpus.held_out else [split]
    outputs = [_files(corpus, opt, name) for name in splits]
    sources = [
        (_original(opt, text.src), _original(opt, text.tgt), FORMS[text.form])
        for text in getattr(corpus, split)
    ]
    tokenizer = Tokenizer(corpus.src, corpus.tgt, corpus.lowercase)
    cleaning = Cleaning(opt.max_length, opt.max_ratio) if split == "train" else None
    names = " and ".join(splits)
    found = stages.run(
        f"text of {names}",
        [path for *sides, _ in sources for path in sides],
        [path for pair in outputs for path in pair],
        {
            **dataclasses.asdict(tokenizer),
            "sacremoses": sacremoses.__version__,
            "held_out": corpus.held_out,
            "cleaning": dataclasses.asdict(cleaning) if cleaning else None,
        },
        lambda: _write(sources, outputs, tokenizer, cleaning, corpus.held_out, opt.num_threads),
    )
    losses = ", ".join(f"{count:,} {reason}" for reason, count in found["dropped"].items())
    print(f"{names}: {found['read']:,} pairs read, dropped: {losses or 'none'}", flush=True)
    return dict(zip(splits, found["written"], strict=True))


def _original(opt: PrepareSettings, member: str) -> str:
    return os.path.join(opt.output, "original", member)


Source = tuple[str, str, Callable[[Iterator[str]], Iterator[str]]]  # two files and their form


def _write(
    sources: Sequence[Source],
    outputs: Sequence[Sequence[str]],
    tokenizer: Tokenizer,
    cleaning: Cleaning | None,
    held_out: int,
    processes: int,
) -> dict[str, Any]:
    """Tokenise and clean to one pair of files, or to two with every `held_out`-th pair in the second."""
    total = sum(_count(*source) for source in sources)
    written, dropped = [0] * len(outputs), Counter[str]()
    with contextlib.ExitStack() as stack:
        files = [[stack.enter_context(atomic_write(path)) for path in pair] for pair in outputs]
        for pair in tokenized(_pairs(sources), tokenizer, processes, total, "tokenizing"):
            blank = "" if all(pair) else "blank"  # which no model can be tested on
            if reason := cleaning.reason(pair) if cleaning else blank:
                dropped[reason] += 1
                continue
            which = int(len(outputs) == 2 and (sum(written) + 1) % held_out == 0)
            written[which] += 1
            for file, line in zip(files[which], pair, strict=True):
                file.write(f"{line}\n")
    return {"read": total, "dropped": dict(sorted(dropped.items())), "written": written}


def _pairs(sources: Sequence[Source]) -> Iterator[Pair]:
    for src, tgt, form in sources:
        yield from zip(form(corpus_lines(src)), form(corpus_lines(tgt)), strict=True)


def _count(src: str, tgt: str, form: Callable[[Iterator[str]], Iterator[str]]) -> int:
    """Number of sentence pairs of two files."""
    counts = []
    for path in (src, tgt):
        lines = progress(form(corpus_lines(path)), desc=f"counting {path}", unit="lines")
        counts.append(sum(1 for _ in lines))
    if counts[0] != counts[1] or not counts[0]:
        raise UserError(
            f"{src} has {counts[0]:,} sentences and {tgt} has {counts[1]:,}; this is not the published corpus"
        )
    return counts[0]


def _encode(
    stages: Stages, corpus: Corpus, opt: PrepareSettings, preprocess: Callable[[Sequence[str]], Any]
) -> None:
    """Subwords and vocabularies, by `onmt_preprocess`."""
    texts = {split: _files(corpus, opt, split) for split in SPLITS}
    data = os.path.join(opt.output, "data")
    words = [
        word
        for split, files in texts.items()
        for side, path in zip(("src", "tgt"), files, strict=True)
        for word in (f"-{split}_{side}", path)
    ]
    words += ["-tokenize", "none", "-subword", "bpe", "-merges", str(opt.merges), "-save_data", data]
    words += ["-share_vocab" if opt.share_vocab else "-joint_subwords", "-overwrite"]
    words += ["-lowercase"] if corpus.lowercase else []
    vocabularies = ["vocab"] if opt.share_vocab else ["vocab.src", "vocab.tgt"]
    outputs = [f"{split}.{side}" for split in SPLITS for side in ("src", "tgt")]
    stages.run(
        f"onmt_preprocess {shlex.join(words)}",
        [path for files in texts.values() for path in files],
        [f"{data}.{name}" for name in [*outputs, *vocabularies, "text.json", "yaml"]],
        {},
        lambda: preprocess([*words, "-num_threads", str(opt.num_threads)]),
    )


def _report(corpus: Corpus, opt: PrepareSettings, counts: dict[str, int]) -> None:
    for split, count in counts.items():
        with open(os.path.join(opt.output, f"data.{split}.src"), "rb") as file:
            kept = sum(1 for _ in file)
        print(f"{split}: {count:,} pairs of tokenized text, {kept:,} of them encoded in data.{split}.*")
    for split, expected in corpus.pairs.items():
        if counts[split] != expected:
            logger.warning(
                f"warning: {split} has {counts[split]:,} pairs of tokenized text; the public recipe with "
                f"Moses's own tokenizer has {expected:,}, so results are not quite comparable"
            )
    print(f"ready: onmt_train -config {shlex.quote(os.path.join(opt.output, 'data.yaml'))} ...")

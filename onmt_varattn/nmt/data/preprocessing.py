"""Preprocessing: from parallel text files to the files that `onmt_train` reads.

The whole corpus is held in memory, first raw and then segmented; all files are written at the end.
"""

import dataclasses
import itertools
import multiprocessing
import os
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from onmt_varattn.analysis.alignment import Links, parse_pharaoh
from onmt_varattn.errors import UserError, warn
from onmt_varattn.nmt.data.settings import PreprocessSettings, preprocess_parser
from onmt_varattn.nmt.text.processing import (
    VOCAB_SIZE,
    Subwords,
    TextProcessing,
    TextSide,
    learn_merges,
    learn_subwords,
    learn_suitable_subwords,
    moses_knows,
)
from onmt_varattn.nmt.text.vocabulary import unknown_share
from onmt_varattn.utils import settings
from onmt_varattn.utils.cli import logger
from onmt_varattn.utils.files import check_writable, write_results
from onmt_varattn.utils.progress import Progress, progress
from onmt_varattn.utils.reading import check_parallel, read_lines, read_parallel

SIDES = {"src": "source", "tgt": "target"}
PAPER_PAIRS = 100_000  # training pairs from which the paper's model sizes are suggested
CHUNK = 512  # lines per task of a worker process
SWAPPED = 0.25  # difference between the shares of words known to the other side and to a text's own side

Pair = tuple[str, str]


@dataclass
class Split:
    """The sentence pairs of one corpus, and the number of dropped ones."""

    name: str
    pairs: list[Pair]
    read: int
    links: list[Links] | None = None  # alignments of the pairs
    lines: list[int] = dataclasses.field(default_factory=list)  # line numbers of the pairs, from 1
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.lines = self.lines or list(range(1, self.read + 1))

    def drop(self, reasons: dict[str, Callable[[str, str], bool]]) -> None:
        """Drop each pair for the first reason that holds; a test set keeps all lines."""
        if self.name == "test":
            return
        kept = []
        for i, pair in enumerate(self.pairs):
            reason = next((name for name, holds in reasons.items() if holds(*pair)), None)
            if reason is None and self.links is not None and not self.links[i]:
                reason = "without alignment"
            if reason is None:
                kept.append(i)
            else:
                self.dropped[reason] += 1
        self.pairs = [self.pairs[i] for i in kept]
        self.lines = [self.lines[i] for i in kept]
        if self.links is not None:
            self.links = [self.links[i] for i in kept]
        if not kept:
            raise UserError(f"no {self.name} pair is left of {self.read:,} after filtering: {self.losses()}")

    def losses(self) -> str:
        """The dropped pairs by reason, as text."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items()) or "none"

    def side(self, index: int) -> list[str]:
        """All lines of one side, 0 for the source."""
        return [pair[index] for pair in self.pairs]

    def lengths(self) -> str:
        """Mean number of tokens on either side, as text."""
        means = [sum(len(line.split()) for line in self.side(i)) / len(self.pairs) for i in (0, 1)]
        return f"{means[0]:.1f} / {means[1]:.1f}"


def preprocess(args: Sequence[str] | None = None) -> None:
    """Read, tokenise, learn and apply subwords, filter, count, and write."""
    opt = settings.from_options(PreprocessSettings, preprocess_parser().parse_args(args))
    settings.check(opt)
    paths = _output_paths(opt)
    _check(opt, paths)
    splits = [_read(opt, name) for name in ("train", "valid", "test") if getattr(opt, f"{name}_src")]
    train = splits[0]

    text = TextProcessing(_side(opt, "src"), _side(opt, "tgt"))
    _convert(splits, text.src.prepare, text.tgt.prepare, opt.num_threads, "preparing")
    for split in splits:
        split.drop({"blank source": lambda src, tgt: not src, "blank target": lambda src, tgt: not tgt})
    _warn_of_swapped(opt, splits)
    text, sizes = _learn(opt, text, train)
    _convert(splits, text.src.segment, text.tgt.segment, opt.num_threads, "encoding")
    for split in splits:
        _align(split, text, getattr(opt, f"{split.name}_align", None), opt.align_units)
    for split in splits:
        split.drop(
            {
                f"source over -src_seq_length {opt.src_seq_length}": _longer(0, opt.src_seq_length),
                f"target over -tgt_seq_length {opt.tgt_seq_length}": _longer(1, opt.tgt_seq_length),
            }
        )
    vocabularies = _vocabularies(opt, train)
    write_results(_contents(opt, paths, splits, text, vocabularies))
    _report(opt, paths, splits, vocabularies, sizes)


def _longer(index: int, most: int) -> Callable[[str, str], bool]:
    return lambda *pair: pair[index].count(" ") >= most


def _output_paths(opt: PreprocessSettings) -> dict[str, str]:
    """The output files by content; the configuration is last, so that it exists only with all others."""
    names = [f"{name}.{side}" for name in ("train", "valid", "test") for side in SIDES]
    if opt.test_src is None:
        names = names[:4]
    names += ["vocab"] if opt.share_vocab else ["vocab.src", "vocab.tgt"]
    names += [f"{name}.align" for name in ("train", "valid") if getattr(opt, f"{name}_align")]
    return {name: f"{opt.save_data}.{name}" for name in [*names, "text.json", "yaml"]}


def _check(opt: PreprocessSettings, paths: dict[str, str]) -> None:
    """Check settings and files before any work."""
    if opt.merges and opt.vocab_size:
        raise UserError("-merges and -vocab_size both set the number of subwords; give one of them")
    if opt.merges and opt.subword != "bpe":
        raise UserError(f"-merges is for -subword bpe; use -vocab_size with -subword {opt.subword}")
    if opt.joint_subwords and opt.subword == "none":
        raise UserError(
            "-joint_subwords does not go with -subword none, which learns no subwords; leave it out"
        )
    if opt.joint_subwords and opt.share_vocab:
        raise UserError(
            "-share_vocab already has one subword model for both sides; leave out -joint_subwords"
        )
    if (opt.train_align is None) != (opt.valid_align is None):
        raise UserError("-train_align and -valid_align go together; give both")
    if (opt.test_src is None) != (opt.test_tgt is None):
        given, other = ("src", "tgt") if opt.test_src else ("tgt", "src")
        raise UserError(f"-test_{given} is given without -test_{other}; a test set needs both")
    inputs = [getattr(opt, f"{name}_{side}") for name in ("train", "valid", "test") for side in SIDES]
    read = {os.path.realpath(path) for path in [*inputs, opt.train_align, opt.valid_align] if path}
    for path in paths.values():
        if os.path.realpath(path) in read:
            raise UserError(f"{path} is an input file and would be overwritten; change -save_data")
        if os.path.isdir(path) or (os.path.lexists(path) and not opt.overwrite):
            raise UserError(f"{path} exists; use -overwrite to replace it, or change -save_data")
    for path in (paths["yaml"], *paths.values()):
        check_writable(path)


def _read(opt: PreprocessSettings, name: str) -> Split:
    src_path, tgt_path = (getattr(opt, f"{name}_{side}") for side in SIDES)
    pairs = read_parallel(src_path, tgt_path)
    return Split(name, pairs, len(pairs), _read_links(opt, name, src_path, len(pairs)))


def _read_links(opt: PreprocessSettings, name: str, source: str, lines: int) -> list[Links] | None:
    path = getattr(opt, f"{name}_align", None)
    if path is None:
        return None
    links = [parse_pharaoh(line, f"{path}, line {i}") for i, line in enumerate(read_lines(path), 1)]
    check_parallel([source, path], [lines, len(links)])
    return links


def _align(split: Split, text: TextProcessing, path: str | None, units: str) -> None:
    """Convert the links of a split from words to tokens, and check that they fit the sentences."""
    if split.links is None:
        return
    for i, (pair, links) in enumerate(zip(split.pairs, split.links, strict=True)):
        sides = ((text.src, pair[0].split()), (text.tgt, pair[1].split()))
        words = [list(range(len(line))) if units == "subwords" else side.words(line) for side, line in sides]
        for source, target in links:
            if source > words[0][-1] or target > words[1][-1]:
                raise UserError(
                    f"{path}, line {split.lines[i]}: link {source}-{target} is outside of a sentence pair "
                    f"with {words[0][-1] + 1} and {words[1][-1] + 1} {units}, counted from 0 (-align_units)"
                )
        split.links[i] = frozenset(
            (a, b)
            for a, source in enumerate(words[0])
            for b, target in enumerate(words[1])
            if (source, target) in links
        )


def _warn_of_swapped(opt: PreprocessSettings, splits: Sequence[Split]) -> None:
    """Warn if the words of another split are rather those of the other side of the training text."""
    train, *others = splits
    known = [{word for line in train.side(i) for word in line.split()} for i in (0, 1)]
    for split, (i, side) in itertools.product(others, enumerate(SIDES)):
        words = [word for line in split.side(i) for word in line.split()]
        shares = [1 - unknown_share(words, vocabulary) for vocabulary in known]
        if shares[1 - i] - shares[i] > SWAPPED:
            path, sources = getattr(opt, f"{split.name}_{side}"), (opt.train_src, opt.train_tgt)
            warn(
                f"-{split.name}_{side} {path}: {shares[i]:.0%} of its words are in {sources[i]}, and "
                f"{shares[1 - i]:.0%} in {sources[1 - i]}; are source and target swapped?"
            )


def _side(opt: PreprocessSettings, side: str) -> TextSide:
    """Text processing of one side, without its subword model."""
    path = getattr(opt, f"train_{side}")
    language = getattr(opt, f"{side}_lang") or os.path.splitext(path)[1][1:]
    if opt.tokenize == "moses" and not moses_knows(language):
        logger.warning(
            f"warning: moses has no rules for language '{language}' of {path} and uses the English ones; "
            f"-{side}_lang sets the language"
        )
    return TextSide(opt.lowercase, opt.tokenize, language, opt.subword)


def _learn(opt: PreprocessSettings, text: TextProcessing, train: Split) -> tuple[TextProcessing, list[int]]:
    """Learn the subword models from the training pairs alone.

    Returns:
        The text processing with its models, and the number of subwords per side (0 if unknown).
    """
    if opt.subword == "none":
        return text, [0, 0]
    print(f"learning {opt.subword} subwords from {len(train.pairs):,} training pairs", flush=True)
    if opt.share_vocab or opt.joint_subwords:
        both = list(itertools.chain(train.side(0), train.side(1)))
        learned = [_subword_model(opt, both, "training text")]
    else:
        learned = [
            _subword_model(opt, train.side(i), f"{meaning} training text")
            for i, meaning in enumerate(SIDES.values())
        ]
    if learned[0].reason:
        print(_sizes(learned), flush=True)
    src, tgt = learned[0], learned[-1]
    text = TextProcessing(
        dataclasses.replace(text.src, model=src.model), dataclasses.replace(text.tgt, model=tgt.model)
    )
    return text, [src.size, tgt.size]


def _subword_model(opt: PreprocessSettings, lines: Sequence[str], name: str) -> Subwords:
    """The subword model of a text, with the reason of its size unless an option sets that."""
    if opt.merges:
        return Subwords(learn_merges(lines, opt.merges, name), size=0, reason="")
    if opt.vocab_size:
        return Subwords(learn_subwords(opt.subword, lines, opt.vocab_size, name), opt.vocab_size, reason="")
    return learn_suitable_subwords(opt.subword, lines, name)


def _sizes(chosen: Sequence[Subwords]) -> str:
    """The number of subwords that was chosen for both sides together, or per side, with the reason."""
    other = "set -vocab_size for another number"
    first = chosen[0]
    if all((found.size, found.reason) == (first.size, first.reason) for found in chosen):
        where = "for both sides" if len(chosen) == 1 else "on each side"
        return f"subwords: {first.size:,} {where} ({first.reason}; {other})"
    sides = [
        f"{found.size:,} on the {meaning} side ({found.reason})"
        for found, meaning in zip(chosen, SIDES.values(), strict=True)
    ]
    return f"subwords: {', '.join(sides)}; {other}"


def _convert(
    splits: Iterable[Split], src: Callable[[str], str], tgt: Callable[[str], str], processes: int, doing: str
) -> None:
    """Apply functions to all source and target lines of the splits."""
    splits = list(splits)
    lines = sum(2 * len(split.pairs) for split in splits)
    with progress(total=lines, desc=f"{doing} text", unit="lines") as bar:
        for split in splits:
            sides = [_map(convert, split.side(i), processes, bar) for i, convert in enumerate((src, tgt))]
            split.pairs = list(zip(*sides, strict=True))


def _map(convert: Callable[[str], str], lines: Sequence[str], processes: int, bar: Progress) -> list[str]:
    """Apply `convert` to every line, in order."""
    processes = processes or os.cpu_count() or 1
    if processes == 1 or len(lines) <= CHUNK:
        return _counted(map(convert, lines), bar)
    with multiprocessing.Pool(processes, _start_worker, (convert,)) as pool:
        return _counted(pool.imap(_work, lines, CHUNK), bar)


def _counted(lines: Iterable[str], bar: Progress) -> list[str]:
    found = []
    for line in lines:
        found.append(line)
        bar.update()
    return found


_worker: Callable[[str], str]


def _start_worker(convert: Callable[[str], str]) -> None:
    """Set the function of a worker process once, since it contains the subword model."""
    global _worker
    _worker = convert
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C


def _work(line: str) -> str:
    return _worker(line)


def _vocabularies(opt: PreprocessSettings, train: Split) -> list[dict[str, int]]:
    """Token counts of source and target, the most frequent first; the same object twice if shared."""
    counts = [Counter(token for line in train.side(i) for token in line.split()) for i in (0, 1)]
    if opt.share_vocab:
        counts = [counts[0] + counts[1]] * 2
    most = (opt.vocab_size or VOCAB_SIZE) if opt.subword == "none" else None
    return [dict(sorted(count.items(), key=lambda item: (-item[1], item[0]))[:most]) for count in counts]


def _contents(
    opt: PreprocessSettings,
    paths: dict[str, str],
    splits: Iterable[Split],
    text: TextProcessing,
    vocabularies: list[dict[str, int]],
) -> dict[str, str]:
    """The content of every file by path, in the order of `paths`."""
    content = {
        "text.json": text.to_json(),
        "yaml": yaml.safe_dump(_config(opt, paths, vocabularies), sort_keys=False, allow_unicode=True),
    }
    for i, side in enumerate(SIDES):
        vocab = "vocab" if opt.share_vocab else f"vocab.{side}"
        content[vocab] = "".join(f"{token}\t{count}\n" for token, count in vocabularies[i].items())
        for split in splits:
            content[f"{split.name}.{side}"] = "".join(f"{line}\n" for line in split.side(i))
    for split in splits:
        if split.links is not None:
            content[f"{split.name}.align"] = "".join(
                " ".join(f"{a}-{b}" for a, b in sorted(links)) + "\n" for links in split.links
            )
    return {path: content[name] for name, path in paths.items()}


def _config(
    opt: PreprocessSettings, paths: dict[str, str], vocabularies: list[dict[str, int]]
) -> dict[str, Any]:
    """The configuration of `onmt_train`."""
    data = {}
    for corpus, name in {"corpus_1": "train", "valid": "valid"}.items():
        files = {"path_src": paths[f"{name}.src"], "path_tgt": paths[f"{name}.tgt"]}
        if getattr(opt, f"{name}_align"):
            files["path_align"] = paths[f"{name}.align"]
        data[corpus] = {**files, "weight": 1, "transforms": []}
    config: dict[str, Any] = {"save_data": opt.save_data, "text_processing": paths["text.json"], "data": data}
    for side, vocabulary in zip(SIDES, vocabularies, strict=True):
        config[f"{side}_vocab"] = paths["vocab" if opt.share_vocab else f"vocab.{side}"]
        config[f"{side}_vocab_size"] = len(vocabulary)  # by default onmt_train reads 50,000
    if opt.share_vocab:
        config["share_vocab"] = True
    return config


def _vocabulary_size(opt: PreprocessSettings, found: int, subwords: int) -> str:
    """The size of a vocabulary, with the number that -vocab_size or the subword model would allow."""
    size = f"{found:,} tokens" + (" (shared)" if opt.share_vocab else "")
    if opt.subword == "none" and found < (opt.vocab_size or 0):
        return f"{size} (-vocab_size {opt.vocab_size:,}, but the training text has no more distinct words)"
    return f"{size} of {subwords:,} subwords" if found < subwords else size


def _report(
    opt: PreprocessSettings,
    paths: dict[str, str],
    splits: Sequence[Split],
    vocabularies: list[dict[str, int]],
    sizes: Sequence[int],
) -> None:
    train, valid, *_ = splits
    for split in splits:
        print(
            f"{split.name}: {split.read:,} pairs read, {len(split.pairs):,} kept, dropped: {split.losses()}"
        )
        print(f"{split.name}: mean length {split.lengths()} tokens (source / target)")
    for i, meaning in enumerate(SIDES.values()):
        tokens = [token for line in valid.side(i) for token in line.split()]
        unknown = sum(token not in vocabularies[i] for token in tokens)
        print(
            f"{meaning} vocabulary: {_vocabulary_size(opt, len(vocabularies[i]), sizes[i])}; "
            f"unknown in valid: {unknown:,} of {len(tokens):,} ({unknown / len(tokens):.2%})"
        )
    if any(len(found) < size for found, size in zip(vocabularies, sizes, strict=True)):
        print(
            "note: subwords that do not occur in the segmented training text, such as parts of longer "
            "subwords, are not in the vocabulary"
        )
    print("written: " + " ".join(paths.values()))
    config, model = shlex.quote(paths["yaml"]), shlex.quote(f"{opt.save_data}.model")
    posterior = "-posterior external" if opt.train_align else "-posterior_rnn brnn"
    preset = "paper" if len(train.pairs) >= PAPER_PAIRS else "small"
    print(
        f"next: onmt_train -config {config} -attention variational {posterior} -preset {preset} "
        f"-save_model {model}"
    )
    best = shlex.quote(f"{opt.save_data}.model_best.pt")
    print(f"then: onmt_translate -model {best} -src TEXT -output FILE -kmax 5 -beam 10")

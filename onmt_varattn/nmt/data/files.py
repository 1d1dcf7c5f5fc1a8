"""Checks of the corpora of -data before OpenNMT-py reads them.

Files are read as in training: line by line, tokens separated by spaces, pairs with a blank side left out.
"""

import difflib
import functools
import itertools
import math
import os
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import yaml
from onmt.constants import CorpusName, ModelTask
from onmt.transforms import AVAILABLE_TRANSFORMS

from onmt_varattn.analysis.alignment import parse_pharaoh
from onmt_varattn.errors import UserError, warn
from onmt_varattn.nmt.text.vocabulary import MOST_UNKNOWN, check_kept, read_vocabulary, unknown_share
from onmt_varattn.utils.reading import check_carriage_returns, check_parallel, stream_lines

KEYS = ("path_src", "path_tgt", "path_align", "src_feats", "weight", "transforms", "src_prefix", "tgt_prefix")
FILES = ("path_src", "path_tgt", "path_align")
KEEP_TOKENS = {"filtertoolong"}  # transforms after which tokens are still those of the file
SAMPLE = 1000  # lines of a file that are compared with the vocabularies

Corpora = dict[str, dict[str, Any]]


def check_data(opt: Namespace, reads_vocabularies: bool = True) -> None:
    """Check the value of `-data`.

    Args:
        opt: all options.
        reads_vocabularies: whether `-src_vocab` and `-tgt_vocab` are input files.

    Raises:
        UserError: it is not a YAML mapping of corpora, or a file is missing.
    """
    corpora = _parse(opt.data)
    for name, corpus in corpora.items():
        _check_keys(name, corpus)
        if not corpus.get("path_tgt") and getattr(opt, "model_task", None) == ModelTask.SEQ2SEQ:
            raise UserError(
                f"corpus {name} of -data has no path_tgt, the file of the target language; "
                "without it OpenNMT-py would train on the source twice"
            )
        for key in FILES:
            path = corpus.get(key)
            if path is not None and not os.path.isfile(path):
                raise UserError(f"{path} ({key} of corpus {name} in -data): there is no such file")
    for option in ("src_vocab", "tgt_vocab") if reads_vocabularies else ():
        path = getattr(opt, option)
        if path and not os.path.isfile(path):
            raise UserError(f"-{option} {path}: there is no such file; onmt_preprocess writes one")
    if not any(int(corpus.get("weight", 1)) for name, corpus in corpora.items() if name != CorpusName.VALID):
        raise UserError("-data has no corpus to train on: name one besides valid, with a weight of 1 or more")


def _parse(text: str) -> Corpora:
    try:
        corpora = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"-data is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(corpora, dict) or not all(isinstance(corpus, dict) for corpus in corpora.values()):
        raise UserError(
            f"-data {str(corpora)[:40]}: expected corpora by name, each with its path_src and path_tgt"
        )
    return corpora


def _check_keys(name: str, corpus: dict[str, Any]) -> None:
    for key, value in corpus.items():
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            raise UserError(
                f"corpus {name} of -data: unknown key {key}" + (f"; did you mean {near[0]}?" if near else "")
            )
        if key.startswith("path_") and value is not None and not isinstance(value, str):
            raise UserError(f"corpus {name} of -data: {key} {value} is not the name of a file")
    if not corpus.get("path_src"):
        raise UserError(f"corpus {name} of -data has no path_src, the file of the source language")
    if not str(corpus.get("weight", 1)).isdecimal():
        raise UserError(f"corpus {name} of -data: weight {corpus['weight']} is not a whole number")
    transforms = corpus.get("transforms") or []
    if not isinstance(transforms, list):
        raise UserError(f"corpus {name} of -data: transforms {transforms} is not a list, such as [bpe]")
    for transform in transforms:
        if transform not in AVAILABLE_TRANSFORMS:
            raise UserError(
                f"corpus {name} of -data: there is no transform {transform}; "
                f"there are {', '.join(sorted(AVAILABLE_TRANSFORMS))}"
            )


def check_corpora(corpora: Corpora, skip_empty_level: str = "warning") -> None:
    """Check that training can read the corpora, and report pairs that it leaves out.

    Raises:
        UserError: a file is empty, not UTF-8 or begins with a byte-order mark, the sides have
            different numbers of lines, or no pair has words on both.
    """
    for name, corpus in corpora.items():
        paths = [corpus[key] for key in FILES if corpus.get(key)]
        counts = [_count_lines(path) for path in paths]
        check_parallel(paths, counts, f"corpus {name}: ")
        blank = [_blank_lines(path) for path in paths]  # reads alignments, too, as training does
        _report_blank(name, paths, sorted(set().union(*blank[:2])), counts[0], skip_empty_level)


def steps_per_pass(opt: Namespace) -> int:
    """Approximate number of training steps per pass over all training corpora, at least 1.

    Args:
        opt: all options; `data` as text, or as corpora by name.
    """
    corpora = _parse(opt.data) if isinstance(opt.data, str) else opt.data
    training = [c for name, c in corpora.items() if name != CorpusName.VALID and int(c.get("weight", 1))]
    if opt.batch_type == "tokens":  # a batch is as large as its longer side
        amount = sum(max(_count_tokens(c[key]) for key in FILES[:2] if c.get(key)) for c in training)
    else:
        amount = sum(_count_lines(corpus["path_src"]) for corpus in training)
    return max(1, amount // (opt.batch_size * opt.accum_count[0] * opt.world_size))


def _count_tokens(path: str) -> int:
    with open(path, "rb") as file:
        return sum(len(line.split()) for line in file)


def count_vocabularies(opt: Namespace) -> None:
    """Write the vocabularies of onmt_build_vocab, by OpenNMT-py."""
    import onmt.bin.build_vocab

    onmt.bin.build_vocab.build_vocab_main(opt)


def has_validation(opt: Namespace) -> bool:
    """Whether `-data` has a validation corpus."""
    return CorpusName.VALID in (_parse(opt.data) if isinstance(opt.data, str) else opt.data)


def _report_blank(name: str, paths: list[str], blank: list[int], pairs: int, skip_empty_level: str) -> None:
    files = " and ".join(paths[:2])
    if len(blank) == pairs:
        raise UserError(f"corpus {name}: {files} have no pair with words on both sides")
    if blank and skip_empty_level == "error":
        raise UserError(f"{files}, line {blank[0]}: a side is blank (-skip_empty_level error)")
    if blank:
        warn(
            f"corpus {name}: {len(blank):,} of {pairs:,} pairs have a blank side and are left out, "
            f"the first in line {blank[0]} of {files}"
        )


def _count_lines(path: str) -> int:
    lines, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def _blank_lines(path: str) -> set[int]:
    """The numbers, from 1, of lines without a token."""
    blank = set()

    def seen() -> Iterator[str]:
        for number, line in enumerate(_lines(path), 1):
            if not line.strip():
                blank.add(number)
            yield line

    check_carriage_returns(path, seen())
    return blank


_lines = functools.partial(stream_lines, keep_mark=True)  # what training would misread is refused


def check_links(opt: Namespace) -> None:
    """Check that alignments can be parsed and their links are inside of their sentence pairs.

    Args:
        opt: options that OpenNMT-py has checked, `data` parsed, all of it with alignments.
    """
    limits = [trunc or math.inf for trunc in (opt.src_seq_length_trunc, opt.tgt_seq_length_trunc)]
    for corpus in opt.data.values():
        files = (_lines(corpus[key]) for key in FILES)
        for number, (source, target, line) in enumerate(zip(*files, strict=True), 1):
            sizes = [
                min(len(side.split()), most) for side, most in zip((source, target), limits, strict=True)
            ]
            place = f"{corpus['path_align']}, line {number}"
            links = parse_pharaoh(line, place)
            if not links and all(sizes):
                raise UserError(
                    f"{place}: no link, but a posterior needs one; take the pair out, as onmt_preprocess does"
                )
            for link in sorted(links):
                if link[0] >= sizes[0] or link[1] >= sizes[1]:
                    raise UserError(
                        f"{place}: link {link[0]}-{link[1]} is outside of a sentence pair with "
                        f"{sizes[0]} and {sizes[1]} tokens, counted from 0"
                    )


def check_vocabularies(opt: Namespace) -> None:
    """Check vocabulary files, and warn of corpora with many unknown tokens.

    Args:
        opt: options that OpenNMT-py has checked, `data` parsed.
    """
    if opt.train_from and not opt.update_vocab:  # the vocabularies are the checkpoint's
        return
    known: dict[str, set[str]] = {}
    for side in ("src", "tgt"):
        path = getattr(opt, f"{side}_vocab")
        if opt.share_vocab and known and path in (None, opt.src_vocab):
            continue
        limits = "src" if opt.share_vocab else side
        least = getattr(opt, f"{limits}_words_min_frequency")
        size = getattr(opt, f"{limits}_vocab_size")
        known[side] = check_kept(path, read_vocabulary(path, least), limits, size, least)
    if opt.share_vocab:
        known = dict.fromkeys(("src", "tgt"), set().union(*known.values()))
    for name, corpus in opt.data.items():
        if set(corpus["transforms"]) <= KEEP_TOKENS:
            _warn_of_unknown(name, corpus, known)


def _warn_of_unknown(name: str, corpus: dict[str, Any], known: dict[str, set[str]]) -> None:
    """Warn of many unknown tokens, and of swapped sides."""
    for side, other in (("src", "tgt"), ("tgt", "src")):
        path = corpus[f"path_{side}"]
        tokens = [token for line in itertools.islice(_lines(path), SAMPLE) for token in line.split()]
        share, swapped = unknown_share(tokens, known[side]), unknown_share(tokens, known[other])
        if share > MOST_UNKNOWN:
            warn(
                f"corpus {name}: -{side}_vocab does not know {share:.0%} of the tokens of {path}, "
                + (
                    f"and -{other}_vocab {swapped:.0%}; are source and target swapped?"
                    if swapped < share / 2
                    else "which will be trained on as unknown; was it tokenised as the vocabulary was?"
                )
            )

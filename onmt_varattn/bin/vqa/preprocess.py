"""vqa_preprocess: prepare official VQA files and image features for vqa_train."""

import contextlib
import os
import shlex
from collections.abc import Sequence
from typing import Any

from onmt_varattn.errors import UserError, warn
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.files import check_writable
from onmt_varattn.utils.locking import only_one
from onmt_varattn.vqa.data import preparation
from onmt_varattn.vqa.data.dataset import PARTS, features_path
from onmt_varattn.vqa.data.preparation import Source
from onmt_varattn.vqa.features.building import build_store
from onmt_varattn.vqa.features.formats import open_features
from onmt_varattn.vqa.features.store import Store

INPUTS = ("train_questions", "train_annotations", "valid_questions", "valid_annotations")
NUMBERS = {"answer_min_frequency": 1, "word_min_frequency": 1, "question_length": 1, "split_seed": 0}


def vqa_preprocess_parser() -> Parser:
    """All options of vqa_preprocess."""
    parser = Parser(description="Prepare official VQA files and image features for vqa_train.")

    def add(name: str, **kwargs: Any) -> None:
        parser.add(f"-{name}", f"--{name}", **kwargs)

    for part, use in {"train": "training", "valid": "validation"}.items():
        add(f"{part}_questions", required=True, help=f"Official JSON file of the {use} questions.")
        add(f"{part}_annotations", required=True, help="Official JSON file of their annotations.")
    add(
        "image_features",
        required=True,
        nargs="+",
        help="Boxes and features of the images: bottom-up-attention TSV, HDF5, .npz, or a directory of .npz "
        "files; several together if need be.",
    )
    add(
        "save_data", required=True, help="Prefix of all files written, such as data/vqa, for vqa_train -data."
    )
    add(
        "overwrite",
        action="store_true",
        help="Replace files that exist; they are gone even if this run fails.",
    )
    add(
        "answer_min_frequency",
        type=int,
        default=9,
        help="The answer vocabulary: majority answers of at least so many training questions.",
    )
    add(
        "word_min_frequency",
        type=int,
        default=1,
        help="Words that the training questions have less often are unknown.",
    )
    add("question_length", type=int, default=14, help="Most words of a question; what is beyond is cut off.")
    add(
        "feature_type",
        default="float32",
        choices=["float32", "float16"],
        help="How features are kept; float16 takes half the space, and is read as float32.",
    )
    add(
        "split_seed",
        type=int,
        default=1,
        help="Of the split of the validation questions into validation and test.",
    )
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(lambda: preprocess(vqa_preprocess_parser().parse_args(args)))


def preprocess(opt: Any) -> None:
    """Check the options, read the questions, store the features, and write the rest."""
    features = features_path(opt.save_data)
    paths = [f"{opt.save_data}.{part}.{kind}" for part in PARTS for kind in ("npz", "jsonl")]
    paths.append(f"{opt.save_data}.json")
    check(opt, paths)
    directory, name = os.path.split(os.path.abspath(opt.save_data))
    busy = f"-save_data {opt.save_data}: another vqa_preprocess writes there now; wait, or change -save_data"
    with only_one(os.path.join(directory, f".{name}.lock"), busy):
        train, valid = sources = read(opt)
        if opt.overwrite:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{opt.save_data}.json")  # what follows is unfinished
        valid_ids = preparation.half(valid.pairs, opt.split_seed)  # must not depend on the features
        wanted = {question.image for source in sources for question, _ in source.pairs}
        stored = build_store(opt.image_features, wanted, features, opt.feature_type)
        store = Store(features)
        for source in sources:
            source.leave_out(store.row_of, stored)
        answers = find_answers(train, opt.answer_min_frequency)
        parts, words = preparation.prepare_parts(
            train, valid, valid_ids, store, answers, opt.word_min_frequency, opt.question_length
        )
        settings = preparation.description(vars(opt), sources, store, parts, answers, words)
        preparation.write(opt.save_data, parts, settings)
    lines = [line for source in sources for line in source.lines()]
    lines += [f"features: {line}" for line in stored.lines()]
    lines += [f"{name}: {part.summary()}" for name, part in parts.items()]
    counts = parts["train"].counts
    prefix, model = shlex.quote(opt.save_data), shlex.quote(f"{opt.save_data}.model")
    print(
        *lines,
        f"answers: {len(answers):,}, each the majority of at least {opt.answer_min_frequency} training "
        f"questions; they cover {counts['votes_in_vocabulary'] / counts['votes']:.2%} of the annotators' "
        "answers",
        f"words: {len(words.words):,}",
        f"written: {' '.join([*paths, features])}",
        f"next: onmt_vqa_train -data {prefix} -attention variational -save_model {model}",
        sep="\n",
    )


def check(opt: Any, paths: Sequence[str]) -> None:
    """Refuse options that cannot work, before any file is read.

    Args:
        opt: parsed options.
        paths: files to write.
    """
    for name, least in NUMBERS.items():
        if not least <= getattr(opt, name) < 2**31:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least {least} and below {2**31:,}")
    if not opt.save_data:
        raise UserError("-save_data is empty; give a prefix, such as data/vqa")
    if not os.path.basename(opt.save_data):
        raise UserError(
            f"-save_data {opt.save_data} is a directory; give a prefix, such as {opt.save_data}vqa"
        )
    inputs, features = [getattr(opt, name) for name in INPUTS], features_path(opt.save_data)
    read = set(map(os.path.realpath, [*inputs, *opt.image_features]))
    for path in [*paths, features]:
        if os.path.realpath(path) in read:
            raise UserError(f"{path} is an input and would be overwritten; change -save_data")
    for path in paths:
        if os.path.isdir(path) or (os.path.lexists(path) and not opt.overwrite):
            raise UserError(f"{path} exists; use -overwrite to replace it, or change -save_data")
    if os.path.lexists(features) and not os.path.isdir(features):
        raise UserError(f"{features} exists and is not a directory; change -save_data")
    for path in (paths[-1], *paths):
        check_writable(path)
    for path in inputs:
        if not os.path.isfile(path):
            raise UserError(f"{path}: not a file" if os.path.exists(path) else f"{path}: no such file")
    for path in opt.image_features:
        open_features(path)


def read(opt: Any) -> list[Source]:
    """Read training and validation questions, and check what does not depend on features."""
    sources = []
    for paths in (INPUTS[:2], INPUTS[2:]):
        questions, annotations = (getattr(opt, name) for name in paths)
        print(f"reading {questions} and {annotations}", flush=True)
        sources.append(Source.load(questions, annotations))
    train, valid = sources
    find_answers(train, opt.answer_min_frequency)
    if len(valid.pairs) < 2:
        raise UserError(f"{valid.questions}: one question cannot be split into validation and test")
    both = {question.id for question, _ in train.pairs} & {question.id for question, _ in valid.pairs}
    if both:
        warn(
            f"{len(both):,} questions are in both {train.questions} and {valid.questions}, such as "
            f"{min(both)}; results on them do not show how well a model generalises"
        )
    return sources


def find_answers(train: Source, least: int) -> list[str]:
    """The answer vocabulary.

    Raises:
        UserError: it is empty.
    """
    answers = preparation.answer_list(train.pairs, least)
    if not answers:
        raise UserError(
            f"-answer_min_frequency {least}: no majority answer of the {len(train.pairs):,} training "
            f"questions in {train.annotations} is that frequent; use a lower number"
        )
    return answers


if __name__ == "__main__":
    main()

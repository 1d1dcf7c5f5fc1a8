"""vqa_preprocess: prepare official VQA files and image features for vqa_train."""

import contextlib
import os
import shlex
from argparse import Namespace
from collections.abc import Sequence

from onmt_varattn.errors import UserError, warn
from onmt_varattn.utils import settings
from onmt_varattn.utils.cli import run
from onmt_varattn.utils.files import check_writable
from onmt_varattn.utils.locking import only_one
from onmt_varattn.utils.settings import from_options
from onmt_varattn.vqa.data import preparation
from onmt_varattn.vqa.data.dataset import PARTS, features_path
from onmt_varattn.vqa.data.preparation import Source
from onmt_varattn.vqa.features.building import build_store
from onmt_varattn.vqa.features.formats import open_features
from onmt_varattn.vqa.features.store import Store
from onmt_varattn.vqa.settings import PreprocessSettings, vqa_preprocess_parser

INPUTS = ("train_questions", "train_annotations", "valid_questions", "valid_annotations")


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(lambda: preprocess(vqa_preprocess_parser().parse_args(args)))


def preprocess(options: Namespace) -> None:
    """Check the options, read the questions, store the features, and write the rest."""
    opt = from_options(PreprocessSettings, options)
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
        content = preparation.description(vars(opt), sources, store, parts, answers, words)
        preparation.write(opt.save_data, parts, content)
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


def check(opt: PreprocessSettings, paths: Sequence[str]) -> None:
    """Refuse options that cannot work, before any file is read.

    Args:
        opt: settings.
        paths: files to write.
    """
    settings.check(opt)
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


def read(opt: PreprocessSettings) -> list[Source]:
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

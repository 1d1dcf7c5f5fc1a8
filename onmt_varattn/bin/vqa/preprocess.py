"""vqa_preprocess: official VQA files and features of images to everything that vqa_train needs."""

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import onmt_varattn
from onmt_varattn.errors import UserError, warn
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.files import check_writable
from onmt_varattn.utils.locking import only_one
from onmt_varattn.vqa.data import dataset as data
from onmt_varattn.vqa.data import preparation
from onmt_varattn.vqa.data.official import match, read_annotations, read_questions
from onmt_varattn.vqa.data.preparation import Pair, Prepared
from onmt_varattn.vqa.features.building import StoreReport, build_store
from onmt_varattn.vqa.features.formats import open_features
from onmt_varattn.vqa.features.store import Store

NAMED = 5  # images without features that are named
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
    """The command."""
    run(lambda: preprocess(vqa_preprocess_parser().parse_args(args)))


def preprocess(opt: Any) -> None:
    """Check, read the questions, store the features, and write the rest."""
    paths = output_paths(opt.save_data)
    check(opt, paths)
    directory, name = os.path.split(os.path.abspath(opt.save_data))
    busy = f"-save_data {opt.save_data}: another vqa_preprocess writes there now; wait, or change -save_data"
    with only_one(os.path.join(directory, f".{name}.lock"), busy):
        files = read(opt)
        if opt.overwrite:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{opt.save_data}.json")  # what follows is unfinished
        valid_ids = preparation.half(files[1].pairs, opt.split_seed)  # before features have a say in it
        wanted = {question.image for file in files for question, _ in file.pairs}
        stored = build_store(opt.image_features, wanted, data.features_path(opt.save_data), opt.feature_type)
        store = Store(data.features_path(opt.save_data))
        for file in files:
            file.leave_out(store.row_of, stored)
        parts, settings = prepare(opt, files, valid_ids, store)
        preparation.write(opt.save_data, parts, settings)
    report(files, stored, parts, settings, opt.answer_min_frequency)
    print("written: " + " ".join([*paths, data.features_path(opt.save_data)]))
    prefix, model = shlex.quote(opt.save_data), shlex.quote(f"{opt.save_data}.model")
    print(f"next: python tools/vqa_train.py -data {prefix} -attention variational -save_model {model}")


@dataclasses.dataclass
class Source:
    """A file of questions and one of annotations, and what became of them.

    Attributes:
        questions, annotations: the files.
        pairs: the questions that are left, with their annotations.
        read: how many questions there were.
        unasked: annotations without a question.
        losses: questions left out, by reason.
    """

    questions: str
    annotations: str
    pairs: list[Pair]
    read: int
    unasked: int
    losses: dict[str, int]

    def leave_out(self, rows: dict[int, int], stored: StoreReport) -> None:
        """Leave out the questions whose images have no features.

        Raises:
            UserError: none is left.
        """
        missing = sorted({question.image for question, _ in self.pairs if question.image not in rows})
        if not missing:
            return
        kept = [pair for pair in self.pairs if pair[0].image in rows]
        named = ", ".join(map(str, missing[:NAMED])) + (", ..." if len(missing) > NAMED else "")
        reason = f"with images that have no features ({len(missing):,} images: {named})"
        self.losses[reason] = len(self.pairs) - len(kept)
        if not kept:
            raise UserError(
                f"-image_features has none of the {len(missing):,} images of {self.questions} ({named}); "
                f"give the features of these images ({'; '.join(stored.lines())})"
            )
        self.pairs = kept


def output_paths(prefix: str) -> list[str]:
    """The files to write, but for the features."""
    return [f"{prefix}.{part}.{kind}" for part in data.PARTS for kind in ("npz", "jsonl")] + [
        f"{prefix}.json"
    ]


def check(opt: Any, paths: Sequence[str]) -> None:
    """Refuse what can be seen to fail, before any work."""
    for name, least in NUMBERS.items():
        if not least <= getattr(opt, name) < 2**31:
            raise UserError(
                f"-{name} {getattr(opt, name)} must be at least {least}, and below 2 to the power of 31"
            )
    if not opt.save_data:
        raise UserError("-save_data is empty; give a prefix, such as data/vqa")
    if not os.path.basename(opt.save_data):
        raise UserError(
            f"-save_data {opt.save_data} is a directory; give a prefix, such as {opt.save_data}vqa"
        )
    inputs = [getattr(opt, name) for name in INPUTS]
    read = set(map(os.path.realpath, [*inputs, *opt.image_features]))
    for path in [*paths, data.features_path(opt.save_data)]:
        if os.path.realpath(path) in read:
            raise UserError(f"{path} is an input and would be written over; change -save_data")
    for path in paths:
        if os.path.isdir(path) or (os.path.lexists(path) and not opt.overwrite):
            raise UserError(f"{path} exists; use -overwrite to replace it, or change -save_data")
    features = data.features_path(opt.save_data)
    if os.path.lexists(features) and not os.path.isdir(features):
        raise UserError(f"{features} is in the way: a directory is to be written there; change -save_data")
    for path in (paths[-1], *paths):
        check_writable(path)
    for path in inputs:
        if not os.path.isfile(path):
            raise UserError(f"{path}: no such file" if not os.path.exists(path) else f"{path}: not a file")
    for path in opt.image_features:
        open_features(path)


def read(opt: Any) -> list[Source]:
    """The questions of training and validation, checked as far as can be without features."""
    files = [read_source(opt, option) for option in ("train", "valid")]
    train, valid = files
    if not preparation.answer_list(train.pairs, opt.answer_min_frequency):
        raise UserError(
            f"-answer_min_frequency {opt.answer_min_frequency}: no majority answer in {train.annotations} "
            "comes so often, so there would be no answer to choose from; lower it"
        )
    if len(valid.pairs) < 2:
        raise UserError(f"{valid.questions}: one question cannot be split into validation and test")
    both = {question.id for question, _ in train.pairs} & {question.id for question, _ in valid.pairs}
    if both:
        warn(
            f"{len(both):,} questions are in both {train.questions} and {valid.questions}, the first has id "
            f"{min(both)}; what is measured on them says nothing about new questions"
        )
    return files


def read_source(opt: Any, option: str) -> Source:
    """The questions of one file, with the annotations of another."""
    names = getattr(opt, f"{option}_questions"), getattr(opt, f"{option}_annotations")
    print(f"reading {names[0]} and {names[1]}", flush=True)
    questions, annotations = read_questions(names[0]), read_annotations(names[1])
    pairs = match(questions, annotations, names)
    losses = {"without an annotation": len(questions) - len(pairs)}
    return Source(*names, pairs, len(questions), len(annotations) - len(pairs), losses)


def prepare(
    opt: Any, files: Sequence[Source], valid_ids: set[int], store: Store
) -> tuple[dict[str, Prepared], dict[str, Any]]:
    """All parts ready to be written, and what PREFIX.json says."""
    train, valid = files
    answers = preparation.answer_list(train.pairs, opt.answer_min_frequency)
    if not answers:
        raise UserError(
            f"-answer_min_frequency {opt.answer_min_frequency}: no majority answer comes so often in the "
            f"{len(train.pairs):,} training questions whose images have features; lower it"
        )
    words = preparation.word_list(train.pairs, opt.word_min_frequency, opt.question_length)
    pairs = {
        "train": train.pairs,
        "valid": [pair for pair in valid.pairs if pair[0].id in valid_ids],
        "test": [pair for pair in valid.pairs if pair[0].id not in valid_ids],
    }
    for name, own in pairs.items():
        if not own:
            raise UserError(f"no {name} question is left of {valid.questions}: {losses(valid)}")
    parts = {
        name: preparation.prepare(own, store.row_of, words, answers, opt.question_length)
        for name, own in pairs.items()
    }
    settings = {
        "format": data.FORMAT,
        "version": onmt_varattn.__version__,
        "options": vars(opt),
        "parts": {
            name: {**part.counts, "digest": data.digest(part.columns.question)}
            for name, part in parts.items()
        },
        "left_out": {file.questions: file.losses for file in files},
        "store": {"images": len(store.images), "feature_size": store.feature_size},
        "answers": answers,
        "words": words.words,
    }
    return parts, settings


def report(
    files: Sequence[Source],
    stored: StoreReport,
    parts: Mapping[str, Prepared],
    settings: Mapping[str, Any],
    frequency: int,
) -> None:
    """Say what there is, and what was left out and why."""
    for file in files:
        kept = f"{file.read:,} questions read, {len(file.pairs):,} kept"
        print(f"{file.questions}: {kept}, left out: {losses(file)}")
        if file.unasked:
            print(f"{file.annotations}: {file.unasked:,} annotations without a question, passed over")
    for line in stored.lines():
        print(f"features: {line}")
    for name, part in parts.items():
        print(f"{name}: {counts_line(part.counts)}")
    counts, answers, words = parts["train"].counts, settings["answers"], settings["words"]
    print(
        f"answers: {len(answers):,}, each the majority of at least {frequency} training questions; "
        f"{share(counts['votes_in_vocabulary'], counts['votes'])} of what annotators said is among them"
    )
    print(f"words: {len(words):,}")


def losses(file: Source) -> str:
    """The questions left out by reason, as text."""
    return ", ".join(f"{count:,} {reason}" for reason, count in file.losses.items() if count) or "none"


def counts_line(counts: Mapping[str, int]) -> str:
    """What there is to know of a part, as text."""
    unlabelled = counts["questions"] - counts["labelled"]
    parts = [
        f"{counts['questions']:,} questions, {counts['labelled']:,} with a label",
        f"{unlabelled:,} with unknown answers only (kept, never trained on)" if unlabelled else "",
        f"{counts['cut']:,} cut at -question_length" if counts["cut"] else "",
        f"{counts['wordless']:,} without a word (read as one unknown word)" if counts["wordless"] else "",
        f"unknown words {share(counts['unknown_words'], counts['words'])}",
    ]
    return ", ".join(filter(None, parts))


def share(part: int, whole: int) -> str:
    """A fraction, as text."""
    return f"{part / whole:.2%}"


if __name__ == "__main__":
    main()

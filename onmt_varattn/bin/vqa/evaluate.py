"""onmt_vqa_evaluate: score models on questions about images, or ask one of them a question."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

import onmt_varattn
from onmt_varattn.errors import UserError, require
from onmt_varattn.training.allocator import keep_freed_memory
from onmt_varattn.training.opts import nonfinite_opt
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.files import check_writable, to_json, write_result
from onmt_varattn.utils.progress import progress
from onmt_varattn.vqa.opts import check_device

if TYPE_CHECKING:
    from onmt_varattn.vqa.checkpoint import Trained
    from onmt_varattn.vqa.data.dataset import Batch, Data, Part
    from onmt_varattn.vqa.data.gold import BoxScores
    from onmt_varattn.vqa.prediction import Answers

BOXES_SHOWN, LEAST_SHOWN = 3, 0.005  # boxes behind an answer, and the least probability after the first


def vqa_evaluate_parser() -> Parser:
    """All options of onmt_vqa_evaluate."""
    parser = Parser(
        description="Score models that answer questions about images: NLL, VQA accuracy, bounds, entropies. "
        "Or ask one of them: -image_features and -question."
    )

    def add(name: str, **kwargs: Any) -> None:
        names = dict.fromkeys((name, name.replace("_", "-")))
        parser.add(*(f"{dash}{one}" for one in names for dash in ("-", "--")), dest=name, **kwargs)

    add("model", nargs="+", required=True, help="Checkpoints, each scored by itself.")
    add("data", help="Score on this: what vqa_preprocess.py wrote, its -save_data.")
    add("part", default="test", choices=["train", "valid", "test"], help="Of the data.")
    add(
        "kmax",
        type=int,
        nargs="+",
        default=[0, 1, 2, 5],
        help="Mix the K most probable boxes, for each of these K. 0: all, which is done in any case.",
    )
    add("gold", help="Compare boxes with this file's, such as the gold.json of onmt_make_scenes.")
    add("json", help="Write all numbers to this file, too.")
    add("predictions", help="Write the answers in the official format of results here (for one model).")
    add("batch_size", type=int, default=128, help="Questions at a time.")
    add("gpu", type=int, default=-1, help="CUDA device. -1: the CPU.")
    nonfinite_opt(add)
    add("question", help="Ask this.")
    add(
        "image_features",
        help="About an image whose features are here: TSV, HDF5, NPZ, or a directory of .npz files.",
    )
    add("image_id", type=int, help="Which image, where the file has several.")
    add("top", type=int, default=5, help="Answers to show.")
    add("image", help="Draw the boxes over this image.")
    add("draw", help="Draw the boxes into this file (PNG, SVG, PDF). Default with -image: answers.png.")
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: evaluate(vqa_evaluate_parser().parse_args(args)))


def check(opt: Any) -> None:
    """Refuse options that make no sense, without a look at any file.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    for name, least in (("batch_size", 1), ("top", 1), ("gpu", -1)):
        if getattr(opt, name) < least:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least {least}")
    if min(opt.kmax) < 0:
        raise UserError(f"-kmax {min(opt.kmax)} must not be negative")
    asks = opt.question is not None or opt.image_features is not None
    if asks and opt.data:
        raise UserError("-data scores, -question asks: give one of them")
    if not asks and not opt.data:
        raise UserError("give -data to score, or -image_features and -question to ask")
    if asks:
        for name in ("question", "image_features"):
            if getattr(opt, name) is None:
                raise UserError(f"-{name} is needed too")
        if len(opt.model) > 1:
            raise UserError(f"-model: {len(opt.model)} were given, but one is asked")
        for name in ("predictions", "gold"):
            if getattr(opt, name) is not None:
                raise UserError(f"-{name} goes with -data; leave it out")
    else:
        for name in ("image", "draw", "image_id"):
            if getattr(opt, name) is not None:
                raise UserError(f"-{name} goes with -question; leave it out")
        if opt.predictions and len(opt.model) > 1:
            raise UserError(f"-predictions: of which of the {len(opt.model)} models? Give one")
    if opt.gpu >= 0:
        check_device("gpu", opt.gpu)


def evaluate(opt: Any) -> None:
    """Check everything, then score or ask."""
    check(opt)
    if opt.image and not opt.draw:
        opt.draw = "answers.png"
    if opt.draw:
        check_drawing(opt)
    for path in (opt.json, opt.predictions, opt.draw):
        if path:
            check_writable(path)
    keep_freed_memory()
    from onmt_varattn.vqa.checkpoint import Trained

    device = torch.device("cuda", opt.gpu) if opt.gpu >= 0 else torch.device("cpu")
    if opt.data:
        score([Trained(path, device, opt.allow_nonfinite) for path in opt.model], opt)
    else:
        ask(Trained(opt.model[0], device, opt.allow_nonfinite), opt)


def check_drawing(opt: Any) -> None:
    """Refuse a picture that could not be drawn, before the model is asked."""
    from onmt_varattn.analysis.figures import ending_of
    from onmt_varattn.vqa.drawing import read_image

    require("matplotlib", "PIL")
    ending_of(opt.draw)
    if opt.image:
        read_image(opt.image)


def score(models: "Sequence[Trained]", opt: Any) -> None:
    """Score one model after the other, write and print."""
    from onmt_varattn.vqa.data.dataset import Data
    from onmt_varattn.vqa.data.gold import BoxScores, read_gold

    data = Data.load(opt.data)
    part = data.part(opt.part)
    gold = read_gold(opt.gold) if opt.gold else None
    for trained in models:
        check_fits(trained, data, opt)
    results = []
    for trained in progress(models, desc="evaluating", unit="models", leave=False):
        box_scores = None if gold is None else BoxScores(gold, data.answers, opt.gold)
        results.append(score_model(trained, data, part, box_scores, opt))
    try:
        if opt.json:
            report = {"data": opt.data, "part": opt.part, "version": version(), "models": results}
            write_result(opt.json, to_json(without_nan(report), indent=2) + "\n")
    finally:
        print(tables(results))
        for result in results:
            print(line_of(result))


def without_nan(value: Any) -> Any:
    """A tree in which what is not a number (a mean over nothing) is None."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def check_fits(trained: "Trained", data: "Data", opt: Any) -> None:
    """Refuse data that was prepared for another model.

    Raises:
        UserError: names what differs.
    """
    from onmt_varattn.vqa.checkpoint import differences

    if differ := differences(trained.vqa, data):
        raise UserError(
            f"{trained.path}: its {', '.join(differ)} are not those of -data {opt.data}; score it on what "
            "it was trained with"
        )


def score_model(
    trained: "Trained", data: "Data", part: "Part", box_scores: "BoxScores | None", opt: Any
) -> dict[str, Any]:
    """All numbers of a model."""
    from onmt_varattn.latent.mixtures import named, way_of
    from onmt_varattn.vqa.evaluation import labelled_batches, measure

    natural = trained.model.attention.objective.natural
    names = [natural, "exact", *map(way_of, opt.kmax), "soft"]
    ways = {name: named(name) for name in dict.fromkeys(names)}
    batches = labelled_batches(part, opt.batch_size, trained.device)
    found = measure(
        trained.model,
        part,
        data.answers,
        ways,
        counted(batches, len(part), trained.path),
        box_scores=box_scores,
    )
    if opt.predictions:
        write_predictions(opt.predictions, part, [data.answers[i] for i in found.answers[natural]])
    nats = ("elbo", "kl", "prior_entropy", "posterior_entropy", "exact_posterior_entropy")
    result = {
        "model": trained.path,
        "attention": trained.opt.attention,
        "estimator": trained.opt.attention_estimator,
        "posterior": trained.opt.posterior,
        "natural": natural,
        "nll": found.nll,
        "expected_nll": found.expected_nll,
        "accuracy": found.accuracy,
        "accuracy_by_type": found.accuracy_by_type[natural],
        **{name: found.nats.get(name) for name in nats},
        "boxes": None if box_scores is None else box_scores.means(),
        "questions": found.questions,
        "labelled": found.labelled,
    }
    return {**result, "signature": signature(result, opt)}


def counted(batches: "Iterator[Batch]", questions: int, path: str) -> "Iterator[Batch]":
    """Show how many questions are done."""
    with progress(total=questions, desc=f"scoring {path}", unit="questions") as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch.index))


def write_predictions(path: str, part: "Part", answers: Sequence[str]) -> None:
    """Answers in the official format of results."""
    results = [
        {"question_id": question, "answer": answer}
        for question, answer in zip(part.columns.question.tolist(), answers, strict=True)
    ]
    write_result(path, json.dumps(results) + "\n")


def version() -> str:
    """Of what makes the numbers."""
    return f"onmt_varattn {onmt_varattn.__version__} torch {torch.__version__.split('+')[0]}"


def signature(result: dict[str, Any], opt: Any) -> str:
    """What the numbers depend on."""
    from onmt_varattn.vqa.evaluation import LABEL_SEED

    names = ("model", "attention", "estimator", "posterior")
    parts = {name: result[name] for name in names if result[name] not in (None, "none")}
    parts |= {
        "data": opt.data,
        "part": opt.part,
        "questions": f"{result['questions']:,}",
        "labelled": f"{result['labelled']:,}",
        "labels": f"drawn, seed {LABEL_SEED}",
        "version": version(),
    }
    return "|".join(f"{name}:{value}" for name, value in parts.items())


def line_of(result: dict[str, Any]) -> str:
    """A line for a paper: the main numbers, and what they depend on."""
    way = result["natural"]
    return (
        f"NLL = {result['nll'][way]:.4f} ({way}) | VQA accuracy = {result['accuracy'][way]:.2f} ({way}) | "
        f"H(p) {result['prior_entropy']:.3f} | {result['signature']}"
    )


def tables(results: Sequence[dict[str, Any]]) -> str:
    """Everything in Markdown, a row a model."""
    from onmt_varattn.bin.analysis.evaluate import number, place, table

    def by_way(title: str, key: str, digits: int) -> str:
        ways = sorted({way for result in results for way in result[key]}, key=place)
        rows = [
            [r["model"], r["attention"], *(number(r[key].get(way), digits) for way in ways)] for r in results
        ]
        return f"{title}\n\n" + table(["model", "attention", *ways], rows)

    types = sorted({kind for result in results for kind in result["accuracy_by_type"]})
    nats = {"ELBO": "elbo", "KL": "kl", "H(p)": "prior_entropy", "H(q)": "posterior_entropy"}
    nats["H(exact)"] = "exact_posterior_entropy"
    parts = [
        by_way("NLL of one label a question, in nats", "nll", 4),
        by_way("NLL averaged over all annotators, in nats", "expected_nll", 4),
        by_way("VQA accuracy, in percent", "accuracy", 2),
        "VQA accuracy by type of answer, in percent\n\n"
        + table(
            ["model", "attention", *types],
            [
                [r["model"], r["attention"], *(number(r["accuracy_by_type"].get(kind), 2) for kind in types)]
                for r in results
            ],
        ),
        "Nats a question: bound, divergence KL(q, p), entropies of prior, posterior and exact posterior\n\n"
        + table(
            ["model", "attention", *nats],
            [[r["model"], r["attention"], *(number(r[key], 3) for key in nats.values())] for r in results],
        ),
    ]
    if results[0]["boxes"]:
        parts.append(box_table(results))
    unlabelled = results[0]["questions"] - results[0]["labelled"]
    if unlabelled:
        parts.append(
            f"{unlabelled:,} of {results[0]['questions']:,} questions have no answer of the vocabulary: they "
            "count for accuracy, not for NLL, bound and entropies."
        )
    return "\n\n".join(parts) + "\n"


def box_table(results: Sequence[dict[str, Any]]) -> str:
    """Where models look, against gold boxes: two columns a kind of question and distribution."""
    from onmt_varattn.bin.analysis.evaluate import number, table

    columns = {
        f"{kind}: {name}": (kind, of)
        for kind in results[0]["boxes"]
        for name, of in {"p": "prior", "q": "posterior", "exact": "exact"}.items()
    }
    rows = [
        [r["model"], r["attention"]]
        + [
            " / ".join(number(r["boxes"][kind][measure].get(of), 1) for measure in ("mass", "hit"))
            for kind, of in columns.values()
        ]
        for r in results
    ]
    counts = ", ".join(f"{found['questions']:,} {kind}" for kind, found in results[0]["boxes"].items())
    return (
        "The box that the label is about: its probability / how often it is the most probable, in percent, "
        f"by kind of question ({counts})\n\n" + table(["model", "attention", *columns], rows)
    )


def ask(trained: "Trained", opt: Any) -> None:
    """Answer one question; print the answers with their boxes, and draw them."""
    from onmt_varattn.vqa.features.formats import find_regions
    from onmt_varattn.vqa.prediction import predict

    regions = find_regions(opt.image_features, opt.image_id)
    mixture = trained.model.attention.objective.mixture()
    found = predict(trained, opt.question, regions, opt.top, mixture)
    print("\n".join(lines_of(found)))
    if opt.json:
        write_result(opt.json, json.dumps(as_json(found), indent=2, ensure_ascii=False) + "\n")
    if opt.draw:
        draw(found, opt)
        print(f"drawn: {opt.draw}")


def lines_of(found: "Answers") -> Iterator[str]:
    """Answers and boxes for the terminal."""
    yield f"Question: {found.question}"
    if found.unknown:
        yield f"The model does not know: {', '.join(found.unknown)}"
    yield f"Image {found.regions.image}, {len(found.prior)} boxes"
    yield f"           p, before any answer:  {boxes_of(found.prior, found)}"
    for answer in found.answers:
        yield f"{100 * answer.probability:6.2f} %  {answer.text}"
        if answer.posterior is not None:
            yield f"           q, given the answer:   {boxes_of(answer.posterior, found)}"
        yield f"           p, given the answer:   {boxes_of(answer.exact, found)}"


def boxes_of(probs: Any, found: "Answers") -> str:
    """The most probable boxes, with their corners."""
    parts: list[str] = []
    for i in (-probs).argsort(kind="stable")[:BOXES_SHOWN]:
        if parts and probs[i] < LEAST_SHOWN:
            break
        left, top, right, bottom = (round(float(x)) for x in found.regions.boxes[i])
        parts.append(f"{probs[i]:.2f} box {i} ({left}, {top}, {right}, {bottom})")
    return "; ".join(parts)


def as_json(found: "Answers") -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "question": found.question,
        "unknown_words": found.unknown,
        "image": found.regions.image,
        "boxes": found.regions.boxes.tolist(),
        "prior": found.prior.tolist(),
        "answers": [
            {
                "answer": answer.text,
                "probability": answer.probability,
                "posterior": None if answer.posterior is None else answer.posterior.tolist(),
                "exact_posterior": answer.exact.tolist(),
            }
            for answer in found.answers
        ],
    }


def draw(found: "Answers", opt: Any) -> None:
    """Boxes over the image: a panel for p, and one for each of the most probable answers."""
    from onmt_varattn.vqa.drawing import draw_answers

    panels = {"p, before any answer": found.prior}
    for answer in found.answers[:2]:
        known = answer.exact if answer.posterior is None else answer.posterior
        panels[f"{'p' if answer.posterior is None else 'q'}, given “{answer.text}”"] = known
    answers = [(answer.text, answer.probability) for answer in found.answers]
    draw_answers(opt.draw, found.question, found.regions, answers, panels, opt.image)


if __name__ == "__main__":
    main()

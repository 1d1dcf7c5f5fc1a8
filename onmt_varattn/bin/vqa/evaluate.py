"""onmt_vqa_evaluate: score models on questions about images, or ask one of them a question."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from onmt_varattn.analysis.report import NATS, model_table, nats, number, signature, version, way_table
from onmt_varattn.errors import UserError, require
from onmt_varattn.training.allocator import keep_freed_memory
from onmt_varattn.utils.cli import run
from onmt_varattn.utils.files import check_writable, to_json, write_result
from onmt_varattn.utils.progress import progress
from onmt_varattn.vqa.parsers import check_evaluation, vqa_evaluate_parser

if TYPE_CHECKING:
    from onmt_varattn.vqa.checkpoint import Trained
    from onmt_varattn.vqa.data.dataset import Batch, Data, Part
    from onmt_varattn.vqa.data.gold import BoxScores
    from onmt_varattn.vqa.prediction import Answers

BOXES_SHOWN, LEAST_SHOWN = 3, 0.005  # boxes behind an answer, and the least probability after the first


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: evaluate(vqa_evaluate_parser().parse_args(args)))


def evaluate(opt: Any) -> None:
    """Check everything, then score or ask."""
    check_evaluation(opt)
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
        **{name: found.nats.get(name) for name in NATS.values()},
        "boxes": None if box_scores is None else box_scores.means(),
        "questions": found.questions,
        "labelled": found.labelled,
    }
    return {**result, "signature": signature(settings(result, opt))}


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


def settings(result: dict[str, Any], opt: Any) -> dict[str, Any]:
    """Settings that the numbers depend on, for the signature."""
    from onmt_varattn.vqa.evaluation import LABEL_SEED

    names = ("model", "attention", "estimator", "posterior")
    return {
        **{name: result[name] for name in names if result[name] != "none"},
        "data": opt.data,
        "part": opt.part,
        "questions": f"{result['questions']:,}",
        "labelled": f"{result['labelled']:,}",
        "labels": f"drawn, seed {LABEL_SEED}",
        "version": version(),
    }


def line_of(result: dict[str, Any]) -> str:
    """The main numbers of a model in one line, with their signature."""
    way = result["natural"]
    return (
        f"NLL = {result['nll'][way]:.4f} ({way}) | VQA accuracy = {result['accuracy'][way]:.2f} ({way}) | "
        f"H(p) {result['prior_entropy']:.3f} | {result['signature']}"
    )


def tables(results: Sequence[dict[str, Any]]) -> str:
    """All numbers as Markdown tables, with one row per model."""
    types = sorted({kind for result in results for kind in result["accuracy_by_type"]})
    parts = [
        way_table("NLL of one label per question, in nats", results, "nll", 4),
        way_table("NLL averaged over all annotators, in nats", results, "expected_nll", 4),
        way_table("VQA accuracy, in percent", results, "accuracy"),
        model_table(
            "VQA accuracy by type of answer, in percent",
            types,
            results,
            lambda r: [number(r["accuracy_by_type"].get(kind), 2) for kind in types],
        ),
        model_table(
            "Nats per question: bound, divergence KL(q, p), entropies of prior, posterior and exact "
            "posterior",
            list(NATS),
            results,
            lambda r: [nats(r, key) for key in NATS.values()],
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
    """Attention against gold boxes, with one column per kind of question and distribution."""
    columns = {
        f"{kind}: {name}": (kind, of)
        for kind in results[0]["boxes"]
        for name, of in {"p": "prior", "q": "posterior", "exact": "exact"}.items()
    }
    counts = ", ".join(f"{found['questions']:,} {kind}" for kind, found in results[0]["boxes"].items())
    return model_table(
        "The box that the label is about: its probability / how often it is the most probable, in percent, "
        f"by kind of question ({counts})",
        list(columns),
        results,
        lambda r: [
            " / ".join(number(r["boxes"][kind][measure].get(of), 1) for measure in ("mass", "hit"))
            for kind, of in columns.values()
        ],
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

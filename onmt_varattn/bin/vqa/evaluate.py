"""onmt_vqa_evaluate: evaluate models on questions about images, or ask one of them a question."""

import json
from collections.abc import Sequence

import torch

from onmt_varattn.analysis.report import version
from onmt_varattn.errors import require
from onmt_varattn.training.memory import keep_freed_memory
from onmt_varattn.utils.cli import run
from onmt_varattn.utils.files import check_output, to_json, write_result
from onmt_varattn.utils.progress import progress
from onmt_varattn.vqa.settings import EvaluateSettings, check_evaluation, vqa_evaluate_parser


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(lambda: evaluate(check_evaluation(vqa_evaluate_parser().parse_args(args))))


def evaluate(opt: EvaluateSettings) -> None:
    """Check the files, then evaluate or ask."""
    if opt.image and not opt.draw:
        opt.draw = "answers.png"
    if opt.draw:
        check_drawing(opt.draw, opt.image)
    inputs = [("gold", opt.gold), ("image", opt.image), ("image_features", opt.image_features)]
    inputs += [("model", path) for path in opt.model]
    for option in ("json", "predictions", "draw"):
        check_output(option, getattr(opt, option), inputs)
    keep_freed_memory()
    device = torch.device("cuda", opt.gpu) if opt.gpu >= 0 else torch.device("cpu")
    if opt.data:
        score(opt, opt.data, device)
    else:
        ask(opt, str(opt.question), str(opt.image_features), device)  # `check_evaluation` requires both


def check_drawing(path: str, image: str | None) -> None:
    """Refuse a picture that could not be drawn, before the model is asked."""
    from onmt_varattn.analysis.figures import ending_of
    from onmt_varattn.vqa.drawing import read_image

    require("matplotlib", "PIL")
    ending_of(path)
    if image:
        read_image(image)


def score(opt: EvaluateSettings, prefix: str, device: torch.device) -> None:
    """Evaluate one model after the other, write and print the results."""
    from onmt_varattn.vqa import evaluation
    from onmt_varattn.vqa.checkpoint import Trained
    from onmt_varattn.vqa.data.dataset import Data
    from onmt_varattn.vqa.data.gold import BoxScores, read_gold

    models = [Trained(path, device, opt.allow_nonfinite) for path in opt.model]
    data = Data.load(prefix)
    part = data.part(opt.part)
    gold = read_gold(opt.gold) if opt.gold else {}
    for trained in models:
        evaluation.check_fits(trained, data)
    results = []
    for trained in progress(models, desc="evaluating", unit="models", leave=False):
        boxes = BoxScores(gold, data.answers, opt.gold) if opt.gold else None
        result, answers = evaluation.evaluate(trained, part, data, opt.kmax, opt.batch_size, boxes)
        results.append(evaluation.sign(result, data, opt.part))
        if opt.predictions:
            write_result(opt.predictions, json.dumps(answers) + "\n")
    try:
        if opt.json:
            report = {"data": opt.data, "part": opt.part, "version": version(), "models": results}
            write_result(opt.json, to_json(report, indent=2) + "\n")
    finally:
        print(evaluation.report(results))


def ask(opt: EvaluateSettings, question: str, features: str, device: torch.device) -> None:
    """Answer one question; print the answers with their boxes, and draw them."""
    from onmt_varattn.vqa.checkpoint import Trained
    from onmt_varattn.vqa.features.formats import find_regions
    from onmt_varattn.vqa.prediction import predict

    trained = Trained(opt.model[0], device, opt.allow_nonfinite)
    regions = find_regions(features, opt.image_id)
    found = predict(trained, question, regions, opt.top)
    print(*found.lines(), sep="\n")
    if opt.json:
        write_result(opt.json, json.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n")
    if opt.draw:
        found.draw(opt.draw, opt.image)
        print(f"drawn: {opt.draw}")


if __name__ == "__main__":
    main()

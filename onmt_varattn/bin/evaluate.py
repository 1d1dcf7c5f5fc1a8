"""onmt_evaluate: perplexities, bounds, entropies and BLEU of models with -attention."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

import onmt_varattn
from onmt_varattn.allocator import keep_freed_memory
from onmt_varattn.cli import Parser, run
from onmt_varattn.errors import UserError
from onmt_varattn.files import atomic_write, check_writable, read_lines
from onmt_varattn.plugin import register

if TYPE_CHECKING:
    from onmt_varattn.analysis.evaluation import Scores
    from onmt_varattn.api import Model
    from onmt_varattn.nmt.reading import Reading

MOST_UNKNOWN = 0.3  # of the tokens, before it is said that model and text hardly fit


def evaluate_parser() -> Parser:
    """All options of onmt_evaluate."""
    parser = Parser(description="Score models trained with -attention on a text and its translation.")
    parser.add("-model", "--model", nargs="+", required=True, help="Checkpoints, each scored by itself.")
    parser.add("-src", "--src", required=True, help="Source sentences, as for onmt_translate.")
    parser.add("-tgt", "--tgt", required=True, help="Their translations.")
    parser.add(
        "-kmax", "--kmax", type=int, nargs="+", default=[0, 1, 2, 3, 5],
        help="Test with the K most probable alignments, for each of these K. 0: all (exact).",
    )  # fmt: skip
    parser.add("-json", "--json", help="Write all numbers to this file, too.")
    parser.add("-batch_size", "--batch_size", type=int, default=32, help="Sentence pairs at a time.")
    parser.add("-gpu", "--gpu", type=int, default=-1, help="CUDA device; -1: the CPU.")
    parser.add(
        "-samples", "--samples", type=int, default=10,
        help="Draws that are mixed at each position for models trained with -attention relaxed, in "
        "scoring and in decoding. Memory grows with it.",
    )  # fmt: skip
    parser.add("-seed", "--seed", type=int, default=1, help="Of these draws.")
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: evaluate(evaluate_parser().parse_args(args)))


@dataclass(frozen=True)
class Text:
    """Sentences and their translations."""

    source: list[str]
    target: list[str]

    @property
    def words(self) -> int:
        """Words of the target between spaces, and an end of sentence a line: the same for all models."""
        return sum(len(line.split()) + 1 for line in self.target)


def evaluate(opt: Any) -> None:
    """Check everything, score one model after the other, print and write."""
    check(opt)
    text = read_text(opt.src, opt.tgt)
    keep_freed_memory()
    register()
    check_models(opt.model)
    results = [evaluate_model(path, text, opt) for path in opt.model]
    report = {
        "src": opt.src,
        "tgt": opt.tgt,
        "sentences": len(text.source),
        "version": version(),
        "models": results,
    }
    if opt.json:
        with atomic_write(opt.json) as file:
            json.dump(report, file, indent=2, ensure_ascii=False, allow_nan=False)
            file.write("\n")
    for result in results:
        print(result["signature"])


def check(opt: Any) -> None:
    """Refuse options that cannot work."""
    for k in opt.kmax:
        if k < 0:
            raise UserError(f"-kmax {k} must not be negative")
    if opt.samples < 2:
        raise UserError(f"-samples {opt.samples} must be at least 2, for its standard error")
    if opt.json:
        check_writable(opt.json)
        for option, paths in (("src", [opt.src]), ("tgt", [opt.tgt]), ("model", opt.model)):
            for path in paths:
                if os.path.realpath(path) == os.path.realpath(opt.json):
                    raise UserError(f"-json {opt.json} is -{option} and would be written over")


def read_text(src: str, tgt: str) -> Text:
    """Two files of equal length without blank lines."""
    text = Text(read_lines(src), read_lines(tgt))
    if len(text.source) != len(text.target):
        raise UserError(
            f"{src} has {len(text.source)} lines and {tgt} has {len(text.target)}; "
            "parallel files need as many"
        )
    if not text.source:
        raise UserError(f"{src}: the file is empty")
    for path, lines in ((src, text.source), (tgt, text.target)):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise UserError(
                    f"{path}, line {number}: blank, and cannot be scored; take the line out of both files"
                )
    return text


def check_models(paths: Sequence[str]) -> None:
    """Refuse, before the first is scored, files that are no models with -attention."""
    from onmt_varattn.nmt import checkpoint

    for path in paths:
        if getattr(checkpoint.load(path)["opt"], "attention", None) is None:
            raise UserError(
                f"{path}: not trained with -attention, so it has no alignments to score; "
                "onmt_translate -tgt scores it with BLEU"
            )


def evaluate_model(path: str, text: Text, opt: Any) -> dict[str, Any]:
    """All that is known of a model, as it is written."""
    from onmt_varattn.analysis.evaluation import score
    from onmt_varattn.api import Model

    model = Model(path, gpu=opt.gpu, batch_size=opt.batch_size, seed=opt.seed)
    pairs = [pair_of(model, i, text, opt) for i in range(len(text.source))]
    unknown = unknown_shares(model, pairs)
    for side, share in unknown.items():
        if share > MOST_UNKNOWN:
            print(
                f"warning: {path} does not know {share:.0%} of the tokens of {getattr(opt, side)}; is it a "
                "model for this text (language, case, tokenisation)?",
                file=sys.stderr,
            )
    torch.manual_seed(opt.seed)
    attention = model.model_opt.attention
    with tqdm(total=len(pairs), unit=" sentences", desc=f"scoring {path}", disable=None) as bar:
        readings = counted(model.read(pairs, opt.batch_size), bar)
        kmax = [k for k in dict.fromkeys(opt.kmax) if k]
        scores = score(readings, attention, text.words, kmax, opt.samples)
    if not scores.finite:
        raise UserError(f"{path}: its likelihoods are not finite numbers: training has gone astray")
    result = {
        "model": path,
        "attention": attention,
        "estimator": model.model_opt.attention_estimator,
        "posterior": model.model_opt.posterior,
        "unknown": unknown,
        **asdict(scores),
        "bleu": {},
        "bleu_signature": None,
    }
    return {**result, "signature": signature(result, len(pairs), opt)}


def pair_of(model: "Model", i: int, text: Text, opt: Any) -> Any:
    """A pair as a model reads it."""
    try:
        return model.sentences(text.source[i], text.target[i])
    except UserError:
        raise UserError(
            f"{opt.src} and {opt.tgt}, line {i + 1}: nothing is left of one of them as the model reads it; "
            "take the line out of both files"
        ) from None


def unknown_shares(model: "Model", pairs: Sequence[Any]) -> dict[str, float]:
    """How much of the text, from 0 to 1, is not in the vocabularies."""
    from onmt_varattn.analysis.evaluation import share_unknown

    return {
        side: share_unknown([pair[i].tokens for pair in pairs], model.fields[side].base_field.vocab.itos)
        for i, side in enumerate(("src", "tgt"))
    }


def counted(readings: "Iterable[Reading]", bar: Any) -> "Iterator[Reading]":
    """Show how many pairs are done."""
    for reading in readings:
        yield reading
        bar.update(len(reading.lines))


def signature(result: dict[str, Any], sentences: int, opt: Any) -> str:
    """What the numbers depend on, after sacreBLEU's fashion."""
    unknown = result["unknown"]
    parts = {
        "model": result["model"],
        "attention": result["attention"],
        "estimator": result["estimator"],
        "posterior": result["posterior"],
        "samples": f"{opt.samples},seed:{opt.seed}" if result["natural"] == "samples" else None,
        "sentences": f"{sentences:,}",
        "tokens": f"{result['tokens']:,}",
        "words": f"{result['words']:,}",
        "unknown": f"{unknown['src']:.1%},{unknown['tgt']:.1%}",
        "src": opt.src,
        "tgt": opt.tgt,
        "version": version(),
    }
    return "|".join(f"{name}:{value}" for name, value in parts.items() if value is not None)


def version() -> str:
    """Of what makes the numbers."""
    return f"onmt_varattn {onmt_varattn.__version__} torch {torch.__version__.split('+')[0]}"


if __name__ == "__main__":
    main()

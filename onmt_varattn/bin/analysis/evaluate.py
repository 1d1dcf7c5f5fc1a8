"""onmt_evaluate: perplexities, bounds, entropies and BLEU of models with -attention."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import sacrebleu
import torch

import onmt_varattn
from onmt_varattn.errors import UserError
from onmt_varattn.nmt.plugin import register
from onmt_varattn.training.allocator import keep_freed_memory
from onmt_varattn.training.opts import nonfinite_opt
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.files import check_writable, read_parallel, to_json, write_result
from onmt_varattn.utils.progress import progress

if TYPE_CHECKING:
    from onmt_varattn.api import Model
    from onmt_varattn.nmt.model.reading import Reading

BATCHES_TRANSLATED = 4  # at a time, sorted by length: between two steps of the progress bar
DECODING = ("beam", "length_penalty", "alpha", "eos_norm", "max_length")


def evaluate_parser() -> Parser:
    """All options of onmt_evaluate."""
    parser = Parser(description="Score models trained with -attention on a text and its translation.")

    def add(name: str, **kwargs: Any) -> None:
        parser.add(f"-{name}", f"--{name}", **kwargs)

    add("model", nargs="+", required=True, help="Checkpoints, each scored by itself.")
    add("src", required=True, help="Source sentences, a line each, as for onmt_translate.")
    add("tgt", required=True, help="Their translations.")
    add(
        "kmax",
        type=int,
        nargs="+",
        default=[0, 1, 2, 3, 5],
        help="Test with the K most probable alignments, for each of these K. 0: with all, which perplexity "
        "is given for in any case.",
    )
    add("json", help="Write all numbers to this file, too.")
    add("batch_size", type=int, default=32, help="Sentences at a time.")
    add("gpu", type=int, default=-1, help="CUDA device. -1: the CPU.")
    nonfinite_opt(add)
    add(
        "samples",
        type=int,
        default=10,
        help="Draws that are mixed at each position, in scoring and in decoding, with models trained with "
        "-attention relaxed. Time and memory grow with it.",
    )
    add("seed", type=int, default=1, help="Of these draws.")
    add("bleu", action="store_true", help="Translate as well, for each way of testing, and give BLEU.")
    add("bleu_kmax", type=int, nargs="+", help="For -bleu: translate with these K. Default: those of -kmax.")
    add("bleu_tokenize", default="13a", choices=list(sacrebleu.BLEU.TOKENIZERS), help="sacreBLEU's -tok.")
    add("beam", type=int, default=10, help="For -bleu, as for onmt_translate; so are the next four.")
    add("length_penalty", default="wu", choices=["none", "wu", "avg"], help="For -bleu.")
    add("alpha", type=float, default=1.0, help="For -bleu: of the length penalty.")
    add("eos_norm", type=float, default=3.0, help="For -bleu: against ending early.")
    add("max_length", type=int, default=100, help="For -bleu: most tokens of a translation.")
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
    """Check everything, score one model after the other, write and print."""
    check(opt)
    text = read_text(opt.src, opt.tgt)
    keep_freed_memory()
    register()
    check_models(opt.model)
    results, targets = [], []
    for path in progress(opt.model, desc="evaluating", unit="models", leave=False):
        model = load(path, opt)
        results.append(evaluate_model(model, path, text, opt))
        targets.append((model.processing.tgt, model.fields["tgt"].base_field.vocab.itos))
    report = {
        "src": opt.src,
        "tgt": opt.tgt,
        "sentences": len(text.source),
        "version": version(),
        "models": results,
    }
    try:
        if opt.json:
            write_result(opt.json, to_json(report, indent=2) + "\n")
    finally:
        print_results(results, targets)


def print_results(results: Sequence[dict[str, Any]], targets: Sequence[Any]) -> None:
    """Print tables, and a line for each model.

    Args:
        results: of the models.
        targets: how each reads and writes the target language.
    """
    print(tables(results))
    if any(target != targets[0] for target in targets):
        print(
            "\nNote: the target vocabularies of these models differ, so that numbers per token cannot be "
            "compared; perplexities per word and BLEU can, between models of the same case that know about "
            "as much of the text (unknown: in the lines below)."
        )
    print()
    for result in results:
        print(line_of(result))


def check(opt: Any) -> None:
    """Refuse options that cannot work."""
    for option, values in (("kmax", opt.kmax), ("bleu_kmax", opt.bleu_kmax or [])):
        for k in values:
            if k < 0:
                raise UserError(f"-{option} {k} must not be negative")
    if opt.samples < 2:
        raise UserError(f"-samples {opt.samples} must be at least 2, or there is no standard error")
    if not 0 <= opt.seed < 2**63:
        raise UserError(f"-seed {opt.seed} must not be negative, and be below 2 to the power of 63")
    if opt.json:
        check_writable(opt.json)
        for option, paths in (("src", [opt.src]), ("tgt", [opt.tgt]), ("model", opt.model)):
            if os.path.realpath(opt.json) in map(os.path.realpath, paths):
                raise UserError(f"-json {opt.json} is -{option} and would be written over")
    if opt.bleu_kmax is not None and not opt.bleu:
        raise UserError(f"-bleu_kmax {' '.join(map(str, opt.bleu_kmax))} is for -bleu; give that too")
    if opt.bleu:
        try:
            metric(opt, lowercase=False)
        except (ImportError, RuntimeError, OSError) as error:  # a tokeniser that is not installed
            reason = " ".join(str(error).split())
            raise UserError(f"-bleu_tokenize {opt.bleu_tokenize}: {reason}") from None


def metric(opt: Any, lowercase: bool) -> sacrebleu.BLEU:
    """BLEU of tokenised text is asked for by `-bleu_tokenize`, so sacreBLEU need not warn of it."""
    return sacrebleu.BLEU(lowercase=lowercase, tokenize=opt.bleu_tokenize, force=True)


def read_text(src: str, tgt: str) -> Text:
    """Two files of equal length without blank lines."""
    source, target = zip(*read_parallel(src, tgt), strict=True)
    text = Text(list(source), list(target))
    for path, lines in ((src, text.source), (tgt, text.target)):
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise UserError(
                    f"{path}, line {number}: blank, and cannot be scored; take the line out of both files"
                )
    return text


def check_models(paths: Sequence[str]) -> None:
    """Refuse, before the first is scored, files that are no models with -attention."""
    from onmt_varattn.nmt.model import checkpoint

    for path in paths:
        if getattr(checkpoint.load(path)["opt"], "attention", None) is None:
            raise UserError(
                f"{path}: not trained with -attention, so it has no alignments to score; "
                "onmt_translate -tgt gives its BLEU"
            )


def load(path: str, opt: Any) -> "Model":
    """A model, with the settings that it is to translate with."""
    from onmt_varattn.api import Model

    settings = {name: getattr(opt, name) for name in ("gpu", "batch_size", "allow_nonfinite", *DECODING)}
    return Model(path, **settings)


def evaluate_model(model: "Model", path: str, text: Text, opt: Any) -> dict[str, Any]:
    """All that is known of a model, as it is written."""
    from onmt_varattn.analysis.evaluation import score
    from onmt_varattn.analysis.fit import warn_of_findings, warn_of_unknown

    pairs = [pair_of(model, i, text, opt) for i in range(len(text.source))]
    fit = warn_of_unknown(model, pairs, opt.src, opt.tgt)
    attention = model.model_opt.attention
    torch.manual_seed(opt.seed)
    sizes = [sum(len(side.tokens) for side in pair) for pair in pairs]
    with progress(total=len(pairs), desc=f"scoring {path}", unit="sentences", work=sum(sizes)) as bar:
        readings = counted(model.read(pairs, opt.batch_size), sizes, bar)
        scores = score(readings, attention, text.words, [k for k in opt.kmax if k], opt.samples)
    if not scores.finite:
        raise UserError(f"{path}: its likelihoods are not finite numbers; it cannot be scored")
    warn_of_findings(model, fit, scores.findings)
    bleu, bleu_signature = bleu_scores(model, path, text, opt) if opt.bleu else ({}, None)
    result = {
        "model": path,
        "attention": attention,
        "estimator": model.model_opt.attention_estimator,
        "posterior": model.model_opt.posterior,
        "unknown": fit.unknown,
        **asdict(scores),
        "bleu": bleu,
        "bleu_signature": bleu_signature,
    }
    return {**result, "signature": signature(result, len(pairs), opt)}


def pair_of(model: "Model", i: int, text: Text, opt: Any) -> Any:
    """A pair as a model reads it."""
    try:
        return model.sentences(text.source[i], text.target[i])
    except UserError:
        raise UserError(
            f"{opt.src} or {opt.tgt}, line {i + 1}: the model sees no word in it; "
            "take the line out of both files"
        ) from None


def counted(readings: "Iterable[Reading]", sizes: Sequence[int], bar: Any) -> "Iterator[Reading]":
    """Show how many pairs are done."""
    for reading in readings:
        yield reading
        bar.update(len(reading.lines), sum(sizes[i] for i in reading.lines))


def bleu_scores(model: "Model", path: str, text: Text, opt: Any) -> tuple[dict[str, float], str]:
    """BLEU for the natural way of testing and for each K; and sacreBLEU's signature."""
    from onmt_varattn.analysis.evaluation import decoding_options
    from onmt_varattn.latent import OBJECTIVES
    from onmt_varattn.latent.mixtures import way_of

    natural = OBJECTIVES[model.model_opt.attention].natural
    chosen = opt.kmax if opt.bleu_kmax is None else opt.bleu_kmax
    others = [] if natural == "samples" else list(map(way_of, chosen))
    ways = list(dict.fromkeys([natural, *others]))
    bleu = metric(opt, model.processing.tgt.lowercase)
    scores, step = {}, BATCHES_TRANSLATED * opt.batch_size
    total = len(ways) * len(text.source)
    with progress(total=total, desc=f"translating with {path}", unit="sentences") as bar:
        for way in ways:
            torch.manual_seed(opt.seed)
            translations: list[str] = []
            options = decoding_options(way, opt.samples)
            for start in range(0, len(text.source), step):
                translations += model.translate(text.source[start : start + step], **options)
                bar.update(min(step, len(text.source) - start))
            scores[way] = bleu.corpus_score(translations, [text.target]).score
    return scores, str(bleu.get_signature())


def signature(result: dict[str, Any], sentences: int, opt: Any) -> str:
    """What the numbers depend on, after sacreBLEU's fashion."""
    unknown = result["unknown"]
    parts = {name: result[name] for name in ("model", "attention", "estimator", "posterior")}
    if result["natural"] == "samples":
        parts |= {"samples": opt.samples, "seed": opt.seed}
    parts |= {
        "src": opt.src,
        "tgt": opt.tgt,
        "sentences": f"{sentences:,}",
        "tokens": f"{result['tokens']:,}",
        "words": f"{result['words']:,}",
        "unknown": f"{unknown['src']:.1%}, {unknown['tgt']:.1%}",
    }
    if result["bleu"]:
        parts |= {
            name: f"{value:g}" if isinstance(value, float) else value
            for name, value in ((name, getattr(opt, name)) for name in DECODING)
        }
    parts["version"] = version()
    return "|".join(f"{name}:{value}" for name, value in parts.items() if value is not None)


def version() -> str:
    """Of what makes the numbers."""
    return f"onmt_varattn {onmt_varattn.__version__} torch {torch.__version__.split('+')[0]}"


NATS = {
    "ELBO": "elbo",
    "KL": "kl",
    "H(p)": "prior_entropy",
    "H(q)": "posterior_entropy",
    "H(exact)": "exact_posterior_entropy",
}


def line_of(result: dict[str, Any]) -> str:
    """A line for a paper: all numbers, and what they depend on."""
    natural = result["natural"]

    def by_way(scores: dict[str, float], errors: dict[str, float], name: str) -> list[str]:
        first = f"{name} = {number(scores[natural], 2, errors.get(natural))} ({natural})"
        return [first, *(f"{way} {number(scores[way], 2)}" for way in scores if way != natural)]

    parts = by_way(result["ppl"], result["ppl_standard_error"], "PPL per token")
    parts.append(f"PPL per word = {number(result['word_ppl'][natural], 2)} ({natural})")
    parts += [f"{name} {nats(result, key)}" for name, key in NATS.items() if result[key] is not None]
    parts.append(f"accuracy {number(result['accuracy'], 1)}")
    if result["bleu"]:
        parts += by_way(result["bleu"], {}, "BLEU")
        parts.append(result["bleu_signature"])
    return " | ".join([*parts, result["signature"]])


def tables(results: Sequence[dict[str, Any]]) -> str:
    """Everything in Markdown, a row a model."""

    def by_way(title: str, key: str, errors: bool = False) -> str:
        ways = sorted({way for result in results for way in result[key]}, key=place)
        cells = [
            [
                number(result[key].get(way), 2, result["ppl_standard_error"].get(way) if errors else None)
                for way in ways
            ]
            for result in results
        ]
        return f"{title}\n\n" + table(["model", "attention", *ways], rows_of(results, cells))

    parts = [
        by_way("Perplexity per token", "ppl", errors=True),
        by_way("Perplexity per word", "word_ppl"),
        "Nats per token: bound, divergence KL(q, p), entropies of prior p, posterior q and exact "
        "posterior; accuracy in percent\n\n"
        + table(
            ["model", "attention", *NATS, "accuracy"],
            rows_of(
                results,
                [[*(nats(r, key) for key in NATS.values()), number(r["accuracy"], 1)] for r in results],
            ),
        ),
    ]
    if any(result["bleu"] for result in results):
        parts.append(by_way("BLEU", "bleu"))
    return "\n\n".join(parts)


def place(way: str) -> tuple[int, int]:
    """Where a way of testing stands in a table."""
    order = ["exact", "kmax", "soft", "samples"]
    kind = way.rstrip("0123456789")
    return order.index(kind), int(way.removeprefix(kind) or 0)


def rows_of(results: Sequence[dict[str, Any]], cells: Sequence[list[str]]) -> list[list[str]]:
    """Rows that begin with the model."""
    return [[result["model"], result["attention"], *row] for result, row in zip(results, cells, strict=True)]


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table that can be read as it is; all columns but the first two are numbers."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(aligned)} |"

    rule = ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def nats(result: dict[str, Any], key: str) -> str:
    """A number of nats per token."""
    return number(result[key], 3, result["elbo_standard_error"] if key == "elbo" else None)


def number(value: float | None, digits: int, error: float | None = None) -> str:
    """A number, perhaps with its standard error; "-" for none."""
    if value is None:
        return "-"
    shown = f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2g}"
    return shown + ("" if error is None else f" ± {error:.2g}")


if __name__ == "__main__":
    main()

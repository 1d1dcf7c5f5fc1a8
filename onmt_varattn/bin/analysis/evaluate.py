"""onmt_evaluate: perplexities, bounds, entropies, BLEU, chrF and TER of models with -attention."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from onmt_varattn.analysis.report import NATS, model_table, nats, number, signature, version, way_table
from onmt_varattn.errors import UserError
from onmt_varattn.nmt.parsers import EvaluateSettings, check_evaluation, evaluate_parser
from onmt_varattn.nmt.plugin import register
from onmt_varattn.nmt.text.scores import NAMES, score_text
from onmt_varattn.training.memory import keep_freed_memory
from onmt_varattn.utils.cli import run
from onmt_varattn.utils.files import to_json, write_result
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.reading import read_parallel

if TYPE_CHECKING:
    from onmt_varattn.analysis.reading import Reading
    from onmt_varattn.api import Model

BATCHES_TRANSLATED = 4  # at a time, sorted by length: between two steps of the progress bar
DECODING = ("beam", "length_penalty", "alpha", "eos_norm", "max_length")


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: evaluate(check_evaluation(evaluate_parser().parse_args(args))))


@dataclass(frozen=True)
class Text:
    """Sentences and their translations."""

    source: list[str]
    target: list[str]

    @property
    def words(self) -> int:
        """Words of the target between spaces, and an end of sentence a line: the same for all models."""
        return sum(len(line.split()) + 1 for line in self.target)


def evaluate(opt: EvaluateSettings) -> None:
    """Check everything, score one model after the other, write and print."""
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


def read_text(src: str, tgt: str) -> Text:
    """Two files of equal length without blank lines."""
    source, target = zip(*read_parallel(src, tgt), strict=True)
    text = Text(list(source), list(target))
    for path, lines in ((src, text.source), (tgt, text.target)):
        for row, line in enumerate(lines, 1):
            if not line.strip():
                raise UserError(
                    f"{path}, line {row}: blank, and cannot be scored; take the line out of both files"
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


def load(path: str, opt: EvaluateSettings) -> "Model":
    """A model, with the settings that it is to translate with."""
    from onmt_varattn.api import Model

    settings = {name: getattr(opt, name) for name in ("gpu", "batch_size", "allow_nonfinite", *DECODING)}
    return Model(path, **settings)


def evaluate_model(model: "Model", path: str, text: Text, opt: EvaluateSettings) -> dict[str, Any]:
    """All that is known of a model, as it is written."""
    from onmt_varattn.analysis.evaluation import score
    from onmt_varattn.nmt.text.fit import warn_of_findings, warn_of_unknown

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
    none: dict[str, Any] = {name: {} for name in NAMES} | {f"{name}_signature": None for name in NAMES}
    result = {
        "model": path,
        "attention": attention,
        "estimator": model.model_opt.attention_estimator,
        "posterior": model.model_opt.posterior,
        "unknown": fit.unknown,
        **asdict(scores),
        **(text_scores(model, path, text, opt) if opt.bleu else none),
    }
    return {**result, "signature": signature(settings(result, len(pairs), opt))}


def pair_of(model: "Model", i: int, text: Text, opt: EvaluateSettings) -> Any:
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


def text_scores(model: "Model", path: str, text: Text, opt: EvaluateSettings) -> dict[str, Any]:
    """BLEU, chrF and TER of the natural test-time mixture and of each K, with their signatures."""
    from onmt_varattn.analysis.evaluation import decoding_options
    from onmt_varattn.latent import OBJECTIVES
    from onmt_varattn.latent.mixtures import way_of

    natural = OBJECTIVES[model.model_opt.attention].natural
    chosen = opt.kmax if opt.bleu_kmax is None else opt.bleu_kmax
    others = [] if natural == "samples" else list(map(way_of, chosen))
    ways = list(dict.fromkeys([natural, *others]))
    found: dict[str, Any] = {name: {} for name in NAMES}
    step, total = BATCHES_TRANSLATED * opt.batch_size, len(ways) * len(text.source)
    with progress(total=total, desc=f"translating with {path}", unit="sentences") as bar:
        for way in ways:
            torch.manual_seed(opt.seed)
            translations: list[str] = []
            options = decoding_options(way, opt.samples)
            for start in range(0, len(text.source), step):
                translations += model.translate(text.source[start : start + step], **options)
                bar.update(min(step, len(text.source) - start))
            lowercase = model.processing.tgt.lowercase
            for name, score in score_text(translations, text.target, lowercase, opt.bleu_tokenize).items():
                found[name][way], found[f"{name}_signature"] = score.score, score.signature
    return found


def settings(result: dict[str, Any], sentences: int, opt: EvaluateSettings) -> dict[str, Any]:
    """Settings that the numbers depend on, for the signature."""
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
    return {**parts, "version": version()}


def line_of(result: dict[str, Any]) -> str:
    """All numbers of a model in one line, with their signature."""
    natural = result["natural"]

    def by_way(scores: dict[str, float], errors: dict[str, float], name: str) -> list[str]:
        first = f"{name} = {number(scores[natural], 2, errors.get(natural))} ({natural})"
        return [first, *(f"{way} {number(scores[way], 2)}" for way in scores if way != natural)]

    parts = by_way(result["ppl"], result["ppl_standard_error"], "PPL per token")
    parts.append(f"PPL per word = {number(result['word_ppl'][natural], 2)} ({natural})")
    parts += [f"{name} {nats(result, key)}" for name, key in NATS.items() if result[key] is not None]
    parts.append(f"accuracy {number(result['accuracy'], 1)}")
    if result["bleu"]:
        for key, name in NAMES.items():
            parts += [*by_way(result[key], {}, name), result[f"{key}_signature"]]
    return " | ".join([*parts, result["signature"]])


def tables(results: Sequence[dict[str, Any]]) -> str:
    """All numbers as Markdown tables, with one row per model."""
    parts = [
        way_table("Perplexity per token", results, "ppl", errors="ppl_standard_error"),
        way_table("Perplexity per word", results, "word_ppl"),
        model_table(
            "Nats per token: bound, divergence KL(q, p), entropies of prior p, posterior q and exact "
            "posterior; accuracy in percent",
            [*NATS, "accuracy"],
            results,
            lambda r: [*(nats(r, key) for key in NATS.values()), number(r["accuracy"], 1)],
        ),
    ]
    if any(result["bleu"] for result in results):
        parts += [way_table(name, results, key) for key, name in NAMES.items()]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()

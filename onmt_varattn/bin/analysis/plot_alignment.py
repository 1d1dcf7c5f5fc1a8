"""onmt_plot_alignment: draw distributions over the alignments of one sentence pair."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onmt_varattn.errors import UserError, require
from onmt_varattn.training.settings import CheckpointSettings
from onmt_varattn.utils.cli import parse, run
from onmt_varattn.utils.files import check_output
from onmt_varattn.utils.reading import read_lines
from onmt_varattn.utils.settings import setting

NAMES = {"prior": "prior", "posterior": "posterior", "exact": "exact posterior"}


@dataclass(kw_only=True)
class PlotSettings(CheckpointSettings):
    """Settings of onmt_plot_alignment."""

    description = "Draw distributions over the alignments of one sentence pair."

    model: str = setting(help="Checkpoint.")
    compare: str | None = setting(
        None,
        help="Another checkpoint, such as one with soft attention: a second panel has its prior (red) "
        "against that of -model (blue).",
    )
    src: str | None = setting(None, help="Source sentences; with -tgt and -line.")
    tgt: str | None = setting(None, help="Their translations, line by line.")
    line: int = setting(1, help="Line of -src and -tgt, from 1.")
    source: str | None = setting(None, help="Source sentence, instead of -src.")
    target: str | None = setting(None, help="Its translation, instead of -tgt.")
    kinds: list[str] = setting(
        ["prior", "posterior"],
        option="from",
        choices=list(NAMES),
        help="One or two distributions of -model: the first is red, in the upper left half of each cell, "
        "the second blue, in the lower right half. exact is the true posterior, by enumeration.",
    )
    output: list[str] = setting(
        repeats=True, help="Output files; the ending decides the format: .png, .svg or .pdf."
    )


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: plot_alignment(parse(PlotSettings, args)))


def plot_alignment(opt: PlotSettings) -> None:
    """Check everything that needs no model; then read the sentence and draw it."""
    outputs = opt.output
    check_outputs(opt, outputs)
    if len(set(opt.kinds)) != len(opt.kinds) or len(opt.kinds) > 2:
        raise UserError(f"-from {' '.join(opt.kinds)}: one panel shows one distribution, or two different")
    source, target = sentence_pair(opt)

    from onmt_varattn.analysis.figures import plot
    from onmt_varattn.analysis.fonts import advice

    missing = plot(panels(opt, source, target), outputs)
    for sentence in advice([source, target], missing):
        print(f"warning: {sentence}", file=sys.stderr)
    print(f"{' and '.join(NAMES[kind] for kind in opt.kinds)} written to {', '.join(outputs)}")


def panels(opt: PlotSettings, source: str, target: str) -> list[Any]:
    """The model's own distributions, and with -compare both models' priors."""
    from onmt_varattn.analysis.figures import Panel
    from onmt_varattn.api import Model
    from onmt_varattn.nmt.text.fit import warn_of_unknown

    paths = [opt.model, *([opt.compare] if opt.compare else [])]
    models = [Model(path, gpu=opt.gpu, allow_nonfinite=opt.allow_nonfinite) for path in paths]
    try:
        models[0].check_kinds(opt.kinds)
    except UserError as error:
        works = [kind for kind in ("prior", "posterior", "exact") if kind in models[0].kinds]
        raise UserError(f"{error} (-from {' '.join(works[:2])} works)") from None
    for model in models:
        warn_of_unknown(model, [model.sentences(source, target)], opt.src or "-source", opt.tgt or "-target")
    kinds = dict.fromkeys([*opt.kinds, "prior"])
    own, *others = [
        next(model.attentions([(source, target)], list(kinds) if model is models[0] else ["prior"]))[1]
        for model in models
    ]
    names = [attention_name(model) for model in models]
    found = [Panel(names[0], {NAMES[kind]: own[kind] for kind in opt.kinds})]
    for other in others:
        check_same_words(own["prior"], other["prior"], opt)
        if names[0] == names[1]:
            names = [os.path.basename(path) if len(set(paths)) > 1 else path for path in paths]
        found.append(Panel("priors of two models", {names[1]: other["prior"], names[0]: own["prior"]}))
    return found


def attention_name(model: Any) -> str:
    """Name of the attention that a model was trained with."""
    return f"{getattr(model.model_opt, 'attention', None) or model.model_opt.global_attention} attention"


def check_same_words(one: Any, other: Any, opt: PlotSettings) -> None:
    """Check that two models split the sentence pair into the same words."""
    if (one.source, one.target) != (other.source, other.target):
        raise UserError(
            f"-compare {opt.compare} splits this sentence into other words than -model {opt.model}; "
            "compare models of the same preprocessing"
        )


def check_outputs(opt: PlotSettings, outputs: Sequence[str]) -> None:
    """Check that all pictures can be written, in a format known by its extension."""
    from onmt_varattn.analysis.figures import ending_of

    require("matplotlib")
    for path in outputs:
        ending_of(path)
        check_output(
            "output", path, [(name, getattr(opt, name)) for name in ("model", "compare", "src", "tgt")]
        )


def sentence_pair(opt: PlotSettings) -> tuple[str, str]:
    """The two sentences, from files or from the command line."""
    typed, files = (opt.source, opt.target), (opt.src, opt.tgt)
    given = [pair for pair in (typed, files) if all(value is not None for value in pair)]
    if len(given) != 1 or any(
        value is not None for pair in (typed, files) if pair not in given for value in pair
    ):
        raise UserError("give one sentence pair: -src and -tgt with -line, or -source and -target")
    if given[0] is files:
        source, target = (line_of(str(path), opt.line) for path in files)
    else:
        source, target = map(str, typed)
    for side, text in (("source", source), ("target", target)):
        if not text.split():
            place = f"line {opt.line} of {opt.src if side == 'source' else opt.tgt}"
            raise UserError(
                f"{place if given[0] is files else '-' + side} is blank; choose a pair with words"
            )
    return source, target


def line_of(path: str, number: int) -> str:
    """A line of a file, from 1."""
    lines = read_lines(path)
    if not 1 <= number <= len(lines):
        raise UserError(f"-line {number}: {path} has {len(lines):,} lines, counted from 1")
    return lines[number - 1]


if __name__ == "__main__":
    main()

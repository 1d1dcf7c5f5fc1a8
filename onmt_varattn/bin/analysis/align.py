"""Align the words of parallel text with a trained model, and compare with gold alignments."""

from collections.abc import Sequence
from dataclasses import dataclass

from onmt_varattn.analysis.alignment import (
    Gold,
    Links,
    best_links,
    parse_gold,
    pharaoh,
    score_alignments,
    threshold_links,
)
from onmt_varattn.analysis.informative import Informative
from onmt_varattn.analysis.reading import Sentence
from onmt_varattn.analysis.symmetry import METHODS, symmetrize
from onmt_varattn.api import Model
from onmt_varattn.errors import UserError
from onmt_varattn.nmt.text.fit import Fit, warn_of_findings, warn_of_unknown
from onmt_varattn.training.settings import CheckpointSettings
from onmt_varattn.utils.cli import parse, run
from onmt_varattn.utils.files import check_output, write_result
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.reading import check_parallel, read_lines, read_parallel
from onmt_varattn.utils.settings import fill, setting

KINDS = ("posterior", "exact", "prior")
"""Distributions over alignments, the best aligner first: name, and name in a `Reading`."""

Lines = list[tuple[str, str]]
Pairs = list[tuple[Sentence, Sentence]]


@dataclass(kw_only=True)
class AlignSettings(CheckpointSettings):
    """Settings of onmt_align."""

    description = "Align the words of parallel text with a trained model."

    model: str = setting(help="Checkpoint of any model with attention.")
    src: str = setting(help="Source sentences, raw as for onmt_translate.")
    tgt: str = setting(help="Their translations, line by line.")
    output: str = setting(also=("o",), help="Output file of links (source-target, counted from 0).")
    kind: str | None = setting(
        None,
        option="from",
        choices=["prior", "posterior", "exact"],
        help="Distribution from which links are taken: the prior, which has not seen the word it aligns, the "
        "posterior of the inference network, or the exact posterior of the model, by enumeration. "
        "Default: posterior where the model has one, else exact, else prior.",
    )
    method: str = setting(
        "argmax",
        choices=["argmax", "threshold"],
        help="argmax: each target word's most probable source word (no link where that is NULL, see "
        "-null_alignment); threshold: all that are as probable as -threshold.",
    )
    threshold: float = setting(
        None, help="Least probability of a link. Default: 0.3.", above=0, at_most=1, usual=0.3
    )
    reverse_model: str | None = setting(None, help="Checkpoint that translates -tgt to -src.")
    symmetrize: str = setting(
        None,
        choices=list(METHODS),
        help="How the links of both models are combined. Default: grow-diag-final-and.",
        usual="grow-diag-final-and",
    )
    gold: str | None = setting(
        None, help="Gold alignments to compare with: sure links as 0-0, possible ones as 1?2 or 1p2."
    )
    gold_base: int = setting(0, choices=[0, 1], help="Number of the first word in -gold.")
    batch_size: int = setting(32, help="Sentence pairs per batch.", at_least=1)


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: align(parse(AlignSettings, args)))


def align(opt: AlignSettings) -> None:
    """Align two files."""
    check_options(opt)
    lines = read_parallel(opt.src, opt.tgt)
    gold_lines = read_lines(opt.gold) if opt.gold else None
    if opt.gold and gold_lines is not None:
        check_parallel([opt.src, opt.gold], [len(lines), len(gold_lines)])
    model = Model(opt.model, gpu=opt.gpu, allow_nonfinite=opt.allow_nonfinite)
    reverse = None
    if opt.reverse_model:
        reverse = Model(opt.reverse_model, gpu=opt.gpu, allow_nonfinite=opt.allow_nonfinite)
    kind = choose_kind(opt.kind, [model, *([reverse] if reverse else [])])
    pairs = sentences(model, lines)
    fit = warn_of_unknown(model, pairs, opt.src, opt.tgt)
    gold = None
    if gold_lines is not None:
        gold = [read_gold(opt, i, line, pairs[i]) for i, line in enumerate(gold_lines)]
    if reverse is None:
        found = find_links(model, pairs, kind, opt, fit)
    else:
        swapped_pairs = sentences(reverse, [(target, source) for source, target in lines])
        swapped_fit = warn_of_unknown(reverse, swapped_pairs, opt.tgt, opt.src)
        check_units(opt, pairs, swapped_pairs)
        forward = find_links(model, pairs, kind, opt, fit)
        backward = find_links(reverse, swapped_pairs, kind, opt, swapped_fit)
        found = [
            symmetrize(opt.symmetrize, ahead, frozenset((i, j) for j, i in back))
            for ahead, back in zip(forward, backward, strict=True)
        ]
    try:
        write_result(opt.output, "".join(pharaoh(links) + "\n" for links in found))
    finally:
        print(summary(opt, kind, pairs, found, gold))


def check_options(opt: AlignSettings) -> None:
    """Check options, and set defaults that depend on other options."""
    if opt.threshold is not None and opt.method != "threshold":
        raise UserError(
            f"-threshold {opt.threshold} is for -method threshold; give that too, or leave it out"
        )
    if opt.symmetrize and not opt.reverse_model:
        raise UserError(f"-symmetrize {opt.symmetrize} needs a model for the other direction: -reverse_model")
    fill(opt)
    inputs = ("model", "src", "tgt", "reverse_model", "gold")
    check_output("output", opt.output, [(name, getattr(opt, name)) for name in inputs])


def choose_kind(wanted: str | None, models: Sequence[Model]) -> str:
    """The requested distribution, or the best aligner that all models have."""
    works = next(kind for kind in KINDS if all(kind in model.kinds for model in models))
    if wanted is None:
        return works
    for model in models:
        try:
            model.check_kinds([wanted])
        except UserError as error:
            raise UserError(f"-from {wanted}: {error} (-from {works} works)") from None
    return wanted


def sentences(model: Model, lines: Lines) -> Pairs:
    """Raw pairs as the model reads them."""
    source, target = model.processing.src, model.processing.tgt
    return [(source.sentence(one), target.sentence(other)) for one, other in lines]


def check_units(opt: AlignSettings, forward: Pairs, backward: Pairs) -> None:
    """Check that both models split the text into the same words."""
    for i, (ahead, back) in enumerate(zip(forward, backward, strict=True), 1):
        for path, one, other in ((opt.src, ahead[0], back[1]), (opt.tgt, ahead[1], back[0])):
            if len(one.labels) != len(other.labels):
                raise UserError(
                    f"{path}, line {i}: {len(one.labels)} words for {opt.model} and {len(other.labels)} for "
                    f"{opt.reverse_model}; both models need the same tokenisation (onmt_preprocess -tokenize)"
                )


def read_gold(opt: AlignSettings, number: int, line: str, pair: tuple[Sentence, Sentence]) -> Gold:
    """Parse a line of gold links, which must be between words of the pair."""
    place = f"{opt.gold}, line {number + 1}"
    gold = parse_gold(line, place, opt.gold_base)
    sizes = [len(side.labels) for side in pair]
    for source, target in sorted(gold.possible):
        if source >= sizes[0] or target >= sizes[1]:
            raise UserError(
                f"{place}: link {source + opt.gold_base}-{target + opt.gold_base} is outside of a sentence "
                f"pair with {sizes[0]} and {sizes[1]} words, counted from {opt.gold_base} (-gold_base)"
            )
    return gold


def find_links(model: Model, pairs: Pairs, kind: str, opt: AlignSettings, fit: Fit) -> list[Links]:
    """Links of every pair, in order; a pair with a blank side has none. Warns of uninformative alignments."""
    found: list[Links] = [frozenset()] * len(pairs)
    informative = Informative()
    whole = [i for i, pair in enumerate(pairs) if all(side.tokens for side in pair)]
    sizes = [sum(len(side.tokens) for side in pairs[i]) for i in whole]
    with progress(total=len(whole), desc="aligning", unit="pairs", work=sum(sizes)) as bar:
        for n, by_kind in model.attentions([pairs[i] for i in whole], [kind], opt.batch_size):
            one, threshold = by_kind[kind], opt.method == "threshold"
            found[whole[n]] = (
                threshold_links(one.probs, opt.threshold, one.null) if threshold else best_links(one)
            )
            informative.add(one.probs)
            bar.update(work=sizes[n])
    warn_of_findings(model, fit, [informative.finding(kind)])
    return found


def summary(opt: AlignSettings, kind: str, pairs: Pairs, found: list[Links], gold: list[Gold] | None) -> str:
    """Summary of an alignment run in one line."""
    links, words = sum(map(len, found)), sum(len(target.labels) for _, target in pairs)
    blank = sum(not all(side.tokens for side in pair) for pair in pairs)
    method = opt.method + (f" {opt.threshold:g}" if opt.method == "threshold" else "")
    line = f"{opt.output}: {len(pairs)} pairs, {links} links, {links / max(words, 1):.2f} per target word"
    line += f", {method} of {kind}" + (f", {opt.symmetrize}" if opt.reverse_model else "")
    if blank:
        line += f", {blank} pairs with a blank side left empty"
    if gold is not None:
        score = score_alignments(zip(found, gold, strict=True))
        line += (
            f"; precision {score.precision:.1%}, recall {score.recall:.1%}, AER {score.error_rate:.1%} "
            f"({score.sure} sure and {sum(len(line.possible) for line in gold)} possible links)"
        )
    return line


if __name__ == "__main__":
    main()

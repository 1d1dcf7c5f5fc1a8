"""onmt_explore: write a page to look at a model's alignments."""

import os
from collections.abc import Sequence
from typing import Any

import torch

from onmt_varattn.errors import UserError
from onmt_varattn.training.settings import CheckpointSettings
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.files import check_writable, write_result
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.reading import read_parallel
from onmt_varattn.utils.settings import add_to


def explore_parser() -> Parser:
    """All options of onmt_explore."""
    parser = Parser(description="Write a page (one HTML file) to look at a model's alignments.")
    parser.add("-model", "--model", required=True, help="Checkpoint of a model trained with -attention.")
    parser.add("-src", "--src", required=True, help="Source sentences.")
    parser.add("-tgt", "--tgt", required=True, help="Their translations, line by line.")
    parser.add("-output", "--output", required=True, help="Where to write the page, such as report.html.")
    parser.add(
        "-sentences",
        "--sentences",
        type=int,
        default=500,
        help="How many sentence pairs the page has, from the first on; blank ones are left out.",
    )
    parser.add(
        "-kmax",
        "--kmax",
        type=int,
        default=5,
        help="Mark this many most probable alignments of each word, as K-max decoding takes them; 0: none.",
    )
    parser.add("-gpu", "--gpu", type=int, default=-1, help="Device; -1 is the CPU.")
    add_to(parser, CheckpointSettings)
    parser.add("-seed", "--seed", type=int, default=1, help="For the samples of a relaxed model.")
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: explore(explore_parser().parse_args(args)))


def explore(opt: Any) -> None:
    """Read the sentences, write the page."""
    check(opt)
    every = read_parallel(opt.src, opt.tgt)
    from onmt_varattn.analysis.explorer import Explorer, Pair
    from onmt_varattn.api import Model
    from onmt_varattn.nmt.text.fit import warn_of_findings, warn_of_unknown

    whole = [Pair(line, *pair) for line, pair in enumerate(every, 1) if all(side.split() for side in pair)]
    if not whole:
        raise UserError(f"{opt.src} and {opt.tgt} have no pair of sentences with words")
    pairs = whole[: opt.sentences]
    model = Model(opt.model, gpu=opt.gpu, allow_nonfinite=opt.allow_nonfinite)
    explorer = Explorer(model, opt.kmax)
    read = [model.sentences(pair.source, pair.target) for pair in pairs]
    fit = warn_of_unknown(model, read, opt.src, opt.tgt)
    torch.manual_seed(opt.seed)
    sizes = [sum(len(side.tokens) for side in pair) for pair in read]
    found = {}
    with progress(total=len(pairs), desc="reading", unit="sentence pairs", work=sum(sizes)) as bar:
        for i, sentence in explorer.sentences(pairs):
            found[i] = sentence
            bar.update(work=sizes[i])
    warn_of_findings(model, fit, explorer.findings())
    page = explorer.page([found[i] for i in range(len(pairs))], opt.model, (opt.src, opt.tgt))
    write_result(opt.output, page)
    size = len(page.encode()) / 1e6
    print(f"{len(pairs):,} sentence pairs written to {opt.output} ({size:.1f} MB); open it in a browser")
    if blank := len(every) - len(whole):
        print(f"left out: pairs with a blank side: {blank:,}")
    if more := len(whole) - len(pairs):
        print(f"left out: pairs beyond -sentences {opt.sentences}: {more:,}")


def check(opt: Any) -> None:
    """Refuse what can be refused before the model is loaded."""
    if opt.sentences < 1:
        raise UserError(f"-sentences {opt.sentences} must be at least 1")
    if opt.kmax < 0:
        raise UserError(f"-kmax {opt.kmax} must not be negative")
    for name in ("model", "src", "tgt"):
        if os.path.realpath(getattr(opt, name)) == os.path.realpath(opt.output):
            raise UserError(f"-output {opt.output} is -{name} and would be written over")
    check_writable(opt.output)


if __name__ == "__main__":
    main()

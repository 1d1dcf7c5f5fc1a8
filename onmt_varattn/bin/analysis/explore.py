"""onmt_explore: write a page to look at a model's alignments."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from onmt_varattn.errors import UserError
from onmt_varattn.training.settings import CheckpointSettings
from onmt_varattn.utils.cli import parse, run
from onmt_varattn.utils.files import check_output, write_result
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.reading import read_parallel
from onmt_varattn.utils.settings import setting


@dataclass(kw_only=True)
class ExploreSettings(CheckpointSettings):
    """Settings of onmt_explore."""

    description = "Write a page (one HTML file) with the alignments of a model."

    model: str = setting(help="Checkpoint of a model trained with -attention.")
    src: str = setting(help="Source sentences.")
    tgt: str = setting(help="Their translations, line by line.")
    output: str = setting(help="Output file, such as report.html.")
    sentences: int = setting(
        500,
        help="Number of sentence pairs on the page, from the first on; blank ones are left out.",
        at_least=1,
    )
    kmax: int = setting(
        5,
        help="Number of most probable alignments that are marked per word, as in K-max decoding. 0: none.",
        at_least=0,
    )
    seed: int = setting(1, help="Random seed for the samples of a relaxed model.")


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: explore(parse(ExploreSettings, args)))


def explore(opt: ExploreSettings) -> None:
    """Read the sentences, write the page."""
    check_output("output", opt.output, [("model", opt.model), ("src", opt.src), ("tgt", opt.tgt)])
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


if __name__ == "__main__":
    main()

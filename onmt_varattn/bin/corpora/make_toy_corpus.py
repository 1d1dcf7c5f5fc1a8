"""onmt_make_toy_corpus: write a toy German-English corpus with gold word alignments.

    onmt_make_toy_corpus -output data/toy

writes data/toy/{train,valid,test}.{de,en,align}; alignments are in Pharaoh format, "source-target"
word positions from 0.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.corpora.toy.corpus import MOST_SENTENCES, generate, summary, write
from onmt_varattn.utils.cli import Parser, run


def toy_corpus_parser() -> Parser:
    """All options of onmt_make_toy_corpus."""
    parser = Parser(description="Write a toy German-English corpus with gold word alignments.")
    parser.add("-output", "--output", required=True, help="Directory for {train,valid,test}.{de,en,align}.")
    for name, size in {"train": 20_000, "valid": 500, "test": 500}.items():
        parser.add(f"-{name}", f"--{name}", type=int, default=size, help=f"Number of {name} sentences.")
    parser.add("-seed", "--seed", type=int, default=1, help="Random seed, 0 or more.")
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: make_toy_corpus(toy_corpus_parser().parse_args(args)))


def make_toy_corpus(opt: Any) -> None:
    """Draw the corpus and write it."""
    # Held-out sentences are drawn first, so that they stay the same whatever the size of train.
    sizes = {"valid": opt.valid, "test": opt.test, "train": opt.train}
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"-{name} {size}: expected at least 1 sentence")
    if sum(sizes.values()) > MOST_SENTENCES:
        raise UserError(
            f"-train, -valid and -test ask for {sum(sizes.values())} sentences together: "
            f"the grammar supplies {MOST_SENTENCES} without repeats"
        )
    if opt.seed < 0:
        raise UserError(f"-seed {opt.seed}: expected 0 or more")
    drawn = iter(generate(sum(sizes.values()), opt.seed))
    splits = {name: list(itertools.islice(drawn, size)) for name, size in sizes.items()}
    write(splits, opt.output)
    print(summary(splits))


if __name__ == "__main__":
    main()

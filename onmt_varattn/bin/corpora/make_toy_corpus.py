"""onmt_make_toy_corpus: write a toy German-English corpus with gold word alignments.

    onmt_make_toy_corpus -output data/toy

writes data/toy/{train,valid,test}.{de,en,align}; alignments are in Pharaoh format, "source-target"
word positions from 0.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.corpora.toy.corpus import MOST_SENTENCES, generate, summary, write
from onmt_varattn.utils.cli import parse, run
from onmt_varattn.utils.settings import Settings, setting


@dataclass(kw_only=True)
class ToySettings(Settings):
    """Settings of onmt_make_toy_corpus."""

    description = "Write a toy German-English corpus with gold word alignments."

    output: str = setting(help="Directory for {train,valid,test}.{de,en,align}.")
    train: int = setting(20_000, help="Number of train sentences.", at_least=1)
    valid: int = setting(500, help="Number of valid sentences.", at_least=1)
    test: int = setting(500, help="Number of test sentences.", at_least=1)
    seed: int = setting(1, help="Random seed, 0 or more.", at_least=0)


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: make_toy_corpus(parse(ToySettings, args)))


def make_toy_corpus(opt: ToySettings) -> None:
    """Draw the corpus and write it."""
    # Held-out sentences are drawn first, so that they stay the same whatever the size of train.
    sizes = {"valid": opt.valid, "test": opt.test, "train": opt.train}
    if sum(sizes.values()) > MOST_SENTENCES:
        raise UserError(
            f"-train, -valid and -test ask for {sum(sizes.values())} sentences together: "
            f"the grammar supplies {MOST_SENTENCES} without repeats"
        )
    drawn = iter(generate(sum(sizes.values()), opt.seed))
    splits = {name: list(itertools.islice(drawn, size)) for name, size in sizes.items()}
    write(splits, opt.output)
    print(summary(splits))


if __name__ == "__main__":
    main()

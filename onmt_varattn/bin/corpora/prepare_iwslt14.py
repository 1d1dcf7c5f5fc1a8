"""prepare_iwslt14: IWSLT 2014, German to English, as the paper has it."""

import dataclasses
import os
import re
from collections.abc import Sequence

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.corpora.prepare import Archive, Corpus, Text, prepare, prepare_opts
from onmt_varattn.nmt.data.preprocessing import preprocess
from onmt_varattn.utils.cli import Parser, run

TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

IWSLT14 = Corpus(
    name="iwslt14",
    src="de",
    tgt="en",
    archives={"talks": Archive("https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")},
    train=(Text("talks", "de-en/train.tags.de-en.de", "de-en/train.tags.de-en.en", "talks"),),
    valid=(),
    test=tuple(
        Text(
            "talks",
            f"de-en/IWSLT14.{name}.de-en.de.xml",
            f"de-en/IWSLT14.{name}.de-en.en.xml",
            "talk_segments",
        )
        for name in TEST_SETS
    ),
    held_out=23,
    lowercase=True,
    merges=14000,
    pairs={"train": 160_239, "valid": 7_283, "test": 6_750},
)


def prepare_iwslt14_parser() -> Parser:
    """All options of prepare_iwslt14."""
    parser = Parser(
        description="Download IWSLT14 German-English, tokenize, clean, split and encode it for onmt_train."
    )
    prepare_opts(parser, IWSLT14)
    parser.add("-url", "--url", default=IWSLT14.archives["talks"].url, help="Where the archive is.")
    parser.add("-archive", "--archive", help="The archive (de-en.tgz) itself, if you have it: no download.")
    parser.add(
        "-sha256",
        "--sha256",
        help="Checksum the archive must have. None is published: without one, that of the first archive "
        "seen is recorded in the output directory, and later ones are compared with it.",
    )
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: prepare_iwslt14(args))


def prepare_iwslt14(args: Sequence[str] | None = None) -> None:
    """Check what was asked for, and prepare the corpus."""
    opt = prepare_iwslt14_parser().parse_args(args)
    if opt.archive and not os.path.isfile(opt.archive):
        raise UserError(f"-archive {opt.archive}: there is no such file; leave the option out to download it")
    if opt.sha256 and not re.fullmatch("[0-9a-fA-F]{64}", opt.sha256):
        raise UserError(f"-sha256 {opt.sha256} is not 64 hexadecimal digits")
    archive = Archive(opt.url, f"sha256:{opt.sha256.lower()}" if opt.sha256 else None, opt.archive)
    prepare(dataclasses.replace(IWSLT14, archives={"talks": archive}), opt, preprocess)


if __name__ == "__main__":
    main()

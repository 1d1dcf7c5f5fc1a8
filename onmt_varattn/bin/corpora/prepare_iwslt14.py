"""prepare_iwslt14: IWSLT 2014, German to English, as the paper has it."""

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.corpora.prepare import Archive, Corpus, PrepareSettings, Text, prepare
from onmt_varattn.nmt.data.preprocessing import preprocess
from onmt_varattn.utils.cli import parse, run
from onmt_varattn.utils.settings import like, setting

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
    pairs={"train": 160_239, "valid": 7_283, "test": 6_750},
)


@dataclass(kw_only=True)
class IWSLT14Settings(PrepareSettings):
    """Settings of onmt_prepare_iwslt14."""

    description = "Download IWSLT14 German-English, tokenize, clean, split and encode it for onmt_train."

    output: str = like(PrepareSettings, "output", f"data/{IWSLT14.name}")
    merges: int = like(PrepareSettings, "merges", 14000)
    url: str = setting(IWSLT14.archives["talks"].url, help="URL of the archive.")
    archive: str | None = setting(None, help="Path of the archive (de-en.tgz), which is then not downloaded.")
    sha256: str | None = setting(
        None,
        help="Checksum of the archive. None is published: without one, that of the first archive is recorded "
        "in the output directory, and later ones are compared with it.",
    )


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: prepare_iwslt14(args))


def prepare_iwslt14(args: Sequence[str] | None = None) -> None:
    """Check what was asked for, and prepare the corpus."""
    opt = parse(IWSLT14Settings, args)
    if opt.archive and not os.path.isfile(opt.archive):
        raise UserError(f"-archive {opt.archive}: there is no such file; leave the option out to download it")
    if opt.sha256 and not re.fullmatch("[0-9a-fA-F]{64}", opt.sha256):
        raise UserError(f"-sha256 {opt.sha256} is not 64 hexadecimal digits")
    archive = Archive(opt.url, f"sha256:{opt.sha256.lower()}" if opt.sha256 else None, opt.archive)
    prepare(dataclasses.replace(IWSLT14, archives={"talks": archive}), opt, preprocess)


if __name__ == "__main__":
    main()

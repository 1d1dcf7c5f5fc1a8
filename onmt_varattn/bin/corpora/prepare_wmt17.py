"""prepare_wmt17: WMT 2017, English to German, with newstest2017 as test set."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass

from onmt_varattn.nmt.corpora.prepare import Archive, Corpus, PrepareSettings, Text, prepare
from onmt_varattn.nmt.data.preprocessing import preprocess
from onmt_varattn.utils.cli import parse, run
from onmt_varattn.utils.settings import like, setting

# Checksums: SHA-256 as TensorFlow Datasets, MD5 as sacreBLEU publishes them. TensorFlow Datasets has
# none of WMT17's own dev.tgz; WMT19's holds the same files, and later test sets.
ARCHIVES = {
    "europarl": Archive(
        "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
        "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
    ),
    "commoncrawl": Archive(
        "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
    ),
    "newscommentary": Archive(
        "https://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",
        "sha256:2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
    ),
    "rapid": Archive(
        "https://data.statmt.org/wmt18/translation-task/rapid2016.tgz",
        "sha256:41557dd5d8f0ed3a6d98bce3b798b1a9d3b68361eb99d902329ddbb943a6b55a",
    ),
    "dev": Archive(
        "https://data.statmt.org/wmt19/translation-task/dev.tgz",
        "sha256:7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
    ),
    "test": Archive(
        "https://data.statmt.org/wmt17/translation-task/test.tgz", "md5:86a1724c276004aa25455ae2a04cef26"
    ),
}
TRAIN = {
    name: Text(name, f"{files}.en", f"{files}.de", "plain")
    for name, files in {
        "europarl": "training/europarl-v7.de-en",
        "commoncrawl": "commoncrawl.de-en",
        "newscommentary": "training/news-commentary-v12.de-en",
        "rapid": "rapid2016.de-en",
    }.items()
}
VALID = {
    "newstest2013": Text("dev", "dev/newstest2013.en", "dev/newstest2013.de", "plain"),
    "newstest2016": Text(
        "dev", "dev/newstest2016-ende-src.en.sgm", "dev/newstest2016-ende-ref.de.sgm", "segments"
    ),
}
WMT17 = Corpus(
    name="wmt17",
    src="en",
    tgt="de",
    archives=ARCHIVES,
    train=tuple(TRAIN.values()),
    valid=(VALID["newstest2013"],),
    test=(
        Text("test", "test/newstest2017-ende-src.en.sgm", "test/newstest2017-ende-ref.de.sgm", "segments"),
    ),
)


@dataclass(kw_only=True)
class WMT17Settings(PrepareSettings):
    """Settings of onmt_prepare_wmt17."""

    description = "Download WMT17 English-German, tokenize, clean and encode it for onmt_train."

    output: str = like(PrepareSettings, "output", f"data/{WMT17.name}")
    corpora: list[str] = setting(list(TRAIN), choices=list(TRAIN), help="Training corpora, in this order.")
    valid: str = setting(
        "newstest2013",
        choices=list(VALID),
        help="Validation set. The paper prepares data as Vaswani et al. (2017), who use newstest2013.",
    )
    downloads: str | None = setting(
        None, help="Directory of the archives; existing ones are not downloaded. Default: -output."
    )
    mirror: str | None = setting(
        None, help="URL of a directory that has all archives under their own names, instead of statmt.org."
    )


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: prepare_wmt17(args))


def prepare_wmt17(args: Sequence[str] | None = None) -> None:
    """Prepare the corpora asked for."""
    opt = parse(WMT17Settings, args)
    train = tuple(TRAIN[name] for name in opt.corpora)
    corpus = dataclasses.replace(WMT17, train=train, valid=(VALID[opt.valid],))
    needed = dict.fromkeys(text.archive for text in corpus.texts())
    archives = {name: _placed(ARCHIVES[name], opt) for name in needed}
    prepare(dataclasses.replace(corpus, archives=archives), opt, preprocess)


def _placed(archive: Archive, opt: WMT17Settings) -> Archive:
    """An archive where the options say it is."""
    name = os.path.basename(archive.url)
    return dataclasses.replace(
        archive,
        url=f"{opt.mirror.rstrip('/')}/{name}" if opt.mirror else archive.url,
        path=os.path.join(opt.downloads or opt.output, name),
    )


if __name__ == "__main__":
    main()

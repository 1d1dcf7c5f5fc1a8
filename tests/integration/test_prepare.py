"""`prepare_iwslt14` and `prepare_wmt17` on tiny archives of the same layout, from a server on this machine."""

import dataclasses
import os
import re
from pathlib import Path

import pytest
import yaml

from onmt_varattn.bin.corpora import prepare_iwslt14, prepare_wmt17
from onmt_varattn.bin.nmt import train
from onmt_varattn.nmt.text.processing import TextProcessing
from tests.conftest import SIZES, call
from tests.unit.test_corpora import serving, tar

TALK = [
    ("<url>http://www.ted.com/talks/lang/de/x</url>", "<url>http://www.ted.com/talks/x</url>"),
    ("<keywords>talks, TED</keywords>", "<keywords>talks, TED</keywords>"),
    ("<talkid>535</talkid>", "<talkid>535</talkid>"),
    ("<title>Dr. Gallo: Unter Wasser</title>", "<title>Dr. Gallo: Underwater</title>"),
    ("<description>Er zeigt's uns.</description>", "<description>He's showing it.</description>"),
    ("Das ist ein viel zu langer Satz.", "Too long."),  # 8 tokens and 3
    ("", "Nothing there."),
    ("ja " * 176, "yes " * 176),
]
# By hand: Moses tokens, lower-cased, without escapes. A German apostrophe is a token of its own.
FIRST = [
    ("dr. gallo : unter wasser", "dr. gallo : underwater"),
    ("er zeigt ' s uns .", "he 's showing it ."),
]
COUNTED = [(f"Satz Nummer {i} von hier, ja.", f"Sentence number {i} of these, yes.") for i in range(3, 50)]


def counted(i):
    return f"satz nummer {i} von hier , ja .", f"sentence number {i} of these , yes ."


def xml(line):
    return f'<?xml version="1.0"?>\n<doc docid="1">\n<title>No</title>\n<seg id="1"> {line} </seg>\n</doc>\n'


@pytest.fixture
def talks(tmp_path, monkeypatch):
    """An archive as IWSLT's, in a directory to run in."""
    monkeypatch.chdir(tmp_path)
    files = {}
    for side, language in enumerate(("de", "en")):
        lines = [pair[side] for pair in TALK + COUNTED]
        files[f"de-en/train.tags.de-en.{language}"] = "".join(f"{line}\n" for line in lines)
        for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = xml(f"{name} R&amp;D it’s")
        files[f"de-en/IWSLT14.TED.tst2013.de-en.{language}.xml"] = xml("of no use")
    tar(tmp_path / "talks.tgz", files)
    return (tmp_path / "talks.tgz").read_bytes()


def pairs(prefix, languages=("de", "en")):
    sides = [
        Path(f"{prefix}.{language}").read_text(encoding="utf-8").split("\n")[:-1] for language in languages
    ]
    return list(zip(*sides, strict=True))


def times():
    return {path: path.stat().st_mtime_ns for path in Path("data").rglob("*") if path.is_file()}


OPTIONS = ["-merges", "40", "-num_threads", "1"]


def test_iwslt14_from_the_web_to_training(talks, capsys, caplog):
    with serving({"de-en.tgz": talks}) as server:
        server.cuts = [500]
        words = [*OPTIONS, "-url", f"{server.address}/de-en.tgz"]
        assert call(prepare_iwslt14.main, *words) == 0
        said = capsys.readouterr().out
        before = times()
        assert call(prepare_iwslt14.main, *words) == 0
        assert server.asked == [None, "bytes=500-"]
    assert times() == before
    again = capsys.readouterr().out
    assert again.count("done already") == 5
    assert "learning" not in again

    # 49 pairs are left, numbered from 1; the first two are the title and the description.
    kept = FIRST + [counted(i) for i in range(3, 50)]
    assert pairs("data/iwslt14/valid") == [kept[22], kept[45]]
    assert pairs("data/iwslt14/train") == kept[:22] + kept[23:45] + kept[46:]
    assert pairs("data/iwslt14/test") == [
        (f"{name} r & d it ' s", f"{name} r & d it 's")
        for name in ("ted.dev2010", "tedx.dev2012", "ted.tst2010", "ted.tst2011", "ted.tst2012")
    ]
    assert not list(Path("data").rglob("*tst2013*"))
    dropped = "1 over -max_length 175, 1 over -max_ratio 1.5, 1 with a blank side"
    for output in (said, again):
        assert f"train and valid: 52 pairs read, dropped: {dropped}\n" in output
        assert "train: 47 pairs of tokenized text, 47 of them encoded in data.train.*\n" in output
    assert "warning: train has 47 pairs of tokenized text; the public recipe" in caplog.text
    assert "160,239" in caplog.text

    # Subwords are one model's, and turn back into the words that the test text has.
    text = TextProcessing.load("data/iwslt14/data.text.json")
    assert text.src.model == text.tgt.model
    assert text.src.model.count("\n") == 41  # a version number and the merges
    assert (text.tgt.tokenize, text.tgt.subword, text.tgt.lowercase) == ("none", "bpe", True)
    encoded = Path("data/iwslt14/data.test.tgt").read_text(encoding="utf-8").split("\n")[:-1]
    assert [text.tgt.decode(line) for line in encoded] == [tgt for _, tgt in pairs("data/iwslt14/test")]
    config = yaml.safe_load(Path("data/iwslt14/data.yaml").read_text(encoding="utf-8"))
    assert config["src_vocab"] != config["tgt_vocab"]

    words = f"-config data/iwslt14/data.yaml -attention soft {SIZES} -train_steps 2 -save_checkpoint_steps 2"
    assert call(train.main, *words.split(), "-batch_size", 6, "-save_model", "m") == 0
    assert Path("m_step_2.pt").exists()


def test_iwslt14_does_again_only_what_changed(talks, monkeypatch, capsys):
    Path("mine.tgz").write_bytes(talks)
    words = [*OPTIONS, "-archive", "mine.tgz"]

    def stopped(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare_iwslt14, "preprocess", stopped)
        assert call(prepare_iwslt14.main, *words) == 130
    assert Path("data/iwslt14/train.de").exists()
    assert not Path("data/iwslt14/data.yaml").exists()
    before = times()
    assert call(prepare_iwslt14.main, *words) == 0
    assert capsys.readouterr().out.count("done already") == 4
    assert before.items() - times().items() == {
        item for item in before.items() if item[0].name == "stages.json"
    }

    assert call(prepare_iwslt14.main, *words, "-max_ratio", "3") == 0
    assert capsys.readouterr().out.count("done already") == 3  # archive, files, test
    assert len(pairs("data/iwslt14/train")) == 48
    assert call(prepare_iwslt14.main, *words, "-max_ratio", "3", "-share_vocab") == 0
    assert capsys.readouterr().out.count("done already") == 4
    assert yaml.safe_load(Path("data/iwslt14/data.yaml").read_text())["share_vocab"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-archive none.tgz", "-archive none.tgz: there is no such file"),
        ("-sha256 123", "-sha256 123 is not 64 hexadecimal digits"),
        (f"-archive talks.tgz -sha256 {'0' * 64}", f"talks.tgz has the sha256 checksum .*, not {'0' * 64}"),
        ("-merges 0", "-merges 0 must be at least 1"),
        ("-max_ratio 0.5", "-max_ratio 0.5 must be at least 1"),
        ("-url http://127.0.0.1:1/de-en.tgz", "http://127.0.0.1:1/de-en.tgz: cannot be downloaded"),
        ("-output talks.tgz/x", "talks.tgz/x/stages.json: cannot be written"),
        ("-archive talks.tgz -output . -archive train.de", "train.de is an input file"),
        ("-archive other.tgz", "other.tgz has no file de-en/IWSLT14.TED.dev2010.de-en.de.xml"),
        ("-archive uneven.tgz", r"train.tags.de-en.de has 2 sentences and .*train.tags.de-en.en has 1;"),
    ],
)
def test_mistakes(talks, capsys, words, message):
    Path("train.de").touch()
    tar("other.tgz", {"de-en/x": "", **{f"de-en/train.tags.de-en.{side}": "" for side in ("de", "en")}})
    names = [text for source in prepare_iwslt14.IWSLT14.test for text in (source.src, source.tgt)]
    sides = {"de-en/train.tags.de-en.de": "a\nb\n", "de-en/train.tags.de-en.en": "a\n"}
    tar("uneven.tgz", {**sides, **dict.fromkeys(names, xml("a"))})
    assert call(prepare_iwslt14.main, *words.split()) == 2
    error = capsys.readouterr().err
    assert re.search(f"error: .*{message}", error), error
    assert error.count("\n") == 1
    assert not Path("data/iwslt14/train.de").exists()


@pytest.fixture
def wmt(tmp_path, monkeypatch):
    """Archives as WMT's by name; their checksums are of course others."""
    monkeypatch.chdir(tmp_path)
    words = {"en": ("The House of", "says"), "de": ("Das Haus von", "sagt")}
    files = {name: {} for name in prepare_wmt17.ARCHIVES}
    texts = {**prepare_wmt17.TRAIN, **prepare_wmt17.VALID, "newstest2017": prepare_wmt17.WMT17.test[0]}
    for name, text in texts.items():
        for language, path in (("en", text.src), ("de", text.tgt)):
            first, last = words[language]
            line = f"{first} {name} {last} R&amp;D now."
            files[text.archive][path] = xml(line) if path.endswith("sgm") else f"{line}\n{line}\n"
    served = {}
    for name, archive in prepare_wmt17.ARCHIVES.items():
        tar("a.tgz", files[name])
        served[os.path.basename(archive.url)] = Path("a.tgz").read_bytes()
        monkeypatch.setitem(prepare_wmt17.ARCHIVES, name, dataclasses.replace(archive, checksum=None))
    return served


def test_wmt17(wmt, capsys):
    with serving(wmt) as server:
        words = [*OPTIONS, "-downloads", "tgz", "-mirror", server.address]
        assert call(prepare_wmt17.main, *words) == 0
        assert len(server.asked) == 6
        # Some of the corpora, another validation set: nothing is downloaded again.
        some = f"{' '.join(words)} -corpora rapid europarl -valid newstest2016 -output some -share_vocab"
        assert call(prepare_wmt17.main, *some.split(), "-merges", 30) == 0
        assert len(server.asked) == 6
    # Case is kept, plain text is taken as it is, entities of SGML are not.
    order = ("europarl", "commoncrawl", "newscommentary", "rapid")
    train_pairs = [
        (f"The House of {n} says R & amp ; D now .", f"Das Haus von {n} sagt R & amp ; D now .")
        for n in order
    ]
    assert pairs("data/wmt17/train", ("en", "de")) == [pair for pair in train_pairs for _ in (1, 2)]
    assert pairs("data/wmt17/test", ("en", "de")) == [
        ("The House of newstest2017 says R & D now .", "Das Haus von newstest2017 sagt R & D now .")
    ]
    assert pairs("data/wmt17/valid", ("en", "de"))[0][0].startswith("The House of newstest2013 says")
    assert pairs("some/valid", ("en", "de"))[0][0].startswith("The House of newstest2016 says")
    assert [src.split()[3] for src, _ in pairs("some/train", ("en", "de"))] == ["rapid"] * 2 + [
        "europarl"
    ] * 2
    assert yaml.safe_load(Path("some/data.yaml").read_text())["share_vocab"]
    assert not TextProcessing.load("data/wmt17/data.text.json").src.lowercase
    assert "train: 8 pairs of tokenized text, 8 of them encoded" in capsys.readouterr().out

"""What long work has found is not lost because it cannot be written where it should be."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onmt_varattn.bin.analysis import align, evaluate, explore
from onmt_varattn.bin.nmt import preprocess, translate
from onmt_varattn.nmt.search import texts
from onmt_varattn.utils import files
from tests.conftest import ROOT, call


@pytest.fixture
def full(tmp_path, monkeypatch):
    """Let some files not be written, as if a disk had become full since this was checked."""
    names = []
    replace = os.replace

    def fail(temporary, path):
        if any(str(path) == f"{tmp_path}/{name}" for name in names):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(temporary, path)

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(os, "replace", fail)
    return names.append


COMMANDS = {
    "translate": (translate.main, "-model {model} -src {src} -max_length 12 -output {output}"),
    "align": (align.main, "-model {model} -src {src} -tgt {tgt} -output {output}"),
    "evaluate": (evaluate.main, "-model {model} -src {src} -tgt {tgt} -json {output}"),
    "explore": (explore.main, "-model {model} -src {src} -tgt {tgt} -sentences 3 -output {output}"),
}


@pytest.fixture
def words(model, toy, tmp_path):
    for name in ("test.de", "test.en"):
        lines = (toy / name).read_text("utf-8").splitlines(keepends=True)[:5]
        (tmp_path / name).write_text("".join(lines), "utf-8")

    def build(text, output):
        known = {"model": model, "src": tmp_path / "test.de", "tgt": tmp_path / "test.en", "output": output}
        return [word.format(**known) for word in text.split()]

    return build


@pytest.mark.parametrize("name", COMMANDS)
def test_a_result_is_saved_elsewhere(name, words, tmp_path, full, capsys):
    main, text = COMMANDS[name]
    good, lost = tmp_path / "good", tmp_path / "lost"
    assert call(main, *words(text, good)) == 0
    full("lost")
    printed = capsys.readouterr().out.replace(str(good), str(lost))
    assert call(main, *words(text, lost)) == 1
    shown = capsys.readouterr()
    said = shown.err.splitlines()[-1]
    assert f"{lost}: cannot be written: No space left on device; the content is saved in " in said
    place = Path(said.split("is saved in ")[1])
    assert place.is_relative_to(tmp_path / "tmp")
    assert place.read_bytes() == good.read_bytes()
    assert not lost.exists()
    if name in ("align", "evaluate"):  # whose figures are printed all the same
        assert shown.out == printed


def test_translations_of_standard_input_are_saved_elsewhere(words, tmp_path, full, capsys, monkeypatch):
    text = COMMANDS["translate"][1]
    assert call(translate.main, *words(text, tmp_path / "good")) == 0
    full("lost")
    with open(tmp_path / "test.de", encoding="utf-8") as lines, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", lines)
        assert call(translate.main, *words(text.replace("{src}", "-"), tmp_path / "lost")) == 1
    place = Path(capsys.readouterr().err.splitlines()[-1].split("is saved in ")[1])
    assert place.read_bytes() == (tmp_path / "good").read_bytes()


@pytest.mark.parametrize("when", ["while it is written", "at the end"])
def test_attention_that_cannot_be_written_costs_no_translation(
    words, tmp_path, full, capsys, monkeypatch, when
):
    from onmt_varattn.nmt.search.dump import AttentionDump

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    text = COMMANDS["translate"][1]
    assert call(translate.main, *words(text, tmp_path / "good")) == 0
    if when == "at the end":
        full("lost")
    else:
        monkeypatch.setattr(AttentionDump, "write", fail)
    more = ["-dump_attention", tmp_path / "lost"]
    assert call(translate.main, *words(text, tmp_path / "out"), *more) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"-dump_attention {tmp_path}/lost: cannot be written: No space left on device; the trans" in said
    assert (tmp_path / "out").read_bytes() == (tmp_path / "good").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "out", "test.de", "test.en", "tmp"]


def test_a_preprocessed_corpus_is_saved_elsewhere(toy, tmp_path, full, capsys):
    parts = {
        f"{part}_{side}": toy / f"{part}.{end}"
        for part in ("train", "valid")
        for side, end in (("src", "de"), ("tgt", "en"))
    }
    words = [word for name, path in parts.items() for word in (f"-{name}", path)]
    words += ["-subword", "bpe", "-vocab_size", 200]
    assert call(preprocess.main, *words, "-save_data", tmp_path / "good" / "run") == 0
    full("lost/run.yaml")
    assert call(preprocess.main, *words, "-save_data", tmp_path / "lost" / "run") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "cannot be written: No space left on device; the content is saved in" in said
    place = Path(said.split("is saved in ")[1])
    found = {path.name: path.read_bytes() for path in place.iterdir()}
    good = {path.name: path.read_bytes() for path in (tmp_path / "good").iterdir()}
    assert found.keys() == good.keys()
    assert {name for name in good if found[name] != good[name]} == {"run.yaml"}  # which has paths in it


@pytest.mark.parametrize("name", COMMANDS)
def test_the_longest_name_can_be_written_and_a_longer_one_is_refused_at_once(name, words, tmp_path, capsys):
    main, text = COMMANDS[name]
    assert call(main, *words(text, tmp_path / ("x" * 255))) == 0
    assert (tmp_path / ("x" * 255)).stat().st_size
    capsys.readouterr()
    assert call(main, *words(text.replace("{model}", "none.pt"), tmp_path / ("x" * 256))) == 2
    assert "cannot be written: File name too long" in capsys.readouterr().err


def test_a_directory_that_is_gone_at_the_end_is_made_again(words, tmp_path, monkeypatch):
    main, text = COMMANDS["translate"]
    (tmp_path / "place").mkdir()
    stock = texts.hypotheses

    def meanwhile(*args, **kwargs):
        shutil.rmtree(tmp_path / "place")
        return stock(*args, **kwargs)

    monkeypatch.setattr(texts, "hypotheses", meanwhile)
    assert call(main, *words(text, tmp_path / "place" / "out")) == 0
    assert (tmp_path / "place" / "out").exists()


@pytest.mark.parametrize(
    ("flags", "streams", "said"),
    [
        ("-src -", "<&-", "standard input: cannot be read: Bad file descriptor"),
        ("-src -", ">&-", "standard output: cannot be written: Bad file descriptor"),
        ("-src {src} -output {output}", "> /dev/full", "standard output: cannot be written: No space left on device"),
    ],
)  # fmt: skip
def test_streams_that_cannot_be_used_are_one_sentence(words, tmp_path, flags, streams, said):
    text = f"-model {{model}} -max_length 5 {flags}"
    command = [sys.executable, ROOT / "translate.py", *words(text, tmp_path / "out")]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {streams}', "", *map(str, command)],
        input="ein hund .\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"translate.py: {said}"
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out").exists() == ("-output" in flags)

"""Commands that may take long estimate the time left on standard error, where it is no terminal."""

import re

import pytest

from onmt_varattn.bin.analysis import align, evaluate, explore
from onmt_varattn.bin.corpora import make_toy_corpus
from onmt_varattn.bin.nmt import average_models, preprocess, translate
from onmt_varattn.bin.vqa import make_scenes
from onmt_varattn.utils import progress
from tests.conftest import call


@pytest.fixture
def estimates(monkeypatch, capsys):
    """Run a command that estimates after each unit of work: what is done, and in which units."""
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "LATER", 0.0)

    def run(main, words):
        capsys.readouterr()
        assert call(main, *words.split()) == 0
        printed = capsys.readouterr()
        assert " left" not in printed.out
        return set(re.findall(r"^(.+): [\d,]+ of [\d,]+ (.+) in \d+ s; about \d+ s left$", printed.err, re.M))

    return run


def test_commands_that_read_a_model(model, toy, tmp_path, estimates):
    text, output = f"-src {toy}/test.de -tgt {toy}/test.en", tmp_path / "output"
    few = f"-model {model} -batch_size 4"
    dumped = estimates(
        translate.main, f"{few} {text} -beam 1 -output {output} -dump_attention {tmp_path}/dump"
    )
    assert dumped == {("translating", "sentences")}
    assert estimates(align.main, f"{few} {text} -output {output}") == {("aligning", "pairs")}
    assert estimates(explore.main, f"-model {model} {text} -output {output}") == {
        ("reading", "sentence pairs")
    }
    other = str(model).replace("_300", "_150")
    assert estimates(evaluate.main, f"-model {model} {other} {text} -batch_size 4") == {
        ("evaluating", "models"),
        (f"scoring {model}", "sentences"),
        (f"scoring {other}", "sentences"),
    }
    averaged = estimates(average_models.main, f"-models {model} {other} -output {output}")
    assert averaged == {("averaging", "models")}


def test_commands_that_make_data(toy, tmp_path, estimates):
    files = " ".join(
        f"-{part}_{side} {toy}/{part}.{ending}"
        for part in ("train", "valid")
        for side, ending in (("src", "de"), ("tgt", "en"))
    )
    assert estimates(preprocess.main, f"{files} -save_data {tmp_path}/data -num_threads 1") == {
        ("preparing text", "lines"),
        ("encoding text", "lines"),
    }
    drawn = estimates(make_toy_corpus.main, f"-output {tmp_path}/toy -train 9 -valid 1 -test 1")
    assert drawn == {("drawing sentences", "pairs")}
    scenes = estimates(make_scenes.main, f"-output {tmp_path}/scenes -train_images 4 -valid_images 2")
    assert scenes == {("drawing scenes", "images")}

"""Weights that are infinite or no numbers: refused where they would give empty results, counted in training."""

import math

import pytest

import onmt_varattn
from onmt_varattn.bin.analysis import align, evaluate, explore, plot_alignment
from onmt_varattn.bin.nmt import train, translate
from onmt_varattn.bin.vqa import evaluate as vqa_evaluate
from onmt_varattn.errors import UserError
from onmt_varattn.nmt.model import checkpoint
from tests.conftest import SIZES, STEPS, call

MESSAGE = "bad.pt: 2 of its parameters are not finite numbers"


@pytest.fixture(scope="module")
def bad(model, tmp_path_factory):
    """A model with a weight that is no number, and one that is infinite."""
    loaded = checkpoint.load(str(model))
    weight = loaded["model"]["decoder.attention.readout.query.weight"]
    weight[0, 0], weight[0, 1] = math.nan, math.inf
    path = tmp_path_factory.mktemp("bad") / "bad.pt"
    checkpoint.write(loaded, str(path))
    return path


@pytest.fixture
def files(toy, tmp_path):
    for side in ("de", "en"):
        (tmp_path / side).write_text((toy / f"test.{side}").read_text("utf-8").split("\n")[0] + "\n", "utf-8")
    return f"-src {tmp_path}/de -tgt {tmp_path}/en".split()


@pytest.mark.parametrize(
    ("command", "output"), [(translate, "out"), (evaluate, None), (align, "out"), (explore, "o.html"), (plot_alignment, "o.png")]
)  # fmt: skip
def test_reading_refuses_them_unless_allowed(command, output, bad, files, tmp_path, capsys):
    words = ["-model", bad, *files]
    if output:
        words += ["-output", tmp_path / output]
    assert call(command.main, *words) == 2
    error = capsys.readouterr().err
    assert MESSAGE in error
    assert "-allow_nonfinite" in error
    assert "Traceback" not in error
    assert not output or not (tmp_path / output).exists()
    call(command.main, *words, "-allow_nonfinite")
    assert MESSAGE not in capsys.readouterr().err


def test_python_refuses_them_unless_allowed(bad):
    with pytest.raises(UserError, match=MESSAGE):
        onmt_varattn.load(str(bad))
    assert len(onmt_varattn.load(str(bad), allow_nonfinite=True).translate(["a"], max_length=3)) == 1


def test_training_counts_them(bad, data, tmp_path, capfd):
    words = f"-config {data}.yaml -attention soft {SIZES} {STEPS} -train_from {bad} -train_steps 301 -save_model {tmp_path}/m"
    call(train.main, *words.split(), "-bad_steps_limit", 1)
    assert MESSAGE in capfd.readouterr().err


def test_visual_question_answering_refuses_them(tmp_path, capsys):
    import torch

    from onmt_varattn.training import checkpoints
    from onmt_varattn.vqa.checkpoint import Trained
    from tests.conftest import ROOT

    content = checkpoints.read(str(ROOT / "tests/v01/vqa_step_4.pt"))
    content["model"]["embeddings.weight"][0, :2] = math.nan
    checkpoints.write(content, str(tmp_path / "bad.pt"))
    assert call(vqa_evaluate.main, "-model", tmp_path / "bad.pt", "-data", "none") == 2
    assert MESSAGE in capsys.readouterr().err
    assert Trained(str(tmp_path / "bad.pt"), torch.device("cpu"), allow_nonfinite=True).words

"""Without our options OpenNMT-py behaves as if we were not there; with them, its checkpoints still load."""

import subprocess
import sys

import pytest
import torch

from onmt_varattn.bin.nmt import release_model
from onmt_varattn.errors import UserError
from onmt_varattn.nmt import plugin
from onmt_varattn.nmt.model import checkpoint
from tests.conftest import ROOT, call, run_command

MODELS = {
    "rnn": "-encoder_type brnn -layers 1 -word_vec_size 16 -rnn_size 16 -global_attention mlp",
    "copy": "-layers 1 -rnn_size 16 -word_vec_size 16 -copy_attn",
    "transformer": "-encoder_type transformer -decoder_type transformer -layers 1 -rnn_size 16 -word_vec_size 16 "
    "-heads 2 -transformer_ff 16 -position_encoding -label_smoothing 0.1",
}
STEPS = "-optim adam -learning_rate 0.01 -batch_size 16 -train_steps 20 -valid_steps 10 -seed 7 -dropout 0.2"


@pytest.fixture(autouse=True)
def _registered():
    plugin.register()


def stock(program, *words):
    """Run OpenNMT's own command in a process that never hears of us.

    Its translate cannot read its own checkpoints on this torch, hence the variable.
    """
    code = (
        f"import sys; sys.argv[0] = '{program}'; from onmt.bin.{program} import main; main(); "
        "assert not any(name.startswith('onmt_varattn') for name in sys.modules)"
    )
    import os

    env = {**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    return run_command(sys.executable, "-c", code, *words, env=env)


def stock_config(data, tmp_path):
    """The same data, without the one key that is ours."""
    text = open(f"{data}.yaml", encoding="utf-8").read()
    path = tmp_path / "stock.yaml"
    path.write_text("".join(line for line in text.splitlines(True) if "text_processing" not in line))
    return path


@pytest.mark.parametrize("kind", MODELS)
def test_same_parameters_and_same_translations_with_and_without_the_plugin(kind, data, tmp_path):
    plugin.register()  # to read checkpoints here; what is compared runs in processes of its own
    config = stock_config(data, tmp_path)
    words = f"-config {config} {MODELS[kind]} {STEPS}".split()
    stock("train", *words, "-save_model", f"{tmp_path}/stock")
    run_command(sys.executable, ROOT / "train.py", *words, "-save_model", f"{tmp_path}/ours")
    theirs, ours = (checkpoint.load(f"{tmp_path}/{name}_step_20.pt") for name in ("stock", "ours"))
    for part in ("model", "generator"):
        assert theirs[part].keys() == ours[part].keys()
        for name, value in theirs[part].items():
            assert torch.equal(ours[part][name], value), name
    assert theirs["optim"].keys() == ours["optim"].keys()
    assert theirs["vocab"]["tgt"].base_field.vocab.stoi == ours["vocab"]["tgt"].base_field.vocab.stoi
    words = f"-src {data}.test.src -beam_size 4 -max_length 15 -n_best 2 -with_score".split()
    back = f"{tmp_path}/back.pt"
    assert (
        call(
            release_model.main, "-model", f"{tmp_path}/ours_step_20.pt", "-output", back, "-format", "opennmt"
        )
        == 0
    )
    stock("translate", *words, "-model", back, "-output", f"{tmp_path}/a")
    run_command(
        sys.executable,
        ROOT / "translate.py",
        *words,
        "-model",
        f"{tmp_path}/stock_step_20.pt",
        "-output",
        f"{tmp_path}/b",
    )
    a, b = (open(f"{tmp_path}/{name}", encoding="utf-8").read().splitlines() for name in ("a", "b"))
    assert [line.split("\t")[0] for line in a] == [line.split("\t")[0] for line in b]
    assert len(set(a)) > 1
    for line, other in zip(a, b, strict=True):
        assert float(line.split("\t")[1]) == pytest.approx(float(other.split("\t")[1]), abs=1e-3)


def test_registering_twice_changes_nothing_more():
    plugin.register()
    import onmt
    import onmt.model_builder
    import onmt.opts

    before = (onmt.Trainer, onmt.opts.model_opts, onmt.model_builder.build_base_model)
    plugin.register()
    assert (onmt.Trainer, onmt.opts.model_opts, onmt.model_builder.build_base_model) == before


def test_another_opennmt_is_refused_by_version(monkeypatch):
    monkeypatch.setattr(plugin, "version", lambda name: "3.5.1")
    with pytest.raises(UserError, match=r"needs OpenNMT-py 2\.3\.0 and found 3\.5\.1"):
        plugin._check_version()


def test_only_the_seam_replaces_anything_in_opennmt():
    """No other file of ours assigns to an attribute of an onmt module."""
    import ast

    for path in (ROOT / "onmt_varattn").rglob("*.py"):
        if path.name == "plugin.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                assert not ast.unparse(target).startswith(("onmt.", "builder.", "ArgumentParser.")), (
                    f"{path}: {ast.unparse(target)}"
                )


def test_latent_knows_torch_only():
    code = "import sys, onmt_varattn.latent.objectives, onmt_varattn.latent.scores, onmt_varattn.latent.likelihood; print([m for m in sys.modules if m.split('.')[0] in ('onmt', 'torchtext', 'sentencepiece')])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"

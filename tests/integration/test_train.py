"""onmt_train: from preprocessed data to checkpoints."""

import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from onmt_varattn.bin.nmt import train
from onmt_varattn.nmt.model import checkpoint
from tests.conftest import ROOT, SIZES, STEPS, call


def parameters(path):
    loaded = checkpoint.load(str(path))
    return {**loaded["model"], **{f"generator.{k}": v for k, v in loaded["generator"].items()}}


def test_checkpoints_are_written_and_hold_the_text_processing(model, data):
    names = sorted(p.name for p in model.parent.glob("*.pt"))
    assert names == ["soft_best.pt", "soft_step_150.pt", "soft_step_300.pt"]
    assert (model.parent / "soft_best.pt").resolve() == model
    loaded = checkpoint.load(str(model))
    assert loaded["opt"].attention == "soft"
    from onmt_varattn.nmt.text.processing import TextProcessing

    assert TextProcessing.from_dict(loaded["opt"].text_processing) == TextProcessing.load(f"{data}.text.json")


def test_sizes_are_independent(model):
    shapes = {name: tuple(value.shape) for name, value in parameters(model).items()}
    assert shapes["decoder.attention.score.memory.weight"] == (20, 32)
    assert shapes["decoder.attention.score.query.weight"] == (20, 36)
    assert shapes["decoder.rnn.layers.0.weight_ih"] == (144, 24 + 32)
    assert shapes["decoder.attention.readout.context.weight"] == (36, 32)
    assert shapes["encoder.rnn.weight_ih_l0_reverse"] == (64, 24)


def test_training_is_deterministic_and_lowers_the_loss(data, tmp_path):
    for name in ("one", "two"):
        words = f"-config {data}.yaml -attention soft {SIZES} {STEPS} -save_model {tmp_path}/{name}"
        assert call(train.main, *words.split(), "-log_file", tmp_path / name) == 0
    one, two = (parameters(tmp_path / f"{name}_step_20.pt") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
    valid = [float(x) for x in re.findall(r"Validation perplexity: ([\d.]+)", (tmp_path / "one").read_text())]
    assert len(valid) == 2, "validation runs on the CPU at -valid_steps"
    assert valid[1] < valid[0]


@pytest.mark.parametrize("flags", ["", "-attention soft"])
def test_a_checkpoint_goes_on_with_or_without_its_options(model, data, tmp_path, flags):
    start = model.parent / "soft_step_150.pt"
    words = f"-config {data}.yaml {STEPS} -train_steps 160 -train_from {start} -save_model {tmp_path}/more {flags}"
    assert call(train.main, *words.split(), "-log_file", tmp_path / "log") == 0
    loaded = checkpoint.load(str(tmp_path / "more_step_160.pt"))
    assert loaded["opt"].attention == "soft"
    assert loaded["opt"].text_processing
    assert loaded["optim"]["training_step"] == 161
    before, after = parameters(start), parameters(tmp_path / "more_step_160.pt")
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    perplexity = float(re.search(r"Validation perplexity: ([\d.]+)", (tmp_path / "log").read_text())[1])
    assert perplexity < 70, "it goes on from what was learned"


def test_early_stopping_and_rate_decay_work_on_the_cpu(data, tmp_path):
    """A learning rate that ruins the model at once: every validation is worse than the first."""
    log = tmp_path / "log"
    words = (
        f"-config {data}.yaml -attention soft {SIZES} -optim sgd -learning_rate 80 -max_grad_norm 0 -batch_size 16 "
        f"-train_steps 300 -valid_steps 2 -seed 5 -early_stopping 3 -decay_on_plateau 1 -learning_rate_decay 0.25 "
        f"-early_stopping_criteria ppl -save_model {tmp_path}/m -log_file {log}"
    )
    assert call(train.main, *words.split()) == 0
    text = log.read_text()
    assert "Early stopping: the best validation was at step 2" in text
    assert not (tmp_path / "m_step_300.pt").exists()
    rates = [float(x) for x in re.findall(r"validations: learning rate ([\d.]+)", text)]
    assert rates[:2] == [20, 5]


@pytest.mark.parametrize(
    "flags",
    [
        "-attention soft -rnn_type GRU -global_attention scaled_dot -layers 2 -label_smoothing 0.1",
        "-attention soft -encoder_type rnn -global_attention general -decoder_init encoder -normalization tokens",
        "-attention soft -global_attention dot -rnn_size 24 -share_decoder_embeddings -accum_count 2",
        "-attention soft -average_decay 0.1 -dropout 0.1 0.4 -dropout_steps 0 4 -attention_dropout 0 0 -batch_type tokens -batch_size 200",
    ],
)
def test_variants_train(data, tmp_path, flags):
    words = (
        f"-config {data}.yaml {SIZES} {STEPS} -train_steps 8 -valid_steps 8 {flags} -save_model {tmp_path}/m"
    )
    assert call(train.main, *words.split()) == 0
    values = parameters(tmp_path / "m_step_8.pt")
    assert all(torch.isfinite(value).all() for value in values.values())


def test_shared_embeddings_are_one_matrix(toy, tmp_path):
    from onmt_varattn.bin.nmt import preprocess

    files = [
        f"-{part}_{s} {toy}/{part}.{lang}"
        for part in ("train", "valid")
        for s, lang in (("src", "de"), ("tgt", "en"))
    ]
    words = f"{' '.join(files)} -save_data {tmp_path}/d -vocab_size 300 -share_vocab -num_threads 1"
    assert call(preprocess.main, *words.split()) == 0
    words = f"-config {tmp_path}/d.yaml -attention soft {SIZES} {STEPS} -share_embeddings -save_model {tmp_path}/m"
    assert call(train.main, *words.split()) == 0
    values = parameters(tmp_path / "m_step_20.pt")
    name = "embeddings.make_embedding.emb_luts.0.weight"
    assert torch.equal(values[f"encoder.{name}"], values[f"decoder.{name}"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("-attention soft -copy_attn", "-copy_attn"),
        ("-attention soft -train_from nowhere.pt", "nowhere.pt: there is no such checkpoint"),
        ("-attention soft -text_processing nowhere.json", "nowhere.json"),
        ("-attention soft -src_vocab nowhere.txt", "-src_vocab nowhere.txt: there is no such file"),
        ("-enc_rnn_size 8 -dec_rnn_size 10", "same size"),
        ("-attention soft -epochs 3", "-epochs is deprecated"),
        ("-attention soft -attentoin_size 3", "did you mean -attention_size?"),
        ("-attention soft -train_steps 0", "-train_steps 0 must be at least 1"),
        ("-attention soft -learning_rate -1", "-learning_rate -1.0"),
        ("-attention soft -dropout 1.5", "-dropout 1.5"),
        ("-attention soft -accum_count 0", "-accum_count 0"),
        ("-attention soft -save_model /dev/null/m", "/dev/null/m_step_1.pt: cannot be written"),
    ],
)
def test_mistakes_are_one_line_before_any_work(data, tmp_path, flags, words, capsys):
    assert call(train.main, "-config", f"{data}.yaml", "-save_model", tmp_path / "m", *flags.split()) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.strip().count("\n") == 0
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_saves_and_ends_training_with_one_line(data, tmp_path):
    words = (
        f"-config {data}.yaml -attention soft {SIZES} {STEPS} -train_steps 100000 -save_model {tmp_path}/m"
    )
    process = subprocess.Popen(
        [sys.executable, "train.py", *words.split()], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    seen = ""
    deadline = time.time() + 120
    while "Step 10/" not in seen and time.time() < deadline:
        seen += process.stderr.readline()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "SIGINT: finishing the step and saving it; a second one leaves at once" in rest
    last = rest.splitlines()[-1]
    step = int(
        re.fullmatch(r"train.py: SIGINT: stopped after step (\d+), which is saved; -resume goes on", last)[1]
    )
    assert checkpoint.load(f"{tmp_path}/m_step_{step}.pt")["optim"]["training_step"] == step + 1
    assert "Traceback" not in rest


def test_what_needs_validation_data_is_refused_without(data, tmp_path, capsys):
    import yaml

    config = yaml.safe_load(open(f"{data}.yaml", encoding="utf-8"))
    del config["data"]["valid"]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    for option in ("-decay_on_plateau", "-early_stopping"):
        words = f"-config {tmp_path}/c.yaml -attention soft {option} 2 -save_model {tmp_path}/m"
        assert call(train.main, *words.split()) == 2
        assert f"{option} needs validation data" in capsys.readouterr().err


def test_a_checkpoint_that_has_the_steps_already_is_refused(model, data, tmp_path, capsys):
    words = f"-config {data}.yaml -train_from {model} -train_steps 300 -save_model {tmp_path}/m"
    assert call(train.main, *words.split()) == 2
    assert "has 300 steps already" in capsys.readouterr().err


def test_the_log_says_what_is_trained(data, tmp_path):
    words = f"-config {data}.yaml {SIZES} {STEPS} -attention relaxed -train_steps 2 -save_model {tmp_path}/m"
    assert call(train.main, *words.split(), "-log_file", tmp_path / "log") == 0
    text = (tmp_path / "log").read_text()
    assert (
        "Attention: relaxed, estimator sample, posterior amortized (brnn), warm-up with soft attention until alignments have formed"
        in text
    )
    assert "The run ended during the warm-up" in text


def test_a_warm_up_as_long_as_the_run_is_warned_of(data, tmp_path):
    words = f"-config {data}.yaml {SIZES} {STEPS} -attention relaxed -attention_warmup hard -train_steps 2"
    words += f" -attention_warmup_steps 1000 -save_model {tmp_path}/m"
    assert call(train.main, *words.split(), "-log_file", tmp_path / "log") == 0
    text = (tmp_path / "log").read_text()
    assert "warm-up with hard attention for 1000 steps" in text
    assert "the warm-up is not over by -train_steps 2" in text

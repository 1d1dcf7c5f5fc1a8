"""A model of OpenNMT-py's own goes on with our decoder: what fits is kept, and helps."""

import json

import pytest
import torch

from onmt_varattn.bin.nmt import train, translate
from onmt_varattn.nmt.model import checkpoint
from tests.conftest import call

SIZES = "-encoder_type brnn -layers 1 -word_vec_size 24 -rnn_size 32 -dropout 0"
STEPS = "-optim adam -learning_rate 0.01 -batch_size 32 -report_every 1000 -seed 5"
FIRST = "-train_steps 1 -valid_steps 1 -learning_rate 0"


@pytest.fixture(scope="module")
def stock(data, tmp_path_factory):
    """A checkpoint of a stock RNN model that has learned something."""
    prefix = tmp_path_factory.mktemp("stock") / "m"
    words = f"-config {data}.yaml {SIZES} -global_attention mlp {STEPS} -train_steps 150 -valid_steps 1000"
    assert call(train.main, *words.split(), "-save_model", prefix) == 0
    return f"{prefix}_step_150.pt"


def first_perplexity(data, prefix, flags):
    """Validation before anything is learned: the learning rate is zero."""
    words = f"-config {data}.yaml {STEPS} {FIRST} {flags} -save_model {prefix} -log_file {prefix}.log"
    assert call(train.main, *words.split()) == 0
    return json.loads(open(f"{prefix}.metrics.jsonl", encoding="utf-8").read())["ppl"]


@pytest.mark.parametrize("attention", ["soft", "variational"])
def test_a_stock_model_goes_on_with_our_decoder_from_what_it_has_learned(stock, data, tmp_path, attention):
    fresh = first_perplexity(data, tmp_path / "fresh", f"-attention {attention} {SIZES}")
    found = first_perplexity(data, tmp_path / "ours", f"-attention {attention} -train_from {stock}")
    assert found < fresh / 3
    log = (tmp_path / "ours.log").read_text("utf-8")
    assert (
        "Parameters copied from the checkpoint: embeddings (14280), encoder (5376), "
        "decoder RNN (7424), attention score (2112), readout (2080), output layer (8976)" in log
    )
    anew = "decoder RNN weights on the context (4096)"
    anew += ", posterior (11776)" if attention == "variational" else ""
    assert f"Parameters initialised at random: {anew}\n" in log
    theirs, ours = checkpoint.load(stock), checkpoint.load(f"{tmp_path}/ours_step_1.pt")
    same = [name for name in theirs["model"] if name.startswith(("encoder.", "decoder.embeddings."))]
    assert len(same) == 10
    assert all(torch.equal(ours["model"][name], theirs["model"][name]) for name in same)
    assert torch.equal(ours["generator"]["0.weight"], theirs["generator"]["0.weight"])
    assert ours["optim"]["training_step"] == 2, "steps are counted from 1"


def without_our_options(path, to):
    """The checkpoint as OpenNMT-py alone would have written it."""
    from onmt.utils.parse import ArgumentParser

    from onmt_varattn.nmt.settings import TrainSettings
    from onmt_varattn.utils.settings import add_to

    parser = ArgumentParser()
    parser.add("-global_attention", choices=["mlp"])
    add_to(parser, TrainSettings)
    loaded = checkpoint.load(path)
    for action in parser._actions:
        if action.dest != "global_attention":
            vars(loaded["opt"]).pop(action.dest, None)
    checkpoint.write(loaded, to)


def test_it_trains_resumes_and_translates_raw_text(stock, data, toy, tmp_path):
    without_our_options(stock, f"{tmp_path}/stock.pt")
    assert not hasattr(checkpoint.load(f"{tmp_path}/stock.pt")["opt"], "attention")
    words = f"-config {data}.yaml {STEPS} -attention marginal -valid_steps 99 -save_model {tmp_path}/m"
    assert call(train.main, *words.split(), "-train_steps", 3, "-train_from", tmp_path / "stock.pt") == 0
    more = ["-train_steps", 5, "-train_from", tmp_path / "m_step_3.pt", "-overwrite"]
    assert call(train.main, *words.split(), *more) == 0
    before, after = (checkpoint.load(f"{tmp_path}/m_step_{step}.pt") for step in (3, 5))
    assert after["optim"]["training_step"] == 6
    assert before["opt"].text_processing == after["opt"].text_processing is not None
    assert all(not torch.equal(after["model"][name], value) for name, value in before["model"].items())
    words = f"-model {tmp_path}/m_step_5.pt -src {toy}/test.de -output {tmp_path}/out -max_length 8 -kmax 3"
    assert call(translate.main, *words.split()) == 0
    out = (tmp_path / "out").read_text("utf-8")
    assert out.count("\n") == 30
    assert "▁" not in out, "subwords"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            "-encoder_type transformer -decoder_type transformer -heads 2 -transformer_ff 8 -position_encoding",
            "-encoder_type transformer, which the attention decoder has no counterpart of; "
            "use a model trained with -encoder_type rnn or brnn",
        ),
        ("-copy_attn", "-copy_attn, which the attention decoder has no counterpart of; use a model trained without it"),
        ("-coverage_attn", "-coverage_attn, "),
        ("-context_gate both", "-context_gate, "),
        ("-input_feed 0", "-input_feed 0, "),
    ],
)  # fmt: skip
def test_a_model_with_parts_that_ours_has_no_place_for_is_refused(flags, reason, data, tmp_path, capsys):
    words = f"-config {data}.yaml {STEPS} -layers 1 -rnn_size 8 -word_vec_size 8 {flags}"
    more = f"-train_steps 1 -valid_steps 9 -save_model {tmp_path}/m"
    assert call(train.main, *words.split(), *more.split()) == 0
    capsys.readouterr()
    words = f"-config {data}.yaml -attention soft -train_from {tmp_path}/m_step_1.pt -save_model {tmp_path}/n"
    assert call(train.main, *words.split()) == 2
    error = capsys.readouterr().err
    assert f"-attention soft: {tmp_path}/m_step_1.pt was trained with {reason}" in error
    assert error.count("\n") == 1


def test_the_optimisers_state_cannot_be_kept(stock, data, tmp_path, capsys):
    words = f"-config {data}.yaml -attention soft -train_from {stock} -save_model {tmp_path}/m"
    assert call(train.main, *words.split(), "-reset_optim", "keep_states") == 2
    assert "-reset_optim keep_states" in capsys.readouterr().err


@pytest.mark.parametrize("start", ["stock", "model"])
def test_new_words_can_join(start, data, tmp_path, request):
    """-update_vocab: rows of known words are kept, whatever decoder the checkpoint has."""
    path = str(request.getfixturevalue(start))
    for side in ("src", "tgt"):
        lines = open(f"{data}.vocab.{side}", encoding="utf-8").read().splitlines()
        text = "\n".join(["brandnew\t999999", *lines]) + "\n"
        (tmp_path / f"vocab.{side}").write_text(text, encoding="utf-8")
    flags = f"-attention soft -train_from {path} -update_vocab -reset_optim all"
    flags += f" -src_vocab {tmp_path}/vocab.src -tgt_vocab {tmp_path}/vocab.tgt"
    flags += " -src_vocab_size 999 -tgt_vocab_size 999"
    first_perplexity(data, tmp_path / "new", flags)
    before, after = checkpoint.load(path), checkpoint.load(f"{tmp_path}/new_step_1.pt")
    for side, part in (("src", "encoder"), ("tgt", "decoder")):
        old, new = (loaded["vocab"][side].base_field.vocab for loaded in (before, after))
        assert len(new) == len(old) + 1
        name = f"{part}.embeddings.make_embedding.emb_luts.0.weight"
        rows = [new.stoi[word] for word in old.itos]
        assert torch.equal(after["model"][name][rows], before["model"][name])
    assert torch.equal(after["generator"]["0.weight"][rows], before["generator"]["0.weight"])
    assert torch.equal(
        after["model"]["encoder.rnn.weight_hh_l0"], before["model"]["encoder.rnn.weight_hh_l0"]
    )

"""Checkpoints: no code runs, nothing half-written takes the place of a good one."""

import argparse
import os
import pickle
import re
from collections import Counter

import pytest
import torch

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.plugin import register
from onmt_varattn.training.checkpoints import container, pickles
from tests import models


class Payload:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (exec, (f"open({str(self.path)!r}, 'w').write('pwned')",))


def small_checkpoint():
    model, opt = models.model()
    return {
        "model": {k: v for k, v in model.state_dict().items() if not k.startswith("generator")},
        "generator": model.generator.state_dict(),
        "vocab": models.fields(),
        "opt": opt,
        "optim": None,
    }


@pytest.fixture(autouse=True)
def _registered():
    register()


def test_a_checkpoint_comes_back_whole(tmp_path):
    path = str(tmp_path / "m.pt")
    saved = small_checkpoint()
    checkpoint.write(saved, path)
    loaded = checkpoint.load(path)
    kept = vars(loaded["opt"])
    assert kept["attention"] == "soft"
    assert kept["dropout"] == [0.0]
    assert {name: vars(saved["opt"])[name] for name in kept if name in vars(saved["opt"])} == {
        name: value for name, value in kept.items() if name in vars(saved["opt"])
    } | {"tensorboard_log_dir": "runs/onmt"}
    assert loaded["vocab"]["tgt"].base_field.vocab.itos == saved["vocab"]["tgt"].base_field.vocab.itos
    for name, value in saved["model"].items():
        assert torch.equal(loaded["model"][name], value)
    assert os.listdir(tmp_path) == ["m.pt"]


@pytest.mark.parametrize("legacy", [False, True])
def test_a_checkpoint_with_code_is_refused_and_the_code_does_not_run(tmp_path, legacy):
    witness, path = tmp_path / "witness", str(tmp_path / "evil.pt")
    evil = {**small_checkpoint(), "optim": Payload(witness)}
    torch.save(evil, path, _use_new_zipfile_serialization=not legacy)
    reason = "a bare pickle" if legacy else r"it names \S*exec, .* could run code"
    with pytest.raises(UserError, match=rf"evil\.pt: refused: {reason}"):
        checkpoint.load(path)
    assert not witness.exists()
    torch.load(path, weights_only=False)  # the payload is a live one
    assert witness.exists()


def test_a_bare_pickle_is_refused(tmp_path):
    witness, path = tmp_path / "witness", tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Payload(witness)))
    with pytest.raises(UserError, match="refused"):
        checkpoint.load(str(path))
    assert not witness.exists()


def test_every_name_on_the_list_is_one_that_a_checkpoint_needs(tmp_path, monkeypatch):
    """Without any one of its entries a checkpoint with copy attention and alignments cannot be read."""
    from onmt.inputters.inputter import get_fields

    path = str(tmp_path / "m.pt")
    everything = {**get_fields("text", None, None, dynamic_dict=True, with_align=True), **models.fields()}
    dtypes = {**dict.fromkeys(container.DTYPES.values()), torch.float32: None}
    optim = {
        "tensors": [torch.zeros(2, dtype=dtype) for dtype in dtypes],
        "set": {"a"},
        "counts": Counter("a"),
    }
    optim["parameter"] = torch.nn.Parameter(torch.zeros(2))
    optim.update(training_step=1, decay_step=1)
    torch.save({**small_checkpoint(), "vocab": everything, "optim": optim}, path)
    assert checkpoint.load(path)["vocab"].keys() == everything.keys()
    for entry in pickles._NAMES:
        monkeypatch.setattr(pickles, "_NAMES", pickles._NAMES - {entry})
        with pytest.raises(UserError, match=f"refused: it names {re.escape(entry)}, which"):
            checkpoint.load(path)
        monkeypatch.undo()


@pytest.mark.parametrize("save", [torch.save, checkpoint.write])
@pytest.mark.parametrize("shared", [False, True])
def test_fields_are_built_anew_and_do_what_the_old_ones_did(tmp_path, shared, save):
    """Numbers of words, lengths, truncation and what is not known: as the fields that were saved."""
    from onmt.inputters.inputter import _build_fields_vocab, get_fields

    made = get_fields("text", None, None, src_truncate=3, dynamic_dict=True, with_align=True)
    counters = {"src": Counter(a=3, b=2, ü=1), "tgt": Counter(x=2, y=1)}
    _build_fields_vocab(made, counters, "text", shared, 1, 9, 0, 9, 0)
    sentences = [["a", "b", "ü", "b"], ["never", "a"]]
    path = str(tmp_path / "m.pt")
    save({**small_checkpoint(), "vocab": made}, path)
    found = checkpoint.load(path)["vocab"]
    assert list(found) == list(made)
    for side in ("src", "tgt"):
        for (name, field), (other_name, other) in zip(made[side], found[side], strict=True):
            assert name == other_name
            assert field.vocab.itos == other.vocab.itos
            assert dict(field.vocab.stoi) == dict(other.vocab.stoi)
            assert field.vocab.freqs == other.vocab.freqs
            assert field.preprocess("a b c d") == other.preprocess("a b c d")
    assert (found["src"].base_field.vocab == found["tgt"].base_field.vocab) == shared
    for side in ("src", "tgt"):
        ours, theirs = (fields[side].base_field.process(sentences) for fields in (found, made))
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_checkpoint_is_named(tmp_path, part):
    path = tmp_path / "m.pt"
    checkpoint.write(small_checkpoint(), str(path))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(UserError, match=r"m\.pt: .*(not a whole checkpoint|refused)"):
        checkpoint.load(str(path))


def test_other_files_are_named(tmp_path):
    with pytest.raises(UserError, match="there is no such checkpoint"):
        checkpoint.load(str(tmp_path / "none.pt"))
    (tmp_path / "text.pt").write_text("a b c\n")
    with pytest.raises(UserError, match=r"text\.pt"):
        checkpoint.load(str(tmp_path / "text.pt"))
    (tmp_path / "empty.pt").write_bytes(b"")
    with pytest.raises(UserError, match=r"empty\.pt"):
        checkpoint.load(str(tmp_path / "empty.pt"))
    torch.save({"weights": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(UserError, match="not a translation model: it has no 'model'"):
        checkpoint.load(str(tmp_path / "other.pt"))


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = str(tmp_path / "m.pt")
    checkpoint.write(small_checkpoint(), path)
    before = open(path, "rb").read()

    def half(obj, file):
        file.write(b"half a checkpoint")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container, "write", half)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(small_checkpoint(), path)
    assert open(path, "rb").read() == before
    assert os.listdir(tmp_path) == ["m.pt"]


def test_looking_words_up_does_not_enter_them_into_a_checkpoint(tmp_path):
    saved, path = small_checkpoint(), str(tmp_path / "m.pt")
    vocab = saved["vocab"]["tgt"].base_field.vocab
    assert vocab.stoi["never seen"] == 0
    checkpoint.write(saved, path)
    assert dict(checkpoint.load(path)["vocab"]["tgt"].base_field.vocab.stoi) == {
        word: i for i, word in enumerate(vocab.itos)
    }


def test_a_checkpoint_of_another_model_does_not_pass_for_this_one():
    import onmt.model_builder

    saved = small_checkpoint()
    del (
        saved["model"]["decoder.attention.readout.query.weight"],
        saved["model"]["decoder.attention.score.query.bias"],
    )
    opt = models.options(models.SMALL)
    with pytest.raises(
        UserError, match=r"does not fit .* decoder\.attention\.readout\.query\.weight \(nor 1 more\)"
    ):
        onmt.model_builder.build_base_model(opt, models.fields(), False, saved)


def test_options_of_a_stock_checkpoint_get_our_defaults():
    from onmt.utils.parse import ArgumentParser

    opt = ArgumentParser.ckpt_model_opts(argparse.Namespace(rnn_size=5))
    assert opt.attention is None
    assert opt.rnn_size == 5


@pytest.mark.parametrize(
    "name", ["src_embeddings", "tgt_embeddings", "log_file", "save_model", "src_onmttok_kwargs"]
)
def test_options_of_free_text_are_for_comparison_only(tmp_path, name):
    saved, path = small_checkpoint(), str(tmp_path / "m.pt")
    setattr(saved["opt"], name, "/dev/zero")
    checkpoint.write(saved, path)
    loaded = checkpoint.load(path)
    assert "/dev/zero" not in vars(loaded["opt"]).values()
    assert loaded["texts"][name] == "/dev/zero"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layers", 10**6, "-layers is 1000000, but its parameters have"),
        ("enc_rnn_size", 10**9, "-enc_rnn_size is 1000000000, but"),
        ("enc_rnn_size", "6", "-enc_rnn_size is '6', which is no value"),
        ("enc_rnn_size", True, "-enc_rnn_size is True, which is no value"),
        ("attention", "nope", "-attention is 'nope', which is no value"),
        ("dropout", [5.0], "-dropout 5.0 must be at least 0 and below 1"),
        ("learning_rate", float("nan"), "-learning_rate is nan, which is no value"),
        ("share_vocab", "yes", "-share_vocab is 'yes', which is no value"),
    ],
)
def test_options_are_checked_as_those_of_the_command_line(tmp_path, name, value, message):
    saved, path = small_checkpoint(), str(tmp_path / "m.pt")
    setattr(saved["opt"], name, value)
    checkpoint.write(saved, path)
    with pytest.raises(
        UserError, match=re.escape(f"m.pt: {'its option ' * ('must' not in message)}{message}")
    ):
        checkpoint.load(path)


def test_a_model_larger_than_its_file_takes_no_memory():
    """One long parameter lets each size pass for itself; together they would take terabytes."""
    import onmt.model_builder

    saved = small_checkpoint()
    saved["model"]["long"] = torch.zeros(10**6)
    opt = models.options(models.SMALL)
    opt.enc_rnn_size = opt.dec_rnn_size = 10**6
    with pytest.raises(UserError, match=r"does not fit this model: .* not "):
        onmt.model_builder.build_base_model(opt, models.fields(), False, saved)


def test_checkpoints_of_other_versions_of_opennmt_are_named(tmp_path):
    words = ["<unk>", "<blank>", "<s>", "</s>"]
    for vocab, version in (
        ({"src": words, "tgt": words}, "OpenNMT-py 3"),
        ([("src", words)], "OpenNMT-py 0 or 1"),
    ):
        path = str(tmp_path / "m.pt")
        torch.save({**small_checkpoint(), "vocab": vocab}, path)
        with pytest.raises(UserError, match=rf"m\.pt: written by {version}, .* train anew"):
            checkpoint.load(path)


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    ):
        yield from tensors_of(item)


def test_every_tensor_has_memory_of_its_own(tmp_path):
    """Views that overlap, or have strides of 0, had torch's fused optimiser write beyond their memory."""
    saved, path = small_checkpoint(), str(tmp_path / "m.pt")
    shared, flat = torch.arange(6.0), torch.zeros(100)
    saved["optim"] = {
        "training_step": 1,
        "moments": [shared.view(2, 3), shared.view(3, 2), shared, flat[99:].expand(7), flat[:50], flat[25:75], shared.view(2, 3).t()],
    }  # fmt: skip
    for save in (torch.save, checkpoint.write):
        save(saved, path)
        found = list(tensors_of(checkpoint.load(path)["optim"]))
        assert all(
            torch.equal(one, other) for one, other in zip(found, saved["optim"]["moments"], strict=True)
        )
        assert all(one.is_contiguous() for one in found)
        assert all(one.untyped_storage().nbytes() == one.nbytes for one in found)
        assert len({one.data_ptr() for one in found}) == len(found)


def test_a_tensor_in_too_many_places_is_refused(tmp_path):
    """Each place takes memory of its own; a small file could ask for any amount."""
    path, large = str(tmp_path / "m.pt"), torch.zeros(10**6)
    for save in (torch.save, checkpoint.write):
        saved = small_checkpoint()
        saved["optim"] = {"training_step": 1, "moments": [large] * 3}
        save(saved, path)
        assert len(list(tensors_of(checkpoint.load(path)["optim"]))) == 3
        saved["optim"]["moments"] = [large] * 10
        save(saved, path)
        with pytest.raises(UserError, match="refused: its tensors together are more than 4 times as large"):
            checkpoint.load(path)


def test_layers_of_names_alone_are_refused(tmp_path):
    saved, path = small_checkpoint(), str(tmp_path / "m.pt")
    saved["model"].update({f"layer{i}": torch.zeros(1) for i in range(2000)})
    saved["opt"].enc_layers = 1900
    checkpoint.write(saved, path)
    with pytest.raises(UserError, match="-enc_layers is 1900; at most 256 are read"):
        checkpoint.load(path)


@pytest.mark.parametrize("word", ["two\nlines", "a\rb", "x" * 10_001, "\ud800"])
def test_words_that_cannot_stand_in_a_line_are_refused(tmp_path, word):
    saved, path = small_checkpoint(), str(tmp_path / "m.pt")
    saved["vocab"]["tgt"].base_field.vocab.itos[5] = word
    torch.save(saved, path)
    with pytest.raises(UserError, match="its vocabulary is damaged: a word is no text, or has a line break"):
        checkpoint.load(path)


def test_a_word_list_in_many_places_is_counted_in_each(tmp_path, monkeypatch):
    from onmt_varattn.nmt.data import fields

    saved, path = small_checkpoint(), str(tmp_path / "m.pt")
    side = saved["vocab"]["src"]
    side.fields += [(f"feature{i}", side.base_field) for i in range(9)]
    torch.save(saved, path)
    checkpoint.load(path)
    monkeypatch.setattr(fields, "MOST_WORDS", 10 * models.VOCABULARY)
    with pytest.raises(UserError, match="refused: it has more than 120 words, or 20 features"):
        checkpoint.load(path)


@pytest.mark.parametrize("steps", [10**400, -1, "5", 2.0, True, None])
def test_steps_that_nobody_has_trained_are_refused(tmp_path, steps):
    saved, path = small_checkpoint(), str(tmp_path / "m.pt")
    checkpoint.write({**saved, "optim": {"training_step": 1, "decay_step": steps}}, path)
    with pytest.raises(UserError, match="its optimiser is damaged: decay_step is") as error:
        checkpoint.load(path)
    assert len(str(error.value)) < 300


def test_the_state_of_an_optimiser_is_that_of_its_kind_and_its_parameters():
    from onmt_varattn.training.checkpoints.fitting import check_state
    from onmt_varattn.training.checkpoints.trees import BrokenError

    parameters = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]
    for kind in (torch.optim.Adam, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.SGD):
        optimizer = kind(parameters)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        check_state(kind(parameters), optimizer.state_dict())

    def state():
        optimizer = torch.optim.Adam(parameters)
        optimizer.step()
        return optimizer.state_dict()

    def broken(change):
        saved = state()
        change(saved)
        with pytest.raises(BrokenError, match=r"its optimiser.* is damaged"):
            check_state(torch.optim.Adam(parameters), saved)

    broken(lambda saved: saved["param_groups"][0].update(amsgrad=True))
    broken(lambda saved: saved["param_groups"][0].update(lr=float("nan")))
    broken(lambda saved: saved["param_groups"][0].update(betas=("a", 0.9)))
    broken(lambda saved: saved["param_groups"][0].pop("betas"))
    broken(lambda saved: saved["state"][0].update(exp_avg=torch.zeros(2)))
    broken(lambda saved: saved["state"][0].update(exp_avg=torch.zeros(5, 4)))
    broken(lambda saved: saved["state"][0].update(exp_avg=torch.zeros(3, 4, dtype=torch.int64)))
    broken(lambda saved: saved["state"][0].pop("exp_avg_sq"))
    broken(lambda saved: saved["state"].update({7: saved["state"][0]}))
    broken(lambda saved: saved["state"][0].update(step="1"))
    broken(lambda saved: saved["param_groups"][0].update(params=[1, 0]))

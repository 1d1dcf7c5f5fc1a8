"""Checkpoints: no code runs, nothing half-written takes the place of a good one."""

import argparse
import os
import pickle

import pytest
import torch

from onmt_varattn import saving
from onmt_varattn.errors import UserError
from onmt_varattn.nmt import checkpoint
from onmt_varattn.plugin import register
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
    saving.write(saved, path)
    loaded = checkpoint.load(path)
    assert loaded["opt"] == saved["opt"]
    assert loaded["vocab"]["tgt"].base_field.vocab.itos == saved["vocab"]["tgt"].base_field.vocab.itos
    for name, value in saved["model"].items():
        assert torch.equal(loaded["model"][name], value)
    assert os.listdir(tmp_path) == ["m.pt"]


@pytest.mark.parametrize("legacy", [False, True])
def test_a_checkpoint_with_code_is_refused_and_the_code_does_not_run(tmp_path, legacy):
    witness, path = tmp_path / "witness", str(tmp_path / "evil.pt")
    evil = {**small_checkpoint(), "optim": Payload(witness)}
    torch.save(evil, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UserError, match=r"evil\.pt: refused: it names \S*exec, .* could run code"):
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


def test_the_allow_list_is_no_longer_than_a_checkpoint_needs(tmp_path):
    """Without any one of its entries a checkpoint with copy attention and alignments cannot be read."""
    from onmt.inputters.inputter import get_fields

    path = str(tmp_path / "m.pt")
    everything = {**get_fields("text", None, None, dynamic_dict=True, with_align=True), **models.fields()}
    saving.write({**small_checkpoint(), "vocab": everything}, path)
    assert checkpoint.load(path)["vocab"].keys() == everything.keys()
    for entry in checkpoint.CHECKPOINT_CLASSES:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([c for c in checkpoint.CHECKPOINT_CLASSES if c is not entry])
        try:
            with pytest.raises(UserError, match="refused"):
                checkpoint.load(path)
        finally:
            torch.serialization.add_safe_globals(checkpoint.CHECKPOINT_CLASSES)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_checkpoint_is_named(tmp_path, part):
    path = tmp_path / "m.pt"
    saving.write(small_checkpoint(), str(path))
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
    saving.write(small_checkpoint(), path)
    before = open(path, "rb").read()

    def half(obj, file):
        file.write(b"half a checkpoint")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="No space left"):
        saving.write(small_checkpoint(), path)
    assert open(path, "rb").read() == before
    assert os.listdir(tmp_path) == ["m.pt"]


def test_looking_words_up_does_not_enter_them_into_a_checkpoint():
    fields = models.fields()
    vocab = fields["tgt"].base_field.vocab
    size = len(vocab.stoi)
    assert vocab.stoi["never seen"] == 0
    cleaned = checkpoint._without_unknown_words(fields)
    assert len(cleaned["tgt"].base_field.vocab.stoi) == size
    assert cleaned["tgt"].base_field.vocab.stoi == {w: i for i, w in enumerate(vocab.itos)}


def test_a_checkpoint_of_another_model_does_not_pass_for_this_one():
    import onmt.model_builder

    saved = small_checkpoint()
    del saved["model"]["decoder.emission.query.weight"], saved["model"]["decoder.score.query.bias"]
    opt = models.options(models.SMALL)
    with pytest.raises(UserError, match=r"does not fit .* decoder\.emission\.query\.weight \(nor 1 more\)"):
        onmt.model_builder.build_base_model(opt, models.fields(), False, saved)


def test_options_of_a_stock_checkpoint_get_our_defaults():
    from onmt.utils.parse import ArgumentParser

    opt = ArgumentParser.ckpt_model_opts(argparse.Namespace(rnn_size=5))
    assert opt.attention is None
    assert opt.rnn_size == 5

"""tools/evaluate.py on trained models: what it prints and writes, and what it refuses."""

import json
import math
import re
import sys

import pytest
import sacrebleu

import onmt_varattn
from onmt_varattn.bin.analysis import evaluate
from onmt_varattn.bin.nmt import train
from onmt_varattn.nmt.model import checkpoint
from tests.conftest import ROOT, SIZES, STEPS, call, run_command

KEYS = {
    "model", "attention", "estimator", "posterior", "tokens",
    "words", "unknown", "natural", "ppl", "word_ppl",
    "ppl_standard_error", "accuracy", "elbo", "elbo_standard_error", "kl",
    "prior_entropy", "posterior_entropy", "exact_posterior_entropy", "bleu", "bleu_signature", "chrf", "chrf_signature", "ter", "ter_signature",
    "signature", "relative_entropy", "relative_information", "findings",
}  # fmt: skip


@pytest.fixture(scope="module")
def latent(data, tmp_path_factory):
    """Checkpoints of a variational and a relaxed model, hardly trained; their q and p differ all the same."""
    directory = tmp_path_factory.mktemp("latent")
    for attention in ("variational", "relaxed"):
        words = f"-config {data}.yaml {SIZES} {STEPS} -train_steps 10 -param_init 0.5 -attention {attention}"
        assert call(train.main, *words.split(), "-save_model", directory / attention) == 0
    return directory


@pytest.fixture
def text(toy, tmp_path):
    """The first lines of the test set."""
    for side in ("de", "en"):
        lines = (toy / f"test.{side}").read_text("utf-8").splitlines()[:8]
        (tmp_path / f"few.{side}").write_text("".join(line + "\n" for line in lines), "utf-8")
    return tmp_path / "few"


def doctored(path, output, change):
    """A checkpoint with something changed."""
    content = checkpoint.load(str(path))
    change(content)
    checkpoint.write(content, str(output))
    return output


def results(text, tmp_path, *words):
    """The JSON file of a run."""
    output = tmp_path / "out.json"
    assert call(evaluate.main, "-src", f"{text}.de", "-tgt", f"{text}.en", "-json", output, *words) == 0
    return json.loads(output.read_text("utf-8"))


def validation(prefix):
    lines = [json.loads(line) for line in open(f"{prefix}.metrics.jsonl", encoding="utf-8")]
    return [line for line in lines if line["part"] == "valid"][-1]


def test_it_is_the_validation_of_training(model, latent, toy, tmp_path):
    """The same sentences, read from raw text by another path than training's."""
    variational = latent / "variational_step_10.pt"
    words = ["-model", model, variational, "-batch_size", 7]
    soft, latent_one = results(toy / "valid", tmp_path, *words)["models"]
    for result, prefix in ((soft, model.parent / "soft"), (latent_one, latent / "variational")):
        right = validation(prefix)
        assert result["tokens"] == right["words"]
        assert result["ppl"][result["natural"]] == pytest.approx(right["ppl"], rel=1e-5)
        assert result["accuracy"] == pytest.approx(right["accuracy"], abs=0.1)  # ties, at most
        names = ["prior_entropy", *["elbo", "kl", "posterior_entropy"] * (result is latent_one)]
        found, wanted = ([numbers[name] for name in names] for numbers in (result, right))
        assert found == pytest.approx(wanted, rel=1e-4)
        assert result["relative_entropy"]["prior"] == pytest.approx(right["relative_entropy"], rel=1e-4)
        for kind in ("prior", *["posterior"] * (result is latent_one)):
            wanted = right[f"{kind}_information"]
            assert result["relative_information"][kind] == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert (soft["natural"], latent_one["natural"]) == ("soft", "exact")
    assert soft["elbo"] is None
    assert latent_one["kl"] > 1e-3


def test_the_module_writes_what_others_read(model, text, tmp_path):
    output = tmp_path / "new" / "out.json"
    words = ["-model", model, "-src", f"{text}.de", "-tgt", f"{text}.en", "-kmax", 2, "-json", output]
    run_command(sys.executable, "-m", "onmt_varattn.bin.analysis.evaluate", *words)
    found = json.loads(output.read_text("utf-8"))
    assert list(found) == ["src", "tgt", "sentences", "version", "models"]
    assert found["src"] == f"{text}.de"
    assert found["sentences"] == 8
    (result,) = found["models"]
    assert set(result) == KEYS
    assert set(result["ppl"]) == set(result["word_ppl"]) == {"soft", "exact", "kmax2"}
    lines = (text.parent / "few.en").read_text("utf-8").splitlines()
    assert result["words"] == sum(len(line.split()) + 1 for line in lines)
    for way, ppl in result["ppl"].items():
        nats = math.log(ppl) * result["tokens"]
        assert math.log(result["word_ppl"][way]) * result["words"] == pytest.approx(nats)
    assert (result["bleu"], result["bleu_signature"], result["posterior"]) == ({}, None, None)
    assert (result["chrf"], result["chrf_signature"], result["ter"]) == ({}, None, {})
    assert result["unknown"] == {"src": 0.0, "tgt": 0.0}


def test_the_front_door_lists_every_option():
    shown = run_command(sys.executable, ROOT / "tools/evaluate.py", "-h").stdout
    for action in evaluate.evaluate_parser()._actions:
        assert action.option_strings[-1] in shown
        assert action.help


def test_bleu_is_that_of_translating_with_the_same_settings(model, text, tmp_path, capsys):
    (result,) = results(text, tmp_path, "-model", model, "-bleu", "-beam", 3, "-kmax", 1)["models"]
    sources, references = ((text.parent / f"few.{x}").read_text("utf-8").splitlines() for x in ("de", "en"))
    settings = {"beam": 3, "length_penalty": "wu", "alpha": 1, "eos_norm": 3, "batch_size": 3}
    right, chrf, ter = {}, {}, {}
    for way, kmax in (("soft", 0), ("kmax1", 1)):
        written = onmt_varattn.load(str(model), kmax=kmax, **settings).translate(sources)
        right[way] = sacrebleu.corpus_bleu(written, [references], force=True).score
        chrf[way] = sacrebleu.corpus_chrf(written, [references]).score
        ter[way] = sacrebleu.corpus_ter(written, [references]).score
    assert right["soft"] != right["kmax1"], "or one could be taken for the other"
    assert result["bleu"] == pytest.approx(right)
    assert "tok:13a" in result["bleu_signature"]
    assert (result["chrf"], result["ter"]) == (pytest.approx(chrf), pytest.approx(ter))
    assert "nc:6" in result["chrf_signature"]
    assert "tok:tercom" in result["ter_signature"]
    assert "|beam:3|length_penalty:wu|alpha:1|eos_norm:3|" in result["signature"]
    out = capsys.readouterr().out
    for name, found in {"BLEU": right, "chrF": chrf, "TER": ter}.items():
        assert f"{name} = {found['soft']:.2f} (soft) | kmax1 {found['kmax1']:.2f}" in out


def test_a_relaxed_model_is_sampled_as_the_seed_says(latent, text, tmp_path, capsys):
    relaxed = latent / "relaxed_step_10.pt"
    words = ["-model", relaxed, "-samples", 4, "-bleu", "-beam", 2, "-max_length", 5]
    one, same, other = (results(text, tmp_path, *words, "-seed", seed)["models"][0] for seed in (0, 0, 8))
    assert one == same
    assert one["ppl"]["samples"] != other["ppl"]["samples"]
    assert one["elbo"] != other["elbo"]
    assert set(one["ppl"]) == {"soft", "samples"}
    assert set(one["bleu"]) == {"samples"}
    error = math.hypot(*(x["ppl_standard_error"]["samples"] for x in (one, other)))
    # Four standard errors: 1 seed in 16,000 would fail.
    assert abs(one["ppl"]["samples"] - other["ppl"]["samples"]) < 4 * error
    assert one["elbo_standard_error"] > 0
    assert "|samples:4|seed:8|" in other["signature"]
    assert re.search(r"PPL per token = [\d.]+ ± [\d.]+ \(samples\)", capsys.readouterr().out)


def test_several_models_make_tables(model, latent, text, tmp_path, capsys):
    paths = [model, latent / "variational_step_10.pt", latent / "relaxed_step_10.pt"]
    found = results(text, tmp_path, "-model", *paths, "-kmax", 5, 2)["models"]
    out, err = capsys.readouterr()
    findings = [
        (path, finding) for path, result in zip(paths, found, strict=True) for finding in result["findings"]
    ]
    assert err.splitlines() == [f"warning: {path}: {finding}" for path, finding in findings]
    assert {path for path, _ in findings} <= set(paths[1:]), "the first has learned something"
    assert "Note" not in out
    tables = [block.splitlines() for block in out.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3
    for lines in tables:
        assert len({len(line) for line in lines}) == 1, "aligned"
        assert len({line.count("|") for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[0]]
    assert cells[0] == ["model", "attention", "exact", "kmax2", "kmax5", "soft", "samples"]
    assert cells[2][2:] == [f"{found[0]['ppl'][way]:.2f}" for way in cells[0][2:-1]] + ["-"]
    assert cells[4][2:5] == ["-"] * 3
    lines = out.splitlines()[-3:]
    for line, result in zip(lines, found, strict=True):
        way = result["natural"]
        assert line.startswith(f"PPL per token = {result['ppl'][way]:.2f}")
        assert line.endswith(result["signature"])
        assert ("ELBO" in line) == (result["elbo"] is not None)


def test_a_model_of_another_vocabulary_is_warned_of(model, text, tmp_path, capsys):
    def rename(content):
        vocab = content["vocab"]["tgt"].base_field.vocab
        for i in range(4, len(vocab.itos)):
            word = vocab.itos[i] + "x"
            vocab.itos[i] = word
            vocab.stoi[word] = i
        for word in [word for word, i in vocab.stoi.items() if vocab.itos[i] != word]:
            del vocab.stoi[word]

    other = doctored(model, tmp_path / "other.pt", rename)
    found = results(text, tmp_path, "-model", model, other)["models"]
    out, err = capsys.readouterr()
    assert found[1]["unknown"] == {"src": 0.0, "tgt": 1.0}
    assert err.strip().splitlines() == [
        f"warning: {other} does not know 100% of the tokens of {text}.en; is it a model for this text (its "
        "language, case and tokenisation)?"
    ]
    assert "Note: the target vocabularies of these models differ" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: setattr(content["opt"], "attention", None), "not trained with -attention"),
        (lambda content: content["generator"]["0.bias"].fill_(math.nan), "not finite numbers"),
    ],
)
def test_a_model_that_cannot_be_scored_is_named(model, text, tmp_path, change, words, capsys):
    bad = doctored(model, tmp_path / "bad.pt", change)
    line = f"-model {bad} -src {text}.de -tgt {text}.en -json {tmp_path}/out.json"
    assert call(evaluate.main, *line.split()) == 2
    assert f"{bad}: " in (error := capsys.readouterr().err)
    assert words in error
    assert not (tmp_path / "out.json").exists()


def test_all_models_are_looked_at_before_the_first_is_scored(model, text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "evaluate_model", lambda *_: pytest.fail("scored"))
    line = f"-model {model} {tmp_path}/none.pt -src {text}.de -tgt {text}.en"
    assert call(evaluate.main, *line.split()) == 2
    assert f"{tmp_path}/none.pt: there is no such checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "target", "flags", "words"),
    [
        ("a\nb\n", "a\n", "", "src has 2 lines and {0}/tgt has 1"),
        ("", "", "", "src: the file is empty"),
        ("a\nb\n", "a\n \t\n", "", "tgt, line 2: blank"),
        ("a\n\n", "a\nb\n", "", "src, line 2: blank"),
        ("a\n", "a\n", "-kmax 3 -1", "-kmax -1 must not be negative"),
        ("a\n", "a\n", "-samples 1", "-samples 1 must be at least 2"),
        ("a\n", "a\n", "-seed -3", "-seed -3 must be at least 0"),
        ("a\n", "a\n", "-json {0}/src", "-json {0}/src is -src and would be written over"),
        ("a\n", "a\n", "-json {0}", "{0}: cannot be written: it is a directory"),
        ("a\n", "a\n", "-beam 0", "-beam 0 must be at least 1"),
        ("a\n", "a\n", "-batch_size 0", "-batch_size 0 must be at least 1"),
        ("a\n", "a\n", "-gpu 0", "-gpu 0: torch finds no CUDA device"),
        ("a\n", "a\n", "-kmx 3", "unknown option -kmx; did you mean -kmax?"),
    ],
)
def test_mistakes_are_refused_in_one_line(model, tmp_path, source, target, flags, words, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "evaluate_model", lambda *_: pytest.fail("scored"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "src").write_text(source)
    (tmp_path / "tgt").write_text(target)
    line = f"-model {model} -src {tmp_path}/src -tgt {tmp_path}/tgt {flags}".format(tmp_path)
    assert call(evaluate.main, *line.split()) == 2
    error = capsys.readouterr().err
    assert words.format(tmp_path) in error
    assert error.strip().count("\n") == 0
    assert (tmp_path / "src").read_text() == source

"""The automatic start from the command line: it switches, says so, forgets, is resumed, and warns."""

import json
import math

import pytest

from onmt_varattn.bin.nmt import train
from onmt_varattn.latent import objectives
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.training.task import TranslationTask
from onmt_varattn.training import health
from tests.conftest import SIZES, call

RUN = "-batch_size 16 -train_steps 40 -valid_steps 8 -report_every 10 -save_checkpoint_steps 8 -seed 5"
LATENT = "-attention variational -attention_estimator sample"


@pytest.fixture
def forms(monkeypatch):
    """Alignments count as formed as soon as anything is judged: after step 20."""
    monkeypatch.setattr(objectives, "RISEN", -math.inf)
    monkeypatch.setattr(objectives, "LEVEL", -math.inf)
    monkeypatch.setattr(
        objectives.Formation, "level", property(lambda self: -1.0 if len(self.blocks) >= 20 else None)
    )


def run(data, directory, flags, name="m"):
    words = f"-config {data}.yaml {SIZES} {RUN} {flags} -save_model {directory}/{name}"
    return call(train.main, *words.split(), "-log_file", directory / f"{name}.log")


def log(directory, name="m"):
    return (directory / f"{name}.log").read_text("utf-8")


def metrics(directory, name="m"):
    return [json.loads(line) for line in (directory / f"{name}.metrics.jsonl").read_text().splitlines()]


def test_it_switches_reports_up_to_there_and_says_so(data, tmp_path, forms):
    assert run(data, tmp_path, LATENT) == 0
    assert "warm-up with soft attention until alignments have formed" in log(tmp_path)
    assert "Alignments have formed at step 20" in log(tmp_path)
    assert ": variational attention from here" in log(tmp_path)
    lines = metrics(tmp_path)
    reports = {line["step"]: line for line in lines if line["part"] == "train"}
    for step, line in reports.items():
        assert ("elbo" in line) == (step > 20), "no report is of two objectives"
        assert bool(line.get("warm_up")) == (step <= 20)
    valid = {line["step"]: line for line in lines if line["part"] == "valid"}
    assert [bool(valid[step].get("warm_up")) for step in (8, 16, 24, 32, 40)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert all(line["soft_ppl"] > 1 for line in valid.values())
    saved = checkpoint.load(str(tmp_path / "m_step_40.pt"))
    assert saved["training"]["start"]["end"] == 20
    assert saved["opt"].attention_warmup_steps == "auto"


def test_the_report_is_split_where_the_objective_changes(data, tmp_path):
    assert run(data, tmp_path, f"{LATENT} -attention_warmup_steps 13 -learning_rate 0") == 0
    reports = [line for line in metrics(tmp_path) if line["part"] == "train"]
    assert [line["step"] for line in reports] == [10, 13, 20, 30, 40]
    assert ["elbo" in line for line in reports] == [False, False, True, True, True]
    assert "The warm-up is over at step 13: variational attention from here" in log(tmp_path)


def test_what_was_validated_in_the_warm_up_counts_for_nothing_afterwards(data, tmp_path, forms, monkeypatch):
    """An automatic one, too; test_training_faults.py has those of a given length, for all tasks."""
    perplexities = {8: 2.0, 16: 1.5, 24: 9.0, 32: 8.0, 40: 7.0}
    stock = TranslationTask.validate

    def validate(self, *args, **kwargs):
        stats = stock(self, *args, **kwargs)
        ppl = perplexities[self.optim.training_step - 1]
        stats.loss = stats.n_words * math.log(ppl)
        stats.sums["soft_log_likelihood"] = (-stats.loss, stats.n_words)
        return stats

    monkeypatch.setattr(TranslationTask, "validate", validate)
    assert (
        run(data, tmp_path, f"{LATENT} -decay_on_plateau 1 -early_stopping 1 -early_stopping_criteria ppl")
        == 0
    )
    valid = [line for line in metrics(tmp_path) if line["part"] == "valid"]
    assert [line["step"] for line in valid] == [8, 16, 24, 32, 40], "early stopping did not end the run"
    assert len({line["learning_rate"] for line in valid}) == 1
    assert (tmp_path / "m_best.pt").resolve().name == "m_step_40.pt"
    assert checkpoint.load(str(tmp_path / "m_step_40.pt"))["training"]["best"]["step"] == 40


def test_a_warm_up_that_gets_no_better_ends_without_alignments(data, tmp_path):
    """With a rate of 0 validation stays as it is: the first is the best, and three more are enough."""
    assert run(data, tmp_path, f"{LATENT} -learning_rate 0 -dropout 0 -decay_on_plateau 0") == 0
    assert "Alignments have not formed, and validation no longer gets better at step 32" in log(tmp_path)
    assert [bool(line.get("warm_up")) for line in metrics(tmp_path) if line["part"] == "valid"] == [
        True,
        True,
        True,
        True,
        False,
    ]


def test_a_run_that_ends_before_its_warm_up_says_so(data, tmp_path):
    assert run(data, tmp_path, f"{LATENT} -train_steps 10") == 0
    assert "The run ended during the warm-up: the model was trained with soft attention" in log(tmp_path)


def test_uniform_alignments_are_reported(data, tmp_path, monkeypatch):
    monkeypatch.setattr(health, "AFTER", 5)
    monkeypatch.setattr(health, "UNIFORM", 0.0)
    assert run(data, tmp_path, f"{LATENT} -attention_warmup_steps 0 -train_steps 10") == 0
    assert "Health: alignments are uniform after 8 steps" in log(tmp_path)
    assert "Restart with -attention_warmup_steps auto." in log(tmp_path)


class TestTrainFrom:
    """What a checkpoint has had of a warm-up is not done again."""

    def go_on(self, data, directory, model, flags, steps=60):
        words = f"-config {data}.yaml {RUN} -train_from {model} -train_steps {steps} {flags}"
        code = call(
            train.main, *words.split(), "-save_model", directory / "n", "-log_file", directory / "n.log"
        )
        assert code == 0
        return log(directory, "n")

    def test_a_latent_model_goes_on_with_its_objective(self, data, tmp_path, forms):
        assert run(data, tmp_path, LATENT) == 0
        said = self.go_on(data, tmp_path, tmp_path / "m_step_40.pt", "")
        assert "No warm-up:" in said
        assert all("elbo" in line for line in metrics(tmp_path, "n") if line["part"] == "train")

    def test_so_it_does_with_another_objective(self, data, tmp_path, forms):
        assert run(data, tmp_path, LATENT) == 0
        said = self.go_on(data, tmp_path, tmp_path / "m_step_40.pt", "-attention marginal")
        assert "No warm-up:" in said

    def test_a_soft_model_fits_the_posterior_first(self, data, tmp_path, forms):
        assert run(data, tmp_path, "-attention soft") == 0
        said = self.go_on(data, tmp_path, tmp_path / "m_step_40.pt", LATENT, steps=70)
        assert "No warm-up" not in said
        assert "Alignments have formed at step 60" in said

    def test_a_model_that_was_stopped_in_its_warm_up_goes_on_with_it(self, data, tmp_path, forms):
        assert run(data, tmp_path, f"{LATENT} -train_steps 8") == 0
        said = self.go_on(data, tmp_path, tmp_path / "m_step_8.pt", "", steps=40)
        assert "Alignments have formed at step 28" in said

    def test_a_warm_up_that_will_not_happen_is_warned_of(self, data, tmp_path):
        assert run(data, tmp_path, "-attention soft") == 0
        flags = f"{LATENT} -attention_warmup_steps 30"
        said = self.go_on(data, tmp_path, tmp_path / "m_step_40.pt", flags, steps=41)
        assert "Health: -attention_warmup_steps 30: there will be no warm-up" in said


def test_defaults_and_presets_are_in_the_log_and_given_options_win(data, tmp_path):
    words = (
        f"-config {data}.yaml -attention soft -preset small -layers 2 -train_steps 3 -save_model {tmp_path}/m"
    )
    assert call(train.main, *words.split(), "-log_file", tmp_path / "m.log") == 0
    (line,) = [line for line in log(tmp_path).splitlines() if "Preset small:" in line]
    for option in ("-optim adam", "-src_word_vec_size 128", "-param_init 0", "-valid_steps 100"):
        assert f"{option} " in line + " "
    assert "layers" not in line
    saved = checkpoint.load(str(tmp_path / "m_step_3.pt"))["opt"]
    assert (saved.enc_layers, saved.enc_rnn_size, saved.optim) == (2, 128, "adam")


def test_a_resumed_run_keeps_the_defaults_it_began_with(data, tmp_path, monkeypatch, capsys):
    """Those of a later version may be others."""
    from onmt_varattn.nmt import presets

    words = f"-config {data}.yaml {SIZES} -attention variational -train_steps 4 -save_model {tmp_path}/m"
    assert call(train.main, *words.split()) == 0
    monkeypatch.setitem(presets.DEFAULTS, "learning_rate", 0.5)
    monkeypatch.setitem(presets.DEFAULTS, "dropout", [0.7])
    capsys.readouterr()
    assert call(train.main, *words.replace("steps 4", "steps 6").split(), "-resume") == 0
    assert "was" not in capsys.readouterr().err.split("Loading")[0].replace("-resume: going on", "")
    saved = checkpoint.load(str(tmp_path / "m_step_6.pt"))
    assert (saved["opt"].learning_rate, saved["opt"].dropout) == (0.001, [0.3])


def test_mistakes_are_one_sentence(data, tmp_path, capsys):
    for flags, words in {
        "-attention soft -preset huge": "invalid choice: 'huge'",
        "-preset paper": "-preset paper needs -attention",
        "-attention soft -preset transformer": "-preset transformer does not go with -attention",
        "-attention variational -attention_warmup_steps soon": "'soon' is neither a number nor auto",
        "-attention variational -embedding_dropout 1": "-embedding_dropout 1.0 must be at least 0 and below 1",
        "-embedding_dropout 0.1": "-embedding_dropout is for models with -attention",
        "-null_alignment": "-null_alignment is for models with -attention",
    }.items():
        assert call(train.main, *f"-config {data}.yaml {flags} -save_model {tmp_path}/m".split()) == 2
        assert words in capsys.readouterr().err


def test_a_run_from_another_model_is_resumed_with_its_own_defaults(data, tmp_path):
    """The checkpoint's options are the first model's; what this run was filled in with is saved apart."""
    first = f"-config {data}.yaml {SIZES} -attention soft -optim sgd -learning_rate 0.5 -train_steps 3"
    assert call(train.main, *first.split(), "-save_model", tmp_path / "m") == 0
    words = f"-config {data}.yaml -train_from {tmp_path}/m_step_3.pt -attention marginal -reset_optim all"
    words += f" -train_steps 5 -save_model {tmp_path}/n"
    assert call(train.main, *words.split()) == 0
    assert call(train.main, *words.replace("steps 5", "steps 8").split(), "-resume") == 0
    saved = checkpoint.load(str(tmp_path / "n_step_8.pt"))
    assert (saved["opt"].optim, saved["opt"].learning_rate) == ("adam", 0.001)
    assert saved["training"]["filled"]["keep_checkpoint"] == 3
    assert len(saved["optim"]["optimizer"]["state"]) > 10, "the moments of Adam"


def test_early_stopping_that_nobody_gave_outlives_a_new_end(data, tmp_path, monkeypatch):
    from onmt_varattn.nmt import presets

    monkeypatch.setattr(presets, "MOST_PASSES", 1)
    words = f"-config {data}.yaml {SIZES} -attention soft -save_model {tmp_path}/m"
    assert call(train.main, *words.split()) == 0
    saved = checkpoint.load(str(tmp_path / "m_step_31.pt"))
    assert saved["training"]["filled"]["early_stopping"] == saved["opt"].early_stopping == 4
    assert call(train.main, *words.split(), "-resume", "-train_steps", 33) == 0
    saved = checkpoint.load(str(tmp_path / "m_step_33.pt"))
    assert saved["training"]["filled"]["early_stopping"] == 4
    assert "train_steps" not in saved["training"]["filled"], "it is given now"


def test_steps_that_nobody_gave_are_on_top_of_the_first_models(data, tmp_path):
    from argparse import Namespace

    from onmt_varattn.nmt.training import command

    opt, filled = Namespace(train_steps=100, reset_optim="none"), {"train_steps": 100}
    command.count_on(opt, {"training_step": 2001}, filled)
    assert opt.train_steps == filled["train_steps"] == 2100
    given = Namespace(train_steps=100, reset_optim="none")
    command.count_on(given, {"training_step": 2001}, {})
    assert given.train_steps == 100


def test_a_new_posterior_follows_the_prior_first(data, tmp_path, forms):
    assert run(data, tmp_path, "-attention marginal -attention_warmup_steps 0 -train_steps 8") == 0
    words = f"-config {data}.yaml {RUN} -train_from {tmp_path}/m_step_8.pt {LATENT} -train_steps 40"
    assert (
        call(train.main, *words.split(), "-save_model", tmp_path / "n", "-log_file", tmp_path / "n.log") == 0
    )
    assert "Alignments have formed at step 28" in log(tmp_path, "n")


def test_the_report_is_split_where_a_warm_up_gives_up(data, tmp_path):
    flags = f"{LATENT} -learning_rate 0 -dropout 0 -decay_on_plateau 0 -report_every 100"
    assert run(data, tmp_path, flags) == 0
    reports = [line for line in metrics(tmp_path) if line["part"] == "train"]
    assert [(line["step"], bool(line.get("warm_up"))) for line in reports] == [(32, True)]

"""The benchmark of visual question answering: what it runs, and its table."""

import sys

import pytest

from benchmarks import vqa
from onmt_varattn.bin.vqa import train as vqa_train
from onmt_varattn.utils.cli import run
from tests.conftest import ROOT


@pytest.mark.parametrize("row", vqa.ROWS)
def test_rows_are_the_recipe_s_at_its_sizes(row):
    opt = vqa_train.vqa_train_parser().parse_args([*vqa.options(row), "-data", "d", "-save_model", "m"])
    opt = vqa_train.check_training(opt)
    found = "_".join(filter(lambda part: part != "none", (opt.attention, opt.attention_estimator)))
    assert found == {"marginal": "marginal_enum"}.get(row, row)
    assert (opt.rnn_size, opt.attention_size, opt.word_vec_size, opt.gpu_ranks) == (1024, 512, 300, [])


def test_a_measurement_trains_on_a_corpus_of_its_own(tmp_path, capsys):
    prefix = vqa.corpus(tmp_path, 24)
    assert "24 images with 864 boxes stored" in capsys.readouterr().out
    vqa.forget(prefix)
    found = vqa.measure(prefix, "variational_sample", steps=2, batch=4)
    assert found["rate"] > 0
    assert 0.1 < found["gigabytes"] < 4


def test_the_table_has_medians_spread_and_ratios():
    def runs(*rates):
        return [{"rate": rate, "gigabytes": 1.5} for rate in rates]

    found = {
        ("soft", "from disk"): runs(300, 200, 400),
        ("soft", "from memory"): runs(400, 400, 400),
        ("variational_enum", "from disk"): runs(30, 60, 20),
        ("variational_enum", "from memory"): runs(40, 20, 30),
    }
    assert vqa.table(found).splitlines()[2:] == [
        "| soft | 300 (200 - 400) | 1.00 | 400 | 0.75 | 1.50 GB |",
        "| variational enum | 30 (20 - 60) | 0.10 | 30 | 1.00 | 1.50 GB |",
    ]


@pytest.mark.parametrize(("flags", "message"), [("-rounds 0", "-rounds"), ("-update README.md", "marks")])
def test_what_would_fail_in_the_end_is_refused_at_once(flags, message, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *flags.split()])
    with pytest.raises(SystemExit) as stopped:
        run(vqa.main)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1

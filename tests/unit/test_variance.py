"""The study of variance: its statistics against closed forms, and the command on a tiny model."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from benchmarks import variance, variance_report
from benchmarks.moments import Moments, Summary, relative
from onmt_varattn.bin.nmt import train
from onmt_varattn.errors import UserError
from tests.conftest import ROOT, SIZES, STEPS, at_once, call, run_command

COVARIANCE = torch.tensor([[4.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]], dtype=torch.float64)
TRACE = 7.0
TRUTH = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def summaries(off, repeats=500, draws=20, blocks=10):
    """Summaries of Gaussian draws around TRUTH + off."""
    torch.manual_seed(1)
    factor = torch.linalg.cholesky(COVARIANCE)
    found = []
    for _ in range(repeats):
        moments = Moments(TRUTH, blocks)
        for draw in TRUTH + off + torch.randn(draws, 3, dtype=torch.float64) @ factor.t():
            moments.add(draw)
        found.append(moments.summary())
    return found


def mean_and_error(values):
    values = torch.tensor(values, dtype=torch.float64)
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def test_a_summary_is_the_textbook_formula_of_its_draws():
    torch.manual_seed(2)
    draws = torch.randn(30, 3, dtype=torch.float64) * 5 + 1e3
    truth = draws.mean(0) + 1
    moments = Moments(truth, blocks=3)
    for draw in draws:
        moments.add(draw)
    found = moments.summary()

    def estimate(some):
        trace = float(torch.cov(some.t()).trace())
        return torch.tensor([trace, float((some.mean(0) - truth).square().sum()) - trace / len(some)])

    torch.testing.assert_close(torch.tensor([found.variance, found.bias]), estimate(draws))
    without = torch.stack([estimate(draws[torch.arange(30) % 3 != b]) for b in range(3)])
    errors = (2 / 3 * (without - without.mean(0)).square().sum(0)).sqrt()
    torch.testing.assert_close(torch.tensor([found.variance_error, found.bias_error]), errors)
    assert found.squared_norm == pytest.approx(float(truth.square().sum()))


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_variance_and_bias_of_gaussian_draws_are_unbiased(off):
    found = summaries(torch.full((3,), off, dtype=torch.float64))
    for name, truth in (("variance", TRACE), ("bias", 3 * off**2)):
        mean, error = mean_and_error([getattr(one, name) for one in found])
        assert abs(mean - truth) < 4 * error
        assert error < 0.2
    uncorrected, error = mean_and_error([one.bias + one.variance / 20 for one in found])
    assert uncorrected - 3 * off**2 > 4 * error, "without the correction this test would fail"


@pytest.mark.parametrize(("off", "most"), [(0.0, 3.0), (1.0, 1.7)])
def test_standard_errors_are_those_of_repeated_measurements_or_larger(off, most):
    found = summaries(torch.full((3,), off, dtype=torch.float64))
    for name, largest in (("variance", 1.4), ("bias", most)):
        spread = torch.tensor([getattr(one, name) for one in found]).var()
        claimed = torch.tensor([getattr(one, f"{name}_error") for one in found]).square().mean()
        assert 0.8 < claimed / spread < largest


def test_draws_that_are_all_the_same_have_no_variance_at_all():
    moments = Moments(TRUTH)
    for _ in range(30):
        moments.add(TRUTH + torch.tensor([0.1, 0.0, 0.0]))
    found = moments.summary()
    assert found.variance == found.variance_error == found.bias_error == 0
    assert found.bias == pytest.approx(0.01)


def test_blocks_of_unequal_size_are_refused():
    moments = Moments(TRUTH, blocks=2)
    for _ in range(3):
        moments.add(TRUTH)
    with pytest.raises(ValueError, match="3 draws"):
        moments.summary()


def test_batches_are_pooled_by_their_norms():
    pooled = relative([Summary(1.0, 2.0, 0.3, 0.5, 0.03), Summary(3.0, 4.0, 0.4, -0.1, 0.04)])
    assert pooled == pytest.approx((4.0, 1.5, 0.125, 0.1, 0.0125))
    assert relative([Summary(0.0, 0.0, 0.0, 0.0, 0.0)]) is None


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    """A tiny variational model."""
    prefix = tmp_path_factory.mktemp("variance") / "model"
    flags = at_once(f"{SIZES} {STEPS} -posterior_rnn_size 16 -attention variational")
    assert call(train.main, *f"-config {data}.yaml -save_model {prefix} {flags}".split()) == 0
    return Path(f"{prefix}_step_20.pt")


@pytest.fixture(scope="module")
def subject(model, toy):
    case = variance.Case("tiny", str(model), str(toy / "valid.de"), str(toy / "valid.en"), "")
    made = variance.Subject(case, batches=1, batch_size=8, seed=1)
    made.model.double()
    return made


def way(name):
    return next(one for one in variance.WAYS if one.name == name)


def measured(subject, name, draws):
    """The moments of a way on the subject's batch."""
    one = way(name)
    positions = subject.positions(subject.batches[0])
    truth = subject.gradients(
        way("enum" if one.objective == "variational" else "hard enum").build(36), positions, keep=True
    )
    objective = one.build(36)
    torch.manual_seed(3)
    estimates = (subject.gradients(objective, positions, keep=True) for _ in range(draws))
    return variance.summaries(truth, estimates, blocks=10)


def test_groups_are_all_parameters_once(subject):
    grouped = [id(parameter) for group in subject.groups.values() for parameter in group]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(parameter) for parameter in subject.model.parameters()}


def test_the_gradient_is_that_of_the_training_loss(subject):
    positions = subject.positions(subject.batches[0])
    objective = way("enum").build(36)
    found = subject.gradients(objective, positions, keep=True)
    again = subject.gradients(objective, positions)
    assert all(torch.equal(found[name], again[name]) for name in found)
    subject.model.zero_grad()
    fresh = subject.positions(subject.batches[0])
    (objective(fresh, subject.attention.emitter()).loss / len(fresh)).backward()
    for name, group in subject.groups.items():
        expected = torch.cat([parameter.grad.flatten() for parameter in group])
        torch.testing.assert_close(found[name], expected)
    subject.model.zero_grad()


@pytest.mark.parametrize("name", ["enum", "hard enum"])
def test_enumeration_has_neither_variance_nor_bias(subject, name):
    for found in measured(subject, name, draws=20).values():
        assert found.variance == found.bias == found.variance_error == found.bias_error == 0


@pytest.mark.parametrize("name", ["sample, soft baseline", "rebar, temperature 0.5", "hard rloo, 5 draws"])
def test_unbiased_estimators_have_variance_and_no_bias(subject, name):
    for group, found in measured(subject, name, draws=60).items():
        if "hard" in name and group == "posterior":
            assert found.squared_norm == found.variance == 0
            continue
        assert found.variance > 0
        assert abs(found.bias) < 4 * found.bias_error


def test_five_draws_have_a_fifth_of_the_variance(subject):
    one, five = (measured(subject, f"sample, soft baseline{more}", draws=60) for more in ("", ", 5 draws"))
    for group in one:
        error = (25 * five[group].variance_error ** 2 + one[group].variance_error ** 2) ** 0.5
        assert abs(one[group].variance - 5 * five[group].variance) < 4 * error


def test_fitting_a_baseline_changes_nothing_else_and_cuts_the_variance(subject):
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    objective = way("sample, learned baseline").build(36).double()
    positions = subject.positions(subject.batches[0])
    target = float(-way("enum").build(36)(positions, subject.attention.emitter()).report["xent"]) / len(
        positions
    )

    def misfit():
        with torch.no_grad():
            values = objective.baseline(positions, subject.attention.emitter()).values
        return abs(float(values.mean()) - target)

    start = misfit()
    subject.fit(objective, 60)
    assert misfit() < start / 4
    assert not objective.training
    assert all(torch.equal(value, before[name]) for name, value in subject.model.state_dict().items())


def command(*words):
    return run_command(sys.executable, "-m", "benchmarks.variance", *words, check=False)


def test_the_command_measures_writes_and_draws(model, toy, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- variance: begin -->\n<!-- variance: end -->\nb\n")
    result = command(
        "-model", model, "-src", toy / "valid.de", "-tgt", toy / "valid.en", "-batches", 1, "-batch_size", 3,
        "-draws", 20, "-rounds", 1, "-baseline_steps", 3,
        "-json", tmp_path / "v.json", "-update", page, "-plot", tmp_path / "v.png",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "v.json").read_text())
    rows = {row["name"]: row for row in found["results"][0]["rows"]}
    assert list(rows) == [one.name for one in variance.WAYS]
    assert rows["enum"]["posterior"]["variance"] == 0
    assert rows[variance.UNIT]["cost"] == 1
    assert rows["hard enum"]["posterior"] is None
    assert all(f"| {name} |" in result.stdout for name in rows)
    assert (
        page.read_text()
        == f"a\n<!-- variance: begin -->\n{result.stdout.rstrip()}\n<!-- variance: end -->\nb\n"
    )
    assert (tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_is_not_measured_again_unless_more_draws_are_asked_for(
    model, toy, tmp_path, monkeypatch
):
    case = variance.Case("tiny", str(model), str(toy / "valid.de"), str(toy / "valid.en"), "")
    (tmp_path / "tiny").mkdir()
    calls = []
    monkeypatch.setattr(variance, "measure", lambda subject, opt, bar: calls.append(opt.draws) or [])

    def ask(draws, **changes):
        common = {"batches": 1, "batch_size": 4, "rounds": 1, "baseline_steps": 1, "seed": 1, **changes}
        return variance.result(case, Namespace(model=None, output=str(tmp_path), draws=draws, **common))

    assert [ask(draws)["draws"] for draws in (40, 20, 40, 60)] == [40, 40, 40, 60]
    ask(60, seed=2)
    assert calls == [40, 60, 60]


def test_every_way_with_variance_has_a_look():
    drawn = {one.name for one in variance.WAYS if one.draws}
    assert drawn == set(variance_report.LOOKS)
    assert set(variance_report.LINES) < {one.name for one in variance.WAYS} - drawn


def test_a_variance_far_below_the_others_does_not_stretch_the_plot():
    assert variance_report.floor([1.0, 1e-12, 0.5]) == 0.05
    assert variance_report.floor([1.0, 0.1, 0.5]) == 0.1


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0"), (1234.5, "1,234"), (12.345, "12.3"), (0.01234, "0.0123"), (3e-9, "3.0e-09")],
)
def test_numbers_have_three_digits(value, expected):
    assert variance_report.number(value) == expected


def test_a_bias_has_the_decimals_of_its_error():
    assert variance_report.bias({"bias": -0.12345, "bias_error": 0.0234}) == "-0.123 ± 0.023"
    assert variance_report.bias({"bias": 2e-9, "bias_error": 3e-8}) == "2e-09 ± 3e-08"
    assert variance_report.bias(None) == "-"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-draws 25", "-draws 25"),
        ("-rounds 0", "-rounds 0"),
        ("-model x.pt", "go together"),
        ("-corpora multi30k", "VARATTN_DATA"),
        ("-update README.md", "marks"),
    ],
)
def test_what_would_fail_in_the_end_is_refused_at_once(flags, message, monkeypatch):
    monkeypatch.delenv("VARATTN_DATA", raising=False)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["variance", *flags.split()])
    with pytest.raises(UserError, match=message):
        variance.check(variance.parse())


def test_a_model_that_never_left_its_warm_up_is_refused(tmp_path):
    words = f"-corpora toy -output {tmp_path} -toy_pairs 100 -toy_steps 2"
    result = command(*words.split())
    assert result.returncode == 2, result.stderr
    assert "set -toy_steps above 2, or to 0" in result.stderr.splitlines()[-1]


def test_the_best_validation_is_one_after_the_warm_up(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"part": "valid", "step": 1, "ppl": 2.0, "warm_up": True},
        {"part": "train", "step": 2, "ppl": 1.0},
        {"part": "valid", "step": 2, "ppl": 4.0},
        {"part": "valid", "step": 3, "ppl": 3.0},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert variance.best_validation(path)["step"] == 3
    path.write_text(json.dumps(lines[0]) + "\n")
    assert variance.best_validation(path) is None

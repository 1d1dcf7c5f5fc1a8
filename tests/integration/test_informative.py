"""Commands that show alignments warn where these say nothing: models changed so that we know."""

import json
import re

import pytest

from onmt_varattn.bin.analysis import align, evaluate, explore
from onmt_varattn.bin.nmt import train
from onmt_varattn.nmt.model import checkpoint
from tests.conftest import SIZES, STEPS, call

MORE = 'see the training page, "Failed runs"'
COMMANDS = {
    "align": (align, ["-output", "out", "-from", "prior"]),
    "evaluate": (evaluate, ["-kmax", 1, "-json", "out"]),
    "explore": (explore, ["-output", "out"]),
}
commands = pytest.mark.parametrize("command", COMMANDS)


def changed(model, path, factors):
    """A model with parameters multiplied, by how their names end."""
    content = checkpoint.load(str(model))
    for ending, factor in factors.items():
        found = [value for name, value in content["model"].items() if name.endswith(ending)]
        assert found
        for value in found:
            value *= factor
    checkpoint.write(content, str(path))
    return path


@pytest.fixture
def run(toy, tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; gives its output, its warnings, and the file that it wrote."""
    monkeypatch.chdir(tmp_path)

    def run(command, model, source=f"{toy}/test.de", target=f"{toy}/test.en"):
        module, more = COMMANDS[command]
        capsys.readouterr()
        assert call(module.main, "-model", model, "-src", source, "-tgt", target, *more) == 0
        out, err = capsys.readouterr()
        return out, err.splitlines(), (tmp_path / "out").read_text("utf-8")

    return run


@pytest.fixture
def uniform(model, tmp_path):
    """All scores are 0."""
    return changed(model, tmp_path / "uniform.pt", {"score.weight.weight": 0})


@commands
def test_uniform_alignments_are_warned_of(command, run, uniform):
    out, warnings, _ = run(command, uniform)
    entropy = "0.9[0-9]" if command == "align" else "1.00"  # not all words are of as many tokens
    assert re.fullmatch(
        rf"warning: {uniform}: the alignments of the prior are uniform \(entropy {entropy} of the maximum\): the "
        rf"model ignores the source, and its alignments carry no information; {MORE}",
        warnings[0],
    )
    assert all(f"{uniform}: the exact posterior's" in line for line in warnings[1:]), "once a distribution"
    assert len(warnings) <= 2
    assert "alignments are" not in out


@commands
def test_the_same_alignment_for_all_words_is_warned_of(command, run, model, tmp_path):
    """Scores that do not know the query."""
    blind = changed(model, tmp_path / "same.pt", {"score.query.weight": 0, "score.weight.weight": 8})
    warnings = run(command, blind)[1]
    assert f"{blind}: the alignments of the prior are the same for all words of a sentence (" in warnings[0]


@commands
def test_alignments_that_say_something_bring_no_warning(command, run, model, tmp_path):
    sharp = changed(model, tmp_path / "sharp.pt", {"score.weight.weight": 6})
    _, warnings, written = run(command, sharp)
    assert warnings == []
    if command == "evaluate":
        (result,) = json.loads(written)["models"]
        assert result["findings"] == []
        assert result["relative_entropy"]["prior"] < 0.6
        assert result["relative_information"]["prior"] > 0.2
    if command == "explore":
        assert '"warnings":[]' in written


@commands
def test_a_few_words_are_not_judged(command, run, uniform, tmp_path):
    (tmp_path / "de").write_text("hund\nder hund läuft .\n", "utf-8")
    (tmp_path / "en").write_text("dog\nthe dog runs .\n", "utf-8")
    assert run(command, uniform, "de", "en")[1] == []


@commands
def test_a_text_that_does_not_fit_is_to_blame_not_the_model(command, run, uniform, toy):
    warnings = run(command, uniform, f"{toy}/test.en", f"{toy}/test.de")[1]
    assert len(warnings) == 2
    assert all("are source and target swapped?" in line for line in warnings)


@pytest.mark.parametrize("command", ["evaluate", "explore"])
def test_each_distribution_is_judged_by_itself(command, run, data, tmp_path):
    """And what is written says the same as the warnings, once each."""
    words = f"-config {data}.yaml {SIZES} {STEPS} -attention variational -train_steps 2 -save_model m"
    assert call(train.main, *words.split()) == 0
    untrained = changed(tmp_path / "m_step_2.pt", tmp_path / "untrained.pt", {"score.weight.weight": 0})
    _, warnings, written = run(command, untrained)
    kinds = ["prior", "posterior", "exact posterior"]
    assert len(warnings) == len(kinds)
    for kind, warning in zip(kinds, warnings, strict=True):
        assert warning.startswith(f"warning: {untrained}: the alignments of the {kind} are uniform (entropy ")
    if command == "evaluate":
        (result,) = json.loads(written)["models"]
        found = result["findings"]
        assert result["relative_entropy"]["prior"] == pytest.approx(1, abs=1e-5)
        assert result["relative_information"]["prior"] == pytest.approx(0, abs=1e-5)
    else:
        found = json.loads(re.search(r'id="data">(.*?)</script>', written, re.DOTALL)[1])["warnings"]
    assert [f"warning: {untrained}: {finding}" for finding in found] == warnings

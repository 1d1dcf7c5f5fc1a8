"""tools/plot_alignment.py, as a user runs it."""

import shutil
import sys
from xml.etree import ElementTree

import pytest

import onmt_varattn
from onmt_varattn.analysis import figures
from onmt_varattn.bin.analysis import plot_alignment
from onmt_varattn.bin.nmt import train
from tests.conftest import SIZES, STEPS, call, run_command


@pytest.fixture(scope="module")
def variational(data, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("variational") / "m"
    words = f"-config {data}.yaml {SIZES} {STEPS} -attention variational -save_model {prefix} -save_checkpoint_steps 20"
    assert call(train.main, *words.split()) == 0
    return f"{prefix}_step_20.pt"


def drawn(monkeypatch):
    """The panels that are drawn, in place of their picture."""
    found = []
    monkeypatch.setattr(figures, "plot", lambda panels, paths: found.extend(panels) or "")
    return found


def test_one_line_of_two_models_from_the_shell(variational, model, toy, tmp_path):
    words = f"-model {variational} -compare {model} -src {toy}/test.de -tgt {toy}/test.en -line 3"
    result = run_command(
        sys.executable, "tools/plot_alignment.py", *words.split(),
        "-output", tmp_path / "a.png", tmp_path / "a.svg", "-output", tmp_path / "a.pdf",
    )  # fmt: skip
    assert result.stdout.startswith("prior and posterior written to ")
    assert "no installed font" not in result.stderr
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    svg = ElementTree.parse(tmp_path / "a.svg")
    found = ["".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    source, target = (
        (toy / f"test.{side}").read_text("utf-8").splitlines()[2].split() for side in ("de", "en")
    )
    line = [word for word in source if word not in target]  # a full stop is in both
    assert [word for word in found if word in line] == line * 2
    assert {"prior", "posterior", "soft attention", "variational attention"} <= set(found)


def test_panels_have_the_models_own_numbers(variational, model, tmp_path, monkeypatch):
    panels = drawn(monkeypatch)
    pair = ("der hund schläft .", "the dog sleeps .")
    words = ["-model", variational, "-compare", model, "-from", "posterior", "exact"]
    assert (
        call(
            plot_alignment.main, *words, "-source", pair[0], "-target", pair[1], "-output", tmp_path / "a.png"
        )
        == 0
    )
    left, right = (panel.layers for panel in panels)
    own, soft = onmt_varattn.load(variational), onmt_varattn.load(str(model))
    assert list(left) == ["posterior", "exact posterior"]
    assert left["posterior"].probs.equal(own.attention(*pair, "posterior").probs)
    assert left["exact posterior"].probs.equal(own.attention(*pair, "exact").probs)
    assert list(right) == ["soft attention", "variational attention"], "red, then blue, as in the paper"
    assert right["soft attention"].probs.equal(soft.attention(*pair).probs)
    assert right["variational attention"].probs.equal(own.attention(*pair).probs)


def test_two_models_of_one_kind_go_by_their_files(model, tmp_path, monkeypatch):
    panels = drawn(monkeypatch)
    shutil.copy(model, tmp_path / "other.pt")
    words = f"-model {model} -compare {tmp_path}/other.pt -from prior -source x -target y -output {tmp_path}/a.png"
    assert call(plot_alignment.main, *words.split()) == 0
    assert list(panels[1].layers) == ["other.pt", model.name]


def test_a_model_without_posterior_says_what_would_work(model, tmp_path, capsys):
    words = f"-model {model} -source x -target y -output {tmp_path}/a.png"
    assert call(plot_alignment.main, *words.split()) == 2
    assert "has no posterior network; use exact, the true posterior" in capsys.readouterr().err
    assert call(plot_alignment.main, *words.split(), "-from", "prior", "exact") == 0


def test_characters_without_a_font_are_a_warning_in_one_sentence(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figures, "families", lambda words: (["DejaVu Sans"], "世"))
    words = f"-model {model} -from prior -source 世 -target y -output {tmp_path}/a.png"
    assert call(plot_alignment.main, *words.split()) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "does not know" not in line]
    assert len(warnings) == 1
    assert "no installed font has the character" in warnings[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "-src {toy}/test.de -tgt {toy}/test.en -line 31 -output {out}.png",
            "-line 31: {toy}/test.de has 30 lines",
        ),
        (
            "-src {toy}/test.de -tgt {toy}/test.en -line 0 -output {out}.png",
            "-line 0: {toy}/test.de has 30 lines",
        ),
        ("-src {out}.blank -tgt {toy}/test.en -line 2 -output {out}.png", "line 2 of {out}.blank is blank"),
        ("-src {out}.none -tgt {toy}/test.en -output {out}.png", "{out}.none: cannot be read"),
        ("-source x -target y -output {out}.gif", "{out}.gif: the ending tells"),
        ("-source x -target y -output {out}.png {out}", "{out}: the ending tells"),
        ("-source x -output {out}.png", "give one sentence pair"),
        ("-source x -target y -src {toy}/test.de -output {out}.png", "give one sentence pair"),
        (
            "-source x -target y -from prior posterior exact -output {out}.png",
            "one panel shows one distribution",
        ),
        ("-source x -target y -from prior prior -output {out}.png", "one panel shows one distribution"),
        (
            "-src {out}.blank.svg -tgt {toy}/test.en -output {out}.blank.svg",
            "is -src and would be written over",
        ),
        ("-source x -target y -output {toy}/test.de/a.png", "cannot be written"),
    ],
)
def test_mistakes_are_told_before_the_model_is_loaded(toy, tmp_path, capsys, words, message):
    places = {"toy": toy, "out": tmp_path / "a"}
    for name in ("a.blank", "a.blank.svg"):
        (tmp_path / name).write_text("eins\n  \n")
    line = words.format(**places).split()
    assert call(plot_alignment.main, "-model", "/no/such.pt", *line) == 2
    assert message.format(**places) in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.blank", "a.blank.svg"]

"""A model of another language is noticed by every command that looks at models."""

import pytest

from onmt_varattn.bin.analysis import align, evaluate, explore, plot_alignment
from tests.conftest import call


@pytest.mark.parametrize(
    ("command", "more"),
    [
        (align, ["-output", "a.align"]),
        (evaluate, ["-kmax", 1]),
        (explore, ["-output", "page.html"]),
        (plot_alignment, ["-output", "fig.svg", "-from", "prior", "-line", 1]),
    ],
    ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2],
)
def test_unknown_tokens_bring_a_warning(command, more, model, toy, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_text("ψψψ ωωω ξξξ\n" * 2, "utf-8")
    lines = (toy / "test.en").read_text("utf-8").splitlines()[:2]
    (tmp_path / "known").write_text("\n".join(lines), "utf-8")
    assert call(command.main, "-model", model, "-src", "other", "-tgt", "known", *more) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert f"{model} does not know" in warnings[0]
    assert "of the tokens of other; is it a model for this text" in warnings[0]
    assert call(command.main, "-model", model, "-src", toy / "test.de", "-tgt", toy / "test.en", *more) == 0
    assert "does not know" not in capsys.readouterr().err


def test_the_explorer_says_what_it_leaves_out(model, toy, tmp_path, capsys):
    for side in ("de", "en"):
        lines = (toy / f"test.{side}").read_text("utf-8").splitlines()[:5]
        (tmp_path / side).write_text("\n".join(["", *lines]), "utf-8")
    words = [
        "-model",
        model,
        "-src",
        tmp_path / "de",
        "-tgt",
        tmp_path / "en",
        "-output",
        tmp_path / "page.html",
    ]
    assert call(explore.main, *words, "-sentences", 3) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 sentence pairs written to")
    assert "left out: pairs with a blank side: 1\nleft out: pairs beyond -sentences 3: 2\n" in out

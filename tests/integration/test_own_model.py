"""docs/own-model.md: its script learns what the page states, and its snippets print what it shows."""

import os
import re
import sys

import pytest

from tests.conftest import ROOT, run_command

SCRIPT = ROOT / "examples/latent_attention.py"
PAGE = (ROOT / "docs/own-model.md").read_text("utf-8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
BEST = 1.358  # exp(sum log n / sum n) for sources of n = 4 to 7 letters


def test_the_script_is_short_and_needs_no_opennmt():
    text = SCRIPT.read_text("utf-8")
    assert len(text.splitlines()) <= 60
    assert set(re.findall(r"^(?:from|import) (\w+)", text, re.M)) == {"sys", "torch", "onmt_varattn"}


@pytest.mark.parametrize("objective", ["variational", "marginal"])
def test_the_script_learns_the_alignments(objective):
    result = run_command(sys.executable, SCRIPT, objective, env=ENVIRONMENT)
    last = result.stdout.splitlines()[-1]
    found = re.fullmatch(r"PPL ([\d.]+), KL\(q, p\) ([\d.]+), argmax of q right ([\d.]+)%", last)
    perplexity, kl, right = map(float, found.groups())
    assert BEST - 0.02 < perplexity < 1.45  # that of a thousand sources, not of all
    assert 0.25 < kl < 0.40
    assert right >= 99


def test_the_snippets_print_what_the_page_shows(capsys):
    """Each block runs after the one that imports; what is printed stands in the text block after it."""
    names: dict = {}
    sections = PAGE.split("## Settings")[1]
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", sections, re.M | re.S)
    assert len([kind for kind, _ in blocks if kind == "python"]) >= 5
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "own-model.md", "exec"), names)
        else:
            assert capsys.readouterr().out == block

"""tools/align.py: links as Python finds them one pair at a time, line by line, whatever the batch."""

import re

import pytest
import torch

import onmt_varattn
from onmt_varattn.analysis.alignment import best_links, parse_pharaoh, pharaoh, threshold_links
from onmt_varattn.analysis.symmetry import METHODS, symmetrize
from onmt_varattn.bin.analysis import align
from onmt_varattn.bin.nmt import preprocess, train
from onmt_varattn.nmt.model import checkpoint
from tests.conftest import SIZES, call

FEW = "-optim adam -learning_rate 0.02 -batch_size 16 -train_steps 12 -valid_steps 12 -seed 5"


def prepared(toy, prefix, source, target):
    words = [
        word
        for part in ("train", "valid")
        for side, ending in (("src", source), ("tgt", target))
        for word in (f"-{part}_{side}", toy / f"{part}.{ending}")
    ]
    assert call(preprocess.main, *words, "-save_data", prefix, "-vocab_size", 400) == 0
    return prefix


def trained(data, prefix, flags=""):
    words = f"-config {data}.yaml {SIZES} {FEW} {flags} -save_model {prefix}"
    assert call(train.main, *words.split()) == 0
    return f"{prefix}_step_12.pt"


@pytest.fixture(scope="module")
def forward(data, tmp_path_factory):
    """A model with a posterior."""
    return trained(data, tmp_path_factory.mktemp("forward") / "m", "-attention variational")


@pytest.fixture(scope="module")
def backward(toy, tmp_path_factory):
    """A model of the other direction, without a posterior."""
    prefix = tmp_path_factory.mktemp("backward") / "m"
    return trained(prepared(toy, prefix, "en", "de"), prefix, "-attention marginal")


@pytest.fixture
def text(toy, tmp_path):
    """Seven pairs, the third with a blank source and the last with a blank target."""
    sides = [(toy / f"test.{ending}").read_text("utf-8").splitlines()[:7] for ending in ("de", "en")]
    sides[0][2], sides[1][6] = " ", ""
    for ending, lines in zip(("de", "en"), sides, strict=True):
        (tmp_path / f"text.{ending}").write_text("".join(line + "\n" for line in lines), "utf-8")
    return list(zip(*sides, strict=True))


@pytest.fixture
def run(tmp_path, text, capsys):
    """Align the text; gives the links of each line and what was printed."""

    def run(model, *flags):
        files = ["-src", tmp_path / "text.de", "-tgt", tmp_path / "text.en", "-output", tmp_path / "out"]
        capsys.readouterr()
        code = call(align.main, "-model", model, *files, *flags)
        printed = capsys.readouterr()
        if code:
            assert code == 2
            assert not (tmp_path / "out").exists()
            assert printed.err.strip().count("\n") == 0
            return None, printed.err
        lines = (tmp_path / "out").read_text().split("\n")[:-1]
        return [parse_pharaoh(line, "out") for line in lines], printed.out.splitlines()[-1]

    return run


def one_by_one(model, text, kind, links):
    loaded = onmt_varattn.load(model)
    return [
        links(loaded.attention(*pair, kind)) if all(side.strip() for side in pair) else frozenset()
        for pair in text
    ]


@pytest.mark.parametrize("kind", ["prior", "posterior", "exact"])
@pytest.mark.parametrize("batch_size", ["1", "3"])
def test_links_are_those_of_each_pair_alone(forward, text, run, kind, batch_size):
    found, line = run(forward, "-from", kind, "-batch_size", batch_size)
    assert found == one_by_one(forward, text, kind, best_links)
    assert [len(links) for links in found] == [
        len(target.split()) if source.strip() else 0 for source, target in text
    ]
    assert f"argmax of {kind}" in line
    assert "7 pairs" in line
    assert "2 pairs with a blank side" in line


def test_links_above_a_threshold(forward, text, run):
    found, line = run(forward, "-method", "threshold", "-threshold", "0.12")
    right = one_by_one(forward, text, "posterior", lambda a: threshold_links(a.probs, 0.12))
    assert found == right
    assert any(len(links) != len(target.split()) for links, (_, target) in zip(found, text, strict=True))
    links, words = sum(map(len, right)), sum(len(target.split()) for _, target in text)
    assert f"{links} links, {links / words:.2f} per target word, threshold 0.12 of posterior" in line


def test_the_default_is_the_best_that_all_models_have(forward, backward, run):
    assert "argmax of posterior" in run(forward)[1]
    assert "argmax of exact" in run(backward)[1]
    assert "argmax of exact, grow-diag-final-and" in run(forward, "-reverse_model", backward)[1]


def test_a_decoder_of_opennmt_aligns_with_its_attention(data, text, run, tmp_path):
    stock = trained(data, tmp_path / "m", "-rnn_size 16 -enc_rnn_size 16 -dec_rnn_size 16")
    found, line = run(stock)
    assert found == one_by_one(stock, text, "prior", best_links)
    assert "argmax of prior" in line
    assert "only a single model trained with -attention has 'exact' (-from prior works)" in (
        (tmp_path / "out").unlink() or run(stock, "-from", "exact")[1]
    )


@pytest.mark.parametrize("method", METHODS)
def test_both_directions_are_joined(forward, backward, text, run, method):
    ahead = one_by_one(forward, text, "exact", best_links)
    swapped = one_by_one(backward, [pair[::-1] for pair in text], "exact", best_links)
    back = [frozenset((i, j) for j, i in links) for links in swapped]
    found, line = run(forward, "-reverse_model", backward, "-symmetrize", method)
    assert found == [symmetrize(method, *both) for both in zip(ahead, back, strict=True)]
    assert method in line


def test_each_model_is_judged_by_itself(forward, backward, toy, tmp_path, capsys):
    """Both have hardly been trained."""
    files = f"-src {toy}/test.de -tgt {toy}/test.en -output {tmp_path}/out -reverse_model {backward}"
    capsys.readouterr()
    assert call(align.main, "-model", forward, *files.split()) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    for model, warning in zip((forward, backward), warnings, strict=True):
        assert warning.startswith(f"warning: {model}: the alignments of the exact posterior are ")


def test_gold_links_by_hand(forward, text, run, tmp_path):
    found, _ = run(forward)
    first = pharaoh(found[0]).split()
    right = [pharaoh(links) for links in found]
    # One link found is possible only, one sure link is not found.
    right[0] = " ".join([first[0].replace("-", "?"), *first[1:]])
    missing = next((i, 0) for i in range(2) if (i, 0) not in found[1])
    right[1] += f" {missing[0]}-{missing[1]}"
    (tmp_path / "gold").write_text("".join(line + "\n" for line in right))
    links = sum(map(len, found))
    score = f"precision 100.0%, recall {(links - 1) / links:.1%}, AER {1 - (2 * links - 1) / (2 * links):.1%}"
    _, line = run(forward, "-gold", tmp_path / "gold")
    assert f"{score} ({links} sure and {links + 1} possible links)" in line
    from_one = [re.sub(r"\d+", lambda number: str(int(number[0]) + 1), gold) for gold in right]
    (tmp_path / "gold").write_text("".join(gold + "\n" for gold in from_one))
    assert score in run(forward, "-gold", tmp_path / "gold", "-gold_base", "1")[1]


@pytest.mark.parametrize(
    ("gold", "flags", "words"),
    [
        ("0-0\n", [], "has 1; parallel files need as many"),
        ("0-0\n\n\n\n0-99\n\n\n", [], "gold, line 5: link 0-99 is outside"),
        ("1-1\n\n\n0-1\n\n\n\n", ["-gold_base", "1"], "gold, line 4: link 0-1, but words are counted from 1"),
        ("\n\n0-0\n\n\n\n\n", [], "gold, line 3: link 0-0 is outside of a sentence pair with 0 and"),
        ("\n\n\n\n\n\nx\n", [], "gold, line 7: not an alignment"),
    ],
)
def test_bad_gold_is_refused(forward, run, tmp_path, gold, flags, words):
    (tmp_path / "gold").write_text(gold)
    assert words in run(forward, "-gold", tmp_path / "gold", *flags)[1]


def test_mistakes_are_one_sentence(forward, backward, toy, run, tmp_path):
    error = run(backward, "-from", "posterior")[1]
    assert "has no posterior network" in error
    assert "(-from exact works)" in error
    assert "-reverse_model" in run(forward, "-symmetrize", "union")[1]
    assert "-method threshold" in run(forward, "-threshold", "0.2")[1]
    assert "-threshold 1.5 must be" in run(forward, "-method", "threshold", "-threshold", "1.5")[1]
    assert "-batch_size 0" in run(forward, "-batch_size", "0")[1]
    assert "nowhere.pt: there is no such checkpoint" in run("nowhere.pt")[1]
    assert "7 lines and" in run(forward, "-tgt", toy / "test.en")[1]
    (tmp_path / "empty").write_text("")
    assert "the file is empty" in run(forward, "-tgt", tmp_path / "empty", "-src", tmp_path / "empty")[1]
    source = (tmp_path / "text.de").read_text("utf-8")
    assert "is -src and would be written over" in run(forward, "-output", tmp_path / "text.de")[1]
    assert (tmp_path / "text.de").read_text("utf-8") == source


def test_models_with_other_words_are_refused(forward, backward, run, tmp_path):
    other = checkpoint.load(backward)
    other["opt"].text_processing["tgt"]["tokenize"] = "moses"
    torch.save(other, tmp_path / "moses.pt")
    (tmp_path / "text.de").write_text("ein hund .\n" * 3 + "ein hund.\n" + "ein hund .\n" * 3)
    (tmp_path / "text.en").write_text("a dog .\n" * 7)
    error = run(forward, "-reverse_model", tmp_path / "moses.pt")[1]
    assert "text.de, line 4: 2 words for" in error
    assert "and 3 for" in error

"""-null_alignment from the command line: what comes after the model knows that NULL is no word."""

import json

import pytest
import torch

import onmt_varattn
from onmt_varattn.analysis.alignment import best_links, parse_pharaoh, score_alignments, threshold_links
from onmt_varattn.analysis.informative import Informative
from onmt_varattn.analysis.reading import Sentence
from onmt_varattn.bin.analysis import align, evaluate, explore, plot_alignment
from onmt_varattn.bin.nmt import train
from onmt_varattn.errors import UserError
from onmt_varattn.nmt.model import checkpoint
from tests.conftest import STEPS, call
from tests.integration.test_explore import data_of, own_numbers
from tests.integration.test_plot_alignment import drawn
from tests.integration.test_report_align import dumped, read, split, translations

PAIR = ("der hund schläft .", "the dog sleeps .")
KINDS = ("prior", "posterior", "exact")
NULL = "decoder.attention.null"


def goes_on(data, start, prefix, flags):
    """Train one step from a checkpoint, without moving: the learning rate is zero."""
    words = f"-config {data}.yaml {STEPS} -train_from {start} -reset_optim all -train_steps 1 -valid_steps 9"
    more = f"{flags} -learning_rate 0 -save_model {prefix} -log_file {prefix}.log"
    assert call(train.main, *words.split(), *more.split()) == 0
    return f"{prefix}_step_1.pt"


@pytest.fixture(scope="module")
def added(model, data, tmp_path_factory):
    """The soft model, which has no NULL, with NULL and a posterior."""
    flags = "-attention variational -posterior_rnn mean -null_alignment"
    return goes_on(data, model, tmp_path_factory.mktemp("null") / "m", flags)


@pytest.fixture(scope="module")
def null(added):
    """A model that has some words, but not all, come from NULL, by every distribution."""
    loaded, noise, found = checkpoint.load(added), torch.manual_seed(1), onmt_varattn.load(added)
    (reading,) = found.read([found.sentences(*PAIR)])
    loaded["model"][NULL] = 1.2 * reading.positions.memory.vectors[0, 3]
    for name, value in loaded["model"].items():
        if name.startswith("posterior."):
            value += torch.randn(value.shape, generator=noise)
    path = added.replace("_step_1", "")
    checkpoint.write(loaded, path)
    return path


@pytest.fixture
def text(toy, tmp_path):
    """Pairs of many lengths, and the files they are in."""
    sides = [(toy / f"test.{ending}").read_text("utf-8").splitlines()[:9] for ending in ("de", "en")]
    for ending, lines in zip(("de", "en"), sides, strict=True):
        (tmp_path / f"text.{ending}").write_text("".join(line + "\n" for line in lines), "utf-8")
    return list(zip(*sides, strict=True))


WAYS = [
    "-beam 4 -n_best 3 -batch_size 4",
    "-beam 1 -random_sampling_topk -1 -seed 3 -batch_size 4",
    "-beam 3 -kmax 2",
    "-beam 3 -coverage_penalty summary -beta 0.5 -stepwise_penalty -replace_unk -length_penalty avg",
]


@pytest.mark.parametrize("flags", WAYS)
def test_a_word_from_null_is_translated_without_a_link(null, text, tmp_path, flags):
    loaded = onmt_varattn.load(null)
    source = [loaded.processing.src.encode(line) for line, _ in text]
    (tmp_path / "pieces").write_text("".join(line + "\n" for line in source), "utf-8")
    words = ["-report_align", *flags.split()]
    tokens, links = split(translations(null, tmp_path / "pieces", tmp_path / "a", "-pretokenized", *words))
    tiled = [line for line in source for _ in range(3 if "n_best" in flags else 1)]
    assert links == [read(loaded, *pair, words=False) for pair in zip(tiled, tokens, strict=True)]
    lines, word_links = split(translations(null, tmp_path / "text.de", tmp_path / "b", *words))
    assert word_links == [read(loaded, *pair, words=True) for pair in zip(tiled, tokens, strict=True)]
    assert 0 < sum(map(len, word_links)) < sum(len(line.split()) for line in lines)


def test_a_dump_has_null_as_its_last_column(null, text, tmp_path):
    loaded = onmt_varattn.load(null)
    flags = ["-tgt", tmp_path / "text.en", "-batch_size", "4"]
    _, records = dumped(null, tmp_path / "text.de", tmp_path / "out.jsonl", *flags)
    for record, pair in zip(records, text, strict=True):
        assert record["null"] is True
        written = [token for token in record["hypothesis"]["tokens"] if token != "</s>"]
        both = (Sentence(record["source"], [], []), Sentence(written, [], []))
        for found, kinds, sentences in (
            (record["hypothesis"], ["prior"], both),
            (record["reference"], KINDS, loaded.sentences(*pair)),
        ):
            (reading,) = loaded.read([sentences])
            for kind in kinds:
                right = reading.distribution(kind).probs[: len(found["tokens"])]
                assert right.size(1) == len(record["source"]) + 1
                torch.testing.assert_close(torch.tensor(found[kind]), right, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_aligned_or_come_from_null(null, text, tmp_path, capsys, kind):
    loaded = onmt_varattn.load(null)
    found = [loaded.attention(*pair, kind) for pair in text]
    for one, pair in zip(found, text, strict=True):
        assert one.columns == [*pair[0].split(), "NULL"]
        assert one.probs.shape == (len(pair[1].split()), len(one.columns))
        torch.testing.assert_close(one.probs.sum(1), torch.ones(len(one.target)).double(), rtol=0, atol=1e-5)
    gold = [frozenset({(0, 0)})] * len(text)
    (tmp_path / "gold").write_text("0-0\n" * len(text))
    files = f"-src {tmp_path}/text.de -tgt {tmp_path}/text.en -output {tmp_path}/out -gold {tmp_path}/gold"
    for flags, right in (
        ("", [best_links(one) for one in found]),
        ("-method threshold -threshold 0.2", [threshold_links(one.probs, 0.2, True) for one in found]),
    ):
        words = f"-model {null} -from {kind} -batch_size 4 {files} {flags}"
        assert call(align.main, *words.split()) == 0
        lines = (tmp_path / "out").read_text().split("\n")[:-1]
        assert [parse_pharaoh(line, "out") for line in lines] == right
        assert all(
            i < len(pair[0].split()) for pair, links in zip(text, right, strict=True) for i, _ in links
        )
        rate = score_alignments(zip(right, gold, strict=True)).error_rate
        assert f"AER {rate:.1%}" in capsys.readouterr().out
    assert sum(len(best_links(one)) for one in found) < sum(len(one.target) for one in found)


def test_a_model_with_null_is_joined_with_one_without(null, model, text, tmp_path):
    """Of both directions, only links to words are joined."""
    flags = f"-reverse_model {model} -symmetrize union -src {tmp_path}/text.de -tgt {tmp_path}/text.en"
    assert call(align.main, "-model", null, *flags.split(), "-output", tmp_path / "out") == 0
    one, other = onmt_varattn.load(null), onmt_varattn.load(str(model))
    for line, (source, target) in zip((tmp_path / "out").read_text().splitlines(), text, strict=True):
        back = best_links(other.attention(target, source, "exact"))
        assert parse_pharaoh(line, "out") == best_links(one.attention(source, target, "exact")) | {
            (i, j) for j, i in back
        }


def test_an_ensemble_may_mix_models_with_and_without_null(null, model, text, tmp_path):
    alone = translations(null, tmp_path / "text.de", tmp_path / "a", "-report_align")
    assert translations([null, null], tmp_path / "text.de", tmp_path / "b", "-report_align") == alone
    with_null, without = onmt_varattn.load(null), onmt_varattn.load(str(model))
    for paths in ([null, str(model)], [str(model), null]):
        both = onmt_varattn.load(*paths)
        assert both.null
        for pair in text:
            mean = with_null.attention(*pair).probs / 2
            mean[:, :-1] += without.attention(*pair).probs / 2
            torch.testing.assert_close(both.attention(*pair).probs, mean, rtol=0, atol=1e-6)
        lines, links = split(translations(paths, tmp_path / "text.de", tmp_path / "b", "-report_align"))
        assert all(len(some) <= len(line.split()) for line, some in zip(lines, links, strict=True))


def test_scores_count_null_as_a_position(null, text, tmp_path):
    words = f"-model {null} -src {tmp_path}/text.de -tgt {tmp_path}/text.en -json {tmp_path}/scores.json"
    assert call(evaluate.main, *words.split()) == 0
    (found,) = json.loads((tmp_path / "scores.json").read_text())["models"]
    loaded = onmt_varattn.load(null)
    for kind in KINDS:
        informative = Informative()
        for pair in text:
            (reading,) = loaded.read([loaded.sentences(*pair)])
            informative.add(reading.distribution(kind).probs)
        assert found["relative_entropy"][kind] == pytest.approx(informative.relative_entropy, abs=1e-5)
        information = informative.relative_information
        assert found["relative_information"][kind] == pytest.approx(information, abs=1e-5)


def test_the_explorer_has_a_column_for_null(null, text, tmp_path):
    words = f"-model {null} -src {tmp_path}/text.de -tgt {tmp_path}/text.en -output {tmp_path}/page.html"
    assert call(explore.main, *words.split()) == 0
    data, loaded = data_of(tmp_path / "page.html"), onmt_varattn.load(null)
    assert data["null"] is True
    for sentence in data["sentences"]:
        tokens = loaded.sentences(*sentence["text"])[0].tokens
        assert sentence["source"][-1] == "NULL"
        assert len(sentence["source"]) == len(tokens) + 1
        own = own_numbers(loaded, sentence)
        for kind in "pqe":
            cells = torch.tensor(sentence["probs"][kind]).view(len(sentence["target"]), -1) / 1000
            torch.testing.assert_close(cells, own[kind], rtol=0, atol=0.00051)


def test_a_figure_compares_a_model_with_null_and_one_without(null, model, tmp_path, monkeypatch):
    words = ["-source", PAIR[0], "-target", PAIR[1], "-output", tmp_path / "a.svg"]
    assert call(plot_alignment.main, "-model", null, "-compare", model, *words) == 0
    assert (tmp_path / "a.svg").read_text("utf-8").count(">NULL<") == 2
    panels = drawn(monkeypatch)
    assert call(plot_alignment.main, "-model", null, "-compare", model, *words) == 0
    assert [one.null for panel in panels for one in panel.layers.values()] == [True, True, False, True]


def test_null_is_added_to_a_model_that_has_none(added, model):
    log = open(added.replace("_step_1.pt", ".log"), encoding="utf-8").read()
    assert "The checkpoint has no NULL position: its parameters are initialised at random." in log
    before, after = checkpoint.load(str(model)), checkpoint.load(added)
    assert after["opt"].null_alignment
    assert set(after["model"]) - set(before["model"]) == {NULL} | {
        name for name in after["model"] if name.startswith("posterior.")
    }
    assert all(torch.equal(after["model"][name], value) for name, value in before["model"].items())


@pytest.mark.parametrize("flags", ["", "-attention marginal", "-null_alignment -attention variational"])
def test_null_stays_with_a_model_that_has_it(added, data, tmp_path, flags):
    before, after = (checkpoint.load(path) for path in (added, goes_on(data, added, tmp_path / "m", flags)))
    assert after["opt"].null_alignment
    assert torch.equal(after["model"][NULL], before["model"][NULL])
    assert "NULL position" not in (tmp_path / "m.log").read_text("utf-8")


def test_a_stock_model_gets_null(data, tmp_path):
    sizes = "-encoder_type brnn -layers 1 -word_vec_size 8 -rnn_size 8 -global_attention mlp"
    words = f"-config {data}.yaml {STEPS} {sizes} -train_steps 1 -valid_steps 9 -save_model {tmp_path}/s"
    assert call(train.main, *words.split()) == 0
    path = goes_on(data, f"{tmp_path}/s_step_1.pt", tmp_path / "m", "-attention marginal -null_alignment")
    assert checkpoint.load(path)["model"][NULL].shape == (8,)
    log = (tmp_path / "m.log").read_text("utf-8")
    assert (
        "Parameters initialised at random: decoder RNN weights on the context (256), NULL position (8)\n"
        in log
    )


def test_a_checkpoint_that_has_lost_its_null_is_refused(null, tmp_path):
    loaded = checkpoint.load(null)
    del loaded["model"][NULL]
    checkpoint.write(loaded, f"{tmp_path}/m.pt")
    with pytest.raises(UserError, match=f"it has no {NULL}"):
        onmt_varattn.load(f"{tmp_path}/m.pt")

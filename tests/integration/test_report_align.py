"""translate.py -report_align and -dump_attention: what the search saw is what reading gives."""

import io
import json
import sys

import pytest
import torch

import onmt_varattn
from onmt_varattn.analysis.alignment import argmax_links, best_links, parse_pharaoh
from onmt_varattn.analysis.attention import by_words
from onmt_varattn.analysis.reading import Sentence
from onmt_varattn.bin.nmt import train, translate, translate_dynamic
from onmt_varattn.nmt.search.translator import Translator
from tests.conftest import SIZES, call

SHORT = ["-max_length", "12"]
FEW = "-optim adam -learning_rate 0.02 -batch_size 16 -train_steps 12 -valid_steps 12 -seed 5"
STOCK = {
    "rnn": "-encoder_type brnn -layers 1 -word_vec_size 16 -rnn_size 16 -global_attention mlp",
    "transformer": "-encoder_type transformer -decoder_type transformer -layers 1 -rnn_size 16 "
    "-word_vec_size 16 -heads 2 -transformer_ff 16 -position_encoding -alignment_layer -1",
}


@pytest.fixture(scope="module")
def raw(toy):
    """Raw source lines of many lengths, with an empty one among them."""
    lines = (toy / "test.de").read_text("utf-8").splitlines()[:9]
    return [*lines[:3], "", *lines[3:]]


@pytest.fixture
def source(raw, tmp_path):
    path = tmp_path / "raw.de"
    path.write_text("".join(line + "\n" for line in raw), "utf-8")
    return path


@pytest.fixture
def pieces(raw, model, tmp_path):
    """The same, as the model's tokens."""
    side = onmt_varattn.load(str(model)).processing.src
    path = tmp_path / "raw.pieces"
    path.write_text("".join(side.encode(line) + "\n" for line in raw), "utf-8")
    return path


def trained(data, prefix, flags):
    words = f"-config {data}.yaml {FEW} {flags} -save_model {prefix}"
    assert call(train.main, *words.split()) == 0
    return f"{prefix}_step_12.pt"


def translations(models, source, output, *flags):
    words = ["-model", *(models if isinstance(models, list) else [models]), "-src", source, "-output", output]
    assert call(translate.main, *words, *SHORT, *flags) == 0
    return output.read_text("utf-8").split("\n")[:-1]


def split(lines):
    """Texts and links of output lines."""
    parts = [line.split("\t")[0].split(" ||| ") for line in lines]
    assert all(len(part) == 2 for part in parts)
    return [text for text, _ in parts], [parse_pharaoh(links, "out") for _, links in parts]


def read(loaded, source, target, words):
    """Links of the prior for tokens that were written, between words or between tokens."""
    if not source or not target:
        return frozenset()
    both = [
        Sentence(line.split(), side.words(line.split()) if words else list(range(len(line.split()))), [])
        for line, side in ((source, loaded.processing.src), (target, loaded.processing.tgt))
    ]
    (reading,) = loaded.read([tuple(both)])
    probs = by_words(reading.prior.probs[:-1], both[0].words, both[1].words, loaded.null)
    return argmax_links(probs, loaded.null)


WAYS = [
    "-beam 4 -n_best 3",
    "-beam 4 -n_best 3 -batch_size 1",
    "-beam 4 -n_best 3 -batch_size 4 -shard_size 6",
    "-beam 1 -random_sampling_topk -1 -seed 3 -batch_size 4",
    "-beam 3 -n_best 2 -random_sampling_topk 5 -seed 3 -batch_size 4",
    "-beam 3 -kmax 2 -batch_size 100 -batch_type tokens",
    "-beam 2 -batch_size 4 -verbose",  # lines are not sorted by length
]


@pytest.mark.parametrize("flags", WAYS)
def test_links_are_those_of_reading_the_translation(model, source, pieces, raw, tmp_path, flags):
    n_best = 3 if "n_best 3" in flags else 2 if "n_best 2" in flags else 1
    found = translations(model, pieces, tmp_path / "a", "-pretokenized", "-report_align", *flags.split())
    tokens, links = split(found)
    given = pieces.read_text("utf-8").split("\n")[:-1]
    tiled = [line for line in given for _ in range(n_best)]
    loaded = onmt_varattn.load(str(model))
    assert links == [read(loaded, *pair, words=False) for pair in zip(tiled, tokens, strict=True)]
    assert len(set(map(str, links))) > 5, "links that are all alike would hide a wrong order"
    assert found[3 * n_best] == " ||| "
    text, word_links = split(translations(model, source, tmp_path / "b", "-report_align", *flags.split()))
    assert text == [loaded.processing.tgt.decode(line) for line in tokens]
    assert word_links == [read(loaded, *pair, words=True) for pair in zip(tiled, tokens, strict=True)]
    assert [len(some) for some in word_links] == [len(line.split()) for line in text]
    assert word_links != links


def test_links_are_those_of_python(model, source, pieces, raw, tmp_path):
    text, links = split(translations(model, source, tmp_path / "a", "-report_align"))
    tokens = translations(model, pieces, tmp_path / "b", "-pretokenized")
    loaded = onmt_varattn.load(str(model))
    # Python splits words anew, and the model may have split them in another way.
    same = [i for i, line in enumerate(tokens) if line and loaded.processing.tgt.encode(text[i]) == line]
    assert len(same) > 5
    for i in same:
        assert links[i] == best_links(loaded.attention(raw[i], text[i]))


def test_the_score_comes_last_and_bleu_is_of_the_text(model, toy, tmp_path, capsys):
    flags = ["-tgt", toy / "test.en", "-with_score"]
    plain = translations(model, toy / "test.de", tmp_path / "a", *flags)
    scores = capsys.readouterr().out.splitlines()[-3:]
    aligned = translations(model, toy / "test.de", tmp_path / "b", *flags, "-report_align")
    assert capsys.readouterr().out.splitlines()[-3:] == scores
    assert [line.split("|")[0] for line in scores] == ["BLEU", "chrF2", "TER"]
    for one, other in zip(plain, aligned, strict=True):
        text, score = one.split("\t")
        assert other.startswith(text + " ||| ")
        assert other.endswith("\t" + score)


def test_an_ensemble_and_standard_input(model, source, raw, tmp_path, monkeypatch, capsys):
    alone = translations(model, source, tmp_path / "a", "-report_align")
    assert translations([model, model], source, tmp_path / "b", "-report_align") == alone
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in raw)))
    capsys.readouterr()
    assert call(translate.main, "-model", model, "-src", "-", "-report_align", *SHORT) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == alone


def test_a_transformer_keeps_opennmts_alignments(data, toy, tmp_path):
    path = trained(data, tmp_path / "m", STOCK["transformer"])
    flags = ["-report_align", "-beam", "3", "-n_best", "2", "-min_length", "5"]
    found = translations(path, f"{data}.test.src", tmp_path / "out", "-pretokenized", *flags)
    loaded = onmt_varattn.load(path)
    opt = loaded._parse({"max_length": 12, "min_length": 5, "beam": 3, "n_best": 2})
    import onmt.translate

    _, stock = Translator.__bases__
    translator = stock.from_opt(
        loaded.model, loaded.fields, opt, loaded.model_opt, report_align=True, report_score=False,
        global_scorer=onmt.translate.GNMTGlobalScorer.from_opt(opt), out_file=io.StringIO(),
    )  # fmt: skip
    lines = open(f"{data}.test.src", encoding="utf-8").read().split("\n")[:-1]
    _, right = translator.translate(lines, batch_size=30)
    assert found == [line for best in right for line in best]
    text, links = split(translations(path, toy / "test.de", tmp_path / "out", *flags))
    assert [len(some) for some in links] == [len(line.split()) for line in text]


def test_a_stock_rnn_has_links_too(data, pieces, tmp_path):
    path = trained(data, tmp_path / "m", STOCK["rnn"])
    flags = ["-pretokenized", "-report_align", "-min_length", "5"]
    tokens, links = split(translations(path, pieces, tmp_path / "out", *flags))
    loaded = onmt_varattn.load(path)
    for source, target, found in zip(pieces.read_text("utf-8").split("\n"), tokens, links, strict=False):
        both = [Sentence(line.split(), [], []) for line in (source, target)]
        with torch.no_grad():
            assert found == (argmax_links(loaded._stock_attention(*both)) if source else frozenset())
    assert len(set(map(str, links))) > 5


@pytest.fixture(scope="module")
def variational(data, tmp_path_factory):
    return trained(data, tmp_path_factory.mktemp("variational") / "m", f"{SIZES} -attention variational")


def dumped(model, source, path, *flags):
    output = path.parent / "out"
    text = translations(model, source, output, "-dump_attention", path, *flags)
    records = [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
    assert [record["line"] for record in records] == list(range(1, len(records) + 1))
    return text, records


@pytest.mark.parametrize("flags", ["-beam 4 -n_best 2", "-shard_size 4 -batch_size 3", "-max_length 3"])
def test_the_prior_of_the_search_is_that_of_reading(model, source, raw, tmp_path, flags):
    text, records = dumped(model, source, tmp_path / "out.jsonl", *flags.split())
    loaded = onmt_varattn.load(str(model))
    best = text[:: 2 if "n_best" in flags else 1]
    assert len(records) == len(raw)
    for line, translation, record in zip(raw, best, records, strict=True):
        assert record["source"] == loaded.processing.src.encode(line).split()
        tokens, ended = record["hypothesis"]["tokens"], "-max_length" not in flags
        if not line:
            assert record == {"line": 4, "source": [], "hypothesis": {"tokens": []}}
            continue
        assert (tokens[-1] == "</s>") == ended or len(tokens) == 12
        written = [token for token in tokens if token != "</s>"]
        assert loaded.processing.tgt.decode(" ".join(written)) == translation
        (reading,) = loaded.read([(Sentence(record["source"], [], []), Sentence(written, [], []))])
        right = reading.prior.probs[: len(tokens)]
        torch.testing.assert_close(torch.tensor(record["hypothesis"]["prior"]), right, rtol=0, atol=2e-5)


def test_references_have_all_that_the_model_has(variational, model, source, raw, toy, tmp_path):
    target = (toy / "test.en").read_text("utf-8").splitlines()[: len(raw)]
    target[1] = ""
    (tmp_path / "raw.en").write_text("".join(line + "\n" for line in target), "utf-8")
    kinds = {"prior", "posterior", "exact"}
    for path, names in ((variational, kinds), (model, kinds - {"posterior"})):
        loaded = onmt_varattn.load(str(path))
        _, records = dumped(
            path, source, tmp_path / "out.jsonl", "-tgt", tmp_path / "raw.en", "-shard_size", "7"
        )
        for i, record in enumerate(records):
            reference = record["reference"]
            if i in (1, 3):
                assert reference == {"tokens": []}
                continue
            both = loaded.sentences(raw[i], target[i])
            assert reference["tokens"] == [*both[1].tokens, "</s>"]
            assert set(reference) == names | {"tokens"}
            (reading,) = loaded.read([both])
            for name in names:
                distribution = reading.exact_posterior if name == "exact" else getattr(reading, name)
                right = distribution.probs
                torch.testing.assert_close(torch.tensor(reference[name]), right, rtol=0, atol=2e-5)


def test_what_cannot_be_dumped_is_refused(model, data, source, tmp_path, capsys):
    words = ["-model", model, "-output", tmp_path / "out", *SHORT, "-dump_attention"]
    before = source.read_text("utf-8")
    for more, message in (
        ([tmp_path / "d", "-src", "-"], "-src - (standard input)"),
        ([source, "-src", source], "is -src and would be written over"),
        ([tmp_path / "out", "-src", source], "is -output and would be written over"),
        ([tmp_path, "-src", source], "it is a directory"),
        (
            [tmp_path / "d", "-src", source, "-model", model, model],
            "not a single model trained with -attention",
        ),
        ([tmp_path / "d", "-src", source, "-align_debug"], "use -attn_debug"),
    ):
        capsys.readouterr()
        assert call(translate.main, *words, *more) == 2, more
        assert message in capsys.readouterr().err
    assert (
        call(translate_dynamic.main, *words, tmp_path / "d", "-src", source, "-transforms", "filtertoolong")
        == 2
    )
    assert "-transforms" in capsys.readouterr().err
    assert source.read_text("utf-8") == before
    assert not (tmp_path / "d").exists()
    assert not (tmp_path / "out").exists()

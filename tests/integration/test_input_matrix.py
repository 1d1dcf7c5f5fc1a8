"""Every kind of bad or odd input, at every command that reads it: the right result, or one sentence.

A refusal is one line on standard error and exit code 2, with no file made or changed. Its other half is
what must work: files that are odd, but say the same as a clean one, give the same results.
"""

import io
import json
import math
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from onmt_varattn.bin.analysis import align, evaluate, explore
from onmt_varattn.bin.nmt import build_vocab, preprocess, train, translate
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.text.processing import TextProcessing
from tests.conftest import call

BOM = b"\xef\xbb\xbf"


def typed(line):
    """The words of a command line."""
    return line.split()


SMALL = typed(
    "-attention soft -encoder_type brnn -layers 1 -word_vec_size 8 -enc_rnn_size 8 -dec_rnn_size 8 "
    "-attention_size 8 -dropout 0 -optim adam -learning_rate 0.02 -batch_size 4 -bucket_size 16 "
    "-train_steps 2 -valid_steps 2 -seed 5"
)
SOURCE = ["der hund läuft .", "die katze schläft .", "ein kind sieht den hund ."]
TARGET = ["the dog runs .", "the cat sleeps .", "a child sees the dog ."]


def write(path, content):
    """A file of lines, of text or of bytes."""
    if isinstance(content, list):
        content = "".join(f"{line}\n" for line in content)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def files_below(directory):
    return {path: path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty directory to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(here, capsys):
    """Run a command that must refuse its input; gives the one line it says."""

    def run(main, *words):
        before = files_below(here)
        capsys.readouterr()
        code = call(main, *words)
        error = capsys.readouterr().err
        assert code == 2, error
        assert error.count("\n") == 1, error
        assert ": error: " in error
        assert files_below(here) == before
        return error

    return run


@pytest.fixture
def accepted(here, capsys):
    """Run a command that must work; gives its standard output and its warnings."""

    def run(main, *words):
        capsys.readouterr()
        code = call(main, *words)
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out, [line for line in said.err.splitlines() if line.startswith("warning: ")]

    return run


@pytest.fixture
def lines(toy):
    """Six sentence pairs that the model can read."""
    return {side: (toy / f"test.{side}").read_text("utf-8").splitlines()[:6] for side in ("de", "en")}


READERS = {
    "translate": (translate.main, ["-output", "out", "-max_length", 8]),
    "evaluate": (evaluate.main, ["-json", "out", "-kmax", 1]),
    "align": (align.main, ["-output", "out"]),
    "explore": (explore.main, ["-output", "out"]),
}
readers = pytest.mark.parametrize("reader", READERS)


def read(model, reader, source="de", target="en"):
    """The command line of a command that reads text with a model."""
    main, more = READERS[reader]
    return [main, "-model", model, "-src", source, "-tgt", target, *more]


def text_data(source="de", target="en", valid=("de", "en"), vocab=("v.de", "v.en"), **corpus):
    """-data, -src_vocab and -tgt_vocab in a file; the keywords change the training corpus."""
    data = {
        "corpus_1": {"path_src": source, "path_tgt": target, **corpus},
        "valid": {"path_src": valid[0], "path_tgt": valid[1]},
    }
    if "path_align" in corpus:
        data["valid"]["path_align"] = "valid.align"
    data = {name: {key: v for key, v in values.items() if v is not None} for name, values in data.items()}
    write("data.yaml", yaml.safe_dump({"data": data, "src_vocab": vocab[0], "tgt_vocab": vocab[1]}))
    return ["-config", "data.yaml"]


def words_of(sentences):
    return sorted({word for line in sentences for word in line.split()})


@pytest.fixture
def clean(here):
    """A corpus of three pairs and its vocabularies, as onmt_train reads them."""
    write("de", SOURCE)
    write("en", TARGET)
    write("v.de", [f"{word}\t1" for word in words_of(SOURCE)])
    write("v.en", [f"{word}\t1" for word in words_of(TARGET)])
    return here


def parameters(path):
    loaded = checkpoint.load(str(path))
    return {**loaded["model"], **loaded["generator"]}


def same_parameters(one, other):
    one, other = parameters(one), parameters(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


UNREADABLE = {
    "empty": ({"de": b"", "en": b""}, "de", "empty"),
    "empty target": ({"en": b""}, "en", "empty"),
    "missing": ({"de": None}, "de", "cannot be read: No such file|there is no such file"),
    "missing target": ({"en": None}, "en", "cannot be read: No such file|there is no such file"),
    "latin-1": ({"de": b"gut\nsch\xf6n\nja\n"}, "de, line 2: not UTF-8", "byte 0xf6 at position 4"),
    "latin-1 target": ({"en": b"a\nb\nna\xefve\n"}, "en, line 3: not UTF-8", "byte 0xef at position 3"),
    "lengths": ({"en": b"a\nb\n"}, "de has 3 lines", "en has 2"),
    "carriage returns": (
        {"de": b"a\rb\rc", "en": b"a\rb\rc"},
        "de: a single line with carriage returns inside",
        "convert them",
    ),
}


def spoil(case):
    """Write the files of a case over clean ones; gives what the refusal must say."""
    write("de", SOURCE)
    write("en", TARGET)
    contents, *said = UNREADABLE[case]
    for name, content in contents.items():
        if content is None:
            Path(name).unlink()
        else:
            write(name, content)
    return said


def says(message, parts):
    return all(any(choice in message for choice in part.split("|")) for part in parts)


@readers
@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_refused_before_a_model_is_loaded(case, reader, refused):
    said = spoil(case)
    message = refused(*read("no_model.pt", reader))
    assert says(message, said), message


@pytest.mark.parametrize("part", ["train", "valid", "test"])
@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_refused_by_preprocessing(case, part, toy, refused):
    said = spoil(case)
    files = [
        word
        for name in ("train", "valid", "test")
        for side, end in (("src", "de"), ("tgt", "en"))
        for word in (f"-{name}_{side}", end if name == part else toy / f"{name}.{end}")
    ]
    message = refused(preprocess.main, *files, "-save_data", "run", "-vocab_size", 400)
    assert says(message, said), message


@pytest.mark.parametrize("part", ["train", "valid", "build_vocab"])
@pytest.mark.parametrize("case", [*UNREADABLE, "byte-order mark", "blank"])
def test_what_cannot_be_read_is_refused_by_training(case, part, clean, refused):
    for name in ("de", "en"):
        write(f"good.{name}", Path(name).read_bytes())
    if case == "byte-order mark":
        said = ["de: begins with a byte-order mark"]
        write("de", BOM + Path("de").read_bytes())
    elif case == "blank":
        said = ["de and en have no pair with words on both sides"]
        write("de", ["", "a", " "])
        write("en", ["a", "\t", ""])
    else:
        said = spoil(case)
    good = ("good.de", "good.en")
    if part == "build_vocab":
        words = [build_vocab.main, *text_data(valid=good, vocab=("new.de", "new.en"))]
        words += ["-save_data", "new", "-n_sample", -1]
    else:
        data = text_data(valid=good) if part == "train" else text_data(*good, valid=("de", "en"))
        words = [train.main, *data, *SMALL, "-save_model", "m/m"]
    message = refused(*words)
    assert says(message, said), message


def odd(content):
    """Files with the same lines as a clean one, of `content`."""
    lines = content.split("\n")[:-1]
    ends = ["\r\n" if i % 2 else "\n" for i in range(len(lines))]
    mixed = "".join(line + end for line, end in zip(lines, ends, strict=True)).encode()
    return {
        "mixed line endings": mixed,
        "no end of the last line": content.encode()[:-1],
        "a byte-order mark": BOM + content.encode(),
        "all of them": BOM + mixed.removesuffix(b"\r\n").removesuffix(b"\n"),
    }


ODD = list(odd("a\n"))


@readers
@pytest.mark.parametrize("case", ODD)
def test_odd_files_are_read_as_clean_ones(case, reader, model, lines, accepted):
    found = []
    for make in (str.encode, lambda text: odd(text)[case]):
        for side in ("de", "en"):
            write(side, make("".join(f"{line}\n" for line in lines[side])))
        _, warnings = accepted(*read(model, reader))
        assert not warnings
        found.append(Path("out").read_bytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("case", ODD)
def test_odd_files_are_preprocessed_as_clean_ones(case, toy, accepted):
    found = []
    for make in (str.encode, lambda text: odd(text)[case]):
        words = []
        for part, side, end in (
            ("train", "src", "de"),
            ("train", "tgt", "en"),
            ("valid", "src", "de"),
            ("valid", "tgt", "en"),
        ):
            content = (toy / f"valid.{end}").read_text("utf-8")
            words += [f"-{part}_{side}", write(f"{part}.{end}", make(content))]
        words += ["-save_data", "run", "-subword", "none", "-overwrite", "-num_threads", 1]
        assert accepted(preprocess.main, *words)[1] == []
        found.append({path.name: path.read_bytes() for path in Path().glob("run.*")})
    assert len(found[0]) == 8
    assert found[0] == found[1]


def test_mixed_line_endings_train_the_same_model(clean, accepted):
    accepted(train.main, *text_data(), *SMALL, "-save_model", "a")
    for name in ("de", "en"):
        write(name, odd(Path(name).read_text("utf-8"))["mixed line endings"])
    assert accepted(train.main, *text_data(), *SMALL, "-save_model", "b")[1] == []
    assert same_parameters("a_step_2.pt", "b_step_2.pt")


def test_carriage_returns_inside_lines_are_warned_of(model, lines, accepted):
    for side in ("de", "en"):
        write(side, lines[side])
    accepted(*read(model, "translate"))
    right = Path("out").read_bytes()
    write("de", [line.replace(" ", "\r", 1) for line in lines["de"]])
    _, warnings = accepted(*read(model, "translate"))
    assert [w for w in warnings if "de: 6 of 6 lines have carriage returns inside, the first is line 1" in w]
    assert Path("out").read_bytes() == right, "they are read as spaces"


def test_standard_input_is_read_by_the_same_rules(model, lines, here, monkeypatch, capsys):
    def translated(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "ascii"))
        code = call(translate.main, "-model", model, "-src", "-", "-max_length", 8)
        return code, *capsys.readouterr()

    clean = "".join(f"{line}\n" for line in lines["de"])
    right = translated(clean.encode())
    assert right[0] == 0
    assert right[1].count("\n") == 6
    assert translated(odd(clean)["all of them"]) == right
    code, out, error = translated(clean.encode() + b"sch\xf6n\n")
    assert (code, out) == (2, right[1])
    assert "standard input, line 7: not UTF-8" in error
    assert error.count("\n") == 1


def test_blank_lines_keep_their_places_in_translations_and_alignments(model, lines, accepted):
    blank = [1, 4]
    for side in ("de", "en"):
        write(side, lines[side])
    accepted(*read(model, "translate"))
    whole = Path("out").read_text("utf-8").split("\n")
    accepted(*read(model, "align"))
    links = Path("out").read_text("utf-8").split("\n")
    write("de", [" \t" if i in blank else line for i, line in enumerate(lines["de"])])
    for reader, right in (("translate", whole), ("align", links)):
        out, _ = accepted(*read(model, reader))
        found = Path("out").read_text("utf-8").split("\n")
        assert found == ["" if i in blank else line for i, line in enumerate(right)]
    assert "2 pairs with a blank side left empty" in out


def test_blank_lines_are_counted_by_the_explorer_and_not_scored(model, lines, accepted, refused):
    write("de", ["", *lines["de"]])
    write("en", ["x", *lines["en"]])
    out, _ = accepted(*read(model, "explore"))
    assert out.startswith("6 sentence pairs")
    assert "left out: pairs with a blank side: 1\n" in out
    Path("out").unlink()
    assert "de, line 1: blank, and cannot be scored" in refused(*read(model, "evaluate"))


@pytest.mark.parametrize("part", ["corpus_1", "valid"])
def test_blank_pairs_are_counted_and_left_out_of_training(part, clean, accepted, refused):
    write("gaps.de", [SOURCE[0], "", SOURCE[1], SOURCE[2], " "])
    write("gaps.en", [TARGET[0], TARGET[1], TARGET[1], "", ""])
    gaps = ("gaps.de", "gaps.en")
    data = text_data(*gaps) if part == "corpus_1" else text_data(valid=gaps)
    _, warnings = accepted(train.main, *data, *SMALL, "-save_model", "m")
    expected = "3 of 5 pairs have a blank side and are left out, the first in line 2 of gaps.de and gaps.en"
    assert warnings == [f"warning: corpus {part}: {expected}"]
    assert all(value.isfinite().all() for value in parameters("m_step_2.pt").values())
    message = refused(train.main, *data, *SMALL, "-skip_empty_level", "error", "-save_model", "n")
    assert "gaps.de and gaps.en, line 2: a side is blank" in message


def test_one_sentence_is_learned_and_translated(here, accepted):
    """What a model has seen nothing else than, it must be able to say."""
    write("de", SOURCE[:1])
    write("en", TARGET[:1])
    files = "-train_src de -train_tgt en -valid_src de -valid_tgt en -subword none -save_data run"
    out, _ = accepted(preprocess.main, *files.split())
    assert "train: 1 pairs read, 1 kept, dropped: none" in out
    more = "-train_steps 150 -valid_steps 150 -learning_rate 0.01 -dec_rnn_size 24 -word_vec_size 24 -save_model m"
    accepted(train.main, "-config", "run.yaml", *SMALL, *more.split())
    accepted(translate.main, "-model", "m_step_150.pt", "-src", "de", "-output", "out")
    assert Path("out").read_text("utf-8") == f"{TARGET[0]}\n"


def test_one_token_has_one_alignment(model, accepted):
    """All ways of testing are the same then."""
    write("de", ["."])
    write("en", ["."])
    accepted(*read(model, "evaluate"), "-kmax", 0, 1, 5)
    scores = json.loads(Path("out").read_text("utf-8"))["models"][0]
    perplexities = scores["ppl"].values()
    assert len(perplexities) == 4
    assert all(value == pytest.approx(scores["ppl"]["exact"], rel=1e-5) for value in perplexities)
    assert scores["prior_entropy"] == pytest.approx(0, abs=1e-6)
    accepted(*read(model, "align"))
    assert Path("out").read_text("utf-8") == "0-0\n"
    for reader in ("translate", "explore"):
        accepted(*read(model, reader))


def test_two_thousand_tokens_train_and_translate_in_bounded_time(clean, accepted):
    write("long.de", [" ".join(SOURCE[0].split() * 500), "hund"])
    write("long.en", [" ".join(TARGET[0].split() * 500), "dog"])
    start = time.perf_counter()
    data = text_data("long.de", "long.en", valid=("long.de", "long.en"))
    accepted(train.main, *data, *SMALL, "-bucket_size", 4, "-batch_size", 2, "-save_model", "m")
    assert all(value.isfinite().all() for value in parameters("m_step_2.pt").values())
    accepted(translate.main, "-model", "m_step_2.pt", "-src", "long.de", "-output", "out", "-max_length", 30)
    assert Path("out").read_text("utf-8").count("\n") == 2
    write("long.en", ["the dog runs .", "dog"])
    for reader in READERS:
        accepted(*read("m_step_2.pt", reader, "long.de", "long.en"))
    assert time.perf_counter() - start < 60


def test_two_thousand_tokens_are_dropped_by_preprocessing_and_counted(here, accepted):
    write("de", [*SOURCE, " ".join(["hund"] * 2000)])
    write("en", [*TARGET, "dog"])
    files = typed("-train_src de -train_tgt en -valid_src de -valid_tgt en -subword none -save_data run")
    out, _ = accepted(preprocess.main, *files)
    assert "train: 4 pairs read, 3 kept, dropped: 1 source over -src_seq_length 125\n" in out
    out, _ = accepted(preprocess.main, *files, "-overwrite", "-src_seq_length", 2000)
    assert "train: 4 pairs read, 4 kept, dropped: none\n" in out


@readers
def test_only_unknown_words_bring_a_warning(reader, model, lines, accepted):
    write("de", ["ψψψ ωωω ξξξ"] * 6)
    write("en", lines["en"])
    _, warnings = accepted(*read(model, reader))
    assert len(warnings) == 1
    assert f"{model} does not know 50% of the tokens of de" in warnings[0]  # sentencepiece knows the spaces
    write("de", lines["de"])
    assert accepted(*read(model, reader))[1] == []


def test_only_unknown_words_are_warned_of_in_training(clean, accepted):
    write("other", ["ψψψ ωωω", "ξξξ"])
    write("dogs", ["dog", "cat"])
    _, warnings = accepted(
        train.main, *text_data(valid=("other", "dogs")), *SMALL, "-save_model", clean / "m"
    )
    assert len(warnings) == 1
    assert "corpus valid: -src_vocab does not know 100% of the tokens of other" in warnings[0]
    assert "tokenised as the vocabulary was" in warnings[0]


CONTROL = [
    "der\x00 hund\x01 \x07läuft\x7f .",
    "\x1b[31mrot\x1b[0m",
    "a\u200bb \ufeffc \u00adx",
    "eins\x85zwei",
]


@pytest.mark.parametrize("subword", ["sentencepiece", "bpe", "none"])
def test_control_characters_survive_text_processing(subword, here, accepted):
    write("de", [*CONTROL, *SOURCE])
    write("en", [*CONTROL, *TARGET])
    words = f"-train_src de -train_tgt en -valid_src de -valid_tgt en -save_data run -subword {subword}"
    out, _ = accepted(preprocess.main, *words.split(), "-vocab_size", 45)
    assert "train: 7 pairs read, 7 kept, dropped: none" in out
    side = TextProcessing.load("run.text.json").src
    for line in CONTROL:
        assert side.decode(side.encode(line)) == " ".join(line.split())
    assert Path("run.train.src").read_bytes().count(b"\n") == 7


def test_control_characters_are_translated_and_trained_on(model, clean, accepted):
    write("de", [*CONTROL, "\x1c\x0b"])
    accepted(translate.main, "-model", model, "-src", "de", "-output", "out", "-max_length", 8)
    found = Path("out").read_text("utf-8").split("\n")
    assert len(found) == 6
    assert found[4:] == ["", ""], "nothing but whitespace is an empty line"
    write("en", TARGET[:1] * 5)
    _, warnings = accepted(train.main, *text_data(), *SMALL, "-save_model", "m")
    assert any("corpus corpus_1: 1 of 5 pairs have a blank side" in line for line in warnings)


@readers
def test_swapped_languages_are_noticed(reader, model, lines, accepted):
    write("de", lines["de"])
    write("en", lines["en"])
    assert accepted(*read(model, reader))[1] == []
    _, warnings = accepted(*read(model, reader, "en", "de"))
    assert len(warnings) == 2
    assert f"en reads like the target language of {model}, and is given as its source" in warnings[0]
    assert f"de reads like the source language of {model}, and is given as its target" in warnings[1]


@pytest.mark.parametrize("subword", ["sentencepiece", "none"])
def test_swapped_validation_data_is_noticed_by_preprocessing(subword, toy, accepted):
    train_files = f"-train_src {toy}/train.de -train_tgt {toy}/train.en -subword {subword} -vocab_size 400"
    right = f"{train_files} -valid_src {toy}/valid.de -valid_tgt {toy}/valid.en -save_data a -num_threads 1"
    assert accepted(preprocess.main, *right.split())[1] == []
    wrong = f"{train_files} -valid_src {toy}/valid.en -valid_tgt {toy}/valid.de -save_data b -num_threads 1"
    warnings = accepted(preprocess.main, *wrong.split())[1]
    assert len(warnings) == 2
    assert warnings[0].startswith(f"warning: -valid_src {toy}/valid.en: ")
    assert f"in {toy}/train.de" in warnings[0]
    assert warnings[0].endswith(f"in {toy}/train.en; are source and target swapped?")


@pytest.mark.parametrize("what", ["valid", "vocabularies"])
def test_swapped_files_are_noticed_by_training(what, clean, accepted):
    swapped = {"valid": ("en", "de")} if what == "valid" else {"vocab": ("v.en", "v.de")}
    _, warnings = accepted(train.main, *text_data(**swapped), *SMALL, "-save_model", "m")
    assert len(warnings) == (2 if what == "valid" else 4)
    assert all("are source and target swapped?" in line for line in warnings)
    path = "en" if what == "valid" else "de"
    assert any(f"-src_vocab does not know 79% of the tokens of {path}" in line for line in warnings)


VOCABULARIES = {
    "empty": (b"", "bad: the vocabulary is empty"),
    "blank": ("\n \n", "bad: the vocabulary is empty"),
    "duplicate": ("the\t3\ndog\t2\n\nthe\t1\n", "bad, line 4: 'the' is in line 1 already"),
    "duplicate without counts": ("the\ndog\ndog\n", "bad, line 3: 'dog' is in line 2 already"),
    "duplicate special token": ("<unk>\n<s>\n<s>\n", "bad, line 3: '<s>' is in line 2 already"),
    "a count missing": ("the\t3\ndog\n", "bad, line 2: 'dog', but expected a token and its count"),
    "a count too many": ("the\ndog\t3\n", "bad, line 2: 'dog 3', but expected a token alone"),
    "scores": ("<unk>\t0\n▁the\t-3.2\n", "bad, line 2: '-3.2' is not a count"),
    "phrases": ("new york\t3\n", "bad, line 1: 'new york 3', but expected"),
    "zeros": ("the\t0\ndog\t0\n", "bad: no token is left of 2: 2 counted less than 1 times"),
    "specials alone": ("<unk>\n<blank>\n", "bad: no token is left of 0: all are special tokens"),
    "latin-1": (b"the\nsch\xf6n\n", "bad, line 2: not UTF-8"),
    "byte-order mark": (BOM + b"the\n", "bad: begins with a byte-order mark"),
    "missing": (None, "bad: there is no such file"),
}


@pytest.mark.parametrize("side", ["src", "tgt"])
@pytest.mark.parametrize("case", VOCABULARIES)
def test_bad_vocabularies_are_refused(case, side, clean, refused):
    content, said = VOCABULARIES[case]
    if content is not None:
        write("bad", content)
    vocab = ("bad", "v.en") if side == "src" else ("v.de", "bad")
    assert said in refused(train.main, *text_data(vocab=vocab), *SMALL, "-save_model", "m/m")


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize(
    "first", [[], ["<unk>", "<blank>", "<s>", "</s>"], ["</s>", "<unk>", "<s>", "<blank>"]]
)
def test_special_tokens_need_not_be_in_a_vocabulary_and_may(first, counts, clean, accepted):
    """Their numbers are OpenNMT-py's whatever the file says, and all others follow in the file's order."""
    tokens = words_of(TARGET)
    rows = [f"{word}\t7" if counts else word for word in [*first, *tokens]]
    write("v.other", rows)
    accepted(train.main, *text_data(), *SMALL, "-save_model", "a")
    accepted(train.main, *text_data(vocab=("v.de", "v.other")), *SMALL, "-save_model", "b")
    vocab = checkpoint.load("b_step_2.pt")["vocab"]["tgt"].base_field.vocab
    assert vocab.itos == ["<unk>", "<blank>", "<s>", "</s>", *tokens]
    assert same_parameters("a_step_2.pt", "b_step_2.pt")


def test_tokens_left_out_of_a_vocabulary_are_counted(clean, accepted):
    write("v.en", [f"{word}\t{i}" for i, word in enumerate(words_of(TARGET))])
    _, warnings = accepted(train.main, *text_data(), *SMALL, "-tgt_vocab_size", 6, "-save_model", "m")
    assert warnings[0] == (
        "warning: v.en: 6 of 9 tokens are kept; left out: 1 counted less than 1 times "
        "(-tgt_words_min_frequency), 2 beyond -tgt_vocab_size 6"
    )
    assert len(checkpoint.load("m_step_2.pt")["vocab"]["tgt"].base_field.vocab) == 4 + 6


LINKS = {
    "source out of range": ("0-0 4-0", "line 2: link 4-0 is outside of a sentence pair with 4 and 4"),
    "target out of range": ("0-4 0-0", "line 2: link 0-4 is outside of a sentence pair with 4 and 4"),
    "negative": ("-1-0", "line 2: not an alignment in Pharaoh format"),
    "no link": ("0-0 a-b", "line 2: not an alignment in Pharaoh format"),
}
EXTERNAL = typed("-attention variational -posterior external -attention_estimator enum")


@pytest.mark.parametrize("part", ["train", "valid"])
@pytest.mark.parametrize("case", [*LINKS, "empty line", "lengths", "missing"])
def test_bad_alignments_are_refused_by_training(case, part, clean, refused, accepted):
    good = ["0-0", "3-3", "5-5"]
    bad, said = LINKS.get(case, ("", "line 2: no link, but a posterior needs one"))
    write("bad", [good[0], bad, good[2]] if case != "lengths" else good[:2])
    write("train.align", good)
    write("valid.align", good)
    data = text_data(path_align="train.align")
    accepted(train.main, *data, *SMALL, *EXTERNAL, "-save_model", "m")
    cut = refused(train.main, *data, *SMALL, *EXTERNAL, "-src_seq_length_trunc", 3, "-save_model", "n")
    assert "train.align, line 2: link 3-3 is outside of a sentence pair with 3 and 4 tokens" in cut
    if case == "missing":
        Path("bad").unlink()
    Path("data.yaml").write_text(Path("data.yaml").read_text().replace(f"{part}.align", "bad"))
    said = {"lengths": "de has 3 lines and bad has 2", "missing": "bad (path_align"}.get(case, f"bad, {said}")
    assert said in refused(train.main, *data, *SMALL, *EXTERNAL, "-save_model", "n")


@pytest.mark.parametrize("case", LINKS)
def test_bad_alignments_are_refused_by_preprocessing(case, clean, refused):
    """Lines are those of the file, also after a blank pair that is dropped."""
    bad, said = LINKS[case]
    write("de", ["", SOURCE[0], *SOURCE[1:]])
    write("en", ["", TARGET[0], *TARGET[1:]])
    write("good.align", ["", "0-0", "0-0", "0-0"])
    write("bad.align", ["", bad, "0-0", "0-0"])
    files = "-train_src de -train_tgt en -valid_src de -valid_tgt en -subword none -save_data run"
    message = refused(
        preprocess.main, *files.split(), "-train_align", "bad.align", "-valid_align", "good.align"
    )
    assert f"bad.align, {said}" in message


@pytest.mark.parametrize("case", LINKS)
def test_bad_gold_alignments_are_refused(case, model, refused):
    bad, said = LINKS[case]
    write("de", SOURCE)
    write("en", TARGET)
    write("gold", ["0-0", bad, "0-0"])
    assert f"gold, {said}" in refused(*read(model, "align"), "-gold", "gold")


DATA = {
    "{corpus_1: [}": "-data is not YAML",
    "7": "-data 7: expected corpora by name",
    "{corpus_1: 7}": "expected corpora by name",
    "{corpus_1: {path_src: de}}": "corpus corpus_1 of -data has no path_tgt",
    "{corpus_1: {path_tgt: en}}": "corpus corpus_1 of -data has no path_src",
    "{corpus_1: {path_src: 3, path_tgt: en}}": "path_src 3 is not the name of a file",
    "{corpus_1: {path_src: '.', path_tgt: en}}": ". (path_src of corpus corpus_1 in -data): there is no such",
    "{corpus_1: {path_sorc: de, path_tgt: en}}": "unknown key path_sorc; did you mean path_src?",
    "{corpus_1: {path_src: de, path_tgt: en, weight: x}}": "weight x is not a whole number",
    "{corpus_1: {path_src: de, path_tgt: en, weight: 0}}": "-data has no corpus to train on",
    "{valid: {path_src: de, path_tgt: en}}": "-data has no corpus to train on",
    "{corpus_1: {path_src: de, path_tgt: en, transforms: bpe}}": "transforms bpe is not a list",
    "{corpus_1: {path_src: de, path_tgt: en, transforms: [bqe]}}": "there is no transform bqe",
}


@pytest.mark.parametrize("data", DATA)
def test_bad_data_is_refused(data, clean, refused):
    words = ["-data", data, "-src_vocab", "v.de", "-tgt_vocab", "v.en", *SMALL, "-save_model", "m/m"]
    assert DATA[data] in refused(train.main, *words)


OPTIONS = {
    "translate": [
        "-beam five", "-beam 2.5", "-kmax x", "-kmax -1", "-alpha x", "-alpha nan", "-eos_norm inf", "-seed x",
        "-shard_size -1", "-min_length -1", "-random_sampling_topk -7", "-random_sampling_topk 5000",
        "-random_sampling_topp 2", "-random_sampling_temp -1", "-gpu x",
    ],
    "evaluate": ["-kmax x", "-kmax -1", "-batch_size x", "-batch_size 0", "-samples x", "-alpha nan"],
    "align": ["-threshold x", "-threshold nan", "-from x", "-gold_base 5", "-batch_size x"],
    "explore": ["-kmax x", "-kmax -1", "-sentences x", "-sentences 0", "-seed x"],
    "train": [
        "-train_steps x", "-layers 1.5", "-dropout x", "-dropout nan", "-learning_rate fast", "-attention 7",
        "-learning_rate nan", "-label_smoothing 5", "-adam_beta1 2", "-decay_steps 0", "-bucket_size 0",
        "-tgt_vocab_size -1", "-kmax x", "-param_init nan",
    ],
    "preprocess": ["-vocab_size x", "-vocab_size 1.5", "-src_seq_length 0", "-num_threads -1", "-subword 3"],
    "build_vocab": ["-n_sample x", "-num_threads x"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, options in OPTIONS.items() for option in options]
)
def test_options_of_the_wrong_type_or_size_are_named(command, option, model, clean, refused):
    if command in READERS:
        words = read(model, command)
    elif command == "train":
        words = [train.main, *text_data(), *SMALL, "-save_model", "m/m"]
    elif command == "preprocess":
        words = [
            preprocess.main,
            *typed("-train_src de -train_tgt en -valid_src de -valid_tgt en -save_data run"),
        ]
    else:
        words = [build_vocab.main, *text_data(), "-save_data", "new"]
    name, value = option.split()
    message = refused(*words, name, value)
    assert name in message
    assert value.lower() in message


def test_a_type_mistake_in_a_config_file_is_named(clean, refused):
    write("c.yaml", "train_steps: many\n")
    words = ["-config", "c.yaml", "-data", "{}", "-src_vocab", "v.de", "-save_model", "m"]
    assert "-train_steps: invalid int value: 'many'" in refused(train.main, *words)
    write("c.yaml", "train_steps: [1\n: {")
    assert "c.yaml" in refused(train.main, *words)


def test_kmax_beyond_the_source_is_exact(model, lines, accepted):
    for side in ("de", "en"):
        write(side, lines[side])
    found = []
    for way in (["-kmax", 9999], ["-test_attention", "exact"], ["-kmax", 1]):
        accepted(*read(model, "translate"), "-with_score", *way)
        found.append(Path("out").read_bytes())
    assert found[0] == found[1]
    assert found[1] != found[2]
    accepted(*read(model, "evaluate"), "-kmax", 1, 9999)
    perplexity = json.loads(Path("out").read_text("utf-8"))["models"][0]["ppl"]
    assert perplexity["kmax9999"] == pytest.approx(perplexity["exact"], rel=1e-6)
    assert perplexity["kmax1"] != pytest.approx(perplexity["exact"], rel=1e-3)
    accepted(*read(model, "explore"), "-kmax", 9999)


def test_a_beam_beyond_the_vocabulary_finds_every_word(model, lines, accepted):
    """Of translations of one token there are as many as tokens, and their probabilities are all there is."""
    words = len(checkpoint.load(str(model))["vocab"]["tgt"].base_field.vocab)
    width = words + 20
    write("de", lines["de"][:2])
    base = ["-model", model, "-src", "de", "-output", "out", "-beam", width, "-with_score"]
    accepted(translate.main, *base, "-n_best", width, "-max_length", 1)
    rows = [line.split("\t") for line in Path("out").read_text("utf-8").split("\n")[:-1]]
    assert len(rows) == 2 * width
    for i in range(2):
        texts, scores = zip(*rows[i * width : (i + 1) * width], strict=True)
        assert sum(map(math.exp, map(float, scores))) == pytest.approx(1, abs=2e-3)
        assert [math.isfinite(float(score)) for score in scores] == [True] * words + [False] * 20
        assert texts[words:] == ("",) * 20


def test_a_beam_beyond_the_vocabulary_ends_and_finds_no_less(model, lines, accepted):
    write("de", lines["de"])
    scores = []
    for beam in (1, 300):
        words = ["-src", "de", "-output", "out", "-beam", beam, "-with_score", "-max_length", 2]
        accepted(translate.main, "-model", model, *words)
        found = Path("out").read_text("utf-8").split("\n")[:-1]
        assert len(found) == 6
        scores.append([float(line.split("\t")[1]) for line in found])
    assert all(map(math.isfinite, scores[1]))
    assert all(wide >= narrow for narrow, wide in zip(*scores, strict=True)), "it is exhaustive at two tokens"
    flags = typed("-beam 300 -length_penalty wu -alpha 1 -eos_norm 3 -max_length 8")
    accepted(translate.main, "-model", model, "-src", "de", "-output", "out", *flags)
    assert all(0 < len(line.split()) <= 8 for line in Path("out").read_text("utf-8").split("\n")[:-1])

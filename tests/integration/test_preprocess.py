"""`preprocess.py` on small corpora: its files, what it says, and that a mistake leaves nothing behind."""

import base64
import errno
import os
import random
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
import yaml
from onmt.inputters.fields import build_dynamic_fields
from onmt.inputters.inputter import _read_vocab_file
from onmt.opts import train_opts
from onmt.utils.parse import ArgumentParser

from onmt_varattn.bin.nmt import preprocess
from onmt_varattn.nmt.data import preprocessing
from onmt_varattn.nmt.text.processing import TextProcessing
from tests.conftest import call

ROOT = Path(__file__).resolve().parents[2]
NOUNS = [
    "Hund:dog",
    "Katze:cat",
    "Mädchen:girl",
    "Straße:street",
    "Bücher:books",
    "Häuser:houses",
    "Löwe:lion",
    "Käse:cheese",
]
VERBS = ["sieht:sees", "hört:hears", "mag:likes", "sucht:seeks", "findet:finds", "küsst:kisses"]


def sentences(count, seed=1):
    """Pairs of a toy grammar: (German lines, English lines)."""
    choose = random.Random(seed).choice
    pairs = []
    for _ in range(count):
        words = [choose(NOUNS), choose(VERBS), choose(NOUNS)]
        german, english = zip(*(word.split(":") for word in words), strict=True)
        pairs.append((f"„{' '.join(german)}“, sagt er.", f'"{" ".join(english)}," he says; isn\'t it?'))
    return tuple(map(list, zip(*pairs, strict=True)))


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A directory of raw files to run in, and the options that name them."""
    monkeypatch.chdir(tmp_path)
    options = {}
    for name, count in {"train": 60, "valid": 12, "test": 5}.items():
        for side, language, lines in zip(
            ("src", "tgt"), ("de", "en"), sentences(count, len(name)), strict=True
        ):
            write(f"{name}.{language}", lines)
            options[f"{name}_{side}"] = f"{name}.{language}"
    return {**options, "save_data": "out/run", "vocab_size": 70, "num_threads": 1}


def write(path, lines):
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def lines_of(path):
    return Path(path).read_text(encoding="utf-8").split("\n")[:-1]


def command_line(options):
    """Options as typed; True for a flag, None for one left out."""
    words = []
    for name, value in options.items():
        words += [] if value is None else [f"-{name}"] if value is True else [f"-{name}", str(value)]
    return words


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command with options and give back what it printed."""

    def call(options):
        monkeypatch.setattr(sys, "argv", ["preprocess.py", *command_line(options)])
        preprocess.main()
        return capsys.readouterr().out

    return call


@pytest.fixture
def refused(run, capsys):
    """Run with options that must be refused in one line, and give back that line."""

    def call(options, code=2):
        before = sorted(Path().rglob("*"))
        with pytest.raises(SystemExit) as exit_:
            run(options)
        assert exit_.value.code == code
        message = capsys.readouterr().err
        assert message.startswith("preprocess.py: error: " if code == 2 else "preprocess.py: ")
        assert message.count("\n") == 1
        assert sorted(Path().rglob("*")) == before
        return message

    return call


def contents(prefix):
    """Bytes of all files of a run by name, the prefix itself taken out."""
    directory, name = os.path.split(prefix)
    return {
        path.name: path.read_bytes().replace(prefix.encode(), b"PREFIX")
        for path in Path(directory).iterdir()
        if path.name.startswith(f"{name}.")
    }


@pytest.mark.parametrize("subword", ["sentencepiece", "bpe", "none"])
@pytest.mark.parametrize("share", [True, None], ids=["shared", "separate"])
def test_files_are_what_training_reads(corpus, run, subword, share):
    run({**corpus, "subword": subword, "share_vocab": share, "tokenize": "moses"})
    vocab_files = ["vocab"] if share else ["vocab.src", "vocab.tgt"]
    corpora = [f"{name}.{side}" for name in ("train", "valid", "test") for side in ("src", "tgt")]
    assert sorted(contents("out/run")) == sorted(
        f"run.{n}" for n in [*corpora, *vocab_files, "text.json", "yaml"]
    )

    config = yaml.safe_load(Path("out/run.yaml").read_text(encoding="utf-8"))
    assert config["text_processing"] == "out/run.text.json"
    assert config["save_data"] == "out/run"
    assert config.get("share_vocab") == share
    assert set(config["data"]) == {"corpus_1", "valid"}
    assert config["data"]["corpus_1"]["path_src"] == "out/run.train.src"
    assert config["data"]["valid"]["path_tgt"] == "out/run.valid.tgt"

    text = TextProcessing.load(config["text_processing"])
    assert (text.src.language, text.tgt.language) == ("de", "en")
    assert (text.src.model == text.tgt.model) == bool(share or subword == "none")
    counts = {}
    for side, processing in {"src": text.src, "tgt": text.tgt}.items():
        for name in ("train", "valid", "test"):
            raw, encoded = lines_of(corpus[f"{name}_{side}"]), lines_of(f"out/run.{name}.{side}")
            assert encoded == [processing.encode(line) for line in raw]
        counts[side] = Counter(token for line in lines_of(f"out/run.train.{side}") for token in line.split())
    if share:
        counts = dict.fromkeys(counts, counts["src"] + counts["tgt"])
    for side, count in counts.items():
        vocab, has_count = _read_vocab_file(config[f"{side}_vocab"], side)
        assert has_count
        assert [(token, int(number)) for token, number in vocab] == sorted(
            count.items(), key=lambda item: (-item[1], item[0])
        )

    # OpenNMT-py's own reading: every token of the file, and its special tokens, have a number.
    parser = ArgumentParser()
    train_opts(parser)
    opt, unknown = parser.parse_known_args(["-config", "out/run.yaml"])
    assert [word for word in unknown if word.startswith("-")] == ["--text_processing=out/run.text.json"]
    ArgumentParser.validate_prepare_opts(opt)
    for side, field in build_dynamic_fields(opt).items():
        if side in counts:
            assert set(counts[side]) <= set(field.base_field.vocab.stoi)


def test_more_than_fifty_thousand_words_are_all_kept(corpus, run):
    write("train.de", [f"wort{i}" for i in range(50_010)])
    write("train.en", ["word"] * 50_010)
    run({**corpus, "subword": "none", "vocab_size": 60_000})
    parser = ArgumentParser()
    train_opts(parser)
    opt, _ = parser.parse_known_args(["-config", "out/run.yaml"])
    ArgumentParser.validate_prepare_opts(opt)
    assert len(build_dynamic_fields(opt)["src"].base_field.vocab) == 50_010 + 2  # <unk>, <blank>


@pytest.mark.parametrize("subword", ["sentencepiece", "bpe"])
def test_joint_subwords_are_learned_from_both_sides(corpus, run, subword):
    """One model, that of shared vocabularies, so the same tokens; but each side counts its own."""
    corpus = {**corpus, "subword": subword}
    run({**corpus, "joint_subwords": True, "save_data": "out/joint"})
    run({**corpus, "share_vocab": True, "save_data": "out/shared"})
    text = TextProcessing.load("out/joint.text.json")
    assert text.src.model == text.tgt.model
    assert text == TextProcessing.load("out/shared.text.json")
    for side in ("src", "tgt"):
        encoded = lines_of(f"out/joint.train.{side}")
        assert encoded == lines_of(f"out/shared.train.{side}")
        counts = Counter(token for line in encoded for token in line.split())
        assert dict(line.split("\t") for line in lines_of(f"out/joint.vocab.{side}")) == {
            token: str(count) for token, count in counts.items()
        }
    config = yaml.safe_load(Path("out/joint.yaml").read_text(encoding="utf-8"))
    assert config["src_vocab"] != config["tgt_vocab"]
    assert "share_vocab" not in config


def test_merges_are_counted_not_subwords(corpus, run):
    """aa, then aab: by hand, the most frequent pair first."""
    write("train.de", ["aab aab aab", "aac"])
    write("train.en", ["aab aac", "xy"])
    corpus = {**corpus, "subword": "bpe", "vocab_size": None}
    run({**corpus, "merges": 2, "joint_subwords": True})
    assert lines_of("out/run.train.src") == ["aab aab aab", "aa@@ c"]
    assert lines_of("out/run.train.tgt") == ["aab aa@@ c", "x@@ y"]
    assert TextProcessing.load("out/run.text.json").src.model.split("\n")[1:] == ["a a", "aa b</w>", ""]
    run({**corpus, "merges": 1, "save_data": "out/one"})
    assert lines_of("out/one.train.src") == ["aa@@ b aa@@ b aa@@ b", "aa@@ c"]


def test_vocab_size_caps_whole_words(corpus, run):
    write("train.de", ["a b b c c c", "d d d d <s> <s> <s> <s> <s>"])
    write("train.en", ["x", "y"])
    run({**corpus, "subword": "none", "vocab_size": 3})
    assert lines_of("out/run.vocab.src") == ["\\<s>\t5", "d\t4", "c\t3"]


@pytest.mark.parametrize("subword", ["sentencepiece", "bpe"])
def test_subwords_come_from_the_training_text_alone(corpus, run, subword):
    corpus = {**corpus, "subword": subword}
    run(corpus)
    for path in ("valid.de", "valid.en", "test.de", "test.en"):
        write(path, ["Donaudampfschiff Ж Donaudampfschiff"] * 50)
    run({**corpus, "save_data": "out/other"})
    assert TextProcessing.load("out/run.text.json") == TextProcessing.load("out/other.text.json")
    assert contents("out/run")["run.vocab.src"] == contents("out/other")["other.vocab.src"]
    write("train.de", ["Donaudampfschiff Ж Donaudampfschiff"] * 60)  # the check above can fail
    run({**corpus, "save_data": "out/third", "vocab_size": 24, "train_tgt": "train.de"})
    assert TextProcessing.load("out/third.text.json").src != TextProcessing.load("out/run.text.json").src


@pytest.mark.parametrize("subword", ["sentencepiece", "bpe"])
def test_same_bytes_for_any_number_of_workers(corpus, run, subword):
    for side, lines in zip(("de", "en"), sentences(1500), strict=True):  # more than a worker's chunk
        write(f"train.{side}", lines)
    corpus = {**corpus, "subword": subword, "tokenize": "moses", "lowercase": True}
    found = []
    for name, workers in {"one": 1, "two": 2, "again": 2}.items():
        run({**corpus, "num_threads": workers, "save_data": f"{name}/run"})
        found.append(contents(f"{name}/run"))
    assert found[0] == found[1] == found[2]
    assert len(found[0]["run.train.src"].splitlines()) == 1500


def test_blank_and_long_pairs_are_dropped_and_counted(corpus, run):
    write("train.de", ["a b", "", " \u00a0", "c", "a b c d", "a b", "a b c", ""])
    write("train.en", ["x y", "x", "x", "\t", "x", "x y z", "x y", ""])
    write("valid.de", ["a", "a q", "a b c d"])
    write("valid.en", ["x", "", "x"])
    write("test.de", ["a b c d e f", "", "a"])
    write("test.en", ["", "x", "x"])
    said = run({**corpus, "subword": "none", "src_seq_length": 3, "tgt_seq_length": 2})
    assert lines_of("out/run.train.src") == ["a b", "a b c"]
    assert lines_of("out/run.train.tgt") == ["x y", "x y"]
    assert lines_of("out/run.valid.src") == ["a"]
    assert lines_of("out/run.test.src") == ["a b c d e f", "", "a"]
    assert lines_of("out/run.test.tgt") == ["", "x", "x"]
    assert (
        "train: 8 pairs read, 2 kept, dropped: 3 blank source, 1 blank target, "
        "1 source over -src_seq_length 3, 1 target over -tgt_seq_length 2\n"
    ) in said
    assert "valid: 3 pairs read, 1 kept, dropped: 1 blank target, 1 source over -src_seq_length 3\n" in said
    assert "test: 3 pairs read, 3 kept, dropped: none\n" in said
    assert "train: mean length 2.5 / 2.0 tokens" in said


def test_summary(corpus, run):
    write("train.de", ["a b a", "b c"])
    write("train.en", ["x y", "x z"])
    write("valid.de", ["a q r", "b"])
    write("valid.en", ["x", "y"])
    said = run({**corpus, "vocab_size": None, "subword": "none", "test_src": None, "test_tgt": None})
    assert "source vocabulary: 3 tokens; unknown in valid: 2 of 4 (50.00%)\n" in said
    assert "target vocabulary: 3 tokens; unknown in valid: 0 of 2 (0.00%)\n" in said
    assert "test" not in said
    written = re.search(r"written: (.*)\n", said)[1].split()
    assert sorted(written) == sorted(str(path) for path in Path("out").iterdir())
    assert said.endswith(
        "next: onmt_train -config out/run.yaml -attention variational -posterior_rnn brnn -preset small "
        "-save_model out/run.model\n"
        "then: onmt_translate -model out/run.model_best.pt -src TEXT -output FILE -kmax 5 -beam 10\n"
    )


def commands(said):
    """The words of the two commands that follow, as a shell takes them."""
    *_, train, translate = said.splitlines()
    assert (train[:6], translate[:6]) == ("next: ", "then: ")
    return shlex.split(train[6:]), shlex.split(translate[6:])


def test_what_comes_next_is_quoted_and_fits_the_data(corpus, run, monkeypatch):
    options = {**corpus, "save_data": "my data/run's"}
    train, translate = commands(run(options))
    assert train[1:3] == ["-config", "my data/run's.yaml"]
    assert train[-4:] == ["-preset", "small", "-save_model", "my data/run's.model"]
    assert translate[1:3] == ["-model", "my data/run's.model_best.pt"]
    monkeypatch.setattr(preprocessing, "PAPER_PAIRS", 61)
    assert "-preset small" in " ".join(commands(run({**options, "overwrite": True}))[0])
    monkeypatch.setattr(preprocessing, "PAPER_PAIRS", 60)
    assert "-preset paper" in " ".join(commands(run({**options, "overwrite": True}))[0])
    for name in ("train", "valid"):
        write(f"{name}.align", ["0-0 1-1"] * len(lines_of(f"{name}.de")))
    aligned = {"train_align": "train.align", "valid_align": "valid.align", "overwrite": True}
    train, _ = commands(run({**options, **aligned}))
    assert "-attention variational -posterior external -preset paper" in " ".join(train)


def test_the_next_commands_are_commands(corpus, run, capsys):
    """onmt_train and onmt_translate take them, apart from the number of steps."""
    from onmt_varattn.bin.nmt import train, translate

    training, translation = commands(run({**corpus, "vocab_size": None}))
    assert (training.pop(0), translation.pop(0)) == ("onmt_train", "onmt_translate")
    assert call(train.main, *training, "-train_steps", 2, "-valid_steps", 2) == 0
    translation[translation.index("TEXT")], translation[translation.index("FILE")] = "test.de", "out/test"
    assert call(translate.main, *translation, "-max_length", 3) == 0
    assert len(lines_of("out/test")) == 5


@pytest.mark.parametrize("way", [None, "share_vocab", "joint_subwords"])
@pytest.mark.parametrize("subword", ["sentencepiece", "bpe"])
def test_any_text_works_without_a_vocabulary_size(corpus, run, subword, way):
    """Five lines, of words and of letters: -vocab_size of 14,000 would be refused."""
    german, english = sentences(5)
    letters = [" ".join(line.replace(" ", "")) for line in german]
    options = {**corpus, "vocab_size": None, "subword": subword, "overwrite": True}
    options |= {way: True} if way else {}
    for source in (german, letters):
        write("train.de", source)
        write("train.en", english)
        said = run(options)
        where = "for both sides" if way else r"on (each|the source) side"
        assert re.search(rf"^subwords: [\d,]+ {where} \((all that|its characters and)", said, re.MULTILINE)
        assert "set -vocab_size for another number" in said
        text = TextProcessing.load("out/run.text.json")
        assert [text.src.decode(line) for line in lines_of("out/run.train.src")] == source
        assert [text.tgt.decode(line) for line in lines_of("out/run.train.tgt")] == english
    longest = max(len(line.split()) for line in lines_of("out/run.train.src"))
    assert longest == max(len(line.split()) for line in letters)  # a letter is a token


def test_the_number_of_subwords_follows_the_words_of_the_training_text(corpus, run):
    """12,000 words and 9,000 on the other side; characters need less."""
    parts = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]
    words = [first + second for first in parts for second in parts[:40]]  # 3,000
    write("train.de", [" ".join(words[i : i + 4]) for i in range(0, 3000, 4)] * 4)
    write("train.en", [" ".join(words[i : i + 3]) for i in range(0, 2250, 3)] * 4)
    options = {**corpus, "vocab_size": None, "overwrite": True}
    said = run(options)
    reason = "(one per 50 words of training text"
    assert (
        f"subwords: 240 on the source side {reason}), 180 on the target side {reason}); "
        "set -vocab_size for another number\n"
    ) in said
    for way in ("share_vocab", "joint_subwords"):
        assert f"subwords: 420 for both sides {reason}; set -vocab_size for another number)\n" in run(
            {**options, way: True}
        )
    run({**options, "vocab_size": 240, "save_data": "out/given"})
    run(options)
    assert lines_of("out/given.train.src") == lines_of("out/run.train.src")
    assert "subwords: " not in run({**options, "vocab_size": 240})


@pytest.mark.parametrize("vocab_size", [90, None])
@pytest.mark.parametrize("way", [None, "share_vocab", "joint_subwords"])
def test_a_vocabulary_smaller_than_its_subword_model_is_explained(corpus, run, way, vocab_size):
    """Subwords that are always part of longer ones are in the model, but not in the vocabulary."""
    said = run({**corpus, "vocab_size": vocab_size, "overwrite": True} | ({way: True} if way else {}))
    listed = len(lines_of("out/run.vocab" if way == "share_vocab" else "out/run.vocab.src"))
    shared = r" \(shared\)" if way == "share_vocab" else ""
    found = re.search(rf"^source vocabulary: (\d+) tokens{shared} of (\d+) subwords; ", said, re.MULTILINE)
    assert (
        "\nnote: subwords that do not occur in the segmented training text, such as parts of longer" in said
    )
    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(base64.b64decode(TextProcessing.load("out/run.text.json").src.model))
    assert int(found[1]) == listed < int(found[2]) == model.get_piece_size()


def test_fewer_distinct_words_than_the_vocabulary_size_are_explained(corpus, run):
    write("train.de", ["a b c"] * 30)
    write("train.en", ["d e"] * 30)
    said = run({**corpus, "subword": "none", "vocab_size": 2, "overwrite": True})
    assert "vocabulary: 2 tokens; unknown" in said
    said = run({**corpus, "subword": "none", "vocab_size": 8000, "overwrite": True})
    reason = "(-vocab_size 8,000, but the training text has no more distinct words)"
    assert f"source vocabulary: 3 tokens {reason}; unknown in valid: " in said
    assert f"target vocabulary: 2 tokens {reason}; unknown in valid: " in said


def test_options_from_a_file(corpus, run):
    Path("run.yml").write_text(yaml.safe_dump({**corpus, "share_vocab": True, "lowercase": True}))
    run({"config": "run.yml", "save_data": "elsewhere/run"})
    assert Path("elsewhere/run.vocab").exists()
    assert TextProcessing.load("elsewhere/run.text.json").tgt.lowercase


def test_unknown_moses_language_is_said(corpus, run, caplog):
    os.rename("train.de", "train.txt")
    run({**corpus, "train_src": "train.txt", "tokenize": "moses"})
    assert "moses has no rules for language 'txt' of train.txt" in caplog.text
    assert "-src_lang" in caplog.text
    assert ".en" not in caplog.text


def test_existing_files_are_kept_unless_told(corpus, run, refused):
    run(corpus)
    assert "out/run.train.src exists; use -overwrite" in refused(corpus)
    for path in Path("out").iterdir():
        if path.name != "run.yaml":
            path.unlink()
    assert "out/run.yaml exists; use -overwrite" in refused(corpus)
    run({**corpus, "overwrite": True, "subword": "none"})
    assert TextProcessing.load("out/run.text.json").src.subword == "none"


def test_input_is_never_written_over(corpus, refused):
    os.rename("train.de", "x.train.src")
    message = refused({**corpus, "train_src": "./x.train.src", "save_data": "x", "overwrite": True})
    assert "x.train.src is an input file" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_src": "none.de"}, "none.de: cannot be read: No such file or directory"),
        ({"train_src": "train.de", "train_tgt": "valid.en"}, "train.de has 60 lines and valid.en has 12;"),
        ({"test_src": "train.de"}, "train.de has 60 lines and test.en has 5;"),
        ({"valid_tgt": "empty"}, "empty: the file is empty"),
        ({"valid_src": "latin1"}, "latin1, line 2: not UTF-8"),
        (
            {"subword": "bpe", "vocab_size": 14000},
            "-vocab_size 14000 is more than the source training text allows",
        ),
        (
            {"vocab_size": 14000, "share_vocab": True},
            "-vocab_size 14000 is more than the training text allows",
        ),
        ({"vocab_size": 3}, "-vocab_size 3 is less than the characters of the source training text"),
        ({"vocab_size": 0}, "-vocab_size 0 must be at least 1"),
        ({"save_data": "train.de/run"}, "train.de/run.yaml: cannot be written: Not a directory"),
        ({"save_data": "/proc/nowhere/run"}, "/proc/nowhere/run.yaml: cannot be written"),
        ({"test_tgt": None}, "-test_src is given without -test_tgt"),
        ({"test_src": None}, "-test_tgt is given without -test_src"),
        ({"train_src": "blank"}, "no train pair is left of 60 after filtering: 60 blank source"),
        ({"valid_tgt": "blank12"}, "no valid pair is left of 12 after filtering: 12 blank target"),
        (
            {"tgt_seq_length": 1},
            "no train pair is left of 60 after filtering: 60 target over -tgt_seq_length 1",
        ),
        ({"subword": "bpe", "merges": 9}, "-merges and -vocab_size both set the number of subwords"),
        (
            {"merges": 9, "vocab_size": None},
            "-merges is for -subword bpe; use -vocab_size with -subword sentencepiece",
        ),
        (
            {"subword": "bpe", "merges": 14000, "vocab_size": None},
            "-merges 14000 is more than the source training text allows (at most ",
        ),
        (
            {"subword": "bpe", "merges": 14000, "vocab_size": None, "joint_subwords": True},
            "-merges 14000 is more than the training text allows (at most ",
        ),
        (
            {"subword": "bpe", "merges": 1, "vocab_size": None, "train_src": "letters"},
            "-merges 1 is more than the source training text allows (at most 0); use -subword none",
        ),
        ({"joint_subwords": True, "subword": "none"}, "-joint_subwords does not go with -subword none"),
        (
            {"joint_subwords": True, "share_vocab": True},
            "-share_vocab already has one subword model for both sides; leave out -joint_subwords",
        ),
        ({"vocab_sise": 70}, "unknown option -vocab_sise; did you mean -vocab_size?"),
        ({"save_data": None}, "-save_data"),
        ({"subword": "wordpiece"}, "invalid choice: 'wordpiece'"),
        ({"config": "none.yml"}, "none.yml"),
    ],
    ids=lambda value: " ".join(command_line(value)) if isinstance(value, dict) else "",
)
def test_mistakes_are_named_and_leave_nothing(corpus, refused, change, message):
    Path("empty").touch()
    Path("latin1").write_bytes("gut\nschön\n".encode("latin-1") * 6)
    write("blank", ["", " \t"] * 30)
    write("blank12", [""] * 12)
    write("letters", ["a b", "c"] * 30)
    assert message in refused({**corpus, **change})


def test_a_full_disk_leaves_nothing(corpus, refused, monkeypatch):
    room = iter(range(5))

    def fsync(handle):
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    message = refused({**corpus, "save_data": "new/deep/run"}, code=1)  # not a mistake of the user
    assert "cannot be written: No space left on device; neither can a temporary file" in message


def test_front_door(corpus, tmp_path):
    """The script itself, from the repository's root: a traceback or noise would show here."""
    paths = {k: tmp_path / v for k, v in corpus.items() if k.endswith(("_src", "_tgt", "_data"))}
    done, failed = (
        subprocess.run(
            [
                sys.executable,
                "preprocess.py",
                *command_line({**corpus, **paths, "subword": subword, "vocab_size": size}),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        for subword, size in (("bpe", 70), ("none", 70))
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"onmt_train -config {tmp_path}/out/run.yaml" in done.stdout
    assert failed.returncode == 2
    assert failed.stderr.startswith("preprocess.py: error: ")
    assert failed.stderr.count("\n") == 1
    assert failed.stdout == ""

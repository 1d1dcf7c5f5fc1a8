"""Questions as numbers and back, labels in proportion to votes, and files that are not what they should be."""

import ast
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from onmt_varattn import vqa
from onmt_varattn.errors import UserError
from onmt_varattn.vqa.data.answers import normalise
from onmt_varattn.vqa.data.dataset import Data, Part, digest, fixed_labels
from onmt_varattn.vqa.data.official import Annotation, Question
from onmt_varattn.vqa.data.preparation import answer_list, half, prepare, word_list, write
from onmt_varattn.vqa.data.words import tokenise

TEXTS = ["What is it?", "Where?", "Is the red star what it is?", "!?", "what what", "Is it the star's star?"]
ANSWERS = [
    ["red"] * 7 + ["blue"] * 2 + ["unheard of"],
    ["Blue!"] * 3 + ["red."] + ["blue"] * 6,
    ["nothing known"] * 10,
    ["the red", "green"] * 5,
    ["two"] * 4 + ["2"] * 4 + ["red"] * 2,
    ["a"] * 10,
]
ROWS = {9: 1, 4: 0, 7: 2}
IMAGES = [9, 4, 9, 7, 4, 4]
LENGTH = 5


def pairs_of(texts, answers, first=100):
    pairs = []
    for i, (text, own) in enumerate(zip(texts, answers, strict=True)):
        majority = Counter(own).most_common(1)[0][0]
        image = IMAGES[i % len(IMAGES)]
        pairs.append(
            (
                Question(first + 3 * i, image, text),
                Annotation(first + 3 * i, image, own, majority, "what", "other"),
            )
        )
    return pairs


PAIRS = pairs_of(TEXTS, ANSWERS)
VOCABULARY = ["red", "blue", "2", "green"]


class FakeStore:
    """Images of one to three boxes, all of whose features are the row's number plus one."""

    feature_size = 2
    images = np.array([4, 9, 7])

    def batch(self, rows):
        padding = torch.tensor([[box > row for box in range(max(rows) + 1)] for row in rows])
        features = (
            torch.tensor([float(row + 1) for row in rows])[:, None, None] * (~padding[..., None]).float()
        )
        return features.expand(-1, -1, 2), padding


@pytest.fixture
def words():
    return word_list(PAIRS, 1, LENGTH)


@pytest.fixture
def prepared(words):
    return prepare(PAIRS, ROWS, words, VOCABULARY, LENGTH)


@pytest.fixture
def saved(tmp_path, monkeypatch, prepared, words):
    """The prefix of written files, all parts the same, over the fake store."""
    monkeypatch.setattr("onmt_varattn.vqa.data.dataset.Store", lambda directory: FakeStore())
    prefix = str(tmp_path / "run")
    settings = {
        "format": 1,
        "words": words.words,
        "answers": VOCABULARY,
        "parts": {
            name: {**prepared.counts, "digest": digest(prepared.columns.question)}
            for name in ("train", "valid", "test")
        },
        "store": {"images": 3, "feature_size": 2},
    }
    write(prefix, dict.fromkeys(("train", "valid", "test"), prepared), settings)
    return prefix


@pytest.fixture
def part(saved):
    return Data.load(saved).part("train")


def expected_votes(answers):
    counts = Counter(
        VOCABULARY.index(normalise(answer)) for answer in answers if normalise(answer) in VOCABULARY
    )
    return dict(counts)


@pytest.mark.parametrize("indices", [[0], [3], [5, 2, 0, 3, 1, 4], [1, 1, 4]])
def test_a_batch_holds_each_question_as_if_it_were_alone(part, words, indices):
    batch = part.batch(indices)
    known = ["", "?", *words.words]
    most = int(batch.lengths.max())
    assert batch.index == indices
    assert batch.questions.shape == (len(indices), most)
    assert batch.questions.dtype == batch.lengths.dtype == batch.gold.dtype == torch.int64
    for n, i in enumerate(indices):
        text = tokenise(TEXTS[i])[:LENGTH] or ["?"]
        assert [known[word] for word in batch.questions[n]] == text + [""] * (most - len(text))
        assert batch.lengths[n] == len(text)
        row = ROWS[IMAGES[i]]
        assert batch.features[n, : row + 1].eq(row + 1).all()
        assert batch.padding[n].tolist() == [box > row for box in range(batch.padding.shape[1])]
    assert batch.gold.tolist() == [-1] * len(indices)


def test_a_batch_goes_to_a_device_but_for_its_lengths(part):
    batch = part.batch([0, 1]).to("meta")
    devices = {
        name: getattr(batch, name).device.type for name in ("questions", "features", "padding", "gold")
    }
    assert set(devices.values()) == {"meta"}
    assert batch.lengths.device.type == "cpu"


def test_labelled_are_the_questions_with_an_answer_of_the_vocabulary(part):
    assert part.labelled.tolist() == [i for i, own in enumerate(ANSWERS) if expected_votes(own)]
    assert part.labelled.tolist() == [0, 1, 3, 4]
    assert part.votes.tolist() == [sum(expected_votes(own).values()) for own in ANSWERS]


def check_frequencies(counts, votes, draws):
    """Each label as often as its votes say, within five standard errors; none that nobody gave."""
    total = sum(votes.values())
    assert set(counts) <= set(votes)
    for label, own in votes.items():
        share = own / total
        assert abs(counts[label] / draws - share) <= 5 * np.sqrt(share * (1 - share) / draws)


def test_labels_are_drawn_in_proportion_to_votes(part):
    draws = 4000
    generator = np.random.default_rng(3)
    indices = list(range(len(part)))
    drawn = np.array([part.batch(indices, generator).gold.tolist() for _ in range(draws)])
    for i, own in enumerate(ANSWERS):
        check_frequencies(Counter(drawn[:, i].tolist()), expected_votes(own) or {-1: 10}, draws)


def test_a_generators_state_decides_the_draws(part):
    draws = [part.batch([0, 1, 3, 4] * 20, np.random.default_rng(seed)).gold.tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_fixed_labels_depend_on_seed_and_question_alone(words):
    pairs = pairs_of(TEXTS * 50, ANSWERS * 50)
    order = np.random.default_rng(1).permutation(len(pairs))[:200]

    def labels(own, seed):
        columns = prepare(own, ROWS, words, VOCABULARY, LENGTH).columns
        return fixed_labels(Part(columns, "", FakeStore()), seed)

    whole = labels(pairs, 1)
    assert labels([pairs[i] for i in order], 1).tolist() == whole[order].tolist()
    assert labels(pairs, 2).tolist() != whole.tolist()


def test_fixed_labels_are_drawn_in_proportion_to_votes(words):
    draws = 3000
    pairs = pairs_of(TEXTS * draws, ANSWERS * draws)
    part = Part(prepare(pairs, ROWS, words, VOCABULARY, LENGTH).columns, "", FakeStore())
    drawn = fixed_labels(part, 1).reshape(draws, len(TEXTS))
    for i, own in enumerate(ANSWERS):
        check_frequencies(Counter(drawn[:, i].tolist()), expected_votes(own) or {-1: 10}, draws)


def test_without_any_label_nothing_is_drawn(words):
    part = Part(prepare(PAIRS[2:3], ROWS, words, VOCABULARY, LENGTH).columns, "", FakeStore())
    assert part.batch([0], np.random.default_rng(1)).gold.tolist() == [-1]
    assert fixed_labels(part, 1).tolist() == [-1]
    assert part.labelled.tolist() == []


def test_entries_are_the_official_texts(part):
    for i, (question, annotation) in reversed(list(enumerate(PAIRS))):
        assert part.entry(i) == {
            "question_id": question.id,
            "image_id": question.image,
            "question": question.text,
            "answers": annotation.answers,
            "question_type": "what",
            "answer_type": "other",
        }


def test_counts(prepared):
    assert prepared.counts == {
        "questions": 6,
        "labelled": 4,
        "votes": 60,
        "votes_in_vocabulary": 9 + 10 + 10 + 10,
        "words": 3 + 1 + 5 + 1 + 2 + 5,
        "unknown_words": 1,
        "cut": 2,  # seven and six words
        "wordless": 1,
    }


def test_answers_are_the_frequent_majorities():
    answers = [
        ["x"] * 2,
        ["x!"] * 2,
        ["The X"] * 2,
        ["b"] * 2,
        ["b"] * 2,
        ["c"] * 2,
        ["c", "y"],
        ["an"] * 9,
        ["an"] * 9,
    ]
    pairs = pairs_of(["?"] * len(answers), answers)
    assert answer_list(pairs, 1) == ["x", "b", "c"]  # three, and two each
    assert answer_list(pairs, 3) == ["x"]
    assert answer_list(pairs, 4) == []


def test_words_are_counted_where_questions_are_not_cut():
    pairs = pairs_of(["b a c zebra", "a b", "a"], [["x"]] * 3)
    assert word_list(pairs, 1, 3).words == ["a", "b", "c"]
    assert word_list(pairs, 2, 3).words == ["a", "b"]


def test_half_depends_on_seed_and_ids_alone():
    pairs = pairs_of(["?"] * 101, [["x"]] * 101)
    first = half(pairs, 1)
    assert len(first) == 50
    assert first < {question.id for question, _ in pairs}
    assert half(pairs[::-1], 1) == first
    assert len(half(pairs, 2) & first) not in (0, 50)
    later = {id for id in first if id >= 100 + 3 * 51}
    assert 10 < len(later) < 40  # mixed, not a run of the file


def rewrite(path, change):
    """Change arrays of an .npz file."""
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("votes"),
        lambda arrays: arrays.update(question=arrays["question"][1:]),
        lambda arrays: arrays.update(question=arrays["question"] + 1),
        lambda arrays: arrays.update(row=arrays["row"] + 1),
        lambda arrays: arrays.update(row=arrays["row"][1:]),
        lambda arrays: arrays.update(words=arrays["words"] + 100),
        lambda arrays: arrays.update(words=arrays["words"][1:]),
        lambda arrays: arrays.update(labels=arrays["labels"] + 1),
        lambda arrays: arrays.update(labels=arrays["labels"] - 1),
        lambda arrays: arrays.update(votes=arrays["votes"][1:]),
        lambda arrays: arrays.update(label_starts=arrays["label_starts"][::-1]),
        lambda arrays: arrays.update(word_starts=np.r_[0, 0, arrays["word_starts"][2:]]),
        lambda arrays: arrays.update(word_starts=np.sort(arrays["word_starts"] * 0)),
        lambda arrays: arrays.update(line_starts=arrays["line_starts"][1:]),
    ],
)
def test_arrays_that_do_not_fit_are_refused(saved, change):
    rewrite(f"{saved}.valid.npz", change)
    data = Data.load(saved)
    data.part("train")
    with pytest.raises(UserError, match=r"run\.valid\.npz: damaged.*-overwrite"):
        data.part("valid")


def cut(path):
    with open(path, "r+b") as file:
        file.truncate(file.seek(0, 2) - 1)


def test_damaged_files_are_refused(saved):
    cut(f"{saved}.valid.jsonl")
    with pytest.raises(UserError, match=r"run\.valid\.jsonl: not of the same run as .*npz"):
        Data.load(saved).part("valid")
    cut(f"{saved}.test.npz")
    with pytest.raises(UserError, match=r"run\.test\.npz: damaged"):
        Data.load(saved).part("test")
    Path(f"{saved}.train.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"run\.train\.npz: damaged"):
        Data.load(saved).part("train")


def test_a_damaged_line_is_named(saved):
    path = Path(f"{saved}.valid.jsonl")
    content = path.read_bytes()
    second = content.index(b"\n") + 1
    path.write_bytes(content[:second] + b"#" + content[second + 1 :])
    part = Data.load(saved).part("valid")
    assert part.entry(0)["question"] == TEXTS[0]
    with pytest.raises(
        UserError, match=rf"run\.valid\.jsonl: damaged at byte {second}; run vqa_preprocess again"
    ):
        part.entry(1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "not a file of this version"),
        ({"store": {"images": 4, "feature_size": 2}}, "not of the same run"),
        ({"store": None}, "damaged"),
        ({"words": None}, "damaged"),
    ],
)
def test_settings_that_do_not_fit_are_refused(saved, change, said):
    file = Path(f"{saved}.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError, match=said):
        Data.load(saved)


def test_unfinished_data_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"absent\.json: cannot be read: No such file.*-save_data .*absent writes it"
    ):
        Data.load(str(tmp_path / "absent"))
    (tmp_path / "broken.json").write_bytes(b"\xff{")
    with pytest.raises(UserError, match=r"broken\.json, line 1: not UTF-8 .*vqa_preprocess -save_data"):
        Data.load(str(tmp_path / "broken"))


def test_nothing_under_vqa_knows_opennmt_or_translation():
    """Not even inside functions, which a look at imported modules would miss."""
    forbidden = ("nmt", "plugin", "cli", "bin", "api", "serving")
    files = list(Path(vqa.__file__).parent.rglob("*.py"))
    assert len(files) > 20
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                first, second = [*name.split("."), ""][:2]
                assert first not in ("onmt", "torchtext"), f"{path}: {name}"
                assert first != "onmt_varattn" or second not in forbidden, f"{path}: {name}"


def test_a_full_disk_leaves_nothing_behind(tmp_path, prepared, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(UserError, match=r"run\.train\.npz: cannot be written: No space left on device"):
        write(str(tmp_path / "run"), {"train": prepared}, {})
    assert list(tmp_path.iterdir()) == []

"""vqa_preprocess on small scenes: its files against plain loops over the official ones, and what goes wrong."""

import base64
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from onmt_varattn.bin.vqa import preprocess as vqa_preprocess
from onmt_varattn.utils.locking import only_one
from onmt_varattn.vqa.data.answers import normalise
from onmt_varattn.vqa.data.dataset import Data
from onmt_varattn.vqa.features import building
from onmt_varattn.vqa.scenes import SceneSettings, write_scenes
from tests.conftest import call

NAMES = {
    "train_questions": "v2_OpenEnded_mscoco_train2014_questions.json",
    "train_annotations": "v2_mscoco_train2014_annotations.json",
    "valid_questions": "v2_OpenEnded_mscoco_val2014_questions.json",
    "valid_annotations": "v2_mscoco_val2014_annotations.json",
}
FREQUENCY, LENGTH = 4, 6


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Small scenes."""
    directory = tmp_path_factory.mktemp("scenes")
    write_scenes(SceneSettings(train_images=60, valid_images=21, seed=4), str(directory))
    return directory


@pytest.fixture
def scenes(made, tmp_path, monkeypatch):
    """A directory with a copy of the scenes to run in, and the options that name them."""
    shutil.copytree(made, tmp_path / "scenes")
    monkeypatch.chdir(tmp_path)
    options = {option: f"scenes/{name}" for option, name in NAMES.items()}
    return {
        **options,
        "image_features": "scenes/trainval.tsv",
        "save_data": "out/vqa",
        "answer_min_frequency": FREQUENCY,
        "question_length": LENGTH,
    }


@pytest.fixture
def run(capsys):
    """Run the command; returns its exit code and what it said."""

    def run(options, **changes):
        words = []
        for name, value in {**options, **changes}.items():
            words += (
                [] if value is None else [f"-{name}"] if value is True else [f"-{name}", *str(value).split()]
            )
        code = call(vqa_preprocess.main, *words)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def official(part):
    """The entries of the official files of a part, by question id."""
    questions = json.loads(Path("scenes", NAMES[f"{part}_questions"]).read_text())["questions"]
    annotations = json.loads(Path("scenes", NAMES[f"{part}_annotations"]).read_text())["annotations"]
    by_id = {entry["question_id"]: entry for entry in annotations}
    return {question["question_id"]: {**question, **by_id[question["question_id"]]} for question in questions}


def words_of(entry):
    return re.sub(r"[^\w ]", "", entry["question"].lower()).split()[:LENGTH]


def change(name, edit):
    """Edit an official file."""
    path = Path("scenes", NAMES[name])
    content = json.loads(path.read_text())
    edit(content[name.split("_")[1]])
    path.write_text(json.dumps(content))


def features_of():
    """Features by image id, as the TSV has them."""
    found = {}
    for line in Path("scenes/trainval.tsv").read_text().splitlines():
        image, _, _, boxes, _, features = line.split("\t")
        found[int(image)] = np.frombuffer(base64.b64decode(features), "<f4").reshape(int(boxes), -1)
    return found


def output():
    return sorted(path.name for path in Path("out").glob("vqa*")) if Path("out").exists() else []


def contents():
    """Every file written, but for what names the run."""
    files = {path: path.read_bytes() for path in Path("out").rglob("vqa*") if path.is_file()}
    files |= {path: path.read_bytes() for path in Path("out").rglob("*.bin")}
    del files[Path("out/vqa.json")]
    return files


def test_the_files_hold_what_the_official_ones_do(scenes, run):
    code, said = run(scenes)
    assert code == 0, said
    data = Data.load("out/vqa")
    train, valid = official("train"), official("valid")
    majorities = Counter(normalise(entry["multiple_choice_answer"]) for entry in train.values())
    assert data.answers == sorted(
        (answer for answer, count in majorities.items() if count >= FREQUENCY),
        key=lambda answer: (-majorities[answer], answer),
    )
    known = ["", "?", *data.words.words]
    heard = {word for entry in train.values() for word in words_of(entry)}
    features = features_of()
    parts = {name: data.part(name) for name in ("train", "valid", "test")}
    unlabelled = 0
    for name, part in parts.items():
        entries = train if name == "train" else valid
        ids = part.columns.question.tolist()
        assert ids == [id for id in entries if id in set(ids)]
        batch = part.batch(range(len(part)))
        drawn = [
            part.batch(range(len(part)), np.random.default_rng(seed)).gold.tolist() for seed in range(40)
        ]
        for n, (id, golds) in enumerate(zip(ids, zip(*drawn, strict=True), strict=True)):
            entry = entries[id]
            raw = [answer["answer"] for answer in entry["answers"]]
            words = words_of(entry)
            assert [known[word] for word in batch.questions[n]][: len(words)] == [
                word if word in heard else "?" for word in words
            ]
            assert batch.lengths[n] == len(words)
            own = features[entry["image_id"]]
            assert np.array_equal(batch.features[n, : len(own)].numpy(), own)
            assert batch.padding[n].tolist() == [box >= len(own) for box in range(batch.padding.shape[1])]
            labels = {
                data.answers.index(normalise(answer)) for answer in raw if normalise(answer) in data.answers
            }
            assert set(golds) <= (labels or {-1})
            assert bool(labels) == (n in part.labelled)
            unlabelled += not labels
            assert part.entry(n) == {
                "question_id": id,
                "image_id": entry["image_id"],
                "question": entry["question"],
                "answers": raw,
                "question_type": entry["question_type"],
                "answer_type": entry["answer_type"],
            }
    assert unlabelled  # or this has shown nothing about them
    assert sorted(parts["train"].columns.question) == sorted(train)
    both = [*parts["valid"].columns.question, *parts["test"].columns.question]
    assert sorted(both) == sorted(valid)
    assert len(parts["valid"]) == len(parts["test"]) == len(valid) // 2
    assert f"{len(train):,} questions read, {len(train):,} kept, left out: none" in said
    assert "next: onmt_vqa_train -data out/vqa " in said


def test_what_is_left_out_is_counted_and_named(scenes, run):
    """Five images without features, a question and an annotation without the other, and long questions."""
    entries = official("train")
    whole = list(entries)
    change("train_questions", lambda entries: entries.pop(0))
    change("train_annotations", lambda entries: entries.pop())
    lines = Path("scenes/trainval.tsv").read_text().splitlines(keepends=True)
    gone = {int(line.split("\t")[0]) for line in lines[10:15]}
    Path("scenes/trainval.tsv").write_text("".join(lines[:10] + lines[15:]))
    asked = [id for id in whole[1:-1] if id // 1000 in gone]
    kept = [id for id in whole[1:-1] if id // 1000 not in gone]
    texts = [entry["question"] for id, entry in entries.items() if id in kept]
    code, said = run(scenes)
    assert code == 0, said
    assert Data.load("out/vqa").part("train").columns.question.tolist() == kept
    named = ", ".join(map(str, sorted(gone)))
    assert f"{len(whole) - 1:,} questions read, {len(kept):,} kept" in said
    assert (
        f"1 without an annotation, {len(asked)} with images that have no features (5 images: {named})" in said
    )
    assert f"{NAMES['train_annotations']}: 1 annotations without a question" in said
    longer = sum(len(text.split()) > LENGTH for text in texts)
    assert f"{longer:,} cut at -question_length" in said
    assert "with unknown answers only (kept, never trained on)" in said
    written = json.loads(Path("out/vqa.json").read_text())
    assert list(written["left_out"][scenes["train_questions"]].values()) == [1, len(asked)]


def test_the_split_is_the_same_whatever_features_there_are(scenes, run):
    run(scenes)
    first = set(Data.load("out/vqa").part("valid").columns.question.tolist())
    run(scenes, save_data="out/other", split_seed=2)
    assert set(Data.load("out/other").part("valid").columns.question.tolist()) != first
    lines = Path("scenes/trainval.tsv").read_text().splitlines(keepends=True)
    Path("scenes/trainval.tsv").write_text("".join(lines[:-7]))
    code, _ = run(scenes, save_data="out/fewer")
    assert code == 0
    fewer = Data.load("out/fewer")
    assert set(fewer.part("valid").columns.question.tolist()) < first
    assert not set(fewer.part("test").columns.question.tolist()) & first


def test_a_stopped_run_goes_on_and_ends_the_same(scenes, run, monkeypatch):
    run(scenes, feature_type="float16")
    expected = contents()
    shutil.rmtree("out")
    monkeypatch.setattr(building, "JOURNAL_IMAGES", 10)
    add, seen = building._Build._add, []

    def counted(self, item, files):
        if len(seen) == 35:
            seen.append(item)
            raise KeyboardInterrupt
        seen.append(item)
        add(self, item, files)

    monkeypatch.setattr(building._Build, "_add", counted)
    code, said = run(scenes, feature_type="float16")
    assert code == 130
    assert not Path("out/vqa.json").exists()
    code, said = run(scenes, feature_type="float16")
    assert code == 0, said
    assert len(seen) == 36 + 81 - 30  # on from the last journal, not from the start
    assert contents() == expected


def test_a_finished_run_is_refused_and_replaced_with_overwrite(scenes, run):
    assert run(scenes)[0] == 0
    before, answers = contents(), Data.load("out/vqa").answers
    code, said = run(scenes, answer_min_frequency=8)
    assert code == 2
    assert "exists; use -overwrite to replace it, or change -save_data" in said
    assert contents() == before
    assert run(scenes, answer_min_frequency=8, overwrite=True)[0] == 0
    replaced = Data.load("out/vqa").answers
    assert replaced == answers[: len(replaced)] != answers


def test_what_is_half_replaced_is_not_taken_for_whole(scenes, run, monkeypatch):
    assert run(scenes)[0] == 0

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    code, said = run(scenes, overwrite=True)
    assert code == 2
    assert "cannot be written: No space left on device" in said
    assert not Path("out/vqa.json").exists()


def test_two_at_once_are_refused(scenes, run):
    with only_one("out/.vqa.lock", "busy"):
        code, said = run(scenes)
    assert code == 2
    assert "another vqa_preprocess writes there now" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_questions": "absent.json"}, "absent.json: no such file"),
        ({"valid_annotations": "scenes"}, "scenes: not a file"),
        (
            {"train_questions": f"scenes/{NAMES['train_annotations']}"},
            "it has 'annotations': are two files swapped?",
        ),
        ({"valid_annotations": f"scenes/{NAMES['train_annotations']}"}, "no question has an annotation"),
        ({"image_features": "absent.tsv"}, "absent.tsv: cannot be read: No such file"),
        ({"image_features": "scenes/gold.json"}, "scenes/gold.json: neither extension nor content"),
        ({"image_features": "scenes"}, "scenes"),
        (
            {"answer_min_frequency": 1000},
            "-answer_min_frequency 1000: no majority answer of the 240 training",
        ),
        ({"answer_min_frequency": 0}, "-answer_min_frequency 0 must be at least 1"),
        ({"word_min_frequency": -1}, "-word_min_frequency -1 must be at least 1"),
        ({"question_length": 0}, "-question_length 0 must be at least 1"),
        ({"split_seed": -1}, "-split_seed -1 must be at least 0"),
        ({"split_seed": "x"}, "invalid int value"),
        ({"feature_type": "int8"}, "invalid choice: 'int8'"),
        ({"save_data": "out/"}, "-save_data out/ is a directory; give a prefix, such as out/vqa"),
        ({"save_data": "scenes/gold.json/vqa"}, "cannot be written: Not a directory"),
        ({"images": "x"}, "unknown option -images"),
    ],
)
def test_mistakes_are_told_in_one_line_and_leave_nothing(scenes, run, changes, said):
    code, told = run(scenes, **changes)
    assert code == 2
    *before, line = told.splitlines()
    assert said in line
    assert all(other.startswith("reading ") for other in before)
    assert output() == []


def test_features_of_other_images_are_told(scenes, run):
    lines = Path("scenes/trainval.tsv").read_text().splitlines(keepends=True)
    Path("scenes/none.tsv").write_text("".join(f"7{line}" for line in lines[:3]))
    Path("scenes/train.tsv").write_text("".join(lines[:60]))
    code, said = run(scenes, image_features="scenes/none.tsv")
    assert code == 2
    assert "scenes/none.tsv: none of the 81 images of the questions" in said
    code, said = run(scenes, image_features="scenes/train.tsv")
    assert code == 2
    assert f"-image_features has none of the 21 images of scenes/{NAMES['valid_questions']}" in said
    assert "60 images with" in said, "what became of those in the file"
    assert not Path("out/vqa.json").exists()
    Path("scenes/valid.tsv").write_text("".join(lines[60:]))
    code, said = run(scenes, image_features="scenes/train.tsv scenes/valid.tsv")
    assert code == 0, said
    assert "left out: none" in said


def test_an_input_is_never_written_over(scenes, run):
    shutil.copy(scenes["train_questions"], "vqa.json")
    code, said = run(scenes, save_data="vqa", train_questions="vqa.json", overwrite=True)
    assert code == 2
    assert "vqa.json is an input and would be overwritten" in said
    assert Path("vqa.json").read_bytes() == Path(scenes["train_questions"]).read_bytes()


def test_a_file_in_place_of_the_features_is_told(scenes, run):
    Path("vqa.features").write_text("mine")
    code, said = run(scenes, save_data="vqa", overwrite=True)
    assert code == 2
    assert "vqa.features exists and is not a directory" in said
    assert Path("vqa.features").read_text() == "mine"


def test_questions_in_both_parts_are_warned_of(scenes, run):
    train = {f"valid_{kind}": scenes[f"train_{kind}"] for kind in ("questions", "annotations")}
    code, said = run(scenes, **train)
    assert code == 0
    assert re.search(r"warning: \d+ questions are in both", said)

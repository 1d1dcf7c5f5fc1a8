"""Toy scenes: formats as the public ones, questions with the answers that a look at the scene gives."""

import base64
import itertools
import json
import os
import re
from collections import Counter

import numpy as np
import pytest

from onmt_varattn.bin.vqa import make_scenes
from onmt_varattn.errors import UserError
from onmt_varattn.vqa.scenes import SceneSettings, files, write_scenes
from onmt_varattn.vqa.scenes.pictures import outline
from onmt_varattn.vqa.scenes.questions import KNOWLEDGE, MAX_QUESTIONS, MISTAKEN, NUMBER_WORDS, annotate, ask
from onmt_varattn.vqa.scenes.scene import (
    ATTRIBUTES,
    COLOURS,
    SHAPES,
    Box,
    Scene,
    Thing,
    attributes,
    draw_scene,
    features,
    overlap,
    vectors,
)

PARTS = ("train2014", "val2014")
NAMES = {
    *(f"v2_OpenEnded_mscoco_{part}_questions.json" for part in PARTS),
    *(f"v2_mscoco_{part}_annotations.json" for part in PARTS),
    "trainval.tsv",
    "gold.json",
}
SMALL = SceneSettings(train_images=300, valid_images=80, feature_size=48, draw_images=1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("scenes")
    write_scenes(SMALL, str(directory))
    assert set(os.listdir(directory)) == {*NAMES, "images"}
    return directory


@pytest.fixture(scope="module")
def read(directory):
    """The JSON files, by their names."""
    return {
        name: json.loads((directory / name).read_text("utf-8")) for name in NAMES if name.endswith("json")
    }


@pytest.fixture(scope="module")
def scenes():
    return [draw_scene(image, seed=1, fewest=10, most=16) for image in range(1, 601)]


@pytest.fixture(scope="module")
def asked(scenes):
    """Questions with their scenes."""
    return [(scene, question) for scene in scenes for question in ask(scene, 8, seed=1)]


def plain(answer):
    """An answer without the punctuation that annotators add."""
    return answer.removesuffix(".").replace(", ", " ").replace("-", " ")


def test_question_files_have_the_official_keys_and_numbers(read):
    for part, first, images in (("train2014", 1, 300), ("val2014", 1_000_001, 80)):
        content = read[f"v2_OpenEnded_mscoco_{part}_questions.json"]
        assert set(content) == {"info", "task_type", "data_type", "license", "data_subtype", "questions"}
        check_about(content, part)
        assert content["task_type"] == "Open-Ended"
        expected = [(i, i * 1000 + k) for i in range(first, first + images) for k in range(4)]
        assert [(entry["image_id"], entry["question_id"]) for entry in content["questions"]] == expected
        for entry in content["questions"]:
            assert set(entry) == {"image_id", "question", "question_id"}
            assert re.fullmatch(r"[a-z ]+\?", entry["question"])


def check_about(content, part):
    assert set(content["info"]) == {
        "description", "url", "version", "year", "contributor", "date_created",
    }  # fmt: skip
    assert set(content["license"]) == {"url", "name"}
    assert (content["data_type"], content["data_subtype"]) == ("mscoco", part)


def test_annotation_files_have_the_official_keys_and_ten_answers(read):
    seen = set()
    for part in PARTS:
        content = read[f"v2_mscoco_{part}_annotations.json"]
        assert set(content) == {"info", "license", "data_type", "data_subtype", "annotations"}
        check_about(content, part)
        questions = read[f"v2_OpenEnded_mscoco_{part}_questions.json"]["questions"]
        for entry, question in zip(content["annotations"], questions, strict=True):
            assert set(entry) == {
                "question_type", "multiple_choice_answer", "answers", "image_id", "answer_type", "question_id",
            }  # fmt: skip
            assert all(entry[key] == question[key] for key in ("image_id", "question_id"))
            assert question["question"].startswith(entry["question_type"] + " ")
            assert [set(answer) for answer in entry["answers"]] == 10 * [
                {"answer", "answer_confidence", "answer_id"}
            ]
            assert [answer["answer_id"] for answer in entry["answers"]] == list(range(1, 11))
            assert {answer["answer_confidence"] for answer in entry["answers"]} <= {"yes", "maybe", "no"}
            given = [answer["answer"] for answer in entry["answers"]]
            most = max(given.count(answer) for answer in given)
            first = next(answer for answer in given if given.count(answer) == most)
            assert entry["multiple_choice_answer"] == first
            seen.add(entry["answer_type"])
    assert seen == {"yes/no", "number", "other"}


def test_answer_types_are_those_of_the_right_answers(read):
    gold = read["gold.json"]
    for entry in read["v2_mscoco_train2014_annotations.json"]["annotations"]:
        for answer in gold[str(entry["question_id"])]["boxes"]:
            expected = {"yes": "yes/no", "no": "yes/no"}.get(
                answer, "number" if answer.isdigit() else "other"
            )
            assert entry["answer_type"] == expected


def test_the_feature_file_is_that_of_bottom_up_attention(directory):
    lines = (directory / "trainval.tsv").read_bytes().split(b"\r\n")
    assert lines.pop() == b""
    images = [*range(1, 301), *range(1_000_001, 1_000_081)]
    for image, line in zip(images, lines, strict=True):
        number, width, height, count, boxes, vectors = line.split(b"\t")
        assert (int(number), int(width), int(height)) == (image, 640, 480)
        assert 10 <= int(count) <= 16
        scene = draw_scene(image, 1, 10, 16)
        corners = np.frombuffer(base64.b64decode(boxes, validate=True), "<f4").reshape(int(count), 4)
        assert corners.tolist() == [list(box.corners) for box in scene.boxes]
        stored = np.frombuffer(base64.b64decode(vectors, validate=True), "<f4").reshape(int(count), 48)
        np.testing.assert_array_equal(stored, features(scene, 1, 48, SMALL.feature_noise))
        assert stored.min() == 0


def test_gold_names_the_boxes_of_the_right_answers(read):
    gold = read["gold.json"]
    for part in PARTS:
        for entry in read[f"v2_OpenEnded_mscoco_{part}_questions.json"]["questions"]:
            found = gold[str(entry["question_id"])]
            assert set(found) == {"kind", "boxes"}
            scene = draw_scene(entry["image_id"], 1, 10, 16)
            assert found["boxes"] == look(scene, entry["question"])
            expected = {"none": [None], "one": [int], "either": [int, int]}[found["kind"]]
            assert [box if box is None else type(box) for box in found["boxes"].values()] == expected
    assert len(gold) == 4 * 380


def look(scene, text):
    """The answers to a question, each with its box, found by going through all boxes of the scene."""
    words = text.removesuffix("?").split()
    common = {f"{start} {rest}": answer for start, rest, answer in KNOWLEDGE}
    if " ".join(words) in common:
        return {common[" ".join(words)]: None}
    asked = words[:-1] if words[0] == "is" else words
    fitting = [i for i, box in enumerate(scene.boxes) if box.thing and fits(box, asked)]
    things = {i: scene.boxes[i].thing for i in fitting}
    assert len(fitting) == (2 if "one of the two" in text else 1)
    if words[0] == "is":
        return {("yes" if thing.colour == words[-1] else "no"): i for i, thing in things.items()}
    if words[1] in ("color", "shape"):
        return {getattr(thing, words[1].replace("or", "our")): i for i, thing in things.items()}
    return {f"{thing.colour} {thing.shape}": i for i, thing in things.items()}


def fits(box, words):
    """Whether a box is what the words of a question say, by its pixels and its thing."""
    x, y = (box.corners[0] + box.corners[2]) / 2, (box.corners[1] + box.corners[3]) / 2
    large = box.corners[2] - box.corners[0] > 90
    true = {*box.thing[:2], "large" if large else "small"}
    true.add("left" if x < 640 / 3 else "right" if x > 2 * 640 / 3 else "center")
    true.add("top" if y < 160 else "bottom" if y > 320 else "middle")
    describing = {*COLOURS, *SHAPES, "large", "small", "left", "center", "right", "top", "middle", "bottom"}
    return {word for word in words if word in describing} <= true


def test_a_look_at_the_scene_gives_every_right_answer(asked):
    assert all(look(scene, question.text) == question.boxes for scene, question in asked)


def test_either_of_two_differ_in_colour_and_shape(asked):
    found = 0
    for scene, question in asked:
        if question.kind == "either":
            first, second = (scene.boxes[i].thing for i in question.boxes.values())
            assert first.colour != second.colour
            assert first.shape != second.shape
            found += 1
    assert found > 300


def test_questions_of_an_image_differ_and_no_image_runs_out_of_them(scenes):
    for scene in scenes[:20]:
        texts = [question.text for question in ask(scene, MAX_QUESTIONS, seed=1)]
        assert len(set(texts)) == MAX_QUESTIONS


def test_a_third_of_the_questions_hesitate_and_yes_is_as_frequent_as_no(read):
    kinds = Counter(entry["kind"] for entry in read["gold.json"].values())
    assert kinds["either"] > sum(kinds.values()) / 3
    assert kinds["one"] > sum(kinds.values()) / 3
    assert kinds["none"] > sum(kinds.values()) / 10
    answers = Counter(answer for entry in read["gold.json"].values() for answer in entry["boxes"])
    count = answers["yes"] + answers["no"]
    assert abs(answers["yes"] / count - 0.5) < 4 * 0.5 / count**0.5


def test_mistakes_are_never_right_and_there_is_always_one(asked):
    for _, question in asked:
        assert question.mistakes
        assert not set(question.mistakes) & set(question.boxes)


def test_annotators_err_as_often_as_is_said(asked):
    wrong = count = 0
    for number, (_, question) in enumerate(asked):
        for answer in annotate(question, number, seed=1):
            said = plain(answer.text).removeprefix("a ")
            said = str(NUMBER_WORDS.index(said)) if said in NUMBER_WORDS else said
            assert said in question.boxes or said in question.mistakes
            wrong += said not in question.boxes
            count += 1
    assert count > 40_000
    assert abs(wrong / count - MISTAKEN) < 4 * (MISTAKEN * (1 - MISTAKEN) / count) ** 0.5


def test_some_annotators_punctuate_and_few_use_articles_or_number_words(asked):
    texts = [
        answer.text for number, (_, question) in enumerate(asked) for answer in annotate(question, number, 1)
    ]
    punctuated = sum(plain(text) != text for text in texts) / len(texts)
    worded = sum(text.startswith("a ") or text in NUMBER_WORDS for text in texts) / len(texts)
    assert 0.02 < punctuated < 0.05
    assert 0.002 < worded < 0.01
    assert any(re.fullmatch(r"[a-z]+-[a-z]+", text) for text in texts)
    assert any(re.fullmatch(r"[a-z]+, [a-z]+", text) for text in texts)


def test_the_annotators_split_about_evenly_over_two_answers(asked):
    shares = []
    for number, (_, question) in enumerate(asked):
        if question.kind == "either":
            first, second = question.boxes
            given = Counter(plain(answer.text).removeprefix("a ") for answer in annotate(question, number, 1))
            shares.append(given[first] / (given[first] + given[second]))
    # The share is uniform from 0.3 to 0.7, and nine or ten draws are made with it.
    deviation = (0.4**2 / 12 + 0.25 / 9.5) ** 0.5
    assert abs(np.mean(shares) - 0.5) < 4 * deviation / len(shares) ** 0.5
    assert np.std(shares) == pytest.approx(deviation, rel=0.1)


def test_nine_occurrences_cover_the_answers():
    default = SceneSettings()
    majorities, given = Counter(), Counter()
    for part, images in default.images.items():
        for image in images:
            scene = draw_scene(image, default.seed, *default.boxes)
            for k, question in enumerate(ask(scene, default.questions_per_image, default.seed)):
                answers = annotate(question, image * 1000 + k, default.seed)
                if part == "train2014":
                    majorities[plain(files.majority(answers))] += 1
                else:
                    given.update(plain(answer.text) for answer in answers)
    vocabulary = {answer for answer, count in majorities.items() if count >= 9}
    assert vocabulary >= {f"{colour} {shape}" for colour in COLOURS for shape in SHAPES}
    assert vocabulary >= {*COLOURS, *SHAPES, "yes", "no"}
    assert sum(given[answer] for answer in vocabulary) > 0.95 * given.total()


def test_things_have_different_names_plain_places_and_overlap_little(scenes):
    for scene in scenes:
        things = [box for box in scene.boxes if box.thing]
        assert 4 <= len(things) <= 7
        assert len({box.thing[:2] for box in things}) == len(things)
        for box in scene.boxes:
            x1, y1, x2, y2 = box.corners
            assert 0 <= x1 < x2 <= 640
            assert 0 <= y1 < y2 <= 480
        for box in things:
            x, y = (box.corners[0] + box.corners[2]) / 2, (box.corners[1] + box.corners[3]) / 2
            assert min(abs(x - line) for line in (640 / 3, 1280 / 3)) >= 11
            assert min(abs(y - line) for line in (160, 320)) >= 11
    shared = [
        overlap(first.corners, second.corners) / (60 * 60)
        for scene in scenes
        for first, second in itertools.combinations([box for box in scene.boxes if box.thing], 2)
    ]
    assert np.mean([share > 0 for share in shared]) < 0.01


def test_overlap_counts_pixels():
    first, second = (2, 3, 10, 9), (7, 1, 12, 6)
    pixels = [{(x, y) for x in range(x1, x2) for y in range(y1, y2)} for x1, y1, x2, y2 in (first, second)]
    assert overlap(first, second) == len(pixels[0] & pixels[1]) > 0
    assert overlap(first, (10, 3, 12, 9)) == overlap(first, (20, 20, 30, 30)) == 0


def test_things_are_as_often_in_the_first_box_as_in_the_last(scenes):
    """Boxes are in no order: the number of a box says nothing."""
    for position in (0, -1):
        expected = np.mean([len(scene.things) / len(scene.boxes) for scene in scenes])
        found = np.mean([scene.boxes[position].thing is not None for scene in scenes])
        assert abs(found - expected) < 4 * (0.25 / len(scenes)) ** 0.5


def test_a_mixture_of_two_boxes_loses_which_colour_belongs_to_which_shape():
    left, right = (0, 0, 60, 60), (300, 300, 360, 360)

    def mean(first, second):
        boxes = Box(left, Thing(*first, "small")), Box(right, Thing(*second, "small"))
        return features(Scene(1, boxes), seed=1, feature_size=128, noise=0).mean(0)

    bound, swapped = mean(("red", "star"), ("blue", "circle")), mean(("blue", "star"), ("red", "circle"))
    np.testing.assert_allclose(bound, swapped, rtol=1e-6)
    assert np.abs(bound - mean(("red", "star"), ("green", "circle"))).max() > 0.1


def test_features_without_noise_are_the_sum_of_their_attributes(scenes):
    scene = scenes[0]
    clean = features(scene, 1, 128, noise=0)
    for box, row in zip(scene.boxes, clean, strict=True):
        named = ["background"] if box.thing is None else ["thing", *box.thing]
        expected = sum(vectors(128)[ATTRIBUTES.index(name)] for name in [*named, box.row, box.column])
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)


def test_noise_has_the_standard_deviation_asked_for_and_ends_at_zero(scenes):
    clean, noisy = (
        np.concatenate([features(scene, 1, 128, noise) for scene in scenes[:100]]) for noise in (0, 0.5)
    )
    drawn = (noisy - clean)[clean > 3]  # six standard deviations from zero
    assert abs(drawn.mean()) < 4 * 0.5 / drawn.size**0.5
    assert abs(drawn.std() - 0.5) < 4 * 0.5 / (2 * drawn.size) ** 0.5
    at_zero = noisy[clean == 0]
    assert at_zero.min() == 0
    assert abs((at_zero == 0).mean() - 0.5) < 4 * 0.5 / at_zero.size**0.5


def test_the_nearest_clean_box_has_the_colour_and_shape_of_a_noisy_one(scenes):
    default = SceneSettings()
    places = [(x, y, x + 60, y + 60) for x in (60, 290, 500) for y in (50, 210, 370)]
    kinds = list(itertools.product(COLOURS, SHAPES, ("small", "large"), places))
    clean = np.stack([attributes(Box(kind[3], Thing(*kind[:3]))) for kind in kinds]) @ vectors(128)
    right = []
    for scene in scenes[:200]:
        noisy = features(scene, default.seed, default.feature_size, default.feature_noise)
        for i, _, thing in scene.things:
            nearest = kinds[np.square(clean - noisy[i]).sum(1).argmin()]
            right.append([nearest[0] == thing.colour, nearest[1] == thing.shape])
    assert len(right) > 1000
    assert np.mean(right, axis=0).min() > 0.97


@pytest.mark.parametrize("size", [32, 33, 48, 128, 2048])
def test_every_attribute_shows_in_some_features_and_in_others_than_the_rest(size):
    shown = vectors(size)
    assert shown.shape == (len(ATTRIBUTES), size)
    assert shown.min() == 0
    assert ((shown > 0).sum(1) >= size // 8).all()
    assert np.linalg.matrix_rank(shown) == len(ATTRIBUTES)


def contents(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.*")}


def test_the_same_options_write_the_same_bytes_over_an_earlier_run(tmp_path):
    settings = SceneSettings(train_images=5, valid_images=3, draw_images=2)
    write_scenes(settings, str(tmp_path / "1"))
    write_scenes(SceneSettings(train_images=5, valid_images=3, draw_images=2, seed=2), str(tmp_path / "2"))
    first = contents(tmp_path / "1")
    assert len(first) == 6 + 2 * 2
    assert all(content != first[name] for name, content in contents(tmp_path / "2").items())
    write_scenes(settings, str(tmp_path / "2"))
    assert contents(tmp_path / "2") == first


def test_scenes_do_not_depend_on_how_many_there_are(directory, read, tmp_path):
    write_scenes(SceneSettings(train_images=2, valid_images=3, feature_size=48), str(tmp_path))
    lines = (directory / "trainval.tsv").read_bytes().splitlines()
    assert (tmp_path / "trainval.tsv").read_bytes().splitlines() == lines[:2] + lines[300:303]
    for name, key in (
        ("OpenEnded_mscoco_val2014_questions", "questions"),
        ("mscoco_val2014_annotations", "annotations"),
    ):
        few = json.loads((tmp_path / f"v2_{name}.json").read_text("utf-8"))
        assert few[key] == read[f"v2_{name}.json"][key][: 3 * 4]


def test_pictures_show_each_thing_in_its_box(directory):
    from matplotlib.image import imread

    names = ["COCO_train2014_000000000001.png", "COCO_val2014_000001000001.png"]
    assert sorted(os.listdir(directory / "images")) == names
    for name in names:
        picture = imread(directory / "images" / name)[..., :3]  # H x W x 3
        assert picture.shape == (480, 640, 3)
        scene = draw_scene(int(name[-16:-4]), 1, 10, 16)
        for _, box, thing in scene.things:
            x, y = (box.corners[0] + box.corners[2]) // 2, (box.corners[1] + box.corners[3]) // 2
            assert nearest_paint(picture[y, x]) == thing.colour
        covered = np.zeros((480, 640), bool)
        for _, box, _ in scene.things:
            x1, y1, x2, y2 = box.corners
            covered[max(y1 - 2, 0) : y2 + 8, max(x1 - 2, 0) : x2 + 8] = True  # with edge and shadow
        assert picture[~covered].min() > 0.8  # background


def nearest_paint(pixel):
    paint = {
        "red": (0.84, 0.15, 0.24), "green": (0.18, 0.62, 0.31), "blue": (0.18, 0.44, 0.87),
        "yellow": (0.96, 0.82, 0.24), "orange": (0.95, 0.52, 0.13), "purple": (0.49, 0.25, 0.7),
        "pink": (0.96, 0.56, 0.74), "black": (0.15, 0.15, 0.17),
    }  # fmt: skip
    return min(paint, key=lambda colour: np.square(np.subtract(paint[colour], pixel)).sum())


@pytest.mark.parametrize("shape", SHAPES)
def test_outlines_fill_their_square(shape):
    points = np.array(outline(shape))
    np.testing.assert_allclose(points.min(0), [-1, -1], atol=1e-2)
    np.testing.assert_allclose(points.max(0), [1, 1], atol=1e-2)


def test_outlines_have_the_area_of_their_shape():
    def area(shape):
        x, y = np.array(outline(shape)).T
        return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2

    assert area("square") == 4
    assert area("triangle") == 2
    assert area("circle") == pytest.approx(np.pi, rel=1e-2)
    assert area("cross") == pytest.approx(4 * (0.35 * 2 - 0.35**2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_images": 0}, "-train_images 0 must be between 1 and 999999"),
        ({"valid_images": -1}, "-valid_images -1 must be between 1 and 999999"),
        ({"train_images": 1_000_000}, "-train_images 1000000"),
        ({"questions_per_image": 0}, "-questions_per_image 0 must be between 1 and 25"),
        ({"questions_per_image": 26}, "-questions_per_image 26"),
        ({"feature_size": 31}, "-feature_size 31 must be between 32 and"),
        ({"feature_noise": -0.1}, "-feature_noise -0.1 must be between 0 and 100"),
        ({"boxes": (6, 12)}, "-boxes 6 12: expected two numbers from 7"),
        ({"boxes": (12, 11)}, "-boxes 12 11"),
        ({"boxes": (12, 101)}, "-boxes 12 101"),
        ({"draw_images": -1}, "-draw_images -1"),
        ({"seed": -1}, "-seed -1"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        SceneSettings(**options)


def test_the_bounds_themselves_are_taken(tmp_path):
    settings = SceneSettings(
        1, 1, MAX_QUESTIONS, feature_size=32, feature_noise=0, boxes=(7, 7), draw_images=5, seed=0
    )
    corpus = write_scenes(settings, str(tmp_path))
    assert [len(questions) for questions in corpus.questions.values()] == [25, 25]
    assert len(os.listdir(tmp_path / "images")) == 2


def test_pictures_of_an_earlier_run_are_not_left_beside_other_scenes(tmp_path):
    write_scenes(SceneSettings(train_images=3, valid_images=2, draw_images=2), str(tmp_path))
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"images/ has pictures .* COCO_train2014_000000000002\.png"):
        write_scenes(SceneSettings(train_images=3, valid_images=2, draw_images=1, seed=2), str(tmp_path))
    assert contents(tmp_path) == before


def test_an_output_that_cannot_be_a_directory_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "draw_scene", lambda *_: pytest.fail("work began"))
    (tmp_path / "file").write_text("mine", "utf-8")
    with pytest.raises(UserError, match="file"):
        write_scenes(SceneSettings(), str(tmp_path / "file"))
    assert (tmp_path / "file").read_text("utf-8") == "mine"


@pytest.mark.parametrize("failing", ["os.fsync", "_row", "majority"])
def test_a_failure_leaves_the_files_of_an_earlier_run(tmp_path, monkeypatch, failing):
    write_scenes(SceneSettings(train_images=2, valid_images=1), str(tmp_path))
    before = contents(tmp_path)
    module, name = (os, "fsync") if failing == "os.fsync" else (files, failing)
    monkeypatch.setattr(module, name, full)
    with pytest.raises(UserError, match=r"-output .* No space left"):
        write_scenes(SceneSettings(train_images=2, valid_images=1, seed=2), str(tmp_path))
    assert contents(tmp_path) == before
    assert len(before) == 6


def full(*_):
    raise OSError(28, "No space left on device")


def test_the_command_hands_its_options_on_and_prints_a_summary(tmp_path, capsys):
    options = "-train_images 6 -valid_images 2 -questions_per_image 3 -feature_size 40 -feature_noise 0.1"
    make_scenes.main(
        [*f"-output {tmp_path / 'command'} {options} -boxes 9 11 -seed 5 -draw_images 1".split()]
    )
    settings = SceneSettings(
        6, 2, 3, feature_size=40, feature_noise=0.1, boxes=(9, 11), seed=5, draw_images=1
    )
    corpus = write_scenes(settings, str(tmp_path / "function"))
    assert contents(tmp_path / "command") == contents(tmp_path / "function")
    printed = capsys.readouterr().out
    assert "6 train, 2 valid" in printed
    assert "questions: 24;" in printed
    assert corpus.questions["train2014"][0]["question"] in printed


@pytest.mark.parametrize(
    "options", [["-boxes", "9"], ["-seed", "-1"], ["-trian_images", "3"], ["-feature_noise", "nan"]]
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, capsys, options):
    from onmt_varattn.utils.cli import run

    with pytest.raises(SystemExit) as stopped:
        run(lambda: make_scenes.main(["-output", str(tmp_path / "scenes"), *options]))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert options[0] in error
    assert error.count("\n") == 1
    assert not (tmp_path / "scenes").exists()

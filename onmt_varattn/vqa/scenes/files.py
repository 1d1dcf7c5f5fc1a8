"""Files of scenes: the JSON of VQA 2.0, the TSV of bottom-up attention, gold boxes, and pictures.

Image k of a part, its questions and their answers are functions of the seed and k: a larger corpus contains
the smaller one, and held-out scenes do not depend on the number of training scenes.
"""

import base64
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from onmt_varattn.errors import UserError
from onmt_varattn.utils.files import atomic_write, atomic_write_all, check_writable
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.settings import Settings, check, setting
from onmt_varattn.vqa.scenes.pictures import draw_picture
from onmt_varattn.vqa.scenes.questions import (
    MAX_QUESTIONS,
    Answer,
    Question,
    annotate,
    answer_type,
    ask,
    majority,
)
from onmt_varattn.vqa.scenes.scene import (
    HEIGHT,
    MAX_THINGS,
    MIN_FEATURES,
    WIDTH,
    Scene,
    draw_scene,
    features,
)

FEATURES, GOLD, PICTURES = "trainval.tsv", "gold.json", "images"
FIRST_IMAGE = {"train2014": 1, "val2014": 1_000_001}
MAX_IMAGES = 999_999  # per part, so that ids are unique
QUESTION_IDS = 1000  # per image: question k of image i is i * 1000 + k, as in VQA 2.0
ABOUT = {
    "info": {
        "description": "Toy scenes of coloured shapes in the format of VQA 2.0, made by onmt_varattn.",
        "url": "",
        "version": "1.0",
        "year": 2026,
        "contributor": "The onmt_varattn authors",
        "date_created": "2026-01-01 00:00:00",
    },
    "license": {"url": "https://opensource.org/license/mit", "name": "MIT License"},
    "data_type": "mscoco",
}


@dataclass
class SceneSettings(Settings):
    """Size and properties of the data.

    Raises:
        UserError: a value is out of range; the message names the option.
    """

    train_images: int = setting(3000, help="Number of training images.", at_least=1, at_most=MAX_IMAGES)
    valid_images: int = setting(
        800, help="Number of validation and test images.", at_least=1, at_most=MAX_IMAGES
    )
    questions_per_image: int = setting(
        4, help="Number of different questions per image.", at_least=1, at_most=MAX_QUESTIONS
    )
    feature_size: int = setting(128, help="Feature size of a box.", at_least=MIN_FEATURES, at_most=65_536)
    feature_noise: float = setting(
        0.5, help="Standard deviation of the noise on each feature.", at_least=0, at_most=100
    )
    boxes: list[int] = setting([10, 16], help="Smallest and largest number of boxes per image.", nargs=2)
    draw_images: int = setting(
        0,
        help="Number of images per part that are also drawn as PNG files.",
        at_least=0,
        at_most=MAX_IMAGES,
    )
    seed: int = setting(1, help="Random seed.", at_least=0, below=2**63)

    def __post_init__(self) -> None:
        check(self)
        fewest, most = self.boxes
        if not MAX_THINGS <= fewest <= most <= 100:
            raise UserError(
                f"-boxes {fewest} {most}: expected two numbers from {MAX_THINGS} (the largest number of "
                "objects in a scene) to 100, the smaller first"
            )

    @property
    def images(self) -> dict[str, range]:
        """Image ids of each part."""
        sizes = {"train2014": self.train_images, "val2014": self.valid_images}
        return {part: range(FIRST_IMAGE[part], FIRST_IMAGE[part] + size) for part, size in sizes.items()}

    @property
    def pictures(self) -> dict[int, str]:
        """File names of the pictures to draw, by image id."""
        drawn = {part: images[: self.draw_images] for part, images in self.images.items()}
        return {image: f"COCO_{part}_{image:012}.png" for part, images in drawn.items() for image in images}


@dataclass
class Corpus:
    """The entries of all JSON files."""

    questions: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {p: [] for p in FIRST_IMAGE})
    annotations: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {p: [] for p in FIRST_IMAGE})
    gold: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, part: str, scene: Scene, settings: SceneSettings) -> None:
        """Add questions about a scene, and their answers."""
        for k, question in enumerate(ask(scene, settings.questions_per_image, settings.seed)):
            number = scene.image * QUESTION_IDS + k
            answers = annotate(question, number, settings.seed)
            entry = {"image_id": scene.image, "question": question.text, "question_id": number}
            self.questions[part].append(entry)
            self.annotations[part].append(_annotation(scene, number, question, answers))
            self.gold[number] = {"kind": question.kind, "boxes": question.boxes}

    def contents(self) -> dict[str, Any]:
        """Contents of the JSON files by name, to which `add` adds entries."""
        files: dict[str, Any] = {}
        for part, questions in self.questions.items():
            task = {"task_type": "Open-Ended", "data_subtype": part}
            files[f"v2_OpenEnded_mscoco_{part}_questions.json"] = {**ABOUT, **task, "questions": questions}
            annotations = {"data_subtype": part, "annotations": self.annotations[part]}
            files[f"v2_mscoco_{part}_annotations.json"] = {**ABOUT, **annotations}
        return {**files, GOLD: self.gold}


def write_scenes(settings: SceneSettings, directory: str) -> Corpus:
    """Draw scenes and write their files; no file is replaced before all are written.

    Raises:
        UserError: the directory cannot be written, or contains pictures of other scenes.
    """
    check_writable(os.path.join(directory, GOLD))
    _check_pictures(settings, directory)
    corpus = Corpus()
    writers: dict[str, Callable[[IO[bytes]], None]] = {FEATURES: partial(_draw, settings, directory, corpus)}
    writers |= {name: partial(_write_json, content) for name, content in corpus.contents().items()}
    try:
        atomic_write_all({os.path.join(directory, name): write for name, write in writers.items()})
    except OSError as error:
        raise UserError(f"-output {directory}: cannot be written: {error.strerror}") from None
    return corpus


def _draw(settings: SceneSettings, directory: str, corpus: Corpus, file: IO[bytes]) -> None:
    """Draw all scenes, add them to the corpus, and write their features to a file."""
    every = [(part, image) for part, images in settings.images.items() for image in images]
    pictures = settings.pictures
    for part, image in progress(every, desc="drawing scenes", unit="images"):
        scene = draw_scene(image, settings.seed, *settings.boxes)
        file.write(_row(scene, settings))
        corpus.add(part, scene, settings)
        if image in pictures:
            with atomic_write(os.path.join(directory, PICTURES, pictures[image]), "wb") as picture:
                draw_picture(scene, picture)


def _write_json(content: Any, file: IO[bytes]) -> None:
    file.write(json.dumps(content).encode())


def summary(settings: SceneSettings, corpus: Corpus) -> str:
    """A summary of the data in a few lines."""
    questions = [entry for part in corpus.questions.values() for entry in part]
    annotations = [entry for part in corpus.annotations.values() for entry in part]
    kinds = Counter(entry["kind"] for entry in corpus.gold.values())
    shares = ", ".join(f"{kinds[kind] / len(questions):.0%} {kind}" for kind in sorted(kinds))
    lines = [
        f"images: {settings.train_images} train, {settings.valid_images} valid",
        f"questions: {len(questions)}; boxes they need: {shares}",
        f"answers: {len({entry['multiple_choice_answer'] for entry in annotations})} different",
    ]
    for question, annotation in zip(questions[:3], annotations, strict=False):
        given = Counter(answer["answer"] for answer in annotation["answers"]).most_common()
        lines.append(f"  {question['question']} " + ", ".join(f"{answer} ({n})" for answer, n in given))
    return "\n".join(lines)


def _annotation(scene: Scene, number: int, question: Question, answers: Sequence[Answer]) -> dict[str, Any]:
    """An entry of an annotation file."""
    entries = [
        {"answer": answer.text, "answer_confidence": answer.confidence, "answer_id": k}
        for k, answer in enumerate(answers, 1)
    ]
    return {
        "question_type": question.start,
        "multiple_choice_answer": majority(answers),
        "answers": entries,
        "image_id": scene.image,
        "answer_type": answer_type(next(iter(question.boxes))),
        "question_id": number,
    }


def _row(scene: Scene, settings: SceneSettings) -> bytes:
    """A line of the feature file, with the line end of the csv module, which wrote the public files."""
    boxes = np.array([box.corners for box in scene.boxes], "<f4")  # S x 4
    seen = features(scene, settings.seed, settings.feature_size, settings.feature_noise).astype("<f4")
    numbers = "\t".join(map(str, (scene.image, WIDTH, HEIGHT, len(scene.boxes))))
    return (
        b"\t".join([numbers.encode(), *(base64.b64encode(array.tobytes()) for array in (boxes, seen))])
        + b"\r\n"
    )


def _check_pictures(settings: SceneSettings, directory: str) -> None:
    """Refuse a directory with pictures of an earlier run that would not be replaced."""
    there = {path.name for path in Path(directory, PICTURES).glob("COCO_*.png")}
    if others := there - set(settings.pictures.values()):
        raise UserError(
            f"-output {directory}: {PICTURES}/ has pictures of an earlier run that would stay, such as "
            f"{min(others)}; remove them, or choose another directory"
        )

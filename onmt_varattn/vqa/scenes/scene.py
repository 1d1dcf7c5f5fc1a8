"""A scene: coloured shapes on a canvas, boxes around them and around background, and features of the boxes.

Features are what a detector might return for a box: the sum of one vector per attribute, and noise. There
is no vector for a combination such as "red star", so the mean of two boxes preserves which colours and
shapes there are, and loses which of them belong together.
"""

import itertools
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT = 640, 480  # canvas size in pixels
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "black")
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")
RADII = {"small": 30, "large": 60}  # half the side of an object's box
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "center", "right")
MIN_THINGS, MAX_THINGS = 4, 7  # objects per scene
MARGIN = 12  # pixels between an object's centre and the next row or column, to avoid ambiguity
TRIES = 20  # candidate locations per object
ATTRIBUTES = ("thing", "background", *COLOURS, *SHAPES, *RADII, *ROWS, *COLUMNS)
DETECTOR = 1706  # random seed of the attribute vectors, which depend on the feature size only
ACTIVE = 1 / 8  # fraction of non-zero values per attribute vector
MIN_FEATURES = 32  # feature size that distinguishes all attributes

Corners = tuple[int, int, int, int]  # x1, y1, x2, y2, in pixels


class Thing(NamedTuple):
    """An object of a scene."""

    colour: str
    shape: str
    size: str

    @property
    def name(self) -> str:
        """Its name in answers, unique in a scene."""
        return f"{self.colour} {self.shape}"


class Box(NamedTuple):
    """A region of the canvas, around an object or around background."""

    corners: Corners
    thing: Thing | None = None

    @property
    def row(self) -> str:
        """Vertical position of its centre."""
        return ROWS[(self.corners[1] + self.corners[3]) // 2 * len(ROWS) // HEIGHT]

    @property
    def column(self) -> str:
        """Horizontal position of its centre."""
        return COLUMNS[(self.corners[0] + self.corners[2]) // 2 * len(COLUMNS) // WIDTH]


class Scene(NamedTuple):
    """An image: its id, and its boxes in random order."""

    image: int
    boxes: tuple[Box, ...]

    @property
    def things(self) -> list[tuple[int, Box, Thing]]:
        """The boxes around objects: index, box, object."""
        return [(i, box, box.thing) for i, box in enumerate(self.boxes) if box.thing]


def draw_scene(image: int, seed: int, fewest: int, most: int) -> Scene:
    """Draw a scene of `fewest` to `most` boxes; it depends on these arguments only."""
    draw = random.Random(f"scene {image}, seed {seed}")
    names = draw.sample(list(itertools.product(COLOURS, SHAPES)), draw.randint(MIN_THINGS, MAX_THINGS))
    boxes: list[Box] = []
    for colour, shape in names:
        thing = Thing(colour, shape, draw.choice(list(RADII)))
        boxes.append(Box(_free_place(RADII[thing.size], boxes, draw), thing))
    boxes += [Box(_anywhere(draw)) for _ in range(draw.randint(fewest, most) - len(boxes))]
    draw.shuffle(boxes)
    return Scene(image, tuple(boxes))


def attributes(box: Box) -> np.ndarray:
    """1 for each attribute of a box, 0 for all others: A."""
    seen = {"background"} if box.thing is None else {"thing", *box.thing}
    seen |= {box.row, box.column}
    return np.array([attribute in seen for attribute in ATTRIBUTES], np.float32)


@lru_cache
def vectors(feature_size: int) -> np.ndarray:
    """One vector per attribute, non-negative and sparse like those of a detector: A x F."""
    draw = np.random.default_rng([DETECTOR, feature_size])
    drawn = np.abs(draw.standard_normal((len(ATTRIBUTES), feature_size), np.float32))
    return drawn * (drawn >= np.quantile(drawn, 1 - ACTIVE, axis=1, keepdims=True))


def features(scene: Scene, seed: int, feature_size: int, noise: float) -> np.ndarray:
    """Features of all boxes of a scene, rectified: S x F."""
    draw = np.random.default_rng([seed, scene.image])
    clean = np.stack([attributes(box) for box in scene.boxes]) @ vectors(feature_size)
    return np.maximum(clean + np.float32(noise) * draw.standard_normal(clean.shape, np.float32), 0)


def overlap(first: Corners, second: Corners) -> int:
    """Area of the intersection of two boxes, in pixels."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(width, 0) * max(height, 0)


def _free_place(radius: int, others: Sequence[Box], draw: random.Random) -> Corners:
    """A location without overlap or, after `TRIES` attempts, the one with the least overlap."""
    tried = []
    for _ in range(TRIES):
        place = _place(radius, draw)
        shared = sum(overlap(place, other.corners) for other in others)
        if not shared:
            return place
        tried.append((shared, place))
    return min(tried)[1]


def _place(radius: int, draw: random.Random) -> Corners:
    x = _centre(WIDTH, len(COLUMNS), radius, draw)
    y = _centre(HEIGHT, len(ROWS), radius, draw)
    return x - radius, y - radius, x + radius, y + radius


def _centre(length: int, parts: int, radius: int, draw: random.Random) -> int:
    """A coordinate well inside one of the equal parts of a side of the canvas."""
    part = draw.randrange(parts)
    low, high = length * part // parts + MARGIN, length * (part + 1) // parts - MARGIN
    return draw.randint(max(low, radius), min(high, length - radius))


def _anywhere(draw: random.Random) -> Corners:
    width, height = draw.randint(60, 300), draw.randint(60, 300)
    x, y = draw.randint(0, WIDTH - width), draw.randint(0, HEIGHT - height)
    return x, y, x + width, y + height

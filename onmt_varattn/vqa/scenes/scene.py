"""A scene: coloured shapes at places of a canvas, and boxes around them and around nothing."""

import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 640, 480  # of the canvas, in pixels
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "black")
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")
RADII = {"small": 30, "large": 60}  # half the side of a thing's box
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "center", "right")
FEWEST_THINGS, MOST_THINGS = 4, 7  # in a scene
MARGIN = 12  # pixels between a thing's centre and the next row or column, so that its place is plain
TRIES = 20  # places looked at for a thing

Corners = tuple[int, int, int, int]  # x1, y1, x2, y2, in pixels


class Thing(NamedTuple):
    """What there is to see in a box."""

    colour: str
    shape: str
    size: str

    @property
    def name(self) -> str:
        """What it is called in answers; no two things of a scene have the same name."""
        return f"{self.colour} {self.shape}"


class Box(NamedTuple):
    """A region of the canvas, around a thing or around nothing but background."""

    corners: Corners
    thing: Thing | None = None

    @property
    def row(self) -> str:
        """Where its centre is, from top to bottom."""
        return ROWS[(self.corners[1] + self.corners[3]) // 2 * len(ROWS) // HEIGHT]

    @property
    def column(self) -> str:
        """Where its centre is, from left to right."""
        return COLUMNS[(self.corners[0] + self.corners[2]) // 2 * len(COLUMNS) // WIDTH]


class Scene(NamedTuple):
    """An image: its number, and its boxes in no particular order."""

    image: int
    boxes: tuple[Box, ...]

    @property
    def things(self) -> list[tuple[int, Box, Thing]]:
        """The boxes that have a thing: index, box, thing."""
        return [(i, box, box.thing) for i, box in enumerate(self.boxes) if box.thing]


def draw_scene(image: int, seed: int, fewest: int, most: int) -> Scene:
    """Draw a scene of `fewest` to `most` boxes; it depends on nothing but these arguments."""
    draw = random.Random(f"scene {image}, seed {seed}")
    names = draw.sample(list(itertools.product(COLOURS, SHAPES)), draw.randint(FEWEST_THINGS, MOST_THINGS))
    boxes: list[Box] = []
    for colour, shape in names:
        thing = Thing(colour, shape, draw.choice(list(RADII)))
        boxes.append(Box(_free_place(RADII[thing.size], boxes, draw), thing))
    boxes += [Box(_anywhere(draw)) for _ in range(draw.randint(fewest, most) - len(boxes))]
    draw.shuffle(boxes)
    return Scene(image, tuple(boxes))


def overlap(first: Corners, second: Corners) -> int:
    """Pixels that two boxes share."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(width, 0) * max(height, 0)


def _free_place(radius: int, others: Sequence[Box], draw: random.Random) -> Corners:
    """A place where nothing is yet or, after many tries, the one with the least overlap."""
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
    """A coordinate well within one of the equal parts of a side of the canvas."""
    part = draw.randrange(parts)
    low, high = length * part // parts + MARGIN, length * (part + 1) // parts - MARGIN
    return draw.randint(max(low, radius), min(high, length - radius))


def _anywhere(draw: random.Random) -> Corners:
    width, height = draw.randint(60, 300), draw.randint(60, 300)
    x, y = draw.randint(0, WIDTH - width), draw.randint(0, HEIGHT - height)
    return x, y, x + width, y + height

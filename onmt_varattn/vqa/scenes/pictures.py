"""Pictures of scenes."""

import math
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from onmt_varattn.vqa.scenes.scene import HEIGHT, WIDTH, Corners, Scene, Thing

PAINT = {
    "red": "#d7263d",
    "green": "#2e9e4f",
    "blue": "#2f6fde",
    "yellow": "#f4d13d",
    "orange": "#f28522",
    "purple": "#7d3fb2",
    "pink": "#f590bd",
    "black": "#26262b",
}
EDGE, SHADOW = "#3a3a44", "#00000026"
SKY, FLOOR = (0.93, 0.95, 0.97), (0.82, 0.84, 0.88)  # colours of the background at top and bottom
DPI = 100

Outline = Sequence[tuple[float, float]]  # from -1 to 1, y upwards


def draw_picture(scene: Scene, file: IO[bytes]) -> None:
    """Write a scene as a PNG file of canvas size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((WIDTH / DPI, HEIGHT / DPI), DPI)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.axis("off")
    background = np.linspace(SKY, FLOOR, HEIGHT)[:, None].repeat(2, 1)  # H x 2 x 3
    axes.imshow(background, extent=(0, WIDTH, HEIGHT, 0), aspect="auto")
    for _, box, thing in scene.things:
        for patch in _patches(thing, box.corners):
            axes.add_patch(patch)
    # Without Matplotlib's version, so that files are reproducible.
    FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})


def _patches(thing: Thing, corners: Corners) -> list[Any]:
    """The patches of an object and of the shadow below it."""
    from matplotlib.patches import Polygon

    x, y, radius = (corners[0] + corners[2]) / 2, (corners[1] + corners[3]) / 2, (corners[2] - corners[0]) / 2
    points = np.array([(x + radius * across, y - radius * up) for across, up in outline(thing.shape)])
    shadow = Polygon(points + radius / 12, color=SHADOW, linewidth=0)
    return [shadow, Polygon(points, facecolor=PAINT[thing.colour], edgecolor=EDGE, joinstyle="round")]


def outline(shape: str) -> Outline:
    """The corners of a shape that fills the square from -1 to 1."""
    if shape == "circle":
        return _around([1] * 90)
    if shape == "star":
        return _fill(_around([1, 0.45] * 5))
    if shape == "heart":
        return _fill([_heart(2 * math.pi * i / 90) for i in range(90)])
    if shape == "cross":
        right_top = [(1, 0.35), (0.35, 0.35), (0.35, 1)]
        left_top = [(-across, up) for across, up in reversed(right_top)]
        return right_top + left_top + [(-across, -up) for across, up in right_top + left_top]
    return {"square": [(-1, -1), (-1, 1), (1, 1), (1, -1)], "triangle": [(-1, -1), (0, 1), (1, -1)]}[shape]


def _around(radii: Sequence[float]) -> Outline:
    """Points at these distances from the centre, clockwise from the top."""
    angles = [2 * math.pi * i / len(radii) for i in range(len(radii))]
    return [(r * math.sin(angle), r * math.cos(angle)) for r, angle in zip(radii, angles, strict=True)]


def _heart(t: float) -> tuple[float, float]:
    return math.sin(t) ** 3, 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)


def _fill(points: Outline) -> Outline:
    """The shape, scaled to the square from -1 to 1."""
    array = np.array(points)
    low, high = array.min(0), array.max(0)
    return [(x, y) for x, y in (2 * (array - low) / (high - low) - 1).tolist()]

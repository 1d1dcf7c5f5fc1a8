"""Pictures of attention over image regions: line width and opacity of a box show its probability."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from onmt_varattn.analysis.figures import INK, ending_of, save
from onmt_varattn.errors import UserError, reason
from onmt_varattn.vqa.features.regions import Regions

PRIOR, POSTERIOR, FRAME = "#d55e00", "#0072b2", "#b5bac2"  # colour-blind safe
COLUMNS, PANEL_WIDTH, FONT, GAP = 3, 3.4, 9.0, 0.12  # panels per row; inches; points; inches
LINE = 1.5 * FONT / 72  # inches
WIDEST = 4.5  # line width of a box with probability 1, in points
FAINTEST = 0.005  # minimum probability for more than the grey outline of a box
LABELLED, LEAST_LABELLED = 3, 0.05  # maximum number of labelled boxes per panel, minimum probability
KEY = (0.05, 0.25, 0.5, 1.0)


def draw_answers(
    path: str,
    question: str,
    regions: Regions,
    answers: Sequence[tuple[str, float]],
    panels: Mapping[str, np.ndarray],
    image: str | None = None,
) -> None:
    """Draw one panel per distribution over the boxes of an image.

    Args:
        path: path of the picture; its extension (.png, .svg, .pdf) determines the format.
        question: heading.
        regions: the S boxes of the image.
        answers: answers with their probabilities, printed below the question.
        panels: distributions by title, S probabilities each; the first is the prior.
        image: path of the image; without it the boxes are drawn in an empty frame.

    Raises:
        UserError: the image cannot be read, or the extension is unknown.
        FailedError: the picture cannot be written.
    """
    ending_of(path)
    save(_figure(question, regions, answers, panels, None if image is None else read_image(image)), path)


def read_image(path: str) -> np.ndarray:
    """An RGB image as height x width x 3 bytes.

    Raises:
        UserError: the file is not an image, or damaged.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: not a readable image: {reason(error)}") from None


def strength(probability: float) -> float:
    """Fraction of the full line width and opacity: the square root, so that small values are visible."""
    return math.sqrt(min(max(probability, 0.0), 1.0))


def _figure(
    question: str,
    regions: Regions,
    answers: Sequence[tuple[str, float]],
    panels: Mapping[str, np.ndarray],
    picture: np.ndarray | None,
) -> Any:
    """Text at the top, rows of panels, and the legend of line widths at the bottom."""
    from matplotlib.figure import Figure

    height, width = picture.shape[:2] if picture is not None else (regions.height, regions.width)
    rows = -(-len(panels) // COLUMNS)
    columns = -(-len(panels) // rows)
    panel = PANEL_WIDTH * min(max(height / max(width, 1), 0.25), 2.0)  # inches
    across = GAP + columns * (PANEL_WIDTH + GAP)
    summary = ", ".join(
        f"{answer} {100 * probability:.0f}%".replace(" ", "\N{NO-BREAK SPACE}")
        for answer, probability in answers
    )
    texts = [(line, "bold") for line in _wrapped(question, across)]
    texts += [(line, "normal") for line in _wrapped(summary, across)]
    total = len(texts) * LINE + rows * (panel + LINE) + 2 * GAP + LINE
    figure = Figure(figsize=(across, total))
    for number, (line, weight) in enumerate(texts):
        place = GAP / across, 1 - (GAP + (number + 0.8) * LINE) / total
        figure.text(*place, line, fontsize=FONT, weight=weight, color=INK, parse_math=False)
    for number, (title, distribution) in enumerate(panels.items()):
        row, column = divmod(number, columns)
        left = GAP + column * (PANEL_WIDTH + GAP)
        top = GAP + len(texts) * LINE + row * (panel + LINE) + LINE
        frame = left / across, 1 - (top + panel) / total, PANEL_WIDTH / across, panel / total
        colour = POSTERIOR if number else PRIOR
        _panel(figure.add_axes(frame), title, regions, distribution, colour, picture)
    _key(figure.add_axes((GAP / across, 0.2 * LINE / total, 1 - 2 * GAP / across, LINE / total)), across)
    return figure


def _panel(
    axes: Any,
    title: str,
    regions: Regions,
    distribution: np.ndarray,
    colour: str,
    picture: np.ndarray | None,
) -> None:
    """One distribution over the boxes, in pixels of the image; the most probable boxes are on top."""
    from matplotlib.patches import Rectangle

    if distribution.shape != (len(regions.boxes),):
        raise ValueError(f"{title}: {distribution.shape} probabilities of {len(regions.boxes)} boxes")
    height, width = picture.shape[:2] if picture is not None else (regions.height, regions.width)
    scale = np.array([width, height] * 2) / np.array([max(regions.width, 1), max(regions.height, 1)] * 2)
    if picture is not None:
        axes.imshow(picture, extent=(0, width, height, 0), aspect="auto", alpha=0.65)
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
    axes.spines[:].set(color=FRAME, linewidth=0.8)
    most = _characters(PANEL_WIDTH)
    title = title if len(title) <= most else f"{title[: most - 1]}…"
    axes.set_title(title, loc="left", fontsize=FONT, color=colour, pad=3, parse_math=False)
    order = np.argsort(distribution, kind="stable").tolist()
    for rank, s in enumerate(order):
        left, top, right, bottom = (regions.boxes[s] * scale).tolist()
        box = partial(Rectangle, (left, top), right - left, bottom - top, fill=False, joinstyle="miter")
        axes.add_patch(box(edgecolor=FRAME, linewidth=0.4, alpha=0.7))
        probability = float(distribution[s])
        if probability >= FAINTEST:
            strong = strength(probability)
            for edge, extra in (
                ("white", 2 * strong),
                (colour, 0.0),
            ):  # a white rim is visible on any picture
                axes.add_patch(box(edgecolor=edge, linewidth=WIDEST * strong + extra, alpha=strong))
        if rank >= len(order) - LABELLED and probability >= LEAST_LABELLED:
            _label(axes, probability, (left, top), colour)


def _label(axes: Any, probability: float, corner: tuple[float, float], colour: str) -> None:
    """The probability of a box, in its upper left corner and inside the panel."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    x = min(max(corner[0], left), right - 0.13 * (right - left))
    y = min(max(corner[1], top), bottom - 0.06 * (bottom - top))
    style = {"facecolor": "white", "edgecolor": colour, "linewidth": 0.6, "pad": 1.2}
    axes.text(
        x, y, f"{100 * probability:.0f}%", fontsize=FONT - 2, color=colour, ha="left", va="top", bbox=style
    )


def _key(axes: Any, across: float) -> None:
    """Legend: line widths by probability."""
    axes.set(xlim=(0, across), ylim=(0, 1))
    axes.axis("off")
    for number, probability in enumerate(KEY):
        left = 0.05 + 0.75 * number
        line = {"linewidth": WIDEST * strength(probability), "alpha": strength(probability), "color": INK}
        axes.plot([left, left + 0.25], [0.5, 0.5], solid_capstyle="butt", **line)
        axes.text(left + 0.3, 0.5, f"{100 * probability:.0f}%", fontsize=FONT - 2, color=INK, va="center")


def _wrapped(text: str, across: float) -> list[str]:
    """Lines of a text that fit into the figure."""
    return textwrap.wrap(text, _characters(across - 2 * GAP))


def _characters(inches: float) -> int:
    """Number of characters that fit: in bold, one is about 0.65 times as wide as the font size."""
    return int(inches * 72 / (0.65 * FONT))

"""Pictures of distributions over alignments, as in the paper's Figure 3.

A panel is a grid with one row per target word and one column per source word, and a last one for NULL if
a distribution has it. Of one distribution each cell
has a shade. Of two, the first (red) has the upper left half of the cell and the second (blue) the
lower right half: both can be read where both are, and without telling red from blue.
"""

import io
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onmt_varattn.analysis.attention import Attention
from onmt_varattn.analysis.fonts import families
from onmt_varattn.errors import UserError
from onmt_varattn.utils.files import write_result

RED, BLUE, INK, GRID = "#c0202b", "#1257a6", "#222222", "#d9dce1"
UPPER_LEFT = ((0, 0), (1, 0), (0, 1))  # corners in a cell: across, down
LOWER_RIGHT = ((1, 0), (1, 1), (0, 1))
WHOLE = ((0, 0), (1, 0), (1, 1), (0, 1))
FAINTEST = 0.004  # below half a shade of 256 nothing is drawn
LONGEST_LABEL = 28  # characters
SLANT = 45  # degrees, of source words
GAP, MARK, KEY_HEIGHT, BAR_HEIGHT = 0.12, 0.14, 0.62, 0.1  # inches
Frame = tuple[float, float, float, float]
"""Left, bottom, width and height."""

FORMATS = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None, "Producer": None},
}
"""Endings, with the metadata left out so that the same picture is the same file."""

RC = {"svg.fonttype": "none", "svg.hashsalt": "onmt_varattn", "pdf.fonttype": 42}  # text stays text


@dataclass(frozen=True)
class Panel:
    """One grid: a title, and one or two distributions by name. All panels have the same words."""

    title: str
    layers: Mapping[str, Attention]


@dataclass(frozen=True)
class Layout:
    """Sizes in inches."""

    rows: int
    columns: int
    font: float  # points
    label_width: float  # of the longest target word
    label_height: float  # of the longest source word, on its slant
    title_width: float
    keys_width: float  # of the widest panel's keys

    @classmethod
    def measured(cls, figure: Any, panels: Sequence[Panel]) -> "Layout":
        """Fit cells and font to the number of words, and margins to their measured widths."""
        words = widest(panels)
        rows, columns = len(words.target), len(words.columns)
        font = _between(max(rows, columns), most=11.0, least=8.0)
        target = max(_width(figure, word, font) for word in labels(words.target))
        source = max(_width(figure, word, font) for word in labels(words.columns))
        slanted = (source + font / 72) * math.sin(math.radians(SLANT))
        title = max(_width(figure, panel.title, font + 1) for panel in panels)
        keys = max(
            len(panel.layers) * max(_width(figure, name, font) + 3 * MARK for name in panel.layers)
            for panel in panels
        )
        return cls(rows, columns, font, target, slanted, title, max(keys, len(panels[0].layers) * 1.6))

    @property
    def cell(self) -> float:
        """The side of a cell."""
        return _between(max(self.rows, self.columns), most=0.4, least=0.25)

    @property
    def width(self) -> float:
        """Of a panel's grid; no narrower than the keys below it."""
        return max(self.cell * self.columns, self.keys_width)

    @property
    def height(self) -> float:
        """Of a panel's grid."""
        return self.cell * self.rows

    @property
    def overhang(self) -> float:
        """How far source words, or the title, lean out to the right."""
        return max(self.label_height, self.title_width - self.width) + GAP

    def size(self, panels: int) -> tuple[float, float]:
        """Size of the figure, with labels left of the first panel and right of the last."""
        sides = self.label_width + 2 * GAP
        width = sides + panels * (self.width + self.overhang) + (panels > 1) * max(0, sides - self.overhang)
        return width, 2 * GAP + self.title + self.label_height + GAP + self.height + KEY_HEIGHT

    @property
    def title(self) -> float:
        """Height of the title."""
        return 2 * self.font / 72

    def left(self, panel: int) -> float:
        """Left edge of the grid of a panel."""
        return self.label_width + 2 * GAP + panel * (self.width + self.overhang)


def plot(panels: Sequence[Panel], paths: Sequence[str]) -> str:
    """Draw panels side by side into files; the extension (.png, .svg, .pdf) determines the format.

    Returns:
        The characters that no installed font has, which are drawn as boxes.
    """
    for path in paths:
        ending_of(path)
    figure, missing = draw(panels)
    for path in paths:
        save(figure, path)
    return missing


def save(figure: Any, path: str) -> None:
    """Write a Matplotlib figure to a file; the extension (.png, .svg, .pdf) determines the format.

    Raises:
        FailedError: the file cannot be written; the message names where the picture is instead.
    """
    import matplotlib

    ending, picture = ending_of(path), io.BytesIO()
    with matplotlib.rc_context(RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(picture, dpi=150, format=ending[1:], metadata=FORMATS[ending])
    write_result(path, picture.getvalue())


def ending_of(path: str) -> str:
    """The extension of a picture's name, which determines its format.

    Raises:
        UserError: it is not one of `FORMATS`.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise UserError(f"{path}: the ending tells a picture's format; use {', '.join(FORMATS)}")
    return ending


def draw(panels: Sequence[Panel]) -> tuple[Any, str]:
    """The figure, and the characters that no installed font has."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    words = widest(panels)
    fonts, missing = families([*words.source, *words.target, *(panel.title for panel in panels)])
    with matplotlib.rc_context({"font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure()
        FigureCanvasAgg(figure)  # measures text
        layout = Layout.measured(figure, panels)
        width, height = layout.size(len(panels))
        figure.set_size_inches(width, height)
        for number, panel in enumerate(panels):
            frame = (layout.left(number), KEY_HEIGHT + GAP, layout.width, layout.height)
            axes = figure.add_axes(_fraction(frame, width, height))
            _grid(axes, panel, layout)
            _words(axes, words, layout, right=0 < number == len(panels) - 1, left=number == 0)
            _keys(figure, panel, layout, frame)
    return figure, missing


def widest(panels: Sequence[Panel]) -> Attention:
    """A distribution with all columns of the grids: one with NULL, if there is any."""
    return max((one for panel in panels for one in panel.layers.values()), key=lambda one: one.null)


def labels(words: Sequence[str]) -> list[str]:
    """Words as they are written at the grid: very long ones lose their middle."""
    half = LONGEST_LABEL // 2
    return [
        word if len(word) <= LONGEST_LABEL else f"{word[: half - 1]}…{word[len(word) - half :]}"
        for word in words
    ]


def styles(layers: Mapping[str, Attention]) -> list[tuple[str, Any]]:
    """Colour and part of the cell of each layer."""
    return [(RED, UPPER_LEFT), (BLUE, LOWER_RIGHT)] if len(layers) == 2 else [(BLUE, WHOLE)]


def _grid(axes: Any, panel: Panel, layout: Layout) -> None:
    """Cells, their lines and the title."""
    from matplotlib.collections import PolyCollection

    axes.set(xlim=(0, layout.columns), ylim=(layout.rows, 0))
    for (colour, corners), attention in zip(styles(panel.layers), panel.layers.values(), strict=True):
        shown = (attention.probs > FAINTEST).nonzero().tolist()
        cells = [[(i + across, j + down) for across, down in corners] for j, i in shown]
        shades = _ramp(colour)([float(attention.probs[j, i]) for j, i in shown])
        axes.add_collection(PolyCollection(cells, facecolors=shades, linewidths=0), autolim=False)
    lines = {"color": GRID, "linewidth": 0.8, "zorder": 2}
    axes.hlines(range(layout.rows + 1), 0, layout.columns, **lines)
    axes.vlines(range(layout.columns + 1), 0, layout.rows, **lines)
    axes.spines[:].set_visible(False)
    axes.set_title(
        panel.title,
        loc="left",
        fontsize=layout.font + 1,
        color=INK,
        pad=72 * (layout.label_height + GAP),
        parse_math=False,
    )


def _words(axes: Any, words: Attention, layout: Layout, left: bool, right: bool) -> None:
    """Source words above, on a slant; target words at the outer sides of the figure."""
    style = {"fontsize": layout.font, "color": INK, "parse_math": False}
    slanted = {"rotation": SLANT, "rotation_mode": "anchor", "ha": "left", "va": "center"}
    axes.xaxis.tick_top()
    axes.set_xticks([i + 0.5 for i in range(layout.columns)], labels(words.columns), **style, **slanted)
    if right:
        axes.yaxis.tick_right()
    shown = labels(words.target) if left or right else [""] * layout.rows
    axes.set_yticks([j + 0.5 for j in range(layout.rows)], shown, **style)
    axes.tick_params(length=0, pad=3)


def _keys(figure: Any, panel: Panel, layout: Layout, frame: Frame) -> None:
    """Below a panel: each layer's name, its part of a cell, and the shades of its probabilities."""
    from matplotlib.cm import ScalarMappable

    left, bottom, width, _ = frame
    total_width, total_height = figure.get_size_inches()
    share = width / len(panel.layers)
    for number, (name, (colour, corners)) in enumerate(zip(panel.layers, styles(panel.layers), strict=True)):
        start, below = left + number * share, bottom - 0.3
        symbol = figure.add_axes(_fraction((start, below, MARK, MARK), total_width, total_height))
        symbol.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
        symbol.fill(*zip(*corners, strict=True), color=colour, linewidth=0)
        symbol.spines[:].set(color=GRID, linewidth=0.8)
        symbol.text(
            1.5, 0.5, name, transform=symbol.transAxes, fontsize=layout.font, color=INK, va="center"
        ).set_parse_math(False)
        place = (start, below - 0.07 - BAR_HEIGHT, min(share - 3 * MARK, 2.5), BAR_HEIGHT)
        bar = figure.colorbar(
            ScalarMappable(cmap=_ramp(colour)),
            cax=figure.add_axes(_fraction(place, total_width, total_height)),
            orientation="horizontal",
            ticks=[0, 0.5, 1],
        )
        bar.ax.tick_params(labelsize=7, length=0, pad=2, labelcolor=INK)
        bar.outline.set(color=GRID, linewidth=0.8)


def _ramp(colour: str) -> Any:
    """White at 0 to the colour at 1."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(colour, ["white", colour])


def _between(words: int, most: float, least: float) -> float:
    """`most` up to 10 words, `least` from 40 on, in between by the number."""
    return most + (least - most) * min(max(words - 10, 0), 30) / 30


def _width(figure: Any, text: str, font: float) -> float:
    """Of a text in inches."""
    found = figure.text(0, 0, text, fontsize=font, parse_math=False)
    width = found.get_window_extent(figure.canvas.get_renderer()).width / figure.dpi
    found.remove()
    return float(width)


def _fraction(frame: Frame, width: float, height: float) -> Frame:
    """Inches to parts of the figure."""
    left, bottom, wide, high = frame
    return left / width, bottom / height, wide / width, high / height

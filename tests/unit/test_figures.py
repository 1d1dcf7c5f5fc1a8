"""Pictures of alignments: the right cells in the right shades, labels that can be read, in any script."""

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from onmt_varattn.analysis import fonts
from onmt_varattn.analysis.attention import Attention
from onmt_varattn.analysis.figures import BLUE, RED, Panel, draw, labels, plot
from onmt_varattn.errors import UserError

SVG = "{http://www.w3.org/2000/svg}"


def attention(source, target, seed=0):
    probs = torch.softmax(3 * torch.randn(len(target), len(source), generator=torch.manual_seed(seed)), 1)
    return Attention(source, target, probs)


def panels(source, target):
    prior, posterior, soft = (attention(source, target, seed) for seed in range(3))
    left = Panel("variational attention", {"prior": prior, "posterior": posterior})
    return [left, Panel("priors of two models", {"soft attention": soft, "variational attention": prior})]


def words(count, seed):
    """Words of 1 to 14 letters, as text has; the last, at the figure's edge, is long."""
    lengths = torch.randint(1, 15, (count,), generator=torch.manual_seed(seed)).tolist()
    return ["wmoregßjq"[i % 9] * length for i, length in enumerate([*lengths[:-1], 14])]


def texts(figure):
    """Every text that is seen: its words, and the corners of its box as drawn (slanted ones too)."""
    figure.canvas.draw()
    for axes in figure.axes:
        for text in [
            axes.title,
            axes._left_title,
            *axes.texts,
            *axes.get_xticklabels(),
            *axes.get_yticklabels(),
        ]:
            if text.get_visible() and text.get_text().strip():
                yield text


def corners(text):
    """The four corners of a text's own (rotated) box, in pixels."""
    from matplotlib.transforms import Affine2D

    angle = text.get_rotation()
    anchor = text.get_transform().transform(text.get_unitless_position())
    text.set_rotation(0)
    box = text.get_window_extent()
    text.set_rotation(angle)
    return Affine2D().rotate_deg_around(*anchor, angle).transform(box.corners())[[0, 1, 3, 2]]


def apart(one, other):
    """Whether a line can be drawn between two convex shapes (separating axis theorem)."""
    for shape in (one, other):
        for start, end in zip(shape, [*shape[1:], shape[0]], strict=True):
            normal = (end - start)[::-1] * [1, -1]
            if (one @ normal).max() <= (other @ normal).min() + 1e-6 * abs(normal).max():
                return True
            if (other @ normal).max() <= (one @ normal).min() + 1e-6 * abs(normal).max():
                return True
    return False


@pytest.mark.parametrize(
    ("count", "source", "target"), [(1, 1, 1), (1, 5, 5), (2, 5, 5), (2, 12, 14), (1, 5, 40), (2, 40, 38)]
)
def test_labels_are_whole_and_apart(count, source, target):
    figure, missing = draw(panels(words(source, 1), words(target, 2))[:count])
    assert missing == ""
    shown = list(texts(figure))
    width, height = figure.canvas.get_width_height()
    for text in shown:
        box = text.get_window_extent()
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
        assert text.get_fontsize() >= 7
    assert sum(text.get_text() in words(source, 1) for text in shown) >= count * source
    assert sum(text.get_text() in words(target, 2) for text in shown) >= count * target
    boxes = [(text, corners(text)) for text in shown]
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        assert apart(first, second), (one, other)


def test_each_half_of_a_cell_has_the_shade_of_its_distribution():
    prior = Attention(["a", "b"], ["x", "y", "z"], torch.tensor([[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]]))
    posterior = Attention(["a", "b"], ["x", "y", "z"], torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]))
    figure, _ = draw([Panel("", {"prior": prior, "posterior": posterior})])
    assert to_rgb(RED)[0] > 0.7 > 0.3 > to_rgb(RED)[2]
    assert to_rgb(BLUE)[2] > 0.6 > 0.3 > to_rgb(BLUE)[0]
    figure.canvas.draw()
    picture = torch.tensor(np.asarray(figure.canvas.buffer_rgba()))[:, :, :3].double() / 255
    axes = figure.axes[0]
    for (j, target), (i, source) in itertools.product(enumerate(prior.target), enumerate(prior.source)):
        for layer, colour, place in ((prior, RED, 0.3), (posterior, BLUE, 0.7)):
            x, y = axes.transData.transform((i + place, j + place)).astype(int)
            share = float(layer.probs[j, i])
            right = torch.tensor([1 - share * (1 - part) for part in to_rgb(colour)], dtype=torch.float64)
            torch.testing.assert_close(
                picture[picture.size(0) - 1 - y, x],
                right,
                rtol=0,
                atol=0.01,
                msg=f"{source} {target} {colour}",
            )


def test_null_has_the_last_column_also_beside_a_model_without_it():
    one = Attention(["a", "b"], ["x"], torch.tensor([[0.0, 0.0, 1.0]]), null=True)
    other = Attention(["a", "b"], ["x"], torch.tensor([[0.0, 1.0]]))
    figure, _ = draw([Panel("one", {"prior": other}), Panel("two", {"prior": other, "posterior": one})])
    shown = [text.get_text() for text in texts(figure)]
    assert [word for word in shown if word in ("a", "b", "NULL")] == ["a", "b", "NULL"] * 2
    grids = [axes for axes in figure.axes if axes.get_xlim() == (0, 3)]
    assert len(grids) == 2
    cells = [collection.get_paths() for collection in grids[1].collections[:2]]
    left = [[path.vertices[:, 0].min() for path in paths] for paths in cells]
    assert left == [[1], [2]]


def test_words_are_written_as_they_are():
    """No formulas out of dollars, and nothing lost but the middle of monsters."""
    monster = "donaudampfschifffahrtselektrizitätenhauptbetriebswerk"
    figure, _ = draw(panels(["$5", "a^2$", "x_1", monster], ["<b>", "&", "\\alpha", "%"]))
    found = {text.get_text() for text in texts(figure)}
    assert {"$5", "a^2$", "x_1", "<b>", "&", "\\alpha", "%"} <= found
    (short,) = labels([monster])
    assert short in found
    assert len(short) == 28
    assert all(monster.startswith(part) or monster.endswith(part) for part in short.split("…"))


def test_formats_and_text_that_stays_text(tmp_path):
    paths = [str(tmp_path / f"a.{ending}") for ending in ("png", "svg", "PDF")]
    contents = []
    for _ in range(2):
        plot(panels(["haus", "tür", "<tag>", "$x^2$"], ["the", "door"]), paths)
        contents.append([(tmp_path / path).read_bytes() for path in paths])
    assert contents[0] == contents[1], "the same picture is the same file"
    png, svg, pdf = contents[0]
    assert png.startswith(b"\x89PNG")
    assert pdf.startswith(b"%PDF")
    assert b"/Type3" not in pdf
    found = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert found.count("tür") == found.count("<tag>") == found.count("$x^2$") == found.count("door") == 2


def test_another_ending_is_refused_before_drawing():
    with pytest.raises(UserError, match=r"x\.gif: .* use \.png, \.svg, \.pdf"):
        plot([], ["x.gif"])


def test_every_word_is_drawn_in_a_font_that_has_it(monkeypatch):
    """Fonts of our own making: greedy, the fewest families, and an honest rest."""
    has = {"DejaVu Sans": "abc.", "Thai": "ขฃ", "Both": "ขฃ字", "Kana": "か"}
    monkeypatch.setattr(fonts, "_installed", lambda rescan=False: {name: name for name in has})
    monkeypatch.setattr(fonts, "_characters", lambda path: set(has[path]))
    assert fonts.families(["ab", "c."]) == (["DejaVu Sans"], "")
    assert fonts.families(["ab", "ข字", "\u200d"]) == (["DejaVu Sans", "Both"], "")
    assert fonts.families(["字か", "ℵ"]) == (["DejaVu Sans", "Both", "Kana"], "ℵ")


def test_scripts_of_the_default_font_need_no_other():
    assert fonts.families(["haus", "дом", "σπίτι", "بيت", "בית", "ßœ…"]) == (["DejaVu Sans"], "")


def test_characters_without_a_font_are_told_once_and_not_by_matplotlib(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(fonts, "_installed", lambda rescan=False: fonts_of_matplotlib())
    missing = plot(panels(["世界", "haus"], ["ok"]), [str(tmp_path / "a.png")])
    assert missing == "世界"
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
    (sentence,) = fonts.advice(["世界"], missing)
    assert re.search(r"世界 \(CJK\).*fonts-noto-cjk", sentence)
    assert fonts.advice(["haus"], "") == []


def fonts_of_matplotlib():
    from matplotlib import font_manager

    return {"DejaVu Sans": font_manager.findfont("DejaVu Sans")}


def test_right_to_left_words_are_ordered_or_the_reader_is_told(monkeypatch):
    monkeypatch.setattr(fonts, "_shapes", lambda: False)
    (sentence,) = fonts.advice(["haus", "בית"], "")
    assert "right-to-left" in sentence
    monkeypatch.setattr(fonts, "_shapes", lambda: True)
    assert fonts.advice(["בית"], "") == []

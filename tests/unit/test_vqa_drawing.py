"""Pictures of distributions over boxes."""

from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from onmt_varattn.errors import FailedError, UserError
from onmt_varattn.vqa.drawing import FRAME, POSTERIOR, PRIOR, _figure, draw_answers
from onmt_varattn.vqa.features.regions import Regions

SVG = "{http://www.w3.org/2000/svg}"
BOXES = np.array([[10, 20, 110, 80], [0, 0, 200, 100], [192, 96, 200, 100], [20, 60, 60, 90]], "f4")
REGIONS = Regions(7, 200, 100, BOXES, np.zeros((4, 3), "f4"))
PANELS = {
    "prior": np.array([0.25, 0.15, 0.6, 0.0]),
    "q(z | <red>)": np.array([0.0, 0.0, 0.0, 1.0]),
    "q(z | $5)": np.full(4, 0.25),
}
ANSWERS = [("<red>", 0.625), ("$5", 0.2), ("a_b", 0.1)]


def coloured(axes, colour):
    """The boxes drawn in a colour: corners, width of the line, opacity."""
    return [
        ((*patch.get_xy(), patch.get_x() + patch.get_width(), patch.get_y() + patch.get_height()), patch)
        for patch in axes.patches
        if to_hex(patch.get_edgecolor()) == colour
    ]


def panels_of(figure):
    return [axes for axes in figure.axes if axes.axison]


def test_lines_are_as_strong_as_the_boxes_are_likely():
    figure = _figure("What?", REGIONS, ANSWERS, PANELS, None)
    for axes, distribution, colour in zip(
        panels_of(figure), PANELS.values(), [PRIOR, POSTERIOR, POSTERIOR], strict=True
    ):
        outlines = sorted(corners for corners, _ in coloured(axes, FRAME))
        assert outlines == sorted(tuple(box) for box in BOXES.tolist()), "no box is left out"
        drawn = {corners: patch for corners, patch in coloured(axes, colour)}
        expected = {tuple(box): p for box, p in zip(BOXES.tolist(), distribution, strict=True) if p > 0}
        assert drawn.keys() == expected.keys()
        for corners, probability in expected.items():
            assert drawn[corners].get_alpha() == pytest.approx(probability**0.5)
            assert drawn[corners].get_linewidth() == pytest.approx(4.5 * probability**0.5)
        strengths = [patch.get_alpha() for _, patch in coloured(axes, colour)]
        assert strengths == sorted(strengths), "the likeliest is on top"


def test_the_likeliest_boxes_are_labelled_inside_the_panel():
    figure = _figure("What?", REGIONS, ANSWERS, PANELS, None)
    figure.canvas.draw()
    labels = [[text.get_text() for text in axes.texts] for axes in panels_of(figure)]
    assert labels == [["15%", "25%", "60%"], ["100%"], ["25%"] * 3]
    for axes in panels_of(figure):
        for text in axes.texts:
            inner, outer = text.get_window_extent(), axes.get_window_extent()
            assert inner.x0 >= outer.x0 - 1
            assert inner.x1 <= outer.x1 + 1
            assert inner.y0 >= outer.y0 - 1
            assert inner.y1 <= outer.y1 + 1


def test_boxes_are_scaled_to_the_image():
    picture = np.zeros((50, 400, 3), np.uint8)
    axes = panels_of(_figure("What?", REGIONS, ANSWERS, PANELS, picture))[0]
    found = sorted(corners for corners, _ in coloured(axes, FRAME))
    assert np.allclose(found, sorted((BOXES * [2, 0.5, 2, 0.5]).tolist()))
    assert axes.get_xlim() == (0, 400)
    assert axes.get_ylim() == (50, 0)


def test_pixels_of_image_and_box(tmp_path):
    """The image is upright, and a certain box has the posterior's colour around it."""
    picture = np.zeros((100, 200, 3), np.uint8)
    picture[:50] = [0, 255, 0]
    picture[50:] = [255, 0, 0]
    Image.fromarray(picture).save(tmp_path / "image.png")
    certain = {"p": np.array([0.0, 0, 0, 1]), "q": np.array([0.0, 0, 0, 1])}
    draw_answers(str(tmp_path / "a.png"), "?", REGIONS, ANSWERS, certain, str(tmp_path / "image.png"))
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).astype(int)
    figure = _figure("?", REGIONS, ANSWERS, certain, picture)
    frame = panels_of(figure)[1].get_position()
    height, width = pixels.shape[:2]

    def at(x, y):
        across = frame.x0 + frame.width * x / 200
        return pixels[int(height * (1 - frame.y1 + frame.height * y / 100)), int(width * across)].tolist()

    assert at(195, 10)[1] > at(195, 10)[0] + 100, "green above"
    assert at(120, 90)[0] > at(120, 90)[1] + 100, "red below"
    blue = [int(POSTERIOR[i : i + 2], 16) for i in (1, 3, 5)]
    for x, y in ((40, 90), (60, 75), (20, 85)):
        assert np.abs(np.subtract(at(x, y), blue)).max() < 12


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_long_texts_stay_inside_the_figure(count):
    panels = {
        f"q(z | {n}, {'a rather long answer of many words ' * 2})": np.full(4, 0.25) for n in range(count)
    }
    figure = _figure("what does the man to the left hold " * 9, REGIONS, ANSWERS * 9, panels, None)
    figure.canvas.draw()
    width, height = figure.bbox.width, figure.bbox.height
    boxes = [text.get_window_extent() for text in figure.texts]
    tops = [axes.get_window_extent().y1 for axes in panels_of(figure)]
    assert all(box.x0 >= 0 and box.x1 <= width and box.y1 <= height and box.y0 > max(tops) for box in boxes)
    for axes in panels_of(figure):
        assert axes._left_title.get_window_extent().x1 <= axes.get_window_extent().x1 + 1
    drawn = " ".join(text.get_text() for text in figure.texts)
    assert drawn.count("hold") == 9, "nothing is cut off"


def test_formats_and_text_that_stays_text(tmp_path):
    paths = [tmp_path / f"a.{ending}" for ending in ("png", "svg", "PDF")]
    contents = []
    for _ in range(2):
        for path in paths:
            draw_answers(str(path), "What is $x^2$?", REGIONS, ANSWERS, PANELS)
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1], "the same picture is the same file"
    png, svg, pdf = contents[0]
    assert png.startswith(b"\x89PNG")
    assert pdf.startswith(b"%PDF")
    found = [
        "".join(text.itertext()).replace("\xa0", " ")
        for text in ElementTree.fromstring(svg).iter(f"{SVG}text")
    ]
    assert "What is $x^2$?" in found
    assert "<red> 62%, $5 20%, a_b 10%" in found
    assert {"prior", "q(z | <red>)", "q(z | $5)"} <= set(found)


def test_images_that_cannot_be_read(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no image")
    Image.fromarray(np.zeros((90, 90, 3), np.uint8)).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:60])
    for name in ("a.jpg", "cut.png", "none.png"):
        with pytest.raises(UserError, match=rf"{name}: not a readable image: \w+"):
            draw_answers(str(tmp_path / "out.png"), "?", REGIONS, ANSWERS, PANELS, str(tmp_path / name))
    assert not (tmp_path / "out.png").exists()


def test_another_ending_is_refused_before_reading():
    with pytest.raises(UserError, match=r"x\.gif: .* use \.png, \.svg, \.pdf"):
        draw_answers("x.gif", "?", REGIONS, ANSWERS, PANELS, "none")


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FailedError, match="cannot be written: "):
        draw_answers(str(tmp_path / "file" / "a.png"), "?", REGIONS, ANSWERS, PANELS)


def test_a_distribution_over_other_boxes_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match=r"prior: \(3,\) probabilities of 4 boxes"):
        _figure("?", REGIONS, ANSWERS, {"prior": np.ones(3) / 3}, None)

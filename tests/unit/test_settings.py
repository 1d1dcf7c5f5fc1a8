"""Settings: one field gives the option, its check, its conditional default and its line in the documentation."""

import argparse
from dataclasses import dataclass
from typing import Literal

import pytest

from onmt_varattn.errors import UserError
from onmt_varattn.utils.settings import Settings, add_to, check, fill, from_options, setting, to_options


@dataclass(kw_only=True)
class Shape(Settings):
    title = "Shape"
    shape: str = setting("square", choices=["square", "round"], help="The shape.")
    sides: list[int] = setting([1, 2], help="Sides.", at_least=1)
    radius: float | None = setting(
        None, help="Radius.", above=0, at_most=9, applies=lambda it: it.shape == "round", usual=2.0
    )
    area: float | None = setting(
        None, help="Area.", applies=lambda it: it.shape == "round", usual=lambda it: it.radius**2
    )
    filled: bool = setting(False, help="Filled.", applies=lambda it: it.shape == "round")
    steps: int | Literal["auto"] | None = setting(None, help="Steps.", at_least=0)

    def combination(self) -> str:
        return f"-shape {self.shape}"


@dataclass(kw_only=True)
class Named(Shape):
    title = "Name"
    name: str = setting(help="The name.")
    shape: str = setting("round", choices=["round"], help="Only round.")
    hidden: int = 7


def parsed(kind, *words):
    parser = argparse.ArgumentParser()
    add_to(parser, kind)
    return from_options(kind, parser.parse_args(words))


def test_options_have_the_types_defaults_and_names_of_the_fields():
    assert parsed(Shape) == Shape()
    words = ["-shape", "round", "--sides", "3", "4", "-radius", "0.5", "-filled", "-steps", "auto"]
    assert parsed(Shape, *words) == Shape(
        shape="round", sides=[3, 4], radius=0.5, filled=True, steps="auto", area=None
    )
    assert parsed(Shape, "-steps", "3").steps == 3


def test_subclasses_add_and_replace_options_in_groups_of_their_own():
    parser = argparse.ArgumentParser()
    add_to(parser, Named)
    groups = {g.title: [a.dest for a in g._group_actions] for g in parser._action_groups}
    assert groups["Name"] == ["shape", "name"]
    assert groups["Shape"] == ["sides", "radius", "area", "filled", "steps"]
    assert parsed(Named, "-name", "x").shape == "round"
    with pytest.raises(SystemExit):  # required
        parsed(Named)
    with pytest.raises(SystemExit):  # not an option
        parsed(Named, "-name", "x", "-hidden", "3")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Shape(sides=[1, 0]), "-sides 0 must be at least 1"),
        (Shape(shape="round", radius=0), "-radius 0 must be above 0 and at most 9"),
        (Shape(shape="round", radius=9.5), "-radius 9.5 must be above 0 and at most 9"),
        (Shape(steps=-1), "-steps -1 must not be negative"),
        (Shape(radius=1), "-radius does not go with -shape square; leave it out"),
        (Shape(filled=True), "-filled does not go with -shape square; leave it out"),
    ],
)
def test_values_out_of_range_or_place_are_refused(settings, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        check(settings)


def test_usual_values_are_filled_in_where_they_apply():
    square, round_ = Shape(), Shape(shape="round")
    fill(square)
    fill(round_)
    assert (square.radius, square.area) == (None, None)
    assert (round_.radius, round_.area) == (2.0, 4.0)
    check(square)
    check(round_)
    namespace = argparse.Namespace(other=1, area=None)
    to_options(round_, namespace)
    assert vars(namespace) == {"other": 1, "area": 4.0}


def test_an_option_that_the_parser_has_already_is_left_alone():
    parser = argparse.ArgumentParser()
    parser.add_argument("-shape", default="triangle", choices=["triangle"])
    add_to(parser, Shape)
    assert from_options(Shape, parser.parse_args([])).shape == "triangle"

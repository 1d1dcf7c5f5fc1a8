"""Settings: typed dataclasses that are the one source of an option's default, range, help and conditions.

A field made with `setting` is an option. The command line (`add_to`), values (`from_options`), defaults that
depend on other settings (`fill`) and checks (`check`) are made from the dataclass:

>>> @dataclass(kw_only=True)
... class Sizes(Settings):
...     title = "Sizes"
...     layers: int = setting(1, help="Number of layers.", at_least=1)
...     rate: float | None = setting(None, help="Dropout rate.", at_least=0, below=1)
>>> check(Sizes(layers=0))
Traceback (most recent call last):
onmt_varattn.errors.UserError: -layers 0 must be at least 1
"""

import argparse
import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from onmt_varattn.errors import UserError

Number = int | float


class Names(Sequence[str]):
    """Choices that are known only when they are needed: the registries import torch.

    Args:
        read: returns the names.
    """

    def __init__(self, read: Callable[[], Iterable[str]]) -> None:
        self._read = read

    def __getitem__(self, index: Any) -> Any:
        return list(self._read())[index]

    def __len__(self) -> int:
        return len(list(self._read()))


class CountOr:
    """The type of an option that is a whole number from 0, or one of a few words.

    Args:
        words: the words.
    """

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, text: str) -> int | str:
        """The value of a command-line text."""
        if text in self.words:
            return text
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is neither a number nor {self}") from None

    def __str__(self) -> str:
        return " or ".join(self.words)

    def fits(self, value: Any) -> bool:
        """Whether a value from a file is such a number or word."""
        return type(value) is int or (type(value) is str and value in self.words)


@dataclass(kw_only=True)
class Settings:
    """Base class of all settings.

    Attributes:
        title: group of the options that this class declares, in `-h` and in the documentation.
        description: of the command whose settings these are.
    """

    title: ClassVar[str] = ""
    description: ClassVar[str] = ""

    def combination(self) -> str:
        """The settings that decide which other settings apply, as typed on the command line."""
        return ""


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Meta:
    """The metadata of an option.

    Attributes:
        help: help text. Without one the field is an option of OpenNMT-py's parser, of which only the value is
            checked, its choices, too.
        choices: allowed words.
        at_least: lowest value.
        above: exclusive lower bound.
        below: exclusive upper bound.
        at_most: highest value.
        applies: whether the setting goes with the other settings, a function of the dataclass. Where it does
            not, the value must be the default.
        usual: default where the setting applies and is None: a value, or a function of the dataclass.
        option: name on the command line, default: the field's.
        also: other names on the command line.
        nargs: for lists: "+" (default), "*" or a number.
        metavar: placeholder of the value in `-h`.
        replaces: extend choices and change default and help of an option that the parser already has
            (OpenNMT-py's); default: leave such an option as it is.
        repeats: for lists: the option may be given several times.
        positional: the value is given without the option's name.
    """

    help: str = ""
    choices: Sequence[Any] | None = None
    at_least: Number | None = None
    above: Number | None = None
    below: Number | None = None
    at_most: Number | None = None
    applies: Callable[[Any], bool] | None = None
    usual: Any = None
    option: str | None = None
    also: Sequence[str] = ()
    nargs: str | int | None = None
    metavar: str | None = None
    replaces: bool = False
    repeats: bool = False
    positional: bool = False

    def range(self) -> str:
        """The range of values in words; "" for any."""
        if self.at_least == 0 and self.below is None and self.at_most is None:
            return "must not be negative"
        if self.at_least is not None and self.at_most is not None:
            return f"must be between {self.at_least} and {self.at_most}"
        limits = (
            ("at least", self.at_least),
            ("above", self.above),
            ("below", self.below),
            ("at most", self.at_most),
        )
        stated = [f"{words} {limit}" for words, limit in limits if limit is not None]
        return f"must be {' and '.join(stated)}" if stated else ""

    def holds(self, value: Number) -> bool:
        """Whether a value is in the range."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )


def setting(default: Any = MISSING, **metadata: Any) -> Any:
    """A dataclass field that is an option.

    Args:
        default: default on the command line; without one the option is required.
        metadata: attributes of `Meta`.
    """
    meta = {"setting": Meta(**metadata)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


def like(kind: type[Settings], field: str, default: Any) -> Any:
    """A field of another class with another default."""
    return setting(default, **vars(option(kind, field).meta))


@dataclass(frozen=True)
class Option:
    """A field as an option.

    Attributes:
        field: name of the field.
        name: name on the command line, without dashes.
        group: title of its group.
        type: type of a value: int, float, str, bool or `CountOr`.
        many: whether it takes a list.
        default: default; `MISSING` for a required option.
        meta: all else.
    """

    field: str
    name: str
    group: str
    type: Any
    many: bool
    default: Any
    meta: Meta


def options(kind: type[Settings]) -> Iterator[Option]:
    """All options of a settings class, in the order of their declaration, base classes first."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        meta = field.metadata.get("setting")
        if meta is None:
            continue
        owner = next(base for base in kind.__mro__ if field.name in inspect.get_annotations(base))
        default = field.default if field.default_factory is MISSING else field.default_factory()
        type_, many = _value_type(hints[field.name])
        yield Option(
            field.name,
            meta.option or field.name,
            owner.title,  # type: ignore[attr-defined]  # a base class of settings
            type_,
            many,
            default,
            meta,
        )


def _value_type(hint: Any) -> tuple[Any, bool]:
    """The type of a single value, and whether there may be several."""
    parts = [hint]
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    if words and int in parts:
        return CountOr(*words), False
    if get_origin(parts[0]) is list:
        return get_args(parts[0])[0], True
    return parts[0], False


def add_to(parser: argparse.ArgumentParser, kind: type[Settings]) -> None:
    """Add the options of a settings class to a parser, with one dash and with two, grouped by title."""
    for one in options(kind):
        existing = parser._option_string_actions.get(f"-{one.name}")
        if not one.meta.help:
            continue
        if existing is None:
            _group(parser, one.group).add_argument(*_names(one), help=one.meta.help, **_arguments(one))
        elif one.meta.replaces:
            existing.help, existing.default = one.meta.help, one.default
            existing.choices = (
                list(dict.fromkeys([*(existing.choices or []), *(one.meta.choices or [])])) or None
            )


def _group(parser: argparse.ArgumentParser, title: str) -> Any:
    if not title:
        return parser._optionals
    found = [group for group in parser._action_groups if group.title == title]
    return found[0] if found else parser.add_argument_group(title)


def _names(one: Option) -> list[str]:
    if one.meta.positional:
        return [one.name]
    others = [
        dashes + name for name in one.meta.also for dashes in (("-", "--") if len(name) > 1 else ("-",))
    ]
    return [f"-{one.name}", f"--{one.name}", *others]


def _arguments(one: Option) -> dict[str, Any]:
    """The keyword arguments of argparse."""
    if one.meta.positional:
        return {}
    if one.type is bool:
        return {"dest": one.field, "action": "store_true", "default": one.default}
    given: dict[str, Any] = {"dest": one.field, "choices": one.meta.choices, "metavar": one.meta.metavar}
    given |= {"required": True} if one.default is MISSING else {"default": one.default}
    if one.type is not str:
        given["type"] = one.type
    if one.many:
        given["nargs"] = one.meta.nargs or "+"
    if one.meta.repeats:
        given["action"] = "extend"
    return given


def from_options(kind: type[S], namespace: argparse.Namespace) -> S:
    """Settings with the values of parsed options; options that a namespace lacks have their defaults."""
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    return kind(**{name: getattr(namespace, name) for name in names if hasattr(namespace, name)})


def to_options(settings: Settings, namespace: argparse.Namespace) -> None:
    """Write settings into a namespace of parsed options, as far as it has them."""
    vars(namespace).update({name: value for name, value in vars(settings).items() if name in namespace})


def fill(settings: Settings) -> None:
    """Give settings that apply and are None their usual value, in the order of their declaration."""
    for one in options(type(settings)):
        meta = one.meta
        if getattr(settings, one.field) is None and meta.usual is not None and _applies(one, settings):
            usual = meta.usual(settings) if callable(meta.usual) else meta.usual
            setattr(settings, one.field, usual)


def _applies(one: Option, settings: Settings) -> bool:
    return one.meta.applies is None or one.meta.applies(settings)


def check(settings: Settings) -> None:
    """Check ranges, and that every setting that is given goes with the others.

    Raises:
        UserError: names the option, its value and its range.
    """
    for one in options(type(settings)):
        check_range(one, getattr(settings, one.field))
    for one in options(type(settings)):
        value, meta = getattr(settings, one.field), one.meta
        if meta.applies and value != one.default and not meta.applies(settings):
            given = f"-{one.name}" if meta.help or one.type is bool else f"-{one.name} {value}"
            raise UserError(f"{given} does not go with {settings.combination()}; leave it out")
        if meta.choices and not meta.help and value not in meta.choices:
            raise UserError(
                f"-{one.name} {value} does not go with {settings.combination()}; "
                f"use {' or '.join(map(str, meta.choices))}"
            )


def check_range(one: Option, value: Any) -> None:
    """Check a value, or each value of a list, against the range of its option.

    Raises:
        UserError: names the option, its value and its range.
    """
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int | float) and not isinstance(number, bool) and not one.meta.holds(number):
            raise UserError(f"-{one.name} {number} {one.meta.range()}")


def option(kind: type[Settings], field: str) -> Option:
    """The option of a field."""
    return next(one for one in options(kind) if one.field == field)

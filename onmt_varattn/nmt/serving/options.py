"""What a client may set for a clone: each option has a type and a range, and is set by name.

Nothing that a client sends is parsed: a value is a number, true, false or one of a few words of
ours, or the request is refused. So it can be no other option, no path, no device and no format.
"""

import copy
from dataclasses import dataclass
from typing import Any, Protocol

from onmt_varattn.nmt.serving.requests import RequestError
from onmt_varattn.nmt.settings import check_translate

Value = int | float | bool | str
Options = dict[str, Value]


class Kind(Protocol):
    """The values that an option may have; its string says which they are."""

    def read(self, value: Any) -> Value | None:
        """A client's value as the option takes it; None if it is none."""


@dataclass(frozen=True)
class Whole:
    """Whole numbers of a range."""

    least: int
    most: int

    def read(self, value: Any) -> int | None:
        """See `Kind`."""
        return value if type(value) is int and self.least <= value <= self.most else None

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True)
class Real:
    """Numbers of a range."""

    least: float
    most: float

    def read(self, value: Any) -> float | None:
        """See `Kind`."""
        if type(value) not in (int, float) or not self.least <= value <= self.most:  # NaN is in no range
            return None
        return float(value)

    def __str__(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Flag:
    """On or off."""

    def read(self, value: Any) -> bool | None:
        """See `Kind`."""
        return value if type(value) is bool else None

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Word:
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, value: Any) -> str | None:
        """See `Kind`."""
        return next((word for word in self.words if type(value) is str and word == value), None)

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}"


# By the names of onmt_translate. No more than beam and max_length may make a translation long: the
# cost of a request counts them (requests.py).
CLIENT_OPTIONS: dict[str, Kind] = {
    "beam_size": Whole(1, 50),
    "n_best": Whole(1, 50),
    "max_length": Whole(1, 1000),
    "min_length": Whole(0, 1000),
    "ratio": Real(0, 10),
    "length_penalty": Word(("none", "wu", "avg")),
    "alpha": Real(0, 10),
    "coverage_penalty": Word(("none", "wu", "summary")),
    "beta": Real(0, 10),
    "stepwise_penalty": Flag(),
    "eos_norm": Real(0, 100),
    "block_ngram_repeat": Whole(0, 100),
    "random_sampling_topk": Whole(-1, 1_000_000),
    "random_sampling_topp": Real(0, 1),
    "random_sampling_temp": Real(0.01, 100),
    "seed": Whole(0, 2**31 - 1),
    "replace_unk": Flag(),
    "ban_unk_token": Flag(),
    "report_align": Flag(),
    "pretokenized": Flag(),
    "test_attention": Word(("exact", "soft")),
    "kmax": Whole(0, 1000),
    "attention_samples": Whole(1, 100),
}
OTHER_NAMES = {"beam": "beam_size"}


def read_options(given: dict[str, Any]) -> Options:
    """A client's options by the names of `CLIENT_OPTIONS`.

    Raises:
        RequestError: an option is none of these, or has a value that it cannot have.
    """
    options: Options = {}
    for name, value in given.items():
        own_name = OTHER_NAMES.get(name, name)
        if own_name not in CLIENT_OPTIONS:
            raise RequestError(400, f"'{name[:50]}' is not an option that clients may set")
        if own_name in options:
            raise RequestError(400, f"'{name}' is given twice: it is '{own_name}'")
        read = CLIENT_OPTIONS[own_name].read(value)
        if read is None:
            raise RequestError(400, f"'{name}' is not {CLIENT_OPTIONS[own_name]}")
        options[own_name] = read
    return options


def with_options(configured: Any, options: Options) -> Any:
    """A namespace of the configuration with a client's options in it, checked as on the command line.

    Raises:
        UserError: they do not go together.
    """
    opt = copy.deepcopy(configured)
    for name, value in options.items():
        setattr(opt, name, value)
    checked = copy.copy(opt)
    checked.batch_size = opt.batch_size or 1  # 0 is a server's way to say: all in one batch
    check_translate(checked)
    return opt

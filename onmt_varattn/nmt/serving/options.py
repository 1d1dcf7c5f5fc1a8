"""Options that a client may set for a clone: each has a type and a range, and is set by name.

Nothing that a client sends is parsed: a value is a number, true, false or one of a few words, or the request
is refused. So it cannot be another option, a path, a device or a format.
"""

import copy
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from onmt_varattn.nmt.serving.requests import RequestError
from onmt_varattn.nmt.settings import check_translate
from onmt_varattn.utils.settings import Option, Settings, options, setting

Options = dict[str, int | float | bool | str]


@dataclass(kw_only=True)
class ClientSettings(Settings):
    """Options of onmt_translate with the ranges that clients are allowed.

    A translation can be made long by beam and max_length only, which the cost of a request includes
    (requests.py).
    """

    beam_size: int = setting(5, at_least=1, at_most=50)
    n_best: int = setting(1, at_least=1, at_most=50)
    max_length: int = setting(100, at_least=1, at_most=1000)
    min_length: int = setting(0, at_least=0, at_most=1000)
    ratio: float = setting(0.0, at_least=0, at_most=10)
    length_penalty: str = setting("none", choices=["none", "wu", "avg"])
    alpha: float = setting(0.0, at_least=0, at_most=10)
    coverage_penalty: str = setting("none", choices=["none", "wu", "summary"])
    beta: float = setting(0.0, at_least=0, at_most=10)
    stepwise_penalty: bool = setting(False)
    eos_norm: float = setting(0.0, at_least=0, at_most=100)
    block_ngram_repeat: int = setting(0, at_least=0, at_most=100)
    random_sampling_topk: int = setting(0, at_least=-1, at_most=1_000_000)
    random_sampling_topp: float = setting(0.0, at_least=0, at_most=1)
    random_sampling_temp: float = setting(1.0, at_least=0.01, at_most=100)
    seed: int = setting(0, at_least=0, at_most=2**31 - 1)
    replace_unk: bool = setting(False)
    ban_unk_token: bool = setting(False)
    report_align: bool = setting(False)
    pretokenized: bool = setting(False)
    test_attention: str = setting(None, choices=["exact", "soft"])
    kmax: int = setting(0, at_least=0, at_most=1000)
    attention_samples: int = setting(None, at_least=1, at_most=100)


CLIENT_OPTIONS: dict[str, Option] = {one.name: one for one in options(ClientSettings)}
OTHER_NAMES = {"beam": "beam_size"}


def read_options(given: dict[str, Any]) -> Options:
    """A client's options by the names of `CLIENT_OPTIONS`.

    Raises:
        RequestError: an option is unknown, or its value is not of its type or range.
    """
    found: Options = {}
    for name, value in given.items():
        own_name = OTHER_NAMES.get(name, name)
        if own_name not in CLIENT_OPTIONS:
            raise RequestError(400, f"'{name[:50]}' is not an option that clients may set")
        if own_name in found:
            raise RequestError(400, f"'{name}' is given twice: it is '{own_name}'")
        one = CLIENT_OPTIONS[own_name]
        if not _fits(value, one):
            raise RequestError(400, f"'{name}' is not {_described(one)}")
        found[own_name] = float(value) if one.type is float else value
    return found


def _fits(value: Any, one: Option) -> bool:
    """Whether a value has the type of its option, and is in its range; NaN is in no range."""
    if one.type in (int, float):
        return type(value) in {int, one.type} and one.meta.holds(value)
    return type(value) is one.type and (one.type is bool or value in (one.meta.choices or ()))


def _described(one: Option) -> str:
    """The values of an option in words."""
    if one.type is bool:
        return "true or false"
    if one.type is str:
        return f"one of {', '.join(one.meta.choices or ())}"
    whole = "whole " if one.type is int else ""
    return f"a {whole}number from {one.meta.at_least} to {one.meta.at_most}"


def with_options(configured: Namespace, options: Options) -> Namespace:
    """A namespace of the configuration with a client's options in it, checked as on the command line.

    Raises:
        UserError: they do not go together.
    """
    opt = copy.deepcopy(configured)
    for name, value in options.items():
        setattr(opt, name, value)
    checked = copy.copy(opt)
    checked.batch_size = opt.batch_size or 1  # 0 stands for one batch of all sentences
    check_translate(checked)
    return opt

"""What a case is, and the corpus of all of them."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.attacks.archives import Archive
from tests.attacks.tensors_file import TensorsFile

REFUSED, SAFE, SAME = "refused", "safe", "same"
"""Expectations: one sentence and exit code 2; that, or success; the same result as the good file."""


class MissingError(Exception):
    """There is no good file of the kind that a case starts from."""


@dataclass
class Goods:
    """Good files to start from.

    Attributes:
        old: in the old format, by kind (translation, stock, vqa).
        new: in the new format, by kind; without those that training does not write yet.
        witness: a directory that must stay empty: attacks leave their traces here.
    """

    old: dict[str, Path]
    new: dict[str, Path]
    witness: Path
    _parsed: dict[str, bytes] = field(default_factory=dict)

    def archive(self, kind: str = "translation") -> Archive:
        """A good file of the old format, to be changed."""
        if kind not in self._parsed:
            self._parsed[kind] = pickle.dumps(Archive(self.old[kind]))
        return pickle.loads(self._parsed[kind])

    def tensors_file(self, kind: str = "translation") -> TensorsFile:
        if kind not in self.new:
            raise MissingError(f"training writes no {kind} checkpoint in the new format yet")
        return TensorsFile(self.new[kind])


Make = Callable[[Goods, Path], Any]


@dataclass(frozen=True)
class Case:
    """One file, and what is to come of it.

    Attributes:
        name: unique.
        group: of cases, for reports.
        make: writes the file.
        kind: of model that it pretends to be: translation (also of stock OpenNMT-py) or vqa.
        expected: at the entry points of `at`; elsewhere it may be refused or harmless.
        at: names of entry points; all, if empty.
        elsewhere: what is expected of the load function of the other kind of model.
    """

    name: str
    group: str
    make: Make
    kind: str = "translation"
    expected: str = REFUSED
    at: frozenset[str] = field(default_factory=frozenset)
    elsewhere: str = REFUSED

    def expected_at(self, point: str) -> str:
        return self.expected if not self.at or point in self.at else SAFE


class Group:
    """Collects the cases of a module.

    Args:
        name: of the group; cases are named after it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases: list[Case] = []

    def add(self, name: str, make: Make, **more: Any) -> None:
        self.cases.append(Case(f"{self.name}: {name}", self.name, make, **more))

    def case(self, name: str, **more: Any) -> Callable[[Make], Make]:
        """Decorates the function that makes a case."""

        def decorate(make: Make) -> Make:
            self.add(name, make, **more)
            return make

        return decorate


def one_of_each(cases: list[Case]) -> list[Case]:
    """Of cases that differ only in the kind of model or the format, one in turn: quick, and about as good."""
    variants: dict[str, list[Case]] = {}
    for case in cases:
        variants.setdefault(case.name.rpartition(" (")[0] or case.name, []).append(case)
    return [same[i % len(same)] for i, same in enumerate(variants.values())]


def corpus() -> list[Case]:
    """All cases."""
    from tests.attacks import content_cases, format_cases, pickle_cases, tensor_cases, zip_cases

    modules = (pickle_cases, zip_cases, tensor_cases, format_cases, content_cases)
    cases = [case for module in modules for case in module.group.cases]
    assert len({case.name for case in cases}) == len(cases), "two cases have one name"
    return cases

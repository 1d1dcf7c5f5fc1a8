"""A directory with all that trials need: a world, good files, a place for crafted ones, a witness."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.attacks import harness, world
from tests.attacks.cases import SAFE, Case, Goods, MissingError
from tests.attacks.entry_points import for_kind
from tests.attacks.harness import Job, Tried
from tests.attacks.tensors_file import is_tensors_file


class Arena:
    """Makes files and has them tried.

    Args:
        directory: empty; everything is made in it.
    """

    def __init__(self, directory: Path) -> None:
        self.world, self.witness, self.files = (directory / name for name in ("world", "witness", "files"))
        for path in (self.world, self.witness, self.files):
            path.mkdir()
        world.make(self.world)
        goods = directory / "goods"
        goods.mkdir()
        old = world.copy_old(goods)
        with world.inside(self.world):
            trained = {kind: world.train(kind, f"trained_{kind}") for kind in ("translation", "vqa")}
        new = {kind: self.world / path for kind, path in trained.items()}
        self.goods = Goods(
            old, {kind: path for kind, path in new.items() if is_tensors_file(path)}, self.witness
        )
        self._numbers = itertools.count()
        self._good_results: dict[tuple[str, str], Any] = {}

    def make(self, case: Case) -> Path:
        """Write a case's file.

        Raises:
            MissingError: there is nothing to make it from.
        """
        path = self.files / f"{next(self._numbers):05}.pt"
        case.make(self.goods, path)
        return path

    def good(self, job: Job) -> Any:
        """The result of the good file that a job's file was made from, at the same entry point."""
        if not self._good_results:
            points = {"translation": ("load", "translate", "api", "align"), "vqa": ("vqa load",)}
            jobs = [
                Job(name, files[kind], point, SAFE)
                for name, files in (("old", self.goods.old), ("new", self.goods.new))
                for kind in points
                if kind in files
                for point in points[kind]
            ]
            for tried in harness.run(jobs, self.world, self.witness):
                self._good_results[tried.job.case, tried.job.point] = tried.outcome["result"]
        return self._good_results.get(("new" if job.case.startswith("format: ") else "old", job.point))

    def run(self, jobs: Sequence[Job]) -> Iterator[Tried]:
        """Try jobs; see `harness.run`."""
        return harness.run(jobs, self.world, self.witness, self.good)

    def jobs(self, cases: Sequence[Case], every_point: bool) -> tuple[list[Job], dict[str, str]]:
        """Files of cases at entry points.

        Args:
            cases: to make.
            every_point: all entry points for a case, or its load functions, translation, and one more in turn.

        Returns:
            Jobs, and the reasons why cases could not be made, by their names.
        """
        jobs, missing = [], {}
        for number, case in enumerate(cases):
            try:
                path = self.make(case)
            except MissingError as error:
                missing[case.name] = str(error)
                continue
            points = for_kind(case.kind)
            jobs += harness.jobs_of(case, path, points if every_point else some(points, case, number))
        return jobs, missing


def some(points: Sequence[str], case: Case, number: int) -> list[str]:
    """The load functions, translation or evaluation, and one more in turn; one that a case is about if any."""
    always = [name for name in points if name in ("load", "vqa load", "translate", "vqa_evaluate")]
    others = [name for name in points if name not in always]
    about = [name for name in others if name in case.at] or others
    return [*always, about[number % len(about)]]

"""Stages of long work, each run once for the same inputs and settings."""

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from onmt_varattn.utils.files import atomic_write


class Stages:
    """A record of finished stages in a JSON file.

    A stage is finished if its settings, and size and time of its inputs and outputs, are as they were
    when it ended. Stages must write their outputs completely or not at all.

    Args:
        path: the JSON file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._done: dict[str, Any] = {}
        # Without the file, or with a damaged one, nothing is done.
        with contextlib.suppress(FileNotFoundError, ValueError), open(path, encoding="utf-8") as file:
            self._done = json.load(file)

    def run(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        settings: dict[str, Any],
        work: Callable[[], Any],
    ) -> Any:
        """Run a stage unless it is finished.

        Args:
            name: name of the stage, unique in the file.
            inputs: files that it reads.
            outputs: files that it writes.
            settings: further values that its result depends on.
            work: does the work; its result must be representable in JSON.

        Returns:
            The result of `work`, from this run or from an earlier one.
        """
        before = {"inputs": _stamps(inputs), "settings": settings}
        stage = self._done.get(name, {})
        if stage and stage == {**before, "outputs": _stamps(outputs), "result": stage["result"]}:
            print(f"{name}: done already", flush=True)
            return stage["result"]
        print(name, flush=True)
        result = work()
        self._done[name] = {**before, "outputs": _stamps(outputs), "result": result}
        with atomic_write(self._path) as file:
            json.dump(self._done, file, indent=1)
        return result


def _stamps(paths: Sequence[str]) -> list[Any]:
    """Path, size and time of files."""
    found = []
    for path in paths:
        exists = os.path.exists(path)
        found.append([path, os.path.getsize(path), os.stat(path).st_mtime_ns] if exists else [path, 0, 0])
    return found

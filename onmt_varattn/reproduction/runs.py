"""One row of a table with one seed: its directory and its remaining commands.

The directory of a run contains `settings.json` (training options), `log.txt`, checkpoints and metrics of
training, `trained.json` after training, and `result.json` after evaluation. Finished commands are not
repeated; a stopped training continues from its last checkpoint.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.reproduction.recipe import Recipe
from onmt_varattn.reproduction.tasks import task_of
from onmt_varattn.utils.files import atomic_write


@dataclass(frozen=True)
class Run:
    """A row and a seed of a recipe."""

    recipe: Recipe
    row: str
    seed: int
    output: Path  # output directory of the reproduction

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.row} seed {self.seed}"

    @property
    def directory(self) -> Path:
        """Directory of the run."""
        return self.output / "rows" / f"{self.row}.seed{self.seed}"

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return int(self.recipe.options(self.row)["train_steps"])

    @property
    def trained(self) -> bool:
        """Whether training is finished: recorded, or (if the parent was killed) by its last checkpoint."""
        return (self.directory / "trained.json").exists() or self.first_step >= self.steps

    @property
    def first_step(self) -> int:
        """The step that training would continue from."""
        return max(self._checkpoints(), default=0)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the model depends on, independent of the output directory."""
        values = {"prepare": self.recipe.prepare, "train": self.recipe.options(self.row)}
        return json.loads(json.dumps(values).replace(json.dumps(str(self.output))[1:-1], "${output}"))

    @property
    def up_to_date(self) -> bool:
        """Whether the directory is empty or was trained with the current settings."""
        return _read(self.directory / "settings.json") in (None, self.settings)

    def result(self) -> dict[str, Any] | None:
        """Result of the evaluation, if it was made with the current command."""
        path = self.directory / "result.json"
        if not (path.exists() and _read(self.directory / "evaluated.json") == self.evaluation()[1:]):
            return None
        return {**_read(path)["models"][0], "seed": self.seed}

    def next_command(self) -> list[str] | None:
        """The next command; None if all are finished."""
        if not self.trained:
            self._write("settings.json", self.settings)
            return self.training()
        return None if self.result() else self.evaluation()

    def finished(self, command: list[str]) -> None:
        """Record that a command has succeeded."""
        done = "trained.json" if "-save_model" in command else "evaluated.json"
        self._write(done, command[1:])  # another interpreter is no reason to do it again

    def training(self) -> list[str]:
        """The command that starts or continues training."""
        options = {**self.recipe.options(self.row), "seed": self.seed, "save_model": self.directory / "model"}
        options["resume"] = True
        return [sys.executable, "-m", task_of(self.recipe).training, *as_words(options)]

    def evaluation(self) -> list[str]:
        """The command that evaluates the best checkpoint."""
        options = {
            "model": self.best_checkpoint(),
            **self.recipe.evaluate,
            "json": self.directory / "result.json",
        }
        return [sys.executable, "-m", task_of(self.recipe).evaluation, *as_words(options)]

    def check(self) -> None:
        """Check that the directory has no model with other settings.

        Raises:
            UserError: it has; the message names the directory and the first difference.
        """
        if self.up_to_date or not self._checkpoints():
            return
        before, now = _read(self.directory / "settings.json")["train"], self.settings["train"]
        differ = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        what = f"-{differ[0]} {before.get(differ[0])}" if differ else "other data"
        raise UserError(
            f"{self.directory} was trained with {what}; take another -output, or remove that directory"
        )

    def progress(self, since: float = 0.0) -> dict[str, Any]:
        """The last line of the metrics file, if it was written after `since` (seconds, as `time.time`)."""
        lines = self._metrics()
        return lines[-1] if lines and self._metrics_file.stat().st_mtime >= since else {}

    def best_checkpoint(self) -> Path:
        """The checkpoint with the lowest validation perplexity; the last if there was no validation.

        Checkpoints of a warm-up are left out: they were trained with another objective.
        """
        given = self.recipe.options(self.row).get("attention_warmup_steps")
        warm_up = given if isinstance(given, int) else 0  # version 0.1 wrote no "warm_up" into its metrics
        valid = {
            line["step"]: line["ppl"]
            for line in self._metrics()
            if line["part"] == "valid" and not line.get("warm_up") and line["step"] > warm_up
        }
        found = {step: path for step, path in self._checkpoints().items() if step in valid}
        if found:
            return found[min(found, key=lambda step: valid[step])]
        return self._last_checkpoint() or self.directory / f"model_step_{self.steps}.pt"

    def _last_checkpoint(self) -> Path | None:
        checkpoints = self._checkpoints()
        return checkpoints[max(checkpoints)] if checkpoints else None

    def _checkpoints(self) -> dict[int, Path]:
        found = ((re.fullmatch(r"model_step_(\d+)", path.stem), path) for path in self.directory.glob("*.pt"))
        return {int(match[1]): path for match, path in found if match}

    @property
    def _metrics_file(self) -> Path:
        return self.directory / "model.metrics.jsonl"

    def _metrics(self) -> list[dict[str, Any]]:
        try:
            text = self._metrics_file.read_text("utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _write(self, name: str, value: Any) -> None:
        with atomic_write(str(self.directory / name)) as file:
            json.dump(value, file, indent=1)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None


def as_words(options: dict[str, Any]) -> list[str]:
    """Options by name to arguments of a command line; True is a flag, False is left out."""
    words = []
    for name, value in options.items():
        if value is not False:
            values = [] if value is True else value if isinstance(value, list) else [value]
            words += [f"-{name}", *map(str, values)]
    return words

"""onmt_reproduce: the paper's tables, from data to Markdown."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onmt_varattn
from onmt_varattn.errors import UserError, require
from onmt_varattn.reproduction.recipe import Recipe, load_paper, load_recipe
from onmt_varattn.reproduction.report import write
from onmt_varattn.reproduction.runs import Run, as_words
from onmt_varattn.reproduction.schedule import RunQueue, environment, estimate, only_one
from onmt_varattn.reproduction.tasks import task_of
from onmt_varattn.utils import pages
from onmt_varattn.utils.cli import parse, run
from onmt_varattn.utils.commands import COMMANDS, find_command
from onmt_varattn.utils.files import check_writable
from onmt_varattn.utils.settings import Settings, setting
from onmt_varattn.utils.stages import Stages


@dataclass(kw_only=True)
class ReproduceSettings(Settings):
    """Settings of onmt_reproduce."""

    description = (
        "Prepare data, train and evaluate every row of the paper's tables, and write them. A run that was "
        "stopped continues: finished rows are kept, an unfinished row is resumed."
    )

    recipe: str = setting(
        positional=True,
        help="Translation: toy, multi30k, iwslt14, wmt17. Visual question answering: vqa-toy, vqa2. Or the "
        "path of a YAML file.",
    )
    table: list[int] = setting([1, 2, 3], choices=[1, 2, 3], help="Tables.")
    rows: list[str] | None = setting(None, help="Rows. Default: all that the tables need.")
    seeds: list[int] = setting([1], help="Random seeds with which each row is trained.")
    output: str | None = setting(None, help="Directory for data, models and tables. Default: runs/RECIPE.")
    jobs: int = setting(0, help="Number of rows in parallel. 0: that of the recipe.")
    update: str | None = setting(
        None,
        help="Markdown page into which the tables are written as well, between <!-- RECIPE: begin --> and "
        "its end, with the plot beside it.",
    )
    dry_run: bool = setting(
        False, help="Check and print all commands and the estimated training time; run nothing."
    )


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: reproduce(parse(ReproduceSettings, args)))


def reproduce(opt: ReproduceSettings) -> None:
    """Do what is left to do, and write the tables."""
    output = Path(opt.output or f"runs/{Path(opt.recipe).stem}")
    recipe = load_recipe(opt.recipe, str(output))
    paper = load_paper(recipe.paper)
    needed = {*paper.rows_of(opt.table), *paper.unlisted(recipe.rows)}
    rows = list(dict.fromkeys(opt.rows or [])) or [row for row in recipe.rows if row in needed]
    recipe.check(rows)
    if opt.jobs < 0:
        raise UserError(f"-jobs {opt.jobs}: 1 or more, or 0 for what the recipe says")
    if not rows:
        raise UserError(f"-table {' '.join(map(str, opt.table))}: no row of recipe {recipe.name} is in there")
    runs = [Run(recipe, row, seed, output) for seed in dict.fromkeys(opt.seeds) for row in rows]
    check_commands(recipe, runs, here=not opt.dry_run)
    if opt.update and not pages.has_marks(Path(opt.update), recipe.name):
        raise UserError(
            f"-update {opt.update}: no such page, or no <!-- {recipe.name}: begin --> and end in it"
        )
    if opt.dry_run:
        print("\n".join(command_lines(recipe, runs)), flush=True)
        print(estimate(runs, opt.jobs or recipe.jobs), file=sys.stderr)
        return
    require("matplotlib")
    check_writable(str(output / "tables.md"))
    with only_one(output) as lock:
        for one in runs:
            one.check()
        prepare(recipe, output)
        failed = RunQueue(runs, opt.jobs or recipe.jobs, environment(recipe.threads), lock).work()
        text = write(recipe, paper, output, opt.table, onmt_varattn.load)
    print(text)
    print(f"written: {output}/tables.md, results.json, and each table as .md and .csv")
    if opt.update:
        page, plot = Path(opt.update), output / "kmax.png"
        pages.update(page, recipe.name, text.replace("(kmax.png)", f"({recipe.name}-kmax.png)"))
        if plot.exists():
            shutil.copyfile(plot, page.with_name(f"{recipe.name}-kmax.png"))
    if failed:
        raise UserError(f"{len(failed)} of {len(runs)} runs failed: {', '.join(one.name for one in failed)}")


def check_commands(recipe: Recipe, runs: Sequence[Run], here: bool) -> None:
    """Refuse options in the recipe that its commands would refuse; what this machine lacks only if `here`."""
    task = task_of(recipe)
    if recipe.gold_align and not task.alignment_tables:
        raise UserError(
            f"recipe {recipe.name}: gold_align is of no use with task: {recipe.task}; leave it out"
        )
    training, evaluation = task.parsers()
    left_out = {} if here else dict.fromkeys(task.devices, False)
    for one in runs:
        options = {
            **recipe.options(one.row),
            **task.stand_ins,
            "save_model": "-",
            "seed": one.seed,
            **left_out,
        }
        opt = training.parse_args(as_words(options))
        try:
            task.check_training(opt)
        except (AssertionError, ValueError, UserError) as error:
            raise UserError(f"recipe {recipe.name}, row {one.row}: {error}") from None
    task.check_evaluation(evaluation.parse_args(as_words({"model": "-", **recipe.evaluate, **left_out})))


def command_lines(recipe: Recipe, runs: Sequence[Run]) -> list[str]:
    """All that would be run, as one would type it."""
    lines = [f"python {shlex.join(_preparation(command)[1:])}" for command in recipe.prepare]
    for one in runs:
        for _, *words in (one.training(), one.evaluation()):
            lines.append(f"python {shlex.join(words)}")
    return lines


def _preparation(command: Sequence[str]) -> list[str]:
    """The process of a `prepare` command: one of `onmt_varattn` (NAME or tools/NAME.py) or a script."""
    name, *words = command
    ours = Path(name).parent in (Path(), Path("tools")) and Path(name).stem in {one.name for one in COMMANDS}
    if name.endswith(".py") and not ours:
        return [sys.executable, name, *words]
    return [sys.executable, "-m", "onmt_varattn", find_command(Path(name).stem).name, *words]


def prepare(recipe: Recipe, output: Path) -> None:
    """Run the recipe's preparation commands that are not finished."""
    stages, before = Stages(str(output / "prepared.json")), list[str]()
    for command in recipe.prepare:

        def work(command: list[str] = command) -> None:
            if code := subprocess.run(_preparation(command), check=False).returncode:
                sys.exit(code)

        name = shlex.join(command)
        stages.run(name, [], [], {"after": list(before)}, work)
        before.append(name)


if __name__ == "__main__":
    main()

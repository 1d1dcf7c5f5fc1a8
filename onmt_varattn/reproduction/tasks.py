"""The tasks of recipes: commands, checks of their options, tables and texts."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onmt_varattn.reproduction import translation_tables, vqa_tables
from onmt_varattn.reproduction.plot import Measure
from onmt_varattn.reproduction.recipe import Paper, Recipe
from onmt_varattn.reproduction.tables import Result, Results, Table
from onmt_varattn.utils.cli import Parser
from onmt_varattn.vqa.settings import check_evaluation, check_training, vqa_evaluate_parser, vqa_train_parser

MakeTable = Callable[[Results, Paper], Table]


@dataclass(frozen=True)
class Task:
    """A task: its training and evaluation commands, its tables and texts."""

    training: str  # the module of the command that trains
    evaluation: str  # and of the one that evaluates
    parsers: Callable[[], tuple[Parser, Parser]]  # of both; OpenNMT-py is imported when needed
    check_training: Callable[[Namespace], Any]  # refuses parsed options
    check_evaluation: Callable[[Namespace], object]
    tables: dict[int, list[MakeTable]]  # what comes out for each of the paper's
    measure: Measure  # what is plotted against K
    test_set: Callable[[Recipe], str]  # for the heading
    note: str  # what the numbers are, for the heading
    outcome: Callable[[Result], str]  # an evaluation in a few words
    progress: Callable[[dict[str, Any]], str]  # a line of metrics in a few words
    stand_ins: dict[str, Any] = field(default_factory=dict)  # for options whose files come with `prepare`
    devices: tuple[str, ...] = ()  # options that are checked against this machine
    alignment_tables: list[MakeTable] = field(default_factory=list)  # where a recipe has gold_align


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe."""
    return TASKS[recipe.task]


def _translation_parsers() -> tuple[Parser, Parser]:
    from onmt_varattn.nmt.parsers import evaluate_parser, train_parser

    return train_parser(), evaluate_parser()


def _check_translation_training(opt: Namespace) -> None:
    from onmt_varattn.nmt.parsers import check_model_options

    check_model_options(opt)


def _check_translation_evaluation(opt: Namespace) -> None:
    from onmt_varattn.nmt.parsers import check_evaluation

    check_evaluation(opt)


def _vqa_outcome(result: Result) -> str:
    natural = result["natural"]
    return f"NLL {result['nll'][natural]:.2f}, accuracy {result['accuracy'][natural]:.1f}"


def _vqa_test_set(recipe: Recipe) -> str:
    part = recipe.evaluate.get("part", "test")
    return f"{part} questions of `{Path(recipe.evaluate['data']).name}`"


TASKS = {
    "translation": Task(
        training="onmt_varattn.bin.nmt.train",
        evaluation="onmt_varattn.bin.analysis.evaluate",
        parsers=_translation_parsers,
        check_training=_check_translation_training,
        check_evaluation=_check_translation_evaluation,
        tables={
            1: [translation_tables.table_1],
            2: [translation_tables.table_2, translation_tables.kmax_table],
            3: [translation_tables.table_3, translation_tables.entropy_table],
        },
        measure=Measure("ppl", "Perplexity", "test perplexity", "log"),
        test_set=lambda recipe: f"test set `{Path(recipe.evaluate['src']).name}`",
        note="Perplexity is per token as trained and tested (exact for latent attention, soft for soft, by "
        "sampling for relaxed).",
        outcome=lambda result: f"perplexity {result['ppl'][result['natural']]:.2f}",
        progress=lambda line: f"ppl {line.get('ppl', float('nan')):.2f}",
        stand_ins={"config": False, "data": "{}", "src_vocab": "-"},
        alignment_tables=[translation_tables.alignment_table],
    ),
    "vqa": Task(
        training="onmt_varattn.bin.vqa.train",
        evaluation="onmt_varattn.bin.vqa.evaluate",
        parsers=lambda: (vqa_train_parser(), vqa_evaluate_parser()),
        check_training=check_training,
        check_evaluation=check_evaluation,
        tables={
            1: [vqa_tables.table_1, vqa_tables.answer_type_table],
            2: [vqa_tables.kmax_table, vqa_tables.kmax_accuracy_table],
            3: [vqa_tables.table_3, vqa_tables.entropy_table, vqa_tables.box_table],
        },
        measure=Measure("nll", "NLL", "test NLL, in nats per question", "linear"),
        test_set=_vqa_test_set,
        note="NLL is in nats per question, of one answer drawn from its annotators' (those in the "
        "vocabulary); accuracy is the official VQA accuracy in percent. Both are as trained and tested "
        "(exact for latent attention, soft for soft).",
        outcome=_vqa_outcome,
        progress=lambda line: f"NLL {line.get('nll', float('nan')):.2f}",
        devices=("gpu_ranks", "gpu"),
    ),
}

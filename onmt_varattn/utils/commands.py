"""The table of all commands: `onmt_varattn` lists and runs them, and each has a script onmt_NAME."""

import difflib
from typing import NamedTuple

from onmt_varattn.errors import UserError


class Command(NamedTuple):
    """One command.

    Args:
        name: as in `onmt_varattn NAME` and `onmt_NAME`.
        module: module whose `main` runs it, below `onmt_varattn.bin`.
        summary: one line of help.
    """

    name: str
    module: str
    summary: str


COMMANDS = [
    Command("preprocess", "nmt.preprocess", "Learn subwords and vocabularies and write the data for train."),
    Command("train", "nmt.train", "Train a translation model."),
    Command("translate", "nmt.translate", "Translate text files or standard input."),
    Command("translate_dynamic", "nmt.translate_dynamic", "Translate, applying OpenNMT-py's transforms."),
    Command("build_vocab", "nmt.build_vocab", "Build vocabularies with OpenNMT-py's transforms."),
    Command("average_models", "nmt.average_models", "Average the parameters of several checkpoints."),
    Command("release_model", "nmt.release_model", "Remove the optimiser from a checkpoint."),
    Command("server", "nmt.server", "Serve translation models over HTTP."),
    Command("demo", "nmt.demo", "Train and translate on the toy corpus, in minutes."),
    Command("evaluate", "analysis.evaluate", "Report PPL, ELBO, KL, entropy, BLEU and AER of models."),
    Command("align", "analysis.align", "Align the words of parallel text."),
    Command("plot_alignment", "analysis.plot_alignment", "Draw the alignments of sentence pairs."),
    Command("explore", "analysis.explore", "Write an interactive page with the alignments of a model."),
    Command("reproduce", "analysis.reproduce", "Reproduce the paper's tables from a recipe."),
    Command("vqa_preprocess", "vqa.preprocess", "Prepare questions, answers and image features."),
    Command("vqa_train", "vqa.train", "Train a visual question answering model."),
    Command(
        "vqa_evaluate", "vqa.evaluate", "Evaluate visual question answering models, or ask one a question."
    ),
    Command("make_scenes", "vqa.make_scenes", "Write toy scenes with questions in the formats of VQA 2.0."),
    Command("make_toy_corpus", "corpora.make_toy_corpus", "Write a toy corpus with gold word alignments."),
    Command("prepare_iwslt14", "corpora.prepare_iwslt14", "Download and prepare IWSLT14 German-English."),
    Command("prepare_wmt17", "corpora.prepare_wmt17", "Download and prepare WMT17 English-German."),
    Command("doctor", "doctor", "Check the installation: packages, scripts, devices."),
]


def find_command(name: str) -> Command:
    """Look up a command by name.

    Raises:
        UserError: no command has this name; the message has the nearest one.
    """
    for command in COMMANDS:
        if command.name == name:
            return command
    near = difflib.get_close_matches(name, [command.name for command in COMMANDS], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UserError(f"unknown command {name}{hint} (onmt_varattn -h lists all commands)")


def listing() -> str:
    """All commands with their summaries, one per line."""
    return "\n".join(f"  {command.name:18} {command.summary}" for command in COMMANDS)

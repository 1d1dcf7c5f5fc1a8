"""Write docs/options.md: below the line MARKER one section per command, with one table per group of options.

Run `make options` after a setting has changed; a test compares the page with the settings.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onmt_varattn.bin.analysis.align import AlignSettings
from onmt_varattn.bin.analysis.explore import ExploreSettings
from onmt_varattn.bin.analysis.plot_alignment import PlotSettings
from onmt_varattn.bin.nmt.average_models import AverageSettings
from onmt_varattn.bin.nmt.release_model import ReleaseSettings
from onmt_varattn.bin.nmt.server import ServerSettings
from onmt_varattn.nmt.data.settings import preprocess_parser
from onmt_varattn.nmt.parsers import evaluate_parser, train_parser, translate_parser, vocabulary_parser
from onmt_varattn.nmt.settings import TrainSettings, TranslateSettings
from onmt_varattn.utils.cli import Parser, parser_of
from onmt_varattn.utils.settings import options
from onmt_varattn.vqa.settings import vqa_evaluate_parser, vqa_preprocess_parser, vqa_train_parser

MARKER = "<!-- Written by make options from the settings; do not edit below. -->"
PAGE = Path(__file__).parents[1] / "options.md"


def parsers() -> dict[str, Parser]:
    """Every command's parser by the command's name."""
    return {
        "onmt_train": train_parser(),
        "onmt_translate": translate_parser(),
        "onmt_translate_dynamic": translate_parser(dynamic=True),
        "onmt_preprocess": preprocess_parser(),
        "onmt_evaluate": evaluate_parser(),
        "onmt_align": parser_of(AlignSettings),
        "onmt_plot_alignment": parser_of(PlotSettings),
        "onmt_explore": parser_of(ExploreSettings),
        "onmt_build_vocab": vocabulary_parser(),
        "onmt_average_models": parser_of(AverageSettings),
        "onmt_release_model": parser_of(ReleaseSettings),
        "onmt_server": parser_of(ServerSettings),
        "onmt_vqa_preprocess": vqa_preprocess_parser(),
        "onmt_vqa_train": vqa_train_parser(),
        "onmt_vqa_evaluate": vqa_evaluate_parser(),
    }


def options_text() -> str:
    """Markdown: a section for each command."""
    return "\n".join(line for name, parser in parsers().items() for line in _command(name, parser))


def _command(name: str, parser: Parser) -> Iterator[str]:
    known = {"-h", "--help"}
    yield from [f"## {name}", "", _prose(parser.description), ""]
    if name == "onmt_translate_dynamic":
        # The whole list again would only hide what differs.
        known = {option for action in translate_parser()._actions for option in action.option_strings}
        yield from ["All options of onmt_translate, and these:", ""]
    groups = {}
    for group in parser._action_groups:
        if actions := [action for action in group._group_actions if not known >= {*action.option_strings}]:
            groups[group.title] = group.description, actions
    ours = groups.keys() - {"Configuration"} if name == "onmt_preprocess" else _our_groups()
    for title in sorted(groups, key=lambda title: title not in ours):  # ours first, else as they come
        description, actions = groups[title]
        yield from [f"### {title[0].upper()}{title[1:]}", ""]
        if description:
            yield from [_prose(description), ""]
        yield from ["| option | default | choices | meaning |", "|---|---|---|---|"]
        yield from (_row(action) for action in actions)
        yield ""


def _our_groups() -> set[str]:
    """The groups that are added to OpenNMT-py's parsers, which have one named Model."""
    kinds = (TrainSettings, TranslateSettings)
    return {one.group for kind in kinds for one in options(kind) if one.meta.help} - {"Model"}


def _row(action: argparse.Action) -> str:
    # Most options have one name, with one dash and with two: the second is not news.
    names = dict.fromkeys("-" + name.lstrip("-") for name in action.option_strings)
    choices = ", ".join(_code(choice) for choice in action.choices or [])
    help_text = (action.help or "") % {**vars(action), "prog": ""}
    return f"| {', '.join(map(_code, names))} | {_default(action)} | {choices} | {_prose(help_text)} |"


def _default(action: argparse.Action) -> str:
    if action.required:
        return "required"
    if action.nargs == 0:
        return "on" if action.default else "off"
    if action.default is None and (told := re.search(r"Default: (.*?)\.(?=\s|$)", action.help or "")):
        return _prose(told[1])  # a default that depends on other options
    if action.default in (None, [], ""):
        return ""
    values = action.default if isinstance(action.default, list) else [action.default]
    return _code(" ".join(map(str, values)))


def _code(value: Any) -> str:
    text = str(value).replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _prose(text: str) -> str:
    """A help text as Markdown on one line: OpenNMT's reStructuredText is undone, all else escaped."""
    text = " ".join(text.split())
    text = re.sub(r"^\.\. \w+:: ", "", text)
    text = re.sub(r"`([^`<]+) <([^`>]+)>`__?", r"\1 (\2)", text)
    text = re.sub(r":\w+:`", "`", text)
    parts = re.split(r"(`+)(.+?)\1", text)  # prose, ticks, code, prose, ...
    return "".join(
        _code(part) if i % 3 == 2 else re.sub(r"([\\`*_{}\[\]<>|$#~])", r"\\\1", part)
        for i, part in enumerate(parts)
        if i % 3 != 1
    )


def page() -> str:
    """The page: its text up to MARKER, and all tables."""
    text, _, _ = PAGE.read_text("utf-8").partition(MARKER)
    return f"{text}{MARKER}\n\n{options_text()}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

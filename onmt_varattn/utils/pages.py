"""Markdown: tables, and pages with a generated part between two comments."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from onmt_varattn.utils.files import atomic_write


def marks(part: str) -> tuple[str, str]:
    """The comments around a generated part of a page."""
    return f"<!-- {part}: begin -->", f"<!-- {part}: end -->"


def has_marks(path: Path, part: str) -> bool:
    """Whether a page exists and contains the comments of a generated part."""
    text = path.read_text("utf-8") if path.is_file() else ""
    return all(mark in text for mark in marks(part))


def update(path: Path, part: str, text: str) -> None:
    """Replace a generated part of a page."""
    begin, end = marks(part)
    before, _, rest = path.read_text("utf-8").partition(begin)
    _, _, after = rest.partition(end)
    with atomic_write(str(path)) as file:
        file.write(f"{before}{begin}\n{text}{end}{after}")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int | None = None) -> str:
    """A Markdown table.

    Args:
        columns: headings.
        rows: cells as text.
        text_columns: pad cells so that the source is readable too, and align all columns after this many
            to the right; None for neither.
    """
    every = [list(columns), *map(list, rows)]
    if text_columns is None:
        every.insert(1, ["---"] * len(columns))
    else:
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        rule = ["-" * (width - 1) + ("-" if i < text_columns else ":") for i, width in enumerate(widths)]
        every = [
            [
                cell.ljust(width) if i < text_columns else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            for line in every
        ]
        every.insert(1, rule)
    return "\n".join(f"| {' | '.join(line)} |" for line in every)

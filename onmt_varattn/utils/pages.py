"""Pages with a part that a program writes, between two marks that readers do not see."""

from pathlib import Path

from onmt_varattn.utils.files import atomic_write


def marks(part: str) -> tuple[str, str]:
    """Between which a part stands."""
    return f"<!-- {part}: begin -->", f"<!-- {part}: end -->"


def has_marks(path: Path, part: str) -> bool:
    """Whether a page has a place for a part."""
    text = path.read_text("utf-8") if path.is_file() else ""
    return all(mark in text for mark in marks(part))


def update(path: Path, part: str, text: str) -> None:
    """Replace what stands between a part's marks."""
    begin, end = marks(part)
    before, _, rest = path.read_text("utf-8").partition(begin)
    _, _, after = rest.partition(end)
    with atomic_write(str(path)) as file:
        file.write(f"{before}{begin}\n{text}{end}{after}")

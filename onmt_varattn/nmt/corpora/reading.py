"""The markup that corpora come in, to lines of text; one line at a time, however long the file."""

import codecs
import html
import re
from collections.abc import Callable, Iterable, Iterator

from onmt_varattn.errors import UserError

LONGEST = 16 << 20  # bytes of a line, which is held in memory
ABOUT_THE_TALK = ("<url>", "<talkid>", "<keywords>")
AROUND_TEXT = re.compile(r"</?(?:title|description)>")
SEGMENT = re.compile(r"<seg id[^>]*>\s*(.*?)\s*</seg>")
ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+);")


def stream_lines(path: str) -> Iterator[str]:
    """The lines of a UTF-8 file; only a line feed ends one, as in `files.read_lines`.

    Raises:
        UserError: the file cannot be read, is not UTF-8, or has a line longer than `LONGEST`.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
                if len(line) > LONGEST:
                    raise UserError(
                        f"{path}, line {number}: longer than {LONGEST:,} bytes; the archive is not the "
                        "published one"
                    )
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}, line {number}: not UTF-8; the archive is not the published one") from None


def plain(lines: Iterable[str]) -> Iterator[str]:
    """One sentence a line as it is."""
    yield from lines


def talks(lines: Iterable[str]) -> Iterator[str]:
    """TED transcripts: what is about a talk is left out, but its title and description are text."""
    for line in lines:
        if not any(tag in line for tag in ABOUT_THE_TALK):
            yield AROUND_TEXT.sub("", line)


def segments(lines: Iterable[str]) -> Iterator[str]:
    """The `<seg>` elements of an XML or SGML test set, which need not be well-formed."""
    for line in lines:
        if found := SEGMENT.search(line):
            yield ENTITY.sub(lambda entity: html.unescape(entity[0]), found[1])


def talk_segments(lines: Iterable[str]) -> Iterator[str]:
    """`segments` of TED test sets, whose apostrophes are not always the training text's."""
    for line in segments(lines):
        yield line.replace("’", "'")


FORMS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "plain": plain,
    "segments": segments,
    "talk_segments": talk_segments,
    "talks": talks,
}

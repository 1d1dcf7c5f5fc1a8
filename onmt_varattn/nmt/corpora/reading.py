"""Formats of published corpora, from lines of a file to lines of text."""

import functools
import html
import re
from collections.abc import Callable, Iterable, Iterator

from onmt_varattn.utils.reading import stream_lines

corpus_lines = functools.partial(
    stream_lines, longest=16 << 20, advice="the archive is not the published one"
)
"""The lines of a file of a corpus; each is held in memory, so its length is bounded."""

ABOUT_THE_TALK = ("<url>", "<talkid>", "<keywords>")
AROUND_TEXT = re.compile(r"</?(?:title|description)>")
SEGMENT = re.compile(r"<seg id[^>]*>\s*(.*?)\s*</seg>")
ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+);")


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

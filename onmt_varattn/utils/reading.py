"""Readers of text files: lines, parallel files, JSON.

A text file is UTF-8. Only a line feed ends a line, so that a stray U+2028 inside a sentence cannot shift
two parallel files against each other; a carriage return before it is removed.
"""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from onmt_varattn.errors import FailedError, UserError, warn

BYTE_ORDER_MARK = codecs.BOM_UTF8
TO_UTF8 = "convert the file to UTF-8"


def read_bytes(path: str) -> bytes:
    """The content of a file.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def decode(line: bytes, place: str, advice: str = TO_UTF8) -> str:
    """A line of a UTF-8 file, without its line end.

    Args:
        line: the line.
        place: file and line number, for the error message.
        advice: end of the error message.

    Raises:
        UserError: the line is not UTF-8.
    """
    try:
        return line.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1}); {advice}"
        ) from None


def stream_lines(
    path: str, keep_mark: bool = False, longest: int = -1, advice: str = TO_UTF8
) -> Iterator[str]:
    """The lines of a file, one at a time.

    Args:
        path: the file.
        keep_mark: refuse a byte order mark, because the program that reads the file next would keep it as
            a part of the first word; by default it is removed.
        longest: largest number of bytes per line; -1 for any.
        advice: end of the messages about content that cannot be read.

    Raises:
        UserError: the file is missing, cannot be read, is not UTF-8, or has too long a line.
    """
    try:
        with open(path, "rb") as file:
            limit = longest + 1 if longest >= 0 else -1
            for number, line in enumerate(iter(lambda: file.readline(limit), b""), 1):
                if 0 <= longest < len(line):
                    raise UserError(f"{path}, line {number}: longer than {longest:,} bytes; {advice}")
                if number == 1 and line.startswith(BYTE_ORDER_MARK):
                    if keep_mark:
                        raise UserError(
                            f"{path}: begins with a byte-order mark, which would be a part of its first "
                            "word; save it as UTF-8 without one, or have onmt_preprocess read it"
                        )
                    line = line.removeprefix(BYTE_ORDER_MARK)
                yield decode(line, f"{path}, line {number}", advice)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def input_lines(stream: TextIO, name: str) -> Iterator[str]:
    """The lines of a stream such as standard input, one at a time, read as those of files are.

    Args:
        stream: stream of text; its bytes are read where it has any.
        name: name for error messages.

    Raises:
        FailedError: the stream is closed, or cannot be read for another reason.
        UserError: it is not UTF-8.
    """
    lines, number = iter(getattr(stream, "buffer", stream)), 0
    while True:
        try:
            line = next(lines)
        except StopIteration:
            return
        except OSError as error:
            raise FailedError(f"{name}: cannot be read: {error.strerror}") from None
        number += 1
        content = line if isinstance(line, bytes) else line.encode("utf-8")
        if number == 1:
            content = content.removeprefix(BYTE_ORDER_MARK)
        yield decode(content, f"{name}, line {number}")


def read_lines(path: str) -> list[str]:
    """The lines of a file. A byte order mark is removed; carriage returns inside lines give a warning.

    Raises:
        UserError: the file is missing, cannot be read, is not UTF-8, or is a single line with carriage
            returns inside.
    """
    lines = list(stream_lines(path))
    check_carriage_returns(path, lines)
    return lines


def check_carriage_returns(path: str, lines: Iterable[str]) -> None:
    """Warn of carriage returns inside lines; inside a single line they are taken for line ends.

    Args:
        path: the file.
        lines: its lines.

    Raises:
        UserError: there is one line.
    """
    count, within = 0, []
    for count, line in enumerate(lines, 1):
        if "\r" in line:
            within.append(count)
    if within and count == 1:
        raise UserError(
            f"{path}: a single line with carriage returns inside; lines end at line feeds, so convert them "
            "(tr '\\r' '\\n'), or take them out"
        )
    if within:
        warn(
            f"{path}: {len(within):,} of {count:,} lines have carriage returns inside, the first is line "
            f"{within[0]}; lines end at line feeds, and these are read as spaces"
        )


def check_parallel(paths: Sequence[str], lines: Sequence[int], prefix: str = "") -> None:
    """Check that parallel files have the same number of lines, and some.

    Args:
        paths: the files.
        lines: number of lines of each.
        prefix: beginning of the error message.

    Raises:
        UserError: a file is empty, or two differ.
    """
    for path, count in zip(paths, lines, strict=True):
        if not count:
            raise UserError(f"{prefix}{path}: the file is empty")
        if count != lines[0]:
            raise UserError(
                f"{prefix}{paths[0]} has {lines[0]:,} lines and {path} has {count:,}; parallel files need as "
                "many"
            )


def read_parallel(source_path: str, target_path: str) -> list[tuple[str, str]]:
    """The sentence pairs of two files.

    Raises:
        UserError: a file is missing or empty, or they have different numbers of lines.
    """
    source, target = read_lines(source_path), read_lines(target_path)
    check_parallel([source_path, target_path], [len(source), len(target)])
    return list(zip(source, target, strict=True))


def read_json(path: str, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The value of a UTF-8 JSON file, with or without a byte order mark.

    Args:
        path: path of the file.
        object_hook: replaces objects while they are parsed, see `json.loads`.

    Raises:
        UserError: the file cannot be read, is empty or not JSON; the message names line and column.
    """
    content = read_bytes(path).removeprefix(BYTE_ORDER_MARK)
    if not content.strip():
        raise UserError(f"{path}: the file is empty")
    try:
        return json.loads(content.decode("utf-8"), object_hook=object_hook)
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = content[before.rfind(b"\n") + 1 :].partition(b"\n")[0]
        decode(line, f"{path}, line {before.count(10) + 1}")
        raise
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}; is the file complete?"
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        raise UserError(f"{path}: cannot be read as JSON: {error}") from None

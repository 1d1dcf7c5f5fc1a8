"""Checkpoint files: data in, data out, and nothing that a file holds is ever called.

container.py    the format that is written: tensors and one JSON document, with a checksum
pickles.py      what OpenNMT-py and version 0.1 wrote: pickles, interpreted without Python's unpickler
trees.py        what both give: dictionaries, lists, texts, numbers and tensors
options.py      options out of a file: typed, in their ranges, and never the name of a file
fitting.py      parameters out of a file: compared with the model's before memory is taken for it
"""

import os
import stat
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.training.checkpoints import container, pickles
from onmt_varattn.training.checkpoints.trees import BrokenError
from onmt_varattn.utils.files import atomic_write

__all__ = ["read", "write"]


def read(path: str, lazily: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Args:
        path: a file of ours, or one that torch saved for OpenNMT-py or for version 0.1.
        lazily: read everything but tensors, which are of the right shapes on the device "meta"; damage
            to their data goes unnoticed.

    Returns:
        Its parts by name. Of a file that torch saved, `vocab` holds `pickles.Record`s.

    Raises:
        UserError: it is missing, damaged, or has something that no checkpoint needs.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: there is no such checkpoint")
    try:
        with open(path, "rb", opener=_open) as file:
            reader = pickles if pickles.is_archive(file) else container
            content = reader.read(file, lazily)
    except BrokenError as error:
        raise UserError(f"{path}: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise UserError(f"{path}: refused: it is nested too deeply for a checkpoint") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a checkpoint: it has no named parts")
    return content


def _open(path: str, flags: int) -> int:
    """Open a regular file; anything else that stands there now could keep us waiting, or never end."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BrokenError("not a file")
    return handle


def write(content: dict[str, Any], path: str) -> None:
    """Write a checkpoint so that at any moment `path` is whole: the old one or the new one.

    Args:
        content: dictionaries, lists, tuples, texts, numbers, None and tensors.
        path: where.
    """
    with atomic_write(path, "wb") as file:
        container.write(content, file)

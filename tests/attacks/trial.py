"""A process that tries files on entry points, and reports one line of JSON for each.

    python -m tests.attacks.trial WORLD JOBS

JOBS is a file with a list of [number, path, point]; the report goes to standard output. After each one it
waits for a line on standard input: traces of the next file must not be taken for those of this one.
"""

import importlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.attacks import world
from tests.attacks.entry_points import POINTS, VQA
from tests.attacks.watch import TooSlowError, Watch, limit_memory, peak_memory, time_limit

_LATE = (
    "sacremoses",
    "sentencepiece",
    "subword_nmt.apply_bpe",
    "torch._subclasses.schema_check_mode",
    "encodings.raw_unicode_escape",
    "encodings.unicode_escape",
)
"""What text processing, torch's error messages and pickletools import when they are first needed."""

TIME = float(
    os.environ.get("ATTACK_SECONDS", 20)
)  # for one file at one entry point, and a second per megabyte
ADDRESS_SPACE = 2 << 30  # bytes beyond those of a process that is warm: what stops an attack on this machine


def attempt(watch: Watch, point: str, path: Path, may_read: list[Path], scratch: Path) -> dict[str, Any]:
    """Try a file on an entry point; returns what came of it."""
    from onmt_varattn.errors import UserError

    result, failure = None, None
    sys.argv[0] = point
    with Capture() as output:
        grown, start = peak_memory(), time.perf_counter()
        with watch.watching([path, *may_read], scratch) as record:
            try:
                tempfile.tempdir = str(scratch)  # for locks
                megabytes = path.stat().st_size / 1e6 if path.is_file() else 0
                with time_limit(TIME + megabytes):
                    result = POINTS[point](path, scratch)
            except BaseException as error:  # SystemExit and all that a file may make of it
                failure = error
            finally:
                tempfile.tempdir = None
        seconds, memory = time.perf_counter() - start, grown()
    code, trace, line = 0, "", ""
    if isinstance(failure, UserError):
        code, line = 2, f"{point}: error: {failure}"
    elif isinstance(failure, SystemExit):
        code = failure.code if isinstance(failure.code, int) else int(failure.code is not None)
    elif failure is not None:
        slow = "too slow: " if isinstance(failure, TooSlowError) else ""
        code, trace = 1, slow + "".join(traceback.format_exception(failure, limit=-12))
    return {
        "code": code, "stderr": output.text(2) + line, "trace": trace, "result": result, "events": record.events,
        "seconds": seconds, "memory": memory, "program": sys.argv[0],
        "size": path.stat().st_size if path.is_file() else 0,
        "left": sorted(str(file.relative_to(scratch)) for file in scratch.rglob("*")), "record": record,
    }  # fmt: skip


class Capture:
    """Standard output and error of a block, also of what is not Python."""

    def __enter__(self) -> "Capture":
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = {number: os.dup(number) for number in (1, 2)}
        self._files = {number: tempfile.TemporaryFile() for number in (1, 2)}
        for number, file in self._files.items():
            os.dup2(file.fileno(), number)
        return self

    def __exit__(self, *_: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, saved in self._saved.items():
            os.dup2(saved, number)
            os.close(saved)

    def text(self, number: int) -> str:
        file = self._files[number]
        file.seek(0)
        return file.read().decode("utf-8", "replace")


def prepare(watch: Watch, points: set[str], may_read: list[Path], outside: Path) -> None:
    """Do what entry points do with good and with bad files, so that what is new later is the file's doing."""
    for module in _LATE:
        importlib.import_module(module)
    bad = outside / "bad.pt"
    bad.write_text("no checkpoint\n")
    goods = world.copy_old(outside)
    for point in sorted(points):
        for path in [goods[kind] for kind in (["vqa"] if point in VQA else ["translation", "stock"])] + [bad]:
            with tempfile.TemporaryDirectory(dir=outside) as scratch:
                record = attempt(watch, point, path, may_read, Path(scratch))["record"]
            watch.known.reads |= record.reads
            watch.known.imports |= record.imports | set(sys.modules)


def main(directory: str, jobs: str) -> None:
    """Warm up, and try all jobs."""
    import torch

    torch.set_num_threads(1)
    wanted = json.loads(Path(jobs).read_text())
    report, go_on = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # not for files to read
    os.chdir(directory)
    watch = Watch()
    may_read = [Path(directory)]
    with tempfile.TemporaryDirectory() as outside:
        prepare(watch, {point for _, _, point in wanted}, may_read, Path(outside))
        limit_memory(ADDRESS_SPACE)
        scratch = Path(outside) / "scratch"
        for number, path, point in wanted:
            print(json.dumps({"number": number, "begins": True}), file=report, flush=True)
            scratch.mkdir()
            outcome = attempt(watch, point, Path(path), may_read, scratch)
            del outcome["record"]
            shutil.rmtree(scratch)
            print(json.dumps({"number": number, **outcome}, default=repr), file=report, flush=True)
            if not go_on.readline() or "too slow" in outcome["trace"]:
                os._exit(3)  # what was interrupted may be left in any state
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Change good and crafted checkpoints at random, and try them on random entry points, for as long as one likes.

    python -m tests.fuzz -minutes 10 [-seed N] [-output DIR] [-corpus]

Each file is refused in one sentence or harmless; all else is a finding, which is saved with the seed it
came from. Exit code 1 if there are any.
"""

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from tests.attacks import mutators
from tests.attacks.arena import Arena
from tests.attacks.cases import REFUSED, SAFE, Case, MissingError, corpus
from tests.attacks.entry_points import for_kind
from tests.attacks.harness import Job, Tried
from tests.attacks.tensors_file import is_tensors_file

BATCH = 150  # files that one process tries
LARGEST = 2 << 20  # bytes of a file that is changed further; others take too long
POINTS = 3  # entry points for a file


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz the loading of checkpoints."
    )
    parser.add_argument("-minutes", type=float, default=10, help="How long.")
    parser.add_argument("-seed", type=int, default=None, help="Of the first file. Default: by the clock.")
    parser.add_argument(
        "-output", type=Path, default=Path("runs/fuzz"), help="Directory for findings. Default: runs/fuzz."
    )
    parser.add_argument(
        "-corpus",
        action="store_true",
        help="First try all crafted files on all entry points, which takes minutes.",
    )
    opt = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seed = int(time.time()) if opt.seed is None else opt.seed
    with tempfile.TemporaryDirectory() as directory:
        fuzzer = Fuzzer(Path(directory), opt.output)
        if opt.corpus:
            fuzzer.try_corpus()
        fuzzer.fuzz(60 * opt.minutes, seed)
    print(fuzzer.summary(), f"first seed {seed}")
    sys.exit(1 if fuzzer.counts["findings"] else 0)


class Fuzzer:
    """Makes files, has them tried, and keeps account.

    Args:
        directory: to work in.
        output: for findings; made when there is one.
    """

    def __init__(self, directory: Path, output: Path) -> None:
        self.output = output
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self._last: Path | None = None
        self._saved: set[tuple[str, str, str]] = set()
        shown = sys.stdout
        sys.stdout = sys.stderr  # what training prints
        self.arena = Arena(directory)
        sys.stdout = shown
        self.cases = corpus()
        goods = {
            **self.arena.goods.old,
            **{f"new {kind}": path for kind, path in self.arena.goods.new.items()},
        }
        self.goods = [
            ("vqa" if "vqa" in name else "translation", path.read_bytes()) for name, path in goods.items()
        ]

    def try_corpus(self) -> None:
        """Every crafted file at every entry point."""
        jobs, _ = self.arena.jobs(self.cases, every_point=True)
        for tried in tqdm(self.arena.run(jobs), total=len(jobs), unit=" trials", desc="corpus"):
            self.count(tried, {})
        self._clean()

    def fuzz(self, seconds: float, seed: int) -> None:
        """Files of random changes, until the time is over."""
        end = time.monotonic() + seconds
        with tqdm(total=round(seconds), unit="s", desc="fuzzing") as bar:
            while time.monotonic() < end:
                origins = {}
                jobs: list[Job] = []
                for number in range(seed, seed + BATCH):
                    path = self.arena.files / f"{number}.pt"
                    expected, kind, changes = self.write(path, number)
                    origins[path] = {"seed": number, "changes": changes}
                    points = random.Random(number).sample(for_kind(kind)[:-1], POINTS if kind != "vqa" else 2)
                    jobs += [
                        Job(f"seed {number} ({', '.join(changes)})", path, point, expected)
                        for point in points
                    ]
                seed += BATCH
                for tried in self.arena.run(jobs):
                    self.count(tried, origins[tried.job.path])
                    bar.n = min(round(seconds), round(seconds - (end - time.monotonic())))
                    bar.set_postfix(trials=self.counts["trials"], findings=self.counts["findings"])
                    if time.monotonic() > end:
                        break
                self._clean()

    def write(self, path: Path, seed: int) -> tuple[str, str, list[str]]:
        """Write the file of a seed; returns what is expected, the kind of model, and what was done."""
        draw = random.Random(seed)
        kind, good = draw.choice(self.goods)
        if draw.random() < 0.3 and (found := self._crafted(path, draw)) is not None:
            case, content = found
            changed, names = mutators.mutate(content, draw, 2)
            path.write_bytes(changed)
            return SAFE, case.kind, [case.name, *names]
        changed, names = mutators.mutate(good, draw)
        path.write_bytes(changed)
        # The CRC of the new format finds every change that does not put it right.
        blind = is_tensors_file(path) and set(names) == {"change_bytes"} and changed != good
        return REFUSED if blind else SAFE, kind, names

    def _crafted(self, path: Path, draw: random.Random) -> tuple[Case, bytes] | None:
        """A crafted file to change further, if one was drawn that can be."""
        case = draw.choice(
            [case for case in self.cases if case.group in ("pickle", "tensor", "content", "format")]
        )
        try:
            case.make(self.arena.goods, path)
        except MissingError:
            return None
        content = path.read_bytes() if path.is_file() and path.stat().st_size < LARGEST else b""
        path.unlink(missing_ok=True)
        return (case, content) if content else None

    def count(self, tried: Tried, origin: dict[str, object]) -> None:
        """Count a trial, and save what was found."""
        self.counts["trials"] += 1
        self.counts["files"] += tried.job.path != self._last
        self._last = tried.job.path
        self.counts["findings" if tried.findings else "refused" if tried.refused else "harmless"] += 1
        self.kinds.update({finding.kind for finding in tried.findings})
        for finding in tried.findings:
            # One of a kind is saved: the same line of the same traceback comes again and again.
            mark = (finding.kind, tried.job.point, finding.what[:60])
            if mark not in self._saved:
                self._saved.add(mark)
                self._save(tried, origin, f"{len(self._saved):04}-{finding.kind}")

    def _save(self, tried: Tried, origin: dict[str, object], name: str) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        what = {
            "case": tried.job.case, "point": tried.job.point, "expected": tried.job.expected, **origin,
            "findings": list(map(str, tried.findings)), **tried.outcome,
        }  # fmt: skip
        (self.output / f"{name}.json").write_text(json.dumps(what, indent=1, default=str) + "\n", "utf-8")
        if tried.job.path.is_file() and not tried.job.path.is_symlink():
            shutil.copy(tried.job.path, self.output / f"{name}.pt")

    def _clean(self) -> None:
        for path in self.arena.files.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def summary(self) -> str:
        """All counts in one line."""
        counts = ", ".join(
            f"{self.counts[name]:,} {name}" for name in ("trials", "refused", "harmless", "findings")
        )
        kinds = ", ".join(f"{kind} {number}" for kind, number in self.kinds.most_common())
        where = f" ({kinds}; {len(self._saved)} different ones in {self.output})" if kinds else ""
        return f"{self.counts['files']:,} files: {counts}{where};"


if __name__ == "__main__":
    main()

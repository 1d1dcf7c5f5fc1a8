"""onmt_doctor: check the installation."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Sequence

from onmt_varattn.errors import EXTRAS, PINNED
from onmt_varattn.utils.cli import run
from onmt_varattn.version import __version__

PACKAGES = [
    "OpenNMT-py",
    "torch",
    "torchtext",
    "sentencepiece",
    "sacrebleu",
    "sacremoses",
    "subword-nmt",
    "entmax",
]
OLDEST_TORCH = (2, 6)


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: check(list(sys.argv[1:] if args is None else args)))


def check(words: list[str]) -> None:
    """Run the doctor, and exit with its code."""
    if words:
        print("usage: onmt_varattn doctor      check packages, scripts and devices; it takes no options")
        sys.exit(0 if words in (["-h"], ["--help"]) else 2)
    sys.exit(doctor())


def doctor() -> int:
    """Print the state of the installation; return 0 if there is no problem, 1 otherwise."""
    problems: list[str] = []
    print(f"onmt_varattn {__version__}, Python {platform.python_version()}, {platform.platform()}")
    _packages(problems)
    _scripts(problems)
    _devices(problems)
    _seam(problems)
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print("no problem found" if not problems else f"{len(problems)} problem{'s' * (len(problems) > 1)}")
    return int(bool(problems))


def _packages(problems: list[str]) -> None:
    print("\npackages")
    for package in PACKAGES:
        found = _version(package)
        print(f"  {package:14} {found or 'missing'}")
        if not found:
            pinned = {"OpenNMT-py": PINNED["onmt"], "torchtext": PINNED["torchtext"]}
            problems.append(f"{package} is not installed: pip install {pinned.get(package, package)}")
        elif package == "torch" and tuple(int(part) for part in found.split(".")[:2]) < OLDEST_TORCH:
            problems.append(
                f"torch {found} is too old for the safe checkpoint loader: pip install 'torch>=2.6'"
            )
    print("\noptional packages")
    for name, extra in EXTRAS.values():
        found = _version(name)
        missing = f"missing; for the commands that need it: pip install 'onmt-varattn[{extra}]'"
        print(f"  {name:14} {found or missing}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _scripts(problems: list[str]) -> None:
    """Check that the shell finds this package's scripts; OpenNMT-py installs some of the same names."""
    print("\nscripts")
    entry_points = importlib.metadata.entry_points(group="console_scripts")
    ours = sorted({point.name for point in entry_points if point.value.startswith("onmt_varattn.")})
    if not ours:
        problems.append("onmt_varattn is not installed, only importable: pip install .")
    for name in ours:
        # This Python's own scripts first: a virtual environment need not be activated to be used.
        beside = os.path.join(os.path.dirname(sys.executable), name)
        path = beside if os.path.exists(beside) else shutil.which(name)
        owner = _owner(path)
        print(f"  {name:24} {owner:14} {path or ''}")
        if owner != "onmt_varattn":
            found = "missing" if path is None else f"{owner}, not ours"
            problems.append(
                f"{name} is {found}: pip install --force-reinstall --no-deps onmt-varattn "
                "(installing OpenNMT-py afterwards puts its own scripts back)"
            )


def _owner(script: str | None) -> str:
    if script is None:
        return "missing"
    with open(script, encoding="utf-8", errors="replace") as file:
        text = file.read(10_000)
    return "onmt_varattn" if "onmt_varattn" in text else "OpenNMT-py's" if "onmt" in text else "unknown"


def _devices(problems: list[str]) -> None:
    print("\ndevices")
    try:
        import torch
    except ImportError as error:
        problems.append(f"torch does not import: {error}")
        return
    threads = torch.get_num_threads()
    print(f"  CPU, {threads} thread{'s' * (threads > 1)}")
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        print(f"  GPU {i}: {properties.name}, {properties.total_memory / 2**30:.0f} GB")


def _seam(problems: list[str]) -> None:
    try:
        from onmt_varattn.nmt.plugin import register

        register()
    except Exception as error:
        problems.append(f"the plugin does not register: {error}")


if __name__ == "__main__":
    main()

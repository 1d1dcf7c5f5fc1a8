"""python -m onmt_varattn doctor: is this installation well?"""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Sequence

from onmt_varattn import __version__

PACKAGES = [
    "OpenNMT-py",
    "torch",
    "torchtext",
    "sentencepiece",
    "sacrebleu",
    "sacremoses",
    "subword-nmt",
    "entmax",
    "matplotlib",
    "h5py",
]
OLDEST_TORCH = (2, 6)


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    try:
        from onmt_varattn.utils.cli import run
    except ImportError:  # of OpenNMT-py, which the doctor is about to miss
        return _run(args)
    run(lambda: _run(args))


def _run(args: Sequence[str] | None) -> None:
    words = list(sys.argv[1:] if args is None else args)
    if words != ["doctor"]:
        print("usage: onmt_varattn doctor      print versions, scripts and devices, and what is wrong")
        sys.exit(0 if words in (["-h"], ["--help"]) else 2)
    sys.exit(doctor())


def doctor() -> int:
    """Print how things are; return 0 if all is well, 1 if not."""
    problems: list[str] = []
    print(f"onmt_varattn {__version__}, Python {platform.python_version()}, {platform.platform()}")
    _packages(problems)
    _scripts(problems)
    _devices(problems)
    _seam(problems)
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print("all is well" if not problems else f"{len(problems)} problem{'s' * (len(problems) > 1)}")
    return int(bool(problems))


def _packages(problems: list[str]) -> None:
    print("\npackages")
    for package in PACKAGES:
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "missing"
            problems.append(f"{package} is not installed: pip install {package}")
        print(f"  {package:14} {found}")
        if package == "torch" and found != "missing":
            major, minor = (int(part) for part in found.split(".")[:2])
            if (major, minor) < OLDEST_TORCH:
                problems.append(
                    f"torch {found} is too old for the safe checkpoint loader: pip install 'torch>=2.6'"
                )


def _scripts(problems: list[str]) -> None:
    """Whose scripts a user's shell finds. OpenNMT-py installs some of the same names."""
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
            problems.append(
                f"{name} is {owner}, not ours: pip install --force-reinstall --no-deps onmt-varattn "
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

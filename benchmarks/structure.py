"""Size and structure of the package, in one checkout or several: python -m benchmarks.structure DIR ..."""

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from onmt_varattn.utils.pages import table

PACKAGE = "onmt_varattn"
API = (PACKAGE, f"{PACKAGE}.api")  # onmt_varattn.load imports the API when it is called


def modules(package: Path) -> dict[str, Path]:
    """All modules of a package by their dotted names."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(package: Path) -> dict[str, set[str]]:
    """The modules of the package that each module imports, inside functions too."""
    known = modules(package)
    graph: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for target in _imported(path):
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target and target != name and (name, target) != API:
                graph[name].add(target)
    return graph


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def in_cycles(graph: dict[str, set[str]]) -> int:
    """The number of modules that have to be removed, one per cycle found, until no import cycle is left."""
    graph, count = dict(graph), 0
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            removed = error.args[1][0]
            graph = {name: targets - {removed} for name, targets in graph.items() if name != removed}
            count += 1
        else:
            return count


def code_lines(path: Path) -> int:
    """The lines of a module that are not blank, comments or docstrings."""
    text = path.read_text("utf-8")
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node) is not None:
            left_out.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(line.strip()) and line.strip()[0] != "#" and number not in left_out for number, line in lines
    )


def measure(root: Path) -> dict[str, str]:
    """Size and structure of a checkout, by description."""
    package = root / PACKAGE
    found = modules(package)
    files = [path for path in found.values() if path.stem != "__init__"]
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in found.values()}
    tools = list((root / "tools").glob("*.py"))
    longest = max(lines, key=lines.__getitem__)
    folders = Counter(path.parent for path in files)
    most = max(folders, key=folders.__getitem__)
    own = [path for name, path in found.items() if not name.startswith((f"{PACKAGE}.nmt", f"{PACKAGE}.bin"))]
    with_tools = sum(lines.values()) + sum(len(path.read_text("utf-8").splitlines()) for path in tools)
    return {
        "modules": str(len(files)),
        "lines": f"{sum(lines.values()):,}",
        "lines, with `tools/`": f"{with_tools:,}",
        "lines of code, with `tools/`": f"{sum(map(code_lines, [*found.values(), *tools])):,}",
        "modules to remove until there is no import cycle": str(in_cycles(imports(package))),
        "longest module": f"{longest.relative_to(package)}, {lines[longest]} lines",
        "largest folder": f"{most.relative_to(root)}, {folders[most]} modules",
        "modules outside of `nmt/` and `bin/` that import OpenNMT-py": str(
            sum(any(name.split(".")[0] == "onmt" for name in _imported(path)) for path in own)
        ),
        "parameters `opt: Any` outside of `bin/`": str(
            sum(
                path.read_text("utf-8").count("opt: Any")
                for path in found.values()
                if "bin" not in path.parts
            )
        ),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", default=["."], type=Path, metavar="DIR", help="Checkouts.")
    checkouts = parser.parse_args().checkouts
    measured = [measure(root) for root in checkouts]
    print(
        table(["", *map(str, checkouts)], ([name, *(one[name] for one in measured)] for name in measured[0]))
    )


if __name__ == "__main__":
    main()

"""The folders of the package: small, without import cycles, and with little at the top."""

import ast
import collections
import graphlib
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "onmt_varattn"
MOST_MODULES = 10  # per folder


def modules(package):
    """All modules by their dotted names."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(package):
    """The modules that each module imports, inside functions too; `onmt_varattn.load` imports the API."""
    known = modules(package)
    graph = collections.defaultdict(set)
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            targets = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
            for target in targets:
                while target and target not in known:
                    target = target.rpartition(".")[0]
                if target and target != name and (name, target) != ("onmt_varattn", "onmt_varattn.api"):
                    graph[name].add(target)
    return graph


def test_no_folder_has_more_modules_than_ten():
    counts = collections.Counter(
        path.parent.relative_to(ROOT) for path in modules(PACKAGE).values() if path.stem != "__init__"
    )
    assert counts[Path("onmt_varattn/latent")] > 5
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_the_top_of_the_package_has_errors_version_and_the_api_only():
    assert {path.stem for path in PACKAGE.glob("*.py")} == {
        "__init__",
        "__main__",
        "api",
        "errors",
        "version",
    }


def test_modules_have_no_import_cycles():
    graph = imports(PACKAGE)
    assert len(graph) > 100
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_a_cycle_is_found(tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "a.py").write_text("def f():\n    from pack.b import g\n    return g\n")
    (package / "b.py").write_text("import pack.a\n")
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(imports(package)).prepare()

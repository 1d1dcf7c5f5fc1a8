"""The folders of the package: small, without import cycles, and with little at the top."""

import collections
import graphlib
from pathlib import Path

import pytest

from benchmarks.structure import code_lines, imports, in_cycles, modules
from tests.conftest import ROOT

PACKAGE = ROOT / "onmt_varattn"
MOST_MODULES = 10  # per folder


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
    assert in_cycles(imports(package)) == 1
    (package / "b.py").write_text("import os\n")
    assert in_cycles(imports(package)) == 0


def test_lines_of_code_are_no_docstrings_comments_or_blanks(tmp_path):
    path = tmp_path / "a.py"
    path.write_text('"""Doc\n\nmore."""\n\n# why\ndef f():\n    """Doc."""\n    return """text"""\n\n')
    assert code_lines(path) == 2

"""Sphinx: `make docs`. Nothing is fetched at build time."""

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

project = "onmt_varattn"
version = release = re.search(
    r'__version__ = "(.*)"', (HERE.parent / "onmt_varattn/version.py").read_text("utf-8")
)[1]

# myst_nb reads Markdown as myst_parser does, and runs the pages under notebooks/ (code cells).
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
extensions += ["sphinx-mathjax-offline"]  # copies MathJax into the site and has pages load it from there
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3  # links such as maths.md#label-smoothing, as on a code host
nb_execution_mode = "force"
os.environ["JUPYTER_PATH"] = str(HERE / "_ext/jupyter")  # our kernel: one thread, errors only in its log
logging.getLogger("traitlets").setLevel(logging.WARNING)  # not each notebook that begins
nb_execution_raise_on_error = True  # a cell that fails ends the build
nb_execution_timeout = 300  # seconds for a cell
nb_merge_streams = True  # what a cell prints is one block

default_role = "literal"  # `names` in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_use_ivar = True

exclude_patterns = ["_build", "_ext"]

html_theme = "furo"
html_title = f"onmt_varattn {version}"
html_show_copyright = False


COLON = "\N{TWO DOT PUNCTUATION}"  # in no docstring


def skip_inherited(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool:
    """Leave out methods that are documented in the base class, and fields of named tuples and dataclasses."""
    documented = getattr(obj, "__doc__", None) or ""
    return skip or documented.startswith(("See the base class", "Alias for field"))


def hide_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Have napoleon take no "summary: shape" of a property for a "type: summary"."""
    if what == "property":
        lines[:] = [line.replace(":", COLON) for line in lines]


def show_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(COLON, ":") for line in lines]


def setup(app: Any) -> None:
    app.connect("autodoc-skip-member", skip_inherited)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", show_colons, priority=600)

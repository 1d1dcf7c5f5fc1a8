"""Sphinx: `make docs`. Nothing is fetched at build time."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

project = "onmt_varattn"
version = release = re.search(
    r'__version__ = "(.*)"', (HERE.parent / "onmt_varattn/__init__.py").read_text("utf-8")
)[1]

extensions = ["myst_parser", "sphinx.ext.mathjax", "options"]
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3  # links such as maths.md#label-smoothing, as on a code host
exclude_patterns = ["_build", "_ext"]

html_theme = "furo"
html_title = f"onmt_varattn {version}"
html_show_copyright = False

"""Latent alignment and variational attention for OpenNMT-py.

import onmt_varattn
model = onmt_varattn.load("model.pt")
model.translate(["ein hund läuft ."], beam=10)
"""

import os
from typing import TYPE_CHECKING, Any

from onmt_varattn.version import __version__

if TYPE_CHECKING:
    from onmt_varattn.api import Model

__all__ = ["__version__", "load"]


def load(*models: "str | os.PathLike[str]", **options: Any) -> "Model":
    """Load a translation model (or several, as an ensemble); see `onmt_varattn.api.Model`."""
    from onmt_varattn.api import Model

    return Model(*models, **options)

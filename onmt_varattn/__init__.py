"""Latent alignment and variational attention for OpenNMT-py.

import onmt_varattn
model = onmt_varattn.load("model.pt")
model.translate(["ein hund läuft ."], beam=10)
"""

import os
import warnings
from typing import TYPE_CHECKING, Any

from onmt_varattn.version import __version__

if TYPE_CHECKING:
    from onmt_varattn.api import Model

__all__ = ["__version__", "load"]

# OpenNMT-py 2.3.0 uses names that torch has since renamed, and says so a dozen times on import.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"onmt\.")
# A one-layer RNN has no place for dropout between layers, and OpenNMT-py passes it all the same.
warnings.filterwarnings("ignore", message="dropout option adds dropout after all but last")


def load(*models: "str | os.PathLike[str]", **options: Any) -> "Model":
    """Load a translation model (or several, as an ensemble); see `onmt_varattn.api.Model`."""
    from onmt_varattn.api import Model

    return Model(*models, **options)

"""Old files in the new format, as far as attacks need it: to try the mutators on.

A vocabulary is a list of words here; what the project's own files have in its place is its business.
"""

import math
from typing import Any

from tests.attacks.archives import REBUILD, Archive
from tests.attacks.pickles import Call
from tests.attacks.tensors_file import TensorsFile


def convert(archive: Archive) -> TensorsFile:
    """The same checkpoint in the layout of safetensors."""
    file = TensorsFile()
    tree = dict(archive.tree)
    if "vocab" in tree:
        fields = {side: tree["vocab"][side].state["fields"][0][1].state for side in ("src", "tgt")}
        tree["vocab"] = {side: field["vocab"].state["itos"] for side, field in fields.items()}
    tree["opt"] = archive.options
    file.tree = _document(tree, archive, file)
    return file


def _document(value: Any, archive: Archive, file: TensorsFile) -> Any:
    if isinstance(value, Call):
        if value.function == REBUILD:
            return file.tensor(archive.value(value))
        return _document(value.items, archive, file)
    if isinstance(value, dict):
        pairs = [(key, _document(child, archive, file)) for key, child in value.items()]
        if all(isinstance(key, str) for key, _ in pairs):
            return dict(pairs)
        return {"$pairs": [[_document(key, archive, file), child] for key, child in pairs]}
    if isinstance(value, list | tuple):
        children = [_document(child, archive, file) for child in value]
        return children if isinstance(value, list) else {"$tuple": children}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value

"""Everything that loads a checkpoint, as functions of its path.

All are called in the directory of a `world`, as a user would call them in a directory with his texts.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.attacks.world import TRAINING, VQA_TRAINING

Point = Callable[[Path, Path], Any]
"""From a checkpoint and a directory to write to, to a result that is the same for the same checkpoint."""

TRANSLATION: dict[str, Point] = {}
VQA: dict[str, Point] = {}
RESUMING = ("train -resume", "vqa_train -resume")


def _point(name: str, points: dict[str, Point]) -> Callable[[Point], Point]:
    def decorate(point: Point) -> Point:
        points[name] = point
        return point

    return decorate


def _command(module: str, *words: Any) -> None:
    import importlib

    sys.argv[0] = f"onmt_{module}"
    rooms = {"vqa_train": "vqa.train", "vqa_evaluate": "vqa.evaluate"}
    rooms |= {name: f"analysis.{name}" for name in ("align", "evaluate", "explore", "plot_alignment")}
    command = importlib.import_module(f"onmt_varattn.bin.{rooms.get(module, f'nmt.{module}')}")
    command.main([str(word) for word in words])


def _inert(checkpoint: Any) -> dict[str, Any]:
    """The names of its parameters, and what in it is not data."""
    from tests.attacks.inert import strangers

    return {"parameters": sorted(map(str, checkpoint["model"])), "strangers": strangers(checkpoint)[:5]}


@_point("load", TRANSLATION)
def _load(path: Path, scratch: Path) -> Any:
    from onmt_varattn.nmt.model import checkpoint
    from onmt_varattn.nmt.plugin import register

    register()
    return _inert(checkpoint.load(str(path)))


@_point("vqa load", VQA)
def _vqa_load(path: Path, scratch: Path) -> Any:
    from onmt_varattn.vqa import checkpoint

    return _inert(checkpoint.load(str(path)))


@_point("translate", TRANSLATION)
def _translate(path: Path, scratch: Path) -> str:
    output = scratch / "output"
    _command("translate", "-model", path, "-src", "test.src", "-output", output, "-max_length", 8)
    return output.read_text("utf-8")


@_point("api", TRANSLATION)
def _api(path: Path, scratch: Path) -> Any:
    import onmt_varattn

    return onmt_varattn.load(path, max_length=8).translate(Path("test.src").read_text("utf-8").splitlines())


@_point("server", TRANSLATION)
def _server(path: Path, scratch: Path) -> None:
    from onmt_varattn.errors import UserError
    from onmt_varattn.nmt.serving.config import ModelConfig
    from onmt_varattn.nmt.serving.models import Models
    from onmt_varattn.nmt.serving.requests import Limits

    models = Models(Limits())
    try:
        models.add(ModelConfig(None, [str(path)], {}, {"load": True, "timeout": -1}))
    except UserError as error:
        raise UserError(str(error).removeprefix("model 0: ")) from error.__cause__
    finally:
        models.close()


@_point("train -train_from", TRANSLATION)
def _train_from(path: Path, scratch: Path) -> None:
    words = f"-train_steps 3 -save_checkpoint_steps 3 -save_model {scratch}/m -train_from".split()
    _command("train", *TRAINING.split(), *words, path)


@_point("train -resume", TRANSLATION)
def _resume(path: Path, scratch: Path) -> None:
    os.symlink(path, scratch / "m_step_2.pt")
    words = f"-train_steps 3 -save_checkpoint_steps 2 -save_model {scratch}/m -resume".split()
    _command("train", *TRAINING.split(), *words)


@_point("average", TRANSLATION)
def _average(path: Path, scratch: Path) -> None:
    _command("average_models", "-models", path, path, "-output", scratch / "output.pt")


@_point("release", TRANSLATION)
def _release(path: Path, scratch: Path) -> None:
    _command("release_model", "-model", path, "-output", scratch / "output.pt")


@_point("release -format opennmt", TRANSLATION)
def _release_opennmt(path: Path, scratch: Path) -> None:
    _command("release_model", "-model", path, "-output", scratch / "output.pt", "-format", "opennmt")


@_point("evaluate", TRANSLATION)
def _evaluate(path: Path, scratch: Path) -> None:
    output = scratch / "output.json"
    _command("evaluate", "-model", path, "-src", "test.src", "-tgt", "test.tgt", "-json", output)


@_point("align", TRANSLATION)
def _align(path: Path, scratch: Path) -> str:
    output = scratch / "output"
    _command("align", "-model", path, "-src", "test.src", "-tgt", "test.tgt", "-output", output)
    return output.read_text("utf-8")


@_point("explore", TRANSLATION)
def _explore(path: Path, scratch: Path) -> None:
    output = scratch / "output.html"
    _command("explore", "-model", path, "-src", "test.src", "-tgt", "test.tgt", "-output", output)


@_point("vqa_evaluate", VQA)
def _vqa_evaluate(path: Path, scratch: Path) -> None:
    output = scratch / "output.json"
    _command("vqa_evaluate", "-model", path, "-data", "scenes/data", "-part", "valid", "-json", output)


@_point("vqa_train -resume", VQA)
def _vqa_resume(path: Path, scratch: Path) -> None:
    os.symlink(path, scratch / "m_step_2.pt")
    words = f"-train_steps 3 -save_checkpoint_steps 2 -save_model {scratch}/m -resume".split()
    _command("vqa_train", *VQA_TRAINING.split(), *words)


def _unsafe(path: Path, scratch: Path) -> Any:
    """What no code of ours does: to see that attacks are live, and that the harness notices them."""
    import torch

    return str(torch.load(path, weights_only=False))[:50]


UNSAFE = "unsafe"
POINTS = {**TRANSLATION, **VQA, UNSAFE: _unsafe}


def available() -> list[str]:
    """The points that this version has."""
    from onmt_varattn.bin.nmt.release_model import ReleaseSettings
    from onmt_varattn.utils.cli import parser_of

    actions = {action.dest: action for action in parser_of(ReleaseSettings)._actions}
    formats = actions["format"].choices or ()
    missing = set() if "opennmt" in formats else {"release -format opennmt"}
    return [name for name in (*TRANSLATION, *VQA) if name not in missing]


def for_kind(kind: str) -> list[str]:
    """The points for a kind of model that this version has; the load function of the other comes last."""
    own, other = (VQA, "load") if kind == "vqa" else (TRANSLATION, "vqa load")
    here = available()
    return [name for name in own if name in here] + [other]

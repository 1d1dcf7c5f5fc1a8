"""The file that says which models are served: OpenNMT's JSON, checked before anything is loaded."""

import difflib
import importlib.util
import json
import os
from dataclasses import dataclass
from typing import Any

from onmt_varattn.errors import UserError

MODELS_ROOT = "./available_models"  # OpenNMT's default

# Keys of a model that OpenNMT's ServerModel takes as they are: its names for them, and their types.
SETTINGS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "timeout": ("timeout", (int, float)),
    "on_timeout": ("on_timeout", str),
    "load": ("load", bool),
    "preprocess": ("preprocess_opt", list),
    "tokenizer": ("tokenizer_opt", dict),
    "postprocess": ("postprocess_opt", list),
    "custom_opt": ("custom_opt", dict),
    "features": ("features_opt", dict),
    "ct2_model": ("ct2_model", str),
    "ct2_translator_args": ("ct2_translator_args", dict),
    "ct2_translate_batch_args": ("ct2_translate_batch_args", dict),
}
OTHER_KEYS = ("id", "model", "models", "model_root", "opt")


@dataclass(frozen=True)
class ModelConfig:
    """One model of the configuration: a checkpoint, or several for an ensemble."""

    model_id: int | None  # None for the next that is free
    paths: list[str]
    options: dict[str, Any]  # of onmt_translate, by name
    settings: dict[str, Any]  # for ServerModel


def read_config(path: str) -> list[ModelConfig]:
    """The models of a configuration.

    Raises:
        UserError: the file, or a file that it names, is missing or not what it should be.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    try:
        return _read_models(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _read_models(content: Any) -> list[ModelConfig]:
    if not isinstance(content, dict):
        raise UserError('not an object, as {"models_root": "models", "models": [...]}')
    for key in content:
        _check_known(key, ("models_root", "models"), "the configuration")
    root, entries = content.get("models_root", MODELS_ROOT), content.get("models")
    if not isinstance(root, str):
        raise UserError("'models_root' is not the path of a directory")
    if not isinstance(entries, list) or not entries:
        raise UserError("'models' is missing, or not a list of at least one model")
    configs = [
        _read_model(entry, root, f"model {number} of the list") for number, entry in enumerate(entries, 1)
    ]
    ids = [config.model_id for config in configs if config.model_id is not None]
    for one in ids:
        if ids.count(one) > 1:
            raise UserError(f"two models have the 'id' {one}")
    return configs


def _read_model(entry: Any, root: str, place: str) -> ModelConfig:
    if not isinstance(entry, dict):
        raise UserError(f'{place} is not an object, as {{"id": 0, "model": "model.pt"}}')
    for key in entry:
        _check_known(key, (*SETTINGS, *OTHER_KEYS), place)
    model_id, options = entry.get("id"), entry.get("opt", {})
    if model_id is not None and (type(model_id) is not int or model_id < 0):
        raise UserError(f"{place}: 'id' {model_id} is not a whole number from 0")
    if not isinstance(options, dict):
        raise UserError(f"{place}: 'opt' is not an object of options of onmt_translate")
    root = entry.get("model_root", root)
    if not isinstance(root, str):
        raise UserError(f"{place}: 'model_root' is not the path of a directory")
    return ModelConfig(
        model_id, _paths(entry, root, place), options, {**_settings(entry, place), "model_root": root}
    )


def _paths(entry: dict[str, Any], root: str, place: str) -> list[str]:
    given = entry.get("models", entry.get("model"))
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{place}: 'model', the file of a checkpoint, is missing (or 'models', a list of them)"
        )
    paths = [os.path.join(root, name) for name in names]
    for path in paths:
        if not os.path.isfile(path):
            raise UserError(f"{place}: there is no checkpoint {path}")
    return paths


def _settings(entry: dict[str, Any], place: str) -> dict[str, Any]:
    settings = {}
    for key, (name, kind) in SETTINGS.items():
        value = entry.get(key)
        if value is None:
            continue
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise UserError(f"{place}: '{key}' {json.dumps(value)} is not of the right kind")
        settings[name] = value
    if settings.get("on_timeout", "unload") not in ("to_cpu", "unload"):
        raise UserError(f"{place}: 'on_timeout' is not to_cpu or unload")
    if "ct2_model" in settings and importlib.util.find_spec("ctranslate2") is None:
        raise UserError(f"{place}: 'ct2_model' needs a package: pip install ctranslate2")
    return settings


def _check_known(key: str, known: tuple[str, ...], place: str) -> None:
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise UserError(f"{place}: unknown key '{key}'{hint}")

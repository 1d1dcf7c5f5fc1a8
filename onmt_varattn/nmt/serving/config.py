"""Configuration of the server: limits, and the models of OpenNMT-py's JSON file, checked before loading."""

import difflib
import importlib.util
import json
import os
from dataclasses import dataclass
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.utils.settings import Settings, setting

MODELS_ROOT = "./available_models"  # OpenNMT-py's default

# Keys of a model that are passed on to OpenNMT-py's ServerModel: argument names and types.
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


@dataclass(kw_only=True)
class Limits(Settings):
    """Limits on the requests of clients."""

    title = "Limits"
    request_bytes: int = setting(
        1_000_000, option="max_request_bytes", at_least=1, help="Bytes per request; larger ones get a 413."
    )
    sentences: int = setting(
        64, option="max_sentences", at_least=1, help="Sentences per request; more of them get a 413."
    )
    characters: int = setting(
        2000, option="max_characters", at_least=1, help="Characters per sentence; longer ones get a 413."
    )
    wait: float = setting(
        60.0, option="max_wait", above=0, help="Seconds that a request may wait in the queue; then a 503."
    )
    cost: int = setting(
        10_000_000,
        option="max_cost",
        at_least=1,
        help="Characters x beam x max_length per request, with at least 100 characters per sentence and a "
        "max_length of at least 100; higher costs get a 413.",
    )
    seconds: float = setting(
        60.0, option="max_seconds", above=0, help="Seconds that a translation may take; then a 503."
    )
    clients: int = setting(
        100, option="max_clients", at_least=1, help="Requests in the queue; further ones get a 503."
    )
    clones: int = setting(
        4, option="max_clones", at_least=0, help="Models that clients may add with clone_model; 0 for none."
    )


@dataclass(frozen=True)
class ModelConfig:
    """One model of the configuration: a checkpoint, or several as an ensemble."""

    model_id: int | None  # None: the lowest free one
    paths: list[str]
    options: dict[str, Any]  # options of onmt_translate
    settings: dict[str, Any]  # arguments of ServerModel


def read_config(path: str) -> list[ModelConfig]:
    """Read the models of a configuration file.

    Raises:
        UserError: the file, or a checkpoint that it names, is missing, or a value is wrong.
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
        raise UserError('not an object such as {"models_root": "models", "models": [...]}')
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
        raise UserError(f'{place} is not an object such as {{"id": 0, "model": "model.pt"}}')
    for key in entry:
        _check_known(key, (*SETTINGS, *OTHER_KEYS), place)
    model_id, options = entry.get("id"), entry.get("opt", {})
    if model_id is not None and (type(model_id) is not int or model_id < 0):
        raise UserError(f"{place}: 'id' {model_id} is not a whole number of at least 0")
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
            f"{place}: 'model', the path of a checkpoint, is missing (or 'models', a list of paths)"
        )
    paths = [os.path.join(root, name) for name in names]
    for path in paths:
        if not os.path.isfile(path):
            raise UserError(f"{place}: the checkpoint {path} does not exist")
    return paths


def _settings(entry: dict[str, Any], place: str) -> dict[str, Any]:
    settings = {}
    for key, (name, kind) in SETTINGS.items():
        value = entry.get(key)
        if value is None:
            continue
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise UserError(f"{place}: '{key}' {json.dumps(value)} has the wrong type")
        settings[name] = value
    if settings.get("on_timeout", "unload") not in ("to_cpu", "unload"):
        raise UserError(f"{place}: 'on_timeout' is not to_cpu or unload")
    if "ct2_model" in settings and importlib.util.find_spec("ctranslate2") is None:
        raise UserError(f"{place}: 'ct2_model' needs another package: pip install ctranslate2")
    return settings


def _check_known(key: str, known: tuple[str, ...], place: str) -> None:
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise UserError(f"{place}: unknown key '{key}'{hint}")

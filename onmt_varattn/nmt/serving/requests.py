"""Contents of requests: all checks that need no model."""

import math
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from werkzeug.exceptions import HTTPException

from onmt_varattn.nmt.serving.config import Limits

DEFAULT_MODEL = 0  # OpenNMT-py's, for requests without an id

# Lower bounds in the cost of a request: a step of a search has a fixed cost, and must not take all memory.
LEAST_CHARACTERS = 100
LEAST_LENGTH = 100
FREE_SAMPLES = 10  # attention samples per word that do not add to the cost
PAIRS_PER_UNIT = 4  # attention weights of a transformer head that take as much memory as one unit of cost


class RequestError(HTTPException):
    """A request that is answered with an error.

    Args:
        code: HTTP status.
        description: one sentence for the client.
        headers: additional headers of the response.
    """

    def __init__(self, code: int, description: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(description)
        self.code, self.headers = code, headers or {}


@dataclass(frozen=True)
class Translation:
    """A request to translate."""

    model_id: int
    sentences: list[dict[str, Any]]


@dataclass(frozen=True)
class Clone:
    """A request to clone a model with other options."""

    options: dict[str, Any]  # as sent by the client
    timeout: float  # seconds without requests after which the clone is unloaded; negative: never


def check_translation(data: Any, limits: Limits) -> Translation:
    """Read a list of `{"src": ..., "id": ...}`, OpenNMT-py's format.

    Raises:
        RequestError: it is something else, or exceeds the limits.
    """
    if not isinstance(data, list) or not data or not all(isinstance(item, dict) for item in data):
        raise RequestError(400, 'send a list of sentences, such as [{"src": "a sentence", "id": 0}]')
    if len(data) > limits.sentences:
        raise RequestError(413, f"the request has {len(data)} sentences, more than {limits.sentences}")
    for number, item in enumerate(data, 1):
        _check_sentence(item, number, limits.characters)
    given = [item["id"] for item in data if "id" in item]
    if any(type(one) is not int for one in given):
        raise RequestError(400, "'id', the model, is not a whole number")
    if len(set(given)) > 1:
        first, second, *_ = sorted(set(given))
        raise RequestError(400, f"a request is for one model, not for several such as {first} and {second}")
    return Translation(given[0] if given else DEFAULT_MODEL, data)


def cost(request: Translation, opt: Namespace, heads: int = 0) -> int:
    """Upper bound on the cost of a translation: characters x beam size x max_length.

    Time is proportional to it, and so is memory: a search stores values per source position and hypothesis,
    and its attention at every step. A transformer encoder also stores S x S attention weights per head.

    Args:
        request: the sentences.
        opt: options of the model that translates them.
        heads: number of heads of a transformer encoder; 0 for other encoders.
    """
    pairs = sum(len(item["src"]) ** 2 for item in request.sentences)
    characters = sum(max(len(item["src"]), LEAST_CHARACTERS) for item in request.sentences)
    samples = max((getattr(opt, "attention_samples", None) or 0) / FREE_SAMPLES, 1)
    search = characters * opt.beam_size * max(opt.max_length, LEAST_LENGTH) * samples
    return math.ceil(search + heads * pairs / PAIRS_PER_UNIT)


def check_cost(request: Translation, opt: Namespace, most: int, heads: int = 0) -> None:
    """Refuse a translation whose `cost` may be more than `most`."""
    if (found := cost(request, opt, heads)) > most:
        raise RequestError(
            413,
            f"this request may cost {found:,}, more than {most:,} (characters x beam x max_length); send "
            "fewer or shorter sentences",
        )


def _check_sentence(item: dict[str, Any], number: int, characters: int) -> None:
    if "src" not in item:
        raise RequestError(400, f"sentence {number} has no 'src'")
    features = item.get("src_feats", {})
    if not isinstance(features, dict):
        raise RequestError(400, f"'src_feats' of sentence {number} is not an object of strings")
    texts = {"src": item["src"], **{f"src_feats {name}": text for name, text in features.items()}}
    if item.get("ref") is not None:
        texts["ref"] = item["ref"]
    for name, text in texts.items():
        place = f"'{name}' of sentence {number}"
        if not isinstance(text, str):
            raise RequestError(400, f"{place} is not a string")
        if len(text) > characters:
            raise RequestError(413, f"{place} has {len(text)} characters, more than {characters}")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RequestError(400, f"{place} has an unpaired surrogate and is not valid Unicode")


def check_clone(data: Any) -> Clone:
    """Read `{"opt": {...}, "timeout": seconds}`, both of them optional.

    Raises:
        RequestError: it is something else.
    """
    if not isinstance(data, dict):
        raise RequestError(400, 'send an object, such as {"opt": {"beam_size": 5}, "timeout": 600}')
    options, timeout = data.get("opt"), data.get("timeout", -1)
    if options is not None and not isinstance(options, dict):
        raise RequestError(400, "'opt' is not an object of options")
    if type(timeout) not in (int, float) or not math.isfinite(timeout) or abs(timeout) > 1e9:
        raise RequestError(400, "'timeout' is not a number of seconds")
    return Clone(options or {}, timeout)

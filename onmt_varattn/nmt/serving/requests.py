"""What a client may ask: every check that needs no model."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_MODEL = 0  # OpenNMT's, for requests that name none

# In the cost of a request no sentence is shorter and no search quicker: a step has a price of its
# own, and one step must not take all the memory.
LEAST_CHARACTERS = 100
LEAST_LENGTH = 100
FREE_SAMPLES = 10  # of the attention, per word, before more of them cost more
PAIRS_OF_A_UNIT = 4  # comparisons of a transformer's head that take as much memory as a unit of cost


class RequestError(Exception):
    """A request that gets an error for an answer.

    Args:
        status: the HTTP status.
        message: one sentence for the client.
        headers: more headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


@dataclass(frozen=True)
class Limits:
    """How much a client may ask for."""

    request_bytes: int = 1_000_000
    sentences: int = 64
    characters: int = 2000  # of a sentence
    wait: float = 60.0  # seconds, for its turn
    clones: int = 4  # models that clients may add
    cost: int = 10_000_000  # of a request; see `cost`
    seconds: float = 60.0  # of work, once its turn has come
    clients: int = 100  # that wait for their turn, or have it


@dataclass(frozen=True)
class Translation:
    """A request to translate."""

    model_id: int
    sentences: list[dict[str, Any]]


@dataclass(frozen=True)
class Clone:
    """A request for a model once more, with other options."""

    options: dict[str, Any]  # by name, as the client sent them
    timeout: float  # seconds without requests before it leaves the memory; negative for never


def parse_json(body: bytes) -> Any:
    """JSON from a client."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # brackets in brackets in brackets
        raise RequestError(400, "the body of the request is not JSON") from None


def check_translation(data: Any, limits: Limits) -> Translation:
    """A list of `{"src": ..., "id": ...}`, as OpenNMT has it, or `RequestError`."""
    if not isinstance(data, list) or not data or not all(isinstance(item, dict) for item in data):
        raise RequestError(400, 'send a list of sentences, as [{"src": "a sentence", "id": 0}]')
    if len(data) > limits.sentences:
        raise RequestError(413, f"{len(data)} sentences are more than the {limits.sentences} of a request")
    for number, item in enumerate(data, 1):
        _check_sentence(item, number, limits.characters)
    given = [item["id"] for item in data if "id" in item]
    if any(type(one) is not int for one in given):
        raise RequestError(400, "'id', the model, is not a whole number")
    if len(set(given)) > 1:
        raise RequestError(400, f"a request is for one model, not for {_listed(sorted(set(given)))}")
    return Translation(given[0] if given else DEFAULT_MODEL, data)


def cost(request: Translation, opt: Any, heads: int = 0) -> int:
    """What a translation may take at most: characters x beam x max_length.

    Time grows with it, and so does memory: a search keeps some numbers for each source position of
    each hypothesis, and with them what it attended to at each step. A transformer compares all positions of
    a sentence with each other besides, in each of its heads.

    Args:
        request: the sentences.
        opt: options of the model that translates them.
        heads: of a transformer's encoder; 0 for another.
    """
    pairs = sum(len(item["src"]) ** 2 for item in request.sentences)
    characters = sum(max(len(item["src"]), LEAST_CHARACTERS) for item in request.sentences)
    samples = max((getattr(opt, "attention_samples", None) or 0) / FREE_SAMPLES, 1)
    search = characters * opt.beam_size * max(opt.max_length, LEAST_LENGTH) * samples
    return math.ceil(search + heads * pairs / PAIRS_OF_A_UNIT)


def check_cost(request: Translation, opt: Any, most: int, heads: int = 0) -> None:
    """Refuse a translation that may cost more than `most`; see `cost`."""
    if (found := cost(request, opt, heads)) > most:
        raise RequestError(
            413,
            f"this request may cost {found:,} and a request may cost {most:,} (characters x beam x "
            "max_length); send fewer or shorter sentences",
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
            raise RequestError(400, f"{place} has half of a surrogate pair in it, which is no text")


def check_clone(data: Any) -> Clone:
    """`{"opt": {...}, "timeout": seconds}`, both of which may be missing, or `RequestError`."""
    if not isinstance(data, dict):
        raise RequestError(400, 'send an object, as {"opt": {"beam_size": 5}, "timeout": 600}')
    options, timeout = data.get("opt"), data.get("timeout", -1)
    if options is not None and not isinstance(options, dict):
        raise RequestError(400, "'opt' is not an object of options")
    if type(timeout) not in (int, float) or not math.isfinite(timeout) or abs(timeout) > 1e9:
        raise RequestError(400, "'timeout' is not a number of seconds")
    return Clone(options or {}, timeout)


def _listed(values: Sequence[int]) -> str:
    return " and ".join(map(str, values[:3])) + (" and others" if len(values) > 3 else "")

"""OpenNMT's fields as plain values, and fields built anew from them.

A checkpoint describes its fields by their word lists and a few settings. Whatever it says, the fields
are made here, by OpenNMT's own function: nothing that a field would call comes out of a file.
"""

from collections import Counter
from typing import Any

from onmt.constants import DefaultTokens, ModelTask
from onmt.inputters.inputter import get_fields
from torchtext.vocab import Vocab

from onmt_varattn.training.checkpoints.pickles import Record
from onmt_varattn.training.checkpoints.trees import BrokenError, is_text, shown

SIDES = ("src", "tgt")
MOST_FEATURES = 20  # of a word, itself included
MOST_WORDS = 4_000_000  # of all word lists
MOST_CHARACTERS = 10_000  # of a word


def describe(fields: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of fields; the inverse of `build`."""
    is_language_model = fields["src"].base_field.init_token is not None
    return {
        "task": ModelTask.LANGUAGE_MODEL if is_language_model else ModelTask.SEQ2SEQ,
        "copy": "src_map" in fields,
        "links": "align" in fields,
        **{side: _describe_side(fields[side]) for side in SIDES},
    }


def _describe_side(field: Any) -> dict[str, Any]:
    truncate = field.base_field.tokenize.keywords["truncate"]
    words = [
        {
            "name": name,
            "words": list(one.vocab.itos),
            "counts": [one.vocab.freqs[word] for word in one.vocab.itos],
        }
        for name, one in field.fields
    ]
    return {"truncate": truncate, "vocabularies": words}


def build(description: Any) -> dict[str, Any]:
    """Fields from a description.

    Raises:
        BrokenError: it is none.
    """
    task, copy, links = (_part(description, name, kind) for name, kind in _SETTINGS.items())
    if task not in (ModelTask.SEQ2SEQ, ModelTask.LANGUAGE_MODEL):
        raise BrokenError(f"its vocabulary is damaged: task {shown(task)}")
    sides = {side: _part(description, side, dict) for side in SIDES}
    described = {side: _part(sides[side], "vocabularies", list) for side in SIDES}
    check_amount([_part(one, "words", list) for side in SIDES for one in described[side]])
    lists = {side: [_words(one) for one in described[side]] for side in SIDES}
    for side in SIDES:
        names = [name for name, _ in lists[side]]
        if names[:1] != [side] or len(set(names)) < len(names):
            raise BrokenError(f"its vocabulary is damaged: no words of {side}")
    fields: dict[str, Any] = get_fields(
        "text",
        {name: None for name, _ in lists["src"][1:]} or None,
        {name: None for name, _ in lists["tgt"][1:]} or None,
        dynamic_dict=copy,
        with_align=links,
        src_truncate=_truncate(sides["src"]),
        tgt_truncate=_truncate(sides["tgt"]),
        data_task=task,
    )
    for side in SIDES:
        vocabularies = dict(lists[side])
        for name, field in fields[side].fields:
            field.vocab = vocabularies[name]
            special = (field.unk_token, field.pad_token, field.init_token, field.eos_token)
            for token in filter(None, special):
                if token not in field.vocab.stoi:
                    raise BrokenError(f"its vocabulary is damaged: {shown(name)} has no {token}")
    return fields


_SETTINGS: dict[str, type] = {"task": str, "copy": bool, "links": bool}


def _part(values: Any, name: str, kind: type) -> Any:
    if type(values) is not dict or type(values.get(name)) is not kind:
        raise BrokenError(f"its vocabulary is damaged: no {name}")
    return values[name]


def _truncate(side: dict[str, Any]) -> int | None:
    length = side.get("truncate")
    if length is not None and (type(length) is not int or length < 0):
        raise BrokenError(f"its vocabulary is damaged: sentences cut to {shown(length)} words")
    return length


def check_amount(lists: list[list[Any]]) -> None:
    """Refuse word lists that would fill the memory; in a pickle several may be one and the same.

    Raises:
        BrokenError: they would.
    """
    if len(lists) > 2 * MOST_FEATURES or sum(map(len, lists)) > MOST_WORDS:
        raise BrokenError(f"refused: it has more than {MOST_WORDS:,} words, or {MOST_FEATURES} features")


def _is_word(word: Any) -> bool:
    """Whether a word can stand in a line of its own: one with a line break would be two."""
    return is_text(word) and len(word) <= MOST_CHARACTERS and "\n" not in word and "\r" not in word


def _words(description: Any) -> tuple[str, Vocab]:
    """A word list, with its name."""
    name, words = _part(description, "name", str), _part(description, "words", list)
    counts = _part(description, "counts", list)
    if not all(map(_is_word, [name, *words])):
        raise BrokenError("its vocabulary is damaged: a word is no text, or has a line break in it")
    if len(counts) != len(words) or any(type(count) is not int or count < 0 for count in counts):
        raise BrokenError("its vocabulary is damaged: words and their counts do not match")
    if len(set(words)) < len(words):
        raise BrokenError("its vocabulary is damaged: a word is there twice")
    if words[:1] != [DefaultTokens.UNK]:
        raise BrokenError(f"its vocabulary is damaged: its first word is not {DefaultTokens.UNK}")
    vocabulary = Vocab(Counter(), specials=words)
    vocabulary.freqs = Counter({word: n for word, n in zip(words, counts, strict=True) if n})
    return name, vocabulary


def describe_records(records: Any) -> dict[str, Any]:
    """What a checkpoint of OpenNMT-py, or of version 0.1, says of its fields.

    Raises:
        BrokenError: another version of OpenNMT-py wrote it, or it is damaged.
    """
    if type(records) is dict and all(type(records.get(side)) is list for side in SIDES):
        raise BrokenError(
            "written by OpenNMT-py 3, whose vocabularies are lists and whose models have other parameters "
            "than those of 2.3.0, which are read here: translate it with OpenNMT-py 3, or train anew"
        )
    if type(records) is list:
        raise BrokenError(
            "written by OpenNMT-py 0 or 1, whose vocabularies are lists of pairs, which 2.3.0 does not read "
            "either: translate it with the version that wrote it, or train anew"
        )
    if type(records) is not dict:
        raise BrokenError("its vocabulary is damaged: no fields")
    named = {
        side: _named_fields(_state(records.get(side), "onmt.inputters.text_dataset.TextMultiField"))
        for side in SIDES
    }
    vocabularies = [
        _state(field.get("vocab"), "torchtext.vocab.Vocab").get("itos")
        for side in SIDES
        for _, field in named[side]
    ]
    check_amount([words for words in vocabularies if type(words) is list])
    first = named["src"][0][1]
    return {
        "task": ModelTask.SEQ2SEQ if first.get("init_token") is None else ModelTask.LANGUAGE_MODEL,
        "copy": "src_map" in records,
        "links": "align" in records,
        **{side: _describe_record(named[side]) for side in SIDES},
    }


def _state(record: Any, kind: str) -> dict[str, Any]:
    """The attributes of an object."""
    if type(record) is not Record or record.kind != kind or type(record.state) is not dict:
        raise BrokenError(f"its vocabulary is damaged: no {kind.rpartition('.')[2]} where one is expected")
    return record.state


def _named_fields(state: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    pairs = state.get("fields")
    if type(pairs) is not list or not 0 < len(pairs) <= MOST_FEATURES:
        raise BrokenError("its vocabulary is damaged: no fields")
    for pair in pairs:
        if type(pair) is not tuple or len(pair) != 2:
            raise BrokenError("its vocabulary is damaged: a field without a name")
    return [(name, _state(field, "torchtext.data.field.Field")) for name, field in pairs]


def _describe_record(fields: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    tokenize = fields[0][1].get("tokenize")
    settings = tokenize.state if type(tokenize) is Record and tokenize.kind == "functools.partial" else None
    keywords = settings[2] if type(settings) is tuple and len(settings) == 4 else None
    lists = []
    for name, field in fields:
        vocabulary = _state(field.get("vocab"), "torchtext.vocab.Vocab")
        words, counts = vocabulary.get("itos"), vocabulary.get("freqs")
        if type(words) is not list or type(counts) is not dict:
            raise BrokenError("its vocabulary is damaged: no list of words")
        texts = [word if type(word) is str else None for word in words]
        lists.append({"name": name, "words": words, "counts": [counts.get(text, 0) for text in texts]})
    truncate = keywords.get("truncate") if type(keywords) is dict else None
    return {"truncate": truncate, "vocabularies": lists}

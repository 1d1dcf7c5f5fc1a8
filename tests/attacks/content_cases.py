"""Whole files with wrong content: parts, parameters, vocabularies, options, text processing, training.

Most are made in the old and in the new format by the same change: to the options, to a part, or to the
tensors, which both formats have.
"""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.attacks.archives import ordered
from tests.attacks.cases import SAFE, Goods, Group
from tests.attacks.pickles import Call, Global

group = Group("content")

File = Any
"""An `Archive` or a `TensorsFile`."""

Change = Callable[[File, Goods], None]
FORMATS = ("old", "new")

TRANSLATING = frozenset({"translate", "api", "server"})
USING = TRANSLATING | {"evaluate", "align", "explore", "train -train_from"}
TRAINING = frozenset({"train -train_from", "train -resume"})
RESUMING = frozenset({"train -resume", "vqa_train -resume"})


def _content(
    name: str, change: Change, kinds: str = "translation", formats: Any = FORMATS, **more: Any
) -> None:
    """A case for each format and each kind of model, with the same change."""
    for kind in kinds.split():
        for form in formats:

            def make(goods: Goods, path: Path, kind: str = kind, form: str = form) -> None:
                file = goods.archive(kind) if form == "old" else goods.tensors_file(kind)
                change(file, goods)
                file.write(path)

            own = "vqa" if kind == "vqa" else "translation"
            group.add(f"{name} ({kind}, {form})", make, kind=own, **more)


BOTH = "translation vqa"

# Parts.
_PARTS = {
    "translation": ("model", "generator", "vocab", "opt"),
    "vqa": ("vqa", "model", "opt"),
}
_OTHERS: dict[str, Callable[[File], Any]] = {
    "None": lambda file: None,
    "a list": lambda file: [1, 2],
    "a string": lambda file: "model",
    "a number": lambda file: 5,
    "a tensor": lambda file: file.tensor(torch.ones(3)),
    "an empty dictionary": lambda file: {},
}


def _without(part: str) -> Change:
    return lambda file, goods: file.tree.pop(part) and None


def _instead(part: str, make: Callable[[File], Any]) -> Change:
    return lambda file, goods: file.tree.update({part: make(file)})


for _kind, _names in _PARTS.items():
    for _part in _names:
        _content(f"no {_part}", _without(_part), _kind)
        for _name, _make in _OTHERS.items():
            _where = {"at": TRANSLATING | {"vqa_evaluate"}} if _name == "an empty dictionary" else {}
            _content(f"{_part} is {_name}", _instead(_part, _make), _kind, **_where)
    for _name, _make in list(_OTHERS.items())[1:5]:
        _content(f"optim is {_name}", _instead("optim", _make), _kind)
        _content(f"training is {_name}", _instead("training", _make), _kind)
    _content("optim is None", _instead("optim", lambda file: None), _kind, expected=SAFE)
    _content("training is None", _instead("training", lambda file: None), _kind, expected=SAFE)
_content("an unknown part", lambda file, goods: file.tree.update(surprise=[1]), BOTH, expected=SAFE)
_content("it is a list", lambda file, goods: setattr(file, "tree", [file.tree]), BOTH)
_content("it is a string", lambda file, goods: setattr(file, "tree", "model generator vocab opt vqa"), BOTH)
_content("it is a tensor", lambda file, goods: setattr(file, "tree", file.tensor(torch.ones(2))), BOTH)


# Parameters.
def _first(file: File) -> str:
    return next(name for name in file.tensors() if name.endswith("weight"))


def _parameter(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def apply(file: File, goods: Goods) -> None:
        name = _first(file)
        file.tensors()[name] = file.tensor(change(file.value(file.tensors()[name])))

    return apply


def _all(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def apply(file: File, goods: Goods) -> None:
        for part in ("model", *(("generator",) if file.kind == "translation" else ())):
            tensors = file.tensors(part)
            tensors.update({name: file.tensor(change(file.value(value))) for name, value in tensors.items()})

    return apply


def _spoilt(value: float) -> Change:
    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        tensor.flatten()[3] = value
        return tensor

    return _parameter(spoil)


def _renamed(file: File, goods: Goods) -> None:
    name = _first(file)
    file.tensors()["renamed." + name] = file.tensors().pop(name)


_content("a parameter is missing", lambda file, goods: file.tensors().pop(_first(file)) and None, BOTH, at=USING | {"vqa_evaluate"})  # fmt: skip
_content("a parameter is renamed", _renamed, BOTH, at=USING | {"vqa_evaluate"})
_content("a parameter too many", lambda file, goods: file.tensors().update({"decoder.surprise": file.tensor(torch.ones(2))}), BOTH, expected=SAFE)  # fmt: skip
_content("a parameter has a row more", _parameter(lambda tensor: torch.cat([tensor, tensor[:1]])), BOTH, at=USING | {"vqa_evaluate"})  # fmt: skip
_content(
    "a parameter is transposed", _parameter(lambda tensor: tensor.t()), BOTH, at=USING | {"vqa_evaluate"}
)
_content("a parameter has no dimensions", _parameter(lambda tensor: tensor.flatten()[0]), BOTH, at=USING | {"vqa_evaluate"})  # fmt: skip
_content("a parameter is empty", _parameter(lambda tensor: tensor[:0]), BOTH, at=USING | {"vqa_evaluate"})
_content(
    "a parameter is of integers", _parameter(lambda tensor: tensor.long()), BOTH, at=USING | {"vqa_evaluate"}
)
_content(
    "a parameter is of truth values",
    _parameter(lambda tensor: tensor.bool()),
    BOTH,
    at=USING | {"vqa_evaluate"},
)
_content("a parameter is a list", lambda file, goods: file.tensors().update({_first(file): [1.0, 2.0]}), BOTH)
_content("a parameter is None", lambda file, goods: file.tensors().update({_first(file): None}), BOTH)
_content("a parameter is a string", lambda file, goods: file.tensors().update({_first(file): "x"}), BOTH)
_content("a parameter's name is empty", lambda file, goods: file.tensors().update({"": file.tensor(torch.ones(1))}), BOTH, expected=SAFE)  # fmt: skip
_content("a parameter's name is a number", lambda file, goods: file.tensors().update({7: file.tensor(torch.ones(1))}), BOTH, ("old",))  # fmt: skip
_content("parameters are doubles", _all(lambda tensor: tensor.double()), BOTH, expected=SAFE)
_content("parameters are halves", _all(lambda tensor: tensor.half()), BOTH, expected=SAFE)
for _name, _value in (("NaN", float("nan")), ("infinite", float("inf")), ("-infinite", float("-inf"))):
    _content(f"a parameter is {_name}", _spoilt(_value), BOTH, at=TRANSLATING | {"vqa_evaluate"})
_content("all parameters are NaN", _all(lambda tensor: tensor * float("nan")), BOTH, at=TRANSLATING | {"vqa_evaluate"})  # fmt: skip
_content("generator of another size", lambda file, goods: file.tensors("generator").update({"0.weight": file.tensor(torch.ones(3, 3))}), at=USING)  # fmt: skip
_content("generator without its weights", lambda file, goods: file.tensors("generator").pop("0.weight") and None, at=USING)  # fmt: skip

# Options.
_WRONG: dict[str, Any] = {
    "a string": "x", "a float": 2.5, "negative": -3, "zero": 0, "huge": 10**9, "enormous": 10**30,
    "None": None, "a list": [4, 4], "a dictionary": {"a": 1}, "true": True,
}  # fmt: skip


def _option(name: str, value: Any) -> Change:
    return lambda file, goods: file.options.update({name: value})


_HARMLESS = ("zero", "None", "true")  # some options mean something by these
_UNUSED = (  # of models that have other options: -layers and -word_vec_size come first
    ("src_word_vec_size", "huge"),
    ("answer_vec_size", "huge"),
    ("src_word_vec_size", "negative"),
    ("dec_layers", "negative"),
)
for _option_name in ("dec_layers", "enc_rnn_size", "dec_rnn_size", "src_word_vec_size", "attention_size"):
    for _name, _value in _WRONG.items():
        _harmless = _name in _HARMLESS or (_option_name, _name) in _UNUSED
        _where = {"expected": SAFE} if _harmless else {"at": TRANSLATING}
        _content(f"option {_option_name} is {_name}", _option(_option_name, _value), **_where)  # type: ignore[arg-type]
for _option_name in ("layers", "rnn_size", "word_vec_size", "attention_size", "answer_vec_size"):
    for _name in ("a string", "a float", "negative", "zero", "huge", "None", "a list"):
        _harmless = _name in _HARMLESS or (_option_name, _name) in _UNUSED
        _where = {"expected": SAFE} if _harmless else {"at": frozenset({"vqa_evaluate"})}
        _content(f"option {_option_name} is {_name}", _option(_option_name, _WRONG[_name]), "vqa", **_where)  # type: ignore[arg-type]
_SINGLE: dict[str, tuple[str, Any]] = {
    "a million layers": ("enc_layers", 10**6),
    "dropout of 5": ("dropout", [5.0]),
    "dropout of a string": ("dropout", ["x"]),
    "dropout of NaN": ("dropout", [float("nan")]),
    "an unknown attention": ("attention", "nope"),
    "attention is a list": ("attention", ["soft"]),
    "attention is a number": ("attention", 1),
    "an unknown score": ("global_attention", "nope"),
    "an unknown decoder": ("decoder_type", "nope"),
    "an unknown encoder": ("encoder_type", "nope"),
    "an encoder that is a dunder": ("encoder_type", "__class__"),
    "an unknown RNN": ("rnn_type", "__import__"),
    "an unknown dtype": ("model_dtype", "int8x"),
    "an unknown model type": ("model_type", "image"),
    "an unknown task": ("model_task", "nope"),
    "an unknown posterior": ("posterior", "nope"),
    "an unknown decoder start": ("decoder_init", "nope"),
}
for _name, (_option_name, _value) in _SINGLE.items():
    _formats = ("old",) if _name.endswith("NaN") else FORMATS  # JSON has no NaN
    _content(_name, _option(_option_name, _value), at=TRANSLATING, formats=_formats)
_STOCK: dict[str, tuple[str, Any]] = {
    "heads 0": ("heads", 0), "an unknown generator": ("generator_function", "nope"),
    "an unknown copy attention": ("copy_attn_type", "nope"), "layers of a string": ("enc_layers", "x"),
    "bridge of a string": ("bridge", "x"), "position encoding of 10^9": ("position_encoding", 10**9),
}  # fmt: skip
for _name, (_option_name, _value) in _STOCK.items():
    _content(_name, _option(_option_name, _value), "stock", ("old",), expected=SAFE)
_content("an unknown VQA attention", _option("attention", "nope"), "vqa", at=frozenset({"vqa_evaluate"}))
_content("an unknown VQA score", _option("global_attention", "nope"), "vqa", at=frozenset({"vqa_evaluate"}))
_content("VQA dropout of 5", _option("dropout", 5.0), "vqa", at=frozenset({"vqa_evaluate"}))
_content(
    "no options at all", lambda file, goods: file.options.clear(), BOTH, at=TRANSLATING | {"vqa_evaluate"}
)
_content("options with odd names", lambda file, goods: file.options.update({"__class__": "x", "__dict__": {}, "": 1, "a b": 2}), BOTH, expected=SAFE)  # fmt: skip

# Options that name files: never read, never written.
_READ = ("src_embeddings", "tgt_embeddings", "both_embeddings", "pre_word_vecs_enc", "src_vocab", "tgt_vocab", "config", "train_from", "data", "text_processing", "src_feats_vocab")  # fmt: skip
_WRITTEN = ("save_model", "log_file", "tensorboard_log_dir", "save_config", "metrics_file", "dump_attention", "save_data", "dump_fields", "output")  # fmt: skip
for _option_name in _READ:
    for _name, _path in (
        ("/dev/zero", "/dev/zero"),
        ("a file", __file__.replace("tests/attacks", "tests/../../x")),
    ):
        _content(f"option {_option_name} names {_name}", _option(_option_name, _path), expected=SAFE, formats=FORMATS if _name == "/dev/zero" else ("old",))  # fmt: skip
for _option_name in _WRITTEN:
    _content(
        f"option {_option_name} names a file to write",
        lambda file, goods, o=_option_name: file.options.update({o: str(goods.witness / "written")}),
        expected=SAFE,
    )
_content("VQA option names a file to write", lambda file, goods: file.options.update(save_model=str(goods.witness / "m"), log_file=str(goods.witness / "l"), tensorboard=True, tensorboard_log_dir=str(goods.witness / "t")), "vqa", expected=SAFE)  # fmt: skip
_content("VQA option names a file to read", lambda file, goods: file.options.update(data="/dev/zero", embeddings="/dev/zero"), "vqa", expected=SAFE)  # fmt: skip
_content("tensorboard is on", lambda file, goods: file.options.update(tensorboard=True, tensorboard_log_dir=str(goods.witness / "t"), exp="x", exp_host="http://127.0.0.1:9"), expected=SAFE)  # fmt: skip
_content("options that start processes", lambda file, goods: file.options.update(world_size=4, gpu_ranks=[0, 1, 2, 3], num_threads=64, master_ip="127.0.0.1", gpu=0), expected=SAFE)  # fmt: skip


# Text processing.
def _text(**side: Any) -> Change:
    def apply(file: File, goods: Goods) -> None:
        known = file.options["text_processing"]
        file.options["text_processing"] = {**known, "src": {**known["src"], **side}}

    return apply


def _processing(value: Any) -> Change:
    return lambda file, goods: file.options.update(text_processing=value)


_BROKEN_SP = base64.b64encode(b"\x0a\x0e\x0a\x05<unk>" + b"\xff" * 40).decode()
_TEXTS: dict[str, Change] = {
    "sentencepiece that is not base64": _text(subword="sentencepiece", model="%%%"),
    "sentencepiece that is corrupt": _text(subword="sentencepiece", model=_BROKEN_SP),
    "sentencepiece that is empty": _text(subword="sentencepiece", model=""),
    "sentencepiece that is a path": _text(subword="sentencepiece", model="/etc/passwd"),
    "merges that are corrupt": _text(subword="bpe", model="#version: 0.2\na b c d\n\n"),
    "merges that are one word a line": _text(subword="bpe", model="#version: 0.2\nabc\n"),
    "merges of another version": _text(subword="bpe", model="#version: 99.9\na b\n"),
    "merges that are empty": _text(subword="bpe", model=""),
    "an unknown subword": _text(subword="nope"),
    "an unknown tokeniser": _text(tokenize="nope"),
    "a language that leads elsewhere": _text(tokenize="moses", language="../../x"),
    "a language that is a number": _text(tokenize="moses", language=5),
    "lowercase that is a string": _text(lowercase="yes"),
    "an unknown setting": _text(surprise=1),
    "that is a string": _processing("text.json"),
    "that is a list": _processing([1]),
    "that is a number": _processing(3),
    "of another version": lambda file, goods: file.options["text_processing"].update(version=99),
    "without a version": lambda file, goods: file.options["text_processing"].pop("version") and None,
    "without a side": lambda file, goods: file.options["text_processing"].pop("tgt") and None,
    "with a side that is a list": lambda file, goods: file.options["text_processing"].update(src=[1]),
}
_HARMLESS_TEXTS = ("merges that are empty", "a language that leads elsewhere", "merges that are corrupt")
for _name, _change in _TEXTS.items():
    expected = {"expected": SAFE} if _name in _HARMLESS_TEXTS else {"at": TRANSLATING}
    _content(f"text processing: {_name}", _change, **expected)  # type: ignore[arg-type]


# Vocabularies of the old format: fields of torchtext.
def _field(file: File, side: str = "tgt") -> dict[str, Any]:
    return file.tree["vocab"][side].state["fields"][0][1].state


def _words(change: Callable[[list[Any]], list[Any]], side: str = "tgt") -> Change:
    def apply(file: File, goods: Goods) -> None:
        vocab = _field(file, side)["vocab"].state
        vocab["itos"] = change(list(vocab["itos"]))
        vocab["stoi"] = {
            word: i for i, word in enumerate(vocab["itos"]) if isinstance(word, str | int | None)
        }

    return apply


def _of_field(name: str, value: Any) -> Change:
    return lambda file, goods: _field(file, "src").update({name: value})


_VOCABULARIES: dict[str, Change] = {
    "empty": _words(lambda words: []),
    "one word": _words(lambda words: words[:1]),
    "a word twice": _words(lambda words: [*words[:-1], words[-2]]),
    "a word too few": _words(lambda words: words[:-1]),
    "a word too many": _words(lambda words: [*words, "surprise"]),
    "a word that is a number": _words(lambda words: [*words[:-1], 5]),
    "a word that is None": _words(lambda words: [*words[:-1], None]),
    "a word that is a list": _words(lambda words: [*words[:-1], []]),
    "no unknown word": _words(lambda words: ["x" if word == "<unk>" else word for word in words]),
    "no padding": _words(lambda words: ["x" if word == "<blank>" else word for word in words]),
    "no begin of a sentence": _words(lambda words: ["x" if word == "<s>" else word for word in words]),
    "no end of a sentence": _words(lambda words: ["x" if word == "</s>" else word for word in words]),
    "a million words": _words(lambda words: [*words, *(f"w{i}" for i in range(10**6))]),
    "a word of ten million characters": _words(lambda words: [*words[:-1], "x" * 10**7]),
    "no source side": lambda file, goods: file.tree["vocab"].pop("src") and None,
    "no target side": lambda file, goods: file.tree["vocab"].pop("tgt") and None,
    "sides that are lists of words": lambda file, goods: file.tree["vocab"].update(src=["a"], tgt=["b"]),
    "no fields": lambda file, goods: file.tree["vocab"]["src"].state.update(fields=[]),
    "fields that are no pairs": lambda file, goods: file.tree["vocab"]["src"].state.update(fields=[1, 2]),
    "a field without a vocabulary": lambda file, goods: _field(file).pop("vocab") and None,
    "a vocabulary without words": lambda file, goods: _field(file)["vocab"].state.pop("itos") and None,
    "words in a dictionary": lambda file, goods: _field(file)["vocab"].state.update(itos={"a": 1}),
    "words in a string": lambda file, goods: _field(file)["vocab"].state.update(itos="abcdefghijk"),
    "a field that contains itself": lambda file, goods: (
        file.tree["vocab"]["src"].state["fields"].append(("x", file.tree["vocab"]["src"]))
    ),
    "a field that is a class": lambda file, goods: file.tree["vocab"].update(
        src=Global("torchtext.data.field", "Field")
    ),
    "OpenNMT-py 3": lambda file, goods: file.tree.update(
        vocab={"src": ["<unk>", "a"], "tgt": ["<unk>", "b"], "data_task": "seq2seq"}
    ),
    "OpenNMT-py 3 with specials": lambda file, goods: file.tree.update(
        vocab={"src": ["a"], "tgt": ["b"], "specials": {"src": {"pad_token": "<blank>"}}}
    ),
    "OpenNMT-py 1": lambda file, goods: file.tree.update(
        vocab=[("src", file.tree["vocab"]["src"]), ("tgt", file.tree["vocab"]["tgt"])]
    ),
    "OpenNMT-py 0": lambda file, goods: file.tree.update(
        vocab=[("src", _field(file, "src")["vocab"]), ("tgt", _field(file)["vocab"])]
    ),
}
_AT_USE = ("a word too few", "a word too many", "a million words")
for _name, _change in _VOCABULARIES.items():
    _where = {"at": USING} if _name in _AT_USE else {"expected": SAFE} if "characters" in _name else {}
    _content(f"vocabulary: {_name}", _change, formats=("old",), **_where)  # type: ignore[arg-type]
_FIELDS: dict[str, Any] = {
    "fix_length": 10**9, "dtype": "load", "pad_token": None, "unk_token": 5, "init_token": ["x"], "lower": "x",
    "tokenize": "spacy", "tokenizer_args": ("spacy", "../../x"), "preprocessing": Global("functools", "partial"),
    "postprocessing": Global("onmt.inputters.inputter", "make_src"), "stop_words": 7, "vocab": None,
    "vocab_cls": Global("torchtext.vocab", "Vocab"), "dtypes": {}, "include_lengths": "x",
}  # fmt: skip
for _name, _value in _FIELDS.items():
    more = {} if _name == "vocab" else {"expected": SAFE}
    _content(f"field's {_name} is {_value!r:.30}", _of_field(_name, _value), formats=("old",), **more)


# Vocabularies of the new format, whatever their form: lists of words, somewhere under `vocab`.
def _lists(tree: Any) -> list[list[Any]]:
    """Every list of strings in a tree."""
    if isinstance(tree, list) and tree and all(isinstance(word, str) for word in tree):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [found for child in children for found in _lists(child)]


def _any_words(change: Callable[[list[Any]], list[Any]]) -> Change:
    def apply(file: File, goods: Goods) -> None:
        for words in _lists(file.tree["vocab"] if file.kind == "translation" else file.tree["vqa"]):
            words[:] = change(list(words))

    return apply


_ANY_WORDS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "empty": lambda words: [],
    "one word": lambda words: words[:1],
    "a word twice": lambda words: [*words[:-1], words[0]],
    "a word that is a number": lambda words: [*words[:-1], 5],
    "a word that is null": lambda words: [*words[:-1], None],
    "a word that is a list": lambda words: [*words[:-1], ["x"]],
    "a million words": lambda words: [*words, *(f"w{i}" for i in range(10**6))],
    "a lone surrogate": lambda words: [*words[:-1], "\ud800"],
}
for _name, _words_change in _ANY_WORDS.items():
    _content(f"words: {_name}", _any_words(_words_change), formats=("new",), at=USING)
    _where = {"expected": SAFE} if "surrogate" in _name else {"at": frozenset({"vqa_evaluate"})}
    _content(f"words: {_name}", _any_words(_words_change), "vqa", **_where)  # type: ignore[arg-type]
for _name, _value in (
    ("a string", "x"),
    ("negative", -1),
    ("huge", 10**12),
    ("None", None),
    ("a float", 1.5),
):
    _content(f"feature_size is {_name}", lambda file, goods, v=_value: file.tree["vqa"].update(feature_size=v), "vqa", at=frozenset({"vqa_evaluate"}))  # fmt: skip
for _name in ("words", "answers", "feature_size"):
    _content(f"no {_name}", lambda file, goods, n=_name: file.tree["vqa"].pop(n) and None, "vqa", at=frozenset({"vqa_evaluate"}))  # fmt: skip


# Optimiser: training refuses, nothing crashes.
def _groups(file: File) -> Any:
    return file.tree["optim"]["optimizer"]["param_groups"]


def _moment(file: File) -> dict[str, Any]:
    """The state of the first parameter, whose key is a number (in the new format, one of a list of pairs)."""
    state = file.tree["optim"]["optimizer"]["state"]
    return state["$pairs"][0][1] if "$pairs" in state else state[0]


_OPTIMISERS: dict[str, Change] = {
    "is empty": lambda file, goods: file.tree.update(optim={}),
    "without its optimiser": lambda file, goods: file.tree["optim"].pop("optimizer") and None,
    "without its state": lambda file, goods: file.tree["optim"]["optimizer"].pop("state") and None,
    "without its groups": lambda file, goods: file.tree["optim"]["optimizer"].pop("param_groups") and None,
    "with groups of another number": lambda file, goods: _groups(file).append(_groups(file)[0]),
    "with parameters in another order": lambda file, goods: _groups(file)[0]["params"].reverse(),
    "with fewer parameters": lambda file, goods: _groups(file)[0].update(params=[0]),
    "with a learning rate that is a string": lambda file, goods: _groups(file)[0].update(lr="x"),
    "with betas of strings": lambda file, goods: _groups(file)[0].update(betas=["a", "b"]),
    "with no betas": lambda file, goods: _groups(file)[0].pop("betas") and None,
    "with a moment of another shape": lambda file, goods: _moment(file).update(exp_avg=file.tensor(torch.ones(2, 2))),
    "with a moment that is a string": lambda file, goods: _moment(file).update(exp_avg="x"),
    "with a moment that is NaN": lambda file, goods: _moment(file).update(exp_avg=file.tensor(torch.full((9, 4), float("nan")))),
    "without a moment": lambda file, goods: _moment(file).pop("exp_avg") and None,
    "with a step that is a string": lambda file, goods: _moment(file).update(step="x"),
    "with a negative training step": lambda file, goods: file.tree["optim"].update(training_step=-5),
    "with a training step that is a string": lambda file, goods: file.tree["optim"].update(training_step="x"),
    "with a training step of 10^30": lambda file, goods: file.tree["optim"].update(training_step=10**30),
}  # fmt: skip
_OPTIMISER_SAFE = (
    "is empty", "with a moment that is NaN", "with a training step of 10^30", "with a negative training step",
    # One of other parameters starts anew, and the log says so.
    "without its optimiser", "without its groups", "with groups of another number", "with fewer parameters",
)  # fmt: skip
for _name, _change in _OPTIMISERS.items():
    _where = {"expected": SAFE} if _name in _OPTIMISER_SAFE else {"at": frozenset({"train -train_from"})}
    _content(f"optimiser {_name}", _change, **_where)  # type: ignore[arg-type]
    if "negative training step" in _name:
        _content(f"optimiser {_name}", lambda file, goods: file.tree["optim"].update(step=-5), "vqa", at=frozenset({"vqa_train -resume"}))  # fmt: skip
    if "training step" not in _name:
        _content(f"optimiser {_name}", _change, "vqa", expected=SAFE)
_content("learning rate is NaN", lambda file, goods: _groups(file)[0].update(lr=float("nan") if not file.new else {"$float": "nan"}), BOTH, expected=SAFE)  # fmt: skip

# Where training stood: -resume passes over it or refuses it, and nothing crashes.
_STANDS: dict[str, Any] = {
    "a string": "x", "None": None, "a list": [1], "negative": -1, "a dictionary": {"a": 1}, "huge": 10**30,
}  # fmt: skip
_STATE = {
    "translation": (
        "began",
        "streams",
        "data",
        "passing",
        "step",
        "best",
        "early_stopping",
        "versions",
        "start",
        "filled",
    ),
    "vqa": (
        *("began", "streams", "reports", "best", "passing", "left_out", "early_stopping"),
        *("stream", "sums", "carried", "stalled"),  # of version 0.1
    ),
}
for _kind, _names in _STATE.items():
    for _part in _names:
        for _name in ("a string", "None", "a list") if _part != "began" else _STANDS:
            _content(
                f"training's {_part} is {_name}",
                lambda file, goods, p=_part, v=_STANDS[_name]: file.tree["training"].update({p: v}),
                _kind,
                expected=SAFE,
            )
        _content(
            f"training without {_part}",
            lambda file, goods, p=_part: file.tree["training"].pop(p, None) and None,
            _kind,
            expected=SAFE,
        )
for _name, _size in (("too short", 10), ("too long", 10**5), ("empty", 0)):
    _content(f"random state {_name}", lambda file, goods, n=_size: file.tree["training"].update(streams=[file.tensor(torch.zeros(n, dtype=torch.uint8))]), expected=SAFE)  # fmt: skip
    _content(f"random state {_name}", lambda file, goods, n=_size: file.tree["training"].update(stream=file.tensor(torch.zeros(n, dtype=torch.uint8))), "vqa", expected=SAFE)  # fmt: skip
    _content(f"random states {_name}", lambda file, goods, n=_size: file.tree["training"].update(streams=[file.tensor(torch.zeros(n, dtype=torch.uint8))]), "vqa", expected=SAFE)  # fmt: skip
_content("random state of floats", lambda file, goods: file.tree["training"].update(streams=[file.tensor(torch.zeros(5056))]), expected=SAFE)  # fmt: skip

# A model of the other kind, and no model at all.
group.add("a VQA model", lambda goods, path: goods.archive("vqa").write(path), elsewhere=SAFE)
group.add("a translation model", lambda goods, path: goods.archive().write(path), kind="vqa", elsewhere=SAFE)
_content(
    "weights alone", lambda file, goods: setattr(file, "tree", {"weights": file.tensor(torch.zeros(2))}), BOTH
)
_content("a state dictionary alone", lambda file, goods: setattr(file, "tree", dict(file.tensors())), BOTH)
_content("options in a Namespace of a Namespace", lambda file, goods: file.tree.update(opt=Call(Global("argparse", "Namespace"), (), state={"opt": file.tree["opt"]})), formats=("old",), at=TRANSLATING)  # fmt: skip
_content(
    "options in an OrderedDict",
    lambda file, goods: file.tree.update(opt=ordered()),
    formats=("old",),
    at=TRANSLATING,
)

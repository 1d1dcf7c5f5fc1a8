"""Pickles in torch's zip that try to run code, to write, to fill memory, or to break the reader."""

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.attacks import exploit
from tests.attacks.archives import Archive
from tests.attacks.cases import SAME, Goods, Group
from tests.attacks.pickles import Call, Global, Persistent, Raw, name_opcode, opcodes, scalar, write

group = Group("pickle")
NAMESPACE, PARTIAL, FIELD = exploit.NAMESPACE, exploit.PARTIAL, exploit.FIELD
VOCAB = Global("torchtext.vocab", "Vocab")
COUNTER = Global("collections", "Counter")
TEXT = b"0" * 8  # stands for a word where the word does not matter

Node = Callable[[Goods], Any]


def _put(name: str, node: Node, part: str = "optim", kind: str = "translation", **more: Any) -> None:
    """A case with something else in the place of a part of a good checkpoint."""

    def make(goods: Goods, path: Path) -> None:
        archive = goods.archive(kind)
        archive.tree[part] = node(goods)
        archive.write(path)

    group.add(name, make, kind="vqa" if kind == "vqa" else "translation", **more)


def _code(name: str, change: Callable[[bytes, Goods], bytes], kind: str = "translation", **more: Any) -> None:
    """A case with a good checkpoint's pickle changed as bytes."""

    def make(goods: Goods, path: Path) -> None:
        archive = goods.archive(kind)
        archive.write(path, change(archive.pickle, goods))

    group.add(name, make, kind="vqa" if kind == "vqa" else "translation", **more)


def _touch(goods: Goods, name: str = "ran") -> str:
    return exploit.touch(goods.witness / name)


def _python(goods: Goods) -> str:
    return f"open({str(goods.witness / 'ran')!r}, 'w').close()"


# The chain that worked, in stock's and in our checkpoints.
for _kind in ("translation", "stock"):

    @group.case(f"command run by a translation, with allowed names alone ({_kind})")
    def _chain(goods: Goods, path: Path, kind: str = _kind) -> None:
        archive = goods.archive(kind)
        exploit.arm(archive, _touch(goods))
        archive.write(path)


# Names that run something when they are called, each with arguments that would.
_CALLS: dict[str, Callable[[Goods], tuple[Any, ...]]] = {
    "os system": lambda goods: (_touch(goods),),
    "posix system": lambda goods: (_touch(goods),),
    "nt system": lambda goods: (_touch(goods),),
    "os popen": lambda goods: (_touch(goods),),
    "subprocess call": lambda goods: (["touch", str(goods.witness / "ran")],),
    "subprocess Popen": lambda goods: (["touch", str(goods.witness / "ran")],),
    "builtins exec": lambda goods: (_python(goods),),
    "builtins eval": lambda goods: (_python(goods),),
    "__builtin__ eval": lambda goods: (_python(goods),),
    "builtins compile": lambda goods: ("1", "x", "eval"),
    "builtins getattr": lambda goods: (NAMESPACE, "__init__"),
    "builtins setattr": lambda goods: (NAMESPACE, "x", 1),
    "builtins __import__": lambda goods: ("this",),
    "builtins open": lambda goods: (str(goods.witness / "ran"), "w"),
    "builtins type": lambda goods: ("T", (), {}),
    "builtins map": lambda goods: (PARTIAL, []),
    "io open": lambda goods: (str(goods.witness / "ran"), "w"),
    "os mkdir": lambda goods: (str(goods.witness / "ran"),),
    "shutil rmtree": lambda goods: (str(goods.witness / "ran"),),
    "pathlib Path.touch": lambda goods: (str(goods.witness / "ran"),),
    "runpy run_path": lambda goods: (str(goods.witness / "ran"),),
    "runpy _run_code": lambda goods: (_python(goods), {}),
    "importlib import_module": lambda goods: ("this",),
    "timeit timeit": lambda goods: (_python(goods),),
    "cProfile run": lambda goods: (_python(goods),),
    "pickle loads": lambda goods: (Raw(pickle.SHORT_BINBYTES + b"\x02N."),),
    "marshal loads": lambda goods: (Raw(pickle.SHORT_BINBYTES + b"\x01N"),),
    "socket create_connection": lambda goods: (("127.0.0.1", 9),),
    "urllib.request urlopen": lambda goods: ("http://127.0.0.1:9/",),
    "webbrowser open": lambda goods: ("http://127.0.0.1:9/",),
    "types FunctionType": lambda goods: (None, {}),
    "types CodeType": lambda goods: (0,),
    "operator attrgetter": lambda goods: ("__class__",),
    "operator itemgetter": lambda goods: (0,),
    "operator methodcaller": lambda goods: ("__subclasses__",),
    "functools reduce": lambda goods: (PARTIAL, []),
    "copyreg _reconstructor": lambda goods: (NAMESPACE, Global("builtins", "object"), None),
    "copy_reg _reconstructor": lambda goods: (NAMESPACE, Global("__builtin__", "object"), None),
    "copyreg __newobj__": lambda goods: (NAMESPACE,),
    "torch load": lambda goods: (str(goods.old["stock"]),),
    "torch.serialization load": lambda goods: (str(goods.old["stock"]),),
    "torch save": lambda goods: ({}, str(goods.witness / "ran")),
    "torch.hub load": lambda goods: (str(goods.witness), "x", "local"),
    "torch.hub download_url_to_file": lambda goods: ("http://127.0.0.1:9/", str(goods.witness / "ran")),
    "torch.jit load": lambda goods: (str(goods.old["stock"]),),
    "torch._C import_ir_module_from_buffer": lambda goods: ("",),
    "torch.storage _load_from_bytes": lambda goods: (Raw(pickle.SHORT_BINBYTES + b"\x02N."),),
    "torch.utils.cpp_extension load": lambda goods: ("x", []),
    "torch.utils._config_module _apply": lambda goods: (),
    "torch._utils _import_dotted_name": lambda goods: ("os.system",),
    "torch.package PackageImporter": lambda goods: (str(goods.old["stock"]),),
    "torch.ops load_library": lambda goods: (str(goods.witness / "ran"),),
    "numpy load": lambda goods: (str(goods.old["stock"]), None, True),
    "numpy.testing._private.utils runstring": lambda goods: (_python(goods), {}),
    "onmt.utils.parse ArgumentParser": lambda goods: (),
    "torchtext.vocab GloVe": lambda goods: (),
    "torchtext.utils download_from_url": lambda goods: ("http://127.0.0.1:9/", str(goods.witness / "ran")),
    "onmt_varattn.utils.files atomic_write": lambda goods: (str(goods.witness / "ran"),),
}
for _name, _args in _CALLS.items():
    _put(
        f"calls {_name.replace(' ', '.')}", lambda goods, n=_name, a=_args: Call(Global(*n.split()), a(goods))
    )


# Allowed names, called or built in ways that no checkpoint needs.
def _glove(goods: Goods) -> Call:
    """Vocab(counter, vectors=..., vectors_cache=...): makes a directory, and asks a server."""
    specials = ["<unk>"]
    args = (Call(COUNTER, ({},)), None, 1, specials, "glove.6B.50d", None, str(goods.witness / "cache"))
    return Call(VOCAB, args)


_put("Vocab with vectors of the network", _glove)
_put("Vocab with vectors of the network, as a vocabulary", _glove, part="vocab")
_put("partial of a name that runs", lambda goods: exploit.partial(Global("os", "system"), _touch(goods)))
_REBUILDS = {
    "_rebuild_tensor": (None, 0, (1,), (1,)),
    "_rebuild_tensor_v3": (None, 0, (1,), (1,), False, None, Global("torch", "float32"), None),
    "_rebuild_parameter": (None, False, None),
    "_rebuild_parameter_with_state": (None, False, None, {"__class__": FIELD}),
    "_rebuild_qtensor": (None, 0, (1,), (1,), (Global("torch", "per_tensor_affine"), 1.0, 0), False, None),
    "_rebuild_sparse_tensor": (Call(Global("torch.serialization", "_get_layout"), ("torch.sparse_coo",)), ()),
    "_rebuild_meta_tensor_no_storage": (Global("torch", "float32"), (1 << 40,), (1,), False),
    "_rebuild_device_tensor_from_numpy": (None, Global("torch", "float32"), "cpu", False),
    "_rebuild_wrapper_subclass": (
        Global("torch", "Tensor"),
        Global("torch", "float32"),
        (1,),
        (1,),
        0,
        None,
        "cpu",
        False,
    ),
    "_rebuild_nested_tensor": (None, None, None, None),
    "_rebuild_xla_tensor": (None,),
}
for _name, _args in _REBUILDS.items():  # type: ignore[assignment]
    _put(
        f"torch._utils.{_name} with arguments that do not fit",
        lambda goods, n=_name, a=_args: Call(Global("torch._utils", n), a),
    )
_put(
    "_rebuild_from_type_v2 sets __class__",
    lambda goods: exploit.with_class(FIELD, {"x": 1}),
)
_put(
    "_rebuild_from_type_v2 calls a partial",
    lambda goods: Call(exploit.REBUILD, (exploit.partial(NAMESPACE), NAMESPACE, (), {})),
)
for _part in ("model", "generator", "opt", "vocab"):
    _put(f"a name in the place of {_part}", lambda goods: NAMESPACE, part=_part)
_BUILDS: dict[str, Node] = {
    "state of a class": lambda goods: Raw(
        name_opcode("argparse", "Namespace") + b"}" + scalar("x") + b"K\x01sb"
    ),
    "state of a function": lambda goods: Raw(
        name_opcode("onmt.inputters.inputter", "make_src") + b"}" + scalar("__code__") + b"Nsb"
    ),
    "state that sets __class__": lambda goods: Call(NAMESPACE, (), state={"__class__": FIELD}),
    "slot state that sets __class__": lambda goods: Call(NAMESPACE, (), state=(None, {"__class__": FIELD})),
    "slot state that sets __dict__": lambda goods: Call(NAMESPACE, (), state=(None, {"__dict__": {"a": 1}})),
    "state with __setstate__": lambda goods: Call(NAMESPACE, (), state={"__setstate__": PARTIAL}),
    "state with __reduce__": lambda goods: Call(NAMESPACE, (), state={"__reduce__": PARTIAL}),
    "state with keys that are no strings": lambda goods: Call(NAMESPACE, (), state={1: 2, (3,): 4}),
    "state that is a list": lambda goods: Call(NAMESPACE, (), state=[1, 2]),
    "state of a dictionary": lambda goods: Raw(b"}}" + scalar("x") + b"K\x01sb"),
    "state of a string": lambda goods: Raw(scalar("x") + b"}b"),
    "state of a number": lambda goods: Raw(b"K\x01}b"),
    "state of a partial with too few parts": lambda goods: Call(PARTIAL, (NAMESPACE,), state=(NAMESPACE,)),
    "partial of nothing": lambda goods: Call(PARTIAL, ()),
    "partial of a string": lambda goods: Call(PARTIAL, ("os.system",)),
    "reduction of a string": lambda goods: Call("os.system", (TEXT.decode(),)),
    "reduction of an instance": lambda goods: Call(Call(NAMESPACE, ()), ()),
    "reduction with arguments that are no tuple": lambda goods: Call(NAMESPACE, ["x"]),
    "new object of a function": lambda goods: Call(
        Global("onmt.inputters.inputter", "make_src"), (), new=True
    ),
    "new object of a string": lambda goods: Call("x", (), new=True),
    "new partial": lambda goods: Call(PARTIAL, (Global("os", "system"), _touch(goods)), new=True),
    "NEWOBJ_EX": lambda goods: Raw(
        name_opcode("argparse", "Namespace") + b")}" + scalar("x") + b"K\x01s\x92"
    ),
    "NEWOBJ_EX of a partial": lambda goods: Raw(
        name_opcode("functools", "partial")
        + name_opcode("os", "system")
        + scalar(_touch(goods))
        + b"\x86}\x92"
    ),
    "INST": lambda goods: Raw(b"(" + scalar(_touch(goods)) + b"ios\nsystem\n"),
    "INST of an allowed name": lambda goods: Raw(b"(iargparse\nNamespace\n"),
    "OBJ": lambda goods: Raw(b"(" + name_opcode("os", "system") + scalar(_touch(goods)) + b"o"),
    "OBJ of an allowed name": lambda goods: Raw(b"(" + name_opcode("argparse", "Namespace") + b"o"),
    "EXT1": lambda goods: Raw(pickle.EXT1 + b"\x01"),
    "EXT2": lambda goods: Raw(pickle.EXT2 + b"\x01\x00"),
    "EXT4": lambda goods: Raw(pickle.EXT4 + b"\x01\x00\x00\x00"),
    "PERSID": lambda goods: Raw(b"Pstorage\n"),
    "NEXT_BUFFER": lambda goods: Raw(b"\x97"),
    "READONLY_BUFFER": lambda goods: Raw(b"\x97\x98"),
    "bytearray of a gigabyte": lambda goods: [
        Call(Global("builtins", "bytearray"), (10**9,)) for _ in range(4)
    ],
    "bytearray by name": lambda goods: Call(Global("builtins", "bytearray"), (b"x" * 0 or 10**9,)),
    "set by name": lambda goods: Call(Global("builtins", "set"), ([1, 2],)),
    "complex by name": lambda goods: Call(Global("builtins", "complex"), (1.0, 2.0)),
    "codec by name": lambda goods: Call(Global("_codecs", "encode"), ("x", "rot13")),
    "torch.device": lambda goods: Call(Global("torch", "device"), ("cuda:7",)),
    "torch.Tensor of a terabyte": lambda goods: Call(Global("torch", "Tensor"), (1 << 38,)),
    "torch.Size": lambda goods: Call(Global("torch", "Size"), ((1 << 60, 1 << 60),)),
}
for _name, _node in _BUILDS.items():
    _put(_name, _node)

# Identities of storages that are none.
_IDENTITIES: dict[str, Any] = {
    "a string": "storage",
    "a number": 7,
    "an empty tuple": (),
    "a short tuple": ("storage", Global("torch", "FloatStorage")),
    "a long tuple": ("storage", Global("torch", "FloatStorage"), "0", "cpu", 1, 2, 3),
    "another word": ("module", Global("torch", "FloatStorage"), "0", "cpu", 1),
    "a type that is a string": ("storage", "FloatStorage", "0", "cpu", 1),
    "a type that is none": ("storage", NAMESPACE, "0", "cpu", 1),
    "a key that is a path": ("storage", Global("torch", "FloatStorage"), "../../../../etc/passwd", "cpu", 1),
    "a key that is a number": ("storage", Global("torch", "FloatStorage"), 0, "cpu", 1),
    "a key that is a list": ("storage", Global("torch", "FloatStorage"), [], "cpu", 1),
    "a size that is a string": ("storage", Global("torch", "FloatStorage"), "0", "cpu", "1"),
    "a device that is a list": ("storage", Global("torch", "FloatStorage"), "0", [], 1),
    "a list": ["storage"],
}  # fmt: skip
for _name, _identity in _IDENTITIES.items():
    _put(f"storage's identity is {_name}", lambda goods, i=_identity: Persistent(i))

# Names.
_NAMES = {
    "with dots": ("argparse", "Namespace.__init__"),
    "of a dunder attribute": ("argparse", "Namespace.__class__"),
    "that leads to globals": ("torch", "FloatStorage.__init__.__globals__"),
    "with dots in the module": ("argparse.Namespace", "__init__"),
    "empty": ("", ""),
    "without a module": ("", "Namespace"),
    "without a name": ("argparse", ""),
    "with spaces": ("argparse ", " Namespace"),
    "that looks alike": ("argparse", "Nаmespace"),
    "in another case": ("ARGPARSE", "NAMESPACE"),
    "of a module that an import runs": ("antigravity", "geohash"),
    "of __main__": ("__main__", "main"),
    "very long": ("a" * 70000, "b" * 70000),
}
for _name, (_module, _attribute) in _NAMES.items():
    _put(f"a name {_name}", lambda goods, m=_module, a=_attribute: Raw(name_opcode(m, a)))
_put("a name without an end", lambda goods: Raw(b"cargparse\nNamespace"))
_put("a name that is not UTF-8", lambda goods: Raw(b"carg\xff\xfe\nN\xff\n"))


def _stack_global(module: bytes, name: bytes) -> Raw:
    return Raw(module + name + pickle.STACK_GLOBAL)


_put("STACK_GLOBAL", lambda goods: _stack_global(scalar("os"), scalar("system")))
_put("STACK_GLOBAL of numbers", lambda goods: _stack_global(b"K\x01", b"K\x02"))
_put(
    "STACK_GLOBAL by the memo",
    lambda goods: Raw(
        scalar("os")
        + b"q\xf0"
        + scalar("system")
        + b"q\xf100h\xf0h\xf1\x93"
        + scalar(_touch(goods))
        + b"\x85R"
    ),
)
_put(
    "memo of a name is replaced before it is used",
    lambda goods: Raw(
        name_opcode("argparse", "Namespace")
        + b"q\xf00"
        + name_opcode("os", "system")
        + b"q\xf00h\xf0"
        + scalar(_touch(goods))
        + b"\x85R"
    ),
)


# Sizes.
def _laughs(depth: int = 40) -> list[Any]:
    level: list[Any] = ["ha"] * 10
    for _ in range(depth):
        level = [level] * 10
    return level


def _nested(depth: int, opening: bytes = b"]", closing: bytes = b"a") -> Raw:
    return Raw(opening * depth + b"N" + closing * depth)


def _cyclic_dictionary() -> dict[str, Any]:
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    return cycle


_PARTS: dict[str, Node] = {
    "lists of the same list, 10^40 elements": lambda goods: _laughs(),
    "lists nested 100,000 deep": lambda goods: _nested(100_000),
    "tuples nested 100,000 deep": lambda goods: _nested(100_000, b"", b"\x85"),
    "a dictionary that contains itself": lambda goods: _cyclic_dictionary(),
    "a list that contains itself": lambda goods: Raw(b"]q\xf0h\xf0a"),
    "an integer of a million bytes": lambda goods: Raw(pickle.LONG4 + struct.pack("<i", 1_000_000) + b"\x7f" * 1_000_000),
    "an integer of a million digits": lambda goods: Raw(b"L" + b"9" * 1_000_000 + b"L\n"),
    "an integer of negative length": lambda goods: Raw(pickle.LONG4 + struct.pack("<i", -1)),
    "a line of digits that is none": lambda goods: Raw(b"I1e5\n"),
    "BINUNICODE8 of 2^62 bytes": lambda goods: Raw(pickle.BINUNICODE8 + struct.pack("<Q", 1 << 62)),
    "BINUNICODE of 4 GB": lambda goods: Raw(pickle.BINUNICODE + struct.pack("<I", 0xFFFFFFFF)),
    "BINBYTES8 of 2^62 bytes": lambda goods: Raw(pickle.BINBYTES8 + struct.pack("<Q", 1 << 62)),
    "BYTEARRAY8 of a gigabyte": lambda goods: Raw(pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 30)),
    "FRAME of 2^62 bytes": lambda goods: Raw(pickle.FRAME + struct.pack("<Q", 1 << 62) + b"N"),
    "LONG_BINPUT at 2^32 - 1": lambda goods: Raw(b"Nr\xff\xff\xff\xff"),
    "PUT at a negative place": lambda goods: Raw(b"Np-1\n"),
    "a key that cannot be one": lambda goods: Raw(b"}]K\x01s"),
    "a string that is not UTF-8": lambda goods: Raw(pickle.BINUNICODE + struct.pack("<I", 2) + b"\xff\xfe"),
    "a string with a lone surrogate": lambda goods: Raw(pickle.BINUNICODE + struct.pack("<I", 3) + b"\xed\xa0\x80"),
    "APPEND to a dictionary": lambda goods: Raw(b"}Na"),
    "SETITEM of a list": lambda goods: Raw(b"]K\x00Ns"),
    "SETITEMS of an odd number": lambda goods: Raw(b"}(K\x00u"),
    "ADDITEMS to a list": lambda goods: Raw(b"](K\x00\x90"),
    "an opcode that there is not": lambda goods: Raw(b"\xff"),
    "PROTO in the middle": lambda goods: Raw(b"\x80\x09N"),
}  # fmt: skip
_EXPECTED = {
    "a string with a lone surrogate": "safe", "PROTO in the middle": "safe", "LONG_BINPUT at 2^32 - 1": "safe",
    "FRAME of 2^62 bytes": "safe", "an integer of a million bytes": "safe", "an integer of a million digits": "safe",
}  # fmt: skip
for _name, _node in _PARTS.items():
    _put(_name, _node, expected=_EXPECTED.get(_name, "refused"))

# The pickle as a whole.
_code("no STOP", lambda code, goods: code[:-1])
_code("stops at once", lambda code, goods: b"\x80\x02.")
_code("is empty", lambda code, goods: b"")
_code("is None", lambda code, goods: b"\x80\x02N.")
_code("is a name", lambda code, goods: b"\x80\x02" + name_opcode("os", "system") + b".")
_code("is a call", lambda code, goods: write(Call(Global("os", "system"), (_touch(goods),))))
_code("POP of an empty stack", lambda code, goods: b"\x80\x020.")
_code("POP_MARK without a mark", lambda code, goods: b"\x80\x021.")
_code("TUPLE without a mark", lambda code, goods: b"\x80\x02Nt.")
_code("TUPLE3 of too few", lambda code, goods: b"\x80\x02N\x87.")
_code("BINGET of what was never put", lambda code, goods: b"\x80\x02h\x07.")
_code("LONG_BINGET of what was never put", lambda code, goods: b"\x80\x02j\x07\x00\x00\x00.")
_code("a mark is left", lambda code, goods: code[:-1] + b"(.")
_code("a million marks", lambda code, goods: b"\x80\x02" + b"(" * 1_000_000 + code[2:])
_code("protocol 99", lambda code, goods: b"\x80\x63" + code[2:])
_code("cut in two", lambda code, goods: code[: len(code) // 2])
_code("cut in an opcode", lambda code, goods: b"".join(opcodes(code)[:40])[:-1])
_code("a call after the end", lambda code, goods: code + write(Call(Global("os", "system"), (_touch(goods),))), expected="safe")  # fmt: skip
_code(
    "a call whose result is dropped",
    lambda code, goods: (
        b"\x80\x02" + write(Call(Global("os", "system"), (_touch(goods),)))[2:-1] + b"0" + code[2:]
    ),
)
_code("text protocol", lambda code, goods: b"(dp0\nS'model'\np1\ncos\nsystem\n(S'true'\ntRs.")
for _protocol in range(6):
    _code(
        f"a call by protocol {_protocol}",
        lambda code, goods, p=_protocol: pickle.dumps(_Reduces(_python(goods)), p),
    )
_code("a call in a VQA checkpoint", lambda code, goods: write({"vqa": Call(Global("os", "system"), (_touch(goods),))}), kind="vqa")  # fmt: skip
_put("a call in a VQA checkpoint's options", lambda goods: Call(Global("os", "system"), (_touch(goods),)), "opt", "vqa")  # fmt: skip
_put("a Namespace in a VQA checkpoint's words", lambda goods: Call(NAMESPACE, ()), "vqa", "vqa")
_put(
    "bytearray of a gigabyte in VQA",
    lambda goods: Call(Global("builtins", "bytearray"), (10**9,)),
    "vqa",
    "vqa",
)


class _Reduces:
    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> Any:
        return exec, (self.code,)


@group.case("written anew without a change", expected=SAME, at=frozenset({"load", "translate", "api"}))
def _same(goods: Goods, path: Path) -> None:
    goods.archive().write(path)


@group.case("every value put into the memo", expected=SAME, at=frozenset({"load", "translate"}))
def _memo(goods: Goods, path: Path) -> None:
    archive: Archive = goods.archive()
    code = opcodes(archive.pickle)
    put = pickle.LONG_BINPUT + struct.pack("<I", 999_999)
    changed = [part + put if part[:1] in b"X}])NK" else part for part in code]
    archive.write(path, b"".join(changed))

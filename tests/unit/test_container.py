"""The format of checkpoints: everything comes back, and nothing that has changed goes unnoticed."""

import io
import json
import math
import struct
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_varattn.errors import UserError
from onmt_varattn.training import checkpoints
from onmt_varattn.training.checkpoints import container
from tests.comparing import same

EVERYTHING = {
    "model": {
        "weight": torch.arange(6, dtype=torch.float32).view(2, 3),
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
        "brain": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "double": torch.tensor([1 / 3], dtype=torch.float64),
        "flags": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 3),
        "single": torch.tensor(7),
        "bytes": torch.arange(5, dtype=torch.uint8),
    },
    "optim": {"state": {0: {"step": 3}, 1: {}}, "betas": (0.9, 0.999), "none": None},
    "training": {"best": math.inf, "worst": -math.inf, "third": 1 / 3, "text": "ü\u2028\n\"'", "flag": True},
    "odd": {"$tensor": "no tensor", "$pairs": 1, "": [], "nested": [[{}], ({"a": ()},)]},
    "document": torch.ones(2),
}


def written(content, path):
    checkpoints.write(content, str(path))
    return path.read_bytes()


def test_everything_comes_back(tmp_path):
    written(EVERYTHING, tmp_path / "m.pt")
    assert same(checkpoints.read(str(tmp_path / "m.pt")), EVERYTHING)
    nan = {"a": math.nan, "b": torch.tensor([math.nan, math.inf])}
    written(nan, tmp_path / "n.pt")
    found = checkpoints.read(str(tmp_path / "n.pt"))
    assert math.isnan(found["a"])
    assert torch.equal(found["b"].isnan(), torch.tensor([True, False]))


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(
        st.characters(codec="utf-8")
    ),
    lambda inner: st.lists(inner, max_size=4)
    | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5) | st.integers(-9, 9), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(plain_values)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_tree_comes_back(value):
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        container.write({"value": value}, file)
        file.flush()
        assert same(container.read(open(file.name, "rb"))["value"], value)


def test_lazily_everything_but_the_numbers_in_tensors(tmp_path):
    path = tmp_path / "m.pt"
    written(EVERYTHING, path)
    found = checkpoints.read(str(path), lazily=True)
    for name, value in EVERYTHING["model"].items():
        assert found["model"][name].device.type == "meta"
        assert (found["model"][name].shape, found["model"][name].dtype) == (value.shape, value.dtype)
    assert same({**found, "model": 0, "document": 0}, {**EVERYTHING, "model": 0, "document": 0})


def test_a_tensor_that_two_parts_share_is_written_once(tmp_path):
    shared = torch.randn(1000, 10)
    once = len(written({"a": shared}, tmp_path / "a.pt"))
    twice = len(written({"a": shared, "b": {"c": shared}}, tmp_path / "b.pt"))
    assert twice - once < 100
    found = checkpoints.read(str(tmp_path / "b.pt"))
    assert torch.equal(found["b"]["c"], shared)
    view = len(written({"a": shared, "b": shared[:5]}, tmp_path / "c.pt"))
    assert 200 < view - once < 500


def test_the_layout_is_that_of_safetensors(tmp_path):
    """Read by the description of the format alone, and by its own library where that is installed."""
    content = written(EVERYTHING, tmp_path / "m.pt")
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert header.pop("__metadata__").keys() == {"crc32", "format", "version"}
    end = 0
    for entry in header.values():
        start, end = entry["data_offsets"][0], entry["data_offsets"][1]
        assert start % container.DTYPES[entry["dtype"]].itemsize == 0
    assert 8 + length + end == len(content)
    start, end = header["model.weight"]["data_offsets"]
    assert content[8 + length :][start:end] == EVERYTHING["model"]["weight"].numpy().tobytes()
    safetensors = pytest.importorskip("safetensors.torch")
    theirs = safetensors.load_file(tmp_path / "m.pt")
    for name, value in EVERYTHING["model"].items():
        assert torch.equal(theirs[f"model.{name}"], value), name


def test_every_flipped_bit_is_found(tmp_path):
    path = tmp_path / "m.pt"
    content = written({"model": {"a": torch.randn(40)}, "text": "words"}, path)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        with pytest.raises(UserError, match=r"m\.pt: (not a whole checkpoint|refused)"):
            checkpoints.read(str(path))


def test_every_truncation_and_every_tail_is_found(tmp_path):
    path = tmp_path / "m.pt"
    content = written({"model": {"a": torch.randn(40)}, "text": "words"}, path)
    for changed in [*(content[:n] for n in range(len(content))), content + b"\0"]:
        path.write_bytes(changed)
        with pytest.raises(UserError, match=r"m\.pt: not a whole checkpoint"):
            checkpoints.read(str(path))


def with_checksum(content):
    """A changed file that says that it is whole."""
    place = 8 + len(container._BEFORE_CHECKSUM)
    blank = content[:place] + b"00000000" + content[place + 8 :]
    return blank[:place] + b"%08x" % zlib.crc32(blank) + blank[place + 8 :]


def file_of(entries, data):
    header = (
        container._BEFORE_CHECKSUM
        + b"00000000"
        + container._AFTER_CHECKSUM
        + json.dumps(entries)[1:].encode()
    )
    return with_checksum(struct.pack("<Q", len(header)) + header + data)


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


DOCUMENT = b'{"a": 1}'
GOOD = {"t": entry("F32", [2], 0, 8), "document": entry("U8", [8], 8, 16)}


def test_a_file_written_by_hand_is_read(tmp_path):
    (tmp_path / "m.pt").write_bytes(file_of(GOOD, bytes(8) + DOCUMENT))
    assert checkpoints.read(str(tmp_path / "m.pt")) == {"a": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"t": entry("F32", [3], 0, 8)},
        {"t": entry("F32", [2], 0, 4)},
        {"t": entry("F32", [2], 4, 12)},
        {"t": entry("F32", [-2], 0, 8)},
        {"t": entry("F32", [2.0], 0, 8)},
        {"t": entry("F32", [True, 2], 0, 8)},
        {"t": entry("F32", [10**30], 0, 8)},
        {"t": entry("F32", [2**62, 4], 0, 8)},
        {"t": entry("F32", [1] * 9 + [2], 0, 8)},
        {"t": entry("C64", [1], 0, 8)},
        {"t": entry(["F32"], [2], 0, 8)},
        {"t": entry("F32", 2, 0, 8)},
        {"t": {**entry("F32", [2], 0, 8), "more": 1}},
        {"t": "F32"},
        {"document": entry("F32", [2], 8, 16)},
        {"document": entry("U8", [7], 8, 15)},
    ],
)
def test_a_header_that_lies_is_found(tmp_path, change):
    (tmp_path / "m.pt").write_bytes(file_of({**GOOD, **change}, bytes(8) + DOCUMENT))
    with pytest.raises(UserError, match=r"m\.pt: not a whole checkpoint"):
        checkpoints.read(str(tmp_path / "m.pt"))


@pytest.mark.parametrize(
    "document",
    [
        b'{"a": {"$tensor": "no"}}',
        b'{"a": {"$tensor": ["t"]}}',
        b'{"a": {"$tuple": 1}}',
        b'{"a": {"$float": "1"}}',
        b'{"a": {"$float": [1]}}',
        b'{"a": {"$pairs": [[1]]}}',
        b'{"a": {"$pairs": [[[1], 2]]}}',
        b'{"a": {"$pairs": [[9007199254740992, 2]]}}',
        b'{"a": {"$call": "os.system"}}',
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}x',
        b"[1]",
        b'{"a": "\xff"}',
        b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_document_that_makes_no_sense_is_refused(tmp_path, document):
    entries = {"t": entry("F32", [2], 0, 8), "document": entry("U8", [len(document)], 8, 8 + len(document))}
    (tmp_path / "m.pt").write_bytes(file_of(entries, bytes(8) + document))
    with pytest.raises(UserError, match=r"m\.pt: (not a (whole )?checkpoint|refused)"):
        checkpoints.read(str(tmp_path / "m.pt"))


def test_what_is_no_data_cannot_be_written():
    for value in (object(), {1, 2}, lambda: 0, torch.zeros):
        with pytest.raises(TypeError, match=r"a\.0: a checkpoint cannot hold a"):
            container.write({"a": [value]}, io.BytesIO())

"""Image features in others' files: every format gives the same arrays, and damage is named."""

import base64
import os
import re
import zipfile

import h5py
import numpy as np
import pytest

from onmt_varattn.errors import UserError
from onmt_varattn.vqa.features import regions as regions_module
from onmt_varattn.vqa.features import tsv
from onmt_varattn.vqa.features.formats import open_features
from onmt_varattn.vqa.features.regions import DIFFERENT_COUNTS, NO_BOXES, NOT_FINITE, LeftOut, Offset, Regions
from tests.regions import (
    FORMATS,
    draw,
    flat_arrays,
    padded_arrays,
    span_arrays,
    tsv_line,
    write_directory,
    write_groups,
    write_hdf5,
    write_tsv,
)

IMAGES = [9, 131, 25, 7, 1000000]


def items(path, **arguments):
    return [item for _, item in open_features(str(path)).iterate(**arguments)]


def same(found, expected):
    return (found.image, found.width, found.height) == (
        expected.image,
        expected.width,
        expected.height,
    ) and all(
        getattr(found, name).dtype == np.float32
        and getattr(found, name).shape == getattr(expected, name).shape
        and getattr(found, name).tobytes() == getattr(expected, name).tobytes()
        for name in ("boxes", "features")
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_bits(tmp_path, name):
    drawn = draw(IMAGES)
    FORMATS[name](tmp_path / name, drawn)
    found = items(tmp_path / name)
    by_image = {regions.image: regions for regions in found}
    assert len(found) == len(by_image) == len(drawn)
    assert all(same(by_image[regions.image], regions) for regions in drawn)


@pytest.mark.parametrize("name", FORMATS)
def test_a_position_is_where_to_go_on(tmp_path, name):
    FORMATS[name](tmp_path / name, draw(IMAGES))
    file = open_features(str(tmp_path / name))
    pairs = list(file.iterate())
    assert pairs[-1][0].offset == file.total
    for number, (position, _) in enumerate(pairs):
        rest = [item.image for _, item in open_features(str(tmp_path / name)).iterate(position)]
        assert rest == [item.image for _, item in pairs[number + 1 :]]


@pytest.mark.parametrize("name", FORMATS)
def test_a_refused_image_is_not_read(tmp_path, name):
    drawn = draw(IMAGES)
    drawn[1].features[:] = np.nan
    FORMATS[name](tmp_path / name, drawn)
    refused = {131: "ours", 7: "other"}
    found = {item.image: item for item in items(tmp_path / name, refuse=refused.get)}
    assert {image: item.reason for image, item in found.items() if isinstance(item, LeftOut)} == refused
    assert found[131].place.startswith(str(tmp_path / name))
    assert same(found[25], drawn[2])


@pytest.mark.parametrize("name", FORMATS)
def test_an_image_with_a_problem_is_told_and_the_others_follow(tmp_path, name):
    drawn = draw(IMAGES)
    drawn[1].features[0, 1] = np.inf
    drawn[2].boxes[-1, 3] = np.nan
    empty = draw([25], boxes=(0, 0))[0]
    FORMATS[name](tmp_path / name, [*drawn, Regions(44, 5, 5, empty.boxes, empty.features)])
    found = {item.image: item for item in items(tmp_path / name)}
    reasons = {image: item.reason for image, item in found.items() if isinstance(item, LeftOut)}
    assert reasons == {131: NOT_FINITE, 25: NOT_FINITE, 44: NO_BOXES}
    assert same(found[1000000], drawn[4])


def test_boxes_and_features_of_different_counts(tmp_path):
    (drawn,) = draw([5], boxes=(3, 3))
    uneven = Regions(5, 1, 1, drawn.boxes[:2], drawn.features)
    write_groups(tmp_path / "a.h5", [uneven])
    write_directory(tmp_path / "a", [uneven])
    for path in (tmp_path / "a.h5", tmp_path / "a"):
        assert [item.reason for item in items(path)] == [DIFFERENT_COUNTS]


def test_as_many_boxes_as_features_are_rows_of_boxes(tmp_path):
    (drawn,) = draw([5], size=3, boxes=(3, 3))
    write_directory(tmp_path / "square", [drawn])
    assert same(items(tmp_path / "square")[0], drawn)


@pytest.mark.parametrize("name", [name for name in FORMATS if name.endswith(("h5", "hdf5", "npz"))])
def test_without_a_size_the_image_ends_at_its_outermost_box(tmp_path, name):
    drawn = draw(IMAGES)
    FORMATS[name](tmp_path / name, drawn)
    if name.endswith("npz"):
        arrays = dict(np.load(tmp_path / name))
        np.savez(tmp_path / name, **{key: arrays[key] for key in arrays if not key.startswith("image_w")})
    else:
        with h5py.File(tmp_path / name, "a") as file:
            for part in [file, *(file[key] for key in file if isinstance(file[key], h5py.Group))]:
                for place in (part, part.attrs):
                    if "image_w" in place:
                        del place["image_w"]
    for regions in items(tmp_path / name):
        assert regions.width == int(np.ceil(regions.boxes[:, 2].max()))
        assert regions.height == 480 + regions.image % 5


def test_other_number_types_are_cast(tmp_path):
    drawn = draw([3])
    arrays = flat_arrays(drawn)
    for kind in ("f2", "f8", ">f4"):
        np.savez(tmp_path / "a.npz", **arrays | {"features": arrays["features"].astype(kind)})
        (found,) = items(tmp_path / "a.npz")
        expected = arrays["features"].astype(kind).astype("f4")
        assert np.array_equal(found.features, expected)
    np.savez(tmp_path / "a.npz", **arrays | {"features": arrays["features"].astype("f8") * 1e300})
    assert [item.reason for item in items(tmp_path / "a.npz")] == [NOT_FINITE]


def fields_of(regions):
    return tsv_line(regions).rstrip(b"\n").split(b"\t")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (0, b"image_id", "image_id is 'image_id', not an integer"),
        (1, b"-3", "image_w is '-3', not an integer"),
        (2, b"", "image_h is '', not an integer"),
        (3, b"1" * 30, "num_boxes is '1{30}', not an integer"),
        (3, b"2", r"boxes are 12 numbers, but 2 boxes take 8"),
        (4, b"AAAA", "boxes are 3 bytes, not 32-bit numbers"),
        (4, b"AAAA?", "boxes are not base64"),
        (5, b"AAA", "features are not base64"),
        (5, base64.b64encode(bytes(16)), "features are 4 numbers, not a multiple of 3 boxes"),
        (5, b"AAAA\tAAAA", "7 tab-separated fields, but bottom-up features have 6: image_id, image_w"),
    ],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_malformed_line_is_named(tmp_path, field, value, message, resumed):
    good, wrong = draw([1, 2], boxes=(3, 3))
    fields = fields_of(wrong)
    fields[field] = value
    lines = [tsv_line(good), b"\r\n", b"\t".join(fields) + b"\n", tsv_line(good)]
    (tmp_path / "a.tsv").write_bytes(b"".join(lines))
    file = open_features(str(tmp_path / "a.tsv"))
    start = next(file.iterate())[0] if resumed else Offset()
    with pytest.raises(UserError, match=rf"a\.tsv, line 3: {message}"):
        list(file.iterate(start))


def test_a_file_cut_anywhere_in_its_last_line_is_truncated(tmp_path):
    drawn = draw([1, 2], size=4, boxes=(2, 2))
    content = b"".join(map(tsv_line, drawn))
    first = len(tsv_line(drawn[0]))
    path = tmp_path / "a.tsv"
    for length in range(first + 1, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(
            UserError, match=r"a\.tsv, line 2: the file ends within this line; it is truncated"
        ):
            items(path)
        with pytest.raises(UserError, match=r"line 2: .* truncated"):
            items(path, refuse=lambda image: "not wanted")
    path.write_bytes(content[:-1])
    assert all(map(same, items(path), drawn)), "only the line feed is missing"
    assert [item.reason for item in items(path, refuse={2: "why"}.get)[1:]] == ["why"]


def test_a_line_without_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tsv, "MAX_LINE", 1000)
    (tmp_path / "a.tsv").write_bytes(b"1\t" * 2000)
    with pytest.raises(UserError, match=r"line 1: longer than 1,000 bytes"):
        items(tmp_path / "a.tsv")


@pytest.mark.parametrize("name", [name for name in FORMATS if "." in name])
def test_the_content_tells_where_the_ending_does_not(tmp_path, name):
    drawn = draw(IMAGES)
    path = tmp_path / name
    FORMATS[name](path, drawn)
    path = path.rename(tmp_path / "features.0")
    by_image = {regions.image: regions for regions in items(path)}
    assert all(same(by_image[regions.image], regions) for regions in drawn)


def test_what_is_in_no_known_format(tmp_path):
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04hello")
    with pytest.raises(
        UserError, match=r"a\.pkl: .* known format: .*\(\.tsv\), HDF5 .*one \.npz file per image$"
    ):
        open_features(str(tmp_path / "a.pkl"))
    with zipfile.ZipFile(tmp_path / "trainval.zip", "w") as archive:
        archive.writestr("trainval.tsv", "1")
    with pytest.raises(UserError, match="it is an archive, so unpack it"):
        open_features(str(tmp_path / "trainval.zip"))
    (tmp_path / "empty.h5").write_bytes(b"")
    with pytest.raises(UserError, match=r"empty\.h5: the file is empty"):
        open_features(str(tmp_path / "empty.h5"))
    with pytest.raises(UserError, match=r"none\.tsv: cannot be read: No such file"):
        open_features(str(tmp_path / "none.tsv"))


@pytest.mark.parametrize("name", ["flat.h5", "packed.hdf5", "groups.h5", "flat.npz", "packed.npz"])
def test_a_cut_file_is_one_sentence(tmp_path, name):
    drawn = draw(range(40), size=50)
    FORMATS[name](tmp_path / name, drawn)
    content = (tmp_path / name).read_bytes()
    for length in (20, len(content) // 2, len(content) - 20):
        (tmp_path / name).write_bytes(content[:length])
        with pytest.raises(UserError, match=rf"{name}: not a complete (HDF5|\.npz) file") as caught:
            items(tmp_path / name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["flat.npz", "packed.npz", "directory"])
def test_damage_inside_an_archive_is_found(tmp_path, name):
    FORMATS[name](tmp_path / name, draw([1], size=500))
    path = tmp_path / name if name.endswith("npz") else tmp_path / name / "1.npz"
    content = path.read_bytes()
    member = b"x.npy" if name == "directory" else b"features.npy"
    start = content.index(member) + len(member) + 20  # 20 bytes say how long it is
    for place in (start, start + 200, start + 1000):
        path.write_bytes(
            content[:place] + bytes(b ^ 0xFF for b in content[place : place + 4]) + content[place + 4 :]
        )
        with pytest.raises(UserError, match=rf"{path.name}: not a complete \.npz file"):
            items(tmp_path / name)


def test_another_file_with_an_hdf5_ending(tmp_path):
    write_tsv(tmp_path / "a.h5", draw([1]))
    with pytest.raises(UserError, match=r"a\.h5: not a complete HDF5 file: .*; download it again"):
        open_features(str(tmp_path / "a.h5"))


@pytest.mark.parametrize("write", [write_hdf5, lambda path, arrays: np.savez(path, **arrays)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": None}, "no array image_id or image_ids or ids; there are boxes, features, image_h"),
        ({"boxes": None}, "no array boxes or image_bb or bbox; there are features, image_h"),
        ({"num_boxes": None}, r"nothing assigns the \d+ boxes to images; an array num_boxes or pos_boxes"),
        ({"num_boxes": np.array([1, 1, 1])}, r"num_boxes adds up to 3 boxes, but there are \d+"),
        ({"num_boxes": np.array([1, 900, 1])}, r"image 8: num_boxes assigns it the boxes 1 to 901, of \d+"),
        (
            {"num_boxes": np.array([1, 1])},
            r"num_boxes has the shape \(2,\); expected one entry per image, for 3 images",
        ),
        ({"boxes": np.zeros((2, 4))}, r"boxes of shape \(2, 4\) and features of shape"),
        ({"boxes": np.zeros((12, 5))}, r"boxes of shape \(12, 5\) and features of shape"),
        ({"features": np.full((12, 3), b"a")}, r"features is of type \|S1; expected numbers"),
        (
            {"image_id": np.array([b"cat", b"dog", b"cow"])},
            "'cat' contains no number that could be an image id",
        ),
        ({"num_boxes": np.array([4, np.nan, 4])}, "num_boxes contains values that are not integers"),
        ({"num_boxes": np.array([4, 3.5, 4.5])}, "num_boxes contains values that are not integers"),
        ({"image_w": np.array([4, np.inf, 4])}, "image_w contains values that are not integers"),
        (
            {"image_id": np.zeros((3, 2), int)},
            r"image_id has the shape \(3, 2\); expected one id per image",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, write, change, message):
    arrays = flat_arrays(draw([7, 8, 9], boxes=(4, 4))) | change
    arrays = {name: array for name, array in arrays.items() if array is not None}
    path = tmp_path / ("a.h5" if write is write_hdf5 else "a.npz")
    write(path, arrays)
    with pytest.raises(UserError, match=re.escape(str(path)) + f".*{message}"):
        open_features(str(path))


def test_spans_beyond_the_boxes_are_named(tmp_path):
    arrays = span_arrays(draw([7, 8, 9], boxes=(4, 4)))
    arrays["pos_boxes"][1] = 8, 4
    write_hdf5(tmp_path / "a.h5", arrays)
    with pytest.raises(UserError, match=r"image 8: pos_boxes assigns it the boxes 8 to 4, of 12"):
        open_features(str(tmp_path / "a.h5"))


def test_without_counts_a_padded_layout_is_full(tmp_path):
    drawn = draw([7, 8], boxes=(4, 4))
    arrays = padded_arrays(drawn)
    del arrays["num_boxes"]
    write_hdf5(tmp_path / "a.h5", arrays)
    assert all(map(same, items(tmp_path / "a.h5"), drawn))


def test_a_group_that_lacks_an_array_is_named(tmp_path):
    write_groups(tmp_path / "a.h5", draw([1, 2]))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["2/features"]
    with pytest.raises(UserError, match=r"a\.h5, group 2: no array features or .*; there are boxes"):
        items(tmp_path / "a.h5")


def test_arrays_that_are_of_no_use_are_passed_over(tmp_path):
    drawn = draw([1, 2])
    arrays = flat_arrays(drawn) | {"info": np.array([{"a": 1}], dtype=object)}
    np.savez(tmp_path / "a.npz", **{name: arrays[name] for name in ("info", *flat_arrays(drawn))})
    assert all(map(same, items(tmp_path / "a.npz"), drawn))
    (tmp_path / "b").mkdir()
    own = {"x": drawn[0].features, "bbox": drawn[0].boxes, "info": arrays["info"], "ids": arrays["info"]}
    np.savez(tmp_path / "b" / "1.npz", **own)
    assert np.array_equal(items(tmp_path / "b")[0].features, drawn[0].features)


def test_python_objects_are_not_loaded(tmp_path):
    drawn = draw([1])
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "a.npz", **flat_arrays(drawn) | {"image_w": objects})
    with pytest.raises(UserError, match="image_w contains Python objects, which could run code"):
        items(tmp_path / "a.npz")
    (tmp_path / "b").mkdir()
    np.savez(tmp_path / "b" / "1.npz", x=objects, bbox=drawn[0].boxes)
    with pytest.raises(UserError, match=r"1\.npz: x contains Python objects, which could run code"):
        items(tmp_path / "b")


def test_arrays_stored_by_columns_are_refused(tmp_path):
    arrays = flat_arrays(draw([1, 2]))
    np.savez(tmp_path / "a.npz", **arrays | {"features": np.asfortranarray(arrays["features"])})
    with pytest.raises(UserError, match=r"features is stored by column; save numpy\.ascontiguousarray"):
        items(tmp_path / "a.npz")


def test_directories(tmp_path, capsys):
    with pytest.raises(UserError, match=r"a directory without \.npz files"):
        open_features(str(tmp_path))
    write_directory(tmp_path / "a", draw([1]))
    (tmp_path / "a" / "notes.txt").write_text("x")
    assert len(items(tmp_path / "a")) == 1
    assert "1 files do not end in .npz and are not read, such as notes.txt" in capsys.readouterr().err
    np.savez(tmp_path / "a" / "mean.npz", x=np.zeros((2, 2)))
    with pytest.raises(UserError, match="'mean' contains no number that could be an image id"):
        open_features(str(tmp_path / "a"))


def test_a_changed_file_is_another(tmp_path):
    for name in ("a.tsv", "directory"):
        FORMATS[name](tmp_path / name, draw([1, 2]))
        before = open_features(str(tmp_path / name)).identity()
        assert open_features(str(tmp_path / name)).identity() == before
        if name == "directory":
            os.utime(tmp_path / name / "2.npz", ns=(1, 1))
        else:
            write_tsv(tmp_path / name, draw([1, 2], seed=2))
        assert open_features(str(tmp_path / name)).identity() != before


@pytest.mark.parametrize("name", ["a.h5", "groups.h5", "a.npz", "directory"])
def test_arrays_that_would_fill_the_memory_are_refused_before_they_are_read(tmp_path, monkeypatch, name):
    """A small file may hold them: zeros pack well, and HDF5 need not store them at all."""
    monkeypatch.setattr(regions_module, "MAX_BYTES", 100_000)
    path = tmp_path / name
    boxes, features = np.zeros((300, 4), "<f4"), np.zeros((300, 100), "<f4")
    if name == "directory":
        path.mkdir()
        np.savez_compressed(path / "7.npz", boxes=boxes, features=features)
        assert (path / "7.npz").stat().st_size < 2000
    elif name == "a.npz":
        np.savez_compressed(
            path, image_id=np.array([7]), num_boxes=np.array([300]), boxes=boxes, features=features
        )
    else:
        with h5py.File(path, "w") as file:
            group = file.create_group("7") if name == "groups.h5" else file
            if group is file:
                group["image_id"], group["num_boxes"] = [7], [300]
            group.create_dataset("boxes", (300, 4), "<f4")
            group.create_dataset("features", (300, 100), "<f4")
    with pytest.raises(
        UserError, match=r"12[0-9],[0-9]{3} bytes of features and boxes; at most 100,000 are read"
    ):
        items(path)


def test_a_file_that_claims_endless_images_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("image_id", (10**12,), "<i8", chunks=(1000,))
        file.create_dataset("boxes", (10**12, 9, 4), "<f4", chunks=(10, 9, 4))
        file.create_dataset("features", (10**12, 9, 9), "<f4", chunks=(10, 9, 9))
    assert (tmp_path / "a.h5").stat().st_size < 10_000
    with pytest.raises(UserError, match="image_id has 8,000,000,000,000 bytes; at most"):
        open_features(str(tmp_path / "a.h5"))


def test_chunks_that_would_fill_the_memory_are_refused(tmp_path):
    write_hdf5(tmp_path / "a.h5", flat_arrays(draw([7])))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_dataset("x", (1,), "<f8", chunks=(400_000_000,), maxshape=(None,), compression="gzip")
    with pytest.raises(UserError, match="x is stored in chunks of 3,200,000,000 bytes"):
        open_features(str(tmp_path / "a.h5"))


def test_a_header_that_promises_more_than_there_is_is_refused(tmp_path):
    arrays = flat_arrays(draw([7, 8, 9], boxes=(4, 4)))
    np.savez(tmp_path / "a.npz", **arrays)
    content = (tmp_path / "a.npz").read_bytes()
    assert content.count(b"(12, 4)") == 1
    with zipfile.ZipFile(tmp_path / "a.npz") as archive, zipfile.ZipFile(tmp_path / "b.npz", "w") as other:
        for member in archive.namelist():
            other.writestr(member, archive.read(member).replace(b"(12, 4), }   ", b"(12000, 4), }"))
    with pytest.raises(UserError, match=r"boxes of shape \(12000, 4\) does not fit into 192 bytes"):
        open_features(str(tmp_path / "b.npz"))


def linked(kind, path, other):
    """An HDF5 file whose features are those of another file."""
    shape = (1, 3, 4)
    with h5py.File(path, "w") as file:
        file["image_id"] = np.array([7])
        file["boxes"] = np.tile(np.array([0.0, 0.0, 5.0, 5.0]), (1, 3, 1))
        if kind == "external storage":
            file.create_dataset("features", shape, "f4", external=[(str(other), 0, h5py.h5f.UNLIMITED)])
        elif kind == "external link":
            file["features"] = h5py.ExternalLink(str(other), "/secret")
        elif kind == "soft link":
            file["features"] = h5py.SoftLink("/boxes")
        else:
            layout = h5py.VirtualLayout(shape, "f4")
            layout[:] = h5py.VirtualSource(str(other), "secret", shape)
            file.create_virtual_dataset("features", layout)


@pytest.mark.parametrize("kind", ["external storage", "external link", "soft link", "virtual"])
def test_features_of_other_files_are_not_read(tmp_path, kind):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = np.ones((1, 3, 4), "f4")
    linked(kind, tmp_path / "f.h5", tmp_path / "secret.h5")
    with pytest.raises(UserError, match=r"f\.h5.*: features is (a link|stored in another file)"):
        list(open_features(str(tmp_path / "f.h5")).iterate())


def test_boxes_that_many_images_share_are_refused(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["image_id"] = np.arange(5)
        file["boxes"] = np.tile(np.array([0.0, 0.0, 5.0, 5.0]), (4, 1))
        file["features"] = np.ones((4, 8), "f4")
        file["pos_boxes"] = np.tile(np.array([0, 4]), (5, 1))
    with pytest.raises(UserError, match="pos_boxes assigns boxes to several images"):
        open_features(str(tmp_path / "f.h5"))

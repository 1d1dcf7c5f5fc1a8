"""The store of image features: what went in comes out, whatever happens on the way."""

import errno
import json
import os
import re
import tracemalloc
import warnings

import numpy as np
import pytest
import torch

from onmt_varattn.errors import UserError
from onmt_varattn.utils import progress
from onmt_varattn.vqa.features import building
from onmt_varattn.vqa.features.building import build_store
from onmt_varattn.vqa.features.regions import DUPLICATE, NO_BOXES, NO_FEATURES, NOT_WANTED, Regions
from onmt_varattn.vqa.features.store import Store
from onmt_varattn.vqa.features.tsv import TsvFile
from tests.regions import FORMATS, draw, tsv_line, write_tsv

IMAGES = [9, 131, 25, 7, 1000000, 77, 78]


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch):
    """No test cuts the power, and waiting took most of their time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def often(monkeypatch):
    """A journal after every image."""
    monkeypatch.setattr(building, "JOURNAL_IMAGES", 1)


def contents(directory):
    """The store's files; a lock has no content, and zip files of numpy's have no time in them."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != ".lock"}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_went_in_comes_out(tmp_path, name, dtype):
    drawn = {regions.image: regions for regions in draw(IMAGES)}
    FORMATS[name](tmp_path / name, list(drawn.values()))
    report = build_store([str(tmp_path / name)], IMAGES, str(tmp_path / "store"), dtype)
    assert (report.images, report.feature_size, report.left_out, report.missing) == (7, 6, {}, [])
    assert report.boxes == sum(len(regions.boxes) for regions in drawn.values())
    store = Store(str(tmp_path / "store"))
    assert sorted(store.images.tolist()) == sorted(IMAGES)
    for image, expected in drawn.items():
        found = store.regions(store.row_of[image])
        assert (found.image, found.width, found.height) == (image, expected.width, expected.height)
        assert found.boxes.tobytes() == expected.boxes.tobytes()
        assert found.features.tobytes() == expected.features.astype(dtype).astype("f4").tobytes()
        assert store.sizes[store.row_of[image]].tolist() == [expected.width, expected.height]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_batch_is_padded_to_its_largest_image(tmp_path, dtype):
    drawn = draw(range(20), boxes=(1, 9))
    write_tsv(tmp_path / "a.tsv", drawn)
    build_store([str(tmp_path / "a.tsv")], range(20), str(tmp_path / "store"), dtype)
    store = Store(str(tmp_path / "store"))
    assert store.most_boxes == max(len(regions.boxes) for regions in drawn)
    torch.empty(10_000).fill_(7)  # what is not written must not happen to be zero
    for rows in ([3], [19, 0, 4, 4, 11], list(range(19, -1, -1))):
        features, padding = store.batch(rows)
        most = max(len(drawn[row].boxes) for row in rows)
        assert features.dtype == torch.float32
        assert features.shape == (len(rows), most, 6)
        for n, row in enumerate(rows):
            for s in range(most):
                real = s < len(drawn[row].boxes)
                assert padding[n, s].item() is not real
                expected = drawn[row].features[s].astype(dtype) if real else np.zeros(6)
                assert features[n, s].tolist() == expected.astype("f4").tolist()
    features, padding = store.batch([])
    assert features.shape == (0, 0, 6)
    assert padding.shape == (0, 0)


def test_a_batch_is_the_callers_own(tmp_path):
    write_tsv(tmp_path / "a.tsv", draw([1]))
    build_store([str(tmp_path / "a.tsv")], [1], str(tmp_path / "store"), "float32")
    before = contents(tmp_path / "store")
    store = Store(str(tmp_path / "store"))
    store.batch([0])[0].fill_(3)
    store.regions(0).features[:] = 4
    assert Store(str(tmp_path / "store")).batch([0])[0].max() < 3
    assert store.batch([0])[0].max() < 3
    assert contents(tmp_path / "store") == before


MESSY = 11  # images in them


def messy_sources(directory):
    """Two files with images that are wanted, unwanted, double, without boxes, of another size, too large."""
    first = draw([1, 2, 3, 4, 5], seed=1)
    (empty,) = draw([6], boxes=(0, 0))
    (other,) = draw([7], size=8)
    (nothing,) = draw([70], size=0)
    second = draw([2, 8, 50], seed=2)
    second[1].features[0, 0] = 1e6
    write_tsv(directory / "a.tsv", [nothing, *first, empty, other])  # the first tells no size
    FORMATS["flat.h5"](directory / "b.h5", second)
    return [str(directory / "a.tsv"), str(directory / "b.h5")], [1, 2, 3, 5, 6, 7, 8, 60, 61, 70]


def test_what_is_left_out_is_counted_and_named(tmp_path):
    paths, wanted = messy_sources(tmp_path)
    report = build_store(paths, wanted, str(tmp_path / "store"), "float16")
    assert {name: reason.count for name, reason in report.left_out.items()} == {
        NOT_WANTED: 2,
        NO_BOXES: 1,
        NO_FEATURES: 1,
        "feature size 8, not 6": 1,
        DUPLICATE: 1,
        "values too large for float16": 1,
    }
    assert report.left_out[NOT_WANTED].places == [f"{paths[0]}, line 5", f"{paths[1]}, image 50"]
    assert report.left_out["feature size 8, not 6"].places == [f"{paths[0]}, image 7"]
    assert report.missing == [6, 7, 8, 60, 61, 70]
    assert report.images == 4
    store = Store(str(tmp_path / "store"))
    expected = draw([1, 2, 3, 4, 5], seed=1)[1]
    assert np.array_equal(store.regions(store.row_of[2]).features, expected.features.astype("f2"))
    assert "6 images of questions are not stored (6, 7, 8, ...)" in report.lines()
    assert f"1 images left out: {NO_BOXES} ({paths[0]}, line 7)" in report.lines()


def test_only_the_first_places_are_named(tmp_path):
    write_tsv(tmp_path / "a.tsv", draw(range(9)))
    reason = build_store([str(tmp_path / "a.tsv")], [8], str(tmp_path / "store"), "float32").left_out[
        NOT_WANTED
    ]
    assert (reason.count, len(reason.places)) == (8, building.PLACES)


class Killed(BaseException):
    """No code of ours may catch it."""


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("error", [Killed, KeyboardInterrupt])
def test_a_build_killed_at_any_place_resumes_to_the_same_bytes(tmp_path, monkeypatch, every, error):
    paths, wanted = messy_sources(tmp_path)
    monkeypatch.setattr(building, "JOURNAL_IMAGES", every)
    whole = build_store(paths, wanted, str(tmp_path / "whole"), "float16")
    add, seen = building._Build._add, []
    for kill in range(MESSY):
        directory = tmp_path / f"killed{kill}"

        def dying(build, item, files, kill=kill):
            add(build, item, files)
            seen.append(item.image)
            if len(seen) == kill + 1:
                for file in files.values():
                    file.write(b"more than the journal knows")
                    file.flush()
                raise error

        monkeypatch.setattr(building._Build, "_add", dying)
        seen.clear()
        with pytest.raises(error):
            build_store(paths, wanted, str(directory), "float16")
        with pytest.raises(UserError, match="unfinished store of image features; run vqa_preprocess"):
            Store(str(directory))
        before = len(seen)
        seen.clear()
        monkeypatch.setattr(
            building._Build, "_add", lambda build, item, files: (add(build, item, files), seen.append(0))
        )
        assert build_store(paths, wanted, str(directory), "float16") == whole
        assert contents(directory) == contents(tmp_path / "whole")
        assert len(seen) <= MESSY - before + every, "what the journal counts is not read again"


def test_a_kill_while_finishing_leaves_an_unfinished_store_or_a_whole_one(tmp_path, monkeypatch):
    paths, wanted = messy_sources(tmp_path)
    whole = build_store(paths, wanted, str(tmp_path / "whole"), "float32")
    write, remove = building.atomic_write, building._Build._remove
    for name in (building.IMAGES, building.DESCRIPTION):
        directory = tmp_path / f"killed {name}"

        def dying(path, mode="w", name=name):
            if path.endswith(name):
                raise Killed
            return write(path, mode)

        monkeypatch.setattr(building, "atomic_write", dying)
        with pytest.raises(Killed):
            build_store(paths, wanted, str(directory), "float32")
        with pytest.raises(UserError, match="unfinished store"):
            Store(str(directory))
        monkeypatch.setattr(building, "atomic_write", write)
        assert build_store(paths, wanted, str(directory), "float32") == whole
        assert contents(directory) == contents(tmp_path / "whole")

    def unwilling(build, *names):
        if building.JOURNAL in names:
            raise Killed
        remove(build, *names)

    monkeypatch.setattr(building._Build, "_remove", unwilling)
    with pytest.raises(Killed):
        build_store(paths, wanted, str(tmp_path / "last"), "float32")
    assert len(Store(str(tmp_path / "last")).images) == whole.images
    monkeypatch.setattr(building._Build, "_remove", remove)
    assert build_store(paths, wanted, str(tmp_path / "last"), "float32") == whole
    assert contents(tmp_path / "last") == contents(tmp_path / "whole")


def interrupted(paths, wanted, directory, dtype, monkeypatch, after=4):
    add, count = building._Build._add, [0]

    def dying(build, item, files):
        add(build, item, files)
        count[0] += 1
        if count[0] == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(building._Build, "_add", dying)
    with pytest.raises(KeyboardInterrupt):
        build_store(paths, wanted, str(directory), dtype)
    monkeypatch.setattr(building._Build, "_add", add)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("changed", ["wanted", "dtype", "sources", "content"])
def test_another_plan_starts_anew(tmp_path, monkeypatch, often, changed, finished):
    paths, wanted = messy_sources(tmp_path)
    plan = {"paths": paths, "wanted": wanted, "dtype": "float32"}
    if finished:
        build_store(**plan, directory=str(tmp_path / "store"))
    else:
        interrupted(**plan, directory=tmp_path / "store", monkeypatch=monkeypatch)
    if changed == "content":
        write_tsv(tmp_path / "a.tsv", draw([1, 2, 3, 4, 5, 6], seed=9))
    else:
        others = {"wanted": [1, 2, 4], "dtype": "float16", "sources": paths[::-1]}
        plan["paths" if changed == "sources" else changed] = others[changed]
    report = build_store(**plan, directory=str(tmp_path / "store"))
    assert report == build_store(**plan, directory=str(tmp_path / "fresh"))
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")


def test_a_store_that_is_replaced_is_unfinished(tmp_path, monkeypatch, often):
    paths, wanted = messy_sources(tmp_path)
    build_store(paths, wanted, str(tmp_path / "store"), "float32")
    interrupted(paths, wanted, tmp_path / "store", "float16", monkeypatch)
    with pytest.raises(UserError, match="unfinished store"):
        Store(str(tmp_path / "store"))


def test_the_journal_counts_only_what_is_on_disk(tmp_path, monkeypatch, often):
    """In the file system at least: what a kill cannot take any more."""
    paths, wanted = messy_sources(tmp_path)
    write, seen = building._Build._write, []

    def looking(build, name, content):
        if name == building.JOURNAL and build.progress.images:
            sizes = {name: (tmp_path / "store" / name).stat().st_size for name in build._lengths()}
            seen.append((sizes, build._lengths()))
        write(build, name, content)

    monkeypatch.setattr(building._Build, "_write", looking)
    build_store(paths, wanted, str(tmp_path / "store"), "float32")
    assert len(seen) > 8
    assert all(sizes == lengths for sizes, lengths in seen)


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="how much memory there is, Linux tells")
def test_features_need_not_fit_into_memory(tmp_path, monkeypatch):
    """A store twice as large as memory and swap, whose file has holes: opened, and a batch of it read."""
    kilobytes = dict(re.findall(r"(MemTotal|SwapTotal): *(\d+) kB", open("/proc/meminfo").read()))
    size = 2**18  # a megabyte a box
    boxes = 2 * sum(map(int, kilobytes.values())) // 1024
    small = draw([1, 2], size=size, boxes=(1, 1))
    write_tsv(tmp_path / "a.tsv", small)
    build_store([str(tmp_path / "a.tsv")], [1, 2], str(tmp_path / "store"))
    store = tmp_path / "store"
    starts = np.array([0, 1, boxes])
    np.savez(store / "images.npz", ids=[1, 2], starts=starts, widths=[1, 1], heights=[1, 1])
    os.truncate(store / "features.bin", boxes * size * 4)
    os.truncate(store / "boxes.bin", boxes * 16)
    description = json.loads((store / "store.json").read_text())
    description["bytes"] = {name: (store / name).stat().st_size for name in description["bytes"]}
    (store / "store.json").write_text(json.dumps(description))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features, _ = Store(str(store)).batch([0])
    assert torch.equal(features[0], torch.from_numpy(small[0].features))


def test_features_that_the_index_does_not_account_for(tmp_path):
    write_tsv(tmp_path / "a.tsv", draw([1, 2]))
    build_store([str(tmp_path / "a.tsv")], [1, 2], str(tmp_path / "store"))
    description = tmp_path / "store/store.json"
    description.write_text(description.read_text().replace('"feature_size": 6', '"feature_size": 5'))
    with pytest.raises(UserError, match=r"features\.bin has [\d,]+ numbers, which images\.npz does not"):
        Store(str(tmp_path / "store"))


def test_without_a_terminal_a_line_estimates_the_time_left(tmp_path, monkeypatch, often, capsys):
    monkeypatch.setattr(progress, "FIRST", 0.0)
    write_tsv(tmp_path / "a.tsv", draw([1, 2]))
    build_store([str(tmp_path / "a.tsv")], [1, 2], str(tmp_path / "store"))
    said = capsys.readouterr().err
    assert re.fullmatch(rf"storing {tmp_path}/a.tsv: .+B of .+B in 0 s; about 0 s left\n", said)


def test_a_finished_store_is_not_built_again(tmp_path, monkeypatch):
    paths, wanted = messy_sources(tmp_path)
    report = build_store(paths, wanted, str(tmp_path / "store"), "float32")
    monkeypatch.setattr(TsvFile, "iterate", None)
    assert build_store(paths, list(reversed(wanted)), str(tmp_path / "store"), "float32") == report


@pytest.mark.parametrize("name", [building.FEATURES, building.BOXES, building.INDEX])
def test_data_shorter_than_the_journal_says_start_anew(tmp_path, monkeypatch, often, name):
    paths, wanted = messy_sources(tmp_path)
    interrupted(paths, wanted, tmp_path / "store", "float32", monkeypatch)
    os.truncate(tmp_path / "store" / name, 5)
    build_store(paths, wanted, str(tmp_path / "store"), "float32")
    build_store(paths, wanted, str(tmp_path / "fresh"), "float32")
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")


def test_a_full_disk_is_told_and_the_rest_goes_on_later(tmp_path, monkeypatch, often):
    paths, wanted = messy_sources(tmp_path)
    fsync, calls = os.fsync, [0]

    def full(descriptor):
        calls[0] += 1
        if calls[0] > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        UserError, match=r"store: cannot be written: No space left on device; .* run again: the build resumes"
    ):
        build_store(paths, wanted, str(tmp_path / "store"), "float32")
    monkeypatch.setattr(os, "fsync", fsync)
    journal = json.loads((tmp_path / "store" / building.JOURNAL).read_text())
    assert journal["progress"]["images"] > 0
    build_store(paths, wanted, str(tmp_path / "store"), "float32")
    build_store(paths, wanted, str(tmp_path / "fresh"), "float32")
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")


def test_a_malformed_line_ends_the_build_and_mending_it_starts_anew(tmp_path, often):
    drawn = draw([1, 2, 3])
    lines = [tsv_line(regions) for regions in drawn]
    (tmp_path / "a.tsv").write_bytes(lines[0] + b"2\t3\n" + lines[2])
    with pytest.raises(UserError, match=r"a\.tsv, line 2: 2 tab-separated fields"):
        build_store([str(tmp_path / "a.tsv")], [1, 2, 3], str(tmp_path / "store"), "float32")
    write_tsv(tmp_path / "a.tsv", drawn)
    assert build_store([str(tmp_path / "a.tsv")], [1, 2, 3], str(tmp_path / "store"), "float32").images == 3


def test_files_without_any_wanted_image(tmp_path):
    write_tsv(tmp_path / "a.tsv", draw([1, 2]))
    with pytest.raises(
        UserError,
        match=rf"a\.tsv: none of the 2 images of the questions, such as 5, .*2 others: {NOT_WANTED}",
    ):
        build_store([str(tmp_path / "a.tsv")], [6, 5], str(tmp_path / "store"), "float32")
    with pytest.raises(UserError, match="store: unfinished store"):
        Store(str(tmp_path / "store"))


def test_a_wrong_file_is_told_before_any_is_read(tmp_path):
    write_tsv(tmp_path / "a.tsv", draw([1, 2]))
    with pytest.raises(UserError, match=r"b\.tsv: cannot be read"):
        build_store([str(tmp_path / n) for n in ("a.tsv", "b.tsv")], [1], str(tmp_path / "store"), "float32")
    assert not (tmp_path / "store").exists()


def test_one_process_builds(tmp_path):
    paths, wanted = messy_sources(tmp_path)
    (tmp_path / "store").mkdir()
    with (
        building.only_one(str(tmp_path / "store" / ".lock"), ""),
        pytest.raises(UserError, match="another process is building this store"),
    ):
        build_store(paths, wanted, str(tmp_path / "store"), "float32")


@pytest.mark.parametrize("name", [building.FEATURES, building.BOXES, building.IMAGES, building.DESCRIPTION])
@pytest.mark.parametrize("how", ["cut", "longer", "missing"])
def test_a_damaged_store_is_told_and_built_again(tmp_path, name, how):
    paths, wanted = messy_sources(tmp_path)
    build_store(paths, wanted, str(tmp_path / "store"), "float32")
    path = tmp_path / "store" / name
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-3] if how == "cut" else content + b"\0" * 40_000)
    with pytest.raises(UserError, match=r"store: .*run (the preprocessing again|vqa_preprocess)"):
        Store(str(tmp_path / "store"))
    build_store(paths, wanted, str(tmp_path / "store"), "float32")
    build_store(paths, wanted, str(tmp_path / "fresh"), "float32")
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["a.tsv", "packed.hdf5", "flat.npz", "packed.npz"])
def test_memory_does_not_grow_with_the_files(tmp_path, name):
    few, many = draw(range(4), 2048, (30, 40)), []
    for image in range(200):
        few[image % 4].features[:, 100:] = 0  # quick to pack
        many.append(Regions(image, 9, 9, few[image % 4].boxes, few[image % 4].features))
    FORMATS[name](tmp_path / name, many)
    tracemalloc.start()
    try:
        report = build_store([str(tmp_path / name)], range(200), str(tmp_path / "store"), "float32")
        store = Store(str(tmp_path / "store"))
        for row in range(200):
            store.batch([row])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = (tmp_path / "store" / building.FEATURES).stat().st_size
    assert report.images == 200
    assert size > 45e6
    assert peak < 8e6

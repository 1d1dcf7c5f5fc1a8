"""Text files in and out."""

import os
import stat

import pytest

from onmt_varattn.errors import FailedError, UserError
from onmt_varattn.utils import files
from onmt_varattn.utils.files import atomic_write, check_writable, fingerprint, write_result, write_results
from onmt_varattn.utils.reading import read_lines, read_parallel


def test_only_line_feeds_end_lines(tmp_path):
    path = tmp_path / "a"
    path.write_bytes("eins\u2028zwei\x85drei\r\n\nvier \u00a0".encode())
    assert read_lines(str(path)) == ["eins\u2028zwei\x85drei", "", "vier \u00a0"]


@pytest.mark.parametrize(
    ("content", "lines"), [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n\n", ["a", ""])]
)
def test_line_counts(tmp_path, content, lines):
    (tmp_path / "a").write_bytes(content)
    assert read_lines(str(tmp_path / "a")) == lines


def test_bad_bytes_are_named_with_file_and_line(tmp_path):
    (tmp_path / "a").write_bytes(b"fine\nsch\xf6n\n")
    with pytest.raises(UserError, match=r"a, line 2: not UTF-8 \(byte 0xf6 at position 4\)"):
        read_lines(str(tmp_path / "a"))


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match="none: cannot be read: No such file"):
        read_lines(str(tmp_path / "none"))


def test_a_file_is_replaced_only_when_whole(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_write(str(path)) as file:
        file.write("half")
        raise RuntimeError
    assert path.read_text() == "old"
    with atomic_write(str(path)) as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_written_file_has_the_usual_permissions(tmp_path):
    with atomic_write(str(tmp_path / "ours")) as file:
        file.write("x")
    (tmp_path / "usual").write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "usual")}
    assert len(modes) == 1


def test_unwritable_places_are_named(tmp_path):
    check_writable(str(tmp_path / "fine"))
    check_writable(str(tmp_path / "to be" / "made" / "fine"))
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        check_writable(str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match="it is a directory"):
        check_writable(str(tmp_path))


def test_parallel_files_have_as_many_lines(tmp_path):
    for name, text in {"a": "x\ny\n", "b": "1\n2", "c": "1\n", "empty": ""}.items():
        (tmp_path / name).write_text(text)
    assert read_parallel(str(tmp_path / "a"), str(tmp_path / "b")) == [("x", "1"), ("y", "2")]
    with pytest.raises(UserError, match=r"a has 2 lines and .*c has 1; parallel files need as many"):
        read_parallel(str(tmp_path / "a"), str(tmp_path / "c"))
    with pytest.raises(UserError, match="empty: the file is empty"):
        read_parallel(str(tmp_path / "empty"), str(tmp_path / "empty"))


@pytest.mark.parametrize("name", ["x" * 255, "\u6a21" * 85, "a" + "\u00e9" * 127])  # 255 bytes each
def test_the_longest_names_can_be_written(tmp_path, name):
    check_writable(str(tmp_path / name))
    with atomic_write(str(tmp_path / name)) as file:
        file.write("whole")
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "whole"


@pytest.mark.parametrize("name", ["x" * 256, "\u6a21" * 86, "to be made/" + "x" * 256, "x" * 256 + "/y"])
def test_longer_names_are_refused_before_work_starts(tmp_path, name):
    with pytest.raises(UserError, match="cannot be written: File name too long"):
        check_writable(str(tmp_path / name))
    assert os.listdir(tmp_path) == []


def test_a_device_is_not_replaced():
    with pytest.raises(UserError, match="/dev/null: cannot be written: it is not a regular file"):
        check_writable("/dev/null")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The system's directory for temporary files, empty; and a file in the way of a result's directory."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "gone").write_text("")
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.mark.parametrize("content", ["Ergebnis \u2028\n", b"\x89PNG"])
@pytest.mark.parametrize("name", ["a.txt", "x" * 255])
def test_a_result_that_cannot_be_written_is_saved_elsewhere(tmp_path, elsewhere, content, name):
    with pytest.raises(FailedError, match="cannot be written: Not a directory") as failed:
        write_result(str(tmp_path / "gone" / "below" / name), content)
    place = str(failed.value).split("is saved in ")[1]
    assert place.startswith(str(elsewhere))
    with open(place, "rb") as file:
        assert file.read() == (content.encode() if isinstance(content, str) else content)


def test_a_result_that_fits_nowhere_is_printed(tmp_path, elsewhere, capsys):
    elsewhere.rmdir()
    with pytest.raises(FailedError, match="the content is printed above"):
        write_result(str(tmp_path / "gone" / "a"), "eins\nzwei\n")
    assert capsys.readouterr().err == "eins\nzwei\n"


def test_results_in_several_files_are_saved_elsewhere_together(tmp_path, elsewhere, monkeypatch):
    replace, often = os.replace, iter(range(2))

    def fail(one, other):
        if next(often, None) == 1:
            raise OSError(28, "No space left on device")
        replace(one, other)

    monkeypatch.setattr(os, "replace", fail)
    contents = {str(tmp_path / "new" / name): name * 3 for name in "abc"}
    with pytest.raises(FailedError, match="cannot be written: No space left on device") as failed:
        write_results(contents)
    place = str(failed.value).split("is saved in ")[1]
    assert {name: open(f"{place}/{name}").read() for name in os.listdir(place)} == {
        name: name * 3 for name in "abc"
    }


@pytest.mark.parametrize("size", [0, 1, 1000, 1001, 50_000])
def test_a_fingerprint_tells_files_of_one_size_apart(tmp_path, monkeypatch, size):
    monkeypatch.setattr(files, "WHOLE", 1000)
    monkeypatch.setattr(files, "SAMPLES", 10)
    monkeypatch.setattr(files, "SAMPLE", 20)
    path = tmp_path / "a"
    path.write_bytes(b"a" * size)
    found = {fingerprint(str(path))}
    places = {0, size - 1, size // 3} if 0 < size <= 1000 else {0, size - 1, (size - 20) * 4 // 9 + 5}
    for place in places if size else ():
        path.write_bytes(b"a" * place + b"b" + b"a" * (size - place - 1))
        found.add(fingerprint(str(path)))
    assert len(found) == (1 + len(places) if size else 1)
    path.write_bytes(b"a" * (size + 1))
    assert fingerprint(str(path)) not in found

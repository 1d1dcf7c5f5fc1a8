"""Text files in and out."""

import os
import stat

import pytest

from onmt_varattn.errors import UserError
from onmt_varattn.files import atomic_write, check_writable, read_lines, read_parallel


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

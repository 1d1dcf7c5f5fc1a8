"""One process at a time."""

import os
import shutil
import subprocess
import sys

import pytest

from onmt_varattn.errors import UserError
from onmt_varattn.utils import locking
from onmt_varattn.utils.locking import only_one


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(locking.tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def refused(path):
    with pytest.raises(UserError, match="busy"), only_one(path, "busy"):
        pass
    return True


def test_the_second_is_refused_until_the_first_is_done(tmp_path):
    path = str(tmp_path / "a" / ".lock")
    with only_one(path, "busy"):
        assert refused(path)
        with only_one(str(tmp_path / "b" / ".lock"), "busy"):
            pass
    with only_one(path, "busy"):
        pass


def test_the_lock_survives_its_directory(tmp_path):
    path = str(tmp_path / "a" / ".lock")
    with only_one(path, "busy"):
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "a").mkdir()
        assert refused(path)
        (tmp_path / "link").symlink_to(tmp_path / "a")
        assert refused(str(tmp_path / "link" / ".lock"))
    with only_one(path, "busy"):
        pass


def test_nothing_is_left_among_temporary_files(tmp_path, temporary):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), only_one(str(tmp_path / "a" / ".lock"), "busy"):
            raise ZeroDivisionError
    (directory,) = temporary.iterdir()
    assert list(directory.iterdir()) == []


def test_what_a_kill_left_is_no_lock(tmp_path, temporary):
    path = str(tmp_path / "a" / ".lock")
    program = (
        "import os, tempfile; from onmt_varattn.utils.locking import only_one\n"
        f"tempfile.tempdir = {str(temporary)!r}\n"
        f"with only_one({path!r}, 'busy'): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    with only_one(path, "busy"):
        assert refused(path)


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_directory_that_others_can_write_to_is_not_trusted(tmp_path, temporary, mode):
    other = temporary / f"onmt_varattn_locks_{os.getuid()}"
    other.mkdir()
    other.chmod(mode)
    path = str(tmp_path / "a" / ".lock")
    with only_one(path, "busy"):
        assert list(other.iterdir()) == []
        assert refused(path)  # by the lock at the path itself

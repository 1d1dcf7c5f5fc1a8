"""Public corpora: broken downloads, archives that are not what they seem, markup, cleaning, stages."""

import contextlib
import hashlib
import http.server
import io
import os
import random
import re
import tarfile
import threading
import time
from pathlib import Path

import pytest

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.corpora import cleaning, download
from onmt_varattn.nmt.corpora import unpack as unpacking
from onmt_varattn.nmt.corpora.cleaning import Cleaning, Tokenizer, tokenized
from onmt_varattn.nmt.corpora.download import fetch
from onmt_varattn.nmt.corpora.reading import FORMS, corpus_lines
from onmt_varattn.nmt.corpora.unpack import unpack
from onmt_varattn.utils.stages import Stages

CONTENT = random.Random(1).randbytes(50_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves files from memory.

    `cuts` are the numbers of bytes after which the next answers break off; `asked` are the ranges
    that requests asked for; `pause` is the time between two bytes, in seconds.
    """

    pause = 0.0

    def __init__(self, files, ranges=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.cuts, self.asked = files, ranges, [], []
        self.address = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.server.files.get(self.path.lstrip("/"))
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if content is None:
            return self.send_error(404)
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        rest = content[start:]
        if self.server.pause:
            with contextlib.suppress(OSError):  # the client has gone
                for place in range(len(rest)):
                    self.wfile.write(rest[place : place + 1])
                    time.sleep(self.server.pause)
            return
        self.wfile.write(rest[: self.server.cuts.pop(0)] if self.server.cuts else rest)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving(files, ranges=True):
    with Server(files, ranges) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def tar(path, files):
    """A gzipped tar archive; a value that is a `TarInfo` is a member without content."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content.encode())
                archive.addfile(info, io.BytesIO(content.encode()))


@pytest.fixture
def place(tmp_path):
    """Arguments of `fetch` after the address, with the right checksum."""
    return {
        "path": str(tmp_path / "a.tgz"),
        "checksum": f"sha256:{SHA256}",
        "record": str(tmp_path / "a.tgz.sha256"),
    }


def got(place):
    """The file is there, and nothing else is."""
    path = Path(place["path"])
    return path.read_bytes() == CONTENT and sorted(path.parent.iterdir()) == [path]


def test_a_broken_download_goes_on_where_it_was(place):
    with serving({"a.tgz": CONTENT}) as server:
        server.cuts = [20_000, 10_000]
        assert fetch(f"{server.address}/a.tgz", **place) == SHA256
        assert server.asked == [None, "bytes=20000-", "bytes=30000-"]
        assert got(place)
        fetch(f"{server.address}/a.tgz", **place)
        assert len(server.asked) == 3  # what is there is not downloaded again


def test_a_stopped_download_goes_on_in_the_next_run(place):
    with serving({"a.tgz": CONTENT}) as server:
        server.cuts = [20_000, 0]
        with pytest.raises(UserError, match=r"closed early; 20,000 bytes are in .*a.tgz.part: run again"):
            fetch(f"{server.address}/a.tgz", **place)
        assert not os.path.exists(place["path"])
        fetch(f"{server.address}/a.tgz", **place)
        assert server.asked == [None, "bytes=20000-", "bytes=20000-"]
        assert got(place)


def test_a_server_that_sends_a_byte_at_a_time_is_given_up(place):
    with serving({"a.tgz": CONTENT}) as server:
        server.cuts = [1] * 1000
        with pytest.raises(UserError, match=r"closed early; 5 bytes are in .*a.tgz.part: run again"):
            fetch(f"{server.address}/a.tgz", **place)
        assert len(server.asked) == download.TRIES
        server.cuts = []
        assert fetch(f"{server.address}/a.tgz", **place) == SHA256


def test_connections_that_bring_enough_do_not_count(place, monkeypatch):
    monkeypatch.setattr(download, "PROGRESS", 4000)
    with serving({"a.tgz": CONTENT}) as server:
        server.cuts = [10, 10, 10, 10, 5000] * 4
        assert fetch(f"{server.address}/a.tgz", **place) == SHA256


def test_a_connection_that_trickles_is_closed(place, monkeypatch):
    monkeypatch.setattr(download, "PATIENCE", 0.05)
    monkeypatch.setattr(Server, "pause", 0.02)
    with serving({"a.tgz": CONTENT}) as server:
        with pytest.raises(
            UserError, match=r"less than 65,536 bytes in 0 s; [0-9]+ bytes are in .*a.tgz.part"
        ):
            fetch(f"{server.address}/a.tgz", **place)
        assert len(server.asked) == download.TRIES


def test_a_server_without_ranges_starts_anew(place):
    Path(f"{place['path']}.part").write_bytes(b"x" * 20_000)
    with serving({"a.tgz": CONTENT}, ranges=False) as server:
        fetch(f"{server.address}/a.tgz", **place)
        assert server.asked == ["bytes=20000-"]
    assert got(place)


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more"], ids=["whole", "too long"])
def test_a_part_without_a_rest(place, part):
    Path(f"{place['path']}.part").write_bytes(part)
    with serving({"a.tgz": CONTENT}) as server:
        fetch(f"{server.address}/a.tgz", **place)
    assert got(place)


def test_a_wrong_checksum_is_refused_and_nothing_kept(place):
    with (
        serving({"a.tgz": CONTENT[:-1] + b"?"}) as server,
        pytest.raises(
            UserError, match=f"a.tgz sent has the sha256 checksum .*, not {SHA256}; it is not kept"
        ),
    ):
        fetch(f"{server.address}/a.tgz", **place)
    assert list(Path(place["path"]).parent.iterdir()) == []
    Path(place["path"]).write_bytes(b"mine")
    with pytest.raises(UserError, match=f"a.tgz has the sha256 checksum .*, not {SHA256}"):
        fetch("http://127.0.0.1:1/a.tgz", **place)
    assert Path(place["path"]).read_bytes() == b"mine"


def test_other_algorithms(place):
    Path(place["path"]).write_bytes(CONTENT)
    place["checksum"] = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    assert fetch("", **place) == SHA256
    Path(place["path"]).write_bytes(b"other")
    with pytest.raises(UserError, match="has the md5 checksum"):
        fetch("", **place)


def test_without_a_published_checksum_the_first_is_recorded(place, capsys):
    place["checksum"] = None
    with serving({"a.tgz": CONTENT}) as server:
        fetch(f"{server.address}/a.tgz", **place)
        assert f"SHA-256 {SHA256} is recorded in {place['record']}" in capsys.readouterr().out
        assert Path(place["record"]).read_text() == f"{SHA256}  a.tgz\n"  # as sha256sum -c reads it
        os.unlink(place["path"])
        server.files["a.tgz"] = b"another"
        with pytest.raises(UserError, match=rf"not {SHA256}, which {place['record']} has from an earlier"):
            fetch(f"{server.address}/a.tgz", **place)


@pytest.mark.parametrize("content", [b"", b"\n", b"a.tgz", b"\xff\xfe", SHA256[:-1].encode(), b"x" * 64])
def test_a_record_without_a_checksum_is_named(place, content):
    place["checksum"] = None
    Path(place["path"]).write_bytes(CONTENT)
    Path(place["record"]).write_bytes(content)
    with pytest.raises(UserError, match=rf"{place['record']}: no SHA-256 checksum in it; delete it"):
        fetch("", **place)


def test_what_cannot_be_downloaded_is_said(place):
    with (
        serving({}) as server,
        pytest.raises(UserError, match=r"/a.tgz: cannot be downloaded: 404 Not Found"),
    ):
        fetch(f"{server.address}/a.tgz", **place)
    with pytest.raises(UserError, match=r"cannot be downloaded: .*refused"):
        fetch("http://127.0.0.1:1/a.tgz", **place)
    with pytest.raises(UserError, match="unknown url type"):
        fetch("de-en.tgz", **place)


def test_only_what_is_wanted_is_unpacked(tmp_path):
    tar(tmp_path / "a.tgz", {"./d/one": "1\n", "d/two": "2\n", "d/three": "3\n"})
    found = unpack(str(tmp_path / "a.tgz"), ["d/three", "d/one"], str(tmp_path / "out"))
    assert [Path(path).read_text() for path in found] == ["3\n", "1\n"]
    assert sorted(path.name for path in (tmp_path / "out/d").iterdir()) == ["one", "three"]


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def device(name):
    info = tarfile.TarInfo(name)
    info.type = tarfile.CHRTYPE
    return info


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"d/one": "1", "../evil": "x"}, "is not safe to unpack: .*evil.*outside the destination"),
        ({"d/../../evil": "x", "d/one": "1"}, "is not safe to unpack"),
        ({"d/one": device("d/one")}, "is not safe to unpack"),
        ({"d/one": link("d/one", "/etc/passwd")}, "has no file d/one"),
        ({"d": link("d", "/tmp"), "d/two": "1"}, "has no file d/one"),
        ({"d/two": "1"}, "has no file d/one"),
    ],
)
def test_malicious_archives_are_refused(tmp_path, files, message):
    tar(tmp_path / "a.tgz", files)
    with pytest.raises(UserError, match=message):
        unpack(str(tmp_path / "a.tgz"), ["d/one"], str(tmp_path / "deep/out"))
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "deep/evil").exists()
    assert not (tmp_path / "deep/out/d").is_symlink()


@pytest.mark.parametrize("wanted", ["d/zeros", "d/one"], ids=["wanted", "in the way"])
@pytest.mark.parametrize(
    "limits", [{"MOST_TIMES": 20, "SMALL": 1000}, {"MOST_BYTES": 900_000}], ids=["ratio", "size"]
)
def test_archives_that_become_too_large_are_refused(tmp_path, monkeypatch, limits, wanted):
    tar(tmp_path / "a.tgz", {"d/zeros": "0" * 1_000_000, "d/one": "1"})
    assert unpack(str(tmp_path / "a.tgz"), [wanted], str(tmp_path / "fine"))
    for name, limit in limits.items():
        monkeypatch.setattr(unpacking, name, limit)
    with pytest.raises(UserError, match=r"a.tgz is not safe to unpack: it becomes more than [0-9,]+ bytes"):
        unpack(str(tmp_path / "a.tgz"), [wanted], str(tmp_path / "out"))
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_zeros_that_would_fill_the_disk_are_refused(tmp_path):
    tar(tmp_path / "a.tgz", {"d/one": "\0" * (70 << 20)})
    assert (tmp_path / "a.tgz").stat().st_size < 1 << 20
    with pytest.raises(UserError, match="it becomes more than 67,108,864 bytes"):
        unpack(str(tmp_path / "a.tgz"), ["d/one"], str(tmp_path / "out"))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_name_that_fills_the_memory_is_refused(tmp_path, form):
    with tarfile.open(tmp_path / "a.tgz", "w:gz", format=form) as archive:
        archive.addfile(tarfile.TarInfo("d/" + "x" * (20 << 20)))
    with pytest.raises(UserError, match=r"a member's name has 20,9[0-9,]+ bytes"):
        unpack(str(tmp_path / "a.tgz"), ["d/one"], str(tmp_path / "out"))


@pytest.mark.parametrize("keep", [0.9, 0.3, 0.0])
def test_damaged_archives_are_named(tmp_path, keep):
    tar(tmp_path / "a.tgz", {"d/one": "".join(map(str, range(5000))), "d/two": "2"})
    whole = (tmp_path / "a.tgz").read_bytes()
    (tmp_path / "a.tgz").write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(UserError, match=r"a.tgz: damaged archive .*; delete it, and its .sha256 file"):
        unpack(str(tmp_path / "a.tgz"), ["d/one", "d/two"], str(tmp_path / "out"))
    assert not (tmp_path / "out/d/two").exists()


def test_talks_keep_titles_and_descriptions_only():
    lines = [
        "<url>http://www.ted.com/talks/x</url>",
        "<keywords>talks, TED</keywords>",
        "<talkid>343</talkid>",
        "<title>David Gallo: Underwater</title>",
        "<description>TED Talk: <b> & more.</description>",
        "We're going. ",
        "",
    ]
    assert list(FORMS["talks"](lines)) == [
        "David Gallo: Underwater",
        "TED Talk: <b> & more.",
        "We're going. ",
        "",
    ]


def test_segments():
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<doc docid="535" genre="lectures">',
        "<title>Not a segment</title>",
        '<seg id="1"> It’s R&amp;D &lt;now&gt; &quot;x&quot; &#39;y&#39; &amp;lt; AT&T &nbsp; </seg>',
        '  <seg id="12">Zwei.</seg> ',
        '<seg id="3"></seg>',
        "</doc>",
    ]
    text = "R&D <now> \"x\" 'y' &lt; AT&T &nbsp;"
    assert list(FORMS["segments"](lines)) == [f"It’s {text}", "Zwei.", ""]
    assert list(FORMS["talk_segments"](lines)) == [f"It's {text}", "Zwei.", ""]


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "a"
    path.write_bytes("\ufeffa\u2028b\x85c\r\n\nd\re\n".encode())
    assert list(corpus_lines(str(path))) == ["a\u2028b\x85c", "", "d\re"]
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(UserError, match="line 2: not UTF-8"):
        list(corpus_lines(str(path)))


def test_a_line_that_fills_the_memory_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"short\n" + b"0123456789\n" + b"x" * 9 + b"\n")
    with pytest.raises(UserError, match="a, line 2: longer than 10 bytes"):
        list(corpus_lines(str(tmp_path / "a"), longest=10))
    (tmp_path / "a").write_bytes(b"012345678\n" * 2 + b"x" * 10)
    assert [len(line) for line in corpus_lines(str(tmp_path / "a"), longest=10)] == [9, 9, 10]


def test_tokens():
    tokenizer = Tokenizer("de", "en", lowercase=True)
    # Abbreviations keep their full stop although text is lower-cased; nothing is escaped.
    assert tokenizer(("Dr. Müller sagt's: „R&D“ (80%)!", "Mr. Smith's \"dog\" isn't [here].")) == (
        "dr. müller sagt ' s : „ r & d “ ( 80 % ) !",
        "mr. smith 's \" dog \" isn 't [ here ] .",
    )
    assert Tokenizer("de", "en", lowercase=False)(("Das Ü", "So  It Is")) == ("Das Ü", "So It Is")


@pytest.mark.parametrize(
    ("lengths", "word", "reason"),
    [
        ((0, 3), "w", "with a blank side"),
        ((3, 0), "w", "with a blank side"),
        ((1, 1), "w", None),
        ((175, 175), "w", None),
        ((176, 175), "w", "over -max_length 175"),
        ((175, 176), "w", "over -max_length 175"),
        ((3, 2), "w", None),  # exactly 1.5
        ((2, 3), "w", None),
        ((4, 6), "w", None),
        ((2, 4), "w", "over -max_ratio 1.5"),
        ((10, 6), "w", "over -max_ratio 1.5"),
        ((1, 1), "w" * 1000, None),
        ((1, 1), "w" * 1001, "with a word over 1,000 characters"),
    ],
)
def test_limits_of_cleaning(lengths, word, reason):
    assert Cleaning().reason(tuple(" ".join([word] * length) for length in lengths)) == reason


def test_tokenizing_is_in_order_and_does_not_read_ahead(monkeypatch):
    monkeypatch.setattr(cleaning, "CHUNK", 2)
    monkeypatch.setattr(cleaning, "BLOCK", 10)
    read = []

    def pairs():
        for i in range(35):
            read.append(i)
            yield f"Das, {i}", f"This, {i}"

    expected = [(f"das , {i}", f"this , {i}") for i in range(35)]
    tokenizer = Tokenizer("de", "en", lowercase=True)
    assert list(tokenized(pairs(), tokenizer, 1, 35, "")) == expected
    read.clear()
    parallel = tokenized(pairs(), tokenizer, 2, 35, "")
    first = next(parallel)
    assert len(read) == 10
    assert [first, *parallel] == expected


def test_stages_are_done_once(tmp_path, capsys):
    source, out, done = (tmp_path / name for name in ("source", "out", "done.json"))
    source.write_text("1")
    ran = []

    def run(settings, fails=False):
        def work():
            ran.append(settings)
            if fails:
                raise UserError("no")
            out.write_text(source.read_text())
            return {"lines": len(ran)}

        return Stages(str(done)).run("copy", [str(source)], [str(out)], settings, work)

    assert run({"a": 1}) == run({"a": 1}) == {"lines": 1}
    assert capsys.readouterr().out == "copy\ncopy: done already\n"
    with pytest.raises(UserError):
        run({"a": 2}, fails=True)
    assert run({"a": 2}) == {"lines": 3}
    assert run({"a": 2}) == {"lines": 3}
    source.write_text("12")
    assert run({"a": 2}) == {"lines": 4}
    assert out.read_text() == "12"
    out.unlink()
    assert run({"a": 2}) == {"lines": 5}
    done.write_text("{")
    assert run({"a": 2}) == {"lines": 6}
    assert re.search("copy", done.read_text())


def test_a_hole_that_would_fill_the_disk_is_refused(tmp_path):
    """A sparse member has no bytes in the archive for what is written as zeros."""
    with tarfile.open(tmp_path / "a.tgz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("d/a.txt")
        info.pax_headers = {
            "GNU.sparse.map": "0,0",
            "GNU.sparse.size": str(300 << 20),
            "GNU.sparse.major": "0",
        }
        archive.addfile(info)
    with pytest.raises(UserError, match=r"a\.tgz is not safe to unpack: d/a.txt has holes"):
        unpack(str(tmp_path / "a.tgz"), ["d/a.txt"], str(tmp_path / "out"))
    assert not (tmp_path / "out/d/a.txt").exists()


def test_a_download_without_end_is_given_up(place, monkeypatch):
    monkeypatch.setattr(download, "MOST_BYTES", 1000)
    with (
        serving({"a.tgz": CONTENT}) as server,
        pytest.raises(UserError, match="it has more than 1,000 bytes"),
    ):
        fetch(f"{server.address}/a.tgz", **place)

"""Downloads: resumable, limited, and verified before the file gets its name."""

import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request

from onmt_varattn.errors import UserError
from onmt_varattn.utils.files import atomic_write
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.reading import read_bytes

TIMEOUT = 60  # seconds without a byte
BLOCK = 1 << 20
MOST_BYTES = 64 << 30  # size limit of a file
# A download fails after TRIES connections in a row that each transferred less than PROGRESS bytes. A
# connection is closed if it transfers less than PROGRESS bytes in PATIENCE seconds.
TRIES = 5
PROGRESS = 1 << 16  # bytes
PATIENCE = 60.0  # seconds


def fetch(url: str, path: str, checksum: str | None, record: str) -> str:
    """Download a file unless it exists, verify it, and return its SHA-256.

    The file is named `path`.part until it is complete and verified.

    Args:
        url: address of the file.
        path: local path.
        checksum: published checksum as algorithm:hexadecimal, such as sha256:8c1f...; None if there is
            none: then the checksum of the first download is recorded, and later ones are compared with it.
        record: file with the recorded checksum.

    Raises:
        UserError: the file cannot be downloaded, or has another checksum.
    """
    if os.path.exists(path):
        return verify(path, checksum, record)
    part = f"{path}.part"
    _download(url, part)
    try:
        found = verify(part, checksum, record, name=f"what {url} sent")
    except UserError as error:
        os.unlink(part)
        raise UserError(f"{error}; it is not kept") from None
    os.replace(part, path)
    return found


def verify(path: str, checksum: str | None, record: str, name: str | None = None) -> str:
    """Check a file against a published checksum, else against the recorded one; return its SHA-256.

    Raises:
        UserError: the checksum differs; the message calls the file `name`.
    """
    source = ""
    if checksum is None and os.path.exists(record):
        checksum, source = f"sha256:{_recorded(record)}", f", which {record} has from an earlier run"
    algorithm, _, expected = (checksum or "sha256:").partition(":")
    digests = _digests(path, {"sha256", algorithm})
    if checksum is None:
        with atomic_write(record) as file:
            file.write(f"{digests['sha256']}  {os.path.basename(path).removesuffix('.part')}\n")
        print(f"no published checksum is known; SHA-256 {digests['sha256']} is recorded in {record}")
    elif digests[algorithm] != expected:
        raise UserError(
            f"{name or path} has the {algorithm} checksum {digests[algorithm]}, not {expected}{source}"
        )
    return digests["sha256"]


def _recorded(record: str) -> str:
    """The SHA-256 in a record file.

    Raises:
        UserError: there is none.
    """
    found = re.match(rb"\s*([0-9a-f]{64})(?!\S)", read_bytes(record))
    if not found:
        raise UserError(f"{record}: no SHA-256 checksum in it; delete it to record the file that is there")
    return found[1].decode("ascii")


def _digests(path: str, algorithms: set[str]) -> dict[str, str]:
    found = {algorithm: hashlib.new(algorithm) for algorithm in algorithms}
    try:
        with (
            open(path, "rb") as file,
            progress(total=os.path.getsize(path), desc=f"checking {path}", unit="B") as bar,
        ):
            while block := file.read(BLOCK):
                bar.update(len(block))
                for digest in found.values():
                    digest.update(block)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    return {algorithm: digest.hexdigest() for algorithm, digest in found.items()}


def _download(url: str, part: str) -> None:
    """Download to `part`, continuing at its end, with new connections as long as there is progress.

    Gives up after a connection that transfers nothing, or `TRIES` in a row below `PROGRESS` bytes each.
    """
    tries = 0
    while True:
        have = _size(part)
        try:
            if _go_on(url, part):
                return
            reason = "the connection was closed early"
        except urllib.error.HTTPError as error:
            raise UserError(f"{url}: cannot be downloaded: {error.code} {error.reason}") from None
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        except ValueError as error:  # no address at all
            raise UserError(f"{url}: cannot be downloaded: {error}") from None
        except OSError as error:
            raise UserError(f"{part}: cannot be written: {error.strerror}") from None
        tries = tries + 1 if _size(part) < have + PROGRESS else 0
        if _size(part) <= have or tries == TRIES:
            rest = f"; {_size(part):,} bytes are in {part}: run again to go on" if _size(part) else ""
            raise UserError(f"{url}: cannot be downloaded: {reason}{rest}")


def _go_on(url: str, part: str) -> bool:
    """Download the rest of `part`; returns whether it is complete."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        if error.headers.get("Content-Range", "") == f"bytes */{have}":
            return True  # it broke off after the last byte
        os.unlink(part)  # longer than the file: of another one
        return _go_on(url, part)
    with response:
        start, total = _extent(response, have)
        with (
            open(part, "ab" if start else "wb") as file,
            progress(total=total, desc=f"downloading {part}", unit="B", initial=start) as bar,
        ):
            since, brought = time.monotonic(), 0
            while block := response.read1(BLOCK):
                file.write(block)
                bar.update(len(block))
                brought += len(block)
                if file.tell() > MOST_BYTES:
                    raise UserError(f"{url}: cannot be downloaded: it has more than {MOST_BYTES:,} bytes")
                if brought >= PROGRESS:
                    since, brought = time.monotonic(), 0
                elif time.monotonic() - since > PATIENCE:
                    raise TimeoutError(f"less than {PROGRESS:,} bytes in {PATIENCE:.0f} s")
    return total is None or os.path.getsize(part) == total


def _extent(response: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Offset of the response in the file, and size of the file if known."""
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if response.status == http.HTTPStatus.PARTIAL_CONTENT and span and int(span[1]) == have:
        return have, None if span[2] == "*" else int(span[2])
    length = response.headers.get("Content-Length")  # a server without ranges sends everything
    return 0, int(length) if length else None


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0

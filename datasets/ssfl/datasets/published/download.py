"""Download published files: resumed after an interruption, and renamed once verified.

A download is written to `<name>.part`. An interrupted download resumes from there, in this run or
the next, if the server supports ranges and still has the same file (the ETag or date is stored
next to the part). Length and checksum are verified before the part is renamed; a part with a wrong
checksum is deleted. Every wait has a timeout. Proxies come from the environment (https_proxy).
"""

import fcntl
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from ssfl.datasets.data_set import Progress
from ssfl.datasets.errors import DownloadError

_PIECE = 1 << 18
_MAX_BYTES = 1 << 30  # the largest published file has 248 MB
_OK, _PARTIAL, _NOT_SATISFIABLE = 200, 206, 416
_RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Timeout of an attempt and pauses between attempts."""

    timeout: float = 30.0  # seconds without data after which an attempt fails
    pauses: tuple[float, ...] = (1.0, 3.0, 10.0)  # seconds before each further attempt


DEFAULT_RETRIES = RetryPolicy()


class _RetryableError(Exception):
    """An attempt failed, but another one may succeed."""


def fetch(
    url: str,
    path: Path,
    md5: str,
    on_progress: Progress | None = None,
    retries: RetryPolicy = DEFAULT_RETRIES,
) -> None:
    """Download `url` to `path`; raise DownloadError if that fails or the MD5 differs."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file:
            _lock(file, part)
            try:
                _fetch_part(url, path, file, on_progress, retries)
            finally:
                if part.stat().st_size == 0:
                    part.unlink()
            _check(url, path, part, md5)
            os.fsync(file.fileno())
            part.replace(path)
        _validator_path(part).unlink(missing_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot write {error.filename or path}: {error.strerror}") from error


def _manual_fetch_advice(url: str, path: Path) -> str:
    """Return how to download the file without this program."""
    return f"download {url} manually to {path}, or choose another server with --mirror"


def _fetch_part(
    url: str, path: Path, file: IO[bytes], on_progress: Progress | None, retries: RetryPolicy
) -> None:
    for pause in (*retries.pauses, None):
        try:
            _fetch_once(url, path, file, on_progress, retries.timeout)
            return
        except _RetryableError as error:
            if pause is None:
                times = f"{len(retries.pauses) + 1} times" if retries.pauses else "once"
                raise DownloadError(
                    f"cannot download {url} ({error}; tried {times}): "
                    f"{_manual_fetch_advice(url, path)}"
                ) from error
            time.sleep(pause)


def _fetch_once(
    url: str, path: Path, file: IO[bytes], on_progress: Progress | None, timeout: float
) -> None:
    have = file.seek(0, os.SEEK_END)
    validator = _validator_path(Path(file.name))
    request = urllib.request.Request(
        url, headers={"User-Agent": "ssfl", "Accept-Encoding": "identity"}
    )
    if have:
        request.add_header("Range", f"bytes={have}-")
        if validator.is_file():
            request.add_header("If-Range", validator.read_text("latin-1"))
    opener = urllib.request.build_opener()  # reads the proxies from the environment now
    try:
        with opener.open(request, timeout=timeout) as response:
            total = _begin(response, file, have, validator)
            _receive(response, file, total, path.name, on_progress)
    except urllib.error.HTTPError as error:
        with error:
            _handle_http_error(error, url, path, file, have)
    except (http.client.InvalidURL, ValueError) as error:
        raise DownloadError(f"{url} is not a valid address: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.filename:
            raise  # an error of a local file, not of the network
        raise _RetryableError(_reason(error)) from error


def _begin(
    response: http.client.HTTPResponse, file: IO[bytes], have: int, validator: Path
) -> int | None:
    """Truncate `file` unless the response resumes it; return the total length, if known."""
    sent = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if response.status == _PARTIAL and sent and int(sent[1]) == have:
        return None if sent[2] == "*" else _check_length(int(sent[2]))
    # The server sends the whole file: it does not support ranges, or the file has changed.
    file.truncate(0)
    if response.status == _PARTIAL:
        raise _RetryableError("the server sent a range that was not requested")
    etag, date = response.headers.get("ETag", ""), response.headers.get("Last-Modified", "")
    value = etag if etag and not etag.startswith("W/") else date
    if value:
        validator.write_text(value, "latin-1")
    else:
        validator.unlink(missing_ok=True)
    length = response.headers.get("Content-Length", "")
    return _check_length(int(length)) if length.isdecimal() else None


def _receive(
    response: http.client.HTTPResponse,
    file: IO[bytes],
    total: int | None,
    what: str,
    on_progress: Progress | None,
) -> None:
    have = file.seek(0, os.SEEK_END)
    while piece := response.read(_PIECE):
        _write(file, piece)
        have = _check_length(have + len(piece))
        if on_progress:
            on_progress(what, have, total or 0)
    if total is not None and have != total:
        raise _RetryableError(f"the connection closed after {have:,} of {total:,} bytes")


def _write(file: IO[bytes], piece: bytes) -> None:
    """Write and flush; raise DownloadError, so that a full disk is not taken for a lost link."""
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        raise DownloadError(f"cannot write {file.name}: {error.strerror}") from error


def _handle_http_error(
    error: urllib.error.HTTPError, url: str, path: Path, file: IO[bytes], have: int
) -> None:
    if error.code == _NOT_SATISFIABLE and have:
        whole = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
        if whole and int(whole[1]) == have:
            return  # the part is already complete
        file.truncate(0)
        raise _RetryableError("the server has a shorter file than before")
    answer = f"the server answered {error.code} {error.reason}"
    if error.code in _RETRY_STATUSES:
        raise _RetryableError(answer)
    raise DownloadError(f"cannot download {url} ({answer}): {_manual_fetch_advice(url, path)}")


def _check(url: str, path: Path, part: Path, md5: str) -> None:
    with part.open("rb") as file:
        # MD5 detects corrupted files but does not protect from an attacker.
        found = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if found == md5:
        return
    size = part.stat().st_size
    part.unlink()
    _validator_path(part).unlink(missing_ok=True)
    raise DownloadError(
        f"the download from {url} ({size:,} bytes) is not the published file: its MD5 is "
        f"{found}, expected {md5}; it was deleted. Try again, or "
        f"{_manual_fetch_advice(url, path)}"
    )


def _check_length(length: int) -> int:
    if length > _MAX_BYTES:
        raise DownloadError(f"the server sends more than {_MAX_BYTES:,} bytes: not this file")
    return length


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, TimeoutError):
        return "timed out"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return str(inner) or type(inner).__name__


def _lock(file: IO[bytes], part: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # If another process has just finished, this handle refers to the renamed file.
        is_ours = os.path.samestat(os.fstat(file.fileno()), part.stat())
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    if not is_ours:
        raise DownloadError(f"another download to {part} is in progress: wait for it")


def _validator_path(part: Path) -> Path:
    return part.with_name(part.name + ".etag")

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from datasets.published.web import Web, serve
from ssfl.datasets.errors import DownloadError
from ssfl.datasets.published.download import RetryPolicy, fetch
from ssfl.method.streams import Stream

DATA = Stream(0, "download").words(125_000).tobytes()
MD5 = hashlib.md5(DATA).hexdigest()
QUICK = RetryPolicy(timeout=30.0, pauses=(0.0, 0.0, 0.0))
ONCE = RetryPolicy(timeout=30.0, pauses=())


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("no_proxy", "*")
    with serve({"set.bin": DATA}) as server:
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "set.bin"


def get(web: Web, path: Path, retries: RetryPolicy = QUICK) -> None:
    fetch(f"{web.address}/set.bin", path, MD5, retries=retries)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def test_a_complete_download_is_renamed_and_leaves_no_other_file(web: Web, path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    fetch(f"{web.address}/set.bin", path, MD5, lambda *step: seen.append(step))
    assert path.read_bytes() == DATA
    assert names(path) == ["set.bin"]
    assert seen[-1] == ("set.bin", len(DATA), len(DATA))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_an_interrupted_download_resumes(web: Web, path: Path) -> None:
    web.cuts = [300_000, 200_000]
    get(web, path)
    assert path.read_bytes() == DATA
    assert web.requests == [
        ("/set.bin", ""),
        ("/set.bin", "bytes=300000-"),
        ("/set.bin", "bytes=500000-"),
    ]


def test_the_next_run_resumes_a_failed_download(web: Web, path: Path) -> None:
    web.cuts = [400_000]
    with pytest.raises(DownloadError, match="closed after 400,000 of 1,000,000 bytes; tried once"):
        get(web, path, ONCE)
    assert names(path) == ["set.bin.part", "set.bin.part.etag"]
    get(web, path, ONCE)
    assert path.read_bytes() == DATA
    assert web.requests[-1] == ("/set.bin", "bytes=400000-")


def test_a_server_without_range_support_sends_the_whole_file_again(web: Web, path: Path) -> None:
    web.ranges, web.cuts = False, [400_000]
    get(web, path)
    assert path.read_bytes() == DATA


def test_a_file_that_has_changed_is_downloaded_from_the_start(web: Web, path: Path) -> None:
    web.files["set.bin"], web.etag, web.cuts = bytes(900_000), '"old"', [400_000]
    with pytest.raises(DownloadError):
        get(web, path, ONCE)
    web.files["set.bin"], web.etag = DATA, '"new"'
    get(web, path, ONCE)
    assert path.read_bytes() == DATA
    assert web.requests[-1] == ("/set.bin", "bytes=400000-")


@pytest.mark.parametrize("left", [DATA, DATA + b"more", bytes(2_000_000)])
def test_a_part_as_long_as_the_file_or_longer_is_handled(web: Web, path: Path, left: bytes) -> None:
    path.parent.mkdir()
    path.with_name("set.bin.part").write_bytes(left)
    get(web, path)
    assert path.read_bytes() == DATA


def test_a_response_without_a_length_is_verified_by_checksum(web: Web, path: Path) -> None:
    web.sends_length = False
    get(web, path)
    assert path.read_bytes() == DATA


def test_a_wrong_file_is_deleted_and_both_digests_are_reported(web: Web, path: Path) -> None:
    web.files["set.bin"] = b"another file"
    with pytest.raises(DownloadError) as caught:
        get(web, path)
    assert hashlib.md5(b"another file").hexdigest() in str(caught.value)
    assert MD5 in str(caught.value)
    assert "12 bytes" in str(caught.value)
    assert names(path) == []


def test_a_missing_file_is_not_retried_and_the_manual_download_is_explained(
    web: Web, path: Path
) -> None:
    del web.files["set.bin"]
    with pytest.raises(DownloadError) as caught:
        get(web, path)
    assert "the server answered 404 Not Found" in str(caught.value)
    assert f"download {web.address}/set.bin manually to {path}" in str(caught.value)
    assert len(web.requests) == 1
    assert names(path) == []


def test_a_busy_server_is_retried(web: Web, path: Path) -> None:
    web.statuses = [503, 500]
    get(web, path)
    assert path.read_bytes() == DATA
    assert len(web.requests) == 3


def test_a_server_that_stays_busy_raises_an_error(web: Web, path: Path) -> None:
    web.statuses = [503] * 9
    with pytest.raises(DownloadError, match=r"503 Service Unavailable; tried 4 times"):
        get(web, path)


def test_a_stalled_server_times_out_and_the_part_is_kept(web: Web, path: Path) -> None:
    web.stalls = True
    with pytest.raises(DownloadError, match="timed out; tried once"):
        get(web, path, RetryPolicy(timeout=0.2, pauses=()))
    part = path.with_name("set.bin.part").read_bytes()
    assert part
    assert DATA.startswith(part)


def test_a_redirect_keeps_the_requested_range(web: Web, path: Path) -> None:
    web.moved = {"/set.bin": f"{web.address}/moved.bin"}
    web.files["moved.bin"], web.cuts = DATA, [250_000]
    get(web, path)
    assert path.read_bytes() == DATA
    assert web.requests[-1] == ("/moved.bin", "bytes=250000-")


def test_without_a_network_the_error_says_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unused:  # bound but not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/set.bin"
        with pytest.raises(DownloadError) as caught:
            fetch(url, path, MD5, retries=QUICK)
    assert str(caught.value) == (
        f"cannot download {url} (Connection refused; tried 4 times): download {url} manually "
        f"to {path}, or choose another server with --mirror"
    )


def test_a_proxy_from_the_environment_is_used(
    web: Web, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", web.address)
    web.files = {"http://example.invalid/set.bin": DATA}
    fetch("http://example.invalid/set.bin", path, MD5, retries=ONCE)
    assert web.requests == [("http://example.invalid/set.bin", "")]


def test_a_second_download_to_the_same_file_is_refused(web: Web, path: Path) -> None:
    def another(*_: object) -> None:
        with pytest.raises(DownloadError, match=r"another download to .* is in progress"):
            get(web, path)

    fetch(f"{web.address}/set.bin", path, MD5, another)
    assert path.read_bytes() == DATA


def test_a_path_that_cannot_be_written_is_named(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match=f"cannot write {tmp_path}/file"):
        get(web, tmp_path / "file" / "set.bin")


def test_an_invalid_address_is_refused(path: Path) -> None:
    with pytest.raises(DownloadError, match="is not a valid address"):
        fetch("http://a b/set.bin", path, MD5, retries=QUICK)

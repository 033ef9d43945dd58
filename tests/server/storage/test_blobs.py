"""Blobs in files: atomic writes, reads by range, lists and deletion."""

from pathlib import Path

import pytest

from ssfl.durable.failpoints import install_hook, trigger
from ssfl.server.storage.blobs import FileBlobs
from ssfl.server.storage.contracts import Blobs


def test_a_blob_is_read_completely_or_by_range(tmp_path: Path) -> None:
    blobs: Blobs = FileBlobs(tmp_path)
    blobs.put("values-1.f32", [b"ab", b"cdef"])
    assert blobs.read("values-1.f32") == b"abcdef"
    assert blobs.read("values-1.f32", 2, 3) == b"cde"
    assert blobs.read("values-1.f32", 4, 100) == b"ef"
    assert blobs.read("values-1.f32", 9) == b""
    with pytest.raises(FileNotFoundError):
        blobs.read("values-2.f32")


def test_blobs_are_listed_by_prefix_and_deleted_once(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    for name in ("values-10.f32", "values-9.f32", "mask-1.bin"):
        blobs.put(name, b"x")
    (tmp_path / "values-folder").mkdir()
    assert blobs.names("values-") == ["values-10.f32", "values-9.f32"]
    for _ in range(2):
        blobs.delete("values-9.f32")
    assert blobs.names() == ["mask-1.bin", "values-10.f32"]
    assert FileBlobs(tmp_path / "not made yet").names() == []


def test_a_failed_write_leaves_the_old_blob(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.put("values-1.f32", b"before")
    install_hook(lambda name: trigger("full", name) if name == "values.written" else None)
    try:
        with pytest.raises(OSError, match="No space left"):
            blobs.put("values-1.f32", b"after")
    finally:
        install_hook(None)
    assert blobs.read("values-1.f32") == b"before" and blobs.names() == ["values-1.f32"]

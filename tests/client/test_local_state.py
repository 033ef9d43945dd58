"""State of a client after a restart: its token and an undamaged pending upload."""

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.client.local_state import LocalState, PendingUpload

ANSWER = PendingUpload("run-1", "values", 7, b"header", memoryview(b"payload of some length"))


@pytest.fixture
def local(tmp_path: Path) -> LocalState:
    return LocalState(tmp_path / "deep" / "state")


def test_the_token_is_random_and_permanent(local: LocalState, tmp_path: Path) -> None:
    token = local.token()
    assert len(token) == 16
    assert local.token() == token
    assert LocalState(local.folder).token() == token, "a new process is the same client"
    assert LocalState(tmp_path / "other").token() != token


def test_a_token_of_the_wrong_length_is_replaced(local: LocalState) -> None:
    (local.folder / "token").write_bytes(b"half")
    token = local.token()
    assert len(token) == 16
    assert local.token() == token


def test_a_pending_upload_is_loaded_unchanged_until_it_is_deleted(local: LocalState) -> None:
    assert local.load() is None
    local.save(ANSWER)
    loaded = LocalState(local.folder).load()
    assert loaded == ANSWER
    local.drop()
    assert local.load() is None
    local.drop()  # a second call has no effect


def test_a_newer_upload_replaces_the_older(local: LocalState) -> None:
    local.save(ANSWER)
    newer = PendingUpload("run-1", "scores", 8, b"", memoryview(b""))
    local.save(newer)
    assert local.load() == newer


def test_the_files_of_two_uploads_are_never_mixed(local: LocalState) -> None:
    """A crash between the two writes leaves new bytes and old JSON of the same lengths."""
    local.save(ANSWER)
    facts = (local.folder / "answer.json").read_bytes()
    local.save(
        PendingUpload("run-1", "values", 8, b"HEADER", memoryview(b"PAYLOAD of some length"))
    )
    (local.folder / "answer.json").write_bytes(facts)
    assert local.load() is None


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b"\xff", b'{"digest": 1}'])
def test_damaged_json_gives_no_pending_upload(local: LocalState, text: bytes) -> None:
    local.save(ANSWER)
    (local.folder / "answer.json").write_bytes(text)
    assert local.load() is None


def test_a_damaged_or_missing_payload_gives_no_pending_upload(local: LocalState) -> None:
    local.save(ANSWER)
    data = (local.folder / "answer.bin").read_bytes()
    for damaged in (data[:-1], data + b"x", data.replace(b"some", b"sane")):
        (local.folder / "answer.bin").write_bytes(damaged)
        assert local.load() is None
    (local.folder / "answer.bin").unlink()
    assert local.load() is None


def test_the_pending_upload_is_described_in_readable_json(local: LocalState) -> None:
    local.save(ANSWER)
    facts = json.loads((local.folder / "answer.json").read_text())
    assert (facts["run_id"], facts["kind"], facts["step"]) == ("run-1", "values", 7)


# -- the coding error of a lossy update, as versions before memory.py stored it

Vector = npt.NDArray[np.float32]
LOST = np.array([0.5, -0.25, 0.0], dtype=np.float32)
MASK, OTHER_MASK = bytes(range(32)), bytes(32)


def leave_residual(local: LocalState, name: str, round_number: int, lost: Vector) -> None:
    data = struct.pack("<Q", round_number) + lost.tobytes()
    tag = hashlib.sha256(b"run-1" + b"\0" + MASK + data).digest()
    (local.folder / name).write_bytes(tag + data)


def residual(
    local: LocalState, run_id: str = "run-1", mask: bytes = MASK, round_number: int = 9
) -> list[float] | None:
    found = local.residual(run_id, mask, round_number)
    return None if found is None else [float(value) for value in found]


def test_the_residual_of_an_earlier_version_is_read(local: LocalState) -> None:
    assert residual(local) is None
    leave_residual(local, "residual", 1, LOST)
    leave_residual(local, "residual.old", 0, LOST * 2)
    assert residual(local, round_number=2) == [0.5, -0.25, 0.0]
    assert residual(local, round_number=1) == [1.0, -0.5, 0.0], "round 1 was void"
    assert residual(local, run_id="run-2") is None
    assert residual(local, mask=OTHER_MASK) is None


def test_a_damaged_residual_is_not_used(local: LocalState) -> None:
    leave_residual(local, "residual", 0, LOST)
    file = local.folder / "residual"
    data = file.read_bytes()
    for damaged in (b"", data[:31], data[:-1], data[:-4], data + b"x", data[:40] + b"x"):
        file.write_bytes(damaged)
        assert residual(local) is None

"""Session numbers on the wire: signed, of one length, and the same after a restart."""

import hashlib
import hmac
from pathlib import Path

import pytest

from ssfl.durable import failpoints
from ssfl.server.errors import StateError
from ssfl.server.rpc.session_numbers import (
    KEY_BYTES,
    LARGEST,
    SessionNumbers,
    read_session_key,
)
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.strategies.contract import ClientId

C1, C2 = ClientId("c1"), ClientId("c2")
KEY = bytes(range(KEY_BYTES))


def test_a_number_is_an_hmac_of_run_client_and_count() -> None:
    digest = hmac.new(KEY, b"r1\0c1\x007", hashlib.sha256).digest()
    bits = int.from_bytes(digest, "big") >> (256 - 62)
    assert SessionNumbers(KEY).number("r1", C1, 7) == 2**62 + bits


def test_numbers_differ_and_are_equally_long() -> None:
    numbers = SessionNumbers(KEY)
    found = [
        one.number(run, client, count)
        for one in (numbers, SessionNumbers(bytes(KEY_BYTES)))
        for run in ("r1", "r11")
        for client in (C1, C2, ClientId("1c1"))
        for count in range(500)
    ]
    assert len(set(found)) == len(found)
    assert all(1 << 62 <= number <= LARGEST for number in found)


def test_a_key_is_private_and_kept(tmp_path: Path) -> None:
    key = read_session_key(StateDirectory(tmp_path))
    assert len(key) == KEY_BYTES
    assert StateDirectory(tmp_path).session_key.stat().st_mode & 0o777 == 0o600
    assert read_session_key(StateDirectory(tmp_path)) == key


@pytest.mark.parametrize("stage", ["written", "synced", "renamed", "named"])
def test_a_crash_leaves_no_key_or_a_whole_one(tmp_path: Path, stage: str) -> None:
    def crash(name: str) -> None:
        if name == f"session.{stage}":
            raise KeyboardInterrupt

    failpoints.install_hook(crash)
    try:
        with pytest.raises(KeyboardInterrupt):
            read_session_key(StateDirectory(tmp_path))
    finally:
        failpoints.install_hook(None)
    left = [path.read_bytes() for path in tmp_path.glob("session-key")]
    key = read_session_key(StateDirectory(tmp_path))
    assert len(key) == KEY_BYTES and left in ([], [key])


def test_a_damaged_key_is_refused_with_the_way_out(tmp_path: Path) -> None:
    StateDirectory(tmp_path).session_key.write_bytes(b"short")
    with pytest.raises(StateError, match=r"session-key has 5 bytes instead of 32: .* delete it"):
        read_session_key(StateDirectory(tmp_path))


def test_a_run_that_is_moved_aside_takes_its_key_along(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    key = read_session_key(StateDirectory(state))
    moved = StateDirectory(state).move_aside()
    assert moved is not None
    assert read_session_key(StateDirectory(moved)) == key
    assert read_session_key(StateDirectory(state)) != key

import hashlib
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from server.step_harness import staged
from ssfl.codec import DigestMismatch
from ssfl.server.errors import StateError
from ssfl.server.storage.spool import Spool, check_stored, read_sums
from ssfl.server.storage.upload_files import StoredValues
from ssfl.strategies.contract import ClientId

C1 = ClientId("c1")
ONE, TWO = hashlib.sha256(b"one").digest(), hashlib.sha256(b"two").digest()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def names(spool: Spool) -> list[str]:
    return sorted(str(path.relative_to(spool.root)) for path in spool.root.rglob("*.*"))


def test_an_upload_resumes_at_the_length_of_its_file(spool: Spool) -> None:
    part = spool.part(3, C1, ONE)
    assert part.num_bytes == 0
    part.append(b"abc")
    part.append(b"defg")
    again = spool.part(3, C1, ONE)
    assert again == part and again.num_bytes == 7
    assert again.path.read_bytes() == b"abcdefg"


def test_uploads_are_readable_only_by_the_owner(spool: Spool) -> None:
    folder = spool.part(3, C1, ONE).path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_another_digest_replaces_an_unfinished_upload(spool: Spool) -> None:
    spool.part(3, C1, ONE).append(b"abc")
    assert spool.part(3, C1, TWO).num_bytes == 0
    assert names(spool) == [f"3/c1.{TWO.hex()[:16]}.part"]


def test_uploads_of_other_clients_and_steps_stay(spool: Spool) -> None:
    for step, client in ((3, "c1"), (3, "c1.x"), (3, "c11"), (3, "c"), (4, "c1")):
        spool.part(step, ClientId(client), ONE).append(b"abc")
    spool.part(3, C1, TWO)
    assert names(spool) == [
        f"3/c.{ONE.hex()[:16]}.part",
        f"3/c1.{TWO.hex()[:16]}.part",
        f"3/c1.x.{ONE.hex()[:16]}.part",
        f"3/c11.{ONE.hex()[:16]}.part",
        f"4/c1.{ONE.hex()[:16]}.part",
    ]


def test_a_kept_upload_is_synced_before_its_final_rename(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = spool.part(3, C1, ONE)
    part.append(b"abc")
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: synced.append(part.path.exists()))
    spool.keep(part, part.values)
    assert synced == [True, False], "the content before the rename, the folder after it"
    assert not part.path.exists()
    assert spool.stored(3, C1, ONE).path.read_bytes() == b"abc"


def test_a_kept_upload_is_not_touched_by_a_new_one(spool: Spool) -> None:
    spool.part(3, C1, ONE).append(b"abc")
    part = spool.part(3, C1, ONE)
    spool.keep(part, part.values)
    spool.part(3, C1, TWO).append(b"xyz")
    assert spool.stored(3, C1, ONE).path.read_bytes() == b"abc"


def test_dropping_a_step_drops_all_earlier_steps(spool: Spool) -> None:
    for step in (0, 2, 3, 4, 12):
        spool.part(step, C1, ONE)
    (spool.root / "notes.txt").write_text("not ours")
    spool.drop_through(3)
    assert sorted(path.name for path in spool.root.iterdir()) == ["12", "4", "notes.txt"]


def test_an_upload_in_progress_fails_when_its_step_is_over(spool: Spool) -> None:
    part = spool.part(3, C1, ONE)
    part.append(b"abc")
    spool.drop_through(3)
    with pytest.raises(FileNotFoundError):
        part.append(b"def")
    with pytest.raises(FileNotFoundError):
        spool.keep(part, part.values)


def test_dropping_missing_files_is_not_an_error(spool: Spool) -> None:
    spool.drop_through(7)
    spool.drop_others(7)


def test_after_a_restart_only_the_open_step_is_kept(spool: Spool) -> None:
    for step in (2, 3, 4):
        spool.part(step, C1, ONE)
    spool.drop_others(3)
    assert [path.name for path in spool.root.iterdir()] == ["3"]
    spool.drop_others(-1)
    assert list(spool.root.iterdir()) == []


def test_the_digest_of_the_whole_file_is_checked(spool: Spool) -> None:
    part = spool.part(3, C1, ONE)
    part.append(b"o")
    part.append(b"ne")
    part.check_digest(ONE)
    part.append(b"!")
    with pytest.raises(DigestMismatch) as caught:
        part.check_digest(ONE)
    assert caught.value.expected == ONE
    assert caught.value.actual == hashlib.sha256(b"one!").digest()


def test_values_are_read_from_any_position(spool: Spool) -> None:
    part = spool.part(3, C1, ONE)
    part.append(np.arange(10, dtype="<f4").tobytes())
    assert part.values.read(0, 4).tolist() == [0, 1, 2, 3]
    assert part.values.read(7, 4).tolist() == [7, 8, 9]
    assert part.values.read(10, 4).tolist() == []
    assert part.values.read(0, 4).dtype == np.float32


def test_decoded_values_of_a_coded_upload_are_kept_and_its_bytes_dropped(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = spool.part(3, C1, ONE)
    part.append(b"coded")
    plain = staged(part, b"values")
    synced: list[list[str]] = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: synced.append(names(spool)))
    spool.keep(part, plain)
    stem = f"3/c1.{ONE.hex()[:16]}"
    assert synced == [sorted([f"{stem}.part", f"3/{plain.path.name}"]), [f"{stem}.bin"]]
    assert spool.stored(3, C1, ONE).path.read_bytes() == b"values"


def test_decoded_values_without_their_upload_are_ignored(spool: Spool) -> None:
    """After a crash, the next upload starts at byte 0."""
    part = spool.part(3, C1, ONE)
    two = {staged(part, b"values"), staged(part, b"values")}
    assert len(two) == 2, "each call decodes into a file of its own"
    part.drop()
    assert spool.part(3, C1, ONE).num_bytes == 0


def kept(spool: Spool, step: int, client: str, digest: bytes = ONE) -> str:
    part = spool.part(step, ClientId(client), digest)
    part.append(client.encode())
    spool.keep(part, part.values)
    return digest.hex()


def test_counted_uploads_are_set_aside_with_their_digests_if_they_are_to_be_kept(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path / "spool", tmp_path / "accepted")
    counted = {ClientId(name): kept(spool, 3, name) for name in ("c1", "c2")}
    kept(spool, 3, "c3")  # verified, but the step was closed
    spool.part(3, C1, TWO).append(b"late")
    spool.set_aside(3, counted)
    assert names(spool) == []
    folder = tmp_path / "accepted" / "3"
    assert sorted(path.name for path in folder.iterdir()) == [
        "SHA256SUMS", f"c1.{ONE.hex()[:16]}.bin", f"c2.{ONE.hex()[:16]}.bin",
    ]  # fmt: skip
    assert read_sums(folder) == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.bin")
    }
    spool.set_aside(3, counted)  # again, after a crash: nothing happens
    spool.part(3, C1, TWO).append(b"late")
    spool.set_aside(3, counted)
    assert (folder / f"c1.{ONE.hex()[:16]}.bin").read_bytes() == b"c1"


def test_nothing_is_set_aside_without_a_folder_or_without_counted_uploads(
    tmp_path: Path,
) -> None:
    for spool in (Spool(tmp_path / "a"), Spool(tmp_path / "b", tmp_path / "accepted")):
        kept(spool, 0, "c1")
        spool.set_aside(0, {} if spool.root.name == "b" else {C1: ONE.hex()})
        assert names(spool) == [f"0/c1.{ONE.hex()[:16]}.bin"]
    assert not (tmp_path / "accepted").exists()


@pytest.mark.parametrize("text", [None, b"", b"no sums", b"\xff  a.bin"])
def test_unreadable_sums_give_an_empty_mapping(tmp_path: Path, text: bytes | None) -> None:
    if text is not None:
        (tmp_path / "SHA256SUMS").write_bytes(text)
    assert read_sums(tmp_path) == {}


def test_partly_decoded_values_are_dropped_at_a_restart(spool: Spool) -> None:
    part = spool.part(3, C1, ONE)
    staged(part, b"abc")
    spool.drop_others(3)
    assert names(spool) == [f"3/c1.{ONE.hex()[:16]}.part"]


def test_partial_uploads_of_other_clients_are_dropped_if_one_client_is_asked(spool: Spool) -> None:
    gone = spool.part(0, ClientId("gone"), ONE)
    mine = spool.part(0, C1, ONE)
    spool.drop_clients_but({C1}, 0)
    assert names(spool) == [f"0/c1.{ONE.hex()[:16]}.part"]
    mine.append(b"abc")
    with pytest.raises(FileNotFoundError):
        gone.append(b"it was still sending")
    assert names(spool) == [f"0/c1.{ONE.hex()[:16]}.part"]


def test_a_changed_or_missing_accepted_upload_is_reported(tmp_path: Path) -> None:
    values = StoredValues(tmp_path / "c1.bin")
    values.path.write_bytes(b"four")
    check_stored(values, hashlib.sha256(b"four").hexdigest())
    check_stored(values, "")  # written by a version that recorded no digest
    with pytest.raises(
        StateError, match=r"c1\.bin is damaged: it is not what was accepted; restore"
    ):
        check_stored(values, hashlib.sha256(b"five").hexdigest())
    values.drop()
    for stored in ("", "ab"):
        with pytest.raises(StateError, match=r"c1\.bin, an accepted upload, is missing: restore"):
            check_stored(values, stored)


def test_a_part_of_an_earlier_process_is_dropped_when_another_upload_arrives(
    tmp_path: Path,
) -> None:
    left = Spool(tmp_path / "spool").part(3, C1, ONE)
    left.append(b"abc")
    again = Spool(tmp_path / "spool")
    assert again.part(3, C1, TWO).num_bytes == 0
    assert not left.path.exists()


def test_the_folder_of_a_step_is_read_once(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    spool.part(3, C1, ONE)
    monkeypatch.setattr(os, "scandir", None)  # a call would fail
    part = spool.part(3, ClientId("another"), ONE)
    part.append(b"abc")
    spool.keep(part, part.values)
    assert spool.part(3, C1, TWO).num_bytes == 0

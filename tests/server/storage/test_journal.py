import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.durable.failpoints import install_hook, trigger
from ssfl.server.errors import Fenced, StateError, StateGone
from ssfl.server.storage import journal as module
from ssfl.server.storage.journal import Journal, read_journal

BODIES = [b'{"fact":"one"}', b"2", b"\x00\x00", bytes(range(20))]
BODIES_ST = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def write(path: Path, bodies: list[bytes]) -> None:
    journal = Journal(path)
    journal.append(bodies)
    journal.close()


def read(path: Path) -> tuple[list[bytes], int]:
    """Return the records of a journal and the number of bytes cut."""
    journal = Journal(path)
    journal.close()
    return journal.records, journal.cut_bytes


def record_starts(bodies: list[bytes]) -> list[int]:
    """Return where each record begins, and where the last ends."""
    starts = [8]
    for body in bodies:
        starts.append(starts[-1] + 12 + len(body))
    return starts


def test_golden_bytes(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, [b"hello"])
    head = struct.pack("<II", 5, zlib.crc32(b"hello"))
    assert path.read_bytes() == b"SSFLJRN1" + head + struct.pack("<I", zlib.crc32(head)) + b"hello"


def test_a_new_journal_is_empty_and_leaves_no_other_file(tmp_path: Path) -> None:
    assert read(tmp_path / "journal") == ([], 0)
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def test_records_are_replayed_in_order_across_processes(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for body in BODIES:
        write(path, [body])
    write(path, BODIES)
    write(path, [])
    assert read(path) == (BODIES + BODIES, 0)


def test_append_returns_after_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda _fd: seen.append((tmp_path / "journal").stat().st_size))
    journal.append(BODIES)
    journal.close()
    assert seen == [record_starts(BODIES)[-1]], "one fsync for all, after all were written"


def test_short_writes_are_completed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    file = journal._file

    class Slow:
        def write(self, data: memoryview) -> int:
            return file.write(data[:3]) or 0

        def fileno(self) -> int:
            return file.fileno()

        def tell(self) -> int:
            return file.tell()

    journal._file = Slow()  # type: ignore[assignment]  # the three methods append uses
    journal.append(BODIES)
    file.close()
    assert read(path) == (BODIES, 0)


def test_every_possible_torn_tail_is_cut_and_appends_continue(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    write(whole, BODIES)
    data = whole.read_bytes()
    starts = record_starts(BODIES)
    for length in range(8, len(data)):
        path = tmp_path / "journal"
        path.write_bytes(data[:length])
        kept = sum(end <= length for end in starts[1:])
        records, cut_bytes = read(path)
        assert records == BODIES[:kept], length
        assert cut_bytes == length - starts[kept]
        assert path.stat().st_size == starts[kept], "the torn bytes are gone from the file, too"
        write(path, [b"next"])
        assert read(path) == ([*BODIES[:kept], b"next"], 0)


def test_a_tail_of_zeros_is_cut(tmp_path: Path) -> None:
    """Space that the file system allocated and the crash left unwritten, from any byte."""
    whole = tmp_path / "whole"
    write(whole, BODIES)
    data = whole.read_bytes()
    starts = record_starts(BODIES)
    for written in range(starts[2], len(data)):
        path = tmp_path / "journal"
        path.write_bytes(data[:written] + bytes(200))
        kept = sum(end <= written for end in starts[1:])
        records, _ = read(path)
        # The third body is zeros itself, so zeros complete it.
        assert records in (BODIES[:kept], BODIES[: kept + 1]), written
        assert len(records) == kept or BODIES[kept] == bytes(2)


def test_a_damaged_last_body_is_cut_like_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, BODIES)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert read(path)[0] == BODIES[:-1]


def test_any_flipped_bit_before_the_last_record_is_refused_naming_file_and_byte(
    tmp_path: Path,
) -> None:
    whole = tmp_path / "whole"
    write(whole, BODIES)
    data = whole.read_bytes()
    starts = record_starts(BODIES)
    path = tmp_path / "journal"
    for at in range(8, starts[-2]):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            begins = max(start for start in starts if start <= at)
            with pytest.raises(StateError, match=f"journal is damaged at byte {begins}: restore"):
                Journal(path)
            assert path.read_bytes() == damaged, "a damaged journal is left as it is"


def test_a_damaged_head_of_the_last_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, BODIES)
    data = bytearray(path.read_bytes())
    data[record_starts(BODIES)[-2]] ^= 0x80
    path.write_bytes(data)
    with pytest.raises(StateError, match="damaged at byte"):
        Journal(path)


@given(BODIES_ST, st.binary(max_size=60))
def test_any_bytes_behind_sound_records_are_cut_refused_or_records(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "journal"
    write(path, bodies)
    with path.open("ab") as file:
        file.write(tail)
    try:
        records, _ = read(path)
    except StateError:
        return
    assert records[: len(bodies)] == bodies


@pytest.mark.parametrize("content", [b"", b"SSFLJRN", b"SSFLJRN2", b"PK\x03\x04 something else"])
def test_a_file_that_is_not_a_journal_is_refused_with_a_remedy(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(StateError, match="not a journal of this version; use --fresh"):
        Journal(path)
    assert path.read_bytes() == content


def test_a_record_over_the_limit_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RECORD_BYTES", 10)
    path = tmp_path / "journal"
    journal = Journal(path)
    with pytest.raises(StateError, match="11 bytes is over the limit"):
        journal.append([b"small", b"x" * 11])
    journal.close()
    assert read(path) == ([], 0)


def test_an_empty_body_is_a_record(tmp_path: Path) -> None:
    write(tmp_path / "journal", [b"", b"a", b""])
    assert read(tmp_path / "journal") == ([b"", b"a", b""], 0)


def test_opening_a_journal_takes_it_over_and_fences_the_previous_owner(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    first = Journal(path)
    first.append([b"by the first"])
    second = Journal(path)
    assert second.records == [b"by the first"]
    with pytest.raises(Fenced, match="another coordinator has taken over"):
        first.append([b"too late"])
    second.append([b"by the second"])
    first.close()
    second.close()
    assert read(path) == ([b"by the first", b"by the second"], 0)
    assert [one.name for one in tmp_path.iterdir()] == ["journal"]


@pytest.mark.parametrize("deleted", ["directory", "journal"])
def test_a_journal_that_was_deleted_is_not_reported_as_taken_over(
    tmp_path: Path, deleted: str
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    journal = Journal(folder / "journal")
    if deleted == "directory":
        shutil.rmtree(folder)
    else:
        journal.path.unlink()
    for use in (journal.check_ours, lambda: journal.append([b"fact"])):
        with pytest.raises(StateGone, match=rf"{folder} is gone: .* restore the directory"):
            use()
    journal.close()


def test_records_acknowledged_before_a_takeover_survive_it(tmp_path: Path) -> None:
    """The owner writes at the last moment: the file is renamed, but not read yet."""
    path = tmp_path / "journal"
    first = Journal(path)
    late: list[type[Exception]] = []

    def hook(name: str) -> None:
        if name == "journal.taken" and not late:
            late.append(Exception)
            with pytest.raises(Fenced):
                first.append([b"not acknowledged"])

    first.append([b"acknowledged"])
    install_hook(hook)
    try:
        second = Journal(path)
    finally:
        install_hook(None)
    assert late and second.records[0] == b"acknowledged"
    first.close()
    second.close()


def test_an_interrupted_takeover_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, BODIES)
    for point in ("journal.taken", "journal.created"):

        def hook(name: str, point: str = point) -> None:
            if name == point:
                raise KeyboardInterrupt

        install_hook(hook)
        try:
            with pytest.raises(KeyboardInterrupt):
                Journal(path)
        finally:
            install_hook(None)
        assert not path.exists()
        assert read(path) == (BODIES, 0)
        assert path.exists()


@pytest.mark.parametrize("point", ["journal.append", "journal.torn", "journal.written"])
def test_a_failed_append_leaves_the_file_unchanged(tmp_path: Path, point: str) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append(BODIES)
    before = path.read_bytes()

    def hook(name: str) -> None:
        if name == point:
            trigger("full", name)

    install_hook(hook)
    try:
        with pytest.raises(OSError, match="No space left"):
            journal.append([b"no room"])
    finally:
        install_hook(None)
    assert path.read_bytes() == before
    journal.append([b"room again"])
    journal.close()
    assert read(path) == ([*BODIES, b"room again"], 0)


def test_a_journal_in_use_can_be_read_without_taking_it_over(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append(BODIES)
    assert read_journal(path) == (BODIES, 0)
    with path.open("ab") as file:
        file.write(b"torn")
    assert read_journal(path) == (BODIES, 4)
    assert path.read_bytes().endswith(b"torn")
    journal.close()


def test_a_journal_that_is_being_taken_over_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with pytest.raises(FileNotFoundError):
        read_journal(path)
    write(path, BODIES)
    seen = []

    def look(point: str) -> None:
        if point == "journal.taken":
            assert not path.exists()
            seen.append(read_journal(path))

    install_hook(look)
    try:
        read(path)
    finally:
        install_hook(None)
    assert seen == [(BODIES, 0)]


@pytest.mark.parametrize("seen", [13, 20, 31])
def test_an_append_that_ends_while_its_record_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    path = tmp_path / "journal"
    write(path, BODIES)
    data, start = path.read_bytes(), record_starts(BODIES)[-2]
    steps = [data[: start + seen], data[: start + seen + 1], data]
    path.write_bytes(steps.pop(0))
    is_empty = module._is_empty

    def after_the_next_write(file: BinaryIO) -> bool:
        if steps:
            path.write_bytes(steps.pop(0))
        return is_empty(file)

    monkeypatch.setattr(module, "_is_empty", after_the_next_write)
    assert read_journal(path)[0] == BODIES

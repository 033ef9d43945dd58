"""Snapshots equal the replayed journal, and nothing is lost without them."""

import logging
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from server.recovery.test_recovery import RUNS, new, undisturbed
from server.run_loop_harness import SETTINGS, answer_all, begin, conduct
from ssfl.method.manifest import Manifest
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.errors import StateError
from ssfl.server.history.run_history import Newest
from ssfl.server.loop import step_jobs
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.recovery import snapshot
from ssfl.server.recovery.recover import open_run
from ssfl.server.recovery.snapshot import SnapshotHeader, read_snapshot, replay, write_snapshot
from ssfl.server.run import events
from ssfl.server.run.state import RunState
from ssfl.server.storage.journal import Journal, JournalFile, records_of
from ssfl.server.storage.state_directory import StateDirectory

EARLY = RUNS["early"]


def written(folder: Path, records: list[bytes]) -> Journal:
    journal = Journal(folder / "journal")
    journal.append(records)
    journal.close()
    return journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return written(tmp_path, undisturbed(EARLY).journal)


def half(journal: Journal) -> int:
    ends = [end for end, _ in records_of(journal.path)]
    return ends[len(ends) // 2]


def directory_of(journal: Journal) -> StateDirectory:
    return StateDirectory(journal.path.parent)


def nothing() -> SnapshotHeader:
    return SnapshotHeader(RunState(EARLY), Newest(), 0, 0)


@pytest.mark.parametrize("name", RUNS)
def test_a_snapshot_plus_the_rest_equals_a_full_replay(tmp_path: Path, name: str) -> None:
    settings = RUNS[name]
    journal = written(tmp_path, undisturbed(settings).journal)
    begun = SnapshotHeader(RunState(settings), Newest(), 0, 0)
    whole = replay(JournalFile(journal.path), begun, journal.num_bytes)
    ends = [end for end, _ in records_of(journal.path)]
    for end in ends[:: max(1, len(ends) // 12)]:
        assert write_snapshot(directory_of(journal), settings, end) == end
        known = read_snapshot(directory_of(journal), settings)
        assert known.num_bytes == end
        assert replay(JournalFile(journal.path), known, journal.num_bytes) == whole


def test_a_snapshot_records_that_the_run_is_paused(tmp_path: Path) -> None:
    world = new(EARLY)
    world.post(events.PauseAsked(1.7e9))
    journal = written(tmp_path, world.journal)
    write_snapshot(directory_of(journal), EARLY, journal.num_bytes)
    assert read_snapshot(directory_of(journal), EARLY).state.paused_at == 1.7e9


def test_a_snapshot_is_readable_only_by_the_owner(journal: Journal) -> None:
    write_snapshot(directory_of(journal), EARLY, journal.num_bytes)
    for name in ("journal", "snapshot.json"):
        assert stat.S_IMODE((journal.path.parent / name).stat().st_mode) == 0o600


def test_a_restart_reads_only_records_after_the_snapshot(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_snapshot(directory_of(journal), EARLY, half(journal))
    known = read_snapshot(directory_of(journal), EARLY)
    read: list[int] = []

    def seen(file: JournalFile, start: int = 0, stop: int | None = None) -> object:
        read.append(start)
        return records_of(file.path, start, stop)

    monkeypatch.setattr(JournalFile, "read_from", seen)
    opened = Journal(journal.path, known.num_bytes)
    state, _ = open_run(opened, EARLY, Ledger(), known)
    opened.close()
    assert state.finished
    assert read == [half(journal)]


@pytest.mark.parametrize("trouble", ["cut", "changed", "other version", "longer", "other journal"])
def test_a_snapshot_that_does_not_fit_is_ignored(
    journal: Journal,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_snapshot(directory_of(journal), EARLY, half(journal))
    path = journal.path.with_name("snapshot.json")
    data = path.read_bytes()
    match trouble:
        case "cut":
            path.write_bytes(data[:-1])
        case "changed":
            path.write_bytes(data.replace(b"rounds_done", b"rounds_dane", 1))
        case "other version":
            monkeypatch.setattr(snapshot, "ssfl_version", lambda: "99")
        case "longer":  # the journal was restored from a backup
            with journal.path.open("r+b") as file:
                file.truncate(half(journal) - 1)
        case _:
            journal.path.write_bytes(journal.path.read_bytes().replace(b"c1", b"c9"))
    with caplog.at_level(logging.WARNING):
        assert read_snapshot(directory_of(journal), EARLY) == nothing()
    assert ("snapshot is ignored" in caplog.text) == (trouble in ("cut", "changed"))


def test_a_journal_damaged_before_its_snapshot_is_still_refused(journal: Journal) -> None:
    write_snapshot(directory_of(journal), EARLY, journal.num_bytes)
    data = bytearray(journal.path.read_bytes())
    data[half(journal) // 2] ^= 1
    journal.path.write_bytes(data)
    known = read_snapshot(directory_of(journal), EARLY)
    with pytest.raises(StateError, match="journal is damaged at byte"):
        Journal(journal.path, known.num_bytes)


def test_changeable_settings_are_those_of_the_new_start(journal: Journal) -> None:
    write_snapshot(directory_of(journal), EARLY, journal.num_bytes)
    patient = replace(EARLY, round_deadline_s=7200.0)
    assert read_snapshot(directory_of(journal), patient).state.settings == patient


def test_a_running_coordinator_keeps_a_snapshot(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_jobs, "EVERY_BYTES", 1)

    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        while not coordinator.run.state.finished:
            await answer_all(coordinator)
        await coordinator.run.model_written.wait()

    conduct(tmp_path, script)
    known = read_snapshot(StateDirectory(tmp_path), SETTINGS)
    assert known.state.rounds_done == SETTINGS.rounds
    assert known.num_bytes > 0


def test_a_snapshot_that_cannot_be_written_does_not_stop_the_run(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step_jobs, "EVERY_BYTES", 1)
    monkeypatch.setattr(step_jobs, "write_snapshot", full)

    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        while not coordinator.run.state.finished:
            await answer_all(coordinator)

    conduct(tmp_path, script)
    assert not (tmp_path / "snapshot.json").exists()

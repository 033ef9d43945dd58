"""Byte accounting of a coordinator with real files: rows first, then their totals."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from server.run_loop_harness import C1, C2, begin, conduct
from ssfl.method.manifest import Manifest
from ssfl.server.accounting.ledger import Direction
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.run import events
from ssfl.server.storage.journal import Journal
from ssfl.strategies.contract import ClientId


def send(coordinator: Coordinator, num_bytes: int, client: ClientId = C1) -> None:
    coordinator.ledger.count("values", Direction.UP, num_bytes, client=client)


def rows(folder: Path) -> list[tuple[str, str, str, int]]:
    """Return round, step, client and message bytes of every row on disk."""
    with (folder / "ledger.csv").open(newline="") as file:
        return [
            (row["round"], row["step"], row["client"], int(row["message_bytes"]))
            for row in csv.DictReader(file)
        ]


def test_rows_name_the_step_in_which_bytes_were_transferred(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def script(coordinator: Coordinator) -> None:
        send(coordinator, 1)
        await begin(coordinator, manifest)
        assert rows(tmp_path) == [("", "", "c1", 1)]
        send(coordinator, 20)
        send(coordinator, 30, C2)
        send(coordinator, 4, C2)
        await coordinator.run.post(events.Signal.STOP)
        assert coordinator.run.state.finished
        assert rows(tmp_path)[1:] == [("0", "1", "c1", 20), ("0", "1", "c2", 34)]
        send(coordinator, 500)
        await coordinator.run.post(events.Left(C1, finished=True))
        assert rows(tmp_path)[3:] == [("", "", "c1", 500)]
        send(coordinator, 6000)

    conduct(tmp_path, script)
    assert rows(tmp_path)[4:] == [("", "", "c1", 6000)], "written when the coordinator ends"


def test_totals_and_rows_resume_from_the_same_commit(tmp_path: Path, manifest: Manifest) -> None:
    async def first(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        send(coordinator, 20)
        await coordinator.run.post(events.Signal.STOP)
        send(coordinator, 500)

    async def second(coordinator: Coordinator) -> None:
        assert [row["message_bytes"] for row in coordinator.ledger.rows()] == [520]
        assert not coordinator.ledger.untaken
        send(coordinator, 6000)
        await coordinator.run.post(events.Left(C1, finished=True))
        totals, num_bytes = coordinator.history.account
        assert [row["message_bytes"] for row in totals] == [6520]
        assert num_bytes == (tmp_path / "ledger.csv").stat().st_size

    conduct(tmp_path, first)
    conduct(tmp_path, second)
    assert [num_bytes for *_, num_bytes in rows(tmp_path)] == [20, 500, 6000]


def test_rows_without_a_following_journal_record_are_truncated(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_journal: Journal, _bodies: list[bytes]) -> None:
        raise OSError(5, "Input/output error")

    async def first(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        send(coordinator, 20)
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", broken)
            await coordinator.run.post(events.Signal.STOP)

    async def second(coordinator: Coordinator) -> None:
        assert rows(tmp_path) == []
        assert coordinator.ledger.rows() == []
        send(coordinator, 3)
        await coordinator.run.post(events.Signal.STOP)

    with pytest.raises(OSError, match="Input/output"):
        conduct(tmp_path, first)
    assert rows(tmp_path) == [("0", "1", "c1", 20)]
    conduct(tmp_path, second)
    assert rows(tmp_path) == [("0", "1", "c1", 3)]


def test_detail_does_not_outlive_its_step(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        for number in range(200):
            send(coordinator, 1, ClientId(f"c{number}"))
        await coordinator.run.post(events.Signal.STOP)
        assert not coordinator.ledger.untaken
        report = Journal(tmp_path / "journal")
        report.close()
        assert b"c199" not in report.records[-1], "the journal has totals, never clients"

    conduct(tmp_path, script)
    assert Counter(step for _, step, *_ in rows(tmp_path)) == {"1": 200}

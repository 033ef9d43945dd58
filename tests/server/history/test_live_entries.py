"""Entries of a running run, read from the journal and from the run: each exactly once."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.core_harness import World
from ssfl.method.settings import RunSettings
from ssfl.server.history import live_entries
from ssfl.server.history.history_file import Follower
from ssfl.server.history.live_entries import Following, LiveEntries
from ssfl.server.history.run_history import HistoryEntry, Newest
from ssfl.server.run import facts
from ssfl.server.storage.journal import Journal
from ssfl.strategies.contract import ClientId

SETTINGS = RunSettings(clients=3, rounds=12, evaluate_every=2, refresh_rounds="3,7")


class Run:
    """A run that is replayed, some facts at a time, as in the coordinator."""

    def __init__(self, folder: Path, records: list[bytes]) -> None:
        self.journal = Journal(folder / "journal")
        self.live_entries = LiveEntries()
        self.published_journal_bytes = self.journal.num_bytes
        self.story = Newest()
        self.rest = records

    def go_on(self, num_facts: int, *, journal: bool = True) -> None:
        records, self.rest = self.rest[:num_facts], self.rest[num_facts:]
        if journal:
            self.journal.append(records)
            self.published_journal_bytes = self.journal.num_bytes
        for record in records:
            fact = facts.from_json(record)
            self.story.add(fact)
            if isinstance(fact, facts.StepCommitted) and (entry := self.story.newest_entry):
                self.live_entries.add(entry, self.published_journal_bytes)


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    world = World(SETTINGS, [ClientId(f"c{n}") for n in range(3)])
    world.finish_calmly()
    return world.journal


@pytest.fixture
def run(tmp_path: Path, records: list[bytes]) -> Iterator[Run]:
    begun = Run(tmp_path, list(records))
    yield begun
    begun.journal.close()


@pytest.fixture
def follows(run: Run) -> Following:
    return Following(run.journal, run.live_entries, lambda: run.published_journal_bytes)


@pytest.mark.parametrize("seed", range(60))
def test_every_entry_is_yielded_once_and_in_order(
    seed: int, run: Run, follows: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(live_entries, "MAX_ROWS", draw.choice((5, 12, 1000)))
    found: list[HistoryEntry] = []
    while run.rest:
        for _ in range(draw.choice((1, 3, 40))):  # batches between two reads
            run.go_on(draw.choice((1, 2, 5, 14)))
        found += follows.entries(draw.choice((-1.0, 60.0)))  # one entry of the journal, or all
    while follows.read_bytes < run.published_journal_bytes:
        found += follows.entries(-1.0)
    found += follows.entries(60.0)
    assert found == list(Follower(run.journal).entries(run.published_journal_bytes))
    assert [one.name for one in found].count("rounds") == SETTINGS.rounds


def test_a_reader_that_keeps_asking_reads_the_journal_once(run: Run, follows: Following) -> None:
    run.go_on(len(run.rest) // 2)
    found = list(follows.entries(60.0))
    assert 0 < [one.name for one in found].count("rounds") < SETTINGS.rounds
    run.journal.path.unlink()  # reading it again would fail
    while run.rest:
        run.go_on(4, journal=False)
        found += follows.entries(60.0)
    assert [one.name for one in found].count("rounds") == SETTINGS.rounds


def test_entries_are_not_buffered_for_a_reader_that_stopped_asking(
    run: Run, follows: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_entries, "MAX_ROWS", 20)
    assert run.live_entries.take() is None, "no reader has asked yet"
    list(follows.entries(60.0))
    assert run.live_entries.take() == []
    run.go_on(len(run.rest))
    assert run.live_entries.take() is None

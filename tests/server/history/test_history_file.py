"""history.json, generated from a journal."""

import gc
import json
import tracemalloc
from pathlib import Path

from server.core_harness import World
from ssfl.method.settings import RunSettings
from ssfl.server.history.history_file import history_blocks
from ssfl.server.history.run_history import History, Newest
from ssfl.server.run import facts
from ssfl.server.storage.journal import Journal
from ssfl.strategies.contract import ClientId, Work

C1 = ClientId("c1")
TEST = {"correct": 1, "total": 2, "loss_sum": 1.0}
REPORT = {"training_loss": 0.5, "evaluation": TEST, "personal": TEST, "work_s": 1.0}


def journal_of(folder: Path, records: list[bytes]) -> Journal:
    journal = Journal(folder / "journal")
    journal.append(records)
    journal.close()
    return journal


def history_of(records: list[bytes]) -> History:
    history = History()
    for record in records:
        history.add(facts.from_json(record))
    return history


def document(journal: Journal, stop: int, history: Newest) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        b"".join(history_blocks(journal, stop, history.to_dict()))
    )
    return found


def test_the_history_from_the_journal_equals_the_one_in_memory(tmp_path: Path) -> None:
    settings = RunSettings(clients=3, rounds=4, evaluate_every=1, refresh_rounds="1,3")
    world = World(settings, [ClientId(f"c{n}") for n in range(3)])
    world.finish_calmly()
    records = world.journal
    journal = journal_of(tmp_path, records)
    whole = history_of(records)
    assert (len(whole.rounds), len(whole.masks)) == (4, 3)
    newest = Newest()
    for record in records:
        newest.add(facts.from_json(record))
    plain = json.loads(json.dumps(whole.to_dict()))
    assert document(journal, journal.num_bytes, newest) == plain
    assert newest.newest == whole.newest
    assert newest.seconds_per_round == whole.seconds_per_round
    half = len(records) // 2
    stop = 8 + sum(12 + len(record) for record in records[:half])
    assert document(journal, stop, history_of(records[:half])) == json.loads(
        json.dumps(history_of(records[:half]).to_dict())
    )


def test_a_run_without_rounds_has_empty_lists(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, [])
    found = document(journal, journal.num_bytes, Newest())
    assert (found["rounds"], found["masks"], found["evaluations"]) == ([], [], [])


def a_round(number: int) -> list[facts.Fact]:
    return [
        facts.StepStarted(number, Work.TRAIN, "", number, 0, {C1: 10}),
        facts.UploadAccepted(number, C1, "d", 1.0, REPORT),
        facts.StepClosed(number, (C1,), ()),
        facts.StepCommitted(number, 1, "m", 3, "b", {"seconds": 1.0}),
    ]


def test_memory_does_not_grow_with_the_rounds() -> None:
    newest = Newest()

    def live(rounds: range) -> int:
        for number in rounds:
            for fact in a_round(number):
                newest.add(facts.from_json(facts.to_json(fact)))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = live(range(10))
        many = live(range(10, 1010))
    finally:
        tracemalloc.stop()
    assert many - few < 5_000, "a thousand rounds as they are take a megabyte"
    assert (newest.num_timed, newest.seconds_per_round) == (1010, 1.0)

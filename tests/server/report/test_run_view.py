"""RunView: documents of bounded size from any number of history entries."""

import json
import tracemalloc
from typing import Any

import pytest

from ssfl.server.accounting.ledger import Direction, Ledger
from ssfl.server.report import run_view
from ssfl.server.report.run_view import DownsampledSeries, RunView, layer_rows

Entry = dict[str, Any]


def ledger_of(up: int, down: int) -> list[Entry]:
    ledger = Ledger()
    ledger.count("scores", Direction.UP, 120, 100, encoding="scores")
    ledger.count("mask", Direction.DOWN, 30, 20, encoding="bitmask")
    ledger.count("values", Direction.UP, up + 7, up, encoding="reference")
    ledger.count("values", Direction.DOWN, down + 5, down, encoding="reference")
    ledger.count("evaluation", Direction.DOWN, 1000, 900, encoding="reference")
    return ledger.rows()


def client_row(name: str, received_s: float = 1.0, work_s: float = 0.5) -> Entry:
    return {
        "client": name, "num_samples": 10, "training_loss": 0.25, "work_s": work_s,
        "upload_bytes": 400, "upload_s": 0.1, "asked_s": 0.0, "received_s": received_s,
    }  # fmt: skip


def round_entry(number: int, clients: list[Entry], missing: tuple[str, ...] = ()) -> Entry:
    return {
        "round": number, "pooled": number / 10_000, "loss": 1 / (1 + number),
        "seconds": 2.0 if number != 1234 else 99.0, "rounds_done": number,
        "ledger": ledger_of(400 * (number + 1), 300 * (number + 1)),
        "missing": list(missing), "clients": clients,
    }  # fmt: skip


def evaluation_entry(rounds_done: int, accuracy: float | None, loss: float) -> Entry:
    ledger = ledger_of(400 * rounds_done, 300 * rounds_done)
    return {"rounds_done": rounds_done, "pooled": accuracy, "loss": loss, "ledger": ledger}


def mask_entry(epoch: int) -> Entry:
    layers = {"a.weight": {"kept": 1, "size": 4}, "b.weight": {"kept": epoch, "size": 10}}
    return {"step": 1, "epoch": epoch, "rounds_done": 0, "reason": "", "layers": layers}


def test_a_round_has_its_own_payload_bytes() -> None:
    run = RunView()
    for number in range(3):
        run.add("rounds", round_entry(number, [client_row("a")]))
    newest = run.curve.points()[-1]
    sent = sum(row["message_bytes"] for row in ledger_of(800, 600))
    assert newest == {
        "round": 2, "accuracy": 0.0002, "loss": 1 / 3, "seconds": 2.0, "phases": None,
        "metrics": {}, "up_bytes": 400, "down_bytes": 300, "sent_bytes": sent,
    }  # fmt: skip


def test_phases_are_handed_on_and_summed_where_an_entry_has_them() -> None:
    run = RunView()
    run.add("rounds", round_entry(0, [client_row("a")]))
    timed = {"began": 5.0, "last": "a", "phases": {"broadcast": 0.5, "training": 1.5}}
    run.add("rounds", {**round_entry(1, [client_row("a")]), **timed})
    run.add("rounds", {**round_entry(2, [client_row("a")]), **timed})
    assert [point["phases"] for point in run.curve.points()] == [
        None,
        timed["phases"],
        timed["phases"],
    ]
    assert run.phase_seconds == {"broadcast": 1.0, "training": 3.0}
    assert run.timeline[-1]["began"] == 5.0 and run.timeline[-1]["last"] == "a"
    assert run.timeline[0]["began"] is None


def test_memory_and_documents_do_not_grow_with_rounds() -> None:
    run = RunView()
    clients = [client_row(f"site {number}") for number in range(5)]

    def add(first: int, last: int) -> None:
        for number in range(first, last):
            run.add("rounds", round_entry(number, clients, missing=("late",)))
            run.add("evaluations", evaluation_entry(number, number / 10_000, 0.5))
            run.add("masks", mask_entry(number))

    tracemalloc.start()
    try:
        add(0, 2500)
        after_some = tracemalloc.get_traced_memory()[0]
        add(2500, 5000)
        after_many = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after_many < 1.5 * after_some
    rounds = [point["round"] for point in run.curve.points()]
    assert 1000 <= len(rounds) <= 2000 and rounds == sorted(set(rounds))
    assert rounds[0] == 0 and rounds[-1] == 4999 and 1234 in rounds  # first, newest, slowest
    assert (
        len(run.evaluations.points()) <= 2001
        and run.evaluations.points()[-1]["rounds_done"] == 4999
    )
    assert len(run.masks) == run_view.NEWEST_MASKS and run.num_masks == 5000
    assert len(run.timeline) == run_view.NEWEST_ROUNDS
    assert run.clients({})[-1]["selected"] == 5000
    documents = [
        run.curve.points(),
        run.evaluations.points(),
        list(run.timeline),
        layer_rows(run.layers),
        run.clients({}),
    ]
    assert len(json.dumps(documents)) < 1_000_000


@pytest.mark.parametrize("num_points", [0, 1, 1999, 2000, 2001, 3999, 4000, 10_001])
def test_a_downsampled_curve_keeps_its_ends(num_points: int) -> None:
    series = DownsampledSeries()
    for place in range(num_points):
        series.add({"place": place})
    kept = [point["place"] for point in series.points()]
    assert len(kept) == num_points if num_points < 2000 else 1000 <= len(kept) <= 2000
    assert num_points == 0 or (kept[0], kept[-1]) == (0, num_points - 1)


def test_the_best_evaluation_survives_downsampling() -> None:
    run = RunView()
    for number in range(4500):
        accuracy = 0.9 if number == 2001 else 0.5
        run.add("evaluations", evaluation_entry(number, accuracy, 1.0))
    assert run.best is not None and run.best["rounds_done"] == 2001
    assert run.best in run.evaluations.points()


def test_without_accuracy_the_lowest_loss_is_best() -> None:
    run = RunView()
    for number, loss in enumerate([0.7, 0.2, 0.4]):
        run.add("evaluations", evaluation_entry(number, None, loss))
    assert run.best is not None and run.best["rounds_done"] == 1


def test_of_many_clients_the_timeline_shows_the_slowest() -> None:
    run = RunView()
    clients = [client_row(f"{number:03}", received_s=number) for number in range(500)]
    missing = tuple(f"lost {number}" for number in range(60))
    run.add("rounds", round_entry(0, clients, missing))
    (shown,) = run.timeline
    names = [row["client"] for row in shown["clients"]]
    assert names == [f"{number:03}" for number in range(499, 459, -1)]
    assert shown["others"] == 460
    assert len(shown["missing"]) == 40 and shown["num_missing"] == 60
    times = {"client", "asked_s", "sent_s", "work_s", "upload_s", "received_s"}
    assert set(shown["clients"][0]) == times


def test_the_run_lasts_from_its_first_step_to_the_end_of_its_newest() -> None:
    run = RunView()
    assert RunView().began is None
    run.add("rounds", {**round_entry(0, [client_row("a")]), "began": 100.0})
    run.add("evaluations", {**evaluation_entry(1, 0.5, 0.5), "began": 150.0, "seconds": 3.0})
    run.add("rounds", round_entry(1, [client_row("a")]))  # taken up after a restart: not timed
    assert (run.began, run.ended) == (100.0, 153.0)


def test_a_round_that_waited_for_a_returning_client_is_an_incident() -> None:
    run = RunView()
    away = {**client_row("a"), "asked_s": 45.0}
    run.add("rounds", round_entry(0, [away, {**client_row("b"), "asked_s": 29.0}]))
    run.add("rounds", round_entry(1, [client_row("a")]))
    none = {"missing": [], "num_missing": 0, "void_attempts": 0}
    late = {"late": [{"client": "a", "asked_s": 45.0}], "num_late": 1}
    assert list(run.incidents) == [{"round": 0, **none, **late}]


def test_bytes_are_compared_with_dense_for_the_same_transfers() -> None:
    run = RunView()
    run.add("rounds", round_entry(0, [client_row("a"), client_row("b")], missing=("c",)))
    run.add("rounds", round_entry(1, [client_row("a")]))
    rows = ledger_of(5800, 5600)  # the next round is under way
    document = run.bytes(rows, num_values=1000)
    assert document["rows"] == rows
    assert document["up"] == {"values": 800, "dense": 3 * 4000, "ratio": 800 / 12_000}
    assert document["down"] == {"values": 1500, "dense": 4 * 4000, "ratio": 1500 / 16_000}
    assert document["one_off"] == {"up": 100, "down": 20}


def test_a_model_that_was_tested_is_not_sent_again_by_others_either() -> None:
    run = RunView()

    def models(name: str, number: int, *clients: str, missing: tuple[str, ...] = ()) -> int:
        before = run.num_models
        run.add(name, round_entry(number, [client_row(one) for one in clients], missing))
        return run.num_models - before

    assert models("rounds", 0, "a", "b", missing=("c",)) == 3
    assert models("evaluations", 1, "a", "b", "d", missing=("e",)) == 4
    assert models("rounds", 1, "a", "c", missing=("e",)) == 1  # c alone has not tested it
    assert models("evaluations", 2, "a", "c") == 2
    run.add("masks", {**mask_entry(2), "votes": {"a": 0.5, "b": 0.5}})
    assert run.num_models == 11  # b was sent what it had to score
    assert models("rounds", 2, "a", "b", "c") == 1  # who scored makes the new one itself
    assert run.num_updates == 7


def test_the_first_model_is_not_a_transfer_unless_values_were_sent() -> None:
    run = RunView()
    nothing = {**round_entry(0, [client_row("a"), client_row("b")]), "ledger": []}
    run.add("rounds", nothing)
    assert run.num_models == 0
    run.add("rounds", round_entry(1, [client_row("a"), client_row("b")]))
    assert run.num_models == 2


def test_before_the_first_round_there_is_no_ratio() -> None:
    run = RunView()
    assert run.bytes([], 1000)["up"] == {"values": 0, "dense": 0, "ratio": None}
    assert (
        run.curve.points() == list(run.timeline) == layer_rows(run.layers) == run.clients({}) == []
    )


def test_a_client_row_covers_the_whole_run() -> None:
    run = RunView()
    run.add("rounds", round_entry(0, [client_row("a", work_s=1.0)]))
    run.add("rounds", round_entry(1, [{**client_row("a", work_s=3.0), "training_loss": 0.125}]))
    run.add("rounds", round_entry(2, [], missing=("a",)))
    run.add_bytes(
        [
            {"client": "a", "direction": "up", "message_bytes": "70"},  # as a CSV reader has it
            {"client": "a", "direction": "up", "message_bytes": 30},
            {"client": "", "direction": "down", "message_bytes": 5},
        ]
    )
    (document,) = run.clients({})
    assert document == {
        "client": "a", "selected": 3, "reported": 2, "missed": 1, "samples": 10, "work_s": 2.0,
        "slowest_work_s": 3.0, "upload_s": 0.1, "upload_bytes_per_s": 4000.0, "up_bytes": 100,
        "down_bytes": None, "loss": 0.125,
    }  # fmt: skip


def test_layers_are_those_of_the_newest_mask() -> None:
    run = RunView()
    run.add("masks", mask_entry(1))
    run.add("masks", mask_entry(2))
    assert layer_rows(run.layers) == [
        {"name": "a.weight", "kept": 1, "size": 4, "density": 0.25},
        {"name": "b.weight", "kept": 2, "size": 10, "density": 0.2},
    ]
    assert [mask["epoch"] for mask in run.masks] == [1, 2]


def test_a_point_of_the_curve_has_masks_and_personal_models_if_the_round_has_them() -> None:
    run = RunView()
    moved = {"density": 0.2, "changed": 0.01, "client_density": 0.1, "client_changed": 0.05}
    run.add("rounds", {**round_entry(0, [client_row("a")]), "mask": moved, "personal": 0.5})
    run.add("rounds", round_entry(1, [client_row("a")]))
    first, second = run.curve.points()
    assert (first["mask"], first["personal"]) == (moved, 0.5)
    assert not {"mask", "personal"} & set(second)

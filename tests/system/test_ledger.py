"""The ledger counts every byte: by client and step, across crashes, and as the kernel does."""

import csv
import signal
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssfl.program.exits import ExitCode
from ssfl.server.accounting.ledger_file import COLUMNS
from ssfl.v1 import coordinator_pb2 as pb
from system.federation import ROUNDS, SHARDS, FinishedRun
from system.programs import Coordinator, Programs, until
from system.raw_client import RawClient, chunks_of, manifest_of, sha256, take_part_together
from system.raw_run import RawRun

pytestmark = pytest.mark.system
counting = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counters: Linux only")

Row = dict[str, str]
COUNTS = ("payload_bytes", "message_bytes", "socket_bytes")


def rows_in(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        assert tuple(reader.fieldnames or ()) == COLUMNS
        return list(reader)


def ledger_csv(folder: Path) -> list[Row]:
    (file,) = folder.glob("runs/*/coordinator/ledger.csv")
    return rows_in(file)


def sums(rows: list[Row]) -> dict[tuple[str, str, str], list[int]]:
    """Return payload, message and socket bytes by phase, direction and encoding."""
    total: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        counts = total.setdefault((row["phase"], row["direction"], row["encoding"]), [0, 0, 0])
        for place, name in enumerate(COUNTS):
            counts[place] += int(row[name] or 0)
    return total


def totals(history: dict[str, Any]) -> dict[tuple[str, str, str], list[int]]:
    """Return the same sums from history.json."""
    return {
        (row["phase"], row["direction"], row["encoding"]): [row[name] or 0 for name in COUNTS]
        for row in history["ledger"]
    }


def counted_twice(rows: list[Row]) -> list[tuple[str, ...]]:
    """Return the keys that have more than one row in a step."""
    keys = Counter(tuple(row[name] for name in COLUMNS[:7]) for row in rows if row["step"])
    return [key for key, times in keys.items() if times > 1]


def test_the_rows_add_up_to_the_totals(undisturbed: FinishedRun) -> None:
    rows = ledger_csv(undisturbed.folder)
    assert sums(rows) == totals(undisturbed.history)
    assert counted_twice(rows) == []
    assert {row["run_id"] for row in rows} == {undisturbed.run_id}


def test_every_client_has_its_bytes_in_every_round(undisturbed: FinishedRun) -> None:
    rows = ledger_csv(undisturbed.folder)
    sent = {
        (row["round"], row["client"]): int(row["payload_bytes"])
        for row in rows
        if (row["phase"], row["direction"]) == ("values", "up") and row["encoding"]
    }
    assert sorted(sent) == [(str(n), shard) for n in range(ROUNDS) for shard in SHARDS]
    assert len(set(sent.values())) == 1
    fetched = [row for row in rows if row["phase"] == "values" and not row["step"]]
    assert {row["client"] for row in fetched} == set(SHARDS), "all clients fetched the final model"
    joining = [row for row in rows if not row["step"] and row["phase"] == "control"]
    assert {row["client"] for row in joining} >= set(SHARDS)


def test_no_row_is_lost_or_written_twice_after_kill_9(raw: RawRun) -> None:
    raw.ann.answer(raw.training())  # in round 0, which waits for bob
    raw.coordinator.kill()
    file = raw.coordinator.state_dir / "ledger.csv"
    committed = file.read_bytes()
    assert {row["step"] for row in rows_in(file)} == {"", "1"}, "gathering and scores"
    with file.open("ab") as torn:  # as after a kill while it wrote round 0
        torn.write(b"run,0,2,ann,values,up,values_only,1,1,\nrun,0,2,bo")
    raw.restart()
    raw.finish_honestly()
    ended = stopped(raw.coordinator)
    assert file.read_bytes().startswith(committed)
    rows = ledger_csv(raw.coordinator.folder)
    assert {row["step"] for row in rows} == {"", "1", "2", "3", "4"}, "and two rounds, and a test"
    assert sums(rows) == totals(ended)
    assert counted_twice(rows) == []


def stopped(coordinator: Coordinator) -> dict[str, Any]:
    """Stop a coordinator whose run is finished; return its history."""
    until(lambda: coordinator.status().delivered, "everyone has the model")
    coordinator.signal(signal.SIGTERM)
    assert coordinator.ends() == ExitCode.TERMINATED
    return coordinator.history()


def test_bytes_fetched_after_the_last_commit_survive_kill_9(raw: RawRun) -> None:
    for client in (raw.ann, raw.bob):
        client.join()
    take_part_together(raw.ann, raw.bob)
    until(lambda: raw.coordinator.status().delivered, "both have the model")
    before = message_bytes(raw.coordinator)
    raw.restart()
    after = message_bytes(raw.coordinator)
    assert after["values", "down"] == before["values", "down"] > 0
    assert after["mask", "down"] == before["mask", "down"]


def test_a_coordinator_stopped_in_a_round_loses_no_byte(raw: RawRun) -> None:
    raw.ann.answer(raw.training())
    before = message_bytes(raw.coordinator)
    raw.coordinator.signal(signal.SIGTERM)
    assert raw.coordinator.ends() == ExitCode.TERMINATED
    raw.restart()
    after = message_bytes(raw.coordinator)
    for way in ("up", "down"):
        assert after["values", way] == before["values", way] > 0
    raw.finish_honestly()
    ended = stopped(raw.coordinator)
    assert sums(ledger_csv(raw.coordinator.folder)) == totals(ended)


@counting
def test_status_lists_tcp_bytes_apart_from_message_bytes(raw: RawRun) -> None:
    raw.training()
    entries = raw.coordinator.status().ledger
    carried = [entry for entry in entries if entry.HasField("socket_bytes")]
    assert [(entry.phase, entry.direction) for entry in carried] == [
        *(("connection", "up"), ("connection", "down")),
    ]
    assert all(entry.socket_bytes and not entry.message_bytes for entry in carried)
    assert {"", "dense", "values_only"} < {entry.encoding for entry in entries}


def message_bytes(coordinator: Coordinator) -> Counter[tuple[str, str]]:
    """Return the message bytes of `ssfl status`, by phase and direction."""
    total: Counter[tuple[str, str]] = Counter()
    for entry in coordinator.status().ledger:
        total[entry.phase, entry.direction] += entry.message_bytes
    return total


BIG = (("weight", (1000, 1000), "masked", "ones"),)  # 4 MB per direction and round


def take_part(client: RawClient) -> None:
    """Take part with a big dense model, in chunks of a realistic size."""
    client.join()
    while True:
        got = client.next_task()
        match got.kind:
            case "initialize":
                ones = np.ones(1_000_000, dtype="<f4").tobytes()
                client.upload(client.initial_header(initial_digest=sha256(ones)), [])
            case "train":
                data = client.trained(got)
                client.upload(client.update_header(got, data), chunks_of(data, 1 << 18))
            case "evaluate":
                client.answer(got)
            case _:
                client.leave(pb.LEAVE_REASON_FINISHED)
                return


@counting
def test_message_bytes_agree_with_the_kernel_counters_of_each_client(programs: Programs) -> None:
    coordinator = programs.coordinator(
        "--strategy=fedavg", "--clients=3", "--rounds=2", "--evaluate-every=0", "--exit-when-done"
    )
    names = ("ann", "bob", "cyd")
    clients = [RawClient(coordinator.address, name, manifest=manifest_of(BIG)) for name in names]
    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(take_part, clients))
    for client in clients:
        client.close()
    assert coordinator.ends() == 0
    rows = ledger_csv(programs.folder)
    for name in names:
        for direction in ("up", "down"):
            own = [row for row in rows if (row["client"], row["direction"]) == (name, direction)]
            _, message, socket = (sum(int(row[count] or 0) for row in own) for count in COUNTS)
            assert message > 8_000_000
            assert message <= socket <= 1.01 * message, (name, direction)

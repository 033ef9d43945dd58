"""Coded values between real processes: same digest, fewer bytes, hostile payloads refused."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from grpc import StatusCode

from ssfl.client.coding import read_values
from ssfl.codec import blocks, reference
from ssfl.method.manifest import Manifest
from ssfl.v1 import transfer_pb2 as pb
from system.federation import (
    HELD_TASK,
    RUN,
    SHARDS,
    FinishedRun,
    Hold,
    finish,
    first_gradient_of,
    run_federation,
)
from system.programs import Coordinator, Programs
from system.raw_client import (
    INITIAL,
    KEPT,
    UNMASKED,
    RawClient,
    Received,
    chunks_of,
    expected_values,
    payload_of,
    sha256,
    take_part_together,
)
from system.raw_client import RUN as RAW_RUN
from system.raw_run import RawRun, refused

pytestmark = pytest.mark.system

LOSSY = "--value-type=int8"
INVALID = StatusCode.INVALID_ARGUMENT
ALL = list(range(1, 11))


def encodings(run: FinishedRun, phase: str, direction: str) -> set[str]:
    """Return the encodings of a phase."""
    rows = [row for row in run.history["ledger"] if row["payload_bytes"]]
    return {r["encoding"] for r in rows if (r["phase"], r["direction"]) == (phase, direction)}


def payload_bytes(run: FinishedRun, phase: str, direction: str) -> int:
    rows = run.history["ledger"]
    return sum(
        r["payload_bytes"] for r in rows if (r["phase"], r["direction"]) == (phase, direction)
    )


# -- exact runs


def test_coding_against_a_reference_changes_bytes_and_nothing_else(
    sites: Programs, undisturbed: FinishedRun
) -> None:
    run = run_federation(sites, "--reference-coding=on")
    assert run.digest == undisturbed.digest
    assert encodings(run, "values", "up") == encodings(run, "values", "down") == {"reference"}
    for direction in ("up", "down"):
        coded = payload_bytes(run, "values", direction)
        assert 0 < coded < 0.85 * payload_bytes(undisturbed, "values", direction)


def test_values_are_plain_on_loopback_and_the_encoding_is_logged(undisturbed: FinishedRun) -> None:
    assert encodings(undisturbed, "values", "up") == {"values_only"}
    assert encodings(undisturbed, "values", "down") == {"values_only"}
    log = next(undisturbed.folder.glob("coordinator-*.err")).read_text()
    ready = [line for line in log.splitlines() if "client ready" in line]
    for shard in SHARDS:
        (line,) = [text for text in ready if shard in text]
        assert line.endswith("values=values_only")


# -- lossy runs


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> FinishedRun:
    """The lossy reference run, without faults."""
    folder = tmp_path_factory.mktemp("lossy")
    (folder / "shards").symlink_to(shards)
    programs = Programs(folder)
    try:
        return run_federation(programs, LOSSY)
    finally:
        programs.end_all()


def start(programs: Programs) -> tuple[Coordinator, list[Any], Hold]:
    """Start a lossy run whose last client is blocked in its second round."""
    coordinator = programs.coordinator(*RUN, LOSSY)
    hold = Hold(programs.folder, first_gradient_of(1))
    task = f"--task={HELD_TASK}"
    clients = [programs.client(shard, coordinator, task) for shard in SHARDS[:-1]]
    clients.append(programs.client(SHARDS[-1], coordinator, task, **hold.env))
    hold.reached()
    for shard in SHARDS[:-1]:
        coordinator.waits_for(shard, "reported")
    return coordinator, clients, hold


def test_a_lossy_run_codes_both_directions_and_reports_its_error(
    lossy: FinishedRun, undisturbed: FinishedRun
) -> None:
    assert encodings(lossy, "values", "up") == {"int8"}
    assert encodings(lossy, "values", "down") == {"int8"}
    for direction in ("up", "down"):
        sent = payload_bytes(lossy, "values", direction)
        assert sent < 0.3 * payload_bytes(undisturbed, "values", direction)
    assert lossy.digest != undisturbed.digest
    with next(lossy.folder.glob("runs/*/coordinator/ledger.csv")).open() as file:
        rows = [row for row in csv.DictReader(file) if row["encoding"] == "int8"]
    assert {row["client"] for row in rows} == set(SHARDS)


def test_a_coordinator_killed_in_a_lossy_run_gives_the_same_digest(
    sites: Programs, lossy: FinishedRun
) -> None:
    """After a restart it has no change to send: clients without the base get the whole values."""
    coordinator, clients, hold = start(sites)
    coordinator.kill()
    again = sites.coordinator(*RUN, LOSSY, port=coordinator.port)
    again.says("resumed")
    hold.release()
    assert finish(again, clients).digest == lossy.digest


def test_a_client_killed_in_a_lossy_run_restores_its_residual(
    sites: Programs, lossy: FinishedRun
) -> None:
    coordinator, clients, hold = start(sites)
    clients.pop().kill()
    state_dir = sites.folder / ".ssfl" / "clients" / SHARDS[-1]
    kept = json.loads((state_dir / "memory.json").read_text())["items"]
    assert "coding residual" in kept, "what its first update lost"
    hold.release()
    clients.append(sites.client(SHARDS[-1], coordinator, f"--task={HELD_TASK}"))
    assert finish(coordinator, clients).digest == lossy.digest


# -- an older client


def test_an_older_client_takes_part_in_a_lossy_run_with_newer_ones(sites: Programs) -> None:
    """It knows only the first four encodings and still gets the same model."""
    coordinator = sites.coordinator(*RUN, LOSSY)
    clients = [sites.client(shard, coordinator) for shard in SHARDS[:-1]]
    coordinator.says("model initialized")
    older = RawClient(coordinator.address, "older", num_samples=10, delta=2.0**-10)
    manifest = older.join(manifest_digest=b"", manifest=b"").manifest
    older.manifest = manifest
    size = Manifest.from_json(manifest).num_masked
    older.scores = lambda: (np.arange(size) % 97).astype(np.float32)
    older.join()
    values = older.take_part()
    older.close()
    run = finish(coordinator, clients)
    assert sha256(values.tobytes()).hex() == run.digest
    facts = [fact for fact in coordinator.facts("UploadAccepted") if fact["digest"]]
    last = {fact["client"]: fact["report"]["encoding"] for fact in facts}
    assert last == {SHARDS[0]: "int8", SHARDS[1]: "int8", "older": "values_only"}


# -- hostile payloads

COUNT = KEPT + UNMASKED


def coded(data: bytes, encoding: pb.Encoding = pb.ENCODING_REFERENCE, **changes: Any) -> Any:
    """Announce a coded payload; `changes` falsify the announcement."""
    payload = payload_of(data, encoding)
    for name, value in changes.items():
        setattr(payload, name, value)
    return payload


def section(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def bombs() -> dict[str, bytes]:
    huge = zstandard.ZstdCompressor().compress(bytes(1 << 26))  # 64 MiB of zeros
    stated = bytes.fromhex("28b52ffde0") + (COUNT).to_bytes(8, "little")
    block = bytes.fromhex("020010") + b"\0"  # a run of 128 KiB
    raw = section(bytes(COUNT)) * 4
    return {
        "noise": b"\xff" * 700,
        "zeros": bytes(700),
        "64 MiB in a frame": (section(huge) * 4)[: 4 * COUNT],
        "a frame that holds more than it states": section(stated + block * 30),
        "a frame that states 2^62 bytes": section(
            bytes.fromhex("28b52ffde0") + (1 << 62).to_bytes(8, "little") + block
        ),
        "a plane too many": section(bytes(0)) * 5,
        "a plane missing": raw[: 3 * (COUNT + 4)],
        "a section longer than its plane": section(bytes(COUNT + 1)) + raw[: 3 * COUNT],
    }


def test_hostile_updates_are_refused_and_the_run_continues(raw: RawRun) -> None:
    got = raw.training()
    for data in bombs().values():
        assert len(data) <= 4 * COUNT + 16
        header = raw.ann.update_header(got, b"", values=coded(data))
        with refused(INVALID, "bad_payload"):
            raw.ann.upload(header, chunks_of(data))
    for num_bytes in (0, 4 * COUNT + 17, 2**40, 2**64 - 1):
        header = raw.ann.update_header(got, b"", values=coded(b"", num_bytes=num_bytes))
        with refused(INVALID, "invalid_request", str(4 * COUNT + 16)):
            raw.ann.upload(header, [])
    for encoding in (pb.ENCODING_INT8, pb.ENCODING_SCORES, pb.ENCODING_BITMASK_SORTED):
        header = raw.ann.update_header(got, b"", values=coded(bytes(40), encoding))
        with refused(INVALID, "invalid_request", "or ENCODING_REFERENCE"):
            raw.ann.upload(header, chunks_of(bytes(40)))
    assert list((raw.coordinator.state_dir / "spool").glob("*/ann.*")) == []
    raw.finish_honestly()


def test_bad_values_in_a_coded_update_are_refused_with_their_tensor(raw: RawRun) -> None:
    got = raw.training()
    base = np.frombuffer(got.data[-got.task.train.base.num_bytes :], dtype="<f4")
    for bad in (np.nan, np.inf, 2000.0):
        values = base.copy()
        values[200] = bad
        data = bytes(blocks.encode(reference.CODE, values, None))
        header = raw.ann.update_header(got, b"", values=coded(data))
        with refused(INVALID, "bad_values", "ann", "first.bias"):
            raw.ann.upload(header, chunks_of(data))
    other = coded(data, reference_digest=bytes(32))
    with refused(StatusCode.FAILED_PRECONDITION, "stale_base", "coded against other values"):
        raw.ann.upload(raw.ann.update_header(got, b"", values=other), chunks_of(data))
    raw.finish_honestly()


def test_hostile_scores_are_refused_and_the_run_continues(raw: RawRun) -> None:
    got = raw.scoring()
    bad = {
        "noise": b"\xff" * 500,
        "beyond floats": b"\x00" + (254).to_bytes(2, "little") + section(b"\xff" * 800),
        "no end": b"\x03\x01\x00" + section(b"\x01" * 800) + b"\0",
        "eight mantissa bits": b"\x08\x01\x00" + section(bytes(800)),
    }
    for data in bad.values():
        scores = coded(data, pb.ENCODING_SCORES)
        expected = "bad_payload" if len(data) <= 3 + 804 else "invalid_request"
        with refused(INVALID, expected):
            raw.ann.upload(raw.ann.scores_header(got, b"", scores=scores), chunks_of(data))
    raw.finish_honestly()


class CodedClient(RawClient):
    """A raw client that knows every encoding and holds the last base it received."""

    base = INITIAL[:0]

    def asks(self) -> Received:
        """Ask for a task as a client that holds a base; keep the base of the response."""
        held = sha256(self.base.tobytes()) if self.base.size else b""
        got = self.next_task(base_digest=held)
        work = getattr(got.task, got.kind)
        if work.HasField("base"):
            data = got.data[-work.base.num_bytes :]
            known = {held: self.base} if held else {}
            self.base = read_values(memoryview(data), work.base, COUNT, known)
        assert sha256(self.base.tobytes()) == work.base_digest
        return got

    def trained(self, got: Received) -> bytes:
        values = self.base + self.delta
        if got.task.train.update_encoding == pb.ENCODING_VALUES_ONLY:
            return values.tobytes()
        return bytes(blocks.encode(reference.CODE, values, self.base))

    def update_header(self, got: Received, data: bytes, **changes: Any) -> Any:
        work = got.task.train
        against = work.base_digest if work.update_encoding == pb.ENCODING_REFERENCE else b""
        values = coded(data, work.update_encoding, reference_digest=against)
        return super().update_header(got, data, **({"values": values} | changes))


@pytest.mark.parametrize("coding", ["on", "off"])
def test_an_older_client_and_a_new_one_agree(programs: Programs, coding: str) -> None:
    """Both end with the expected model, with and without reference coding."""
    run = RawRun(programs, programs.coordinator(*RAW_RUN, f"--reference-coding={coding}"))
    eve = CodedClient(run.coordinator.address, "eve", num_samples=30, delta=1.0)
    run.ann.join()
    eve.join(encodings=ALL)
    run.ann.answer(run.ann.next_task())
    got = eve.next_task()
    assert got.task.score.report_encoding == pb.ENCODING_SCORES
    eve.answer(got)  # exact scores are accepted, too
    run.ann.answer(run.ann.next_task())
    encoding = pb.ENCODING_REFERENCE if coding == "on" else pb.ENCODING_VALUES_ONLY
    for round_number in range(2):
        held = sha256(eve.base.tobytes()) if round_number and coding == "on" else b""
        got = eve.asks()
        work = got.task.train
        assert (work.round_number, work.update_encoding) == (round_number, encoding)
        assert (work.base.encoding, work.base.reference_digest) == (encoding, held)
        assert eve.answer(got) == pb.OUTCOME_ACCEPTED
        assert run.ann.answer(run.ann.next_task()) == pb.OUTCOME_ACCEPTED
    eve.answer(eve.asks())  # the last evaluation
    (final,) = take_part_together(run.ann)
    assert eve.asks().kind == "finish"
    expected = expected_values((run.ann, eve))
    assert np.array_equal(final, expected) and np.array_equal(eve.base, expected)
    eve.close()
    run.close()

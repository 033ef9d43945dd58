"""Hostile clients in an honest federation, which ends with the model of an undisturbed one.

Each test starts one coordinator. `ann` and `bob` are honest (raw_run.py, expected result); `eve`
and others are not. The refusals are those of docs/limits.md.
"""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2
from system.programs import Programs, until
from system.raw_client import (
    RUN,
    TIMEOUT_S,
    RawClient,
    chunks_of,
    expected_mask,
    expected_values,
    manifest_of,
    payload_of,
    take_part_together,
)
from system.raw_run import RawRun, refused

pytestmark = pytest.mark.system

PRECONDITION, EXHAUSTED = StatusCode.FAILED_PRECONDITION, StatusCode.RESOURCE_EXHAUSTED


@contextmanager
def raw_run(programs: Programs, *flags: str) -> Iterator[RawRun]:
    """A federation of two honest clients, with settings of its own."""
    run = RawRun(programs, programs.coordinator(*RUN, *flags))
    try:
        yield run
    finally:
        run.close()


def refusals(run: RawRun) -> dict[tuple[str, str], int]:
    """Return the refusals of `ssfl status`."""
    rows = run.coordinator.status().refusals
    return {(refusal.client_id, refusal.reason): refusal.count for refusal in rows}


def resident_mb(run: RawRun) -> float:
    """Return the coordinator's resident memory."""
    status = Path(f"/proc/{run.coordinator.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


# -- slow uploads


class SlowUpload:
    """An upload that sends just enough bytes, just in time, until it is dropped."""

    def __init__(self, run: RawRun, name: str, got: Any, data: bytes) -> None:
        self.client = run.client(name)
        self.client.join()
        self.over = threading.Event()
        self.granted = threading.Event()
        self.reasons: list[str] = []
        self._header = self.client.update_header(got, data)
        self._chunks = chunks_of(data)
        self.thread = threading.Thread(target=self._hold, daemon=True)
        self.thread.start()

    def _hold(self) -> None:
        """Ask for a slot, send a few bytes now and then, and ask again when the slot is lost."""
        while not self.over.is_set():
            call = self.client.open_upload(self._header, self._dribble())
            with suppress(grpc.RpcError):
                for answer in call:
                    if answer.WhichOneof("part") == "grant":
                        self.granted.set()
            self.reasons.append(dict(call.trailing_metadata() or ()).get("ssfl-reason", ""))

    def _dribble(self) -> Iterator[transfer_pb2.Chunk]:
        for chunk in self._chunks[:-1]:
            if self.over.wait(0.2):
                return
            yield chunk
        self.over.wait()


def test_slow_uploads_in_every_slot_do_not_block_an_honest_client(programs: Programs) -> None:
    """Two slots and four slow uploads by members of the cohort."""
    names = [f"loris-{number}" for number in range(4)]
    flags = ("--upload-slots=2", "--no-progress-s=1", "--clients=6")
    run = RawRun(programs, programs.coordinator(*RUN[1:], *flags))
    with ExitStack() as ends:
        ends.callback(run.close)
        others = [run.client(name) for name in names]
        clients = [run.ann, run.bob, *others]
        for client in clients:
            client.join()
        run.ann.answer(run.ann.next_task())
        for client in clients:
            client.answer(client.next_task())  # all vote
        got = run.ann.next_task()
        mine, theirs = run.ann.trained(got), run.bob.trained(run.bob.next_task())
        slow_uploads = [SlowUpload(run, name, got, mine) for name in names]
        for upload in slow_uploads:
            ends.callback(upload.over.set)
        until(
            lambda: sum(upload.granted.is_set() for upload in slow_uploads) >= 2,
            "slow uploads have the slots",
        )
        for client, data in ((run.ann, mine), (run.bob, theirs)):
            answers = client.upload(client.update_header(got, data), chunks_of(data))
            assert answers[-1].receipt.outcome == transfer_pb2.OUTCOME_ACCEPTED
        until(
            lambda: (
                {"slot_yielded", "no_progress"}
                & {r for upload in slow_uploads for r in upload.reasons}
            ),
            "a slow upload is dropped",
        )
        reasons = {reason for _, reason in refusals(run)}
        assert reasons & {"slot_yielded", "no_progress"}
        for upload in slow_uploads:
            upload.over.set()
            upload.client.leave(pb.LEAVE_REASON_STOPPING)
        for final in take_part_together(run.ann, run.bob):
            assert np.array_equal(final, expected_values((run.ann, run.bob)))


# -- floods


def test_floods_of_connections_streams_and_metadata_do_not_affect_the_round(
    programs: Programs,
) -> None:
    with raw_run(programs, "--max-connections=40") as run, ExitStack() as open_sockets:
        run.training()
        address = ("127.0.0.1", run.coordinator.port)
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
        closed = 0
        for _ in range(200):
            wire = open_sockets.enter_context(socket.create_connection(address))
            wire.settimeout(10.0)
            with suppress(ConnectionError):
                wire.sendall(preface)
                closed += wire.recv(1) == b""
        assert closed >= 150, "connections beyond the limit are closed"
        open_sockets.close()
        eve = run.client("eve")
        until(lambda: _reaches(eve), "there is room again")
        with refused(EXHAUSTED, "", "metadata"):
            eve.stub.Join(pb.JoinRequest(), metadata=[("x", "y" * 1_000_000)], timeout=TIMEOUT_S)
        polls = [
            eve.stub.NextTask(pb.NextTaskRequest(caller=eve.caller), timeout=TIMEOUT_S)
            for _ in range(200)
        ]
        ended = [_reason_of_end(poll) for poll in polls[16:64]]
        assert set(ended) == {"too_many_calls"}
        for poll in polls:
            poll.cancel()
        again = run.client("eve")  # on a new connection, without her open calls
        again.caller = eve.caller
        again.leave(pb.LEAVE_REASON_STOPPING)
        before = resident_mb(run)
        run.finish_honestly()
        assert refusals(run)["eve", "too_many_calls"] >= 48
        assert resident_mb(run) < before + 50


def _reaches(client: RawClient) -> bool:
    try:
        client.join()
    except grpc.RpcError as error:
        assert error.code() is StatusCode.UNAVAILABLE
        return False
    return True


def _reason_of_end(call: Any) -> str:
    with suppress(grpc.RpcError):
        for _ in call:
            pass
    return str(dict(call.trailing_metadata() or ()).get("ssfl-reason", ""))


def test_floods_of_joins_are_refused_and_leave_no_trace(programs: Programs) -> None:
    with raw_run(programs, "--max-clients=50") as run:
        run.training()
        eve = run.client("eve")
        answers: list[str] = []
        for _ in range(60):
            try:
                eve.join()
                answers.append("in")
            except grpc.RpcError as error:
                assert error.code() is EXHAUSTED
                answers.append(dict(error.trailing_metadata())["ssfl-reason"])
        assert set(answers) == {"in", "too_many_joins"}
        facts = run.coordinator.facts("ClientJoined")
        assert sum(fact["client"] == "eve" for fact in facts) == answers.count("in") < 40
        full = 0
        with ThreadPoolExecutor(4) as pool:
            full = sum(pool.map(lambda number: _is_full(run, number), range(200)))
        assert full >= 150
        assert len(run.coordinator.status().clients) == 50
        counts = refusals(run)
        assert counts["eve", "too_many_joins"] == answers.count("too_many_joins")
        assert counts["others", "run_full"] + 50 >= full, "names of strangers are bounded"
        log = run.coordinator.err
        assert log.count("too_many_joins") <= 3 and log.count("--max-clients") <= 60
        eve.leave(pb.LEAVE_REASON_STOPPING)
        run.finish_honestly()


def _is_full(run: RawRun, number: int) -> bool:
    """Join under a new name without a model, so that the run does not wait for it."""
    stranger = RawClient(run.coordinator.address, f"stranger-{number}")
    try:
        stranger.join(manifest_digest=b"", manifest=b"")
    except grpc.RpcError as error:
        return bool(dict(error.trailing_metadata())["ssfl-reason"] == "run_full")
    finally:
        stranger.close()
    return False


# -- false claims


def test_lying_sample_counts_are_refused_or_clipped(programs: Programs) -> None:
    with raw_run(programs, "--max-samples=30") as run:
        run.training()
        eve = run.client("eve", num_samples=2**31)
        with refused(PRECONDITION, "too_many_samples", "eve", "2147483648", "--max-samples"):
            eve.join()
        assert refusals(run)["eve", "too_many_samples"] == 1
        run.finish_honestly()


def test_a_clipped_client_weighs_what_the_run_allows(programs: Programs) -> None:
    """Bob claims two billion samples and gets weight 30, as in the other tests of this file."""
    with raw_run(programs, "--max-samples=30", "--samples-over-max=clip") as run:
        expected = expected_values((run.ann, run.bob))
        scores = run.bob.scores()
        run.bob.num_samples = 2**31
        run.bob.scores = lambda: scores
        run.ann.join()
        run.bob.join()
        for final in take_part_together(run.ann, run.bob):
            assert np.array_equal(final, expected)
        started = run.coordinator.facts("StepStarted")
        assert {fact["cohort"]["bob"] for fact in started} == {30}


def test_an_update_beyond_max_update_norm_is_clipped_and_reported(programs: Programs) -> None:
    """Eve's delta is huge; clipped, it moves the model by at most the limit."""
    with raw_run(programs, "--max-update-norm=1", "--clients=3") as run:
        eve = run.client("eve", num_samples=40, delta=1000.0)
        for client in (run.ann, run.bob, eve):
            client.join()
        run.ann.answer(run.ann.next_task())
        take_part_together(run.ann, run.bob, eve)
        run.coordinator.says("results written")
        rounds = run.coordinator.history()["rounds"]
        clipped = {row["client"]: row["clipped"] for row in rounds[0]["clients"]}
        assert clipped["eve"] == pytest.approx(1000 * np.sqrt(230))
        assert run.ann.final is not None
        start = np.r_[np.ones(200), np.zeros(30)]
        moved = float(np.linalg.norm(run.ann.final - start))
        assert moved <= 2 * 1.0 * (1 + 1e-6), "two rounds, each of length one at most"
        run.coordinator.says("clipped to --max-update-norm")


def test_absurd_scores_do_not_count(programs: Programs) -> None:
    """Eve's scores of 1e30 would decide the mask alone; they are excluded."""
    with raw_run(programs, "--clients=3") as run:
        eve = run.client("eve", num_samples=10, delta=0.5)
        eve.scores = lambda: np.r_[np.zeros(799), 1e30].astype(np.float32)
        for client in (run.ann, run.bob, eve):
            client.join()
        run.ann.answer(run.ann.next_task())
        take_part_together(run.ann, run.bob, eve)
        assert run.ann.mask_digest == expected_mask((run.ann, run.bob))
        assert refusals(run)["eve", "outlier"] == 1
        run.coordinator.says("results written")
        history = run.coordinator.history()
        assert history["not_voted"] == ["eve"]
        assert [row["client"] for row in history["votes"]] == ["ann", "bob"]


def test_a_huge_model_is_refused_without_using_memory(programs: Programs) -> None:
    bomb = manifest_of([("w", (1 << 15, 1 << 15), "masked", "ones")])
    with raw_run(programs, "--max-model-values=1000") as run:
        eve = run.client("eve", manifest=bomb)
        eve.join()
        before = resident_mb(run)
        for _ in range(5):
            with refused(PRECONDITION, "model_unusable", "1073741824", "--max-model-values"):
                eve.upload(eve.initial_header(initial_digest=bytes(32)), [])
        assert resident_mb(run) < before + 20
        eve.leave(pb.LEAVE_REASON_STOPPING)
        run.ann.join()
        run.bob.join()
        run.finish_honestly()


def test_only_the_client_that_was_asked_can_describe_the_model(
    programs: Programs,
) -> None:
    """Otherwise three small requests would keep the coordinator busy for minutes."""
    large = manifest_of([("w", (1 << 13, 1 << 14), "masked", "normal")])  # 134 million values
    with raw_run(programs) as run:
        run.ann.join()
        before = resident_mb(run)
        for name in ("eve", "mallory", "trudy"):
            hostile = run.client(name, manifest=large)
            hostile.join()
            with refused(PRECONDITION, "join_again", "another client was asked"):
                hostile.upload(hostile.initial_header(initial_digest=bytes(32)), [])
            hostile.leave(pb.LEAVE_REASON_STOPPING)
        assert resident_mb(run) < before + 20
        run.bob.join()
        run.finish_honestly()


def test_broken_uploads_do_not_affect_memory_spool_or_round(
    programs: Programs,
) -> None:
    """NaN, Inf, huge values, wrong lengths and wrong digests, a hundred times each."""
    with raw_run(programs) as run:
        got = run.training()
        honest = np.frombuffer(run.ann.trained(got), dtype="<f4")
        before = resident_mb(run)
        bads = islice(cycle((np.nan, np.inf, -np.inf, 3e38, -1025.0)), 100)
        for number, bad in enumerate(bads):
            values = honest.copy()
            values[number] = bad
            data = values.tobytes()
            with refused(StatusCode.INVALID_ARGUMENT, "bad_values", "ann"):
                run.ann.upload(run.ann.update_header(got, data), chunks_of(data))
        data = honest.tobytes()
        lie = payload_of(data, transfer_pb2.ENCODING_VALUES_ONLY)
        lie.digest = bytes(32)
        with refused(StatusCode.DATA_LOSS, "digest_mismatch"):
            run.ann.upload(run.ann.update_header(got, data, values=lie), chunks_of(data))
        for wrong in (data[4:], data + data):
            with refused(StatusCode.INVALID_ARGUMENT, "invalid_request"):
                run.ann.upload(run.ann.update_header(got, wrong), chunks_of(wrong))
        with refused(StatusCode.INVALID_ARGUMENT, "bad_payload"):
            run.ann.upload(run.ann.update_header(got, data), chunks_of(data)[:-1])
        spool = run.coordinator.state_dir / "spool"
        left = [path for path in spool.rglob("*") if path.is_file()]
        assert len(left) <= 1, "at most the half upload, to be resumed"
        assert resident_mb(run) < before + 20
        counts = refusals(run)
        assert counts["ann", "bad_values"] == 100
        assert run.coordinator.err.count("reason=bad_values") <= 2, "a flood does not fill the log"
        run.finish_honestly()

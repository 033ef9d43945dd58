"""Many clients in one process, without torch, that survive any fault.

A light client reacts to faults as `ssfl-client` does: it joins again, resumes a broken download,
and sends a finished answer from the granted byte on, before anything else. Its answers are whole
numbers and quarters, so every sum of them is exact: a federation of such clients ends with the
model of an undisturbed one, whatever happens to it.

A client records grants, receipts and joins in `events`, by step.
"""

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from benchmarks.async_client import MUST_READ, AsyncClient, Broken, ReceivedTask
from benchmarks.workload import digest

from ssfl.method.manifest import Manifest
from ssfl.v1 import transfer_pb2

Vector = npt.NDArray[np.float32]
PAUSE_S = 0.05  # before it joins again
SILENCE_S = 60.0  # the coordinator answers a long poll every 15 s
UNARY_S = 20.0
# A client with the final model stops repeating its Leave call after this time: a coordinator that
# recorded the first one, and died before it answered, may end without hearing it again.
GOODBYE_S = 5.0
_TRY_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DATA_LOSS,
)
_RESYNC = ("unknown_client", "join_again", "stale_base", "stale_mask")
# Details of grpc.aio's own error for a write into a connection that is cut. Internal errors of the
# coordinator have a reason and other details, and are raised.
_CUT_WHILE_WRITING = "Internal error from Core"
# The last one is needed for payloads of a refreshed mask. On loopback the base is not coded for a
# client that does not report the initial weights.
ENCODINGS = (*MUST_READ, transfer_pb2.ENCODING_REFERENCE)
_RECONNECT = [  # as soon as the coordinator is back
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # the deadline of one attempt
]


@dataclass
class PendingUpload:
    """A finished upload, kept until its receipt."""

    step: int
    header: Any
    payload: bytes
    granted: bool  # the task came with a slot: the first attempt does not wait for a grant


@dataclass(frozen=True)
class ClientEvent:
    """An event that a client observed."""

    what: str  # join, grant, receipt, or the kind of a task
    step: int = 0
    number: int = 0  # the granted offset, the outcome


@dataclass
class LightClient:
    """One client; its answers follow from `number`."""

    address: str
    number: int
    manifest: Manifest
    initial: Vector
    chunk_bytes: int = 1 << 16
    events: list[ClientEvent] = field(default_factory=list)
    sent_bytes: dict[int, int] = field(default_factory=dict)  # payload bytes by step
    final_digest: bytes = b""

    def __post_init__(self) -> None:
        self.client_id = f"client_{self.number:03d}"
        self.num_samples = 1 + self.number % 7
        self._answer: PendingUpload | None = None
        self._base = b""
        self._patient_until_s = 0.0

    async def take_part(self) -> None:
        """Take part until the end of the run, despite faults."""
        client = AsyncClient(
            self.address,
            self.client_id,
            self.num_samples,
            self.manifest,
            ENCODINGS,
            options=_RECONNECT,
            chunk_bytes=self.chunk_bytes,
            silence_s=SILENCE_S,
            unary_s=UNARY_S,
        )
        try:
            while True:
                try:
                    await client.join()
                    self.events.append(ClientEvent("join"))
                    await self._work(client)
                    return
                except (grpc.RpcError, Broken, TimeoutError) as error:
                    self._recover_from(error)
                    if self.final_digest and time.monotonic() > self._patient_until_s:
                        return
                    await asyncio.sleep(PAUSE_S)
        finally:
            await client.close()

    def events_of(self, what: str) -> list[ClientEvent]:
        """Return the events of one kind."""
        return [event for event in self.events if event.what == what]

    def _recover_from(self, error: Exception) -> None:
        """Continue after errors that the agent survives; raise others."""
        if isinstance(error, grpc.RpcError) and error.code() not in _TRY_AGAIN:
            reason = dict(error.trailing_metadata() or ()).get("ssfl-reason", "")
            if not reason and error.details() == _CUT_WHILE_WRITING:
                return
            if reason not in _RESYNC:
                raise error
            self._answer = None

    async def _work(self, client: AsyncClient) -> None:
        while True:
            # The long poll is opened before the upload, as in `ssfl-client`.
            poll = client.ask(finished_step=self._answer.step if self._answer else 0)
            try:
                await self._send_answer(client)
                task = await client.receive(poll)
            finally:
                poll.cancel()
            self.events.append(ClientEvent(task.kind, task.message.step))
            if task.kind in ("train", "evaluate", "finish"):
                self._store_model(task)
            match task.kind:
                case "initialize":
                    header = client.initial_header(digest(self.initial))
                    await self._upload(client, PendingUpload(0, header, b"", granted=False))
                case "score":
                    self._score(client, task)
                case "train":
                    self._train(client, task)
                case "evaluate":
                    await client.evaluation(task)
                case "finish":
                    await self._finish(client)
                    return
                case _:
                    raise AssertionError(f"an unexpected task: {task.kind}")

    def _store_model(self, task: ReceivedTask) -> None:
        self._base = task.parts.get("base", self._base)
        if hashlib.sha256(self._base).digest() != task.work.base_digest:
            raise AssertionError(f"{self.client_id}: the base is not the one that the task names")

    def _score(self, client: AsyncClient, task: ReceivedTask) -> None:
        """Prepare scores: whole numbers that differ by client and mask."""
        places = np.arange(self.manifest.num_masked)
        scores = places * (self.number + 3 + 11 * task.work.scoring_epoch) % 997
        data = scores.astype("<f4").tobytes()
        header = client.scores_header(task, data)
        self._answer = PendingUpload(task.message.step, header, data, granted=False)

    def _train(self, client: AsyncClient, task: ReceivedTask) -> None:
        """Prepare an update: the base plus quarters that differ by client and round."""
        work = task.work
        base = np.frombuffer(self._base, dtype="<f4")
        delta = np.float32(0.25 * ((7 * self.number + 13 * work.round_number) % 17 - 8))
        data = (base + delta).astype("<f4").tobytes()
        header = client.update_header(task, data)
        self._answer = PendingUpload(task.message.step, header, data, granted=work.upload_granted)

    async def _finish(self, client: AsyncClient) -> None:
        if not self.final_digest:
            self.final_digest = hashlib.sha256(self._base).digest()
            self._patient_until_s = time.monotonic() + GOODBYE_S
        await client.leave()

    async def _send_answer(self, client: AsyncClient) -> None:
        if self._answer is not None:
            await self._upload(client, self._answer)
            self._answer = None

    async def _upload(self, client: AsyncClient, answer: PendingUpload) -> None:
        """Upload an answer; record grants, bytes and receipt, even if it fails."""
        granted, answer.granted = answer.granted, False  # a retry continues from a grant
        outcome = None
        try:
            outcome = await client.upload(answer.header, answer.payload, granted=granted)
        finally:
            sent = client.sent
            self.events += [ClientEvent("grant", answer.step, offset) for offset in sent.grants]
            if sent.payload_bytes:
                before = self.sent_bytes.get(answer.step, 0)
                self.sent_bytes[answer.step] = before + sent.payload_bytes
            if outcome is not None:
                self.events.append(ClientEvent("receipt", answer.step, outcome))

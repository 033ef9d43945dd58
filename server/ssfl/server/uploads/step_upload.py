"""An upload to a step of the run: the common part of scores and updates."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ssfl.durable.failpoints import failpoint
from ssfl.method.model_state import ModelState
from ssfl.server.accounting.ledger import encoding_word
from ssfl.server.errors import InvalidRequest, UpdateConflict
from ssfl.server.history.counters import ProcessCounters
from ssfl.server.run import events
from ssfl.server.run.events import Event, Reply
from ssfl.server.run.machine import late_reply
from ssfl.server.run.state import Member, RunState, Step
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.upload_files import Block, PartialUpload
from ssfl.server.uploads.client_models import ClientModels
from ssfl.server.uploads.verify import BlockCheck, VerifiedUpload, verify_coded, verify_plain
from ssfl.strategies.contract import ClientId, Work
from ssfl.v1 import transfer_pb2

PLAIN = (transfer_pb2.ENCODING_DENSE, transfer_pb2.ENCODING_VALUES_ONLY)  # bytes are values
_OUTCOMES = {
    Reply.ACCEPTED: transfer_pb2.OUTCOME_ACCEPTED,
    Reply.ALREADY_ACCEPTED: transfer_pb2.OUTCOME_ALREADY_ACCEPTED,
    Reply.STEP_CLOSED: transfer_pb2.OUTCOME_STEP_CLOSED,
}


def outcome_of(reply: Reply) -> transfer_pb2.Outcome:
    """Return the outcome for a reply of the run; raise UpdateConflict for a conflict."""
    if reply is Reply.CONFLICT:
        raise UpdateConflict("other bytes of this client were accepted in this step")
    return _OUTCOMES[reply]


def receipt_of(reply: Reply) -> transfer_pb2.Receipt:
    """Return the receipt that ends an upload."""
    return transfer_pb2.Receipt(outcome=outcome_of(reply))


class Run(Protocol):
    """The run as an upload sees it: loop.run_loop.RunLoop."""

    state: RunState
    clock: Callable[[], float]

    async def current_model(self) -> ModelState | None: ...
    async def post(self, event: Event) -> Reply: ...


@dataclass(frozen=True, slots=True)
class UploadServices:
    """The parts of the coordinator that uploads to steps use."""

    run: Run
    spool: Spool
    counters: ProcessCounters
    task_times: Callable[[ClientId, int, float, float], dict[str, float]]  # of presence
    models: ClientModels

    def late_receipt(
        self, step: int, member: Member, payload: transfer_pb2.Payload
    ) -> transfer_pb2.Receipt:
        """Return the receipt for an upload to a step that has ended; it may have counted before."""
        reply = late_reply(self.run.state, step, member.client, payload.digest.hex())
        if reply is Reply.STEP_CLOSED:
            self.counters.late += 1
        return receipt_of(reply)


def open_step(state: RunState, number: int, work: Work, member: Member) -> Step | None:
    """Return the step that an answer is for; None if it closed without this client.

    An upload counts with the weight that the step began with. The sample count in its header may
    differ: the site's data may have changed since the last Join.
    """
    step = state.step
    if step is None or step.number != number or step.work is not work:
        return None
    if member.client not in step.cohort:
        raise InvalidRequest(f"{member.client} has no task in this step")
    if step.closed is not None and member.client not in step.uploads:
        return None
    return step


class StepUpload(ABC):
    """An upload that was admitted to a step; subclasses decode its values."""

    phase = ""  # in the ledger

    def __init__(
        self,
        services: UploadServices,
        member: Member,
        step: Step,
        payload: transfer_pb2.Payload,
        report: dict[str, Any],
        check: BlockCheck,
        count: int,
    ) -> None:
        """Take the `report` of the client's work, for the history, and its number of values."""
        self.client = member.client
        self.step = step.number
        self.payload = payload
        self.sections: tuple[tuple[str, str, int], ...] = (
            (self.phase, encoding_word(payload.encoding), payload.num_bytes),
        )
        self._services = services
        self._member = member
        self._work = step.work
        self._report = report
        self._check = check
        self._count = count

    def receipt_if_unwanted(self) -> transfer_pb2.Receipt | None:
        """Return the receipt if the step no longer wants this upload; None while it does."""
        state = self._services.run.state
        step = open_step(state, self.step, self._work, self._member)
        if step is None:
            return self._services.late_receipt(self.step, self._member, self.payload)
        before = step.uploads.get(self.client)
        if before is None:
            return None
        same = before.digest == self.payload.digest.hex()
        return receipt_of(Reply.ALREADY_ACCEPTED if same else Reply.CONFLICT)

    def received(self, num_bytes: int, seconds: float) -> None:
        """Record that the last byte has arrived."""
        run = self._services.run
        times = self._services.task_times(
            self.client, self.step, run.state.step_began_s, run.clock()
        )
        self._report = {
            **self._report,
            "encoding": encoding_word(self.payload.encoding),
            "upload_bytes": num_bytes,
            "upload_s": seconds,
            **times,
        }

    def verify(self, part: PartialUpload) -> VerifiedUpload:
        """Return the verified upload; runs on a worker thread."""
        if self.payload.encoding in PLAIN:
            return verify_plain(part, self.payload.digest, self._count, self._check)
        return verify_coded(part, self.payload.digest, self._decoded(part.view()), self._check)

    @abstractmethod
    def _decoded(self, data: memoryview) -> Iterator[Block]:
        """Yield the values of a coded payload in blocks."""

    async def commit(self, part: PartialUpload, found: VerifiedUpload) -> transfer_pb2.Receipt:
        """Store a verified upload and post it. After a crash, both or neither count."""
        services = self._services
        await asyncio.to_thread(services.spool.keep, part, found.values)
        event = events.UploadReceived(
            self.step, self.client, self.payload.digest.hex(), found.largest,
            {**self._report, **found.report}, found.digest.hex(), found.own_mask.hex(),
            found.numbers,
        )  # fmt: skip
        reply = await services.run.post(event)
        if reply is Reply.STEP_CLOSED:
            services.counters.late += 1
        if reply in (Reply.CONFLICT, Reply.STEP_CLOSED):  # it does not count: free its space
            services.spool.forget(self.step, self.client, self.payload.digest)
        failpoint("ack.upload")
        return receipt_of(reply)

"""What every call shares: who speaks, what is counted, how a reply reads on the wire."""

import asyncio
from typing import Any

from ssfl.method.model_state import ModelState
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server.accounting.ledger import Direction
from ssfl.server.broadcast.payloads import Broadcast
from ssfl.server.broadcast.per_client import Broadcasts
from ssfl.server.errors import InvalidRequest, UpdateConflict
from ssfl.server.loop.presence import Sessions
from ssfl.server.loop.run_loop import Conductor
from ssfl.server.rpc import request_checks
from ssfl.server.rpc.session_numbers import SessionNumbers
from ssfl.server.run import events
from ssfl.server.run.events import Reply
from ssfl.server.run.state import Member, Step
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2, update_pb2

_OUTCOMES = {
    Reply.ACCEPTED: transfer_pb2.OUTCOME_ACCEPTED,
    Reply.ALREADY_ACCEPTED: transfer_pb2.OUTCOME_ALREADY_ACCEPTED,
    Reply.STEP_CLOSED: transfer_pb2.OUTCOME_STEP_CLOSED,
}


class Desk:
    """The run as a call sees it."""

    def __init__(
        self,
        conductor: Conductor,
        sessions: Sessions,
        numbers: SessionNumbers,
        *,
        names_proven: bool = False,  # by certificates: IdentityInterceptor compares every call
    ) -> None:
        self.conductor = conductor
        self.sessions = sessions
        self.numbers = numbers
        self.names_proven = names_proven
        self.ledger = conductor.ledger
        self.broadcasts = Broadcasts(conductor.state.settings, conductor.take_earlier)

    def check(self, caller: pb.Caller, *, may_have_left: bool = False) -> Member:
        """Return the member that calls; raise the refusal that says how to get in again."""
        state = self.conductor.state
        return request_checks.check_caller(caller, state, self.numbers, may_have_left=may_have_left)

    async def member(
        self, caller: pb.Caller, peer: str = "", *, may_have_left: bool = False
    ) -> Member:
        """Return the member that calls; record the sign of life and the connection."""
        member = self.check(caller, may_have_left=may_have_left)
        self.speaks(member.client, peer)
        self.sessions.heard(member.client, self.conductor.clock())
        if member.client in self.conductor.state.lost:
            await self.conductor.post(events.Returned(member.client))
        return member

    def open_step(self, number: int, work: Work, member: Member) -> Step | None:
        """Return the step an answer is for; None if it closed without this client."""
        step = self.conductor.state.step
        if step is None or step.number != number or step.work is not work:
            return None
        if member.client not in step.cohort:
            raise InvalidRequest(f"{member.client} was not asked in this step")
        if step.closed is not None and member.client not in step.uploads:
            return None
        return step

    async def broadcast(self, client: ClientId, work: Work, model: ModelState) -> Broadcast:
        """Return the model as a client gets it for its task."""
        if self.broadcasts.one_for_all:
            return self.broadcasts.shared(model)
        return await asyncio.to_thread(self.broadcasts.broadcast_for, client, work, model)

    def timing(self, member: Member, step: int) -> dict[str, float]:
        """Return when the task went out, and was out, and when the answer was whole.

        In seconds from the step's start. A client that was away and takes its task again, from its
        first byte, was asked when it did.
        """
        now_s = self.conductor.clock()
        began_s = self.conductor.state.step_began_s
        presence = self.sessions.get(member.client, now_s)
        known = presence.asked_step == step
        asked_s, sent_s = (presence.asked_s, presence.sent_s) if known else (began_s, began_s)
        return {
            "asked_s": max(0.0, asked_s - began_s),
            "sent_s": max(0.0, sent_s - began_s),
            "received_s": now_s - began_s,
        }

    def speaks(self, client: ClientId, peer: str) -> None:
        """Note which client a connection belongs to; `peer` as a call's context names it."""
        self.conductor.connections.belongs(peer, client)

    async def leaves(self) -> None:
        """Count what connections carried: one is about to end."""
        await self.conductor.connections.count()

    def known(self, caller: pb.Caller) -> str:
        """Return the client a message is booked to: the caller if it is a member, else none."""
        state = self.conductor.state
        member = state.members.get(ClientId(caller.client_id))
        if member is None:
            return ""
        signed = self.numbers.is_signed(caller.session, state.run_id, member.client, member.session)
        return member.client if signed else ""

    def down(self, response: Any, client: ClientId | str) -> Any:
        """Count a small message on its way to a client."""
        self.ledger.count("control", Direction.DOWN, response.ByteSize(), client=client)
        return response

    def control(self, request: Any, response: Any, client: ClientId) -> None:
        """Count a unary call that carries no tensor."""
        self.ledger.count("control", Direction.UP, request.ByteSize(), client=client)
        self.down(response, client)


def outcome_of(reply: Reply) -> transfer_pb2.Outcome:
    """Return the run's word on an upload as it travels; raise UpdateConflict for a conflict."""
    if reply is Reply.CONFLICT:
        raise UpdateConflict("other bytes of this client were accepted in this step")
    return _OUTCOMES[reply]


def receipt_of(reply: Reply) -> transfer_pb2.Receipt:
    """Return the last answer to an upload."""
    return transfer_pb2.Receipt(outcome=outcome_of(reply))


def evaluation_of(message: update_pb2.Evaluation) -> dict[str, Any]:
    """Return an evaluation as history keeps it."""
    return {
        "correct": message.correct if message.HasField("correct") else None,
        "total": message.total,
        "loss_sum": message.loss_sum,
        "metric_sums": dict(sorted(message.metric_sums.items())),
    }

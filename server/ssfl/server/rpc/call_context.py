"""Shared context of an RPC: caller lookup, byte accounting and reply encoding."""

import asyncio
from typing import Any

from ssfl.method.model_state import ModelState
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server.accounting.ledger import Direction
from ssfl.server.broadcast.payloads import Broadcast
from ssfl.server.broadcast.per_client import Broadcasts
from ssfl.server.errors import InvalidRequest, UpdateConflict
from ssfl.server.loop.presence import PresenceTable
from ssfl.server.loop.run_loop import RunLoop
from ssfl.server.rpc import request_checks
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


class CallContext:
    """What every call to one run shares."""

    def __init__(self, run_loop: RunLoop, sessions: PresenceTable) -> None:
        self.run_loop = run_loop
        self.sessions = sessions
        self.ledger = run_loop.ledger
        self.broadcasts = Broadcasts(run_loop.state.settings, run_loop.take_earlier)

    async def member(self, caller: pb.Caller, peer: str = "") -> Member:
        """Return the member that calls; record the sign of life and the connection."""
        member = request_checks.check_caller(caller, self.run_loop.state)
        self.bind_peer(member.client, peer)
        self.sessions.heard(member.client, self.run_loop.clock())
        if member.client in self.run_loop.state.lost:
            await self.run_loop.post(events.Returned(member.client))
        return member

    def open_step(self, number: int, work: Work, member: Member) -> Step | None:
        """Return the step an answer is for; None if it closed without this client."""
        step = self.run_loop.state.step
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
        return await asyncio.to_thread(self.broadcasts.seen_by, client, work, model)

    def timing(self, member: Member, step: int) -> dict[str, float]:
        """Return when the task went out, and was out, and when the answer was whole.

        In seconds from the step's start. A client that was away and takes its task again, from its
        first byte, was asked when it did.
        """
        now_s = self.run_loop.clock()
        began_s = self.run_loop.state.step_began_s
        presence = self.sessions.get(member.client, now_s)
        known = presence.asked_step == step
        asked_s, sent_s = (presence.asked_s, presence.sent_s) if known else (began_s, began_s)
        return {
            "asked_s": max(0.0, asked_s - began_s),
            "sent_s": max(0.0, sent_s - began_s),
            "received_s": now_s - began_s,
        }

    def bind_peer(self, client: ClientId, peer: str) -> None:
        """Record which client a connection belongs to; `peer` is the name gRPC gives it."""
        self.run_loop.connections.belongs(peer, client)

    async def flush_socket_bytes(self) -> None:
        """Count the bytes of all connections; call it before one of them ends."""
        await self.run_loop.connections.count()

    def client_or_blank(self, caller: pb.Caller) -> str:
        """Return the client a message is booked to: the caller if it has joined, else none."""
        joined = ClientId(caller.client_id) in self.run_loop.state.members
        return caller.client_id if joined else ""

    def count_down(self, response: Any, client: ClientId | str) -> Any:
        """Count a small message on its way to a client."""
        self.ledger.count("control", Direction.DOWN, response.ByteSize(), client=client)
        return response

    def count_unary(self, request: Any, response: Any, client: ClientId) -> None:
        """Count a unary call that carries no tensor."""
        self.ledger.count("control", Direction.UP, request.ByteSize(), client=client)
        self.count_down(response, client)


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

"""Shared context of an RPC: caller lookup, byte accounting and reply encoding."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from ssfl.method.model_state import ModelState
from ssfl.server.accounting.ledger import Direction
from ssfl.server.broadcast.payloads import Broadcast
from ssfl.server.broadcast.per_client import Broadcasts
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.presence import Presence
from ssfl.server.rpc import request_checks
from ssfl.server.rpc.session_numbers import SessionNumbers
from ssfl.server.run import events
from ssfl.server.run.state import Member
from ssfl.server.uploads.client_models import ClientModels
from ssfl.strategies.contract import ClientId, Work
from ssfl.v1 import coordinator_pb2 as pb


class CallContext:
    """Shared by all calls to one run."""

    def __init__(
        self,
        coordinator: Coordinator,
        numbers: SessionNumbers,
        *,
        names_proven: bool = False,  # by certificates, which Authenticator checks
    ) -> None:
        self.coordinator = coordinator
        self.numbers = numbers
        self.names_proven = names_proven
        self.run = run = coordinator.run
        self.presence = coordinator.presence
        self.ledger = coordinator.ledger
        self.clock = coordinator.clock
        self.models = ClientModels(run.state.settings)
        self.broadcasts = Broadcasts(run.state.settings, run.take_earlier, self.models)

    def check(self, caller: pb.Caller, *, may_have_left: bool = False) -> Member:
        """Return the calling member, or raise a refusal that says how to rejoin."""
        state = self.run.state
        return request_checks.check_caller(caller, state, self.numbers, may_have_left=may_have_left)

    async def member(
        self, caller: pb.Caller, peer: str = "", *, may_have_left: bool = False
    ) -> Member:
        """Return the calling member; record the sign of life and the connection."""
        member = self.check(caller, may_have_left=may_have_left)
        self.heard(peer, member.client)
        if member.client in self.run.state.lost:
            await self.run.post(events.Returned(member.client))
        return member

    def heard(self, peer: str, client: ClientId) -> None:
        """Record a sign of life, and the connection that it came over."""
        self.coordinator.connections.assign(peer, client)
        self.presence.heard(client, self.clock())

    async def count_connections(self) -> None:
        """Count the bytes of all connections up to now."""
        await self.coordinator.connections.count()

    def open_call(self, member: Member) -> AbstractContextManager[Presence]:
        """Keep a client alive during a call; raise TooManyCalls beyond the limit."""
        return self.presence.call(member.client, self.clock)

    async def broadcast(self, client: ClientId, work: Work, model: ModelState) -> Broadcast:
        """Return the model for a client's task."""
        if self.broadcasts.one_for_all:
            return self.broadcasts.shared(model)
        return await asyncio.to_thread(self.broadcasts.broadcast_for, client, work, model)

    def client_or_blank(self, caller: pb.Caller) -> str:
        """Return the client to count a message for: a member with a genuine session, else blank."""
        state = self.run.state
        member = state.members.get(ClientId(caller.client_id))
        if member is None:
            return ""
        signed = self.numbers.is_signed(caller.session, state.run_id, member.client, member.session)
        return member.client if signed else ""

    def count_sent(self, response: Any, client: ClientId | str) -> Any:
        """Count a small message that is sent to a client."""
        self.ledger.count("control", Direction.DOWN, response.ByteSize(), client=client)
        return response

    def count_unary(self, request: Any, response: Any, client: ClientId) -> None:
        """Count a unary call that carries no tensor."""
        self.ledger.count("control", Direction.UP, request.ByteSize(), client=client)
        self.count_sent(response, client)

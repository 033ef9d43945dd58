"""Authentication: every request names its client, and a refusal names what is missing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from ssfl.server.errors import Unauthenticated, WrongName
from ssfl.server.loop.refusals import Refusals
from ssfl.server.rpc.auth import Authenticator, claimed_by, names_in
from ssfl.server.rpc.interceptors import StatusInterceptor
from ssfl.v1 import admin_pb2, coordinator_pb2
from ssfl.v1 import coordinator_pb2 as pb

SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]
ANN = {"x509_common_name": [b"ann"], "peer_dns": [b"ann", b"ann.example.org"]}


@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: str(method.name))
def test_every_request_of_a_client_carries_its_id(method: Any) -> None:
    """Otherwise a call could slip past the certificate."""
    request = method.input_type._concrete_class
    if method.name in ("Join", "Check"):
        assert claimed_by(request(client_id="ann")) == "ann"
    else:
        assert claimed_by(request(caller=pb.Caller(client_id="ann"))) == "ann"
        assert claimed_by(request()) is None


def test_a_certificate_has_its_common_name_and_its_dns_names() -> None:
    assert names_in(ANN) == ("ann", "ann.example.org")
    assert names_in({"x509_common_name": [b""], "peer_dns": [b"bob"]}) == ("bob",)
    assert names_in({"x509_subject_alternative_name": [b"127.0.0.1"]}) == ()


def call(
    authenticator: Authenticator,
    request: Any,
    metadata: dict[str, str] | None = None,
    auth: dict[str, list[bytes]] | None = None,
    method: str = "/ssfl.v1.CoordinatorService/Join",
) -> None:
    """Check a call with one request."""
    details = SimpleNamespace(method=method, invocation_metadata=tuple((metadata or {}).items()))
    authenticator.check(details, SimpleNamespace(auth_context=lambda: auth or {}))(request)


def test_without_security_any_client_may_call() -> None:
    request = pb.JoinRequest(client_id="ann")
    call(Authenticator(), request)


@pytest.mark.parametrize("client_id", ["ann", "ann.example.org"])
def test_a_name_of_the_certificate_may_call(client_id: str) -> None:
    request = pb.JoinRequest(client_id=client_id)
    call(Authenticator(certificates=True), request, auth=ANN)


@pytest.mark.parametrize("client_id", ["bob", "", "Ann", "x.example.org", "an"])
def test_another_name_is_refused_with_both(client_id: str) -> None:
    both = f"calls itself {client_id!r}, but its certificate is for 'ann' or 'ann.example.org'"
    with pytest.raises(WrongName, match=both):
        call(Authenticator(certificates=True), pb.JoinRequest(client_id=client_id), auth=ANN)


def test_the_admin_port_requires_the_admin_certificate() -> None:
    authenticator = Authenticator(certificates=True, admin=True)
    request = admin_pb2.StopRunRequest()
    where = "/ssfl.v1.AdminService/StopRun"
    with pytest.raises(
        WrongName, match="needs the certificate of 'admin', but this one is for 'ann'"
    ):
        call(authenticator, request, auth=ANN, method=where)
    admin = {"x509_common_name": [b"admin"]}
    call(authenticator, request, auth=admin, method=where)


def test_every_call_but_health_requires_the_join_token() -> None:
    authenticator = Authenticator(token="0123456789abcdef")
    request = pb.LeaveRequest()
    good = {"authorization": "Bearer 0123456789abcdef"}
    call(authenticator, request, good)
    with pytest.raises(Unauthenticated, match="asks for a join token"):
        call(authenticator, request)
    for wrong in ("Bearer 0123456789abcdeF", "0123456789abcdef", "Bearer é"):
        with pytest.raises(Unauthenticated, match="is not that of this coordinator"):
            call(authenticator, request, {"authorization": wrong})
    call(authenticator, request, method="/grpc.health.v1.Health/Check")


class Context:
    """A call of ann, whose answers are dropped."""

    def auth_context(self) -> dict[str, list[bytes]]:
        return ANN

    async def write(self, _response: Any) -> None:
        pass

    async def abort(self, *_: Any, **__: Any) -> None:
        raise grpc.aio.AbortError


def refused(handler: Any, kind: str, *requests: Any) -> dict[str, int]:
    """Send requests of ann's connection past the interceptor; return the refusals by reason."""
    refusals = Refusals(lambda: 0.0, lambda _name: True)
    status = StatusInterceptor(refusals, authenticator=Authenticator(certificates=True))
    details = SimpleNamespace(method="/ssfl.v1.CoordinatorService/X", invocation_metadata=())

    async def continuation(_details: object) -> Any:
        return handler

    async def sent() -> AsyncIterator[Any]:
        for request in requests:
            yield request

    async def run() -> None:
        behaviour = getattr(await status.intercept_service(continuation, details), kind)
        await behaviour(sent() if kind == "stream_stream" else requests[0], Context())

    with contextlib.suppress(grpc.aio.AbortError):
        asyncio.run(run())
    return refusals.by_reason()


def test_an_uploads_caller_is_checked_and_its_chunks_pass() -> None:
    seen: list[Any] = []

    async def note(requests: AsyncIterator[Any], _context: Any) -> AsyncIterator[int]:
        async for request in requests:
            seen.append(request)
            yield 1

    handler = grpc.stream_stream_rpc_method_handler(note)
    ann = pb.SendUpdateRequest(caller=pb.Caller(client_id="ann"))
    bob = pb.SendUpdateRequest(caller=pb.Caller(client_id="bob"))
    chunk = pb.SendUpdateRequest()
    assert refused(handler, "stream_stream", ann, chunk, chunk) == {}
    assert seen == [ann, chunk, chunk]
    assert refused(handler, "stream_stream", ann, bob) == {"wrong_name": 1}
    assert seen == [ann, chunk, chunk, ann]


def test_the_caller_of_a_unary_call_and_of_a_stream_is_checked_before_its_handler() -> None:
    seen: list[Any] = []

    async def note(request: Any, _context: Any) -> None:
        seen.append(request)

    async def notes(request: Any, _context: Any) -> AsyncIterator[int]:
        seen.append(request)
        yield 1

    ann, bob = pb.JoinRequest(client_id="ann"), pb.JoinRequest(client_id="bob")
    for handler, kind in (
        (grpc.unary_unary_rpc_method_handler(note), "unary_unary"),
        (grpc.unary_stream_rpc_method_handler(notes), "unary_stream"),
    ):
        assert refused(handler, kind, ann) == {}
        assert refused(handler, kind, bob) == {"wrong_name": 1}
    assert seen == [ann, ann]

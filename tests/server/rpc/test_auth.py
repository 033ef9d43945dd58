"""Whose call it is: every request names its client, and strangers are told what they lack."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from ssfl.server.errors import Unauthenticated, WrongName
from ssfl.server.rpc.auth import IdentityInterceptor, claimed_by, names_in
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
    interceptor: IdentityInterceptor,
    request: Any,
    metadata: dict[str, str] | None = None,
    auth: dict[str, list[bytes]] | None = None,
    method: str = "/ssfl.v1.CoordinatorService/Join",
) -> Any:
    """Make a unary call past the interceptor; the handler behind it echoes."""

    async def echo(request: Any, _context: Any) -> Any:
        return request

    async def continuation(_details: object) -> Any:
        return grpc.unary_unary_rpc_method_handler(echo)

    async def run() -> Any:
        details = SimpleNamespace(
            method=method, invocation_metadata=tuple((metadata or {}).items())
        )
        handler = await interceptor.intercept_service(continuation, details)
        context = SimpleNamespace(auth_context=lambda: auth or {})
        return await handler.unary_unary(request, context)

    return asyncio.run(run())


def test_without_security_any_client_may_call() -> None:
    request = pb.JoinRequest(client_id="ann")
    assert call(IdentityInterceptor(), request) is request


@pytest.mark.parametrize("client_id", ["ann", "ann.example.org"])
def test_a_name_of_the_certificate_may_call(client_id: str) -> None:
    request = pb.JoinRequest(client_id=client_id)
    assert call(IdentityInterceptor(certificates=True), request, auth=ANN) is request


@pytest.mark.parametrize("client_id", ["bob", "", "Ann", "x.example.org", "an"])
def test_another_name_is_refused_with_both(client_id: str) -> None:
    both = f"calls itself {client_id!r}, but its certificate is of 'ann' or 'ann.example.org'"
    with pytest.raises(WrongName, match=both):
        call(IdentityInterceptor(certificates=True), pb.JoinRequest(client_id=client_id), auth=ANN)


def test_the_admin_port_requires_the_admin_certificate() -> None:
    interceptor = IdentityInterceptor(certificates=True, admin=True)
    request = admin_pb2.StopRunRequest()
    where = "/ssfl.v1.AdminService/StopRun"
    with pytest.raises(
        WrongName, match="needs the certificate of 'admin', but this one is of 'ann'"
    ):
        call(interceptor, request, auth=ANN, method=where)
    admin = {"x509_common_name": [b"admin"]}
    assert call(interceptor, request, auth=admin, method=where) is request


def test_every_call_but_health_requires_the_join_token() -> None:
    interceptor = IdentityInterceptor(token="0123456789abcdef")
    request = pb.LeaveRequest()
    good = {"authorization": "Bearer 0123456789abcdef"}
    assert call(interceptor, request, good) is request
    with pytest.raises(Unauthenticated, match="asks for a join token"):
        call(interceptor, request)
    for wrong in ("Bearer 0123456789abcdeF", "0123456789abcdef", "Bearer é"):
        with pytest.raises(Unauthenticated, match="is not that of this coordinator"):
            call(interceptor, request, {"authorization": wrong})
    assert call(interceptor, request, method="/grpc.health.v1.Health/Check") is request


def test_an_uploads_caller_is_checked_and_its_chunks_pass() -> None:
    async def count(requests: AsyncIterator[Any], _context: Any) -> AsyncIterator[int]:
        async for _ in requests:
            yield 1

    async def continuation(_details: object) -> Any:
        return grpc.stream_stream_rpc_method_handler(count)

    async def run(*requests: Any) -> int:
        async def sent() -> AsyncIterator[Any]:
            for request in requests:
                yield request

        details = SimpleNamespace(
            method="/ssfl.v1.CoordinatorService/SendUpdate", invocation_metadata=()
        )
        interceptor = IdentityInterceptor(certificates=True)
        handler = await interceptor.intercept_service(continuation, details)
        context = SimpleNamespace(auth_context=lambda: ANN)
        return sum([one async for one in handler.stream_stream(sent(), context)])

    ann = pb.SendUpdateRequest(caller=pb.Caller(client_id="ann"))
    bob = pb.SendUpdateRequest(caller=pb.Caller(client_id="bob"))
    assert asyncio.run(run(ann, pb.SendUpdateRequest(), pb.SendUpdateRequest())) == 3
    with pytest.raises(WrongName):
        asyncio.run(run(ann, bob))

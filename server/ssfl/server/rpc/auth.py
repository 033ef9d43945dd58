"""Authentication: the join token of every call, and the name in its certificate.

With mutual TLS (--tls-ca) the client id in Join and in the Caller of every other call must be a
name of the certificate that the connection was opened with: its common name, or one of its DNS
names (compared byte for byte, no wildcards). On the admin port that name must be `admin`. With
--join-token-file every call carries `authorization: Bearer TOKEN`. Health checks and reflection
need neither: they reveal nothing about a run.
"""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from ssfl.server.errors import Unauthenticated, WrongName

ADMIN = "admin"
HEADER = "authorization"
OURS = "/ssfl.v1."  # health checks and reflection have other prefixes
MAX_SHOWN = 64


class IdentityInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses unauthenticated calls. Runs inside the StatusInterceptor, which sends the refusal."""

    def __init__(self, *, token: str = "", certificates: bool = False, admin: bool = False) -> None:
        self._token = f"Bearer {token}".encode() if token else b""
        self._certificates = certificates
        self._admin = admin

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        handler = await continuation(handler_call_details)
        asks = self._token or self._certificates
        if handler is None or not asks or not handler_call_details.method.startswith(OURS):
            return handler
        metadata = dict(handler_call_details.invocation_metadata or ())
        codec = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary:

            async def unary(request: Any, context: Any) -> Any:
                self._check(metadata, context)(request)
                return await handler.unary_unary(request, context)

            return grpc.unary_unary_rpc_method_handler(unary, *codec)
        if handler.unary_stream:

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                self._check(metadata, context)(request)
                async with aclosing(handler.unary_stream(request, context)) as responses:
                    async for response in responses:
                        yield response

            return grpc.unary_stream_rpc_method_handler(stream, *codec)

        async def streams(requests: Any, context: Any) -> AsyncIterator[Any]:
            checked = _Checked(requests, self._check(metadata, context))
            async with aclosing(handler.stream_stream(checked, context)) as responses:
                async for response in responses:
                    yield response

        return grpc.stream_stream_rpc_method_handler(streams, *codec)

    def _check(self, metadata: dict[str, Any], context: Any) -> Callable[[Any], None]:
        """Check the token of a call; return the function that checks the name in its requests."""
        self._check_token(metadata)
        if not self._certificates:
            return lambda _request: None
        names = names_in(context.auth_context())
        return lambda request: self._check_name(request, names)

    def _check_token(self, metadata: dict[str, Any]) -> None:
        if not self._token:
            return
        given = metadata.get(HEADER, "")
        given = given if isinstance(given, bytes) else given.encode("utf-8", errors="replace")
        if not given:
            raise Unauthenticated(
                "this coordinator asks for a join token: give its file with --join-token-file"
            )
        if not hmac.compare_digest(given, self._token):
            raise Unauthenticated(
                "the join token is not that of this coordinator: ask its operator for the file"
            )

    def _check_name(self, request: Any, names: tuple[str, ...]) -> None:
        claimed = ADMIN if self._admin else claimed_by(request)
        if claimed is None or claimed in names:
            return
        of = " or ".join(map(repr, names[:3])) or "nobody"
        if self._admin:
            raise WrongName(
                f"the admin port needs the certificate of {ADMIN!r}, but this one is of {of}"
            )
        raise WrongName(
            f"the client calls itself {claimed[:MAX_SHOWN]!r}, but its certificate is of {of}: "
            "give that name with --client-id, or use the certificate of the right site"
        )


class _Checked:
    """The requests of an upload, each checked."""

    def __init__(self, requests: Any, check: Callable[[Any], None]) -> None:
        self._requests = aiter(requests)
        self._check = check

    def __aiter__(self) -> "_Checked":
        return self

    async def __anext__(self) -> Any:
        request = await anext(self._requests)
        self._check(request)
        return request


def names_in(auth_context: dict[str, Any]) -> tuple[str, ...]:
    """Return the names in the peer's certificate, from gRPC's auth context."""
    found = [
        *auth_context.get("x509_common_name", ()),
        *auth_context.get("peer_dns", ()),
    ]
    texts = [one.decode("utf-8", errors="replace") for one in found]
    return tuple(dict.fromkeys(text for text in texts if text))


def claimed_by(request: Any) -> str | None:
    """Return the client id that a request claims; None if it has none, such as a chunk."""
    if "client_id" in request.DESCRIPTOR.fields_by_name:
        return str(request.client_id)
    if "caller" in request.DESCRIPTOR.fields_by_name and request.HasField("caller"):
        return str(request.caller.client_id)
    return None

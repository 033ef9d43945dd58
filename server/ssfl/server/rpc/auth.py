"""Authentication: the join token of every call, and the name in its certificate.

With mutual TLS (--tls-ca) the client id in Join and in the Caller of every other call must be a
name of the certificate that the connection was opened with: its common name, or one of its DNS
names (compared byte for byte, no wildcards). On the admin port that name must be `admin`. With
--join-token-file every call carries `authorization: Bearer TOKEN`. Health checks and reflection
need neither: they reveal nothing about a run. request_checks.py checks who owns a client's name.
"""

import hmac
from collections.abc import Callable
from typing import Any

import grpc

from ssfl.server.errors import Unauthenticated, WrongName

ADMIN = "admin"
HEADER = "authorization"
OURS = "/ssfl.v1."  # health checks and reflection have other prefixes
MAX_SHOWN = 64


class Authenticator:
    """Refuses unauthenticated calls; without a token and certificates every call passes."""

    def __init__(self, *, token: str = "", certificates: bool = False, admin: bool = False) -> None:
        self._token = f"Bearer {token}".encode() if token else b""
        self._certificates = certificates
        self._admin = admin

    def check(self, call: grpc.HandlerCallDetails, context: Any) -> Callable[[Any], None]:
        """Check the token of a call; return the function that checks the name in its requests."""
        ours = call.method.startswith(OURS)
        if ours and self._token:
            self._check_token(dict(call.invocation_metadata or ()))
        if not ours or not self._certificates:
            return lambda _request: None
        names = names_in(context.auth_context())
        return lambda request: self._check_name(request, names)

    def _check_token(self, metadata: dict[str, Any]) -> None:
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
        of = " or ".join(map(repr, names[:3])) or "no client"
        if self._admin:
            raise WrongName(
                f"the admin port needs the certificate of {ADMIN!r}, but this one is for {of}"
            )
        raise WrongName(
            f"the client calls itself {claimed[:MAX_SHOWN]!r}, but its certificate is for {of}: "
            "give that name with --client-id, or use the certificate of the right site"
        )


def names_in(auth_context: dict[str, Any]) -> tuple[str, ...]:
    """Return the names in the peer's certificate, from gRPC's auth context."""
    found = [*auth_context.get("x509_common_name", ()), *auth_context.get("peer_dns", ())]
    texts = [one.decode("utf-8", errors="replace") for one in found]
    return tuple(dict.fromkeys(text for text in texts if text))


def claimed_by(request: Any) -> str | None:
    """Return the client id that a request claims; None if it has none, such as a chunk."""
    if "client_id" in request.DESCRIPTOR.fields_by_name:
        return str(request.client_id)
    if "caller" in request.DESCRIPTOR.fields_by_name and request.HasField("caller"):
        return str(request.caller.client_id)
    return None

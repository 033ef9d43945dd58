"""Diagnosis of a failed connection, where gRPC reports only "Socket closed".

A probe opens its own connection to the coordinator, goes as far as it can, and returns the problem
and its remedies. It runs only after a call has failed, has a deadline, and sends only the HTTP/2
preface. Behind a proxy there is no probe: it would find the problems of the proxy.
"""

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum

from ssfl.program.addresses import split
from ssfl.program.proxies import proxy_for
from ssfl.program.tls.pem import SYSTEM, ClientTls, format_time

DEADLINE_S = 5.0  # for each of: connect, handshake, answer
# The HTTP/2 preface with empty SETTINGS; a server answers with its own SETTINGS.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
Connect = Callable[[], socket.socket]  # opens a new connection to the coordinator


class Verify(IntEnum):
    """Codes X509_V_ERR_… of OpenSSL that get their own message."""

    NOT_YET_VALID = 9
    EXPIRED = 10
    WRONG_HOST = 62
    WRONG_ADDRESS = 64


class RemedyOwner(StrEnum):
    """The party that can apply a remedy; the value is the start of the sentence."""

    SITE = ""  # the user of this program: its flags, files and clock
    OPERATOR = "its operator can "  # the operator of the coordinator
    NETWORK = "the network's administrators can "


Remedy = tuple[RemedyOwner, str]  # the owner and the action


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem; if it is `final`, retrying cannot help until a person has acted."""

    problem: str
    final: bool
    remedies: tuple[Remedy, ...] = ()  # alternatives

    @property
    def text(self) -> str:
        """Problem and remedies in one sentence."""
        remedies = "; or ".join(f"{owner.value}{action}" for owner, action in self.remedies)
        return f"{self.problem}: {remedies}" if remedies else self.problem


@dataclass(frozen=True, slots=True)
class Handshake:
    """Result of a TLS handshake."""

    version: str  # such as TLSv1.3
    certificate: bytes  # of the peer, DER


def diagnose(address: str, tls: ClientTls | None, deadline_s: float = DEADLINE_S) -> Finding | None:
    """Return the problem with the connection to `address`; None if there is none or unknown."""
    host, port = split(address)
    if proxy_for(host) is not None:
        return None
    try:
        return probe(lambda: socket.create_connection((host, port), deadline_s), address, tls)
    except socket.gaierror as error:
        return Finding(f"the name {host} cannot be resolved ({error.strerror})", final=False)
    except TimeoutError:
        return Finding(f"{address}: no answer within {deadline_s:g} s", final=False)
    except OSError as error:
        return Finding(f"{address}: {error.strerror or error}", final=False)


def probe(connect: Connect, address: str, tls: ClientTls | None) -> Finding | None:
    """Return the problem with the peer, as `diagnose`; raise OSError if connecting fails."""
    host, _ = split(address)
    with connect() as connection:
        if tls is None:
            return _without_tls(connection, host, connect)
        return _with_tls(connection, host, address, tls)


def handshake(connect: Connect, address: str, tls: ClientTls) -> Handshake:
    """Make a TLS handshake; raise ssl.SSLError or OSError if it fails."""
    host, _ = split(address)
    with (
        connect() as connection,
        _context(tls).wrap_socket(connection, server_hostname=tls.server_name or host) as wrapped,
    ):
        return Handshake(wrapped.version() or "", wrapped.getpeercert(binary_form=True) or b"")


def _without_tls(connection: socket.socket, host: str, connect: Connect) -> Finding | None:
    connection.sendall(GREETING)
    try:
        answer = connection.recv(64)
    except ConnectionError:
        answer = b""
    if answer and answer[:1] != b"\x15":  # a TLS alert
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with connect() as again, context.wrap_socket(again, server_hostname=host):
            pass
    except (ssl.SSLError, OSError):
        return None
    action = "give --tls-ca, and --tls-cert and --tls-key if it requires certificates"
    return _final("the coordinator speaks TLS and this side does not", (RemedyOwner.SITE, action))


def _final(problem: str, *remedies: Remedy) -> Finding:
    return Finding(problem, final=True, remedies=remedies)


def _with_tls(connection: socket.socket, host: str, address: str, tls: ClientTls) -> Finding | None:
    try:
        name = tls.server_name or host
        with _context(tls).wrap_socket(connection, server_hostname=name) as wrapped:
            return _after_handshake(wrapped, address, tls)
    except ssl.SSLCertVerificationError as error:
        return _why_not_trusted(error, address, tls)
    except ssl.SSLError as error:
        return _why_broken(error, address, tls)


def _after_handshake(wrapped: ssl.SSLSocket, address: str, tls: ClientTls) -> Finding | None:
    """Return the problem after a handshake: TLS 1.3 checks the client's certificate only then."""
    if wrapped.selected_alpn_protocol() != "h2":
        return _final(
            f"the server at {address} speaks TLS, but not HTTP/2",
            (RemedyOwner.NETWORK, "let HTTP/2 pass between this site and the coordinator"),
            (RemedyOwner.SITE, "give the address of the coordinator, if this is another server"),
        )
    wrapped.sendall(GREETING)
    try:
        answer = wrapped.recv(64)
    except TimeoutError:
        return None
    except ssl.SSLError as error:
        return _why_broken(error, address, tls)
    except ConnectionError:
        answer = b""
    return None if answer else _why_refused(tls)


def _context(tls: ClientTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does
    context.load_verify_locations(cadata=tls.authorities.decode("utf-8", errors="replace"))
    context.set_alpn_protocols(["h2"])
    if tls.pair:
        context.load_cert_chain(tls.pair.file, tls.pair.key_file)
    return context


def _why_not_trusted(error: ssl.SSLCertVerificationError, address: str, tls: ClientTls) -> Finding:
    host = tls.server_name or address.rpartition(":")[0]
    theirs = f"the certificate of the coordinator at {address}"
    clock = (RemedyOwner.SITE, "set this machine's clock, if it is wrong")
    match error.verify_code:
        case Verify.EXPIRED:
            return _final(f"{theirs} has expired", (RemedyOwner.OPERATOR, "renew it"), clock)
        case Verify.NOT_YET_VALID:
            return _final(f"{theirs} is not valid yet", clock)
        case Verify.WRONG_HOST | Verify.WRONG_ADDRESS:
            action = "use a name that is in it, or give the name in it with --tls-server-name"
            return _final(
                f"{theirs} is not for {host}",
                (RemedyOwner.SITE, action),
                (RemedyOwner.OPERATOR, "add this name to it (`ssfl certs --host`)"),
            )
    trusts = "this machine trusts" if tls.trusts == SYSTEM else f"in {tls.trusts} (--tls-ca)"
    return _final(
        f"{theirs} was not issued by a CA {trusts} ({error.verify_message})",
        (RemedyOwner.SITE, "ask its operator for the CA's file"),
    )


def _why_broken(error: ssl.SSLError, address: str, tls: ClientTls) -> Finding | None:
    reason = error.reason or ""
    if "ALERT" in reason:
        refused = _why_refused(tls)
        return replace(refused, problem=f"{refused.problem} ({reason.lower().replace('_', ' ')})")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return _final(
            f"the server at {address} does not speak TLS",
            (RemedyOwner.SITE, "omit --tls-ca, if the coordinator runs without TLS on purpose"),
            (RemedyOwner.OPERATOR, "start it with --tls-cert and --tls-key"),
        )
    return None


def _why_refused(tls: ClientTls) -> Finding:
    pair = tls.pair
    if pair is None:
        return _final(
            "the coordinator requires a certificate and this side has none",
            (RemedyOwner.SITE, "give --tls-cert and --tls-key"),
        )
    if pair.ends <= datetime.now(UTC):
        problem = f"the certificate {pair.file} expired on {format_time(pair.ends)}"
        return _final(problem, (RemedyOwner.SITE, "renew it"))
    return _final(
        f"the coordinator does not accept the certificate {pair.file} of {pair.name!r}, issued by "
        f"{pair.issuer!r}; it trusts another CA (its --tls-ca), or considers it expired",
        (RemedyOwner.SITE, "ask its operator for a certificate of the CA that it trusts"),
        (RemedyOwner.OPERATOR, "set the clock of the coordinator's machine, if it is wrong"),
    )

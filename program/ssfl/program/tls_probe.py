"""Why does no connection come about? gRPC says "Socket closed"; this asks the far end itself.

A probe opens a connection of its own, speaks as far as it can get, and tells in a sentence what is
wrong and what to do about it. It is made only after a call has failed, has a deadline, and sends
nothing but the greeting of HTTP/2. Where a proxy stands in between it does not look: what it would
find out is the proxy's.
"""

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum

from ssfl.program.addresses import split
from ssfl.program.proxies import proxy_for
from ssfl.program.tls import SYSTEM, ClientTls, told

DEADLINE_S = 5.0  # for each of: connect, handshake, answer
# The greeting of HTTP/2 with empty SETTINGS: a server answers with its own.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
Connect = Callable[[], socket.socket]  # opens a new connection to the coordinator


class Verify(IntEnum):
    """OpenSSL's X509_V_ERR_…, those that have a sentence of their own."""

    NOT_YET_VALID = 9
    EXPIRED = 10
    WRONG_HOST = 62
    WRONG_ADDRESS = 64


class Whose(StrEnum):
    """Who can mend it."""

    SITE = "site"  # whoever started this program: its flags, files and clock
    OPERATOR = "operator"  # whoever runs the coordinator
    NETWORK = "network"  # whoever looks after what lies in between


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong; `final`: trying again cannot help until a person has acted."""

    text: str
    final: bool
    whose: Whose = Whose.NETWORK


@dataclass(frozen=True, slots=True)
class Secured:
    """A connection with TLS, as it came about."""

    version: str  # TLSv1.3
    certificate: bytes  # of the far end, DER


def find_out(address: str, tls: ClientTls | None, deadline_s: float = DEADLINE_S) -> Finding | None:
    """Say why `address` cannot be spoken to; None if nothing is wrong with it, or nobody knows."""
    host, port = split(address)
    if proxy_for(host) is not None:
        return None
    try:
        return probe(lambda: socket.create_connection((host, port), deadline_s), address, tls)
    except socket.gaierror as error:
        return Finding(f"the name {host} is not known here ({error.strerror})", final=False)
    except TimeoutError:
        return Finding(f"{address}: no answer within {deadline_s:g} s", final=False)
    except OSError as error:
        return Finding(f"{address}: {error.strerror or error}", final=False)


def probe(connect: Connect, address: str, tls: ClientTls | None) -> Finding | None:
    """Say what is wrong with the far end of a connection, as `find_out`; OSError: with the way."""
    host, _ = split(address)
    with connect() as connection:
        if tls is None:
            return _without_tls(connection, host, connect)
        return _with_tls(connection, host, address, tls)


def secure(connect: Connect, address: str, tls: ClientTls) -> Secured:
    """Return what a handshake tells; ssl.SSLError or OSError if none comes about."""
    host, _ = split(address)
    with (
        connect() as connection,
        _context(tls).wrap_socket(connection, server_hostname=tls.server_name or host) as wrapped,
    ):
        return Secured(wrapped.version() or "", wrapped.getpeercert(binary_form=True) or b"")


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
    return Finding(
        "the coordinator speaks TLS and this side does not: give --tls-ca, and --tls-cert and "
        "--tls-key if it asks for certificates",
        final=True,
        whose=Whose.SITE,
    )


def _with_tls(connection: socket.socket, host: str, address: str, tls: ClientTls) -> Finding | None:
    try:
        with _context(tls).wrap_socket(
            connection, server_hostname=tls.server_name or host
        ) as wrapped:
            return _after_handshake(wrapped, address, tls)
    except ssl.SSLCertVerificationError as error:
        return Finding(_why_not_trusted(error, address, tls), final=True, whose=_whose(error))
    except ssl.SSLError as error:
        return _why_broken(error, address, tls)


def _after_handshake(wrapped: ssl.SSLSocket, address: str, tls: ClientTls) -> Finding | None:
    """With TLS 1.3 a client's own certificate is judged after its handshake is over."""
    if wrapped.selected_alpn_protocol() != "h2":
        return Finding(
            f"what answers at {address} speaks TLS, but not HTTP/2: is it a coordinator, and does "
            "what stands in between pass HTTP/2 on?",
            final=True,
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
    return None if answer else Finding(_why_refused(tls), final=True, whose=Whose.SITE)


def _context(tls: ClientTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does
    context.load_verify_locations(cadata=tls.authorities.decode("utf-8", errors="replace"))
    context.set_alpn_protocols(["h2"])
    if tls.pair:
        context.load_cert_chain(tls.pair.file, tls.pair.key_file)
    return context


def _why_not_trusted(error: ssl.SSLCertVerificationError, address: str, tls: ClientTls) -> str:
    host = tls.server_name or address.rpartition(":")[0]
    match error.verify_code:
        case Verify.EXPIRED:
            return (
                f"the certificate of the coordinator at {address} has expired: its operator must "
                "renew it (or this machine's clock is wrong)"
            )
        case Verify.NOT_YET_VALID:
            return (
                f"the certificate of the coordinator at {address} is not valid yet: is this "
                "machine's clock right?"
            )
        case Verify.WRONG_HOST | Verify.WRONG_ADDRESS:
            return (
                f"the certificate of the coordinator at {address} is not for {host}: use a name "
                "that is in it, let its operator add this one (`ssfl certs --host`), or say with "
                "--tls-server-name which name it must have"
            )
    trusts = "this machine trusts" if tls.trusts == SYSTEM else f"in {tls.trusts} (--tls-ca)"
    return (
        f"the certificate of the coordinator at {address} was not made by a CA {trusts}: "
        f"{error.verify_message}. Ask its operator for the CA's file"
    )


def _whose(error: ssl.SSLCertVerificationError) -> Whose:
    """Return who can mend a certificate that is not trusted: a CA's file is this site's."""
    theirs = (Verify.EXPIRED, Verify.WRONG_HOST, Verify.WRONG_ADDRESS)
    return Whose.OPERATOR if error.verify_code in theirs else Whose.SITE


def _why_broken(error: ssl.SSLError, address: str, tls: ClientTls) -> Finding | None:
    reason = error.reason or ""
    if "ALERT" in reason:
        text = f"{_why_refused(tls)} ({reason.lower().replace('_', ' ')})"
        return Finding(text, final=True, whose=Whose.SITE)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return Finding(
            f"what answers at {address} does not speak TLS: leave --tls-ca away if the coordinator "
            "runs without, or start it with --tls-cert and --tls-key",
            final=True,
            whose=Whose.SITE,
        )
    return None


def _why_refused(tls: ClientTls) -> str:
    pair = tls.pair
    if pair is None:
        return (
            "the coordinator asks for a certificate and this side has none: give --tls-cert and "
            "--tls-key"
        )
    if pair.ends <= datetime.now(UTC):
        return f"the certificate {pair.file} expired on {told(pair.ends)}: renew it"
    return (
        f"the coordinator does not accept the certificate {pair.file} of {pair.name!r}: it was "
        f"made by {pair.issuer!r}, and the coordinator trusts another CA (its --tls-ca), or holds "
        "it for expired"
    )

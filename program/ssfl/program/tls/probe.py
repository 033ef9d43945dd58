"""Why does no connection come about? gRPC says "Socket closed"; this asks the far end itself.

A probe opens a connection of its own, speaks as far as it can get, and tells in a sentence what is
wrong and what to do about it. It is made only after a call has failed, has a deadline, and sends
nothing but the greeting of HTTP/2. Where a proxy stands in between it does not look: what it would
find out is the proxy's.
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
# The greeting of HTTP/2 with empty SETTINGS: a server answers with its own.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
Connect = Callable[[], socket.socket]  # opens a new connection to the coordinator


class Verify(IntEnum):
    """OpenSSL's X509_V_ERR_…, those that have a sentence of their own."""

    NOT_YET_VALID = 9
    EXPIRED = 10
    WRONG_HOST = 62
    WRONG_ADDRESS = 64


class RemedyOwner(StrEnum):
    """Who can mend it; the value begins what is said of others than whoever reads it."""

    SITE = ""  # whoever started this program: its flags, files and clock
    OPERATOR = "its operator can "  # who runs the coordinator
    NETWORK = "those who look after the network can "  # what lies in between


Remedy = tuple[RemedyOwner, str]  # who can do what


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong; `final`: trying again cannot help until a person has acted."""

    wrong: str
    final: bool
    remedies: tuple[Remedy, ...] = ()  # each would do

    @property
    def text(self) -> str:
        """All of it in a sentence."""
        told = "; or ".join(f"{whose.value}{what}" for whose, what in self.remedies)
        return f"{self.wrong}: {told}" if told else self.wrong


@dataclass(frozen=True, slots=True)
class Handshake:
    """A connection with TLS, as it came about."""

    version: str  # TLSv1.3
    certificate: bytes  # of the far end, DER


def diagnose(address: str, tls: ClientTls | None, deadline_s: float = DEADLINE_S) -> Finding | None:
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
    """Say what is wrong with the far end of a connection, as `diagnose`; OSError: with the way."""
    host, _ = split(address)
    with connect() as connection:
        if tls is None:
            return _without_tls(connection, host, connect)
        return _with_tls(connection, host, address, tls)


def handshake(connect: Connect, address: str, tls: ClientTls) -> Handshake:
    """Return what a handshake tells; ssl.SSLError or OSError if none comes about."""
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
    what = "give --tls-ca, and --tls-cert and --tls-key if it asks for certificates"
    return _final("the coordinator speaks TLS and this side does not", (RemedyOwner.SITE, what))


def _final(wrong: str, *remedies: Remedy) -> Finding:
    return Finding(wrong, final=True, remedies=remedies)


def _with_tls(connection: socket.socket, host: str, address: str, tls: ClientTls) -> Finding | None:
    try:
        with _context(tls).wrap_socket(
            connection, server_hostname=tls.server_name or host
        ) as wrapped:
            return _after_handshake(wrapped, address, tls)
    except ssl.SSLCertVerificationError as error:
        return _why_not_trusted(error, address, tls)
    except ssl.SSLError as error:
        return _why_broken(error, address, tls)


def _after_handshake(wrapped: ssl.SSLSocket, address: str, tls: ClientTls) -> Finding | None:
    """With TLS 1.3 a client's own certificate is judged after its handshake is over."""
    if wrapped.selected_alpn_protocol() != "h2":
        return _final(
            f"what answers at {address} speaks TLS, but not HTTP/2",
            (RemedyOwner.NETWORK, "let what stands in between pass HTTP/2 on"),
            (
                RemedyOwner.SITE,
                "give the address of the coordinator itself, if this is another server",
            ),
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
            return _final(
                f"{theirs} is not for {host}",
                (
                    RemedyOwner.SITE,
                    "use a name that is in it, or say with --tls-server-name which name it must "
                    "have",
                ),
                (RemedyOwner.OPERATOR, "add this name to it (`ssfl certs --host`)"),
            )
    trusts = "this machine trusts" if tls.trusts == SYSTEM else f"in {tls.trusts} (--tls-ca)"
    return _final(
        f"{theirs} was not made by a CA {trusts} ({error.verify_message})",
        (RemedyOwner.SITE, "ask its operator for the CA's file"),
    )


def _why_broken(error: ssl.SSLError, address: str, tls: ClientTls) -> Finding | None:
    reason = error.reason or ""
    if "ALERT" in reason:
        refused = _why_refused(tls)
        return replace(refused, wrong=f"{refused.wrong} ({reason.lower().replace('_', ' ')})")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return _final(
            f"what answers at {address} does not speak TLS",
            (RemedyOwner.SITE, "leave --tls-ca away, if the coordinator is to run without"),
            (RemedyOwner.OPERATOR, "start it with --tls-cert and --tls-key"),
        )
    return None


def _why_refused(tls: ClientTls) -> Finding:
    pair = tls.pair
    if pair is None:
        return _final(
            "the coordinator asks for a certificate and this side has none",
            (RemedyOwner.SITE, "give --tls-cert and --tls-key"),
        )
    if pair.ends <= datetime.now(UTC):
        wrong = f"the certificate {pair.file} expired on {format_time(pair.ends)}"
        return _final(wrong, (RemedyOwner.SITE, "renew it"))
    return _final(
        f"the coordinator does not accept the certificate {pair.file} of {pair.name!r}, made by "
        f"{pair.issuer!r}; it trusts another CA (its --tls-ca), or holds it for expired",
        (RemedyOwner.SITE, "ask its operator for a certificate of the CA that it trusts"),
        (RemedyOwner.OPERATOR, "set the clock of the coordinator's machine, if it is wrong"),
    )

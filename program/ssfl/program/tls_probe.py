"""Why does no connection come about? gRPC says "Socket closed"; this asks the far end itself.

A probe opens a connection of its own, speaks as far as it can get, and tells in a sentence what is
wrong and what to do about it. It is made only after a call has failed, has a deadline, and sends
nothing but the greeting of HTTP/2. Where a proxy stands in between it does not look: what it would
find out is the proxy's.
"""

import os
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum

from ssfl.program.addresses import is_loopback, split
from ssfl.program.tls import SYSTEM, ClientTls, told

DEADLINE_S = 5.0  # for each of: connect, handshake, answer
# The greeting of HTTP/2 with empty SETTINGS: a server answers with its own.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PROXIES, NO_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy")


class Verify(IntEnum):
    """OpenSSL's X509_V_ERR_…, those that have a sentence of their own."""

    NOT_YET_VALID = 9
    EXPIRED = 10
    WRONG_HOST = 62
    WRONG_ADDRESS = 64


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong; `final`: trying again cannot help until a person has acted."""

    text: str
    final: bool


def find_out(address: str, tls: ClientTls | None, deadline_s: float = DEADLINE_S) -> Finding | None:
    """Say why `address` cannot be spoken to; None if nothing is wrong with it, or nobody knows."""
    host, port = split(address)
    if _through_a_proxy(host):
        return None
    try:
        with socket.create_connection((host, port), deadline_s) as connection:
            if tls is None:
                return _without_tls(connection, host, port, deadline_s)
            return _with_tls(connection, host, address, tls)
    except socket.gaierror as error:
        return Finding(f"the name {host} is not known here ({error.strerror})", final=False)
    except TimeoutError:
        return Finding(f"{address}: no answer within {deadline_s:g} s", final=False)
    except OSError as error:
        return Finding(f"{address}: {error.strerror or error}", final=False)


def _without_tls(
    connection: socket.socket, host: str, port: int, deadline_s: float
) -> Finding | None:
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
        with (
            socket.create_connection((host, port), deadline_s) as again,
            context.wrap_socket(again, server_hostname=host),
        ):
            pass
    except (ssl.SSLError, OSError):
        return None
    return Finding(
        "the coordinator speaks TLS and this side does not: give --tls-ca, and --tls-cert and "
        "--tls-key if it asks for certificates",
        final=True,
    )


def _with_tls(connection: socket.socket, host: str, address: str, tls: ClientTls) -> Finding | None:
    try:
        with _context(tls).wrap_socket(
            connection, server_hostname=tls.server_name or host
        ) as wrapped:
            return _after_handshake(wrapped, address, tls)
    except ssl.SSLCertVerificationError as error:
        return Finding(_why_not_trusted(error, address, tls), final=True)
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
    return None if answer else Finding(_why_refused(tls), final=True)


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


def _why_broken(error: ssl.SSLError, address: str, tls: ClientTls) -> Finding | None:
    reason = error.reason or ""
    if "ALERT" in reason:
        return Finding(f"{_why_refused(tls)} ({reason.lower().replace('_', ' ')})", final=True)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return Finding(
            f"what answers at {address} does not speak TLS: leave --tls-ca away if the coordinator "
            "runs without, or start it with --tls-cert and --tls-key",
            final=True,
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


def _through_a_proxy(host: str) -> bool:
    """Tell whether gRPC goes through a proxy to get there."""
    if is_loopback(host):
        return False
    direct = [os.environ.get(name, "") for name in NO_PROXIES]
    if any(part.strip() and host.endswith(part.strip()) for part in ",".join(direct).split(",")):
        return False
    return any(os.environ.get(name) for name in PROXIES)

"""The way to a coordinator, step by step: proxy, name, TCP, TLS, and does HTTP/2 answer there?

All of it with sockets of our own, since gRPC says "Socket closed" of most that can be wrong. Every
wait has a deadline.
"""

import base64
import errno
import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ssfl.program.addresses import is_loopback, split
from ssfl.program.exits import ExitCode
from ssfl.program.proxies import Proxy, exempted_by, proxy_for, unused_proxy_note
from ssfl.tools.check.steps import Advice, Found, Steps, Who, Wrong

if TYPE_CHECKING:
    from ssfl.program.tls.pem import ClientTls

DEADLINE_S = 5.0  # for each of: a name, a connection, a handshake, an answer
MAX_ADDRESSES = 4  # tried of one name
MAX_HEAD_BYTES = 16 << 10  # of a proxy's answer
IDLE_NOTE = "one that cuts idle connections must leave those alone that ping every 10 s"


@dataclass
class Way:
    """How a coordinator is reached, as far as it is known."""

    address: str
    tls: "ClientTls | None"
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    deadline_s: float = DEADLINE_S
    proxy: Proxy | None = None
    places: list[Any] = field(
        default_factory=list
    )  # socket addresses: of the proxy, if there is one

    @property
    def host(self) -> str:
        return split(self.address)[0]

    @property
    def next_hop(self) -> tuple[str, int]:
        """Host and port that this machine itself connects to."""
        return (self.proxy.host, self.proxy.port) if self.proxy else split(self.address)

    def connect(self) -> socket.socket:
        """Open a connection to the coordinator, through the proxy if there is one; OSError."""
        connection = _connect(self.places[0], self.deadline_s)
        if self.proxy:
            status = _ask(self.proxy, self.address, connection)
            if status.split(" ")[1:2] != ["200"]:
                connection.close()
                raise ConnectionError(status)
        return connection


def check_way(steps: Steps, way: Way) -> None:
    """Find out how far one gets on the way to the coordinator; "files" has been tried before."""
    steps.run("proxy", lambda: _proxy(way))
    steps.run("name", lambda: _name(way))
    steps.run("tcp", lambda: _tcp(way), ["name"])
    reached = "tcp"
    if way.proxy:
        steps.run("tunnel", lambda: _tunnel(way), ["tcp"])
        reached = "tunnel"
    steps.run("tls", lambda: _tls(way), [reached, "files"])
    steps.run("http/2", lambda: _http2(way), ["tls"])


def _proxy(way: Way) -> Found[None]:
    way.proxy = proxy_for(way.host, way.environ)
    if way.proxy:
        return Found(
            None,
            f"{way.proxy.address} ({way.proxy.variable}); {IDLE_NOTE}",
        )
    if ignored := unused_proxy_note(way.host, way.environ):
        return Found(
            None,
            f"none: {ignored}",
            Advice(Who.MACHINE, f"mend the variable if {way.host} is behind the proxy"),
        )
    exempt = exempted_by(way.host, way.environ)
    if exempt:
        return Found(None, f"none: {exempt} has {way.host}")
    return Found(None, "none is set" if not is_loopback(way.host) else "none: this machine")


def _name(way: Way) -> Found[None]:
    host, port = way.next_hop
    began_s = time.monotonic()
    try:
        found = _look_up(host, port, way.deadline_s)
    except socket.gaierror as error:
        raise _name_unknown(way, host, str(error.strerror)) from error
    except TimeoutError as error:
        said = f"no name server answers within {way.deadline_s:g} s"
        raise _name_unknown(way, host, said) from error
    way.places = found[:MAX_ADDRESSES]
    shown = list(dict.fromkeys(place[-1][0] for place in found))
    if shown == [host]:
        return Found(None, f"{host} is an address: no name to look up")
    took_ms = 1000 * (time.monotonic() - began_s)
    return Found(None, f"{host} is {', '.join(shown[:MAX_ADDRESSES])} ({took_ms:.0f} ms)")


def _name_unknown(way: Way, host: str, why: str) -> Wrong:
    whose = f"the proxy {host}" if way.proxy else host
    flag = way.proxy.variable if way.proxy else "--coordinator"
    return Wrong(
        f"the name of {whose} is not known here: {why}",
        Advice(
            Who.NETWORK,
            f"make {host} known to this machine (DNS, VPN); if it is misspelt, mend {flag}",
        ),
        ExitCode.UNREACHABLE,
    )


def _look_up(host: str, port: int, deadline_s: float) -> list[Any]:
    """Return what getaddrinfo finds; it knows no deadline, so a thread of its own asks."""
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except OSError as error:
            answers.put(error)
        except UnicodeError:  # of the codec for names: two dots in a row, or 64 letters in one part
            answers.put(socket.gaierror(socket.EAI_NONAME, "no host can be called so"))

    threading.Thread(target=ask, name="look-up", daemon=True).start()
    try:
        answer = answers.get(timeout=deadline_s)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _connect(place: Any, deadline_s: float) -> socket.socket:
    family, kind, protocol, _, target = place
    connection = socket.socket(family, kind, protocol)
    connection.settimeout(deadline_s)
    try:
        connection.connect(target)
    except OSError:
        connection.close()
        raise
    return connection


def _tcp(way: Way) -> Found[None]:
    """Connect to every address of the name; those that answer are used from now on."""
    good, bad, error = [], [], OSError()
    took_ms = 0.0
    for place in way.places:
        began_s = time.monotonic()
        try:
            _connect(place, way.deadline_s).close()
        except OSError as failed:
            bad.append(place)
            error = failed
        else:
            took_ms = 1000 * (time.monotonic() - began_s)
            good.append(place)
    if not good:
        raise _unreachable(way, error)
    way.places = good
    text = f"port {way.next_hop[1]} answers at {_shown(good)} ({took_ms:.1f} ms)"
    if not bad:
        return Found(None, text)
    return Found(
        None,
        f"{text}, not at {_shown(bad)}",
        Advice(Who.NETWORK, f"let TCP to {_shown(bad)} pass, or take it out of the name service"),
    )


def _shown(places: list[Any]) -> str:
    return ", ".join(str(place[-1][0]) for place in places)


def _unreachable(way: Way, error: OSError) -> Wrong:
    _, port = way.next_hop
    target = way.proxy.address if way.proxy else way.address
    if error.errno == errno.ECONNREFUSED and way.proxy:
        what = f"start the proxy at {target}, or mend {way.proxy.variable}"
        advice, text = Advice(Who.NETWORK, what), f"{target}: nothing listens there"
    elif error.errno == errno.ECONNREFUSED:
        what = (
            f"start it, on this port and for other machines (--port {port}, --host); if it runs, "
            "open the port in its firewall"
        )
        advice, text = Advice(Who.OPERATOR, what), f"{target}: nothing listens there"
    else:
        late = isinstance(error, TimeoutError)
        why = f"no answer within {way.deadline_s:g} s" if late else str(error.strerror or error)
        text = f"{target}: {why}"
        what = f"allow outgoing TCP to {target} (firewall or VPN)"
        advice = Advice(Who.NETWORK, what)
    return Wrong(text, advice, ExitCode.UNREACHABLE)


def _tunnel(way: Way) -> Found[None]:
    assert way.proxy is not None
    try:
        with _connect(way.places[0], way.deadline_s) as connection:
            status = _ask(way.proxy, way.address, connection)
    except OSError as error:
        said = "nothing" if isinstance(error, TimeoutError) else str(error.strerror or error)
        status = f"({said} within {way.deadline_s:g} s)"
    code = status.split(" ")[1:2]
    if code == ["200"]:
        return Found(None, f"CONNECT {way.address} works")
    what = f"let the proxy {way.proxy.address} pass CONNECT to {way.address}"
    if code == ["407"]:
        what = (
            f"give user and password in {way.proxy.variable} (http://user:password@host:port), or "
            f"let this machine pass without"
        )
    else:
        what += ", or exempt the host with no_proxy if there is a direct way"
    raise Wrong(
        f"the proxy answers CONNECT {way.address} with: {status}",
        Advice(Who.NETWORK, what),
        ExitCode.UNREACHABLE,
    )


def _ask(proxy: Proxy, address: str, connection: socket.socket) -> str:
    """Ask a proxy for a tunnel; return the first line of its answer, all of whose head is read."""
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if proxy.credentials:
        told = base64.b64encode(proxy.credentials.encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {told}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    head = b""
    while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
        byte = connection.recv(1)  # not one more: what follows is the coordinator's
        if not byte:
            break
        head += byte
    first = head.partition(b"\r\n")[0].decode("latin-1")
    return first if first else "nothing"


def _tls(way: Way) -> Found[None]:
    from ssfl.program.tls.probe import RemedyOwner, probe

    whose = {
        RemedyOwner.SITE: Who.MACHINE,
        RemedyOwner.OPERATOR: Who.OPERATOR,
        RemedyOwner.NETWORK: Who.NETWORK,
    }
    try:
        finding = probe(way.connect, way.address, way.tls)
    except TimeoutError as error:
        raise _silent(way) from error
    except OSError as error:
        raise Wrong(
            f"the connection to {way.address} was cut: {error.strerror or error}",
            Advice(
                Who.NETWORK,
                f"let TLS and HTTP/2 to {way.address} pass unchanged (no inspection in between)",
            ),
            ExitCode.UNREACHABLE,
        ) from error
    if finding:
        first, *others = (Advice(whose[who], what) for who, what in finding.remedies)
        advice = replace(first, others=tuple(others))
        raise Wrong(finding.problem, advice, ExitCode.REFUSED)
    return _secured(way)


def _secured(way: Way) -> Found[None]:
    if way.tls is None:
        if is_loopback(way.host):
            return Found(None, "none: it stays on this machine")
        what = "use TLS (--tls-ca here, --tls-cert and --tls-key there), unless this is a VPN"
        return Found(None, "none: everybody in between can read along", Advice(Who.OPERATOR, what))
    from cryptography import x509

    from ssfl.program.tls.pem import WARN_BEFORE, format_time
    from ssfl.program.tls.probe import handshake

    try:
        secured = handshake(way.connect, way.address, way.tls)
    except (ssl.SSLError, OSError) as error:
        raise _silent(way) from error
    ends = x509.load_der_x509_certificate(secured.certificate).not_valid_after_utc
    text = f"{secured.version}, certificate until {format_time(ends)}"
    days = (ends - datetime.now(UTC)).days
    if ends - datetime.now(UTC) < WARN_BEFORE:
        what = f"renew the coordinator's certificate: it ends in {days} days"
        return Found(None, text, Advice(Who.OPERATOR, what))
    pair = way.tls.pair
    if pair and (warning := pair.warning() or pair.key_warning()):
        return Found(None, text, Advice(Who.MACHINE, warning))
    return Found(None, text)


def _silent(way: Way) -> Wrong:
    return Wrong(
        f"{way.address} takes connections, but says nothing within {way.deadline_s:g} s",
        Advice(
            Who.OPERATOR,
            f"look whether a coordinator runs behind {way.address}, and is not stopped or hung",
        ),
        ExitCode.UNREACHABLE,
    )


def _http2(way: Way) -> Found[None]:
    """Greet as gRPC does; a gRPC server answers with a SETTINGS frame of HTTP/2."""
    if way.tls is not None:
        return Found(None, "agreed on in the handshake (ALPN h2)")
    from ssfl.program.tls.probe import GREETING

    try:
        with way.connect() as connection:
            connection.sendall(GREETING)
            answer = connection.recv(64)
    except TimeoutError as error:
        raise _silent(way) from error
    except OSError:
        answer = b""
    if len(answer) >= 9 and answer[3] == 4:
        return Found(None, "answers")
    said = "an HTTP/1 web server answers" if answer[:5] == b"HTTP/" else "no HTTP/2 answers"
    raise Wrong(
        f"{said} at {way.address}, no coordinator",
        Advice(
            Who.OPERATOR,
            f"say which port the coordinator has (it prints it at its start), or let what stands "
            f"before it at {way.address} pass HTTP/2 (gRPC) on",
        ),
        ExitCode.UNREACHABLE,
    )

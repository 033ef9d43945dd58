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
from ssfl.program.proxies import Proxy, exempted_by, left_alone, proxy_for
from ssfl.tools.check.steps import Owner, Remedy, StepFailed, StepResult, Steps

if TYPE_CHECKING:
    from ssfl.program.tls.pem import ClientTls

DEADLINE_S = 5.0  # for each of: a name, a connection, a handshake, an answer
MAX_ADDRESSES = 4  # tried of one name
MAX_HEAD_BYTES = 16 << 10  # of a proxy's answer
IDLE_NOTE = "one that cuts idle connections must leave those alone that ping every 10 s"


@dataclass
class Route:
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
            status = _request_tunnel(self.proxy, self.address, connection)
            if status.split(" ")[1:2] != ["200"]:
                connection.close()
                raise ConnectionError(status)
        return connection


def check_route(steps: Steps, route: Route) -> None:
    """Find out how far one gets on the way to the coordinator; "files" has been tried before."""
    steps.run("proxy", lambda: _proxy(route))
    steps.run("name", lambda: _name(route))
    steps.run("tcp", lambda: _tcp(route), ["name"])
    reached = "tcp"
    if route.proxy:
        steps.run("tunnel", lambda: _tunnel(route), ["tcp"])
        reached = "tunnel"
    steps.run("tls", lambda: _tls(route), [reached, "files"])
    steps.run("http/2", lambda: _http2(route), ["tls"])


def _proxy(route: Route) -> StepResult[None]:
    route.proxy = proxy_for(route.host, route.environ)
    if route.proxy:
        return StepResult(
            None,
            f"{route.proxy.address} ({route.proxy.variable}); {IDLE_NOTE}",
        )
    if ignored := left_alone(route.host, route.environ):
        return StepResult(
            None,
            f"none: {ignored}",
            Remedy(Owner.MACHINE, f"mend the variable if {route.host} is behind the proxy"),
        )
    exempt = exempted_by(route.host, route.environ)
    if exempt:
        return StepResult(None, f"none: {exempt} has {route.host}")
    return StepResult(None, "none is set" if not is_loopback(route.host) else "none: this machine")


def _name(route: Route) -> StepResult[None]:
    host, port = route.next_hop
    began_s = time.monotonic()
    try:
        found = _look_up(host, port, route.deadline_s)
    except socket.gaierror as error:
        raise _name_failure(route, host, str(error.strerror)) from error
    except TimeoutError as error:
        said = f"no name server answers within {route.deadline_s:g} s"
        raise _name_failure(route, host, said) from error
    route.places = found[:MAX_ADDRESSES]
    shown = list(dict.fromkeys(place[-1][0] for place in found))
    if shown == [host]:
        return StepResult(None, f"{host} is an address: no name to look up")
    took_ms = 1000 * (time.monotonic() - began_s)
    return StepResult(None, f"{host} is {', '.join(shown[:MAX_ADDRESSES])} ({took_ms:.0f} ms)")


def _name_failure(route: Route, host: str, why: str) -> StepFailed:
    whose = f"the proxy {host}" if route.proxy else host
    flag = route.proxy.variable if route.proxy else "--coordinator"
    return StepFailed(
        f"the name of {whose} is not known here: {why}",
        Remedy(
            Owner.NETWORK,
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


def _tcp(route: Route) -> StepResult[None]:
    """Connect to every address of the name; those that answer are used from now on."""
    good, bad, error = [], [], OSError()
    took_ms = 0.0
    for place in route.places:
        began_s = time.monotonic()
        try:
            _connect(place, route.deadline_s).close()
        except OSError as failed:
            bad.append(place)
            error = failed
        else:
            took_ms = 1000 * (time.monotonic() - began_s)
            good.append(place)
    if not good:
        raise _tcp_failure(route, error)
    route.places = good
    text = f"port {route.next_hop[1]} answers at {_hosts(good)} ({took_ms:.1f} ms)"
    if not bad:
        return StepResult(None, text)
    return StepResult(
        None,
        f"{text}, not at {_hosts(bad)}",
        Remedy(Owner.NETWORK, f"let TCP to {_hosts(bad)} pass, or take it out of the name service"),
    )


def _hosts(places: list[Any]) -> str:
    return ", ".join(str(place[-1][0]) for place in places)


def _tcp_failure(route: Route, error: OSError) -> StepFailed:
    _, port = route.next_hop
    target = route.proxy.address if route.proxy else route.address
    if error.errno == errno.ECONNREFUSED and route.proxy:
        action = f"start the proxy at {target}, or mend {route.proxy.variable}"
        remedy, text = Remedy(Owner.NETWORK, action), f"{target}: nothing listens there"
    elif error.errno == errno.ECONNREFUSED:
        action = (
            f"start it, on this port and for other machines (--port {port}, --host); if it runs, "
            "open the port in its firewall"
        )
        remedy, text = Remedy(Owner.OPERATOR, action), f"{target}: nothing listens there"
    else:
        late = isinstance(error, TimeoutError)
        why = f"no answer within {route.deadline_s:g} s" if late else str(error.strerror or error)
        text = f"{target}: {why}"
        action = f"allow outgoing TCP to {target} (firewall or VPN)"
        remedy = Remedy(Owner.NETWORK, action)
    return StepFailed(text, remedy, ExitCode.UNREACHABLE)


def _tunnel(route: Route) -> StepResult[None]:
    assert route.proxy is not None
    try:
        with _connect(route.places[0], route.deadline_s) as connection:
            status = _request_tunnel(route.proxy, route.address, connection)
    except OSError as error:
        said = "nothing" if isinstance(error, TimeoutError) else str(error.strerror or error)
        status = f"({said} within {route.deadline_s:g} s)"
    code = status.split(" ")[1:2]
    if code == ["200"]:
        return StepResult(None, f"CONNECT {route.address} works")
    action = f"let the proxy {route.proxy.address} pass CONNECT to {route.address}"
    if code == ["407"]:
        action = (
            f"give user and password in {route.proxy.variable} (http://user:password@host:port), "
            f"or let this machine pass without"
        )
    else:
        action += ", or exempt the host with no_proxy if there is a direct way"
    raise StepFailed(
        f"the proxy answers CONNECT {route.address} with: {status}",
        Remedy(Owner.NETWORK, action),
        ExitCode.UNREACHABLE,
    )


def _request_tunnel(proxy: Proxy, address: str, connection: socket.socket) -> str:
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


def _tls(route: Route) -> StepResult[None]:
    from ssfl.program.tls.probe import Whose, probe

    whose = {
        Whose.SITE: Owner.MACHINE,
        Whose.OPERATOR: Owner.OPERATOR,
        Whose.NETWORK: Owner.NETWORK,
    }
    try:
        finding = probe(route.connect, route.address, route.tls)
    except TimeoutError as error:
        raise _no_answer(route) from error
    except OSError as error:
        raise StepFailed(
            f"the connection to {route.address} was cut: {error.strerror or error}",
            Remedy(
                Owner.NETWORK,
                f"let TLS and HTTP/2 to {route.address} pass unchanged (no inspection in between)",
            ),
            ExitCode.UNREACHABLE,
        ) from error
    if finding:
        first, *alternatives = (Remedy(whose[owner], action) for owner, action in finding.remedies)
        remedy = replace(first, alternatives=tuple(alternatives))
        raise StepFailed(finding.wrong, remedy, ExitCode.REFUSED)
    return _check_certificate(route)


def _check_certificate(route: Route) -> StepResult[None]:
    if route.tls is None:
        if is_loopback(route.host):
            return StepResult(None, "none: it stays on this machine")
        action = "use TLS (--tls-ca here, --tls-cert and --tls-key there), unless this is a VPN"
        return StepResult(
            None, "none: everybody in between can read along", Remedy(Owner.OPERATOR, action)
        )
    from cryptography import x509

    from ssfl.program.tls.pem import SOON, told
    from ssfl.program.tls.probe import secure

    try:
        secured = secure(route.connect, route.address, route.tls)
    except (ssl.SSLError, OSError) as error:
        raise _no_answer(route) from error
    ends = x509.load_der_x509_certificate(secured.certificate).not_valid_after_utc
    text = f"{secured.version}, certificate until {told(ends)}"
    days = (ends - datetime.now(UTC)).days
    if ends - datetime.now(UTC) < SOON:
        action = f"renew the coordinator's certificate: it ends in {days} days"
        return StepResult(None, text, Remedy(Owner.OPERATOR, action))
    pair = route.tls.pair
    if pair and (warning := pair.warning() or pair.key_warning()):
        return StepResult(None, text, Remedy(Owner.MACHINE, warning))
    return StepResult(None, text)


def _no_answer(route: Route) -> StepFailed:
    return StepFailed(
        f"{route.address} takes connections, but says nothing within {route.deadline_s:g} s",
        Remedy(
            Owner.OPERATOR,
            f"look whether a coordinator runs behind {route.address}, and is not stopped or hung",
        ),
        ExitCode.UNREACHABLE,
    )


def _http2(route: Route) -> StepResult[None]:
    """Greet as gRPC does; a gRPC server answers with a SETTINGS frame of HTTP/2."""
    if route.tls is not None:
        return StepResult(None, "agreed on in the handshake (ALPN h2)")
    from ssfl.program.tls.probe import GREETING

    try:
        with route.connect() as connection:
            connection.sendall(GREETING)
            answer = connection.recv(64)
    except TimeoutError as error:
        raise _no_answer(route) from error
    except OSError:
        answer = b""
    if len(answer) >= 9 and answer[3] == 4:
        return StepResult(None, "answers")
    said = "an HTTP/1 web server answers" if answer[:5] == b"HTTP/" else "no HTTP/2 answers"
    raise StepFailed(
        f"{said} at {route.address}, no coordinator",
        Remedy(
            Owner.OPERATOR,
            f"say which port the coordinator has (it prints it at its start), or let what stands "
            f"before it at {route.address} pass HTTP/2 (gRPC) on",
        ),
        ExitCode.UNREACHABLE,
    )

"""The route to a coordinator, step by step: proxy, name, TCP, TLS, HTTP/2.

The checks use their own sockets, because gRPC reports most problems as "Socket closed". Every wait
has a deadline.
"""

import base64
import errno
import os
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
from ssfl.tools.check.steps import CheckResult, Owner, Remedy, StepFailed, Steps

if TYPE_CHECKING:
    from ssfl.program.tls.pem import ClientTls

DEADLINE_S = 5.0  # for each lookup, connection, handshake and answer
MAX_ADDRESSES = 4  # tried per name
MAX_HEAD_BYTES = 16 << 10  # of a proxy's answer
IDLE_NOTE = "it must not count a connection with a ping every 10 s as idle"


@dataclass
class Route:
    """The route to a coordinator; the steps fill in `proxy` and `addresses`."""

    address: str
    tls: "ClientTls | None"
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    deadline_s: float = DEADLINE_S
    proxy: Proxy | None = None
    addresses: list[Any] = field(default_factory=list)  # getaddrinfo of `next_hop`

    @property
    def host(self) -> str:
        return split(self.address)[0]

    @property
    def next_hop(self) -> tuple[str, int]:
        """Host and port that this machine connects to: the proxy's, if there is one."""
        return (self.proxy.host, self.proxy.port) if self.proxy else split(self.address)

    def connect(self) -> socket.socket:
        """Open a connection to the coordinator, through the proxy if any; raise OSError."""
        connection = _connect(self.addresses[0], self.deadline_s)
        if self.proxy:
            status = _request_tunnel(self.proxy, self.address, connection)
            if status.split(" ")[1:2] != ["200"]:
                connection.close()
                raise ConnectionError(status)
        return connection


def check_route(steps: Steps, route: Route) -> None:
    """Run the steps of the route; the step "files" must have run before."""
    steps.run("proxy", lambda: _proxy(route))
    steps.run("name", lambda: _name(route))
    steps.run("tcp", lambda: _tcp(route), ["name"])
    if route.proxy:
        steps.run("tunnel", lambda: _tunnel(route), ["tcp"])
    steps.run("tls", lambda: _tls(route), ["tunnel" if route.proxy else "tcp", "files"])
    steps.run("http/2", lambda: _http2(route), ["tls"])


def _proxy(route: Route) -> CheckResult:
    route.proxy = proxy_for(route.host, route.environ)
    if route.proxy:
        return CheckResult(f"{route.proxy.address} ({route.proxy.variable}); {IDLE_NOTE}")
    if ignored := unused_proxy_note(route.host, route.environ):
        action = f"fix the variable if {route.host} is behind the proxy"
        return CheckResult(f"none: {ignored}", Remedy(Owner.MACHINE, action))
    if exempt := exempted_by(route.host, route.environ):
        return CheckResult(f"none: {exempt} exempts {route.host}")
    return CheckResult("none is set" if not is_loopback(route.host) else "none: this machine")


def _name(route: Route) -> CheckResult:
    host, port = route.next_hop
    began_s = time.monotonic()
    try:
        found = _look_up(host, port, route.deadline_s)
    except OSError as error:
        late = isinstance(error, TimeoutError)
        why = f"no name server answers within {route.deadline_s:g} s" if late else error.strerror
        target = f"the proxy {host}" if route.proxy else host
        flag = route.proxy.variable if route.proxy else "--coordinator"
        text = f"the name of {target} cannot be resolved: {why}"
        action = f"make {host} known to this machine (DNS, VPN); if it is misspelt, correct {flag}"
        raise _unreachable(text, action) from error
    route.addresses = found[:MAX_ADDRESSES]
    shown = list(dict.fromkeys(address_info[-1][0] for address_info in found))
    if shown == [host]:
        return CheckResult(f"{host} is an address, not a name")
    took_ms = 1000 * (time.monotonic() - began_s)
    return CheckResult(f"{host} is {', '.join(shown[:MAX_ADDRESSES])} ({took_ms:.0f} ms)")


def _unreachable(text: str, action: str, owner: Owner = Owner.NETWORK) -> StepFailed:
    return StepFailed(text, Remedy(owner, action), ExitCode.UNREACHABLE)


def _look_up(host: str, port: int, deadline_s: float) -> list[Any]:
    """Return the result of getaddrinfo, called in a thread because it has no deadline."""
    found: list[Any] = []
    failures: list[OSError] = []

    def ask() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            failures.append(error)
        except UnicodeError:  # two dots in a row, or 64 letters between dots
            failures.append(socket.gaierror(socket.EAI_NONAME, "this is not a valid host name"))

    thread = threading.Thread(target=ask, name="look-up", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not found:
        raise failures[0] if failures else TimeoutError
    return found


def _connect(address_info: Any, deadline_s: float) -> socket.socket:
    family, kind, protocol, _, target = address_info
    connection = socket.socket(family, kind, protocol)
    connection.settimeout(deadline_s)
    try:
        connection.connect(target)
    except OSError:
        connection.close()
        raise
    return connection


def _tcp(route: Route) -> CheckResult:
    """Connect to every address of the name, and keep those that answer."""
    good, bad, error = [], [], OSError()
    took_ms = 0.0
    for address_info in route.addresses:
        began_s = time.monotonic()
        try:
            _connect(address_info, route.deadline_s).close()
        except OSError as failed:
            bad.append(address_info)
            error = failed
        else:
            took_ms = 1000 * (time.monotonic() - began_s)
            good.append(address_info)
    if not good:
        raise _tcp_failure(route, error)
    route.addresses = good
    text = f"port {route.next_hop[1]} answers at {_hosts(good)} ({took_ms:.1f} ms)"
    if not bad:
        return CheckResult(text)
    remedy = Remedy(Owner.NETWORK, f"allow TCP to {_hosts(bad)}, or remove it from DNS")
    return CheckResult(f"{text}, not at {_hosts(bad)}", remedy)


def _hosts(addresses: list[Any]) -> str:
    return ", ".join(str(address_info[-1][0]) for address_info in addresses)


def _tcp_failure(route: Route, error: OSError) -> StepFailed:
    target = route.proxy.address if route.proxy else route.address
    if error.errno != errno.ECONNREFUSED:
        late = isinstance(error, TimeoutError)
        why = f"no answer within {route.deadline_s:g} s" if late else str(error.strerror or error)
        return _unreachable(f"{target}: {why}", f"allow outgoing TCP to {target} (firewall or VPN)")
    text = f"{target}: nothing listens there"
    if route.proxy:
        return _unreachable(text, f"start the proxy at {target}, or correct {route.proxy.variable}")
    action = (
        f"start it on this port, open to other machines (--port {route.next_hop[1]}, --host); if "
        "it runs, open the port in its firewall"
    )
    return _unreachable(text, action, Owner.OPERATOR)


def _tunnel(route: Route) -> CheckResult:
    assert route.proxy is not None
    try:
        with _connect(route.addresses[0], route.deadline_s) as connection:
            status = _request_tunnel(route.proxy, route.address, connection)
    except OSError as error:
        reply = "nothing" if isinstance(error, TimeoutError) else str(error.strerror or error)
        status = f"({reply} within {route.deadline_s:g} s)"
    code = status.split(" ")[1:2]
    if code == ["200"]:
        return CheckResult(f"CONNECT {route.address} works")
    action = (
        f"let the proxy {route.proxy.address} pass CONNECT to {route.address}, or exempt the host "
        "with no_proxy if there is a direct route"
    )
    if code == ["407"]:
        action = (
            f"give user and password in {route.proxy.variable} (http://user:password@host:port), "
            "or let this machine pass without them"
        )
    raise _unreachable(f"the proxy answers CONNECT {route.address} with: {status}", action)


def _request_tunnel(proxy: Proxy, address: str, connection: socket.socket) -> str:
    """Ask a proxy for a tunnel, read the head of its answer, and return the first line."""
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if proxy.credentials:
        encoded = base64.b64encode(proxy.credentials.encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {encoded}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    head = b""
    while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
        byte = connection.recv(1)  # bytes after the head are the coordinator's
        if not byte:
            break
        head += byte
    return head.partition(b"\r\n")[0].decode("latin-1") or "nothing"


def _tls(route: Route) -> CheckResult:
    from ssfl.program.tls.probe import RemedyOwner, probe

    owners = {
        RemedyOwner.SITE: Owner.MACHINE,
        RemedyOwner.OPERATOR: Owner.OPERATOR,
        RemedyOwner.NETWORK: Owner.NETWORK,
    }
    try:
        finding = probe(route.connect, route.address, route.tls)
    except TimeoutError as error:
        raise _no_answer(route) from error
    except OSError as error:
        raise _unreachable(
            f"the connection to {route.address} was cut: {error.strerror or error}",
            f"let TLS and HTTP/2 to {route.address} pass unchanged (no TLS inspection)",
        ) from error
    if finding:
        first, *alternatives = (Remedy(owners[whose], action) for whose, action in finding.remedies)
        remedy = replace(first, alternatives=tuple(alternatives))
        raise StepFailed(finding.problem, remedy, ExitCode.REFUSED)
    return _check_certificate(route)


def _check_certificate(route: Route) -> CheckResult:
    if route.tls is None:
        if is_loopback(route.host):
            return CheckResult("none: traffic stays on this machine")
        action = "use TLS (--tls-ca here, --tls-cert and --tls-key there), unless this is a VPN"
        text = "none: the network in between can read the traffic"
        return CheckResult(text, Remedy(Owner.OPERATOR, action))
    from cryptography import x509

    from ssfl.program.tls.pem import WARN_BEFORE, format_time
    from ssfl.program.tls.probe import handshake

    try:
        secured = handshake(route.connect, route.address, route.tls)
    except (ssl.SSLError, OSError) as error:
        raise _no_answer(route) from error
    ends = x509.load_der_x509_certificate(secured.certificate).not_valid_after_utc
    text = f"{secured.version}, certificate until {format_time(ends)}"
    left = ends - datetime.now(UTC)
    if left < WARN_BEFORE:
        action = f"renew the coordinator's certificate: it expires in {left.days} days"
        return CheckResult(text, Remedy(Owner.OPERATOR, action))
    pair = route.tls.pair
    warning = pair and (pair.warning() or pair.key_warning())
    return CheckResult(text, Remedy(Owner.MACHINE, warning) if warning else None)


def _no_answer(route: Route) -> StepFailed:
    return _unreachable(
        f"{route.address} accepts connections, but sends nothing within {route.deadline_s:g} s",
        f"check that a coordinator runs behind {route.address} and is not suspended or hung",
        Owner.OPERATOR,
    )


def _http2(route: Route) -> CheckResult:
    """Send the HTTP/2 preface; a gRPC server answers with a SETTINGS frame."""
    if route.tls is not None:
        return CheckResult("agreed in the handshake (ALPN h2)")
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
        return CheckResult("answers")
    server = "an HTTP/1 web server" if answer[:5] == b"HTTP/" else "something without HTTP/2"
    action = (
        "tell the site the coordinator's port (printed when it starts), or let the proxy at "
        f"{route.address} pass HTTP/2 (gRPC)"
    )
    text = f"{server} answers at {route.address}, not a coordinator"
    raise _unreachable(text, action, Owner.OPERATOR)

"""A small HTTP server for metrics, probes and the status page.

It answers GET and HEAD requests in threads of its own and keeps no state between requests. Every
connection is closed after CONNECTION_S. At most MAX_CONNECTIONS are open at a time, at most
MAX_PER_ADDRESS of them from one address, so that one machine with silent connections cannot block
the others. All programs on this machine share the limit of the loopback address. With TLS, changed
certificate files apply from the next connection.

A server on loopback answers only requests for a loopback name, so that a web site that points its
own name at 127.0.0.1 (DNS rebinding) cannot read the page through its visitor's browser. A server
on another address answers every name, because it does not know the names of this machine.
"""

import contextlib
import logging
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ssfl.program.addresses import is_loopback
from ssfl.program.exits import ExitCode, ProgramError

log = logging.getLogger("ssfl.web")

CONNECTION_S = 10.0  # for a request and its response
MAX_CONNECTIONS = 32
MAX_PER_ADDRESS = 16
POLL_S = 0.5  # delay until `stop` or an expired connection is noticed
WARN_EVERY_S = 60.0
TEXT = "text/plain; charset=utf-8"
# Errors that a browser causes when it closes a page; they are not failures.
_GONE = (ConnectionError, TimeoutError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request; header names are in lower case."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response."""

    content_type: str
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Request], Response]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a port; with `authorities`, callers need a certificate."""

    certificate: Path
    key: Path
    authorities: Path | None = None
    names: tuple[str, ...] = ()  # the caller's certificate must have one; empty: any name

    def context(self) -> ssl.SSLContext:
        """Read the files; raise OSError or ssl.SSLError if they cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        if self.authorities:
            context.load_verify_locations(self.authorities)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return a value that changes when a file is replaced."""
        stats = [file.stat() for file in (self.certificate, self.key, self.authorities) if file]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def text_response(text: str, status: int = 200) -> Response:
    """Return a response of one line of plain text."""
    return Response(TEXT, f"{text}\n".encode(), status)


def guarded(route: Route, served_on: str) -> Route:
    """Return a route that, on loopback, refuses requests for names that are not loopback.

    A request without a Host header is answered: every browser sends one.
    """

    def answer(request: Request) -> Response:
        name = _host_name(request.headers.get("host", "localhost"))
        if is_loopback(served_on) and not is_loopback(name):
            text = "this port is served on loopback: ask for http://localhost:PORT/"
            return text_response(text, HTTPStatus.FORBIDDEN)
        return route(request)

    return answer


def _host_name(header: str) -> str:
    """Return the name in a Host header, without the port."""
    if header.startswith("["):
        return header.partition("]")[0][1:]
    return header.partition(":")[0]


class WebServer:
    """Listens from its construction until `stop`."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        host: str,
        port: int,
        *,
        flag: str,
        tls: TlsFiles | None = None,
    ) -> None:
        """Listen; raise ProgramError(PORT_IN_USE) naming `flag` if that fails.

        A request for a path that is not in `routes` gets 404 and the list of paths.
        """
        guards = {path: guarded(route, host) for path, route in routes.items()}
        handler = type("Handler", (_Handler,), {"routes": guards})
        try:
            self._server = _Server((host, port), handler, tls)
        except (ssl.SSLError, OSError) as error:
            why = error.strerror or str(error)
            host_flag = "--host" if flag == "--health-port" else flag.replace("-port", "-host")
            raise ProgramError(
                f"cannot listen on {host}:{port}: {why}; choose another port with {flag}, or "
                f"{flag} 0 for a free one (the host is set with {host_flag})",
                ExitCode.PORT_IN_USE,
            ) from error
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name=f"web{flag}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], tls: TlsFiles | None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = tls
        self._stamp = tls.stamp() if tls else ()
        self._context = tls.context() if tls else None
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()  # connections by address
        self._ends: dict[socket.socket, float] = {}  # monotonic time when each is closed
        self._warned_s = -WARN_EVERY_S
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without a DNS lookup of this machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        host = str(client_address[0])
        with self._lock:
            full = self._open.total() >= MAX_CONNECTIONS or self._open[host] >= MAX_PER_ADDRESS
            if not full:
                self._open[host] += 1
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        host = str(client_address[0])
        twin = request.dup()  # TLS takes over the original socket
        with self._lock:
            self._ends[twin] = time.monotonic() + CONNECTION_S
        try:
            request.settimeout(CONNECTION_S)
            secured = self._secured(request)
        except (OSError, ssl.SSLError):
            self.handle_error(request, client_address)
            self.shutdown_request(request)
        else:
            super().process_request_thread(secured, client_address)
        finally:
            with self._lock:
                del self._ends[twin]
                twin.close()
                self._open[host] -= 1
                if not self._open[host]:
                    del self._open[host]

    def service_actions(self) -> None:
        """Close expired connections; called every POLL_S and after each new connection."""
        now_s = time.monotonic()
        with self._lock:
            for twin in [twin for twin, end_s in self._ends.items() if now_s >= end_s]:
                with contextlib.suppress(OSError):  # already closed
                    twin.shutdown(socket.SHUT_RDWR)

    def _secured(self, request: Any) -> Any:
        if self._tls is None:
            return request
        try:
            stamp = self._tls.stamp()
            if stamp != self._stamp:
                self._context = self._tls.context()
                self._stamp = stamp
        except OSError as error:  # perhaps being replaced: continue with the old files
            self._warn("cannot read the changed TLS files: %s", error)
        assert self._context is not None
        secured = self._context.wrap_socket(request, server_side=True)
        if self._tls.names and not names_in(secured.getpeercert()) & set(self._tls.names):
            allowed = " or ".join(self._tls.names)
            secured.close()
            raise ssl.SSLError(f"the caller's certificate must have the name {allowed}")
        return secured

    def handle_error(self, _request: Any, client_address: Any) -> None:
        host = client_address[0] if isinstance(client_address, tuple) else client_address
        error = sys.exception()
        if isinstance(error, _GONE):
            log.debug("the caller closed the connection: %s", error, extra={"from": host})
        else:
            self._warn("a request failed: %s", error, extra={"from": host})

    def _warn(self, text: str, *args: object, **more: Any) -> None:
        """Log a warning, at most every WARN_EVERY_S: requests may come from strangers."""
        if time.monotonic() - self._warned_s >= WARN_EVERY_S:
            self._warned_s = time.monotonic()
            log.warning(text, *args, **more)


def names_in(certificate: Mapping[str, Any] | None) -> set[str]:
    """Return the common names and DNS names of a certificate from `getpeercert`."""
    fields = certificate or {}
    common = {
        value for part in fields.get("subject", ()) for name, value in part if name == "commonName"
    }
    return common | {value for kind, value in fields.get("subjectAltName", ()) if kind == "DNS"}


class _Handler(BaseHTTPRequestHandler):
    routes: Mapping[str, Route]
    timeout = CONNECTION_S
    server_version = "ssfl"
    sys_version = ""

    began_s = 0.0

    def parse_request(self) -> bool:
        """Read the request and record the time, from which `Server-Timing` is measured."""
        parsed = super().parse_request()
        self.began_s = time.monotonic()
        return parsed

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query, max_num_fields=20))
        except ValueError as error:
            self._send(text_response(f"cannot read the request: {error}", HTTPStatus.BAD_REQUEST))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        route = self.routes.get(url.path)
        if route is None:
            paths = ", ".join(sorted(self.routes))
            self._send(text_response(f"not found; the paths are {paths}", HTTPStatus.NOT_FOUND))
            return
        try:
            response = route(Request(url.path, query, headers))
        except Exception:
            text = "internal error: see the log"
            self._send(text_response(text, HTTPStatus.INTERNAL_SERVER_ERROR))
            raise  # logged by handle_error
        self._send(response)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        refusal = text_response("only GET and HEAD are answered", HTTPStatus.METHOD_NOT_ALLOWED)
        self._send(replace(refusal, headers={"Allow": "GET, HEAD"}))

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Server-Timing": f"answer;dur={1e3 * (time.monotonic() - self.began_s):.1f}",
            **response.headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def log_message(self, *_: object) -> None:
        """Do not log each request."""

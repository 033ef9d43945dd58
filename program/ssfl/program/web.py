"""A small HTTP server for those who watch: metrics, probes, the status page.

It answers GET and HEAD, from threads of its own, and keeps nothing between two questions. A
question has ten seconds in all parts, and at most MAX_CONNECTIONS are heard at once, so whoever
connects and says nothing holds up nobody. With TLS the files on the disk are followed: renewed
ones are used from the next connection on.
"""

import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ssfl.program.exits import ExitCode, ProgramError

log = logging.getLogger("ssfl.web")

TIMEOUT_S = 10.0  # for each thing that is waited for
MAX_CONNECTIONS = 32
TELL_EVERY_S = 60.0
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """A question; names of headers are in lower case."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    content_type: str
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Request], Answer]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files a port is served with; `authorities` None: who asks needs no certificate."""

    certificate: Path
    key: Path
    authorities: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files; raise OSError or ssl.SSLError if they will not do."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        if self.authorities:
            context.load_verify_locations(self.authorities)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes when a file is replaced."""
        files = [one.stat() for one in (self.certificate, self.key, self.authorities) if one]
        return tuple((file.st_mtime_ns, file.st_size, file.st_ino) for file in files)


def text_answer(text: str, status: int = 200) -> Answer:
    """Return a line of plain text."""
    return Answer(TEXT, f"{text}\n".encode(), status)


class WebServer:
    """Listens from the moment it is made until `stop`."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        host: str,
        port: int,
        *,
        flag: str,
        tls: TlsFiles | None = None,
    ) -> None:
        """Listen; raise ProgramError(PORT_IN_USE) naming `flag` if the port cannot be had.

        `routes` says who answers which path; a question for any other is told which there are.
        """
        handler = type("Handler", (_Handler,), {"routes": dict(routes)})
        try:
            self._server = _Server((host, port), handler, tls)
        except (ssl.SSLError, OSError) as error:
            why = error.strerror or str(error)
            raise ProgramError(
                f"cannot listen on {host}:{port}: {why}; choose another with {flag}, or {flag} 0 "
                "for a free one",
                ExitCode.PORT_IN_USE,
            ) from error
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name=f"web{flag}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Answer no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler], tls: TlsFiles | None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._tls = tls
        self._stamp = tls.stamp() if tls else ()
        self._context = tls.context() if tls else None
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._told_s = -TELL_EVERY_S
        super().__init__(place, handler)

    def server_bind(self) -> None:
        """Bind without asking a name server what this machine is called."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(TIMEOUT_S)
            secured = self._secured(request)
        except (OSError, ssl.SSLError):
            self.handle_error(request, client_address)
            self.shutdown_request(request)
        else:
            super().process_request_thread(secured, client_address)
        finally:
            self._room.release()

    def _secured(self, request: Any) -> Any:
        if self._tls is None:
            return request
        try:
            stamp = self._tls.stamp()
            if stamp != self._stamp:
                self._context = self._tls.context()
                self._stamp = stamp
        except OSError as error:  # just being replaced, perhaps: the old ones go on
            self._tell("the TLS files could not be read again: %s", error)
        assert self._context is not None
        return self._context.wrap_socket(request, server_side=True)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        host = client_address[0] if isinstance(client_address, tuple) else client_address
        self._tell("a question failed: %s", sys.exception(), extra={"from": host})

    def _tell(self, text: str, *words: object, **more: Any) -> None:
        """Say it, but not again and again: anybody may ask."""
        if time.monotonic() - self._told_s >= TELL_EVERY_S:
            self._told_s = time.monotonic()
            log.warning(text, *words, **more)


class _Handler(BaseHTTPRequestHandler):
    routes: Mapping[str, Route]
    timeout = TIMEOUT_S
    server_version = "ssfl"
    sys_version = ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, max_num_fields=20))
        headers = {name.lower(): value for name, value in self.headers.items()}
        route = self.routes.get(url.path)
        if route is None:
            there = ", ".join(sorted(self.routes))
            self._send(text_answer(f"nothing here; there are: {there}", HTTPStatus.NOT_FOUND))
            return
        try:
            answer = route(Request(url.path, query, headers))
        except Exception:
            self._send(text_answer("unexpected: see the log", HTTPStatus.INTERNAL_SERVER_ERROR))
            raise  # told by handle_error
        self._send(answer)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        refusal = text_answer("only GET and HEAD are answered", HTTPStatus.METHOD_NOT_ALLOWED)
        self._send(replace(refusal, headers={"Allow": "GET, HEAD"}))

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            **answer.headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        """Questions are not worth a line each."""

"""A web server on loopback that serves files, injects faults and records requests."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Web:
    """Files and faults; `requests` holds the path and Range header of each request."""

    files: dict[str, bytes]
    address: str = ""
    ranges: bool = True  # supports Range requests
    etag: str = '"one"'
    cuts: list[int] = field(default_factory=list)  # length at which each response is cut
    statuses: list[int] = field(default_factory=list)  # error status of each response
    moved: dict[str, str] = field(default_factory=dict)  # redirects, by path
    stalls: bool = False  # sends half of the file and then nothing
    sends_length: bool = True
    requests: list[tuple[str, str]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Web]:
    """Serve files until the block ends."""
    web = Web(files)

    class Handler(_Handler):
        pass

    Handler.web = web
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # close waits for them: no thread outlives its test
    web.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        web.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    web: Web

    def do_GET(self) -> None:
        web = self.web
        web.requests.append((self.path, self.headers.get("Range", "")))
        if self.path in web.moved:
            self.send_response(302)
            self.send_header("Location", web.moved[self.path])
            self.end_headers()
        elif web.statuses:
            self.send_error(web.statuses.pop(0))
        elif self.path.lstrip("/") not in web.files:
            self.send_error(404)
        else:
            self._send(web.files[self.path.lstrip("/")])

    def _send(self, data: bytes) -> None:
        start = self._start()
        if start >= len(data) > 0 and start:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if self.web.sends_length:
            self.send_header("Content-Length", str(len(data) - start))
        if self.web.etag:
            self.send_header("ETag", self.web.etag)
        self.end_headers()
        body = data[start:]
        if self.web.stalls:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.web.closing.wait()
        else:
            self.wfile.write(body[: self.web.cuts.pop(0) if self.web.cuts else None])

    def _start(self) -> int:
        requested = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        is_same = self.headers.get("If-Range", self.web.etag) == self.web.etag
        return int(requested[1]) if requested and self.web.ranges and is_same else 0

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing; the tests check `requests`."""

"""The small HTTP server: responses, limits and errors."""

import logging
import shutil
import socket
import ssl
import struct
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request as Ask
from urllib.request import urlopen

import pytest

from program.tls import pems
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.monitor.web import (
    MAX_PER_ADDRESS,
    Request,
    Response,
    Route,
    TlsFiles,
    WebServer,
    text_response,
)

TIMEOUT_S = 30.0


def echo(request: Request) -> Response:
    return text_response(f"{request.path} {sorted(request.query.items())}")


def broken(_request: Request) -> Response:
    raise RuntimeError("planned")


ROUTES: dict[str, Route] = {"/echo": echo, "/broken": broken}


@contextmanager
def serving(tls: TlsFiles | None = None) -> Iterator[WebServer]:
    server = WebServer(ROUTES, "127.0.0.1", 0, flag="--x-port", tls=tls)
    try:
        yield server
    finally:
        server.stop()


def get(port: int, path: str, method: str = "GET", host: str = "localhost") -> tuple[int, str]:
    ask = Ask(f"http://127.0.0.1:{port}{path}", method=method, headers={"Host": host})
    try:
        with urlopen(ask, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_request_is_answered_by_its_route() -> None:
    with serving() as server:
        assert get(server.port, "/echo?b=2&a=1") == (200, "/echo [('a', '1'), ('b', '2')]\n")
        assert get(server.port, "/echo", "HEAD") == (200, "")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "10.0.0.5", ""])
def test_a_server_on_loopback_refuses_requests_for_another_name(host: str) -> None:
    """A web site can point its own name at 127.0.0.1 and send requests from visitors' browsers."""
    with serving() as server:
        status, text = get(server.port, "/echo", host=host)
        assert status == 403 and "served on loopback" in text


@pytest.mark.parametrize("host", ["LOCALHOST", "localhost.", "LocalHost.:80", "[::1]:80"])
def test_a_server_on_loopback_answers_every_spelling_of_its_name(host: str) -> None:
    with serving() as server:
        assert get(server.port, "/echo", host=host)[0] == 200


def test_a_server_beyond_loopback_answers_every_name() -> None:
    """Prometheus asks for an address, the name of a pod or that of a service."""
    server = WebServer(ROUTES, "0.0.0.0", 0, flag="--x-port")
    try:
        for host in ("10.0.0.5:9464", "ssfl-coordinator.fed.svc:9464", "coordinator.example"):
            assert get(server.port, "/echo", host=host)[0] == 200
    finally:
        server.stop()


def test_a_response_has_its_duration() -> None:
    def slow(_request: Request) -> Response:
        threading.Event().wait(0.2)
        return text_response("done")

    server = WebServer({"/slow": slow}, "127.0.0.1", 0, flag="--x-port")
    try:
        with urlopen(f"http://127.0.0.1:{server.port}/slow", timeout=TIMEOUT_S) as answer:
            name, _, took = answer.headers["Server-Timing"].partition(";dur=")
    finally:
        server.stop()
    assert name == "answer" and 150.0 <= float(took) < 1e3 * TIMEOUT_S


def test_a_request_for_an_unknown_path_gets_the_list_of_paths() -> None:
    with serving() as server:
        assert get(server.port, "/etc/passwd") == (404, "not found; the paths are /broken, /echo\n")


def test_a_malformed_request_is_refused() -> None:
    with serving() as server:
        many = "&".join(f"a{number}=1" for number in range(30))
        assert get(server.port, f"/echo?{many}")[0] == 400


def test_other_methods_are_refused() -> None:
    with serving() as server:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            assert get(server.port, "/echo", method) == (405, "only GET and HEAD are answered\n")


def test_a_failing_route_is_logged_and_not_shown_to_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as server, caplog.at_level(logging.WARNING):
        assert get(server.port, "/broken") == (500, "internal error: see the log\n")
        assert get(server.port, "/echo")[0] == 200
    assert [record.getMessage() for record in caplog.records] == ["a request failed: planned"]


def test_a_closed_connection_is_not_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    left = threading.Event()

    def slow(_request: Request) -> Response:
        assert left.wait(TIMEOUT_S)
        return text_response("x" * 10_000_000)

    logged = threading.Event()

    class Watcher(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            logged.set()

    watcher = Watcher()
    logging.getLogger("ssfl.web").addHandler(watcher)
    server = WebServer({**ROUTES, "/slow": slow}, "127.0.0.1", 0, flag="--x-port")
    try:
        with caplog.at_level(logging.DEBUG, "ssfl.web"):
            caller = socket.create_connection(("127.0.0.1", server.port))
            caller.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            caller.close()  # with a reset
            left.set()
            assert logged.wait(TIMEOUT_S)
    finally:
        server.stop()
        logging.getLogger("ssfl.web").removeHandler(watcher)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ProgramError, match=f"cannot listen on 127.0.0.1:{port}.*--x-port") as e:
            WebServer(ROUTES, "127.0.0.1", port, flag="--x-port")
    assert e.value.exit_code is ExitCode.PORT_IN_USE


def test_a_silent_connection_does_not_block_others() -> None:
    with serving() as server:
        silent = [
            socket.create_connection(("127.0.0.1", server.port)) for _ in range(MAX_PER_ADDRESS - 1)
        ]
        assert get(server.port, "/echo")[0] == 200
        for connection in silent:
            connection.close()


def test_one_address_cannot_use_every_connection() -> None:
    with serving() as server:
        silent = [
            socket.create_connection(("127.0.0.1", server.port)) for _ in range(2 * MAX_PER_ADDRESS)
        ]
        refused = [connection for connection in silent if _is_closed(connection)]
        assert len(refused) >= MAX_PER_ADDRESS
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))
            other.settimeout(TIMEOUT_S)
            other.connect(("127.0.0.1", server.port))
            other.sendall(b"GET /echo HTTP/1.0\r\n\r\n")
            assert other.recv(100).startswith(b"HTTP/1.0 200")
        for connection in silent:
            connection.close()


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_connection_is_closed_in_time_even_if_it_keeps_sending(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ssfl.program.monitor.web.CONNECTION_S", 0.3)
    folder = pems.make(tmp_path / "tls")
    files = TlsFiles(folder / "coordinator.pem", folder / "coordinator-key.pem")
    trusted = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    for tls in (None, files):
        with serving(tls) as server:
            one = socket.create_connection(("127.0.0.1", server.port))
            if tls:
                one = trusted.wrap_socket(one, server_hostname="localhost")
            one.settimeout(TIMEOUT_S)
            with one, pytest.raises(OSError):
                while True:  # byte by byte, until the server closes the connection
                    one.sendall(b"x")


def test_a_certificate_must_have_one_of_the_names(tmp_path: Path) -> None:
    folder = pems.make(tmp_path / "tls", "site", "prometheus")
    files = TlsFiles(
        folder / "coordinator.pem",
        folder / "coordinator-key.pem",
        folder / "ca.pem",
        ("admin", "prometheus"),
    )
    with serving(files) as server:
        for name, is_heard in (("site", False), ("prometheus", True), ("admin", True)):
            trusted = ssl.create_default_context(cafile=str(folder / "ca.pem"))
            trusted.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
            url = f"https://localhost:{server.port}/echo"
            try:
                with urlopen(url, timeout=TIMEOUT_S, context=trusted) as answer:
                    assert answer.status == 200 and is_heard
            except OSError:
                assert not is_heard, name


def test_a_silent_tls_connection_does_not_block_others(tmp_path: Path) -> None:
    folder = pems.make(tmp_path / "tls")
    files = TlsFiles(folder / "coordinator.pem", folder / "coordinator-key.pem")
    trusted = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with serving(files) as server, socket.create_connection(("127.0.0.1", server.port)):
        url = f"https://localhost:{server.port}/echo"
        with urlopen(url, timeout=TIMEOUT_S, context=trusted) as answer:
            assert answer.status == 200


def test_renewed_tls_files_are_used_and_damaged_ones_are_not(tmp_path: Path) -> None:
    old, new = pems.make(tmp_path / "old"), pems.make(tmp_path / "new")
    here = tmp_path / "here"
    shutil.copytree(old, here)
    files = TlsFiles(here / "coordinator.pem", here / "coordinator-key.pem")

    def asks(server: WebServer, authority: Path) -> bool:
        trusted = ssl.create_default_context(cafile=str(authority / "ca.pem"))
        try:
            url = f"https://localhost:{server.port}/echo"
            with urlopen(url, timeout=TIMEOUT_S, context=trusted) as answer:
                return bool(answer.status == 200)
        except urllib.error.URLError:
            return False

    with serving(files) as server:
        assert asks(server, old) and not asks(server, new)
        for name in ("coordinator.pem", "coordinator-key.pem"):
            shutil.copy(new / name, here / name)
        assert asks(server, new) and not asks(server, old)
        (here / "coordinator.pem").write_text("damaged")
        assert asks(server, new)


def test_with_authorities_the_caller_needs_a_certificate(tmp_path: Path) -> None:
    folder = pems.make(tmp_path / "tls", "site")
    files = TlsFiles(folder / "coordinator.pem", folder / "coordinator-key.pem", folder / "ca.pem")
    trusted = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with serving(files) as server:
        url = f"https://localhost:{server.port}/echo"
        with pytest.raises(OSError):
            urlopen(url, timeout=TIMEOUT_S, context=trusted).read()
        trusted.load_cert_chain(folder / "site.pem", folder / "site-key.pem")
        with urlopen(url, timeout=TIMEOUT_S, context=trusted) as answer:
            assert answer.status == 200

"""Tests of the proxy itself: cuts, stalls, delays, limits and counts."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from system.programs import until
from system.proxy import DOWN, UP, Proxy

TIMEOUT_S = 10.0


@pytest.fixture
def echo() -> Iterator[int]:
    """Yield the port of an echo server."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                return

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield int(server.getsockname()[1])
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(TIMEOUT_S)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as made:
        yield made


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT_S)


def exactly(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (more := connection.recv(num_bytes - len(data))):
        data += more
    return data


def test_bytes_pass_both_ways_and_are_counted(proxy: Proxy) -> None:
    sent = bytes(range(256)) * 1000
    with connect(proxy) as first, connect(proxy) as second:
        for connection in (first, second):
            threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
            assert exactly(connection, len(sent)) == sent
    assert proxy.connections == 2
    assert proxy.passed == {UP: 2 * len(sent), DOWN: 2 * len(sent)}


def test_a_close_on_one_side_reaches_the_other(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert exactly(connection, 100) == b"last words"
        assert connection.recv(1) == b""


@pytest.mark.parametrize("reset", [True, False], ids=["RST", "FIN"])
def test_a_cut_ends_open_connections_and_spares_new_ones(proxy: Proxy, reset: bool) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"x")
        assert exactly(connection, 1) == b"x"
        assert proxy.cut(reset=reset) == 1
        if reset:
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        else:
            assert connection.recv(1) == b""
    with connect(proxy) as connection:
        connection.sendall(b"y")
        assert exactly(connection, 1) == b"y"
    assert proxy.cut() == 0 or until(lambda: not proxy.cut(), "closed connections are gone")


def test_a_cut_after_some_bytes_lets_exactly_those_pass(proxy: Proxy) -> None:
    proxy.cut_after(70_000, UP, reset=False)
    with connect(proxy) as connection:
        connection.sendall(bytes(100_000))
        assert len(exactly(connection, 100_000)) <= 70_000
    assert proxy.passed[UP] == 70_000
    with connect(proxy) as connection:  # a scheduled cut happens once
        connection.sendall(bytes(100_000))
        assert len(exactly(connection, 100_000)) == 100_000


def test_a_stalled_proxy_accepts_bytes_and_forwards_none_until_it_flows(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert exactly(connection, 1) == b"a"
        proxy.stall()
        connection.sendall(bytes(1 << 22))  # more than socket buffers hold, so the proxy reads it
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert proxy.passed[UP] == 1
        proxy.flow()
        connection.settimeout(TIMEOUT_S)
        assert len(exactly(connection, 1 << 22)) == 1 << 22


def test_a_refusing_proxy_closes_new_connections(proxy: Proxy) -> None:
    proxy.refuse()
    with connect(proxy) as connection:
        assert connection.recv(1) == b""
    proxy.accept()
    with connect(proxy) as connection:
        connection.sendall(b"z")
        assert exactly(connection, 1) == b"z"


def test_delay_and_rate_limit_slow_the_bytes_down(proxy: Proxy) -> None:
    proxy.delay(0.05)
    with connect(proxy) as connection:
        began_s = time.monotonic()
        connection.sendall(b"x")
        assert exactly(connection, 1) == b"x"
        assert time.monotonic() - began_s >= 0.1  # both directions
    proxy.delay(0)
    proxy.limit(1 << 19)
    with connect(proxy) as connection:
        began_s = time.monotonic()
        threading.Thread(target=connection.sendall, args=(bytes(1 << 18),), daemon=True).start()
        assert len(exactly(connection, 1 << 18)) == 1 << 18
        assert time.monotonic() - began_s >= 0.5


def test_without_a_coordinator_a_connection_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Proxy(port) as proxy, connect(proxy) as connection, pytest.raises(ConnectionResetError):
        connection.recv(1)

"""Real sockets on loopback, counted by the kernel."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ssfl.server.accounting.kernel_bytes import Connections, carried_by_connection, place_of
from ssfl.server.accounting.ledger import Ledger
from ssfl.strategies.contract import ClientId

ANN, BOB = ClientId("ann"), ClientId("bob")
counting = pytest.mark.skipif(
    not hasattr(socket, "TCP_INFO") or not Path("/proc/self/fd").is_dir(), reason="not Linux"
)


def test_the_place_of_a_peer_is_the_address_of_its_socket() -> None:
    assert place_of("ipv4:127.0.0.1:43210") == ("127.0.0.1", 43210)
    assert place_of("ipv6:%5B::1%5D:1234") == ("::1", 1234)
    assert place_of("ipv6:[::1]:1234") == ("::1", 1234)
    assert place_of("ipv6:%5B::ffff:10.0.0.7%5D:1234") == ("10.0.0.7", 1234)
    assert place_of("ipv6:%5Bfe80::1%25eth0%5D:1234") == ("fe80::1", 1234)


@pytest.mark.parametrize(
    "peer", ["", "unix:/run/ssfl.sock", "unix:", "ipv4:nowhere:1", "ipv4:127.0.0.1:x", "ipv4:1"]
)
def test_a_peer_that_is_not_a_tcp_connection_has_no_place(peer: str) -> None:
    assert place_of(peer) is None


class Wire:
    """One connection with both ends in this process; the near end is on the port."""

    def __init__(self, server: socket.socket) -> None:
        self.far = socket.create_connection(server.getsockname()[:2])
        self.near, _ = server.accept()
        host, port = self.far.getsockname()[:2]
        self.peer = f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def up(self, num_bytes: int) -> None:
        self.far.sendall(bytes(num_bytes))
        self._all(self.near, num_bytes)

    def down(self, num_bytes: int) -> None:
        self.near.sendall(bytes(num_bytes))
        self._all(self.far, num_bytes)

    @staticmethod
    def _all(end: socket.socket, num_bytes: int) -> None:
        assert len(end.recv(num_bytes, socket.MSG_WAITALL)) == num_bytes

    def close(self) -> None:
        self.far.close()
        self.near.close()


@contextmanager
def listening(family: socket.AddressFamily = socket.AF_INET) -> Iterator[socket.socket]:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as server:
        yield server


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def booked(ledger: Ledger) -> dict[tuple[str, str], int]:
    return {(row["client"], row["direction"]): row["socket_bytes"] for row in ledger.take()}


@counting
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_counts_what_was_sent_each_way(family: socket.AddressFamily) -> None:
    with listening(family) as server, closing(Wire(server)) as wire:
        wire.up(1000)
        wire.down(30)
        found = carried_by_connection(port_of(server))
        assert [place for _, place in found] == [place_of(wire.peer)]
        assert list(found.values()) == [(1000, 30)]
        assert carried_by_connection(1) == {}


@counting
def test_sampling_leaves_no_file_open_and_the_connection_usable() -> None:
    with listening() as server, closing(Wire(server)) as wire:
        before = len(list(Path("/proc/self/fd").iterdir()))
        carried_by_connection(port_of(server))
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        wire.up(10)


@counting
def test_each_client_is_booked_the_bytes_since_the_last_sample() -> None:
    async def story() -> None:
        ledger = Ledger()
        connections = Connections(ledger)
        with listening() as server, closing(Wire(server)) as one, closing(Wire(server)) as two:
            await connections.count()  # before the port is known
            connections.port = port_of(server)
            one.up(100)
            two.down(7)
            await connections.count()
            assert booked(ledger) == {}, "no call was made yet"
            connections.assign(one.peer, ANN)
            connections.assign(two.peer, BOB)
            await connections.count()
            assert booked(ledger) == {("ann", "up"): 100, ("bob", "down"): 7}
            one.up(5)
            await connections.count()
            assert booked(ledger) == {("ann", "up"): 5}
            connections.assign(one.peer, BOB)  # a proxy: the last caller
            one.up(6)
            await connections.count()
            assert booked(ledger) == {("bob", "up"): 6}

    asyncio.run(story())


@counting
def test_a_reused_port_is_a_new_connection() -> None:
    async def story() -> None:
        ledger = Ledger()
        connections = Connections(ledger)
        with listening() as server:
            connections.port = port_of(server)
            wire = Wire(server)
            connections.assign(wire.peer, ANN)
            wire.up(100)
            await connections.count()
            port = wire.far.getsockname()[1]
            linger = b"\x01\0\0\0\0\0\0\0"  # reset on close, so that the port is free at once
            wire.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            wire.close()
            far = socket.create_connection(server.getsockname(), source_address=("127.0.0.1", port))
            near, _ = server.accept()
            with far, near:
                far.sendall(bytes(130))
                assert len(near.recv(130, socket.MSG_WAITALL)) == 130
                await connections.count()
        assert booked(ledger) == {("ann", "up"): 230}

    asyncio.run(story())


@counting
def test_concurrent_callers_share_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def look(port: int, files: Path) -> object:
        looks.append(port)
        return carried_by_connection(port, files)

    monkeypatch.setattr("ssfl.server.accounting.kernel_bytes.carried_by_connection", look)

    async def story() -> None:
        ledger = Ledger()
        connections = Connections(ledger)
        with listening() as server, closing(Wire(server)) as wire:
            connections.port = port_of(server)
            connections.assign(wire.peer, ANN)
            first = asyncio.ensure_future(connections.count())
            while not looks:
                await asyncio.sleep(0)
            wire.up(9)  # the sample in progress may have missed it
            await asyncio.gather(*(connections.count() for _ in range(100)))
            await first
        assert booked(ledger) == {("ann", "up"): 9}
        assert len(looks) == 2

    asyncio.run(story())


def test_a_system_without_counters_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        ledger = Ledger()
        connections = Connections(ledger, open_files=tmp_path / "none")
        connections.port = 1
        connections.assign("ipv4:127.0.0.1:5", ANN)
        await connections.count()
        await connections.count()
        assert ledger.rows() == []

    asyncio.run(story())
    assert caplog.text.count("socket bytes are not counted") == 1

"""What the kernel counted on the clients' connections: every byte that TCP carried.

gRPC keeps its sockets to itself. They are found among this process's open files (/proc/self/fd)
and their counters asked for with TCP_INFO: HTTP/2 framing, headers and pings are in them,
TCP/IP headers are not. A call's `peer` tells which client a connection belongs to.

Several clients behind one proxy may share a connection: what it carried since the last sample is
booked to the client that spoke last. What a connection carries between its last sample and its
end is not seen; a client that says goodbye is sampled then. Where the system has no /proc or
does not count (macOS), nothing is booked, and the log says so once.
"""

import asyncio
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

from ssfl.method.strategies.contract import ClientId
from ssfl.server.accounting.ledger import Direction, Ledger

log = logging.getLogger(__name__)

OPEN_FILES = Path("/proc/self/fd")
# linux/tcp.h, struct tcp_info: u64 fields at these bytes. Before Linux 4.19 the bytes sent are
# known only as far as they were acknowledged.
ACKED_AT, RECEIVED_AT, SENT_AT = 120, 128, 200
INFO_BYTES, OLD_INFO_BYTES = 208, 136

Place = tuple[str, int]  # address and port of the far end
Carried = tuple[int, int]  # bytes received and sent


class Connections:
    """The connections of clients, and how much of each is in the ledger."""

    def __init__(self, ledger: Ledger, open_files: Path = OPEN_FILES) -> None:
        self.port = 0  # that clients connect to; 0: not listening yet
        self._ledger = ledger
        self._open_files = open_files
        self._speakers: dict[str, tuple[ClientId, Place]] = {}  # by peer
        self._booked: dict[tuple[int, Place], Carried] = {}  # by inode and place
        self._counts = True
        # 500 connections take 10 to 20 ms, and a commit waits for it: not behind somebody's hash.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sockets")
        self._one_at_a_time = asyncio.Lock()
        self._next: asyncio.Future[None] | None = None

    def belongs(self, peer: str, client: ClientId) -> None:
        """Note who speaks on a connection; `peer` as a call's context names it."""
        known = self._speakers.get(peer)
        if known is None or known[0] != client:
            place = place_of(peer)
            if place is not None:
                self._speakers[peer] = (client, place)

    async def count(self) -> None:
        """Book what was carried since the last time; whoever asks meanwhile shares the next look.

        Hundreds of clients that leave at once cost a few looks, not hundreds.
        """
        if not self._counts or not self.port:
            return
        if self._next is None:
            self._next = asyncio.ensure_future(self._look())
        await asyncio.shield(self._next)

    async def _look(self) -> None:
        async with self._one_at_a_time:
            self._next = None
            speakers = dict(self._speakers)
            look = partial(carried_by_connection, self.port, self._open_files)
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._thread, look)
            except OSError as error:
                self._counts = False
                log.warning("socket bytes are not counted on this system: %s", error)
                return
            self._book(found, speakers)

    def _book(
        self, found: dict[tuple[int, Place], Carried], speakers: dict[str, tuple[ClientId, Place]]
    ) -> None:
        clients = {place: client for client, place in speakers.values()}
        booked: dict[tuple[int, Place], Carried] = {}
        for connection, (received, sent) in found.items():
            before = booked[connection] = self._booked.get(connection, (0, 0))
            client = clients.get(connection[1])
            if client is not None:  # else nobody has spoken on it yet: booked when somebody does
                self._ledger.carry(client, Direction.UP, received - before[0])
                self._ledger.carry(client, Direction.DOWN, sent - before[1])
                booked[connection] = received, sent
        self._booked = booked
        open_now = {place for _, place in found}
        for peer, (_, place) in speakers.items():
            if place not in open_now:
                self._speakers.pop(peer, None)


def place_of(peer: str) -> Place | None:
    """Return where a call comes from, from "ipv4:127.0.0.1:43210" or "ipv6:%5B::1%5D:43210".

    None if it is no TCP connection.
    """
    family, _, rest = unquote(peer).partition(":")
    address, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    with suppress(ValueError):
        return _plain(address.strip("[]")), int(port)
    return None


def carried_by_connection(
    port: int, open_files: Path = OPEN_FILES
) -> dict[tuple[int, Place], Carried]:
    """Return what each connection to `port` of this process carried so far.

    They are told apart by inode, too: a port of the far end may come again. Raise OSError if
    this system does not tell.
    """
    if not hasattr(socket, "TCP_INFO"):
        raise OSError("it has no TCP_INFO")
    found: dict[tuple[int, Place], Carried | None] = {}
    for link in open_files.iterdir():
        with suppress(OSError):  # closed while we look, or not connected
            found.update(_connection(int(link.name), port))
    if any(counted is None for counted in found.values()):
        raise OSError("its TCP_INFO has no counters (Linux 4.1 has them)")
    return {key: counted for key, counted in found.items() if counted is not None}


def _connection(file: int, port: int) -> Iterator[tuple[tuple[int, Place], Carried | None]]:
    """Yield the connection behind an open file if it is one to `port`."""
    if not stat.S_ISSOCK(os.fstat(file).st_mode):
        return
    # A duplicate stays the same socket even if gRPC closes its own meanwhile.
    with socket.socket(fileno=os.dup(file)) as borrowed:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6):
            return
        if borrowed.type != socket.SOCK_STREAM or borrowed.getsockname()[1] != port:
            return
        address, far_port, *_ = borrowed.getpeername()
        info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        key = os.fstat(borrowed.fileno()).st_ino, (_plain(address), far_port)
    if len(info) < OLD_INFO_BYTES:
        yield key, None
        return
    sent_at = SENT_AT if len(info) >= INFO_BYTES else ACKED_AT
    (received,), (sent,) = (struct.unpack_from("Q", info, at) for at in (RECEIVED_AT, sent_at))
    yield key, (received, sent)


@lru_cache(maxsize=1024)
def _plain(address: str) -> str:
    """Return an address in one form, however a socket of either family writes it."""
    plain = ip_address(address.partition("%")[0])
    mapped = plain.ipv4_mapped if isinstance(plain, IPv6Address) else None
    return str(mapped or plain)

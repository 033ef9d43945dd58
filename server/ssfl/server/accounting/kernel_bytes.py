"""Socket bytes of the clients' connections, as counted by the kernel (TCP_INFO).

gRPC does not expose its sockets. They are found among the open files of this process
(/proc/self/fd). The counters include HTTP/2 framing, headers and pings, but not TCP/IP headers.
The `peer` of a call identifies the client of a connection.

Several clients behind one proxy may share a connection; its bytes since the last sample are then
booked to the last caller. Bytes between the last sample of a connection and its end are not seen,
so a client is sampled when it leaves. On systems without /proc or counters (macOS) nothing is
booked, and the log reports that once.
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

from ssfl.server.accounting.ledger import Direction, Ledger
from ssfl.strategies.contract import ClientId

log = logging.getLogger(__name__)

OPEN_FILES = Path("/proc/self/fd")
# linux/tcp.h, struct tcp_info: offsets of u64 fields. Before Linux 4.19 only acknowledged sent
# bytes are known.
ACKED_AT, RECEIVED_AT, SENT_AT = 120, 128, 200
INFO_BYTES, OLD_INFO_BYTES = 208, 136

Place = tuple[str, int]  # address and port of the far end
Carried = tuple[int, int]  # bytes received and sent
Sample = dict[tuple[int, Place], Carried]  # by inode, too, since remote ports are reused


class Connections:
    """The connections of clients, and how many bytes of each are in the ledger."""

    def __init__(self, ledger: Ledger, open_files: Path = OPEN_FILES) -> None:
        self.port = 0  # the port clients connect to; 0: not listening yet
        self._ledger = ledger
        self._open_files = open_files
        self._callers: dict[str, tuple[ClientId, Place]] = {}  # by peer: its last caller
        self._booked: Sample = {}
        self._is_supported = True  # False after the first failure: this system has no counters
        # A thread of its own: 500 connections take 10 to 20 ms, and commits wait for the result.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sockets")
        self._one_at_a_time = asyncio.Lock()
        self._next: asyncio.Future[None] | None = None  # a sample that has not begun yet

    def assign(self, peer: str, client: ClientId) -> None:
        """Record the client of a connection; `peer` is that of the call's context."""
        known = self._callers.get(peer)
        if (known is None or known[0] != client) and (place := place_of(peer)):
            self._callers[peer] = (client, place)

    async def count(self) -> None:
        """Book the bytes since the last sample. Calls that wait share the next sample."""
        if not self._is_supported or not self.port:
            return
        if self._next is None:
            self._next = asyncio.ensure_future(self._take_sample())
        await asyncio.shield(self._next)

    async def _take_sample(self) -> None:
        async with self._one_at_a_time:
            self._next = None
            callers = dict(self._callers)
            sample = partial(carried_by_connection, self.port, self._open_files)
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._thread, sample)
            except OSError as error:
                self._is_supported = False
                log.warning("socket bytes are not counted on this system: %s", error)
                return
            self._book(found, callers)

    def _book(self, found: Sample, callers: dict[str, tuple[ClientId, Place]]) -> None:
        clients = {place: client for client, place in callers.values()}
        booked: Sample = {}
        for connection, (received, sent) in found.items():
            before = booked[connection] = self._booked.get(connection, (0, 0))
            client = clients.get(connection[1])
            if client is not None:  # else no call has used it yet: booked after the first call
                self._ledger.carry(client, Direction.UP, received - before[0])
                self._ledger.carry(client, Direction.DOWN, sent - before[1])
                booked[connection] = received, sent
        self._booked = booked
        open_now = {place for _, place in found}
        for peer, (_, place) in callers.items():
            if place not in open_now:
                self._callers.pop(peer, None)


def place_of(peer: str) -> Place | None:
    """Return the address and port of a peer such as "ipv4:127.0.0.1:43210".

    IPv6 peers look like "ipv6:%5B::1%5D:43210". None if the peer is not a TCP connection.
    """
    family, _, rest = unquote(peer).partition(":")
    address, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    with suppress(ValueError):
        return _plain(address.strip("[]")), int(port)
    return None


def carried_by_connection(port: int, open_files: Path = OPEN_FILES) -> Sample:
    """Return the bytes carried so far by each connection to `port` of this process.

    Raise OSError if this system has no counters.
    """
    if not hasattr(socket, "TCP_INFO"):
        raise OSError("it has no TCP_INFO")
    found: dict[tuple[int, Place], Carried | None] = {}
    for link in open_files.iterdir():
        with suppress(OSError):  # closed in the meantime, or not connected
            found.update(_connection(int(link.name), port))
    if any(counted is None for counted in found.values()):
        raise OSError("its TCP_INFO has no counters (they need Linux 4.1 or newer)")
    return {key: counted for key, counted in found.items() if counted is not None}


def _connection(file: int, port: int) -> Iterator[tuple[tuple[int, Place], Carried | None]]:
    """Yield the connection behind an open file if its local port is `port`."""
    if not stat.S_ISSOCK(os.fstat(file).st_mode):
        return
    # The duplicate stays the same socket even if gRPC closes the original.
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
    """Return an address in canonical form, for sockets of either family."""
    plain = ip_address(address.partition("%")[0])
    mapped = plain.ipv4_mapped if isinstance(plain, IPv6Address) else None
    return str(mapped or plain)

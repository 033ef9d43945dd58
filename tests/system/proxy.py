"""A TCP proxy between a client and its coordinator that injects network faults.

It cuts connections (FIN or RST), stalls them (half-open: bytes are read, none are forwarded),
delays and rate-limits bytes, and counts them. The test's thread injects faults at once or after a
number of bytes. Cuts and stalls hit open connections only; delay and rate apply to all. The proxy
runs in a thread of its own and ends with its `with` block.

A cut loses bytes that were forwarded but not yet read; on a busy machine, many. A scheduled cut or
stall therefore waits until the process in `receivers`, if any, has read all of them.
"""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

BLOCK_BYTES = 1 << 14
UP, DOWN = "up", "down"  # from the client, to the client
_LINGER_NONE = struct.pack("ii", 1, 0)  # close with RST


class _Pair:
    """A client's connection and the matching one to the coordinator."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near, self.far = near, far
        self.flows = asyncio.Event()  # cleared: stalled
        self.flows.set()

    def cut(self, *, reset: bool) -> None:
        for writer in (self.near, self.far):
            if reset:
                _reset(writer)
            else:
                writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    writer.transport.abort()


def _is_taken(writer: asyncio.StreamWriter, receiver: int | None) -> bool:
    """Return True if the receiving process has read all bytes and is idle."""
    if receiver is None or not Path(f"/proc/{receiver}").exists():
        return True
    before = _sleeps(receiver)
    return bool(before) and not _unread(writer) and _sleeps(receiver) == before


def _unread(writer: asyncio.StreamWriter) -> bool:
    """Return True if bytes wait in a buffer between the proxy and the receiving process."""
    if writer.transport.get_write_buffer_size():
        return True
    ours, theirs = (writer.get_extra_info(name)[1] for name in ("sockname", "peername"))
    for family in ("tcp", "tcp6"):
        for row in Path("/proc/net", family).read_text().splitlines()[1:]:
            local, remote, _, queues = row.split()[1:5]
            ports = int(local[-4:], 16), int(remote[-4:], 16)
            sent, received = (int(size, 16) for size in queues.split(":"))
            if (ports == (ours, theirs) and sent) or (ports == (theirs, ours) and received):
                return True
    return False


def _sleeps(process: int) -> list[str]:
    """Return how often each thread has slept; empty if one is awake or all have ended."""
    found = []
    with suppress(OSError):  # a thread may end while we read
        for thread in Path(f"/proc/{process}/task").iterdir():
            status = (thread / "status").read_text()
            if "State:\tS" not in status:
                return []
            found.append(status.partition("\nvoluntary_ctxt_switches:")[2])
        return found
    return []


class Proxy:
    """A proxy to `port` on this machine; clients connect to `self.port`."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.receivers: dict[str, int] = {}  # process ids by direction
        self.connections = 0  # accepted so far
        self.passed = {UP: 0, DOWN: 0}  # bytes forwarded
        self._to_port = port
        self._delay_s = 0.0
        self._bytes_per_s = 0.0  # per direction and connection; 0: no limit
        self._after: dict[str, tuple[int, Callable[[], Any]]] = {}  # bytes left, fault
        self._open: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._accepts = True
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        assert self._ready.wait(10), "the proxy did not start"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(10)

    # -- faults

    def cut(self, *, reset: bool = True) -> int:
        """Cut every open connection; return their number."""
        return int(self._call(lambda: self._cut(reset)))

    def cut_after(self, num_bytes: int, direction: str = UP, *, reset: bool = True) -> None:
        """Cut every connection once, after `num_bytes` more bytes in one direction."""
        self._call(lambda: self._after.update({direction: (num_bytes, lambda: self._cut(reset))}))

    def stall(self) -> None:
        """Read but do not forward, on every open connection; the peers do not notice."""
        self._call(self._stall)

    def stall_after(self, num_bytes: int, direction: str = UP) -> None:
        """Stall every open connection once, after `num_bytes` more bytes in one direction."""
        self._call(lambda: self._after.update({direction: (num_bytes, self._stall)}))

    def flow(self) -> None:
        """End all stalls and forward the bytes held back."""
        self._call(self._flow)

    def refuse(self) -> None:
        """Close new connections at once, until `accept`."""
        self._call(lambda: setattr(self, "_accepts", False))

    def accept(self) -> None:
        self._call(lambda: setattr(self, "_accepts", True))

    def delay(self, seconds: float) -> None:
        """Delay every block by `seconds`; the order is kept."""
        self._call(lambda: setattr(self, "_delay_s", seconds))

    def limit(self, bytes_per_s: float) -> None:
        """Forward at most this rate per direction and connection; 0: no limit."""
        self._call(lambda: setattr(self, "_bytes_per_s", bytes_per_s))

    # -- in the event loop

    def _call(self, change: Callable[[], Any]) -> Any:
        """Run a function in the loop and return its result."""
        done: Future[Any] = Future()

        def do() -> None:
            done.set_result(change())

        self._loop.call_soon_threadsafe(do)
        return done.result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = self._loop.run_until_complete(listening)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    def _end(self) -> None:
        self._cut(reset=True)
        self._loop.stop()

    def _cut(self, reset: bool) -> int:
        pairs, self._open = self._open, set()
        for pair in pairs:
            pair.cut(reset=reset)
        return len(pairs)

    def _flow(self) -> None:
        for pair in self._open:
            pair.flows.set()

    def _stall(self) -> None:
        for pair in self._open:
            pair.flows.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if not self._accepts:
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:  # no coordinator: the client's connection is closed
            _reset(writer)
            return
        pair = _Pair(writer, far_writer)
        self._open.add(pair)
        both = [
            self._loop.create_task(self._pass(pair, reader, far_writer, UP)),
            self._loop.create_task(self._pass(pair, far_reader, writer, DOWN)),
        ]
        self._tasks.update(both)
        await asyncio.wait(both)
        self._tasks.difference_update(both)
        self._open.discard(pair)
        pair.cut(reset=False)

    async def _pass(
        self,
        pair: _Pair,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: str,
    ) -> None:
        """Forward one direction until its end."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()  # unbounded: half-open
        giving = self._loop.create_task(self._give(pair, waiting, writer, direction))
        try:
            while data := await self._read(reader):
                waiting.put_nowait((time.monotonic(), data))
            waiting.put_nowait((time.monotonic(), b""))
            await giving
        except OSError:
            with suppress(OSError):
                writer.close()
        finally:
            giving.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        if self._bytes_per_s:  # a slow link does not read more than it forwards
            await asyncio.sleep(BLOCK_BYTES / self._bytes_per_s)
        return await reader.read(BLOCK_BYTES)

    async def _give(
        self,
        pair: _Pair,
        waiting: "asyncio.Queue[tuple[float, bytes]]",
        writer: asyncio.StreamWriter,
        direction: str,
    ) -> None:
        with suppress(OSError):
            while True:
                came_s, data = await waiting.get()
                await asyncio.sleep(max(0.0, came_s + self._delay_s - time.monotonic()))
                await pair.flows.wait()
                if not data:
                    writer.write_eof()
                    return
                allowed, then = self._allowed(len(data), direction)
                await self._write(writer, data[:allowed], direction)
                if then is None:
                    continue
                while not _is_taken(writer, self.receivers.get(direction)):
                    await asyncio.sleep(0.005)
                then()
                if pair not in self._open:  # cut by a fault
                    return
                await pair.flows.wait()
                await self._write(writer, data[allowed:], direction)

    async def _write(self, writer: asyncio.StreamWriter, data: bytes, direction: str) -> None:
        self.passed[direction] += len(data)
        writer.write(data)
        await writer.drain()

    def _allowed(self, num_bytes: int, direction: str) -> tuple[int, Callable[[], Any] | None]:
        """Return the bytes that may pass before the scheduled fault, and the fault."""
        if direction not in self._after:
            return num_bytes, None
        left, then = self._after[direction]
        if num_bytes < left:
            self._after[direction] = (left - num_bytes, then)
            return num_bytes, None
        del self._after[direction]
        return left, then

"""What does an idle client cost a Python gRPC server, with threads and with asyncio?

    python -m benchmarks.idle_servers

Bare servers without our code: the baseline of docs/decisions/0002-asyncio-server.md. 500
connections hold one stream each; resident memory and threads of the server process are read before
and after. Then each client uploads 8 MiB, eight at a time, and memory is read again: the cost of an
idle client that was busy before. Writes benchmarks/results/idle_servers.json.
"""

import argparse
import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from benchmarks import environment
from benchmarks.async_client import OPTIONS
from benchmarks.coordinator_process import Coordinator

from ssfl.server.rpc.listen import OPTIONS as OURS

CHUNK_BYTES, CHUNKS, AT_ONCE = 1 << 20, 8, 8
UPLOAD_S = 5.0  # after this time an upload counts as not served
DEFAULTS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 2 * CHUNK_BYTES),
]


@dataclass(frozen=True)
class ServerRow:
    """One kind of server."""

    server: str
    kb_per_idle_client: float
    threads: int
    kb_per_client_after_upload: float | None  # None: uploads are not served


def serve_threads(workers: int) -> None:
    """Serve with one thread per call, until killed."""
    never = threading.Event()

    def poll(_request: bytes, _context: Any) -> Iterator[bytes]:
        yield b"waiting"
        never.wait()

    def upload(requests: Iterator[bytes], _context: Any) -> bytes:
        return str(sum(len(chunk) for chunk in requests)).encode()

    server = grpc.server(ThreadPoolExecutor(workers), options=DEFAULTS)
    server.add_generic_rpc_handlers((_handlers(poll, upload),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


async def serve_asyncio(options: list[tuple[str, int]]) -> None:
    """Serve all calls on one event loop, until killed."""
    never = asyncio.Event()

    async def poll(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield b"waiting"
        await never.wait()

    async def upload(requests: AsyncIterator[bytes], _context: Any) -> bytes:
        return str(sum([len(chunk) async for chunk in requests])).encode()

    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((_handlers(poll, upload),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


def _handlers(poll: Any, upload: Any) -> Any:
    methods = {
        "Poll": grpc.unary_stream_rpc_method_handler(poll),
        "Upload": grpc.stream_unary_rpc_method_handler(upload),
    }
    return grpc.method_handlers_generic_handler("Idle", methods)


async def measure(name: str, flags: list[str], clients: int) -> ServerRow:
    """Hold the streams of `clients` open, then let them upload; return their cost."""
    command = [sys.executable, "-m", "benchmarks.idle_servers", *flags]
    process = subprocess.Popen(command, cwd=environment.ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = f"127.0.0.1:{process.stdout.readline().strip()}"
        server = Coordinator(process, {"listening": address})
        started = server.resident_bytes()
        channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(clients)]
        polls = [channel.unary_stream("/Idle/Poll")(b"") for channel in channels]
        await asyncio.gather(*(poll.read() for poll in polls))
        idle, threads = server.resident_bytes(), server.num_threads()
        after = server.resident_bytes() if await _upload(channels) else None
        await asyncio.gather(*(channel.close() for channel in channels))
    finally:
        process.kill()
        process.communicate()

    def kb_per_client(resident: int) -> float:
        return (resident - started) / clients / 1000

    return ServerRow(
        name, kb_per_client(idle), threads, None if after is None else kb_per_client(after)
    )


async def _upload(channels: list[Any]) -> bool:
    """Upload from every channel; return True if the server served all."""
    slots, chunk = asyncio.Semaphore(AT_ONCE), bytes(CHUNK_BYTES)

    async def one(channel: Any) -> None:
        async with slots:
            call = channel.stream_unary("/Idle/Upload")()
            for _ in range(CHUNKS):
                async with asyncio.timeout(UPLOAD_S):
                    await call.write(chunk)
            await call.done_writing()
            await call

    try:
        await asyncio.gather(*(one(channel) for channel in channels))
    except TimeoutError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)  # threads to serve
    parser.add_argument("--asyncio", choices=("default", "ours"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        serve_threads(args.threads)
    elif args.asyncio:
        asyncio.run(serve_asyncio(DEFAULTS if args.asyncio == "default" else OURS))
    else:
        asyncio.run(compare(args.clients, args.out))
    return 0


async def compare(clients: int, out: Path) -> None:
    """Measure every kind of server, print and write the rows."""
    kinds = {
        "threads, as many as streams": ["--threads", str(clients)],
        f"threads, {AT_ONCE} more than streams": ["--threads", str(clients + AT_ONCE)],
        "asyncio": ["--asyncio", "default"],
        "asyncio, the coordinator's options": ["--asyncio", "ours"],
    }
    print(f"{'KB per idle client':<38}{'idle':>8}{'after upload':>14}{'threads':>9}")
    rows = []
    for name, flags in kinds.items():
        row = await measure(name, flags, clients)
        rows.append(asdict(row))
        after = row.kb_per_client_after_upload
        word = "never served" if after is None else f"{after:.0f}"
        print(f"{name:<38}{row.kb_per_idle_client:>8.0f}{word:>14}{row.threads:>9}")
    environment.write(out / "idle_servers.json", {"clients": clients, "servers": rows})


if __name__ == "__main__":
    sys.exit(main())

"""What does an idle long poll cost a gRPC server in Python: with threads, with asyncio?

    python -m benchmarks.idle_servers

Bare servers without our code: the floor that docs/decisions/0002-asyncio-server.md starts from.
500 connections hold one stream each; resident memory and threads of the server process are read
before and after. Then one more call, an "upload", asks to be served within five seconds.
Writes benchmarks/results/idle_servers.json.
"""

import argparse
import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from benchmarks import environment
from benchmarks.coordinator_process import Coordinator
from benchmarks.raw_client import OPTIONS

UPLOAD_S = 5.0
SERVERS = {
    "threads, as many as streams": ("threads", 0),
    "threads, one more than streams": ("threads", 1),
    "asyncio": ("asyncio", 0),
}


def serve_threads(workers: int) -> None:
    """Serve with a thread per call, until killed."""
    never = threading.Event()

    def poll(_request: bytes, _context: Any) -> Iterator[bytes]:
        yield b"waiting"
        never.wait()

    server = grpc.server(ThreadPoolExecutor(workers), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_handlers(poll, lambda request, _context: request),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


async def serve_asyncio() -> None:
    """Serve all calls on one event loop, until killed."""
    never = asyncio.Event()

    async def poll(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield b"waiting"
        await never.wait()

    async def upload(request: bytes, _context: Any) -> bytes:
        return request

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_handlers(poll, upload),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


def _handlers(poll: Any, upload: Any) -> Any:
    methods = {
        "Poll": grpc.unary_stream_rpc_method_handler(poll),
        "Upload": grpc.unary_unary_rpc_method_handler(upload),
    }
    return grpc.method_handlers_generic_handler("Idle", methods)


async def measure(kind: str, workers: int, clients: int) -> dict[str, Any]:
    """Hold the streams of `clients` open; return what they cost."""
    command = [sys.executable, "-m", "benchmarks.idle_servers", "--serve", kind]
    process = subprocess.Popen(
        [*command, "--workers", str(workers)],
        cwd=environment.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = f"127.0.0.1:{process.stdout.readline().strip()}"
        server = Coordinator(process, address, "")
        started = server.resident_bytes()
        channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(clients)]
        polls = [channel.unary_stream("/Idle/Poll")(b"") for channel in channels]
        await asyncio.gather(*(poll.read() for poll in polls))
        idle, threads = server.resident_bytes(), server.num_threads()
        served = True
        try:
            await channels[0].unary_unary("/Idle/Upload")(b"values", timeout=UPLOAD_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            served = False
        await asyncio.gather(*(channel.close() for channel in channels))
    finally:
        process.kill()
        process.communicate()
    return {
        "kb_per_idle_client": (idle - started) / clients / 1000,
        "threads": threads,
        "upload_served": served,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--serve", choices=("threads", "asyncio"), help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve == "threads":
        serve_threads(args.workers)
        return 0
    if args.serve == "asyncio":
        asyncio.run(serve_asyncio())
        return 0
    result: dict[str, Any] = {"clients": args.clients, "servers": {}}
    for name, (kind, more) in SERVERS.items():
        row = asyncio.run(measure(kind, args.clients + more, args.clients))
        result["servers"][name] = row
        word = "served" if row["upload_served"] else f"not served within {UPLOAD_S:.0f} s"
        print(
            f"{name:<32}{row['kb_per_idle_client']:6.1f} KB per idle client, "
            f"{row['threads']:4} threads, an upload: {word}"
        )
    environment.write(args.out / "idle_servers.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

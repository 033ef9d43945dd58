"""The client port takes up every call, also of more clients at once than gRPC allows by default."""

import asyncio
from collections import Counter
from typing import Any

import grpc
import grpc.aio

from ssfl.server.loop.limits import MAX_CONNECTIONS, MAX_STREAMS
from ssfl.server.rpc.listen import client_options

CALLS = 3200  # gRPC cancels some of 1,000 pending calls, and all beyond 3,000
METHOD = "/test/Echo"
WITHIN_S = 60.0


async def _echo(request: bytes, _context: Any) -> bytes:
    return request


async def _outcomes() -> Counter[grpc.StatusCode]:
    """Return how CALLS calls end that arrive before the first is taken up."""
    server = grpc.aio.server(options=client_options(MAX_CONNECTIONS))
    echo = grpc.method_handlers_generic_handler(
        "test", {"Echo": grpc.unary_unary_rpc_method_handler(_echo)}
    )
    server.add_generic_rpc_handlers((echo,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own)
        for _ in range(CALLS // MAX_STREAMS)
    ]
    try:
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(channel.channel_ready() for channel in channels))
            calls = [
                channel.unary_unary(METHOD)(b"x")
                for channel in channels
                for _ in range(MAX_STREAMS)
            ]
            return Counter(await asyncio.gather(*(call.code() for call in calls)))
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))
        await server.stop(None)


def test_no_call_is_cancelled_because_many_arrive_at_once() -> None:
    assert asyncio.run(_outcomes()) == {grpc.StatusCode.OK: CALLS}

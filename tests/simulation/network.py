"""Calls between simulated clients and the real service, without a socket.

Messages are serialized and parsed as on a wire, and pass through the coordinator's own
interceptor, so that errors look the same. Messages of a call keep their order; calls may overtake
each other. A connection can break (both ends notice) or fall silent (each end notices when its
keepalive fails). The route to a client can be closed for a while.
"""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio

from simulation.loop import STEP_S, Process
from ssfl.server.rpc.interceptors import StatusInterceptor
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc

CLIENT_KEEPALIVE_S, SERVER_KEEPALIVE_S = 40.0, 50.0
CONNECT_S = 5.0  # connect timeout
NETWORK_S = 0.02
UPLOADS = ("SendInitial", "ReportSaliency", "SendUpdate")


class Failed(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """A call that ended with a status, with the interface of grpc's error."""

    def __init__(self, code: grpc.StatusCode, text: str, trailers: tuple[Any, ...] = ()) -> None:
        super().__init__(f"{code.name}: {text}")
        self._code, self._text, self._trailers = code, text, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> tuple[Any, ...]:
        return self._trailers


class Watcher(Protocol):
    """Observer of all messages into and out of the coordinator."""

    def arrives(self, call: "Call", request: Any) -> None:
        """A call's first message."""

    def responds(self, call: "Call", response: bytes) -> None:
        """A response on its way out."""

    def breaks(self, call: "Call", error: BaseException) -> None:
        """A handler failed without a status."""

    def ends(self, call: "Call", status: Failed | None, cause: BaseException | None) -> None:
        """The status of a call on its way out; None: success."""


class Handlers:
    """The service's methods as gRPC would call them; stands in for a grpc server."""

    def __init__(self, service: Any, process: Process, status: StatusInterceptor) -> None:
        self.process = process
        self._status = status
        self._found: dict[str, Any] = {}
        coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(service, self)

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        pass  # the registered handlers are the same

    def add_registered_method_handlers(self, _service: str, handlers: dict[str, Any]) -> None:
        self._found = handlers

    async def get(self, method: str) -> Any:
        """Return the handler of a method, behind the interceptor."""

        async def continuation(_details: Any) -> Any:
            return self._found[method]

        return await self._status.intercept_service(continuation, _Details(method))


class _Details:
    def __init__(self, method: str) -> None:
        self.method = f"/ssfl.v1.CoordinatorService/{method}"


class _Context:
    """What a handler sees of its call."""

    def __init__(self, peer: str, write: Callable[[Any], Awaitable[None]]) -> None:
        self._peer = peer
        self.write = write
        self.status: Failed | None = None
        self.cause: BaseException | None = None

    def peer(self) -> str:
        return self._peer

    async def abort(
        self, code: grpc.StatusCode, text: str = "", trailing_metadata: tuple[Any, ...] = ()
    ) -> NoReturn:
        self.status = Failed(code, text, trailing_metadata)
        self.cause = sys.exc_info()[1]
        raise grpc.aio.AbortError


class Connection:
    """The connection of a client process, shared by all its calls."""

    def __init__(self, network: "Network", client: str, peer: str) -> None:
        self.client = client
        self.peer = peer
        self.is_silent = False  # nothing passes, and neither end has noticed
        self.is_broken = False  # the client knows
        self.calls: dict[Call, None] = {}
        self._network = network

    def snap(self) -> None:
        """Break the connection; both ends notice after a delay."""
        self.is_broken = True
        self._network.soon(self._client_notices)
        self._network.soon(self._server_notices)

    def hush(self) -> None:
        """Go silent; each end notices when its keepalive fails."""
        if not self.is_silent:
            self.is_silent = True
            self._network.after(CLIENT_KEEPALIVE_S, self._client_notices)
            self._network.after(SERVER_KEEPALIVE_S, self._server_notices)

    def _client_notices(self) -> None:
        self.is_broken = True
        for call in list(self.calls):
            call.fail("the connection is gone")

    def _server_notices(self) -> None:
        for call in list(self.calls):
            call.stop_serving()


class Call:
    """One call, both ends of it."""

    def __init__(self, network: "Network", connection: Connection, method: str) -> None:
        self.method = method
        self.connection = connection
        self.holds_grant = False
        self.served_by: Process | None = None
        self.is_stale = False  # its session had ended when it arrived
        self._network = network
        self._up: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._down: asyncio.Queue[bytes | Failed | None] = asyncio.Queue()
        self._up_s = self._down_s = 0.0  # when the newest message arrives
        self._is_over = False  # for the client
        self._serving: asyncio.Task[None] | None = None
        self._has_arrived = False
        connection.calls[self] = None

    # -- the client's end

    def send(self, message: Any) -> None:
        """Send a request; None: end of the requests."""
        if self.connection.is_silent or self.connection.is_broken:
            return
        self._up_s = max(self._network.arrival_s(), self._up_s + STEP_S)
        data = None if message is None else message.SerializeToString()
        self._network.at(self._up_s, lambda: self._arrive(data))

    async def receive(self, timeout_s: float) -> Any:
        """Return the next response, None at the end; raise Failed."""
        try:
            async with asyncio.timeout(timeout_s):
                arrived = await self._down.get()
        except TimeoutError:
            self.cancel()
            raise Failed(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer") from None
        if isinstance(arrived, Failed):
            self._is_over = True
            raise arrived
        if arrived is None:
            self._is_over = True
            return None
        return getattr(pb, f"{self.method}Response").FromString(arrived)

    def cancel(self) -> None:
        """Cancel the call; the coordinator notices if the connection works."""
        if not self._is_over:
            self._is_over = True
            if not self.connection.is_silent:
                self._network.soon(self.stop_serving)

    def fail(self, text: str) -> None:
        """Fail the call at the client: the connection is broken."""
        self._down.put_nowait(Failed(grpc.StatusCode.UNAVAILABLE, text))

    # -- the coordinator's end

    def _arrive(self, data: bytes | None) -> None:
        if self.connection.is_silent or self.connection.is_broken:
            return
        if not self._has_arrived:
            if self._is_over:
                return  # cancelled before it arrived at the coordinator
            self._has_arrived = True
            handlers = self._network.handlers
            if handlers is None or not handlers.process.alive or data is None:
                self.fail("connection refused")
                return
            request = getattr(pb, f"{self.method}Request").FromString(data)
            self._network.watcher.arrives(self, request)
            self.served_by = handlers.process
            self._serving = handlers.process.spawn(self._serve(handlers))
            self._serving.add_done_callback(self._served)
        self._up.put_nowait(data)

    def stop_serving(self) -> None:
        """Cancel the call at the coordinator: the client is gone."""
        if self._serving is not None:
            self._serving.cancel()

    async def _serve(self, handlers: Handlers) -> None:
        process, handler = handlers.process, await handlers.get(self.method)

        async def write(response: Any) -> None:
            if self.connection.is_silent and self._network.is_choked():
                await asyncio.Event().wait()  # the buffers are full and the failure is not noticed
            self._respond(process, handler.response_serializer(response))

        context = _Context(self.connection.peer, write)
        try:
            if handler.stream_stream:
                requests: Any = _Requests(self._up, handler.request_deserializer)
            else:
                requests = handler.request_deserializer(await self._up.get())
            if handler.unary_unary:
                response = await handler.unary_unary(requests, context)
                self._respond(process, handler.response_serializer(response))
            else:
                await (handler.unary_stream or handler.stream_stream)(requests, context)
        except grpc.aio.AbortError:
            pass
        finally:
            self.holds_grant = False
            self.connection.calls.pop(self, None)
        if process.alive:
            self._network.watcher.ends(self, context.status, context.cause)
            self._travel_down(context.status)

    def _served(self, serving: asyncio.Task[None]) -> None:
        """Check that a handler ends with a status; other exceptions are bugs of the service."""
        error = None if serving.cancelled() else serving.exception()
        if error is not None and self.served_by is not None and self.served_by.alive:
            self._network.watcher.breaks(self, error)

    def _respond(self, process: Process, data: bytes) -> None:
        if process.alive:
            self._network.watcher.responds(self, data)
            self._travel_down(data)

    def _travel_down(self, item: bytes | Failed | None) -> None:
        self._down_s = max(self._network.arrival_s(), self._down_s + STEP_S)

        def arrive() -> None:
            if not (self.connection.is_silent or self.connection.is_broken):
                self._down.put_nowait(item)

        self._network.at(self._down_s, arrive)


class _Requests:
    """The requests of an upload, as the coordinator reads them."""

    def __init__(
        self, arrived: "asyncio.Queue[bytes | None]", parse: Callable[[bytes], Any]
    ) -> None:
        self._arrived, self._parse = arrived, parse

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> Any:
        data = await self._arrived.get()
        if data is None:
            raise StopAsyncIteration
        return self._parse(data)

    async def aclose(self) -> None:
        pass


class Network:
    """All connections."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, watcher: Watcher
    ) -> None:
        self.handlers: Handlers | None = None  # of the coordinator, while it listens
        self.watcher = watcher
        self.delay_s = NETWORK_S  # mean delay of a message
        self.closed: set[str] = set()  # clients that cannot be reached
        self._loop, self._rng = loop, rng
        self._connections: dict[str, Connection] = {}
        self._port = 40_000

    def call(self, client: str, host: str, method: str) -> Call:
        """Start a call of a client; its channel reconnects if it knows that it is broken."""
        connection = self._connections.get(client)
        if connection is None or connection.is_broken:
            self._port += 1
            connection = Connection(self, client, f"ipv4:{host}:{self._port}")
            self._connections[client] = connection
            if client in self.closed:
                connection.is_silent = True
                self.after(CONNECT_S, connection.snap)
        return Call(self, connection, method)

    def connection(self, client: str) -> Connection | None:
        """Return a client's newest connection."""
        return self._connections.get(client)

    def close(self, client: str) -> None:
        """Block all messages to and from a client until it is opened again."""
        self.closed.add(client)
        if connection := self._connections.get(client):
            connection.hush()

    def lose_coordinator(self, *, silent: bool) -> None:
        """The coordinator's process is gone, or its whole machine."""
        self.handlers = None
        for connection in self._connections.values():
            if silent:
                connection.hush()
            elif not connection.is_broken:
                self.soon(connection.snap)  # messages in transit may still arrive

    def grants(self, process: Process | None = None) -> int:
        """Return how many uploads hold a grant: of one coordinator, or of any."""
        calls = [call for link in self._connections.values() for call in link.calls]
        return sum(c.holds_grant and process in (None, c.served_by) for c in calls)

    def is_choked(self) -> bool:
        """Return True if the buffers of a silent connection are full."""
        return self._rng.random() < 0.5

    def arrival_s(self) -> float:
        """Return when a message that leaves now arrives."""
        delay_s = self.delay_s * self._rng.uniform(0.1, 2.0)
        if self._rng.random() < 0.02:
            delay_s *= 20
        return self._loop.time() + delay_s

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        self._loop.call_at(when_s, what)

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, what)

    def soon(self, what: Callable[[], None]) -> None:
        """Do something when a message sent now would arrive."""
        self.at(self.arrival_s(), what)

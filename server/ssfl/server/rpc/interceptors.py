"""Applies auth.py and status_codes.py to every RPC.

A refusal becomes its status, and any other error becomes INTERNAL. `Refusals` counts and logs
every refusal under the name of the calling client. Response streams are also written here: a call
ends if the client reads no byte within the no-progress deadline.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ssfl.server.errors import InvalidRequest, NoProgress
from ssfl.server.loop.refusals import Refusals, reason_of, speaker_of
from ssfl.server.rpc.auth import Authenticator
from ssfl.server.rpc.status_codes import status_of

log = logging.getLogger(__name__)

MAX_DETAIL = 1000  # characters; gRPC rejects trailers over 8 KiB and would hide the status


class StatusInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Authenticates calls, and turns exceptions of handlers into gRPC statuses."""

    def __init__(
        self,
        refusals: Refusals,
        no_progress_s: float = 60.0,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._refusals = refusals
        self._no_progress_s = no_progress_s
        self._authenticator = authenticator or Authenticator()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        call = handler_call_details
        handler = await continuation(call)
        if handler is None:
            return None
        codec = (
            _deserializer(handler.request_deserializer),
            _serializer(handler.response_serializer),
        )

        async def answer(request: Any, context: Any) -> Any:
            self._check(request, call, context)
            return await handler.unary_unary(request, context)

        async def write(request: Any, context: Any) -> None:
            self._check(request, call, context)
            await self._write_all(handler.unary_stream(request, context), context)

        async def receive(requests: "_Requests", context: Any) -> None:
            requests.check = self._authenticator.check(call, context)
            await self._write_all(handler.stream_stream(requests, context), context)

        async def unary(request: Any, context: Any) -> Any:
            work = answer(request, context)
            return await self._answered(work, context, call.method, lambda: speaker_of(request))

        async def stream(request: Any, context: Any) -> None:
            work = write(request, context)
            await self._answered(work, context, call.method, lambda: speaker_of(request))

        async def upload(raw: Any, context: Any) -> None:
            # gRPC's iterator is part of a reference cycle and holds the newest request, a chunk of
            # up to a megabyte. If left open, each finished upload keeps it until the next garbage
            # collection.
            async with aclosing(_Requests(raw)) as requests:
                work = receive(requests, context)
                await self._answered(work, context, call.method, lambda: requests.speaker)

        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(unary, *codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(stream, *codec)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(upload, *codec)
        return handler

    def _check(self, request: Any, call: Any, context: Any) -> None:
        readable = _readable(request)
        self._authenticator.check(call, context)(readable)

    async def _answered(
        self, work: Awaitable[Any], context: Any, method: str, speaker: Callable[[], str]
    ) -> Any:
        """Return the result of a call; abort the call with the status of an exception."""
        try:
            return await work
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the one place that maps them all
            code, reason, name = status_of(error), reason_of(error), method.rsplit("/", 1)[-1]
            text = str(error)[:MAX_DETAIL]
            if code is grpc.StatusCode.INTERNAL:
                log.error("call failed", extra={"method": name}, exc_info=error)
                text = "internal error; the coordinator's log has the details"
            self._refusals.count(speaker(), reason, text, method=name)
            # gRPC may keep the error; it must not keep the objects of the frames that it passed.
            error.__traceback__ = error.__context__ = error.__cause__ = None
        # Not in the handler above: the exception of `abort` would keep the error.
        return await context.abort(code, text, trailing_metadata=(("ssfl-reason", reason),))

    async def _write_all(
        self, responses: AsyncGenerator[Any, None] | Awaitable[None], context: Any
    ) -> None:
        if isinstance(responses, Awaitable):  # gRPC's health service writes by itself
            await responses
            return
        async with aclosing(responses):
            async for response in responses:
                try:
                    async with asyncio.timeout(self._no_progress_s):
                        await context.write(response)
                except TimeoutError:
                    raise NoProgress(
                        f"the client read no byte of the answer for {self._no_progress_s:g} s: ask "
                        "again; it resumes where it stopped"
                    ) from None
                except grpc.aio.InternalError as error:  # a batch failed: the client is gone
                    log.debug("a client went away while it was answered", exc_info=error)
                    return


def _deserializer(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a refusal for unparsable bytes; `_readable` raises it inside the call."""

    def deserialize(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return InvalidRequest("the bytes are not a message of this protocol")

    return deserialize


def _readable(request: Any) -> Any:
    if isinstance(request, InvalidRequest):
        raise request
    return request


class _Requests:
    """The requests of an upload; raises at the first unreadable or unauthenticated one."""

    def __init__(self, requests: Any) -> None:
        self._requests = aiter(requests)
        self.check: Callable[[Any], None] = lambda _request: None
        self.speaker = ""  # the client that its header names

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> Any:
        request = _readable(await anext(self._requests))
        self.speaker = self.speaker or speaker_of(request)
        self.check(request)
        return request

    async def aclose(self) -> None:
        await self._requests.aclose()


def _serializer(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return bytes unchanged: a chunk is serialized once for all clients."""
    return lambda response: response if isinstance(response, bytes) else serialize(response)

"""Applies status_codes.py to every RPC: a refusal becomes its status, other errors INTERNAL.

`Refusals` counts and logs every refusal under the name of the calling client. Response streams are
also written here: a call ends if the client reads no byte within the no-progress deadline.
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
from ssfl.server.rpc.status_codes import status_of

log = logging.getLogger(__name__)

MAX_DETAIL = 1000  # characters; gRPC rejects trailers over 8 KiB and would hide the status


class StatusInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Turns exceptions of handlers into gRPC statuses."""

    def __init__(self, refusals: Refusals, no_progress_s: float = 60.0) -> None:
        self._refusals = refusals
        self._no_progress_s = no_progress_s

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.rsplit("/", 1)[-1]
        codec = (
            _deserializer(handler.request_deserializer),
            _serializer(handler.response_serializer),
        )
        if handler.unary_unary:
            behaviour = self._unary(handler.unary_unary, method)
            return grpc.unary_unary_rpc_method_handler(behaviour, *codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream, method), *codec
            )
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(
                self._upload(handler.stream_stream, method), *codec
            )
        return handler

    def _unary(
        self, inner: Callable[..., Awaitable[Any]], method: str
    ) -> Callable[..., Awaitable[Any]]:
        async def behaviour(request: Any, context: Any) -> Any:
            try:
                return await inner(_readable(request), context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 -- the one place that maps them all
                await self._abort(error, context, method, speaker_of(request))

        return behaviour

    def _stream(
        self, inner: Callable[..., AsyncGenerator[Any, None]], method: str
    ) -> Callable[..., Awaitable[None]]:
        async def behaviour(request: Any, context: Any) -> None:
            try:
                await self._write_all(inner(_readable(request), context), context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 -- the one place that maps them all
                await self._abort(error, context, method, speaker_of(request))

        return behaviour

    def _upload(
        self, inner: Callable[..., AsyncGenerator[Any, None]], method: str
    ) -> Callable[..., Awaitable[None]]:
        """Like `_stream`, and close the requests of an upload when it ends.

        gRPC's iterator is part of a reference cycle and holds the newest request, a chunk of up to
        a megabyte. If left open, each finished upload keeps it until the next garbage collection.
        """

        async def behaviour(raw: Any, context: Any) -> None:
            requests = _Requests(raw)
            try:
                await self._write_all(inner(requests, context), context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 -- the one place that maps them all
                await self._abort(error, context, method, requests.speaker)
            finally:
                await requests.aclose()

        return behaviour

    async def _write_all(self, responses: AsyncGenerator[Any, None], context: Any) -> None:
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

    async def _abort(self, error: Exception, context: Any, method: str, client: str) -> None:
        code, reason = status_of(error), reason_of(error)
        if code is grpc.StatusCode.INTERNAL:
            log.error("call failed", extra={"method": method}, exc_info=error)
            text = "internal error; the coordinator's log has the details"
        else:
            text = str(error)[:MAX_DETAIL]
        self._refusals.count(client, reason, text, method=method)
        await context.abort(code, text, trailing_metadata=(("ssfl-reason", reason),))


def _deserializer(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Turn unparsable bytes into a refusal, to be raised where it gets its status."""

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
    """The requests of an upload; raises at the first unreadable one."""

    def __init__(self, requests: Any) -> None:
        self._requests = aiter(requests)
        self.speaker = ""  # the client that its header names

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> Any:
        request = _readable(await anext(self._requests))
        self.speaker = self.speaker or speaker_of(request)
        return request

    async def aclose(self) -> None:
        await self._requests.aclose()


def _serializer(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return bytes unchanged: a chunk is serialized once for all clients."""
    return lambda response: response if isinstance(response, bytes) else serialize(response)

"""Exceptions to statuses, with handlers and contexts of our own (over sockets: tests/system)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from ssfl.server.errors import BadValues, UnknownClient
from ssfl.server.loop.refusals import Refusals
from ssfl.server.rpc.interceptors import MAX_DETAIL, StatusInterceptor
from ssfl.v1 import coordinator_pb2 as pb

REFUSALS = Refusals(lambda: 0.0, lambda _name: True)
Ended = tuple[grpc.StatusCode, str, str]  # status, sentence, reason


class Context:
    """Remembers what was written and how a call was aborted."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.ended: Ended | None = None

    async def write(self, response: Any) -> None:
        self.written.append(response)

    async def abort(
        self, code: grpc.StatusCode, text: str, trailing_metadata: tuple[tuple[str, str], ...]
    ) -> None:
        self.ended = code, text, dict(trailing_metadata)["ssfl-reason"]
        raise grpc.aio.AbortError


def intercepted(handler: Any, refusals: Refusals | None = None) -> Any:
    """Return a handler as the interceptor leaves it."""

    async def continuation(_details: object) -> Any:
        return handler

    details = SimpleNamespace(method="/ssfl.v1.CoordinatorService/Join")
    refusals = REFUSALS if refusals is None else refusals
    return asyncio.run(StatusInterceptor(refusals).intercept_service(continuation, details))


def unary(inner: Callable[..., Awaitable[Any]]) -> Any:
    return intercepted(
        grpc.unary_unary_rpc_method_handler(
            inner, pb.JoinRequest.FromString, pb.JoinResponse.SerializeToString
        )
    )


def stream(inner: Callable[..., AsyncIterator[Any]]) -> Any:
    return intercepted(
        grpc.stream_stream_rpc_method_handler(
            inner, pb.SendUpdateRequest.FromString, pb.SendUpdateResponse.SerializeToString
        )
    )


def end_of_unary(error: Exception) -> Ended:
    async def fails(_request: object, _context: object) -> None:
        raise error

    context = Context()
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(unary(fails).unary_unary(pb.JoinRequest(), context))
    assert context.ended is not None
    return context.ended


def test_a_refusal_becomes_its_status_its_sentence_and_its_reason() -> None:
    assert end_of_unary(BadValues("NaN in conv.weight")) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "NaN in conv.weight",
        "bad_values",
    )


def test_an_internal_error_is_logged_with_its_traceback_and_sent_without_detail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        code, text, reason = end_of_unary(ValueError("a secret"))
    assert (code, reason) == (grpc.StatusCode.INTERNAL, "internal")
    assert "secret" not in text
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is ValueError


def test_a_long_sentence_is_cut_so_that_the_status_still_fits_the_trailers() -> None:
    code, text, _ = end_of_unary(UnknownClient("x" * 100_000))
    assert code is grpc.StatusCode.NOT_FOUND
    assert len(text) == MAX_DETAIL


def test_a_good_answer_passes() -> None:
    async def answers(request: pb.JoinRequest, _context: object) -> pb.JoinResponse:
        return pb.JoinResponse(run_id=request.client_id)

    request = pb.JoinRequest(client_id="c1")
    answer = asyncio.run(unary(answers).unary_unary(request, Context()))
    assert answer.run_id == "c1"


def test_unparsable_bytes_are_refused_before_the_handler_is_called() -> None:
    async def never(_request: object, _context: object) -> None:
        raise AssertionError("the handler was called")

    handler, context = unary(never), Context()
    request = handler.request_deserializer(b"\xff" * 100)
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(handler.unary_unary(request, context))
    assert context.ended is not None
    assert context.ended[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_an_upload_is_refused_at_its_first_unreadable_message_and_closed() -> None:
    seen: list[int] = []
    closed: list[bool] = []

    async def counts(requests: AsyncIterator[pb.SendUpdateRequest], _context: object) -> Any:
        async for request in requests:
            seen.append(request.header.step)
            yield pb.SendUpdateResponse()

    handler, context = stream(counts), Context()

    async def requests() -> AsyncIterator[Any]:
        header = pb.SendUpdateRequest()
        header.header.step = 7
        try:
            yield handler.request_deserializer(header.SerializeToString())
            yield handler.request_deserializer(b"\xff")
            yield handler.request_deserializer(header.SerializeToString())
        finally:
            closed.append(True)

    async def call() -> None:
        await handler.stream_stream(requests(), context)

    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(call())
    assert context.written == [pb.SendUpdateResponse()]
    assert seen == [7]
    assert closed == [True]
    assert context.ended is not None and context.ended[2] == "invalid_request"


def test_a_response_that_is_serialized_already_goes_out_as_it_is() -> None:
    async def never(_requests: object, _context: object) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    serialize = stream(never).response_serializer
    assert serialize(b"bytes") == b"bytes"
    response = pb.SendUpdateResponse()
    response.grant.offset = 128
    assert serialize(response).hex() == "1203088001"


def test_an_unknown_method_stays_unknown() -> None:
    assert intercepted(None) is None


def test_a_refusal_is_counted_under_the_calling_client() -> None:
    refusals = Refusals(lambda: 0.0, lambda _name: True)

    async def refuses(_request: object, _context: object) -> None:
        raise UnknownClient("join first")

    async def takes_one(requests: AsyncIterator[Any], _context: object) -> Any:
        await anext(requests)
        raise BadValues("NaN in conv.weight")
        yield

    async def header() -> AsyncIterator[Any]:
        yield pb.SendUpdateRequest(caller=pb.Caller(client_id="bob"))

    join = grpc.unary_unary_rpc_method_handler(refuses)
    upload = grpc.stream_stream_rpc_method_handler(takes_one)
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(
            intercepted(join, refusals).unary_unary(pb.JoinRequest(client_id="ann"), Context())
        )

    async def call() -> None:
        await intercepted_upload.stream_stream(header(), Context())

    intercepted_upload = intercepted(upload, refusals)
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(call())
    assert refusals.rows() == [
        {"client_id": "ann", "reason": "unknown_client", "count": 1},
        {"client_id": "bob", "reason": "bad_values", "count": 1},
    ]


def test_a_client_that_goes_away_while_it_is_answered_is_not_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Gone(Context):
        async def write(self, _response: Any) -> None:
            raise grpc.aio.InternalError("Failed grpc_call_start_batch")

    closed = []

    async def answers(_request: Any, _context: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield pb.NextTaskResponse()
        finally:
            closed.append(True)

    handler = intercepted(
        grpc.unary_stream_rpc_method_handler(
            answers, pb.NextTaskRequest.FromString, pb.NextTaskResponse.SerializeToString
        )
    )
    context = Gone()
    with caplog.at_level(logging.INFO):
        asyncio.run(handler.unary_stream(pb.NextTaskRequest(), context))
    assert (closed, context.ended, caplog.records) == ([True], None, [])


@pytest.mark.parametrize("error", [BadValues("a value is NaN"), RuntimeError("a bug")])
def test_an_error_does_not_keep_the_objects_of_the_call_that_raised_it(error: Exception) -> None:
    """The library may keep the error of an aborted call, and with it a megabyte per refusal."""
    error.__cause__ = ValueError("the first cause")
    end_of_unary(error)
    kept = [error.__traceback__, error.__context__, error.__cause__]
    assert kept == [None, None, None]

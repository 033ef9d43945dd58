"""Upload of a payload: grant, chunks from the granted offset, receipt."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from client.fakes import FakeRpcError
from ssfl.client.connection import Watchdog
from ssfl.client.errors import Refused, Unavailable
from ssfl.client.upload import send
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2, update_pb2

PAYLOAD = memoryview(bytes(range(256)) * 1200)  # two chunks
HEADER = pb.SendUpdateRequest(header=update_pb2.SparseUpdate(step=7))
ACCEPTED = transfer_pb2.OUTCOME_ACCEPTED

Answers = Callable[[Iterator[Any]], Iterator[Any]]


class Coordinator:
    """The coordinator's side: reads the stream as `script` does and yields its responses."""

    def __init__(self, script: Answers) -> None:
        self._script = script
        self.received = b""
        self.offsets: list[int] = []
        self.cancelled = False
        self._answers: Iterator[Any] = iter(())

    def __call__(self, requests: Iterator[Any]) -> "Coordinator":
        self._answers = self._script(self._note(requests))
        return self

    def __iter__(self) -> Iterator[Any]:
        return self._answers

    def cancel(self) -> None:
        self.cancelled = True

    def _note(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            if request.WhichOneof("part") == "chunk":
                self.offsets.append(request.chunk.offset)
                self.received += request.chunk.data
            yield request


def grant(offset: int) -> pb.SendUpdateResponse:
    return pb.SendUpdateResponse(grant=transfer_pb2.Grant(offset=offset))


def receipt(outcome: Any = ACCEPTED) -> pb.SendUpdateResponse:
    return pb.SendUpdateResponse(receipt=transfer_pb2.Receipt(outcome=outcome))


@pytest.mark.parametrize("offset", [0, 1, 300_000, len(PAYLOAD)])
def test_chunks_start_at_the_granted_offset(offset: int) -> None:
    def script(requests: Iterator[Any]) -> Iterator[Any]:
        assert next(requests) == HEADER
        yield pb.SendUpdateResponse(queued=transfer_pb2.Queued(ahead=3))
        yield grant(offset)
        list(requests)
        yield receipt()

    there = Coordinator(script)
    assert send(there, HEADER, PAYLOAD, Watchdog(60.0)) == ACCEPTED
    assert there.received == PAYLOAD[offset:].tobytes()
    assert there.offsets[:1] == ([offset] if offset < len(PAYLOAD) else [])


def test_with_a_slot_in_the_task_chunks_follow_the_header_at_once() -> None:
    def script(requests: Iterator[Any]) -> Iterator[Any]:
        list(requests)  # the whole stream, before any response
        yield receipt()

    there = Coordinator(script)
    assert send(there, HEADER, PAYLOAD, Watchdog(60.0), wait_for_grant=False) == ACCEPTED
    assert there.received == PAYLOAD.tobytes()


def test_a_receipt_before_the_grant_ends_the_upload_without_a_chunk() -> None:
    def script(requests: Iterator[Any]) -> Iterator[Any]:
        next(requests)
        yield receipt(transfer_pb2.OUTCOME_ALREADY_ACCEPTED)

    there = Coordinator(script)
    outcome = send(there, HEADER, PAYLOAD, Watchdog(60.0))
    assert outcome == transfer_pb2.OUTCOME_ALREADY_ACCEPTED
    assert there.received == b""
    assert there.cancelled, "the client cancels the call, too"


def test_a_stream_that_ends_without_a_receipt_is_unavailable() -> None:
    def script(requests: Iterator[Any]) -> Iterator[Any]:
        next(requests)
        yield grant(0)

    with pytest.raises(Unavailable, match="without a receipt"):
        send(Coordinator(script), HEADER, PAYLOAD, Watchdog(60.0))


def test_a_refusal_is_raised() -> None:
    def script(requests: Iterator[Any]) -> Iterator[Any]:
        next(requests)
        yield grant(0)
        raise FakeRpcError(grpc.StatusCode.INVALID_ARGUMENT, "NaN in fc.weight", "bad_values")

    there = Coordinator(script)
    with pytest.raises(Refused, match=r"NaN in fc\.weight"):
        send(there, HEADER, PAYLOAD, Watchdog(60.0))
    assert there.cancelled


def test_an_upload_whose_slot_is_reclaimed_queues_again_and_resumes() -> None:
    """The upload resumes at once in a new call, without another Join."""
    calls: list[int] = []

    def script(requests: Iterator[Any]) -> Iterator[Any]:
        calls.append(len(calls))
        assert next(requests) == HEADER
        if len(calls) == 1:
            next(requests)  # the first chunk, sent without waiting for a grant
            raise FakeRpcError(grpc.StatusCode.UNAVAILABLE, "others wait", "slot_yielded")
        yield pb.SendUpdateResponse(queued=transfer_pb2.Queued(ahead=3))
        yield grant(len(there.received))
        list(requests)
        yield receipt()

    there = Coordinator(script)
    assert send(there, HEADER, PAYLOAD, Watchdog(60.0), wait_for_grant=False) == ACCEPTED
    assert calls == [0, 1]
    assert there.received == PAYLOAD.tobytes(), "every byte once"

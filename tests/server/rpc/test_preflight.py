"""A check of a client that has not joined: its answer, and that it leaves no trace."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from server.rpc.test_service import served
from server.run_loop_harness import C1, SETTINGS, begin, conduct
from ssfl.method.manifest import Manifest
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.rpc import preflight
from ssfl.server.run import events
from ssfl.v1 import coordinator_pb2 as pb

TOKEN = bytes(16)


def asked(client_id: str = "new", **more: Any) -> pb.CheckRequest:
    question = pb.CheckQuestion(**{"protocol_version": 1, "token": TOKEN, **more})
    return pb.CheckRequest(client_id=client_id, question=question)


def noise(num_bytes: int, client_id: str = "new") -> pb.CheckRequest:
    return pb.CheckRequest(client_id=client_id, noise=bytes(num_bytes))


def download(num_bytes: int) -> pb.CheckRequest:
    return pb.CheckRequest(client_id="new", download=pb.CheckDownload(num_bytes=num_bytes))


def echo(number: int) -> pb.CheckRequest:
    return pb.CheckRequest(client_id="new", echo=pb.CheckEcho(number=number))


async def all_of(stub: Any, requests: Iterable[pb.CheckRequest]) -> list[pb.CheckResponse]:
    async def sending() -> AsyncIterator[pb.CheckRequest]:
        for request in requests:
            yield request

    return [response async for response in stub.Check(sending(), timeout=20)]


async def answer(stub: Any, request: pb.CheckRequest) -> pb.CheckAnswer:
    (response,) = await all_of(stub, [request])
    return response.answer


async def refusal(stub: Any, *requests: pb.CheckRequest) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await all_of(stub, requests)
    metadata = dict(caught.value.trailing_metadata())
    return caught.value.code(), str(metadata["ssfl-reason"]), caught.value.details()


def test_a_check_gets_the_answer_of_a_join_and_leaves_no_trace(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        run = coordinator.run
        before, journal_bytes = run.state, run.published_journal_bytes
        async with served(coordinator, "on") as stub:
            found = await answer(stub, asked())
        assert coordinator.run.state is before, "nothing was posted"
        assert coordinator.run.published_journal_bytes == journal_bytes
        assert (found.protocol_version, found.run_id) == (1, before.run_id)
        assert (found.phase, found.num_clients, found.refusal) == ("score", 2, "")
        assert found.manifest == manifest.json
        assert found.settings.rounds == SETTINGS.rounds
        assert (found.reference_coding, found.upload_slots) == (True, 8)
        assert {row["phase"] for row in coordinator.ledger.rows()} == {"control"}
        assert {row["client"] for row in coordinator.ledger.take()} == {""}

    conduct(tmp_path, script)


def test_a_check_reports_the_refusal_that_a_join_would_get(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        await coordinator.run.post(events.RemoveAsked(C1, readmit=False))
        async with served(coordinator, "on") as stub:
            reasons = {
                (await answer(stub, request)).refusal_reason
                for request in (
                    asked("c1"), asked(protocol_version=9), asked(token=b"short"),
                    asked("coordinator"), asked(num_samples=1 << 40),
                )
            }  # fmt: skip
        assert reasons == {"removed", "version_unsupported", "invalid_request"}

    conduct(tmp_path, script)


def test_echoes_noise_and_a_download_come_back_to_the_byte(tmp_path: Path) -> None:
    async def script(coordinator: Coordinator) -> None:
        async with served(coordinator, "on") as stub:
            responses = await all_of(
                stub, [asked(), echo(7), noise(1000), noise(24), download(70_000), download(9)]
            )
        assert [one.WhichOneof("part") for one in responses] == [
            "answer", "echo", "received", "received", "noise", "noise", "sent", "noise", "sent",
        ]  # fmt: skip
        assert responses[1].echo.number == 7
        assert responses[1].echo.unix_time_s >= responses[0].answer.unix_time_s
        assert responses[3].received.num_bytes == 1024
        assert [len(one.noise) for one in responses[4:6]] == [65_536, 70_000 - 65_536]
        assert len(set(responses[4].noise)) > 200, "it could be compressed"
        assert [responses[at].sent.num_bytes for at in (6, 8)] == [70_000, 9]

    conduct(tmp_path, script)


def test_the_bytes_of_a_measurement_are_logged_and_not_in_the_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asking = [asked(), echo(7)]
    piece = preflight.MAX_PIECE_BYTES
    measuring = [*20 * [noise(piece)], download(30 * piece), download(1)]

    async def script(coordinator: Coordinator) -> None:
        async with served(coordinator, "on") as stub:
            answers = await all_of(stub, [*asking, *measuring])
        booked = {
            row["direction"]: row["message_bytes"]
            for row in coordinator.ledger.rows()
            if row["phase"] == "control"
        }
        assert booked == {
            "up": sum(one.ByteSize() for one in asking),
            "down": sum(one.ByteSize() for one in answers[:2]),
        }
        up = sum(one.ByteSize() for one in measuring)
        down = sum(one.ByteSize() for one in answers[2:])
        assert up > 20 * piece
        assert down > 30 * piece
        assert f"new measured its link: {up} bytes up, {down} down" in caplog.messages

    with caplog.at_level("INFO", "ssfl.server.rpc.preflight"):
        conduct(tmp_path, script)


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([], "begins with its question"),
        ([noise(1)], "begins with its question"),
        ([asked("no/name")], "client id 'no/name'"),
        ([asked(), asked()], "one question"),
        ([asked(), noise(1, "other")], "for one client"),
        ([asked(), noise(0)], "noise of 0 bytes"),
        ([asked(), noise(preflight.MAX_PIECE_BYTES + 1)], "noise of 65537 bytes"),
        ([asked(), *129 * [noise(preflight.MAX_PIECE_BYTES)]], "more than 8388608 bytes"),
        ([asked(), download(0)], "of 1 to 8388608 bytes"),
        ([asked(), download(preflight.MAX_NOISE_BYTES + 1)], "of 1 to 8388608 bytes"),
        ([asked(), download(1), download(preflight.MAX_NOISE_BYTES)], "of 1 to 8388608 bytes"),
        ([asked(), *257 * [download(1)]], "at most 256 downloads"),
        ([asked(), *65 * [echo(1)]], "more than 64 echoes"),
    ],
)
def test_whatever_breaks_the_bounds_is_refused(
    tmp_path: Path, requests: list[pb.CheckRequest], said: str
) -> None:
    async def script(coordinator: Coordinator) -> None:
        async with served(coordinator, "on") as stub:
            code, reason, text = await refusal(stub, *requests)
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
        assert said in text

    conduct(tmp_path, script)


def test_measurements_are_limited_in_concurrency_and_rate(tmp_path: Path) -> None:
    async def script(coordinator: Coordinator) -> None:
        async with served(coordinator, "on") as stub:
            open_calls = [stub.Check(timeout=20) for _ in range(preflight.MEASURING)]
            for call in open_calls:
                for request in (asked(), noise(1)):
                    await call.write(request)
                    await call.read()
            code, reason, text = await refusal(stub, asked(), noise(1))
            assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_checks")
            assert "try again in 3 s" in text
            assert (await answer(stub, asked())).run_id, "who only asks is answered"
            for call in open_calls:
                await call.done_writing()
                assert await call.read() == grpc.aio.EOF
            for _ in range(preflight.MEASUREMENTS - preflight.MEASURING):
                await all_of(stub, [asked(), noise(1)])
            code, reason, text = await refusal(stub, asked(), noise(1))
            assert (reason, text[-16:]) == ("too_many_checks", "try again in 10 s"[-16:])

    conduct(tmp_path, script)


def test_the_number_of_open_checks_is_limited(tmp_path: Path) -> None:
    async def script(coordinator: Coordinator) -> None:
        async with served(coordinator, "on") as stub:
            open_calls = [stub.Check(timeout=20) for _ in range(preflight.OPEN_CHECKS)]
            for call in open_calls:
                await call.write(asked())
                assert (await call.read()).HasField("answer")
            _, reason, _ = await refusal(stub, asked())
            assert reason == "too_many_checks"
            for call in open_calls:
                await call.done_writing()
                assert await call.read() == grpc.aio.EOF
            assert (await answer(stub, asked())).run_id

    conduct(tmp_path, script)


def test_a_check_that_falls_silent_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "SILENCE_S", 0.05)

    async def script(coordinator: Coordinator) -> None:
        async with served(coordinator, "on") as stub:
            call = stub.Check(timeout=20)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert dict(caught.value.trailing_metadata())["ssfl-reason"] == "no_progress"

    conduct(tmp_path, script)

"""Slow and greedy uploads: progress is bytes, slots are lent, of one client the newest counts.

Time is a number that the test sets; the deadline of the uploads is a second of it.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.uploads.test_receive import CLOSED, Receiving, announced, chunk, run, sent, word
from ssfl.server.errors import NoProgress, SessionEnded, SlotYielded
from ssfl.server.uploads.receive import MIN_PROGRESS
from ssfl.server.uploads.slots import BEATS, until_beat
from ssfl.strategies.contract import ClientId

HONEST = ClientId("honest")
BIG = bytes(range(256)) * 640  # ten times the least progress
SLOTS = 8


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class SlowReceiving(Receiving):
    """A receiver that reads the clock of the test a thousand times a second."""

    def __init__(self, folder: Path, slots: int = SLOTS) -> None:
        super().__init__(folder)
        self.clock = Clock()
        self.uploads = self.receiver(slots, 0.016, self.clock)

    def pass_s(self, deadlines: float) -> None:
        """Let time pass, counted in no-progress deadlines."""
        self.clock.now_s += deadlines * 0.016


def pieces(data: bytes, size: int, start: int = 0) -> list[Any]:
    return [chunk(at, data[at : at + size]) for at in range(start, len(data), size)]


async def read_all(answers: AsyncIterator[Any]) -> list[str]:
    return [word(answer) async for answer in answers]


async def slowly(
    receiving: SlowReceiving, deadlines: float, requests: list[Any]
) -> AsyncIterator[Any]:
    """Yield requests, each after its delay."""
    for request in requests:
        receiving.pass_s(deadlines)
        yield request
    await asyncio.Event().wait()


async def reaches(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_tiny_messages_do_not_count_as_progress(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = SlowReceiving(tmp_path)
        dribble = slowly(receiving, 0.3, pieces(BIG, 1))
        with pytest.raises(NoProgress, match=r"fewer than 16384 bytes .* resumes at byte 4"):
            await read_all(receiving.stream(dribble, payload=announced(BIG)))

    run(story())


def test_a_slow_link_with_the_minimum_progress_is_not_ended(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = SlowReceiving(tmp_path)
        slow = slowly(receiving, 0.49, pieces(BIG, MIN_PROGRESS // 2))
        answers = await read_all(receiving.stream(slow, payload=announced(BIG)))
        assert answers == ["grant 0", "OUTCOME_ACCEPTED"]
        assert receiving.kept == [BIG]

    run(story())


def test_the_rest_of_a_payload_is_progress_however_small(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = SlowReceiving(tmp_path)
        slow = slowly(receiving, 0.9, [*pieces(BIG[:-1], len(BIG)), chunk(len(BIG) - 1, BIG[-1:])])
        answers = await read_all(receiving.stream(slow, payload=announced(BIG)))
        assert answers[-1] == "OUTCOME_ACCEPTED"

    run(story())


def test_slow_uploads_in_every_slot_delay_others_by_about_one_deadline(
    tmp_path: Path,
) -> None:
    """They send the minimum just in time; their turn ends because other uploads wait."""

    async def story() -> None:
        receiving = SlowReceiving(tmp_path)
        go_on, asked = asyncio.Event(), [0, 0]

        async def loris() -> AsyncIterator[Any]:
            first, second, *_ = pieces(BIG, MIN_PROGRESS)
            yield first
            asked[0] += 1
            await go_on.wait()
            yield second
            asked[1] += 1
            await asyncio.Event().wait()

        streams = [
            read_all(receiving.stream(loris(), ClientId(f"loris-{number}"), announced(BIG)))
            for number in range(SLOTS)
        ]
        lorises = [asyncio.ensure_future(one) for one in streams]
        await reaches(lambda: asked[0] == SLOTS)
        receiving.pass_s(0.9)
        go_on.set()
        await reaches(lambda: asked[1] == SLOTS)
        data = b"an honest update"
        honest = receiving.stream(sent(chunk(0, data)), HONEST, announced(data))

        async def no_longer_queued() -> Any:
            while (answer := await anext(honest)).WhichOneof("part") == "queued":
                pass
            return answer

        granted = asyncio.ensure_future(no_longer_queued())
        await reaches(lambda: receiving.uploads.slots.queued == 1)
        receiving.pass_s(0.3)  # 1.2 since their grants: a chunk may be on its way
        for _ in range(5):
            await asyncio.sleep(0.002)  # they look, and stay
        assert not granted.done()
        receiving.pass_s(0.1)
        assert word(await granted) == "grant 0"
        assert await read_all(honest) == ["OUTCOME_ACCEPTED"]
        for one in lorises:
            one.cancel()  # the job that found an empty queue still runs
        ended = await asyncio.gather(*lorises, return_exceptions=True)
        assert any(isinstance(error, SlotYielded) for error in ended)

    run(story())


def test_an_upload_that_yielded_its_slot_resumes_without_resending(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = SlowReceiving(tmp_path, slots=1)
        turn = slowly(receiving, 0.4, pieces(BIG, MIN_PROGRESS))
        slow = receiving.stream(turn, payload=announced(BIG))
        assert word(await anext(slow)) == "grant 0"
        data = b"an honest update"
        honest = asyncio.ensure_future(
            read_all(receiving.stream(sent(chunk(0, data)), HONEST, announced(data)))
        )
        await reaches(lambda: receiving.uploads.slots.queued == 1)
        with pytest.raises(SlotYielded, match="the bytes that arrived are kept"):
            await anext(slow)
        assert (await honest)[-1] == "OUTCOME_ACCEPTED"
        # Chunks came at 0.4, 0.8 and 1.2: the third is kept, then it makes room.
        rest = sent(*pieces(BIG, MIN_PROGRESS, 3 * MIN_PROGRESS))
        answers = await read_all(receiving.stream(rest, payload=announced(BIG)))
        assert answers == [f"grant {3 * MIN_PROGRESS}", "OUTCOME_ACCEPTED"]
        assert receiving.kept == [data, BIG]
        counted = sum(row["payload_bytes"] for row in receiving.ledger.rows())
        assert counted == len(data) + len(BIG), "every byte once"

    run(story())


def test_a_slot_is_not_yielded_while_no_upload_is_queued(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = SlowReceiving(tmp_path, slots=1)
        slow = slowly(receiving, 0.9, pieces(BIG, MIN_PROGRESS))
        answers = await read_all(receiving.stream(slow, payload=announced(BIG)))
        assert answers == ["grant 0", "OUTCOME_ACCEPTED"]

    run(story())


def test_only_the_newest_upload_of_a_client_waits(tmp_path: Path) -> None:
    async def story() -> None:
        receiving = SlowReceiving(tmp_path, slots=1)
        holder = receiving.stream(sent(hangs=True), HONEST)
        assert word(await anext(holder)) == "grant 0"
        greedy = ClientId("greedy")
        waiting = [
            asyncio.ensure_future(read_all(receiving.stream(sent(), greedy))) for _ in range(20)
        ]
        await reaches(lambda: sum(one.done() for one in waiting) == 19)
        assert receiving.uploads.slots.queued == 1
        for one in waiting[:-1]:
            with pytest.raises(SessionEnded, match="a newer upload of this client"):
                await one
        receiving.over = CLOSED
        await holder.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert await waiting[-1] == ["OUTCOME_STEP_CLOSED"]
        assert receiving.uploads.slots.queued == 0 and not receiving.uploads.slots._newest

    run(story())


def test_a_newer_upload_ends_an_older_one_that_is_silent(tmp_path: Path) -> None:
    """A client whose connection broke does not wait for its own half-open call."""

    async def story() -> None:
        receiving = SlowReceiving(tmp_path, slots=1)
        older = receiving.stream(sent(chunk(0, BIG[:50]), hangs=True), payload=announced(BIG))
        assert word(await anext(older)) == "grant 0"
        rest = asyncio.ensure_future(anext(older))
        path = receiving.spool.part(3, ClientId("c1"), announced(BIG).digest)
        await reaches(lambda: path.num_bytes == 50)
        newer = receiving.stream(sent(chunk(50, BIG[50:])), payload=announced(BIG))
        assert await read_all(newer) == ["grant 50", "OUTCOME_ACCEPTED"]
        with pytest.raises(SessionEnded):
            await rest

    run(story())


def test_clients_that_wait_get_their_messages_in_time_and_at_shared_moments() -> None:
    began_s = [1e6 + number / 100 for number in range(1500)]
    waits_s = [until_beat(15.0, now_s) for now_s in began_s]
    assert 15.0 - 15.0 / BEATS - 1e-6 < min(waits_s) <= max(waits_s) < 15.0 + 1e-6
    moments = {round(now_s + wait_s, 3) for now_s, wait_s in zip(began_s, waits_s, strict=True)}
    assert len(moments) <= BEATS + 1

"""Complete uploads whose connection breaks."""

import asyncio
import threading
from pathlib import Path

import pytest

from server.uploads.test_receive import (
    ACCEPTED,
    DEADLINE_S,
    PAYLOAD,
    CheckedUpload,
    Receiving,
    chunk,
    run,
    sent,
    word,
)
from ssfl.server.errors import BadValues
from ssfl.server.storage.upload_files import PartialUpload
from ssfl.server.uploads.verify import VerifiedUpload


def test_a_refusal_that_the_sender_did_not_wait_for_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        receiving, loop = Receiving(tmp_path), asyncio.get_running_loop()
        verifying, goes_on = asyncio.Event(), threading.Event()

        def held(_upload: CheckedUpload, _part: PartialUpload) -> VerifiedUpload:
            loop.call_soon_threadsafe(verifying.set)
            assert goes_on.wait(DEADLINE_S)
            raise BadValues("c1 sent a NaN")

        monkeypatch.setattr(CheckedUpload, "verify", held)
        call = asyncio.ensure_future(receiving.receive(chunk(0, PAYLOAD)))
        await verifying.wait()
        call.cancel()
        await asyncio.wait({call})
        goes_on.set()
        while not receiving.refusals.rows():
            await asyncio.sleep(0)
        assert receiving.refusals.by_reason() == {"bad_values": 1}

    run(story())


def test_one_upload_of_a_client_is_verified_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call is cut off while it verifies; the second waits, and finds it accepted."""

    async def story() -> None:
        receiving, loop = Receiving(tmp_path), asyncio.get_running_loop()
        verifying, goes_on, num_verified = asyncio.Event(), threading.Event(), 0
        verify = CheckedUpload.verify

        def held(upload: CheckedUpload, part: PartialUpload) -> VerifiedUpload:
            nonlocal num_verified
            num_verified += 1
            loop.call_soon_threadsafe(verifying.set)
            assert goes_on.wait(DEADLINE_S)
            receiving.over = ACCEPTED
            return verify(upload, part)

        monkeypatch.setattr(CheckedUpload, "verify", held)
        call = asyncio.ensure_future(receiving.receive(chunk(0, PAYLOAD)))
        await verifying.wait()
        call.cancel()
        await asyncio.wait({call})
        again = receiving.stream(sent())
        assert word(await anext(again)) == "grant 100"
        rest = asyncio.ensure_future(anext(again))
        await asyncio.sleep(0)
        goes_on.set()
        assert word(await rest) == "OUTCOME_ACCEPTED"
        assert (num_verified, receiving.kept) == (1, [PAYLOAD])

    run(story())

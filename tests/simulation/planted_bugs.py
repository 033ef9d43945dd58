"""Bugs planted one at a time, to test that the checker finds them."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssfl.client.memory import ClientMemory
from ssfl.durable.files import sync_directory
from ssfl.server.aggregate.step_sum import StepSum, UpdateSums
from ssfl.server.loop.run_loop import RunLoop
from ssfl.server.rpc import request_checks
from ssfl.server.run.machine import _Decision
from ssfl.server.run.state import Step
from ssfl.server.storage import journal, spool
from ssfl.server.storage.journal import Journal
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.upload_files import PartialUpload, StoredValues
from ssfl.server.uploads import score_and_update
from ssfl.server.uploads.step_upload import StepUpload

Plant = Callable[[pytest.MonkeyPatch], None]


def folds_twice(patch: pytest.MonkeyPatch) -> None:
    """The first upload of a step is added to the sum twice."""
    fold = StepSum.fold

    def twice(self: StepSum, *args: Any) -> None:
        if self._sums is not None and not self._sums.folded:
            fold(self, *args)
        fold(self, *args)

    patch.setattr(StepSum, "fold", twice)


def accepts_twice(patch: pytest.MonkeyPatch) -> None:
    """A second, different upload of a client is accepted."""
    received = _Decision._received

    def forgetful(self: _Decision, event: Any) -> Any:
        step = self.state.step
        if step is not None and event.client in step.uploads and step.closed is None:
            others = {c: u for c, u in step.uploads.items() if c != event.client}
            self.state = replace(self.state, step=replace(step, uploads=others))
        return received(self, event)

    patch.setattr(_Decision, "_received", forgetful)
    patch.setattr(StepUpload, "receipt_if_unwanted", lambda _self: None)


def acknowledges_early(patch: pytest.MonkeyPatch) -> None:
    """Senders are answered before the journal is on disk."""
    write = RunLoop._write

    async def later(self: RunLoop, new_facts: Any) -> Any:
        asyncio.ensure_future(write(self, new_facts))  # noqa: RUF006 -- that is the bug
        return new_facts

    patch.setattr(RunLoop, "_write", later)


def sums_another_set(patch: pytest.MonkeyPatch) -> None:
    """The last of the closed set is left out of the sum."""
    finish = StepSum.finish

    def shortened(self: StepSum, step: Step) -> Any:
        assert step.closed is not None
        return finish(self, replace(step, closed=step.closed[: max(1, len(step.closed) - 1)]))

    patch.setattr(StepSum, "finish", shortened)


def forgets_the_spool(patch: pytest.MonkeyPatch) -> None:
    """Uploads are acknowledged before they are on disk."""

    def keep(_self: Spool, part: PartialUpload, values: StoredValues) -> None:
        values.path.rename(part.path.with_suffix(".bin"))
        part.drop()

    patch.setattr(Spool, "keep", keep)


def forgets_a_folder(patch: pytest.MonkeyPatch) -> None:
    """An upload is synced, but not the name of its folder."""
    sync = sync_directory

    def not_above(folder: Path) -> None:
        if folder.parent.name == "spool":
            sync(folder)

    patch.setattr(spool, "sync_directory", not_above)


def forgets_the_journal(patch: pytest.MonkeyPatch) -> None:
    """Records are written, but not synced."""

    def written(self: Journal, bodies: Any) -> None:
        os.write(self._file.fileno(), b"".join(journal._head(body) + body for body in bodies))

    patch.setattr(Journal, "_write", written)


def ignores_the_base(patch: pytest.MonkeyPatch) -> None:
    """An update counts regardless of its base."""
    patch.setattr(score_and_update, "_check_base", lambda _header, _base: None)


def serves_old_sessions(patch: pytest.MonkeyPatch) -> None:
    """A session that was replaced by a newer one is served."""
    check_caller = request_checks.check_caller

    def trusting(caller: Any, state: Any, numbers: Any, **options: Any) -> Any:
        if member := state.members.get(caller.client_id):
            caller.session = numbers.number(state.run_id, member.client, member.session)
        return check_caller(caller, state, numbers, **options)

    patch.setattr(request_checks, "check_caller", trusting)


def keeps_grants(patch: pytest.MonkeyPatch) -> None:
    """An upload may begin although all slots are taken."""
    patch.setattr(asyncio.Semaphore, "locked", lambda _self: False)
    patch.setattr(asyncio.Semaphore, "acquire", _at_once)


def forgets_a_pause(patch: pytest.MonkeyPatch) -> None:
    """A restarted coordinator forgets that the run is paused."""
    recovered = _Decision._recovered

    def forgetful(self: _Decision) -> None:
        self.state = replace(self.state, paused_at=None)
        recovered(self)

    patch.setattr(_Decision, "_recovered", forgetful)


def begins_in_a_pause(patch: pytest.MonkeyPatch) -> None:
    """A paused run begins the next step."""
    patch.setattr(_Decision, "_rests", property(lambda self: self.state.draining))


def promotes_void_steps(patch: pytest.MonkeyPatch) -> None:
    """A client keeps what a void step put into its memory."""
    settle = ClientMemory.settle

    def trusting(self: ClientMemory, step: int, _counted_step: int | None) -> None:
        settle(self, step, self._index("memory.next.json").get("step"))

    patch.setattr(ClientMemory, "settle", trusting)


def weighs_holders_equally(patch: pytest.MonkeyPatch) -> None:
    """The mean over the clients that hold a weight ignores their numbers of samples."""
    hold = UpdateSums.hold
    patch.setattr(UpdateSums, "hold", lambda self, mask, count, _weight: hold(self, mask, count, 1))


async def _at_once(_self: asyncio.Semaphore) -> bool:
    return True


# Each bug with a seed that has found it. The test tries that seed before all others.
PLANTED: dict[Plant, int] = {
    folds_twice: 2,
    accepts_twice: 17,
    acknowledges_early: 0,
    sums_another_set: 2,
    forgets_the_spool: 31,
    forgets_a_folder: 15,
    forgets_the_journal: 12,
    ignores_the_base: 22,
    serves_old_sessions: 61,
    keeps_grants: 11,
    forgets_a_pause: 21,
    begins_in_a_pause: 8,
    promotes_void_steps: 48,
    weighs_holders_equally: 5,
}

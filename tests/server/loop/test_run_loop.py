"""The coordinator with real files and threads: journal first, then everything that follows."""

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from server.run_loop_harness import C1, C2, SETTINGS, answer_all, begin, conduct, spooled, step_over
from ssfl.durable.failpoints import install_hook, trigger
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.streams import Stream
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.errors import StateError
from ssfl.server.loop import run_loop
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.run_loop import RunLoop
from ssfl.server.recovery.recover import check_best, open_run
from ssfl.server.report.outputs import Accounts
from ssfl.server.run import events, facts
from ssfl.server.run.events import Reply
from ssfl.server.run.state import RunState
from ssfl.server.storage.journal import Journal
from ssfl.server.storage.model_store import Store
from ssfl.strategies.contract import ClientId


def journalled(folder: Path) -> list[str]:
    journal = Journal(folder / "journal")
    journal.close()
    return [type(facts.from_json(record)).__name__ for record in journal.records]


def test_a_whole_run_ends_with_the_model_on_disk(tmp_path: Path, manifest: Manifest) -> None:
    digests: list[str] = []

    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        while not coordinator.run.state.finished:
            await answer_all(coordinator)
        await coordinator.run.model_written.wait()
        model = coordinator.run.model
        assert model is not None and model.values is not None
        digests.append(values_digest(model.values).hex())

    conduct(tmp_path, script)
    assert (tmp_path / "final").read_text() == digests[0]
    assert journalled(tmp_path)[-1] == "RunFinished"
    # Steps: 1 score, 2 and 3 rounds, 4 evaluation. The last values are kept, and those before.
    assert sorted(path.name for path in tmp_path.glob("values-*")) == [
        "values-2.f32", "values-3.f32",
    ]  # fmt: skip
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_run_taken_up_after_every_step_ends_with_the_same_model(
    tmp_path: Path, manifest: Manifest
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()

    async def to_the_end(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        while not coordinator.run.state.finished:
            await answer_all(coordinator)
        await coordinator.run.model_written.wait()

    async def one_answer(coordinator: Coordinator) -> None:
        if not coordinator.run.state.members:
            await begin(coordinator, manifest)
        step = coordinator.run.state.step
        if step is not None and step.pending:
            await coordinator.run.post(spooled(coordinator, max(step.pending)))
        elif step is not None:
            await step_over(coordinator, step.number)
        if coordinator.run.state.finished:
            await coordinator.run.model_written.wait()

    conduct(whole, to_the_end)
    for _ in range(20):
        conduct(parts, one_answer)
        if (parts / "final").exists():
            break
    assert (parts / "final").read_text() == (whole / "final").read_text()


def test_a_run_killed_at_its_end_still_writes_the_best_model(
    tmp_path: Path, manifest: Manifest
) -> None:
    """Neither was the best model kept nor anything written, but the journal says it is over."""
    state, out = tmp_path / "state", tmp_path / "out"
    state.mkdir()
    wanted: list[str] = []

    async def to_the_end(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        while not coordinator.run.state.finished:
            await answer_all(coordinator)
        await coordinator.run.model_written.wait()

    async def again(coordinator: Coordinator) -> None:
        await coordinator.run.model_written.wait()
        assert coordinator.run.state.best is not None
        wanted.append(coordinator.run.state.best.base_digest)

    conduct(state, to_the_end)
    (kept,) = state.glob("best-*.f32")
    kept.unlink()
    conduct(state, again, write_model=Accounts(out).write_outputs)
    (written,) = out.glob("*/coordinator/best/kept.safetensors")
    assert values_digest(load_file(written)["values"]).hex() == wanted[0]
    assert kept.exists()


def test_a_best_model_damaged_during_the_run_does_not_affect_the_final_model(
    tmp_path: Path, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    state.mkdir()

    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        while not coordinator.run.state.finished:
            await answer_all(coordinator)
            for kept in state.glob("best-*.f32"):
                kept.write_bytes(b"damaged")
        await coordinator.run.model_written.wait()

    settings = replace(SETTINGS, evaluate_every=1)
    conduct(state, script, settings, Accounts(out).write_outputs)
    assert "the best model is not written" in caplog.text
    (folder,) = out.glob("*/coordinator")
    assert (folder / "kept.safetensors").exists() and not (folder / "best").exists()


@pytest.mark.parametrize("damaged", ["best", "mask"])
def test_a_damaged_copy_of_the_best_model_is_noticed_at_the_start(
    tmp_path: Path, manifest: Manifest, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        while not coordinator.run.state.finished:
            await answer_all(coordinator)
        await coordinator.run.model_written.wait()

    conduct(tmp_path, script)
    state, store = reopened_state(tmp_path), Store(tmp_path, SETTINGS.seed)
    check_best(state, manifest, store)
    assert not caplog.records
    assert state.best is not None and state.best.step == state.model_step
    (kept,) = tmp_path.glob("best-*.f32")
    whole = kept.read_bytes()
    path = kept if damaged == "best" else tmp_path / f"mask-{state.best.mask_epoch}.bin"
    path.write_bytes(path.read_bytes()[:-1])
    check_best(state, manifest, store)
    if damaged == "best":  # the values of its step are still here
        assert kept.read_bytes() == whole
        assert "was restored from its step" in caplog.text
        kept.unlink()
        (tmp_path / f"values-{state.best.step}.f32").unlink()
        check_best(state, manifest, store)
    assert path.name in caplog.records[-1].getMessage()
    assert "will not be written at the end" in caplog.records[-1].getMessage()


def test_the_reply_comes_after_the_fact_is_on_disk(tmp_path: Path) -> None:
    async def script(coordinator: Coordinator) -> None:
        for number in range(3):
            client = ClientId(f"c{number}")
            await coordinator.run.post(events.Joined(client, "t", 10, "", "cpu"))
            written = (tmp_path / "journal").read_bytes()
            assert f'"client":"c{number}"'.encode() in written

    conduct(tmp_path, script)


def test_events_that_come_together_are_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    journal_append = Journal.append

    def counting(journal: Journal, bodies: list[bytes]) -> None:
        batches.append(len(bodies))
        journal_append(journal, bodies)

    async def script(coordinator: Coordinator) -> None:
        monkeypatch.setattr(Journal, "append", counting)
        joins = [events.Joined(ClientId(f"c{i}"), "t", 10, "", "cpu") for i in range(50)]
        await asyncio.gather(*(coordinator.run.post(event) for event in joins))

    conduct(tmp_path, script)
    assert sum(batches) == 50
    assert len(batches) <= 3


def test_a_step_that_opens_and_is_stopped_in_one_batch_does_not_fail(
    tmp_path: Path, manifest: Manifest
) -> None:
    """The second vote is taken, and the stop with it, before the sum of the next step exists."""

    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        await answer_all(coordinator)
        await coordinator.run.post(spooled(coordinator, C1))
        last = spooled(coordinator, C2)
        posts = (last, events.Signal.STOP, last)
        replies = await asyncio.gather(*(coordinator.run.post(event) for event in posts))
        assert replies == [Reply.ACCEPTED, Reply.DONE, Reply.ALREADY_ACCEPTED]
        await coordinator.run.model_written.wait()
        assert (coordinator.run.state.rounds_done, coordinator.run.state.stopped) == (1, True)

    conduct(tmp_path, script)


def test_a_start_and_a_stop_in_one_batch_do_not_fail(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        digest = manifest.digest.hex()
        await coordinator.run.post(events.Joined(C1, "t", 10, digest, "cpu"))
        await coordinator.run.post(events.Joined(C2, "t", 10, digest, "cpu"))
        initial = initial_vector(manifest, SETTINGS.seed)
        coordinator.store.save_initial(manifest, initial)
        model = ModelState(manifest, initial)
        described = events.Initialized(C1, digest, model.initial_digest.hex(), 0, "", 0, "")
        await asyncio.gather(
            coordinator.run.post(described, model), coordinator.run.post(events.Signal.STOP)
        )
        await coordinator.run.model_written.wait()
        assert coordinator.run.state.finished and coordinator.run.state.last_step == 1

    conduct(tmp_path, script)


def test_a_model_that_was_not_accepted_does_not_become_current(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        known = coordinator.run.model
        other = ModelState(manifest, initial_vector(manifest, seed=6))
        event = events.Initialized(C2, "other", other.initial_digest.hex(), 0, "", 0, "")
        assert await coordinator.run.post(event, other) is Reply.CONFLICT
        assert coordinator.run.model is known

    conduct(tmp_path, script)


def test_a_failing_worker_ends_the_coordinator_with_its_error(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        event = spooled(coordinator, C1)
        other = spooled(coordinator, C2)
        assert isinstance(other, events.UploadReceived)
        step = coordinator.run.state.step
        assert step is not None
        coordinator.spool.stored(step.number, C2, bytes.fromhex(other.digest)).drop()
        await coordinator.run.post(event)
        await coordinator.run.post(other)
        await step_over(coordinator, step.number)

    with pytest.raises(StateError, match=", an accepted upload, is missing: restore"):
        conduct(tmp_path, script)


def test_a_broken_disk_ends_the_coordinator_before_it_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replied: list[Reply] = []

    def broken(_journal: Journal, _bodies: list[bytes]) -> None:
        raise OSError(5, "Input/output error")

    async def script(coordinator: Coordinator) -> None:
        monkeypatch.setattr(Journal, "append", broken)
        replied.append(await coordinator.run.post(events.Joined(C1, "t", 10, "", "cpu")))

    with pytest.raises(OSError, match="Input/output"):
        conduct(tmp_path, script)
    assert replied == []


@pytest.mark.parametrize("point", ["journal.append", "journal.torn", "journal.written"])
def test_the_run_waits_for_a_full_disk_and_reports_it(tmp_path: Path, point: str) -> None:
    reasons: list[str] = []
    full = iter([True, True, False])

    def hook(name: str) -> None:
        if name == point and next(full, False):
            trigger("full", name)

    async def script(coordinator: Coordinator) -> None:
        coordinator.disk_space._pause = lambda _s: reasons.append(coordinator.run.waiting_for())
        install_hook(hook)
        try:
            reply = await coordinator.run.post(events.Joined(C1, "t", 10, "", "cpu"))
        finally:
            install_hook(None)
        assert reply is Reply.DONE
        assert C1 in coordinator.run.state.members
        assert "disk" not in coordinator.run.waiting_for()

    conduct(tmp_path, script)
    assert len(reasons) == 2
    said = r"room on the disk of --state-dir, which has [\d.]+ MB free \(No space left on device\)"
    assert all(re.fullmatch(said, text) for text in reasons), reasons
    assert C1 in reopened_state(tmp_path).members


def reopened_state(folder: Path) -> RunState:
    journal = Journal(folder / "journal")
    try:
        return open_run(journal, SETTINGS, Ledger())[0]
    finally:
        journal.close()


def test_a_run_loop_that_ends_stops_waiting_for_disk_space(tmp_path: Path) -> None:
    def hook(name: str) -> None:
        if name == "journal.append":
            trigger("full", name)

    async def script(coordinator: Coordinator) -> None:
        install_hook(hook)
        posting = asyncio.ensure_future(coordinator.run.post(events.Joined(C1, "t", 10, "", "cpu")))
        while not coordinator.disk_space.blocked_on:
            await asyncio.sleep(0)
        posting.cancel()

    try:
        conduct(tmp_path, script)
    finally:
        install_hook(None)


def test_a_change_of_tasks_wakes_the_clients_that_wait(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        changed = coordinator.run.tasks_changed()
        await coordinator.run.post(events.Signal.TICK)
        assert not changed.is_set(), "no task has changed"
        await begin(coordinator, manifest)
        assert changed.is_set()
        assert not coordinator.run.tasks_changed().is_set()

    conduct(tmp_path, script)


def test_the_sum_is_the_mean_of_what_was_spooled(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        await answer_all(coordinator)
        model = coordinator.run.model
        assert model is not None and model.values is not None
        answers = [
            Stream(0, "answer", client, 0).uniform(model.values.size).astype(np.float32)
            for client in (C1, C2)
        ]
        await answer_all(coordinator)
        assert coordinator.run.model is not None and coordinator.run.model.values is not None
        # Equal weights: the mean in double precision, which is exact for two floats, on the grid.
        grid = [np.rint(answer.astype(np.float64) * 2.0**36) * 2.0**-36 for answer in answers]
        expected = ((grid[0] + grid[1]) / 2).astype(np.float32)
        np.testing.assert_array_equal(coordinator.run.model.values, expected)

    conduct(tmp_path, script)


SERVER = Path(run_loop.__file__).parents[1]
VALUES = {"state", "model", "manifest"}  # published by the loop: an edge may look into them


def chains(file: Path) -> Iterator[list[str]]:
    """Yield every dotted name of a module, as its parts."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            yield text.split(".") if re.fullmatch(r"[\w.]+", text) else []


def test_the_run_loop_does_not_expose_other_services() -> None:
    """The edges take services from the record of a coordinator, never through its loop."""
    assert len(inspect.signature(RunLoop).parameters) <= 6
    reached = [
        f"{file.relative_to(SERVER)}: {'.'.join(chain)}"
        for room in ("rpc", "watch")
        for file in sorted((SERVER / room).glob("*.py"))
        for chain in chains(file)
        for at, name in enumerate(chain[:-2])
        if name in ("run", "_run") and chain[at + 1] not in {*VALUES, "model_written"}
    ]
    assert reached == []


@cache
def joined_names() -> list[tuple[str, object]]:
    """Return the rooms of the coordinator with the constants that they join to a path."""
    return [
        (file.relative_to(SERVER).parts[0], node.right.value)
        for file in SERVER.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
        if isinstance(node.right, ast.Constant)
    ]


@pytest.mark.parametrize("name", ["journal", "snapshot.json", "spool", "accepted", "ledger.csv"])
def test_only_the_storage_room_names_a_file_of_the_state_directory(name: str) -> None:
    """`ledger.csv` is also a file of the results, which the report room writes."""
    named = {room for room, joined in joined_names() if joined == name}
    assert named == ({"storage", "report"} if name == "ledger.csv" else {"storage"})

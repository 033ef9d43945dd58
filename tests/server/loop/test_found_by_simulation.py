"""What the simulation (tests/simulation) found first, each as a small test of its own."""

from dataclasses import replace
from pathlib import Path

import pytest

from ssfl.durable.failpoints import install_hook
from ssfl.method.settings import RunSettings
from ssfl.server.errors import Fenced
from ssfl.server.run import events
from ssfl.server.run.events import Reply
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState
from ssfl.server.storage.journal import Journal, holds_journal
from ssfl.server.storage.spool import Spool
from ssfl.strategies.contract import ClientId

C1 = ClientId("c1")
JOINED = events.Joined(C1, "t", 10, "m", "cpu")


def test_a_pause_moves_times_but_not_beyond_now() -> None:
    """A client that joins before the pause is noticed has not joined in the future."""
    state, _, _ = advance(RunState(RunSettings()), JOINED, 5000.0)
    state = replace(state, countdown_from_s=5000.0, step_began_s=10.0)
    state, _, _ = advance(state, events.ProcessSuspended(4900.0), 5001.0)
    assert (state.countdown_from_s, state.step_began_s) == (5001.0, 4910.0)


def test_a_leave_of_an_earlier_session_does_not_end_the_newer_one() -> None:
    state, _, _ = advance(RunState(RunSettings()), JOINED, 0.0)
    old = state.members[C1].session
    state, _, _ = advance(state, JOINED, 1.0)
    after, actions, reply = advance(state, events.Left(C1, False, old), 2.0)
    assert reply is Reply.CONFLICT and not actions and not after.members[C1].left
    after, _, reply = advance(state, events.Left(C1, False, old + 1), 2.0)
    assert reply is Reply.DONE and after.members[C1].left


def test_a_journal_whose_takeover_was_cut_short_is_still_there(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert not holds_journal(path)
    first = Journal(path)
    first.append([b"1"])
    first.close()

    def cut(name: str) -> None:
        if name == "journal.taken":
            raise KeyboardInterrupt

    install_hook(cut)
    try:
        with pytest.raises(KeyboardInterrupt):
            Journal(path)
    finally:
        install_hook(None)
    assert not path.exists()
    assert holds_journal(path)


def test_an_idle_coordinator_finds_out_that_it_is_fenced(tmp_path: Path) -> None:
    old = Journal(tmp_path / "journal")
    old.check_ours()
    new = Journal(tmp_path / "journal")
    with pytest.raises(Fenced):
        old.check_ours()
    new.check_ours()
    old.close()
    new.close()


def test_a_new_folder_of_the_spool_is_named_on_disk_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("ssfl.server.storage.spool.sync_directory", synced.append)
    spool = Spool(tmp_path / "spool")
    spool.part(3, C1, bytes(32))
    assert synced == [tmp_path / "spool", tmp_path]
    spool.part(3, ClientId("c2"), bytes(32))
    assert len(synced) == 2, "once for each step"

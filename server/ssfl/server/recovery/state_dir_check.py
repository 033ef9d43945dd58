"""Read-only inspection of a state directory: nothing is locked, truncated, written or removed.

Its coordinator may be running, or the directory may be a copy on another machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ssfl.server.accounting.ledger_file import ledger_problem
from ssfl.server.errors import StateError
from ssfl.server.recovery.recover import load_model
from ssfl.server.run.facts import Fact, RunOpened, from_json
from ssfl.server.run.state import RunState
from ssfl.server.storage.journal import read_journal
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.state_directory import StateDirectory


@dataclass(frozen=True, slots=True)
class InspectedRun:
    """The facts in a journal."""

    facts: tuple[Fact, ...]
    torn_bytes: int  # after the last complete record: being written, or torn by a crash

    @property
    def opened(self) -> RunOpened | None:
        """The first fact; None if the journal is empty."""
        first = self.facts[0] if self.facts else None
        assert first is None or isinstance(first, RunOpened)
        return first


def read_state(root: Path) -> InspectedRun:
    """Read the journal of a state directory; raise StateError if it cannot be read."""
    if not root.is_dir():
        raise StateError(f"there is no folder {root}: name the --state-dir of a coordinator")
    path = StateDirectory(root).journal
    try:
        records, torn_bytes = read_journal(path)
    except FileNotFoundError:
        what = "is not the state directory of a coordinator: it holds no journal"
        if Store(root, 0).holds_something():
            what = "holds the files of a run but no journal: restore it from a backup"
        elif (root / "history.json").exists():
            what = "holds the results of a run; its state is in the coordinator's --state-dir"
        raise StateError(f"{root} {what}") from None
    read: list[Fact] = []
    for number, record in enumerate(records, 1):
        try:
            read.append(from_json(record))
        except ValueError as error:
            raise StateError(f"{path}: record {number} cannot be read: {error}") from error
    if read and not isinstance(read[0], RunOpened):
        raise StateError(f"{path} does not begin with a run")
    return InspectedRun(tuple(read), torn_bytes)


def file_problems(
    root: Path,
    state: RunState,
    masks: Mapping[int, str],
    account: tuple[list[dict[str, Any]], int],
) -> list[str]:
    """Return the problems of the files that the journal names, one sentence each."""
    store, checks = Store(root, state.settings.seed), list[Callable[[], object]]()
    try:
        model = load_model(state, store)
    except (StateError, ValueError) as error:
        return [str(error)]
    if model is not None:
        checks = [partial(store.load_mask, model.manifest, *mask) for mask in masks.items()]
        best = state.best
        if best and (best.step != state.model_step or store.holds_best(best)):  # it was copied
            checks.append(partial(store.load_best, best, model))
    ledger = ledger_problem(StateDirectory(root).ledger, *account)
    return [problem for problem in (*map(_problem, checks), ledger) if problem]


def _problem(check: Callable[[], object]) -> str:
    try:
        check()
    except (StateError, ValueError) as error:
        return str(error)
    return ""

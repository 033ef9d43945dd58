"""Recover a run from its state directory: replay the journal and load the model it names."""

import logging
import secrets
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ssfl.method.errors import SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.program.version import ssfl_version
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.accounting.ledger_file import ledger_problem
from ssfl.server.errors import StateError
from ssfl.server.history.run_history import Newest
from ssfl.server.recovery.snapshot import SnapshotHeader, replay
from ssfl.server.run import facts
from ssfl.server.run.apply import apply
from ssfl.server.run.state import RunState
from ssfl.server.storage.journal import Journal, JournalFile, records_of
from ssfl.server.storage.lazy_vector import LazyVector
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.strategies.contract import Work
from ssfl.strategies.registry import check_settings, identity, strategy_for

log = logging.getLogger(__name__)

# Settings that may differ between two starts of one run: they affect timing, not results.
CHANGEABLE = {"round_deadline_s", "no_progress_s"}


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run as read from its state directory."""

    directory: StateDirectory
    state: RunState
    history: Newest
    journal: Journal
    store: Store
    spool: Spool
    ledger: Ledger
    snapshot_bytes: int = 0  # length of the journal that the snapshot covers


def check_beginning(directory: StateDirectory, store: Store, spool: Spool) -> None:
    """Raise StateError if the journal is empty although files of a run exist."""
    path = directory.journal
    begun = path.exists() and next(records_of(path), None) is not None
    if path.exists() and not begun and (store.holds_something() or not spool.is_empty):
        raise StateError(
            f"{path} has lost its beginning, and the files of a run are next to it: restore it "
            "from a backup, or use --fresh to move the rest aside and begin again"
        )


def check_newest(journal: Journal, state: RunState, store: Store) -> None:
    """Raise StateError if values of a later step than the last in the journal exist."""
    if store.newest_step > state.last_step:
        raise StateError(
            f"{journal.path} ends before step {store.newest_step}, whose values are next to it: "
            "it has lost its end. Restore it from a backup, or use --fresh to move all aside and "
            "begin again"
        )


def open_run(
    journal: Journal, settings: RunSettings, ledger: Ledger, known: SnapshotHeader | None = None
) -> tuple[RunState, Newest]:
    """Return the state and history of a journal; begin a new run if it is empty.

    `known` is the snapshot of the journal: only the rest is replayed.
    """
    known = known or SnapshotHeader(RunState(settings), Newest(), 0, 0)
    opened = next(journal.read_from(), None)
    if opened is None:
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        first = facts.RunOpened(run_id, asdict(settings), ssfl_version(), identity(settings))
        journal.append([facts.to_json(first)])
        return apply(known.state, first), known.newest
    try:
        begun = facts.from_json(opened[1])
        if not isinstance(begun, facts.RunOpened):
            raise ValueError("it does not begin with a run")
        _check_settings(begun, settings)
        replayed = replay(JournalFile(journal.path), known, journal.num_bytes)
    except ValueError as error:
        raise StateError(
            f"{journal.path} cannot be replayed: {error}; it may be of another version. "
            "Use --fresh to move it aside and begin again"
        ) from error
    ledger.resume(replayed.newest.ledger)
    return replayed.state, replayed.newest


def load_manifest(state: RunState, store: Store) -> Manifest | None:
    """Return the manifest of the model; None before a client has described it."""
    return store.load_manifest(state.manifest_digest) if state.manifest_digest else None


def load_model(state: RunState, store: Store) -> ModelState | None:
    """Return the model the state names; None before a client has described it."""
    manifest = load_manifest(state, store)
    return load_models(state, manifest, store)[-1] if manifest else None


def load_models(state: RunState, manifest: Manifest, store: Store) -> list[ModelState]:
    """Return the model the state names, after the earlier models that clients may still hold.

    This takes seconds if a large initial vector must be rebuilt.
    """
    name = state.initial_digest
    initial = LazyVector(bytes.fromhex(name), lambda: store.load_initial(manifest, name))
    initial.vector()  # fail now if it cannot be loaded
    model = strategy_for(state.settings).begin(manifest, initial)
    if not state.model_step:
        return [model]
    model = with_scored(model, state, store)
    begun, renewed = model, state.rounds_done == state.masked_round
    step = state.model_step
    model = store.load_step(step, model, state.mask_epoch, state.mask_digest, state.base_digest)
    extra = store.load_extra(state.extra_digest, manifest) if state.extra_digest else model.extra
    model = replace(model, change=store.load_change(step), extra=extra, stage=state.stage)
    earlier = store.load_earlier(step, model, renewed=renewed)
    if begun.values is not None and state.rounds_done == 1 and not renewed:
        earlier = [begun]  # the first round of a run that starts with values
    if state.step is None or state.step.work is not Work.SCORE:
        model.release()  # mask and values usually suffice
    return [*earlier, model]


def check_best(state: RunState, manifest: Manifest, store: Store) -> None:
    """Warn at the start if the copy of the best model is damaged; restore it if possible.

    The run continues without it: no site needs the best model, and every site needs the final one.
    """
    best = state.best
    if best is None:
        return
    try:
        store.load_mask(manifest, best.mask_epoch, best.mask_digest)
        if store.mend_best(best):
            log.warning(
                "the copy of the best model was damaged or missing, and was restored from its step",
                extra={"rounds_done": best.rounds_done},
            )
    except (StateError, ValueError, OSError) as error:
        log.warning(
            "the best model will not be written at the end, and the run continues without it. "
            "To keep it, stop the coordinator, restore the file from a backup and start again: %s",
            error, extra={"rounds_done": best.rounds_done},
        )  # fmt: skip


def check_ledger(directory: StateDirectory, account: tuple[list[dict[str, Any]], int]) -> None:
    """Warn at the start if the rows of ledger.csv do not add up to the totals of the journal."""
    path, num_bytes = directory.ledger, account[1]
    if path.stat().st_size < num_bytes:
        return  # LedgerFile has logged it
    if problem := ledger_problem(path, *account):
        log.warning(
            "the bytes by round and client are wrong in this run's ledger.csv. The run continues, "
            "and the totals, which the journal holds, are right. To mend it, stop the coordinator "
            "first: %s",
            problem,
        )


def with_scored(model: ModelState, state: RunState, store: Store) -> ModelState:
    """Return the model with the vector its mask was agreed on, where pruned weights may rest."""
    epoch, digest = state.mask_epoch, state.scored_digest
    if not digest:
        return model
    scored = LazyVector(bytes.fromhex(digest), lambda: store.load_scored(epoch, digest))
    scored.vector()  # fail now if it cannot be loaded
    resting = scored if state.settings.deactivated == "keep" else None
    return replace(model, scored=scored, scored_digest=scored.digest, resting=resting)


def settings_of(opened: facts.RunOpened) -> RunSettings:
    """Return the settings of a run; raise StateError for settings of a later version."""
    known = {field.name for field in fields(RunSettings)}
    if unknown := sorted(set(opened.settings) - known):
        raise StateError(
            f"run {opened.run_id} has settings this version does not know: {', '.join(unknown)}. "
            f"Use the version that began it, {opened.software}"
        )
    settings = RunSettings(**opened.settings)
    try:
        check_settings(settings)
    except (SettingsError, TypeError) as error:
        raise StateError(f"run {opened.run_id} has a setting that is wrong: {error}") from error
    return settings


def _check_settings(opened: facts.RunOpened, settings: RunSettings) -> None:
    now = asdict(settings)
    was = asdict(RunSettings()) | dict(opened.settings)  # settings added later have their defaults
    differing = [
        f"--{name.replace('_', '-')} was {was[name]!r}, is {now[name]!r}"
        for name in now
        if name not in CHANGEABLE and was[name] != now[name]
    ]
    if opened.strategy and not differing and (present := identity(settings)) != opened.strategy:
        raise StateError(
            f"the state directory holds run {opened.run_id} with {opened.strategy}, and this is "
            f"{present}. Start with that version to resume it, or use --fresh to begin a new run"
        )
    if differing:
        raise StateError(
            f"the state directory holds run {opened.run_id} with other settings: "
            + "; ".join(differing)
            + ". Start with those settings to resume it, or use --fresh to begin a new run"
        )

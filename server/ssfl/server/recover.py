"""From a state directory to a run: replay the journal, load the model it names."""

import logging
import secrets
import time
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from pathlib import Path

from ssfl.method.errors import SettingsError
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import strategy_for
from ssfl.server import facts
from ssfl.server.errors import StateError
from ssfl.server.history import History
from ssfl.server.journal import Journal
from ssfl.server.ledger import Ledger
from ssfl.server.state import RunState, apply
from ssfl.server.store import Store

log = logging.getLogger(__name__)

# Settings that may differ between two starts of one run: they change when, not what.
CHANGEABLE = {"round_deadline_s", "no_progress_s"}


def move_aside(state_dir: Path) -> Path | None:
    """Rename an existing state directory; return its new name."""
    entries = sorted(
        (entry for entry in state_dir.iterdir() if entry.name != "lock"),
        key=lambda entry: entry.name == "journal",  # last: a crash leaves it to be moved again
    )
    if not entries:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target = state_dir.with_name(f"{state_dir.name}.{stamp}-{secrets.token_hex(2)}")
    target.mkdir(parents=True)
    for entry in entries:
        entry.rename(target / entry.name)
    return target


def open_run(journal: Journal, settings: RunSettings, history: History, ledger: Ledger) -> RunState:
    """Return the state a journal tells; begin a new run in an empty one."""
    state = RunState(settings)
    if not journal.records:
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        opened = facts.RunOpened(run_id, asdict(settings), version("ssfl"))
        journal.append([facts.to_json(opened)])
        return apply(state, opened)
    try:
        told = [facts.from_json(record) for record in journal.records]
        first = told[0]
        if not isinstance(first, facts.RunOpened):
            raise ValueError("it does not begin with a run")
        _check_settings(first, settings)
        for fact in told:
            state = apply(state, fact)
            history.add(fact)
    except ValueError as error:
        raise StateError(
            f"{journal.path} cannot be replayed: {error}; it may be of another version. "
            "Use --fresh to move it aside and begin again"
        ) from error
    ledger.resume(history.ledger)
    journal.records.clear()
    return state


def load_model(state: RunState, store: Store) -> ModelState | None:
    """Return the model the state names; None before a client has described it."""
    if not state.manifest_digest:
        return None
    manifest = store.load_manifest(state.manifest_digest)
    initial = store.load_initial(manifest, state.initial_digest)
    model = strategy_for(state.settings).begin(manifest, initial)
    if not state.model_step:
        return model
    return store.load_step(
        state.model_step, with_scored(model, state, store), state.mask_epoch, state.mask_digest,
        state.base_digest,
    )  # fmt: skip


def with_scored(model: ModelState, state: RunState, store: Store) -> ModelState:
    """Return the model with what its mask was agreed on, and so where pruned weights rest."""
    if not state.scored_digest:
        return model
    scored = store.load_scored(model.manifest, state.mask_epoch, state.scored_digest)
    resting = scored if state.settings.deactivated == "keep" else None
    digest = bytes.fromhex(state.scored_digest)
    return replace(model, scored=scored, scored_digest=digest, resting=resting)


def settings_of(opened: facts.RunOpened) -> RunSettings:
    """Return the settings a run was opened with; StateError for those of a later version."""
    known = {one.name for one in fields(RunSettings)}
    if unknown := sorted(set(opened.settings) - known):
        raise StateError(
            f"run {opened.run_id} has settings this version does not know: {', '.join(unknown)}. "
            f"Use the version that began it, {opened.software}"
        )
    settings = RunSettings(**opened.settings)
    try:
        settings.validate()
    except (SettingsError, TypeError) as error:
        raise StateError(f"run {opened.run_id} has a setting that is wrong: {error}") from error
    return settings


def _check_settings(opened: facts.RunOpened, settings: RunSettings) -> None:
    now = asdict(settings)
    was = asdict(RunSettings()) | dict(opened.settings)  # a setting that came later: its default
    differing = [
        f"--{name.replace('_', '-')} was {was[name]!r}, is {now[name]!r}"
        for name in now
        if name not in CHANGEABLE and was[name] != now[name]
    ]
    if differing:
        raise StateError(
            f"the state directory holds run {opened.run_id} with other settings: "
            + "; ".join(differing)
            + ". Start with those settings to resume it, or use --fresh to begin a new run"
        )

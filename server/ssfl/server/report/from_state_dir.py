"""A state directory as the source of a report: the run may be active, crashed or without results.

Read-only and without a lock: a coordinator may be using the directory.
"""

from pathlib import Path

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.server.errors import StateError
from ssfl.server.history.history_file import Follower
from ssfl.server.history.run_history import Newest
from ssfl.server.recovery.recover import settings_of
from ssfl.server.recovery.snapshot import SnapshotHeader, replay
from ssfl.server.report.outputs import mask_document, run_document
from ssfl.server.report.source import ReportError, Source, check_run_id
from ssfl.server.run import facts
from ssfl.server.run.state import RunState
from ssfl.server.storage.journal import JournalFile
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.state_directory import StateDirectory


def open_state(folder: Path) -> Source:
    """Return the run in the journal of a state directory, up to its last whole record."""
    journal = JournalFile(StateDirectory(folder).journal)
    try:
        replayed = _replayed(journal)
        model = _mask(folder, replayed.state)
    except (StateError, ValueError) as error:
        raise ReportError(f"{folder}: {error}") from error
    except OSError as error:
        raise ReportError(f"cannot read {error.filename or folder}: {error.strerror}") from error
    check_run_id(journal.path, replayed.state.run_id)
    ledger, num_bytes = replayed.newest.account
    document = run_document(replayed.state, None, replayed.newest, ledger)
    if model:
        document["mask"] = mask_document(*model, replayed.state.mask_epoch)
    path = StateDirectory(folder).ledger
    return Source(
        folder,
        document,
        lambda: ((one.name, one.entry) for one in Follower(journal).entries(replayed.num_bytes)),
        path if path.is_file() else None,
        model,
        num_bytes,
    )


def _replayed(journal: JournalFile) -> SnapshotHeader:
    opened = next(journal.read_from(), None)
    begun = facts.from_json(opened[1]) if opened else None
    if not isinstance(begun, facts.RunOpened):
        raise StateError(f"{journal.path} holds no run yet")
    nothing = SnapshotHeader(RunState(settings_of(begun)), Newest(), 0, 0)
    return replay(journal, nothing, journal.num_bytes)


def _mask(folder: Path, state: RunState) -> tuple[Manifest, Mask] | None:
    if not state.manifest_digest or not state.mask_digest:
        return None
    store = Store(folder, state.settings.seed)
    manifest = store.load_manifest(state.manifest_digest)
    return manifest, store.load_mask(manifest, state.mask_epoch, state.mask_digest)

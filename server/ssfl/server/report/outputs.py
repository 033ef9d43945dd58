"""Output files of a finished run: model, mask, manifest, history and byte counts."""

import logging
import threading
import time
from collections.abc import Callable
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ssfl.durable.files import write_atomic
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.program.model_io.safetensors_model import write_model
from ssfl.program.version import ssfl_version
from ssfl.server.accounting.ledger_file import copy_ledger
from ssfl.server.errors import StateError
from ssfl.server.history.history_file import history_blocks
from ssfl.server.history.run_history import Newest
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.report.contents import write_report
from ssfl.server.report.source import open_folder, without_damaged_ledger
from ssfl.server.run.state import RunState
from ssfl.strategies.registry import strategy_for

log = logging.getLogger(__name__)

REPORT_AGAIN_S = 60.0  # after a failure
_ACCOUNTS = threading.Lock()  # from reading the state to writing it: the newest is written last


def run_folder(out_dir: str | Path, run_id: str) -> str:
    """Return where the coordinator writes the results of a run."""
    return str((Path(out_dir) / run_id / "coordinator").absolute())


def history_document(coordinator: Coordinator) -> Callable[[], bytes]:
    """Capture the current state; return a function for a worker thread that builds history.json."""
    run = coordinator.run
    stop, state, model = run.published_journal_bytes, run.state, run.model
    newest, ledger = copy(coordinator.history), coordinator.ledger.rows()

    def document() -> bytes:
        summary = run_document(state, model, newest, ledger)
        return b"".join(history_blocks(coordinator.journal, stop, summary))

    return document


def run_document(
    state: RunState, model: ModelState | None, history: Newest, ledger: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the content of history.json: settings, model, mask, rounds, evaluations, bytes."""
    voters = {row["client"] for row in history.votes}
    document: dict[str, Any] = {
        "format": 1,
        "software": ssfl_version(),
        "run_id": state.run_id,
        "settings": asdict(state.settings),
        "rounds_done": state.rounds_done,
        "finished": state.finished,
        "stopped": state.stopped,
        "ended_early": state.end_reason,
        "model_digest": state.base_digest,
        "best": asdict(state.best) if state.best else None,
        "clients": {m.client: m.num_samples for m in state.members.values()},
        # Without a training run at the end, personal models are those that the strategy kept.
        **history.to_dict(from_rounds=not state.settings.personalize_epochs),
        # Members that missed the vote on the mask or joined later.
        "not_voted": sorted(set(state.members) - voters) if voters else [],
        "ledger": ledger,
    }
    if model and model.mask:  # with some strategies the served model has another mask
        plain = strategy_for(state.settings).deployed(model)
        assert plain.mask is not None
        document["mask"] = mask_document(plain.manifest, plain.mask, plain.mask_epoch)
    return document


def mask_document(manifest: Manifest, mask: Mask, epoch: int) -> dict[str, Any]:
    """Return the entry of history.json for the newest mask."""
    return {
        "epoch": epoch,
        "digest": mask.digest.hex(),
        "num_kept": mask.num_kept,
        "num_masked": mask.size,
        "num_values": manifest.size,
        "layers": {
            name: {"kept": kept, "size": size}
            for name, (kept, size) in mask.kept_by_tensor(manifest).items()
        },
    }


class Accounts:
    """History, byte counts and report of a finished run, rewritten only if they changed."""

    def __init__(self, out_dir: Path) -> None:
        self._out_dir = out_dir
        self._written = -1  # length of the ledger file that history and byte counts cover
        self._reported = -1  # length of the ledger file that the report covers
        self._failed_s: float | None = None

    def write_outputs(self, coordinator: Coordinator) -> None:
        """Write the final model, history and byte counts."""
        folder = self._folder(coordinator)
        folder.mkdir(parents=True, exist_ok=True)
        model = coordinator.run.model
        if model and model.mask and model.values is not None:
            _write_deployed(coordinator, model, folder)
            _write_best(coordinator, model, folder / "best")
        self._written = -1
        self.write(coordinator)

    def write(self, coordinator: Coordinator) -> None:
        """Update history.json and ledger.csv; the totals are the sums of the rows."""
        so_far = coordinator.history.account[1]
        if so_far == self._written:
            return
        folder, run = self._folder(coordinator), coordinator.run
        with _ACCOUNTS:
            newest = copy(coordinator.history)
            ledger, num_bytes = newest.account
            copy_ledger(coordinator.ledger_file.path, folder / "ledger.csv", num_bytes)
            summary = run_document(run.state, run.model, newest, ledger)
            blocks = history_blocks(coordinator.journal, run.published_journal_bytes, summary)
            write_atomic(folder / "history.json", blocks)
        self._written = so_far

    def report(self, coordinator: Coordinator) -> None:
        """Update the report; after a failure, which must not harm the run, try again later."""
        now_s = time.monotonic()
        failed_recently = self._failed_s is not None and now_s - self._failed_s < REPORT_AGAIN_S
        if failed_recently or self._reported == self._written:
            return
        folder = self._folder(coordinator)
        covered = self._written
        try:
            with _ACCOUNTS:
                source, problem = without_damaged_ledger(open_folder(folder))
                report = write_report(folder, source)
        except Exception as error:  # noqa: BLE001
            self._failed_s = now_s
            again = f"ssfl report {folder}"
            log.warning("the report was not written: %s", error, extra={"to_try_again": again})
        else:
            self._reported, self._failed_s = covered, None
            if problem:
                log.warning("the report lacks the bytes by client: %s", problem)
            log.info("report written", extra={"file": str(report)})

    @property
    def has_report(self) -> bool:
        return self._reported >= 0

    def _folder(self, coordinator: Coordinator) -> Path:
        return Path(run_folder(self._out_dir, coordinator.run.state.run_id))


def _write_best(coordinator: Coordinator, model: ModelState, folder: Path) -> None:
    """Write the best model by all clients' evaluations next to the final one."""
    found = coordinator.run.state.best
    if found is None:
        return
    try:
        best = coordinator.store.load_best(found, model)
    except (StateError, ValueError, OSError) as error:  # the final model must not be lost
        extra = {"rounds_done": found.rounds_done}
        log.warning("the best model is not written: %s", error, extra=extra)
        return
    folder.mkdir(exist_ok=True)
    _write_deployed(coordinator, best, folder)


def _write_deployed(coordinator: Coordinator, model: ModelState, folder: Path) -> None:
    """Write the plain weights of a model."""
    plain = strategy_for(coordinator.run.state.settings).deployed(model)
    assert plain.mask is not None and plain.values is not None
    write_model(folder, plain.manifest, plain.mask, plain.values)

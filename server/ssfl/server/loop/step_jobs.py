"""Worker-thread jobs of a step: folds, the sum, model files, the spool.

The jobs run one at a time, in the order the run loop starts them. None of them posts events.
"""

import logging
from collections.abc import Callable

from ssfl.durable.failpoints import failpoint
from ssfl.method.model_state import ModelState
from ssfl.program.malloc import MemoryReclaimer, trim_heap
from ssfl.server.aggregate.step_sum import StepSum, step_reduced
from ssfl.server.history.timing import StepTimes
from ssfl.server.recovery.recover import OpenedRun
from ssfl.server.recovery.snapshot import EVERY_BYTES, write_snapshot
from ssfl.server.run import events
from ssfl.server.run.apply import newest_counted
from ssfl.server.run.state import RunState, Step
from ssfl.server.storage.disk_full import Disk
from ssfl.server.storage.spool import check_stored
from ssfl.strategies.contract import Work
from ssfl.strategies.registry import strategy_for

log = logging.getLogger(__name__)


class StepJobs:
    """The jobs of one run. Not thread-safe: use one thread."""

    def __init__(
        self, opened: OpenedRun, disk: Disk, times: StepTimes, write_model: Callable[[], None]
    ) -> None:
        """`write_model` writes the run's results to the output directory."""
        self.write_model = write_model
        self._settings = opened.state.settings
        self._opened = opened
        self._store, self._spool = opened.store, opened.spool
        self._disk = disk
        self._times = times
        self._snapshot_bytes = opened.snapshot_bytes
        self._strategy = strategy_for(self._settings)
        self._garbage = MemoryReclaimer()
        self._sum: StepSum | None = None

    def open_step(self, step: Step, model: ModelState | None) -> None:
        """Begin the sum of a step."""
        failpoint("sum.open")
        assert model is not None
        policy = self._settings.score_outliers
        self._sum = StepSum(step, model, self._spool, self._strategy, policy)
        if step.work is Work.SCORE:
            _ = model.whole_digest  # computed here rather than when the first report is checked
            model.release()

    def fold(self, action: events.Fold) -> None:
        """Add an accepted upload to the sum."""
        failpoint("sum.fold")
        upload = action.upload
        values = self._spool.stored(upload.step, upload.client, bytes.fromhex(upload.digest))
        check_stored(values, upload.stored)
        assert self._sum is not None
        self._sum.fold(upload, action.weight)

    def reduce(
        self, step: Step, before: ModelState | None
    ) -> tuple[events.StepReduced, ModelState]:
        """Compute and store the next model; return it with the event that makes it current."""
        failpoint("sum.reduce")
        trim_heap()  # return the memory of received messages before the sum needs more
        assert self._sum is not None
        finished = self._sum.finish(step)
        self._sum = None
        self._times.sum()
        self._disk.retry_while_full(lambda: self._store.save_step(step.number, finished.model))
        result = self._store.lean(finished.model)
        if before is not None:
            before.release()
        result.release()
        failpoint("sum.stored")
        is_lossy = self._settings.value_type != "float32"
        if step.work is Work.TRAIN and is_lossy and result.change is None:
            log.warning(
                f"the run's value type cannot hold the {self._settings.downloads} of this round: "
                "the exact mean is used"
            )
        return step_reduced(step.number, result, finished.report), result

    def drop(self, step: int, state: RunState) -> None:
        """Remove files of a step that has ended, and write a snapshot if one is due.

        With `--keep-uploads`, uploads that counted are moved to `accepted/` instead.
        """
        self._disk.retry_while_full(lambda: self._spool.set_aside(*newest_counted(state)))
        self._spool.drop_through(step)
        self._store.drop_older(state.model_step, state.mask_epoch, state.extra_digest)
        self._garbage.passed(sum(row["payload_bytes"] for row in self._opened.ledger.rows()))
        self._keep_snapshot()

    def keep_best(self, step: int) -> None:
        """Keep the values of a step as the best so far; without them the run continues."""
        try:
            self._disk.retry_while_full(lambda: self._store.keep_best(step))
        except IsADirectoryError as error:
            log.warning(
                "the best model is not kept, and the run continues without it. To keep it, stop "
                "the coordinator, move the folder in its place away and start again: %s", error,
            )  # fmt: skip

    def _keep_snapshot(self) -> None:
        length = self._opened.journal.num_bytes
        if length - self._snapshot_bytes < EVERY_BYTES:
            return
        self._snapshot_bytes = length
        try:
            write_snapshot(self._opened.directory, self._settings, length)
        except OSError as error:  # only the next restart is slower
            log.warning("cannot write a snapshot: %s", error)

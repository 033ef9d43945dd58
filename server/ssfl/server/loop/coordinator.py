"""The parts of a coordinator: the run loop, and storage, accounting and presence around it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ssfl.server.accounting.kernel_bytes import Connections
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.accounting.ledger_file import LedgerFile
from ssfl.server.history.counters import ProcessCounters
from ssfl.server.history.live_entries import LiveEntries
from ssfl.server.history.run_history import Newest
from ssfl.server.loop.fact_writer import Clock, FactWriter
from ssfl.server.loop.presence import PresenceTable
from ssfl.server.loop.refusals import Refusals
from ssfl.server.loop.run_loop import Recorder, RunLoop
from ssfl.server.loop.step_jobs import StepJobs
from ssfl.server.recovery.recover import OpenedRun
from ssfl.server.storage.contracts import Log
from ssfl.server.storage.disk_full import Disk, DiskSpaceWaiter
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.strategies.contract import ClientId


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The parts of a running coordinator; the RPC and HTTP services use them."""

    run: RunLoop
    directory: StateDirectory
    journal: Log
    store: Store
    spool: Spool
    ledger: Ledger
    ledger_file: LedgerFile
    history: Newest
    live_entries: LiveEntries
    connections: Connections
    refusals: Refusals
    counters: ProcessCounters
    presence: PresenceTable
    disk_space: DiskSpaceWaiter
    clock: Clock


def build_coordinator(
    opened: OpenedRun,
    write_model: Callable[[Coordinator], None],
    out_dir: Path,
    clock: Clock = time.monotonic,
    disk_space: DiskSpaceWaiter | None = None,
) -> Coordinator:
    """Build a coordinator for an opened run and return its parts.

    `write_model` writes the run's results to `out_dir`. The caller starts the run loop.
    """
    disk_space = disk_space or DiskSpaceWaiter()
    ledger = opened.ledger
    ledger_file = LedgerFile(opened.directory.ledger, opened.history.account[1])
    disk = Disk("--state-dir", opened.directory.root, disk_space)
    out_disk = Disk("--out-dir", out_dir, disk_space)
    connections, counters, live_entries = Connections(ledger), ProcessCounters(), LiveEntries()
    counters.begin(opened.state, ledger)
    refusals = Refusals(clock, lambda name: ClientId(name) in run.state.members)
    writer = FactWriter(opened, ledger_file, disk, connections, counters, clock)
    jobs = StepJobs(
        opened, disk, writer.times,
        lambda: out_disk.retry_while_full(lambda: write_model(coordinator)),
    )  # fmt: skip
    recorder = Recorder(opened.history, live_entries, refusals)
    run = RunLoop(opened.state, writer, jobs, recorder, disk_space, clock)
    coordinator = Coordinator(
        run, opened.directory, opened.journal, opened.store, opened.spool, ledger, ledger_file,
        opened.history, live_entries, connections, refusals, counters, PresenceTable(), disk_space,
        clock,
    )  # fmt: skip
    return coordinator

"""The parts of a coordinator: the run loop and the services around it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ssfl.method.strategies.contract import ClientId
from ssfl.server.accounting.kernel_bytes import Connections
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.accounting.ledger_file import LedgerFile
from ssfl.server.history.counters import ProcessCounters
from ssfl.server.history.live_entries import LiveEntries
from ssfl.server.history.run_history import Newest
from ssfl.server.loop.fact_writer import FactWriter
from ssfl.server.loop.presence import PresenceTable
from ssfl.server.loop.recorder import Recorder
from ssfl.server.loop.refusals import Refusals
from ssfl.server.loop.run_loop import Clock, RunLoop
from ssfl.server.loop.step_jobs import StepJobs
from ssfl.server.run.state import RunState
from ssfl.server.storage.disk_full import Disk, DiskSpaceWaiter, StateDisk
from ssfl.server.storage.journal import Journal
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.state_directory import StateDirectory


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


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The parts of a running coordinator, used by the RPC and HTTP edges."""

    run: RunLoop
    directory: StateDirectory
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


def start_coordinator(
    opened: OpenedRun,
    write_model: Callable[[Coordinator], None],
    out_dir: Path,
    clock: Clock = time.monotonic,
    disk_space: DiskSpaceWaiter | None = None,
) -> Coordinator:
    """Return the parts of a coordinator; `write_model` writes the run's results to `out_dir`."""
    disk_space = disk_space or DiskSpaceWaiter()
    state, ledger = opened.state, opened.ledger
    ledger_file = LedgerFile(opened.directory.ledger, opened.history.account[1])
    disk = StateDisk(Disk("--state-dir", opened.directory.root), disk_space)
    out_disk = Disk("--out-dir", out_dir)
    connections, counters, live_entries = Connections(ledger), ProcessCounters(), LiveEntries()
    counters.begin(state, ledger)
    refusals = Refusals(clock, lambda name: ClientId(name) in run.state.members)
    writer = FactWriter(opened.journal, ledger_file, disk, ledger, connections, counters, clock)
    jobs = StepJobs(
        state.settings, opened.directory, opened.journal, opened.store, opened.spool, disk, ledger,
        writer.times, lambda: disk_space.wait_for(lambda: write_model(coordinator), out_disk),
        opened.snapshot_bytes,
    )  # fmt: skip
    recorder = Recorder(opened.history, live_entries, refusals)
    run = RunLoop(state, writer, jobs, recorder, disk_space, clock)
    coordinator = Coordinator(
        run, opened.directory, opened.store, opened.spool, ledger, ledger_file,
        opened.history, live_entries, connections, refusals, counters, PresenceTable(), disk_space,
        clock,
    )  # fmt: skip
    return coordinator

"""`ssfl-coordinator`: flags -> config -> serve; signals; exit codes."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ssfl.durable.files import remove_leftovers
from ssfl.durable.lock import DirectoryLock
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState
from ssfl.program import logs, settings
from ssfl.program.exits import ExitCode, ProgramError, run_program
from ssfl.program.malloc import keep_chunk_buffers
from ssfl.program.output_dir import check_writable
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.config import CoordinatorConfig, client_settings, warnings_of
from ssfl.server.errors import StateError, StateGone
from ssfl.server.loop.coordinator import Coordinator, build_coordinator
from ssfl.server.loop.fact_writer import Clock
from ssfl.server.loop.first_model import FirstModel, begin_with, read_first_model
from ssfl.server.loop.limits import check_open_files
from ssfl.server.loop.presence import LOST_AFTER_S
from ssfl.server.loop.run_loop import RunLoop, first_of
from ssfl.server.loop.ticker import TICK_S, tick
from ssfl.server.recovery import recover
from ssfl.server.recovery.snapshot import read_snapshot
from ssfl.server.report.outputs import Accounts, run_folder
from ssfl.server.rpc.listen import Listener, check_ports
from ssfl.server.run import events
from ssfl.server.run.apply import newest_counted
from ssfl.server.run.quorum import final_model_delivered
from ssfl.server.run.state import RunState
from ssfl.server.storage.disk_full import DiskSpaceWaiter, full_disk_text, is_full
from ssfl.server.storage.journal import Journal, holds_journal
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.server.watch.http_ports import HttpPorts

if TYPE_CHECKING:
    from ssfl.server.rpc.tls import Security  # loads cryptography, which only TLS needs

log = logging.getLogger("ssfl.coordinator")

DESCRIPTION = "Coordinates a sparse federation: agrees on one mask, then averages kept values."
# Collections of the middle generation until a full one, which visits the objects of open calls.
# With Python's default, 10, full ones take 6 % of the CPU time of 4,000 uploads. A step with large
# uploads ends with a full one anyway (MemoryReclaimer).
FULL_COLLECTION = 50
CONNECTIONS_EVERY_S = 5.0  # interval for counting the bytes of connections
GOODBYE_S = 60.0  # --exit-when-done waits this long for sites without the final model
DRAIN_S = 20.0  # time to finish work after SIGTERM; Kubernetes kills after 30 s by default


def main(argv: Sequence[str] | None = None) -> int:
    """Run the coordinator; return its exit code."""
    return run_program(lambda: _main(sys.argv[1:] if argv is None else argv), "ssfl-coordinator")


def _main(argv: Sequence[str]) -> int:
    config = settings.load(
        CoordinatorConfig,
        argv,
        os.environ,
        "ssfl-coordinator",
        DESCRIPTION,
        known_elsewhere=client_settings(),
    )
    logs.setup(config.log_format, config.log_level)
    keep_chunk_buffers()
    security = None
    if config.tls_cert or config.join_token_file:
        from ssfl.server.rpc.tls import read_security  # loads cryptography, which only TLS needs

        security = read_security(config)
    check_open_files(max(config.run.clients, config.run.min_clients))
    try:
        with DirectoryLock(config.state_dir):
            check_writable(config.out_dir, "--out-dir")
            return asyncio.run(_watched(config, security))
    except StateError as error:
        raise ProgramError(str(error), ExitCode.STATE) from error
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        if isinstance(error, FileNotFoundError) and not holds_journal(
            StateDirectory(config.state_dir).journal
        ):
            raise ProgramError(str(StateGone(config.state_dir)), ExitCode.STATE) from error
        places = (config.state_dir, config.out_dir)
        what = full_disk_text(places) if is_full(error) and not error.filename else str(error)
        raise ProgramError(
            f"{what}: the state up to here is kept; make room or fix the disk, then start again",
            ExitCode.STATE,
        ) from error


async def _watched(config: CoordinatorConfig, security: "Security | None") -> int:
    http_ports = HttpPorts(config)
    beating = asyncio.ensure_future(http_ports.health.beat())
    try:
        return await _serve(config, security, http_ports)
    finally:
        beating.cancel()
        await http_ports.stop()


async def _serve(
    config: CoordinatorConfig, security: "Security | None", http_ports: HttpPorts
) -> int:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(config.workers))
    check_ports(config)  # a start that fails leaves no new run behind
    first = None
    if config.init:  # before --fresh moves anything, so that an unusable file changes nothing
        is_new = config.fresh or not StateDirectory(config.state_dir).journal.exists()
        read = partial(read_first_model, is_new=is_new)
        first = await asyncio.to_thread(read, config.init, config.run)
        config = replace(config, run=first.settings)
    if config.fresh and (moved := StateDirectory(config.state_dir).move_aside()):
        log.warning(
            "--fresh: moved the earlier run aside; to resume it, give its new path with "
            "--state-dir, without --fresh",
            extra={"to": str(moved)},
        )
    accounts = Accounts(config.out_dir)
    coordinator = _start(config, await asyncio.to_thread(_read, config), accounts)
    run = coordinator.run
    listener = Listener(config, coordinator, security)
    stop = _signals()
    jobs: list[asyncio.Future[Any]] = [asyncio.ensure_future(run.serve())]
    try:
        # Recover open work before the first call can arrive.
        await first_of([*jobs, asyncio.ensure_future(_take_up(coordinator, first))])
        await listener.start()
        logs.log_settings(log, settings.describe(config), settings.changed(config))
        print(f"ssfl-coordinator listening on {config.host}:{listener.port}", flush=True)
        print(f"ssfl-coordinator admin on {config.admin_host}:{listener.admin_port}", flush=True)
        http_ports.open(coordinator, listener.uploads)
        gc.collect()
        gc.freeze()  # loaded objects stay: exclude them from garbage collection
        gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION)
        http_ports.health.ready = True
        _greet(config, run.state)
        jobs.append(asyncio.ensure_future(tick(coordinator)))
        jobs.append(asyncio.ensure_future(_accounts(coordinator, accounts)))
        jobs.append(asyncio.ensure_future(_asked_to_stop(stop, run, listener, http_ports)))
        given_up = asyncio.ensure_future(_given_up(run, config))
        jobs.append(given_up)
        if config.exit_when_done:
            jobs.append(asyncio.ensure_future(_all_delivered(run)))
        await first_of(jobs)
    finally:
        http_ports.health.ready = False
        await listener.stop()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    if run.model_written.is_set():
        accounts.write(coordinator)  # with bytes counted since
        if not accounts.has_report:  # an older report is enough: `ssfl report` can rebuild it
            accounts.report(coordinator)
    if given_up.done() and not given_up.cancelled():
        raise ProgramError(
            f"gave up waiting for {given_up.result()}. The state is kept: start again with the "
            "same flags, without --fresh, to resume",
            ExitCode.STALLED,
        )
    if stop.is_set():
        again = "; start again with the same flags, without --fresh, to resume"
        hint = "" if run.model_written.is_set() else again
        log.info("coordinator stopped%s", hint)
        return int(stop.exit_code)
    return int(ExitCode.STOPPED if run.state.stopped else ExitCode.DONE)


async def _take_up(coordinator: Coordinator, first: FirstModel | None) -> None:
    await coordinator.run.post(events.Signal.RECOVERED)
    if first:
        await begin_with(first, coordinator.run, coordinator.store)


def _read(config: CoordinatorConfig) -> recover.OpenedRun:
    """Read the state directory. Slow: run it on a worker thread."""
    directory = StateDirectory(config.state_dir)
    directory.check_files()
    remove_leftovers(directory.root)
    store = Store(directory.root, config.run.seed)
    if store.holds_something() and not holds_journal(directory.journal):
        raise StateError(
            f"{directory.journal} is missing next to the files of a run: restore it from a backup, "
            "or use --fresh to move the rest aside and begin again"
        )
    spool = Spool(directory.spool, directory.accepted if config.keep_uploads else None)
    recover.check_beginning(directory, store, spool)
    known = read_snapshot(directory, config.run)
    journal = Journal(directory.journal, known.num_bytes)
    if journal.cut_bytes:
        log.warning("journal: a torn tail was cut", extra={"bytes": journal.cut_bytes})
    ledger = Ledger()
    state, history = recover.open_run(journal, config.run, ledger, known)
    recover.check_newest(journal, state, store)
    spool.set_aside(*newest_counted(state))  # in case of a crash before this
    spool.drop_others(state.step.number if state.step else -1)
    return recover.OpenedRun(
        directory, state, history, journal, store, spool, ledger, known.num_bytes
    )


def _start(
    config: CoordinatorConfig,
    opened: recover.OpenedRun,
    accounts: Accounts,
    clock: Clock = time.monotonic,
    disk_space: DiskSpaceWaiter | None = None,
) -> Coordinator:
    write = partial(_write, config=config, accounts=accounts)
    coordinator = build_coordinator(opened, write, config.out_dir, clock, disk_space)
    if manifest := recover.load_manifest(opened.state, opened.store):
        coordinator.run.take_up(manifest, lambda: _load(opened, manifest))
    return coordinator


def _load(opened: recover.OpenedRun, manifest: Manifest) -> list[ModelState]:
    """Load the models; warn of damaged files that the run can continue without."""
    models = recover.load_models(opened.state, manifest, opened.store)
    recover.check_best(opened.state, manifest, opened.store)
    recover.check_ledger(opened.directory, opened.history.account)
    return models


def _write(coordinator: Coordinator, config: CoordinatorConfig, accounts: Accounts) -> None:
    accounts.write_outputs(coordinator)
    folder = run_folder(config.out_dir, coordinator.run.state.run_id)
    log.info("results written", extra={"folder": folder})
    if not config.exit_when_done:
        log.info("serving the final model to late sites; Ctrl-C ends the coordinator")


def _greet(config: CoordinatorConfig, state: RunState) -> None:
    if state.finished:
        ended = "was stopped by an operator" if state.stopped else "is finished"
        log.info("this run %s (--fresh begins a new one)", ended, extra={"run": state.run_id})
    elif state.members:
        log.info(
            "resumed",
            extra={"run": state.run_id, "phase": state.phase.value, "rounds": state.rounds_done},
        )
    else:
        log.info("new run", extra={"run": state.run_id, "state_dir": str(config.state_dir)})
    for warning in warnings_of(config):
        log.warning("%s", warning, extra={"host": config.host})


class _Stop(asyncio.Event):
    exit_code = ExitCode.DONE

    def __init__(self) -> None:
        super().__init__()
        self.now = asyncio.Event()  # stop without finishing open work


def _signals() -> _Stop:
    stop = _Stop()

    def ask(code: ExitCode) -> None:
        if stop.is_set() or code is ExitCode.INTERRUPTED:
            stop.now.set()
        stop.exit_code = code
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, ask, ExitCode.INTERRUPTED)
    loop.add_signal_handler(signal.SIGTERM, ask, ExitCode.TERMINATED)
    return stop


async def _asked_to_stop(
    stop: _Stop, run: RunLoop, listener: Listener, http_ports: HttpPorts
) -> None:
    """Return after a signal and, unless it is urgent, when open work is finished or safe.

    No new step begins. A running sum and uploads in flight are finished. Clients that still compute
    are not waited for: they send their results to the next coordinator process.
    """
    await stop.wait()
    http_ports.health.ready = False
    if stop.now.is_set():
        return
    draining = asyncio.ensure_future(_drain(run, listener))
    await asyncio.wait(
        {draining, asyncio.ensure_future(stop.now.wait())},
        timeout=DRAIN_S,
        return_when=asyncio.FIRST_COMPLETED,
    )
    if not draining.done():
        draining.cancel()
        log.warning("stopping before all open work is finished; nothing is lost")


async def _drain(run: RunLoop, listener: Listener) -> None:
    log.info("stopping: no new step begins; open work is finished or kept")
    await run.post(events.Signal.DRAIN)
    while (step := run.state.step) and (step.closed is not None or listener.uploads.slots.held):
        await asyncio.sleep(0.05)


async def _given_up(run: RunLoop, config: CoordinatorConfig) -> str:
    """Return what the run waits for once it has waited too long."""
    patience_s = 0.0 if config.exit_on_stall else config.give_up_after
    if run.state.members:  # after a restart, give clients time to reconnect
        await asyncio.sleep(LOST_AFTER_S)
    while True:
        await asyncio.sleep(TICK_S)
        stall = run.state.stall
        if stall and run.clock() - stall.since_s >= patience_s:
            return run.waiting_for()


async def _accounts(coordinator: Coordinator, accounts: Accounts) -> None:
    """Count the bytes of connections; write the report when the run ends.

    Byte counts and report are rewritten when every site has the final model.
    """
    while True:
        await asyncio.sleep(CONNECTIONS_EVERY_S)
        await coordinator.connections.count()
        if not coordinator.run.model_written.is_set():
            continue
        if final_model_delivered(coordinator.run.state):
            await asyncio.to_thread(accounts.write, coordinator)
        await asyncio.to_thread(accounts.report, coordinator)


async def _all_delivered(run: RunLoop) -> None:
    """Return when the model is written and every site has it, at most GOODBYE_S later."""
    await run.model_written.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GOODBYE_S):
            while not final_model_delivered(run.state):
                await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())

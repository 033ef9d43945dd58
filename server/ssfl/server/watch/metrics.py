"""Prometheus metrics of a coordinator; program/monitor/series.py declares every series.

Values are read at scrape time from the run's state, the ledger and the counters of this process.
All three are immutable or copied, so the answering thread needs no lock.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ssfl.program.malloc import heap_bytes
from ssfl.program.monitor import series
from ssfl.program.monitor.metrics import build_info, histograms, many, maybe, one
from ssfl.server.accounting.ledger import CARRIED, CONNECTION, Direction
from ssfl.server.accounting.memory import memory_limit_bytes, peak_memory_bytes
from ssfl.server.history.timing import sending_s
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.rpc.status_codes import all_reasons
from ssfl.server.run.state import Phase, RunState
from ssfl.server.run.waiting import STATES, client_state, seconds_left
from ssfl.server.storage.disk_full import disks
from ssfl.server.uploads.receive import UploadReceiver
from ssfl.strategies.contract import ClientId, Work

GONE = ("left", "removed")
AWAY = ("lost", *GONE)
_DIGEST_CHARACTERS = 12
# `rate` and `increase` miss the first value of a new series, so possible series start at 0.
_FROM_ZERO = {
    (direction.value, phase, encoding): 0
    for (phase, direction), encodings in CARRIED.items()
    for encoding in encodings
}
_REASONS = all_reasons()


class RunCollector(Collector):
    """The current series of a run."""

    def __init__(self, coordinator: Coordinator, uploads: UploadReceiver, out_dir: Path) -> None:
        self._parts = coordinator
        self._out_dir = out_dir
        self._run = coordinator.run
        self._uploads = uploads

    def collect(self) -> Iterator[Metric]:
        state, now_s = self._run.state, self._parts.clock()
        yield build_info("coordinator")
        yield from self._run_series(state, now_s)
        yield from self._model(state)
        yield from self._clients(state)
        yield from self._each_client(state, now_s)
        yield from self._bytes()
        yield from self._trouble()
        yield from self._disk_and_memory()

    def _run_series(self, state: RunState, now_s: float) -> Iterator[Metric]:
        counters, stall, settings = self._parts.counters, state.stall, state.settings
        yield many(series.RUN_PHASE, {phase.value: state.phase is phase for phase in Phase})
        yield one(series.RUN_STALLED, stall is not None)
        yield one(series.RUN_STALLED_SECONDS, now_s - stall.since_s if stall else 0.0)
        yield one(series.RUN_MISSING, len(stall.missing) if stall else 0)
        left = seconds_left(state, self._parts.history.seconds_per_round)
        yield from maybe(series.RUN_SECONDS_LEFT, left)
        yield one(series.ROUNDS, state.rounds_done)
        yield one(series.ROUNDS_PLANNED, settings.rounds)
        if not settings.reproducible:
            yield one(series.ROUND_DEADLINE, settings.round_deadline_s)
        yield one(series.STEPS_VOID, counters.void)
        yield one(series.STEP_SECONDS, now_s - state.step_began_s if state.step else 0.0)
        yield histograms(series.STEP_DURATION, dict(counters.steps))
        yield histograms(series.ROUND_PHASE, dict(counters.phases))
        yield one(series.RECOVERED, counters.recovered)

    def _model(self, state: RunState) -> Iterator[Metric]:
        newest, manifest = self._parts.history.newest, self._run.manifest
        yield from maybe(series.ACCURACY, newest.get("pooled"))
        yield from maybe(series.LOSS, newest.get("loss"))
        if state.mask_digest:
            yield many(series.MASK_INFO, {state.mask_digest[:_DIGEST_CHARACTERS]: 1.0})
        yield one(series.MASK_EPOCH, state.mask_epoch)
        yield one(series.MASK_KEPT, state.num_kept)
        if manifest:
            yield one(series.MODEL_VALUES, manifest.size)
        if manifest and manifest.num_masked and state.mask_epoch:
            yield one(series.MASK_DENSITY, state.num_kept / manifest.num_masked)

    def _clients(self, state: RunState) -> Iterator[Metric]:
        counters = self._parts.counters
        counts = Counter(client_state(state, client) for client in state.members)
        yield many(series.CLIENTS, {word: counts[word] for word in STATES})
        yield many(series.JOINED, {"no": counters.joined[False], "yes": counters.joined[True]})
        yield many(series.SELECTED, {work.value: counters.selected[work.value] for work in Work})
        yield many(series.REPORTED, {work.value: counters.reported[work.value] for work in Work})
        yield one(series.LATE, counters.late)
        yield one(series.LOST, counters.lost)

    def _each_client(self, state: RunState, now_s: float) -> Iterator[Metric]:
        shown, waited_for = self._shown(state, now_s), _waited_for(state)
        words = {client: client_state(state, client) for client in shown}
        here = [client for client in shown if words[client] not in GONE]
        silent_s = self._parts.presence.silent_s
        yield many(series.CLIENT_LAST_SEEN, {client: silent_s(client, now_s) for client in here})
        yield many(series.CLIENT_UP, {client: words[client] not in AWAY for client in shown})
        yield many(series.CLIENT_PENDING, {client: client in waited_for for client in shown})
        samples = {client: state.members[client].num_samples for client in shown}
        yield many(series.CLIENT_SAMPLES, samples)
        phases: dict[tuple[str, str], float] = {}
        speeds: dict[str, float] = {}
        results = dict(self._parts.counters.results)
        for client in shown:
            if (report := results.get(client)) is None:
                continue
            phases[client, "broadcast"] = sending_s(report)
            phases[client, "training"] = report["work_s"]
            phases[client, "upload"] = report["upload_s"]
            if report["upload_s"] > 0:
                speeds[client] = report["upload_bytes"] / report["upload_s"]
        yield many(series.CLIENT_PHASE, phases)
        yield many(series.CLIENT_THROUGHPUT, speeds)

    def _shown(self, state: RunState, now_s: float) -> list[ClientId]:
        """Return the clients to show: all or, if there are many, those that may delay the run."""
        members = sorted(state.members)
        if len(members) <= series.CLIENTS_SHOWN:
            return members
        results, waited_for = dict(self._parts.counters.results), _waited_for(state)
        here = [client for client in members if client_state(state, client) not in GONE]

        def slowness(client: ClientId) -> tuple[bool, float]:
            report = results.get(client, {})  # the client may never have finished
            return client in waited_for, report.get("received_s", float("inf"))

        slow = sorted(here, key=slowness)
        silent = sorted(here, key=lambda one: self._parts.presence.silent_s(one, now_s))
        most = series.SLOWEST_SHOWN
        return sorted({*slow[-most:], *silent[-most:]})

    def _bytes(self) -> Iterator[Metric]:
        counters = self._parts.counters
        rows = counters.bytes_since_start(self._parts.ledger)
        messages = [row for row in rows if row["phase"] != CONNECTION]
        for one_series, count in (
            (series.PAYLOAD_BYTES, "payload_bytes"),
            (series.MESSAGE_BYTES, "message_bytes"),
        ):
            sent = {
                (row["direction"], row["phase"], row["encoding"]): row[count]
                for row in messages
                if row[count]
            }
            yield many(one_series, _FROM_ZERO | sent)
        carried = {
            row["direction"]: row["socket_bytes"] for row in rows if row["phase"] == CONNECTION
        }
        nothing = {way.value: 0 for way in Direction}
        yield many(series.SOCKET_BYTES, nothing | carried)
        yield many(series.DENSE_BYTES, nothing | dict(counters.dense_bytes))
        yield many(series.DENSE_RATIO, counters.ratios)

    def _trouble(self) -> Iterator[Metric]:
        counters = self._parts.counters
        refused = dict.fromkeys(_REASONS, 0) | self._parts.refusals.by_reason()
        yield many(series.REFUSALS, refused)
        yield many(series.RESUMES, {way.value: counters.resumes[way] for way in Direction})
        yield one(series.RETRIES, counters.retries)
        yield histograms(series.JOURNAL_SYNC, {(): counters.syncs})

    def _disk_and_memory(self) -> Iterator[Metric]:
        yield one(series.JOURNAL_BYTES, self._run.published_journal_bytes)
        yield one(series.SPOOL_BYTES, self._parts.spool.num_bytes)
        yield one(series.UPLOADS, self._uploads.slots.held)
        yield one(series.UPLOAD_SLOTS, self._uploads.num_slots)
        usage = {
            name: shutil.disk_usage(folder)
            for name, folder in disks(self._parts.directory, self._out_dir).items()
        }
        yield many(series.DISK_FREE, {name: found.free for name, found in usage.items()})
        yield many(series.DISK_SIZE, {name: found.total for name, found in usage.items()})
        yield one(series.DISK_FULL, bool(self._parts.disk_space.blocked_at(self._parts.clock())))
        yield one(series.MEMORY_PEAK, peak_memory_bytes())
        yield one(series.MEMORY_LIMIT, memory_limit_bytes())
        yield from maybe(series.HEAP, heap_bytes())


def _waited_for(state: RunState) -> set[ClientId]:
    pending = state.step.pending if state.step and state.step.closed is None else ()
    return {*pending, *(state.stall.missing if state.stall else ())}

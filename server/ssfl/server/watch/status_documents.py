"""JSON documents of the status page; docs/status-page.md describes each.

Documents are built in the thread that answers the request; the run does not call this module. The
current state is read from the published state, which is immutable. The past is read from the
journal, so curves survive a restart. One request reads for at most READ_S, so that the first
request for a long run is answered quickly; `history.read` is the share read so far. New entries
come from the run itself (live_entries.py).

Never included: tokens, certificates, fingerprints, class counts and paths. Labels that sites share
are shown as the reason for a new mask.
"""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ssfl.program.monitor.log_buffer import LogBuffer
from ssfl.program.version import ssfl_version
from ssfl.server.accounting.memory import peak_memory_bytes
from ssfl.server.history.live_entries import Following
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.report.run_view import RunView, layer_rows
from ssfl.server.run.state import Phase, RunState, Stall
from ssfl.server.run.waiting import STATES, client_state, seconds_left
from ssfl.server.storage.disk_full import disks
from ssfl.strategies.contract import ClientId
from ssfl.strategies.registry import options_of, strategy_for

READ_S = 0.2  # reading the journal, per request
MAX_NAMES = 20  # missing clients that are listed by name
MAX_POINTS = 1000  # of a curve, per request
MAX_ROWS = 200  # clients, per request
SORTS = (
    *("name", "state", "samples", "last_seen_s", "steps_done", "work_s", "upload_s"),
    *("bytes_per_s", "refusals"),
)
Document = dict[str, Any]


class Documents:
    """Builds the documents of one run. Safe to call from any thread."""

    def __init__(self, coordinator: Coordinator, recent: LogBuffer, out_dir: Path) -> None:
        self._parts = coordinator
        self._out_dir = out_dir
        self._run = run = coordinator.run
        self._recent = recent
        self._started = time.time()
        settings = run.state.settings
        own_masks = strategy_for(settings).has_own_masks
        self._view = RunView(own_masks=own_masks)
        self._following = Following(
            coordinator.journal, coordinator.live_entries, lambda: run.published_journal_bytes
        )
        self._num_entries = 0
        self._newest: dict[str, Mapping[str, Any]] = {}  # each client's newest result
        self._lock = threading.Lock()

    def history_mark(self) -> str:
        """Read new history entries; return a mark that changes with each entry and restart."""
        with self._lock:
            for _, name, entry in self._following.entries(READ_S):
                self._num_entries += 1
                self._view.add(name, entry)
                if name == "rounds":
                    self._newest.update((row["client"], row) for row in entry["clients"])
            return f"{self._started:.3f}-{self._num_entries}"

    def status(self) -> Document:
        """Return the phase of the run, its clients and its results so far."""
        run = self._run
        state, history, manifest = run.state, self._parts.history, run.manifest
        stop, num_values = run.published_journal_bytes, manifest.size if manifest else 0
        mark = self.history_mark()
        with self._lock:
            read = self._following.read_bytes
            num_masks = self._view.num_masks
            sent = self._view.bytes(self._parts.ledger.rows(), num_values)
        masked = manifest.num_masked if manifest else 0
        places = disks(self._parts.directory, self._out_dir).values()
        usage = min(map(shutil.disk_usage, places), key=lambda one: one.free / max(1, one.total))
        newest, strategy = history.newest, strategy_for(state.settings)
        return {
            "run_id": state.run_id,
            "version": ssfl_version(),
            "time": time.time(),
            "started": self._started,
            "phase": state.phase.value,
            "paused": state.paused,
            "waiting_for": run.waiting_for(),
            "stall": self._stall(state.stall),
            "ended_early": state.end_reason,
            "strategy": state.settings.strategy,
            "strategy_options": options_of(asdict(state.settings)),
            "has_mask": not strategy.is_dense,
            "moves_mask": strategy.moves_mask,
            "rounds": {"done": state.rounds_done, "all": state.settings.rounds},
            "seconds_left": seconds_left(state, history.seconds_per_round),
            "seconds_per_round": history.seconds_per_round,
            "step": self._step(state),
            "accuracy": newest.get("pooled"),
            "loss": newest.get("loss"),
            "metrics": newest.get("metrics") or {},
            "personal": history.newest_round.get("personal")
            if strategy.has_personal_models
            else None,
            "round_mask": history.newest_round.get("mask"),
            "mask": {
                "epoch": state.mask_epoch,
                "digest": state.mask_digest,
                "kept": state.num_kept,
                "masked": masked,
                "values": num_values,
                "density": state.num_kept / masked if masked and state.mask_digest else None,
            },
            "clients": self._counts(state),
            "bytes": sent,
            "refusals": self._parts.refusals.by_reason(),
            "memory": {"peak_bytes": peak_memory_bytes()},
            "disk": {
                "free_bytes": usage.free,
                "size_bytes": usage.total,
                "full": bool(self._parts.disk_space.blocked_at(self._parts.clock())),
            },
            "history": {
                "mark": mark,
                "read": min(1.0, read / stop) if stop else 1.0,
                "masks": num_masks,
            },
            "events": self._recent.last_number,
        }

    def clients(
        self, filter: str, state: str, sort: str, descending: bool, offset: int, limit: int
    ) -> Document:
        """Return a sorted page of the clients with `filter` in their name and in `state`."""
        run, now_s = self._run.state, self._parts.clock()
        refused = self._parts.refusals.by_client()
        rows = [
            self._client(run, client, now_s, refused)
            for client in run.members
            if filter.lower() in client.lower()
            if not state or client_state(run, client) == state
        ]
        rows.sort(key=lambda row: str(row["name"]))
        rows.sort(key=lambda row: _order(row[sort]), reverse=descending)
        rows.sort(key=lambda row: row[sort] is None)  # unknown values come last in either order
        return {
            "all": len(run.members),
            "matching": len(rows),
            "offset": offset,
            "states": self._counts(run),
            "clients": rows[offset : offset + limit],
        }

    def rounds(self, points: int) -> Document:
        """Return the curves, downsampled to `points` points."""
        with self._lock:
            curve, evaluations = self._view.curve.points(), self._view.evaluations.points()
        return {"curve": thinned(curve, points), "evaluations": thinned(evaluations, points)}

    def timeline(self) -> Document:
        """Return the newest rounds, each with the times of its slowest clients."""
        with self._lock:
            return {"rounds": list(self._view.timeline)}

    def layers(self) -> Document:
        """Return the kept weights of the newest mask by tensor, and when masks were agreed."""
        with self._lock:
            return {"layers": layer_rows(self._view.layers), "masks": list(self._view.masks)}

    def events(self, after: int) -> Document:
        """Return the newest log records after number `after`."""
        found = self._recent.after(after)
        newest = found[-1]["number"] if found else min(after, self._recent.last_number)
        return {"events": found, "last": newest}

    def _client(
        self, state: RunState, client: ClientId, now_s: float, refused: Mapping[str, int]
    ) -> Document:
        presence, newest = self._parts.presence.look(client), self._newest.get(client, {})
        sent, took_s = newest.get("upload_bytes"), newest.get("upload_s")
        return {
            "name": client,
            "state": client_state(state, client),
            "samples": state.members[client].num_samples,
            "last_seen_s": presence.silent_s(now_s) if presence else None,
            "steps_done": presence.steps_done if presence else 0,
            "steps_all": presence.steps_all if presence else 0,
            "work_s": newest.get("work_s"),
            "upload_s": took_s,
            "bytes_per_s": sent / took_s if sent and took_s else None,
            "refusals": refused.get(client, 0),
        }

    def _counts(self, state: RunState) -> dict[str, int]:
        counts = Counter(client_state(state, client) for client in state.members)
        return {one: counts[one] for one in STATES}

    def _stall(self, stall: Stall | None) -> Document | None:
        if stall is None:
            return None
        return {
            "reason": stall.reason,
            "missing": list(stall.missing[:MAX_NAMES]),
            "num_missing": len(stall.missing),
            "unblock": stall.unblock,
            "seconds": self._parts.clock() - stall.since_s,
        }

    def _step(self, state: RunState) -> Document | None:
        step = state.step
        if step is None or state.phase in (Phase.FINISHED, Phase.STOPPED):
            return None
        began_s = state.step_began_s
        return {
            "work": step.work.value,
            "round": step.round_number,
            "attempt": step.attempt,
            "asked": len(step.cohort),
            "reported": len(step.uploads),
            "seconds": self._parts.clock() - began_s if began_s else None,
        }


def thinned(points: list[Document], most: int) -> list[Document]:
    """Return at most `most` evenly spaced points, including the first and the newest."""
    if len(points) <= most:
        return points
    last = len(points) - 1
    return [points[round(number * last / (most - 1))] for number in range(most)]


def _order(value: Any) -> Any:
    """Return a sort key: numbers by value, text without regard to case."""
    if isinstance(value, str):
        return value.lower()
    return 0 if value is None else value

"""A run as shown in charts and tables: bounded documents built from history entries.

`RunView` takes the entries of `masks`, `rounds` and `evaluations` (run_history.py) in chronological
order and returns JSON documents. Its memory grows with the clients of a run, not with its rounds:
curves are downsampled with a stride that doubles, and only the newest masks and timeline rounds are
kept.

Byte counts compared with dense training (dense_equivalent.py) are those at the newest entry and
exclude the open step, so that both sides cover the same transfers. The bytes of a round are all
bytes since the previous round, including void attempts and a test of its base by all clients.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ssfl.server.accounting.dense_equivalent import BYTES_PER_VALUE, COMPARED, ModelHolders
from ssfl.server.accounting.ledger import ONE_OFF, Direction
from ssfl.server.history.run_history import Entry

MAX_POINTS = 2000  # of a curve; at this length every second point is dropped
NEWEST_ROUNDS = 20  # in the timeline
SLOWEST_CLIENTS = 40  # listed per round
NEWEST_MASKS = 100
NEWEST_INCIDENTS = 100
LATE_S = 30.0  # a client asked this long after a round's start was away or is a replacement

Rows = Iterable[Mapping[str, Any]]
_TIMES = ("client", "asked_s", "sent_s", "work_s", "upload_s", "received_s")


class DownsampledSeries:
    """Keeps every n-th point, the newest and the extremes; n doubles with the length."""

    def __init__(self, *extremes: Callable[[Entry], float | None]) -> None:
        """The point with the largest value of each function in `extremes` is always kept."""
        self._kept: list[tuple[int, Entry]] = []
        self._newest: tuple[int, Entry] | None = None
        self._extremes: list[tuple[float, int, Entry] | None] = [None] * len(extremes)
        self._sizes = extremes
        self._stride = 1
        self.num_added = 0

    def add(self, point: Entry) -> None:
        place, self.num_added = self.num_added, self.num_added + 1
        self._newest = (place, point)
        if place % self._stride == 0:
            self._kept.append((place, point))
        for number, size_of in enumerate(self._sizes):
            size, largest = size_of(point), self._extremes[number]
            if size is not None and (largest is None or size > largest[0]):
                self._extremes[number] = (size, place, point)
        if len(self._kept) >= MAX_POINTS:
            self._kept = self._kept[::2]
            self._stride *= 2

    def points(self) -> list[Entry]:
        """Return the points in the order of `add`."""
        found = dict(self._kept)
        found.update((place, point) for _, place, point in filter(None, self._extremes))
        if self._newest:
            found[self._newest[0]] = self._newest[1]
        return [found[place] for place in sorted(found)]


@dataclass(slots=True)
class _Client:
    reported: int = 0
    missed: int = 0
    samples: int | None = None
    timed: int = 0
    work_s: float = 0.0
    slowest_work_s: float = 0.0
    upload_s: float = 0.0
    upload_bytes: int = 0
    loss: float | None = None
    sent: Counter[str] = field(default_factory=Counter)  # message bytes by direction

    def add(self, row: Mapping[str, Any]) -> None:
        self.reported += 1
        self.samples = row["num_samples"]
        self.loss = row.get("training_loss", self.loss)
        self.upload_bytes += row.get("upload_bytes") or 0
        self.upload_s += row.get("upload_s") or 0.0
        if (work_s := row.get("work_s")) is not None:
            self.timed += 1
            self.work_s += work_s
            self.slowest_work_s = max(self.slowest_work_s, work_s)

    def to_dict(self, name: str) -> Entry:
        return {
            "client": name,
            "selected": self.reported + self.missed,
            "reported": self.reported,
            "missed": self.missed,
            "samples": self.samples,
            "work_s": self.work_s / self.timed if self.timed else None,
            "slowest_work_s": self.slowest_work_s if self.timed else None,
            "upload_s": self.upload_s / self.reported if self.reported else None,
            "upload_bytes_per_s": self.upload_bytes / self.upload_s if self.upload_s else None,
            "up_bytes": self.sent.get(Direction.UP),  # None without `add_bytes`
            "down_bytes": self.sent.get(Direction.DOWN),
            "loss": self.loss,
        }


CLIENT_COLUMNS = tuple(_Client().to_dict(""))


class RunView:
    """Accumulates a run's history entries and returns documents about the run so far."""

    def __init__(self, *, own_masks: bool = False) -> None:
        """`own_masks`: each client trains under a personal mask."""
        # The rounds: test metrics of each one's base, duration, bytes of values. `sent_bytes` are
        # all messages in both directions until its base was committed.
        self.curve = DownsampledSeries(
            lambda point: point["accuracy"], _negative("loss"), lambda point: point["seconds"]
        )
        # The tests of the global model by all clients.
        self.evaluations = DownsampledSeries(lambda point: point["accuracy"], _negative("loss"))
        # The newest rounds, oldest first, with the times of the slowest clients of each.
        self.timeline: deque[Entry] = deque(maxlen=NEWEST_ROUNDS)
        self.masks: deque[Entry] = deque(maxlen=NEWEST_MASKS)  # when and why each was agreed
        # The newest rounds that clients missed or delayed, or that were retried. `late` are clients
        # that got their task at least LATE_S after the round's start.
        self.incidents: deque[Entry] = deque(maxlen=NEWEST_INCIDENTS)
        self.layers: Mapping[str, Mapping[str, int]] = {}  # of the newest mask
        self._clients: dict[str, _Client] = {}
        self._holders = ModelHolders(own_masks=own_masks)
        self._values = dict.fromkeys(Direction, 0)  # bytes to compare, up to the newest entry,
        self._values_before = dict.fromkeys(Direction, 0)  # and up to the newest round
        self._sent = 0  # message bytes, both ways and all phases, up to the newest round
        self.newest_round: Entry = {}  # the newest point of the curve
        self.num_rounds = 0
        self.num_masks = 0
        self.num_votes = 0  # clients whose scores counted, over all masks
        self.num_updates = 0  # that counted, over all rounds
        self.num_models = 0  # that were sent as values (dense_equivalent.py)
        self.best: Entry | None = None  # the evaluation with the highest accuracy, or lowest loss
        self.num_timed = 0  # rounds whose duration is known,
        self.seconds = 0.0  # their sum,
        self.slowest_s = 0.0
        self.phase_seconds: dict[str, float] = {}  # sums over the rounds whose phases are known
        self.began: float | None = None  # unix seconds of the first round or test,
        self.ended: float | None = None  # and of the end of the newest; None: not known

    def add(self, name: str, entry: Mapping[str, Any]) -> None:
        """Add the next entry of the list `name`: masks, rounds or evaluations."""
        match name:
            case "masks":
                self.num_masks += 1
                self.num_votes += len(entry.get("votes") or ())
                self.masks.append({key: entry.get(key) for key in _OF_A_MASK})
                self.layers = entry.get("layers") or {}
                self.num_models += self._holders.scored(entry.get("votes") or ())
            case "rounds":
                self._add_round(entry)
            case "evaluations":
                self._add_evaluation(entry)

    def add_bytes(self, rows: Rows) -> None:
        """Add the message bytes of each client from rows of ledger.csv (or of `Ledger.take`)."""
        for row in rows:
            if row["client"]:
                self._client(row["client"]).sent[row["direction"]] += int(row["message_bytes"] or 0)

    def clients(self, members: Mapping[str, int]) -> list[Entry]:
        """Return the rows of all clients and `members` by name; a member may have had no task."""
        names = sorted({*self._clients, *members})
        rows = [self._clients.get(name, _Client()).to_dict(name) for name in names]
        for row in rows:
            if row["samples"] is None:
                row["samples"] = members.get(row["client"])
        return rows

    def bytes(self, ledger_rows: Rows, num_values: int) -> Entry:
        """Return byte totals, and the comparison with dense training at the newest entry."""
        rows = [dict(row) for row in ledger_rows]
        transfers = {Direction.UP: self.num_updates, Direction.DOWN: self.num_models}
        found: Entry = {"rows": rows}
        for way, count in transfers.items():
            values, dense = self._values[way], BYTES_PER_VALUE * num_values * count
            ratio = values / dense if dense else None
            found[way.value] = {"values": values, "dense": dense, "ratio": ratio}
        found["one_off"] = {way.value: payload(rows, way, ONE_OFF) for way in Direction}
        return found

    def _client(self, name: str) -> _Client:
        return self._clients.setdefault(name, _Client())

    def _count(self, entry: Mapping[str, Any], *, to_test: bool = False) -> None:
        """Count the clients asked and the models sent; record bytes and time so far."""
        names = [row["client"] for row in entry.get("clients") or ()]
        names += entry.get("missing") or ()
        self.num_models += self._holders.asked(names, to_test=to_test)
        self._values = {way: payload(entry["ledger"], way, COMPARED) for way in Direction}
        if (began := entry.get("began")) is not None:
            self.began = began if self.began is None else self.began
            self.ended = began + (entry.get("seconds") or 0.0)

    def _add_round(self, entry: Mapping[str, Any]) -> None:
        clients: Sequence[Mapping[str, Any]] = entry["clients"]
        missing: Sequence[str] = entry["missing"]
        self.num_rounds += 1
        self.num_updates += len(clients)
        self._count(entry)
        self.num_models += self._holders.trained(self._values[Direction.DOWN])
        for row in clients:
            self._client(row["client"]).add(row)
        for name in missing:
            self._client(name).missed += 1
        if (took_s := entry.get("seconds")) is not None:
            self.num_timed += 1
            self.seconds += took_s
            self.slowest_s = max(self.slowest_s, took_s)
        phases = entry.get("phases")
        for phase, seconds in (phases or {}).items():
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + (seconds or 0.0)
        before, self._values_before = self._values_before, self._values
        sent, self._sent = self._sent, sent_bytes(entry["ledger"])
        timed = {"round": entry["round"], "seconds": entry.get("seconds"), "phases": phases}
        self.newest_round = {
            **timed,
            "accuracy": entry["pooled"],
            "loss": entry["loss"],
            "metrics": entry.get("metrics") or {},
            **{name: entry[name] for name in ("personal", "mask") if entry.get(name) is not None},
            "up_bytes": self._values[Direction.UP] - before[Direction.UP],
            "down_bytes": self._values[Direction.DOWN] - before[Direction.DOWN],
            "sent_bytes": sent,
        }
        self.curve.add(self.newest_round)
        lost = {"missing": list(missing)[:SLOWEST_CLIENTS], "num_missing": len(missing)}
        late = [
            {"client": row["client"], "asked_s": row["asked_s"]}
            for row in clients
            if (row.get("asked_s") or 0.0) >= LATE_S
        ]
        if missing or late or entry.get("attempt"):
            self.incidents.append(
                {
                    "round": entry["round"],
                    "void_attempts": entry.get("attempt", 0),
                    **lost,
                    "late": late[:SLOWEST_CLIENTS],
                    "num_late": len(late),
                }
            )
        slowest = sorted(clients, key=lambda row: row.get("received_s") or 0.0, reverse=True)
        slowest = slowest[:SLOWEST_CLIENTS]
        self.timeline.append(
            {
                **timed,
                "began": entry.get("began"),
                "last": entry.get("last"),
                "clients": [{name: row.get(name) for name in _TIMES} for row in slowest],
                **lost,
                "others": len(clients) - len(slowest),
            }
        )

    def _add_evaluation(self, entry: Mapping[str, Any]) -> None:
        self._count(entry, to_test=True)
        point = {
            "rounds_done": entry["rounds_done"],
            "accuracy": entry["pooled"],
            "loss": entry["loss"],
            "metrics": entry.get("metrics") or {},
            "sent_bytes": sent_bytes(entry["ledger"]),
        }
        self.evaluations.add(point)
        if self.best is None or _quality(point) > _quality(self.best):
            self.best = point


_OF_A_MASK = (
    "step", "epoch", "rounds_done", "reason", "criterion", "num_batches", "num_kept", "digest",
    "renewed",
)  # fmt: skip


def payload(rows: Rows, way: Direction, phases: Sequence[str]) -> int:
    """Return the tensor bytes that ledger rows count in a direction, in these phases."""
    return sum(
        row["payload_bytes"]
        for row in rows
        if row["direction"] == way.value and row["phase"] in phases
    )


def sent_bytes(rows: Rows) -> int:
    """Return the bytes of all messages, or of payloads in a simulation, which sends no messages."""
    return sum(
        row["payload_bytes"] if row["message_bytes"] is None else row["message_bytes"]
        for row in rows
    )


def layer_rows(layers: Mapping[str, Mapping[str, int]]) -> list[Entry]:
    """Return kept, size and density of each masked tensor; `layers` is that of a mask entry."""
    return [
        {"name": name, **layer, "density": layer["kept"] / layer["size"] if layer["size"] else 0.0}
        for name, layer in layers.items()
    ]


def _negative(name: str) -> Callable[[Entry], float | None]:
    return lambda point: None if point[name] is None else -point[name]


def _quality(point: Entry) -> tuple[float, float]:
    accuracy, loss = point["accuracy"], point["loss"]
    return (-1.0 if accuracy is None else accuracy), (float("-inf") if loss is None else -loss)

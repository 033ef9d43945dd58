"""The history of a run as arrays, from the document that the coordinator writes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.server.accounting.ledger import ONE_OFF

Doubles = npt.NDArray[np.float64]
Row = Mapping[str, Any]  # of a ledger
NAN = float("nan")
_MEGA = 1e6


@dataclass(frozen=True, eq=False)
class Layers:
    """The masked tensors, in the model's order.

    Attributes:
        names: as in the model's `state_dict`
        kept: number of weights that the mask keeps
        size: number of weights

    Examples:
        >>> layers = Layers.of({"conv.weight": (30, 40), "linear.weight": (10, 100)})
        >>> layers.names, layers.density.tolist()
        (('conv.weight', 'linear.weight'), [0.75, 0.1])
    """

    names: tuple[str, ...]
    kept: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    @property
    def density(self) -> npt.NDArray[np.float64]:
        """The share of kept weights."""
        return self.kept / self.size

    @classmethod
    def of(cls, counts: Mapping[str, tuple[int, int]]) -> "Layers":
        """Return the layers for pairs (kept, size) by name."""
        table = np.array(list(counts.values()), dtype=np.int64).reshape(-1, 2)
        return cls(tuple(counts), table[:, 0], table[:, 1])


@dataclass(frozen=True, eq=False)
class Traffic:
    """Megabytes of all clients together. Arrays have one entry per round; nan means not counted.

    Attributes:
        up: to the coordinator, from the start of the run to the end of each round
        down: to the clients, from the start of the run to the end of each round
        up_per_round: to the coordinator in each round and in an evaluation right before it,
            without one-off bytes
        down_per_round: the same, to the clients
        one_off: initial weights, scores and mask, both directions
        total_up: to the coordinator in the whole run, with the last evaluation
        total_down: to the clients in the whole run, with the final model
    """

    up: Doubles
    down: Doubles
    up_per_round: Doubles
    down_per_round: Doubles
    one_off: float
    total_up: float
    total_down: float

    @classmethod
    def of(cls, rounds: Sequence[Iterable[Row]], end: Iterable[Row], column: str) -> "Traffic":
        """Return the sums of a ledger column, from the ledgers after each round and at the end."""
        states = [list(rows) for rows in (*rounds, end)]

        def so_far(direction: str, phases: tuple[str, ...] = ()) -> Doubles:
            sums = [_sum(rows, direction, phases, column) for rows in states]
            return np.array(sums, dtype=np.float64) / _MEGA

        up, down = so_far("up"), so_far("down")
        once_up, once_down = so_far("up", ONE_OFF), so_far("down", ONE_OFF)
        return cls(
            up[:-1],
            down[:-1],
            np.diff((up - once_up)[:-1], prepend=0.0),
            np.diff((down - once_down)[:-1], prepend=0.0),
            float(once_up[-1] + once_down[-1]),
            float(up[-1]),
            float(down[-1]),
        )


@dataclass(frozen=True, eq=False, repr=False)
class RunHistory:
    """The results of a run. Arrays have one entry per round; nan means not measured.

    `accuracy`, `mean_accuracy`, `loss` and `metrics` belong to the model at the end of a round. All
    clients tested it if they were asked to (`evaluate_every`, and after the last round), otherwise
    the clients of the next round.

    Attributes:
        run_id: name of the run, and of its folder in `runs`
        finished: True if the run is over
        digest: SHA-256 of the newest values, hex; empty before the first model
        settings: every run setting by name
        rounds: 0, 1, …
        seconds: duration of the round
        training_loss: mean over the clients of the round
        personal: mean accuracy of the clients' own models after training in this round
        coding_error: share of an update that a lossy value type lost
        accuracy: share of correct answers over all test samples together, 0 to 1
        mean_accuracy: plain mean over clients
        loss: mean over all test samples together
        metrics: the task's other metrics by name, over all test samples together
        initial_accuracy: of the model before any training
        initial_loss: of the model before any training
        messages: bytes of whole messages; nan for a simulation
        payloads: bytes of the encoded tensors
        clients: columns of a table with one row per client: client, num_samples, share, rounds,
            and the newest training_loss, accuracy (of the global model) and personal
        layers: kept weights of each tensor; empty before the first mask
        document: the content of history.json
    """

    run_id: str
    finished: bool
    digest: str
    settings: dict[str, Any]
    rounds: npt.NDArray[np.int64]
    seconds: Doubles
    training_loss: Doubles
    personal: Doubles
    coding_error: Doubles
    accuracy: Doubles
    mean_accuracy: Doubles
    loss: Doubles
    metrics: dict[str, Doubles]
    initial_accuracy: float
    initial_loss: float
    messages: Traffic
    payloads: Traffic
    clients: dict[str, npt.NDArray[Any]]
    layers: Layers
    document: dict[str, Any]

    def __repr__(self) -> str:
        return f"<RunHistory {self.run_id}: {self.summary}>"

    @property
    def summary(self) -> str:
        """The number of rounds and the accuracy of the last model."""
        rounds = f"{len(self.rounds)} round{'s' * (len(self.rounds) != 1)}"
        known = self.accuracy[np.isfinite(self.accuracy)]
        return f"{rounds}, accuracy {100 * known[-1]:.1f} %" if known.size else rounds

    @classmethod
    def of(cls, document: dict[str, Any]) -> "RunHistory":
        """Return the arrays of a history document."""
        entries = document["rounds"]
        tests = _tests(document)
        first, after = [tests.get(0, {})], [tests.get(entry["round"] + 1, {}) for entry in entries]
        names = sorted({name for test in tests.values() for name in test["metrics"]})
        ledgers, end = [entry["ledger"] for entry in entries], document["ledger"]
        mask = document.get("mask", {"layers": {}})
        return cls(
            run_id=str(document["run_id"]),
            finished=bool(document["finished"]),
            digest=str(document["model_digest"]),
            settings=dict(document["settings"]),
            rounds=np.array([entry["round"] for entry in entries], dtype=np.int64),
            seconds=_column(entries, "seconds"),
            training_loss=_column(entries, "training_loss"),
            personal=_column(entries, "personal"),
            coding_error=_column(entries, "coding_error"),
            accuracy=_column(after, "pooled"),
            mean_accuracy=_column(after, "mean"),
            loss=_column(after, "loss"),
            metrics={
                name: _column([test.get("metrics", {}) for test in after], name) for name in names
            },
            initial_accuracy=float(_column(first, "pooled")[0]),
            initial_loss=float(_column(first, "loss")[0]),
            messages=Traffic.of(ledgers, end, "message_bytes"),
            payloads=Traffic.of(ledgers, end, "payload_bytes"),
            clients=_clients(document),
            layers=Layers.of({n: (t["kept"], t["size"]) for n, t in mask["layers"].items()}),
            document=document,
        )


def _tests(document: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return evaluations by the number of rounds done; those by all clients take precedence."""
    by_sample = {entry["rounds_done"]: entry for entry in document["rounds"]}
    by_all = {entry["rounds_done"]: entry for entry in document["evaluations"]}
    return {
        done: entry for done, entry in (by_sample | by_all).items() if entry["loss"] is not None
    }


def _clients(document: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of the table of clients."""
    samples = dict(sorted(document["clients"].items()))
    counts = np.array(list(samples.values()), dtype=np.int64)
    trained = [row for entry in document["rounds"] for row in entry["clients"]]
    tested = [row for entry in document["evaluations"] for row in entry["clients"]]
    times = dict.fromkeys(samples, 0)
    for row in trained:
        times[row["client"]] += 1
    accuracy = {row["client"]: _share(row["evaluation"]) for row in [*trained, *tested]}
    personal = {row["client"]: _share(row["personal"]) for row in trained}
    losses = {row["client"]: row["training_loss"] for row in trained}
    return {
        "client": np.array(list(samples), dtype=np.str_),
        "num_samples": counts,
        "share": counts / max(1, int(counts.sum())),
        "rounds": np.array(list(times.values()), dtype=np.int64),
        "training_loss": _doubles(map(losses.get, samples)),
        "accuracy": _doubles(map(accuracy.get, samples)),
        "personal": _doubles(map(personal.get, samples)),
    }


def _share(evaluation: Mapping[str, Any]) -> float | None:
    correct, total = evaluation["correct"], evaluation["total"]
    return None if correct is None or not total else correct / total


def _column(entries: Iterable[Mapping[str, Any]], name: str) -> Doubles:
    return _doubles(entry.get(name) for entry in entries)


def _doubles(values: Iterable[float | None]) -> Doubles:
    """Return an array of numbers; None becomes nan."""
    numbers = [NAN if value is None else float(value) for value in values]
    return np.array(numbers, dtype=np.float64)


def _sum(rows: list[Row], direction: str, phases: tuple[str, ...], column: str) -> float:
    """Return the bytes of `phases`, or of all phases if empty; nan if they were not counted."""
    if not rows or any(row[column] is None for row in rows):
        return NAN
    chosen = (row for row in rows if row["direction"] == direction)
    return float(sum(row[column] for row in chosen if not phases or row["phase"] in phases))

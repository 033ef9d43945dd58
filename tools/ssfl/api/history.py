"""A run's history as arrays, from the document that the coordinator writes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.api.layers import Layers
from ssfl.api.traffic import Traffic

Doubles = npt.NDArray[np.float64]
NAN = float("nan")


@dataclass(frozen=True, eq=False, repr=False)
class RunHistory:
    """What a run did. Arrays have one entry per round; nan is what nobody measured.

    `accuracy`, `mean_accuracy`, `loss` and `metrics` are of the model that a round ended with,
    tested by all clients if they were asked to (`evaluate_every`, and after the last round), else
    by the clients of the round after.

    Attributes:
        run_id: its name; the folder under `runs`
        finished: whether it is over
        digest: SHA-256 of the newest values, hex; empty before there are any
        settings: every run setting by name
        rounds: 0, 1, …
        seconds: that the round took
        training_loss: mean over the round's clients
        personal: mean accuracy of the clients' own models, as trained in this round
        coding_error: share of an update that a lossy value type lost
        accuracy: share of all test samples together, 0 to 1
        mean_accuracy: plain mean over clients
        loss: mean over all test samples together
        metrics: the task's other metrics by name, likewise
        initial_accuracy: of the model before any training
        initial_loss: of the model before any training
        messages: bytes of whole messages; a simulation has none
        payloads: bytes of the encoded tensors in them
        clients: columns of a table with one row per client: client, num_samples, share, rounds,
            and the newest training_loss, accuracy (of the global model) and personal
        layers: how much the mask keeps of each tensor; empty before it is known
        document: all of history.json
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
        """Rounds, and how good the last model is."""
        rounds = f"{len(self.rounds)} round{'s' * (len(self.rounds) != 1)}"
        known = self.accuracy[np.isfinite(self.accuracy)]
        return f"{rounds}, accuracy {100 * known[-1]:.1f} %" if known.size else rounds

    @classmethod
    def of(cls, document: dict[str, Any]) -> "RunHistory":
        """Return the arrays of a history document."""
        entries = document["rounds"]
        tests = _tests(document)
        after = [tests.get(entry["round"] + 1, {}) for entry in entries]
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
            initial_accuracy=_number(tests.get(0, {}).get("pooled")),
            initial_loss=_number(tests.get(0, {}).get("loss")),
            messages=Traffic.of(ledgers, end, "message_bytes"),
            payloads=Traffic.of(ledgers, end, "payload_bytes"),
            clients=_clients(document),
            layers=Layers.of({n: (one["kept"], one["size"]) for n, one in mask["layers"].items()}),
            document=document,
        )


def _tests(document: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return the test of the model after so many rounds; one by all clients goes first."""
    by_sample = {entry["rounds_done"]: entry for entry in document["rounds"]}
    by_all = {entry["rounds_done"]: entry for entry in document["evaluations"]}
    return {
        done: entry for done, entry in (by_sample | by_all).items() if entry["loss"] is not None
    }


def _clients(document: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return who took part, how large, how often, and how good the newest models were there."""
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
        "training_loss": _row(losses, samples),
        "accuracy": _row(accuracy, samples),
        "personal": _row(personal, samples),
    }


def _share(evaluation: Mapping[str, Any]) -> float | None:
    correct, total = evaluation["correct"], evaluation["total"]
    return None if correct is None or not total else correct / total


def _row(found: Mapping[str, float | None], clients: Iterable[str]) -> Doubles:
    return np.array([_number(found.get(client)) for client in clients], dtype=np.float64)


def _column(entries: Iterable[Mapping[str, Any]], name: str) -> Doubles:
    return np.array([_number(entry.get(name)) for entry in entries], dtype=np.float64)


def _number(value: float | None) -> float:
    return NAN if value is None else float(value)

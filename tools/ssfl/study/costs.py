"""What a run has cost, and its curve: accuracy by rounds, bytes and client-updates.

Bytes are those of encoded tensors. Rows of the ledger are grouped by their phase; a phase that this
module does not know belongs to the rounds. What is sent to test models, and after the last round,
is not part of the training bytes. A client-update is the work of one client in one training step.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssfl.server.accounting.ledger import ONE_OFF, ROUND_MASKS

TESTS = "evaluation"
CURVE = ("rounds", "bytes", "client_updates", "pooled", "mean", "loss")  # of a point
SCORING = ("initial", "scores")  # phases of what every client uploads before a mask
Row = Mapping[str, Any]


def costs_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return bytes by purpose, and the work of a simulated run; None if it was not counted."""
    rounds, work = document["rounds"], document.get("work", {})
    trained = rounds[-1]["ledger"] if rounds else []
    kinds = {
        "bytes_rounds_up": _bytes(trained, "rounds", "up"),
        "bytes_rounds_down": _bytes(trained, "rounds", "down"),
        "bytes_masks_up": _bytes(trained, "masks", "up"),
        "bytes_masks_down": _bytes(trained, "masks", "down"),
        "bytes_first_masks": _bytes(trained, "one-off", "up", "down"),
    }
    everything = sum(int(row["payload_bytes"]) for row in document["ledger"])
    training, before = sum(kinds.values()), work.get("before_first_round", {})
    mask = document.get("mask", {})
    return {
        "bytes_training": training,
        **kinds,
        "bytes_tests": everything - training,
        "client_updates": before.get("client_updates", 0) + updates_of(rounds),
        **{name: work.get(name) for name in ("local_steps", "flops_executed", "flops_sparse")},
        "mask_seconds": work.get("mask_seconds"),
        **{f"before_{name}": before.get(name) for name in ("bytes", "seconds", "client_updates")},
        "density_tested": mask["num_kept"] / mask["num_masked"] if mask else None,
        "density_up": work.get("density", {}).get("up"),
        "density_down": work.get("density", {}).get("down"),
        "density_up_last": work.get("density_last_round", {}).get("up"),
        "has_personal_models": document.get("personal") is not None,
        "gossip": _numbers(document.get("gossip") or {}),
        "curve": curve_of(document),
        "transfers": transfers_of(document),
    }


def transfers_of(document: Mapping[str, Any]) -> list[list[int]]:
    """Return the bytes of a mean client in each round: its upload, its download, its scores.

    The clients of the round upload and download; all clients send scores.
    """
    found, before = [], [0, 0, 0]
    for entry in document["rounds"]:
        sent = [0, 0, 0]
        for row in entry["ledger"]:
            if row["phase"] in SCORING and row["direction"] == "up":
                sent[2] += row["payload_bytes"]
            elif row["phase"] != TESTS:
                sent[row["direction"] == "down"] += row["payload_bytes"]
        cohort = max(1, len(entry["clients"]))
        shares = (cohort, cohort, document["settings"]["clients"])
        found.append(
            [round((now - then) / share)
             for now, then, share in zip(sent, before, shares, strict=True)]
        )  # fmt: skip
        before = sent
    return found


def updates_of(rounds: Iterable[Row]) -> int:
    """Return the client-updates of rounds."""
    return sum(len(entry["clients"]) for entry in rounds)


def curve_of(document: Mapping[str, Any]) -> list[list[Any]]:
    """Return a point, with the fields of CURVE, for every test by all clients."""
    points = []
    first = document.get("work", {}).get("before_first_round", {}).get("client_updates", 0)
    for test in document["evaluations"]:
        done = test["rounds_done"]
        before = [entry for entry in document["rounds"] if entry["round"] < done]
        updates = first + updates_of(before)
        sent = _bytes(test.get("ledger", []), *("rounds", "masks", "one-off"), "up", "down")
        values = [test.get(name) for name in CURVE[3:]]
        points.append([done, sent, updates, *values])
    return points


def value_at(curve: Sequence[Sequence[Any]], axis: str, place: float, measure: str) -> float | None:
    """Return the newest measure of a curve at or before a place on an axis; None before the first.

    >>> curve = [[1, 100, 10, 0.5, 0.4, 2.0], [2, 200, 20, 0.6, 0.5, 1.5]]
    >>> value_at(curve, "bytes", 199, "pooled"), value_at(curve, "bytes", 200, "pooled")
    (0.5, 0.6)
    >>> value_at(curve, "client_updates", 9, "pooled") is None
    True
    """
    at, wanted = CURVE.index(axis), CURVE.index(measure)
    found = [point[wanted] for point in curve if point[at] <= place]
    return found[-1] if found else None


def _bytes(rows: Iterable[Row], *wanted: str) -> int:
    """Return the bytes of the wanted purposes and directions."""
    return sum(
        int(row["payload_bytes"])
        for row in rows
        if row["direction"] in wanted and _purpose(row["phase"]) in wanted
    )


def _purpose(phase: str) -> str:
    if phase in ONE_OFF:
        return "one-off"
    return {TESTS: "tests", ROUND_MASKS: "masks"}.get(phase, "rounds")


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a part of the history, by name."""
    kinds = (int, float)
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, kinds) and not isinstance(value, bool)
    }

"""What a run came to, in a few numbers from its history.

Accuracies are shares, 0 to 1, under the names of the history: `pooled` is correct / total over the
test samples of all clients, `mean` the plain mean over clients, both of the global model;
`personal` is the mean over clients of their own models. The last evaluation by all clients counts,
and `..._last_10` is the mean over those of the last 10 rounds.
"""

from collections.abc import Mapping
from typing import Any

from ssfl.server.ledger import ONE_OFF
from ssfl.study.statistics import ACCURACIES, last_accuracies, last_rounds_mean

LAST = 10


def outcome_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return accuracies, loss, metrics, bytes and digest of a finished run; None: not measured."""
    tested = document["evaluations"][-1] if document["evaluations"] else {}
    mask = document.get("mask", {})
    return {
        "rounds": document["rounds_done"],
        "pooled": tested.get("pooled"),
        "mean": tested.get("mean"),
        "personal": last_rounds_mean(document, 1, "personal"),
        **{f"{one}_last_{LAST}": last_rounds_mean(document, LAST, one) for one in ACCURACIES},
        f"evaluations_last_{LAST}": len(last_accuracies(document, LAST, "pooled")),
        "loss": tested.get("loss"),
        "metrics": dict(tested.get("metrics", {})),
        "bytes_up": _bytes(document, "up"),
        "bytes_down": _bytes(document, "down"),
        "bytes_one_off": _bytes(document, "up", one_off=True)
        + _bytes(document, "down", one_off=True),
        "num_kept": mask.get("num_kept"),
        "num_masked": mask.get("num_masked"),
        "model_digest": document["model_digest"],
    }


def _bytes(document: Mapping[str, Any], direction: str, *, one_off: bool = False) -> int:
    """Return the bytes of encoded tensors in one direction, those before the first round apart."""
    return sum(
        int(row["payload_bytes"])
        for row in document["ledger"]
        if row["direction"] == direction and (row["phase"] in ONE_OFF) is one_off
    )

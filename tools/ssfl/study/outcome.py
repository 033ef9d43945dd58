"""What a run came to, in a few numbers from its history.

Accuracies are shares, 0 to 1, under the names of the history: `pooled` is correct / total over the
test samples of all clients, `mean` the plain mean over clients, both of the global model in the
last evaluation by all clients; `..._last_10` is the mean over the evaluations in the last 10
rounds. `validation_pooled` and `validation_mean` are the same on validation samples: choose
settings by these. `personal` is the mean over clients of their own models at the end: trained on
for themselves (`personalize_epochs`), else as of their last round.
"""

from collections.abc import Mapping
from typing import Any

from ssfl.server.accounting.ledger import ONE_OFF
from ssfl.study.intervals import ACCURACIES, last_accuracies, last_rounds_mean

LAST = 10


def outcome_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return accuracies, loss, metrics, bytes and digest of a finished run; None: not measured."""
    tested = document["evaluations"][-1] if document["evaluations"] else {}
    mask = document.get("mask", {})
    return {
        "rounds": document["rounds_done"],
        "pooled": tested.get("pooled"),
        "mean": tested.get("mean"),
        "personal": _personal(document),
        "validation_pooled": last_rounds_mean(document, 1, "validation_pooled"),
        "validation_mean": last_rounds_mean(document, 1, "validation_mean"),
        **{f"{one}_last_{LAST}": last_rounds_mean(document, LAST, one) for one in ACCURACIES},
        f"evaluations_last_{LAST}": len(last_accuracies(document, LAST, "pooled")),
        "loss": tested.get("loss"),
        "metrics": dict(tested.get("metrics", {})),
        "bytes": sum(_bytes(document, direction) for direction in ("up", "down", "one_off")),
        **{f"bytes_{one}": _bytes(document, one) for one in ("up", "down", "one_off")},
        "num_kept": mask.get("num_kept"),
        "num_masked": mask.get("num_masked"),
        "model_digest": document["model_digest"],
    }


def _personal(document: Mapping[str, Any]) -> float | None:
    end = document.get("personal")
    if end:
        mean: float | None = end["personal"]["mean"]
        return mean
    return last_rounds_mean(document, 1, "personal")


def _bytes(document: Mapping[str, Any], what: str) -> int:
    """Return the bytes of encoded tensors in one direction, or before the first round, both ways.

    No byte is in two of the three.
    """
    return sum(
        int(row["payload_bytes"])
        for row in document["ledger"]
        if what == ("one_off" if row["phase"] in ONE_OFF else row["direction"])
    )

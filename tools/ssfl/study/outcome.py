"""The outcome of a run: a few numbers from its history.

Accuracies are shares, 0 to 1, with the names of the history; docs/simulate.md explains them.
"""

from collections.abc import Mapping
from typing import Any

from ssfl.server.accounting.ledger import ONE_OFF
from ssfl.study.costs import costs_of
from ssfl.study.intervals import ACCURACIES, last_accuracies, last_rounds_mean

LAST = 10
GOSSIP = ("bytes_relay", "bytes_peers", "bytes_busiest", "bytes_busiest_in")


def final(outcome: Mapping[str, Any], name: str) -> Any:
    """Return an accuracy at the end of a run: the mean over the last rounds of a long one."""
    return outcome[f"{name}_last_{LAST}" if outcome["rounds"] >= 2 * LAST else name]


def outcome_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return accuracies, loss, metrics, costs and digest of a run; None if not measured."""
    tested = document["evaluations"][-1] if document["evaluations"] else {}
    mask, end = document.get("mask", {}), document.get("personal") or {}
    gossip = document.get("gossip", {})
    return {
        "rounds": document["rounds_done"],
        "pooled": tested.get("pooled"),
        "mean": tested.get("mean"),
        "personal": end["personal"]["mean"] if end else last_rounds_mean(document, 1, "personal"),
        # Clients with a model of their own, of those asked; None if not known.
        "own_models": end.get("own_models"),
        "own_models_of": len(end["clients"]) if "own_models" in end else None,
        "validation_pooled": last_rounds_mean(document, 1, "validation_pooled"),
        "validation_mean": last_rounds_mean(document, 1, "validation_mean"),
        **{f"{name}_last_{LAST}": last_rounds_mean(document, LAST, name) for name in ACCURACIES},
        f"evaluations_last_{LAST}": len(last_accuracies(document, LAST, "pooled")),
        "loss": tested.get("loss"),
        "metrics": dict(tested.get("metrics", {})),
        "bytes": sum(_bytes(document, direction) for direction in ("up", "down", "one_off")),
        **{f"bytes_{kind}": _bytes(document, kind) for kind in ("up", "down", "one_off")},
        # Of a strategy whose clients receive each other's updates.
        **{name: gossip.get(name) for name in GOSSIP},
        "num_kept": mask.get("num_kept"),
        "num_masked": mask.get("num_masked"),
        "model_digest": document["model_digest"],
        "training": document.get("training"),
        **costs_of(document),
    }


def _bytes(document: Mapping[str, Any], kind: str) -> int:
    """Return the bytes of encoded tensors of a kind: `up`, `down` or `one_off` (both directions).

    One-off bytes are not part of `up` and `down`. Masks that rounds move are; so are the downloads
    of evaluations and of the final model.
    """
    return sum(
        int(row["payload_bytes"])
        for row in document["ledger"]
        if kind == ("one_off" if row["phase"] in ONE_OFF else row["direction"])
    )

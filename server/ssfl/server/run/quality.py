"""Model quality, for the history and for the choice of the best model and the end of the run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def accuracies(evaluations: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return pooled and mean accuracy, loss and metrics per sample; None if unknown."""
    tested = [e for e in evaluations if e["total"]]
    counted = [e for e in tested if e["correct"] is not None]
    names = sorted({name for e in tested for name in e.get("metric_sums", {})})
    having = {name: [e for e in tested if name in e.get("metric_sums", {})] for name in names}
    means = [e["correct"] / e["total"] for e in counted]
    return {
        "pooled": _per_sample((e["correct"] for e in counted), counted),
        "mean": sum(means) / len(means) if means else None,
        "loss": _per_sample((e["loss_sum"] for e in tested), tested),
        "metrics": {
            name: _per_sample((e["metric_sums"][name] for e in some), some)
            for name, some in having.items()
        },
    }


def _per_sample(sums: Iterable[float], tested: Sequence[Mapping[str, Any]]) -> float | None:
    total = sum(e["total"] for e in tested)
    return sum(sums) / total if total else None


def chosen_on(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the split that decides which model is best: validation, if every site has one."""
    have = [bool((report.get("validation") or {}).get("total")) for report in reports]
    return "validation" if have and all(have) else "test"


def quality(reports: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """Return accuracy and loss of an evaluation by all clients, on the deciding split."""
    field = "validation" if chosen_on(reports) == "validation" else "evaluation"
    tested = accuracies(report[field] for report in reports)
    return tested["pooled"], tested["loss"]


def mean_client_loss(reports: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean training loss over a round's clients; None if no client trained.

    All clients have equal weight, so that a few with unusual data are noticed. Test samples are
    not used: they must not influence training.
    """
    losses = [report["training_loss"] for report in reports]
    return sum(losses) / len(losses) if losses else None

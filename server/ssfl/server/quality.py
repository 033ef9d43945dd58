"""How good the model is, as the run itself looks at it: to keep the best, to stop, to refresh."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def pooled(evaluations: Iterable[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """Return accuracy and loss over all samples of some evaluations; None for what is unknown."""
    tested = [one for one in evaluations if one["total"]]
    total = sum(one["total"] for one in tested)
    if not total:
        return None, None
    loss = sum(one["loss_sum"] for one in tested) / total
    counted = [one for one in tested if one["correct"] is not None]
    if not counted:
        return None, loss
    return sum(one["correct"] for one in counted) / sum(one["total"] for one in counted), loss


def chosen_on(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the split that decides which model is best: validation, if every site has one."""
    have = [bool((report.get("validation") or {}).get("total")) for report in reports]
    return "validation" if have and all(have) else "test"


def quality(reports: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """Return accuracy and loss of an evaluation by all clients, on the split that decides."""
    field = "validation" if chosen_on(reports) == "validation" else "evaluation"
    return pooled(report[field] for report in reports)


def mean_client_loss(reports: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean over a round's clients of their training loss; None if nobody trained.

    Every client counts the same, so that a few with data unlike the others' are seen. Test samples
    are not looked at: they may not decide what is trained.
    """
    losses = [report["training_loss"] for report in reports]
    return sum(losses) / len(losses) if losses else None

"""Recognises tasks that have the loss and the metrics of a built-in one."""

from ssfl.learning import image_task, table_task
from ssfl.learning.task import Task


def has_built_in_loss(task: Task) -> bool:
    """Return True if loss and metrics are those of a built-in task, which a task may import."""
    module = getattr(task, "module", task)
    return any(
        getattr(module, "loss", None) is built_in.loss
        and getattr(module, "metrics", None) is built_in.metrics
        for built_in in (image_task, table_task)
    )

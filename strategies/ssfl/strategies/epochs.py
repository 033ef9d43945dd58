"""Local training in parts, for client halves that look at the weights between two epochs.

Each part has a new optimiser, so momentum restarts at zero. Authors' code has one optimiser for all
parts of a round. The results are the same without momentum.
"""

from collections.abc import Sequence
from dataclasses import replace

from ssfl.method.evaluation import LocalResult
from ssfl.strategies.contract import SiteTools


def num_epochs(site: SiteTools) -> int:
    """Return the number of epochs of a round at a site; with `local_steps` the last may be short.

    With local_steps, every pass over the samples is an epoch.
    """
    settings = site.settings
    if not settings.local_steps:
        return settings.local_epochs
    per_epoch = -(-int(site.shard.num_samples) // settings.batch_size)
    return -(-settings.local_steps // per_epoch)


def joined(parts: Sequence[LocalResult], epochs: Sequence[int]) -> LocalResult:
    """Return one result for parts of `epochs` epochs each.

    It has the values and the personal test of the last part, the base test of the first, and the
    mean loss over all epochs.
    """
    losses = [part.training_loss * count for part, count in zip(parts, epochs, strict=True)]
    loss = sum(losses) / max(1, sum(epochs))
    return replace(parts[-1], base=parts[0].base, training_loss=loss)

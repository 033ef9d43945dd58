"""The masks of a run before it starts: which rounds each one has, and how many weights it keeps.

A warm-up is a mask that keeps everything. What renews a mask is decided by the very rule of a run
(`ssfl.server.run.refresh`), as far as it follows from round numbers alone: an operator, new labels
and losses are not known before.
"""

from dataclasses import dataclass

from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import Ssfl, strategy_for
from ssfl.server.run.refresh import refresh_due
from ssfl.server.run.state import RunState


@dataclass(frozen=True, slots=True)
class PlannedMask:
    """A mask and the rounds under it."""

    first: int  # round
    stop: int
    num_kept: int
    num_decisive: int
    is_agreed: bool  # by scores, before its first round; else it keeps everything


def planned_masks(manifest: Manifest, settings: RunSettings) -> list[PlannedMask]:
    """Return a run's masks in their order; together they have all rounds."""
    rounds, strategy = settings.rounds, strategy_for(settings)
    if not isinstance(strategy, Ssfl):
        return [PlannedMask(0, rounds, manifest.num_masked, 0, is_agreed=False)]
    warm = settings.warmup_rounds
    starts = [warm]
    for number in range(warm + 1, rounds):
        epoch = len(starts) + (warm > 0)
        if refresh_due(RunState(settings, mask_epoch=epoch, rounds_done=number,
                                masked_round=starts[-1])):  # fmt: skip
            starts.append(number)
    agreed = [
        PlannedMask(
            first,
            stop,
            strategy.num_kept(manifest, first),
            strategy.num_decisive(manifest, first),
            is_agreed=True,
        )
        for first, stop in zip(starts, [*starts[1:], rounds], strict=True)
    ]
    dense = [PlannedMask(0, warm, manifest.num_masked, 0, is_agreed=False)] if warm else []
    return dense + agreed

"""The masks of a run before it starts: the rounds of each, and the weights that it keeps.

A warm-up has a mask that keeps everything. Refreshes follow the rule of a run
(`ssfl.server.run.refresh`), as far as it depends on round numbers alone. Refreshes by an operator,
for new labels or on a jump of the loss cannot be predicted.
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
    is_agreed: bool  # True if chosen by scores before its first round; else it keeps everything


def planned_masks(manifest: Manifest, settings: RunSettings) -> list[PlannedMask]:
    """Return a run's masks in order; together they cover all rounds."""
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

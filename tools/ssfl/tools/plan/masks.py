"""The masks of a run before it starts: the rounds of each, and the weights that it keeps.

A warm-up has a mask that keeps everything. Only refreshes that depend on round numbers alone can be
predicted.
"""

from dataclasses import dataclass
from itertools import pairwise

from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.server.run.refresh import refresh_due
from ssfl.server.run.state import RunState
from ssfl.strategies.registry import strategy_for


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
    if strategy.why_fixed:
        return [PlannedMask(0, rounds, manifest.num_masked, 0, is_agreed=False)]
    warm = settings.warmup_rounds
    starts = [warm]
    for number in range(warm + 1, rounds):
        epoch, last = len(starts) + (warm > 0), starts[-1]
        state = RunState(settings, mask_epoch=epoch, rounds_done=number, masked_round=last)
        if refresh_due(state):
            starts.append(number)
    masks = [PlannedMask(0, warm, manifest.num_masked, 0, is_agreed=False)] if warm else []
    for first, stop in pairwise([*starts, rounds]):
        kept, decisive = strategy.num_kept(manifest, first), strategy.num_decisive(manifest, first)
        masks.append(PlannedMask(first, stop, kept, decisive, is_agreed=True))
    return masks

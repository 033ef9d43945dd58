"""The rounds of a strategy that moves masks, before a run: what is sent in each.

The parts of updates follow from the rule, for the task of each round. How many weights the model
keeps does not if the mask is the union of the clients' masks, nor do the sizes of masks that
clients choose by themselves. They are ranges: `low` and `high` are expected, `most` is a bound. The
rule begins with made-up weights; only what it makes of them is used: whether it keeps
them, and how many.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ssfl.codec import masks, values_only
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import lossy_code
from ssfl.strategies.contract import (
    ClientId,
    Plan,
    Position,
    Reduced,
    Rule,
    StepDone,
    UploadParts,
)
from ssfl.strategies.mask_source import MaskSource
from ssfl.strategies.registry import strategy_for
from ssfl.tools.plan.sizes import ZERO, Coding, Size

_ANY_WEIGHT = 0.5


class _NoUploads:
    """No uploads to read one by one."""

    clients: Sequence[ClientId] = ()

    def weight(self, client: ClientId) -> int:
        raise KeyError(client)

    def mask(self, client: ClientId) -> Mask:
        raise KeyError(client)

    def numbers(self, client: ClientId) -> tuple[float, ...]:
        raise KeyError(client)

    def read(self, client: ClientId, start: int, count: int, vector: str = "") -> Vector:
        raise KeyError(client, start, count, vector)


@dataclass(frozen=True)
class RuleRounds:
    """What a strategy sends in its rounds."""

    manifest: Manifest
    settings: RunSettings
    coding: Coding
    cohort: int

    @cached_property
    def begun(self) -> ModelState:
        """The state before the first step, from made-up weights."""
        initial = np.full(self.manifest.size, _ANY_WEIGHT, dtype=np.float32)
        return strategy_for(self.settings).begin(self.manifest, initial)

    @cached_property
    def warm_up(self) -> Plan | None:
        """The step before the rounds; None if there is none."""
        clients = [ClientId(f"{number:08}") for number in range(self.settings.clients)]
        first = self._plan(0, self.begun.stage, clients)
        return None if first is None or first.counts_as_round else first

    def parts(self, number: int) -> UploadParts:
        """Return the parts of an update in a round."""
        few = [ClientId(str(number)) for number in range(min(2, self.settings.clients))]
        plan = self._plan(number, "", few)
        assert plan is not None
        return strategy_for(self.settings).parts(plan.task, self.manifest)

    def _plan(self, number: int, stage: str, clients: list[ClientId]) -> Plan | None:
        position = Position(number, 1, 0, stage=stage)
        return strategy_for(self.settings).plan(position, clients)

    @property
    def is_first_sent(self) -> bool:
        """True if the values of the first round are not the initial weights."""
        state = self.warmed_up
        assert state.mask is not None and state.values is not None
        return not np.array_equal(state.mask.gather(state.initial), state.values)

    @cached_property
    def warmed_up(self) -> ModelState:
        """The state after the step before the rounds, if clients send masks alone in it."""
        strategy, warm, mask = strategy_for(self.settings), self.warm_up, self.begun.mask
        assert mask is not None
        bits_alone = UploadParts(values=False, bits=True, bits_required=True)
        if warm is None:
            return self.begun
        if replace(strategy.parts(warm.task, self.manifest), max_kept=None) != bits_alone:
            return self.begun
        votes = mask.bools().astype(np.int64)
        reduced = Reduced(np.zeros(0, np.float32), votes=votes, total_weight=1)
        step = StepDone(warm.work, 0, warm.task)
        return strategy.finish(step, self.begun, reduced, _NoUploads())

    @property
    def begins_sparse(self) -> bool:
        return self.kept_at_first < self.manifest.num_masked

    @property
    def kept_at_first(self) -> int:
        """How many weights the first mask keeps."""
        assert self.begun.mask is not None
        return self.begun.mask.num_kept

    @property
    def has_own_masks(self) -> bool:
        return strategy_for(self.settings).has_own_masks

    @property
    def moves_mask(self) -> bool:
        return strategy_for(self.settings).moves_mask

    @cached_property
    def kept(self) -> tuple[int, int]:
        """How many weights the model of a round keeps: at least, and at most.

        A first mask that keeps some weights is moved, not enlarged; some rules may shrink it. One
        that keeps everything becomes the union of what clients send.
        """
        size = self.manifest.num_masked
        # Seeded masks of all clients keep the same number of weights.
        if mask := strategy_for(self.settings).client_mask(ClientId("any"), self.manifest):
            return mask.num_kept, mask.num_kept
        if self.begins_sparse:
            rule = strategy_for(self.settings).rule
            return rule.fewest_kept(self.manifest, self.kept_at_first), self.kept_at_first
        if self.has_own_masks:
            return strategy_for(self.settings).num_kept(self.manifest), size
        if not self.moves_mask:
            return size, size
        least = self.parts(0).max_kept or 1
        return least, strategy_for(self.settings).rule.max_kept(self.manifest, self.cohort)

    # -- sizes of one transfer

    @property
    def mask_bytes(self) -> int:
        return masks.packed_bytes(self.manifest.num_masked)

    @property
    def moved_mask(self) -> Size:
        """The mask with a task; nothing if it did not move after all, or keeps everything."""
        if not self.moves_mask:
            return ZERO
        return Size(0, self.mask_bytes, self.mask_bytes)

    @property
    def first_mask(self) -> Size:
        """The mask that the rule begins with."""
        if not self.begins_sparse:
            return ZERO
        return self._mask_size(self.coding.reference)

    def own_mask(self, parts: UploadParts) -> Size:
        """Return the size of a mask that a client sends."""
        if not parts.bits:
            return ZERO
        is_coded = self.coding.reference or lossy_code(self.settings) is not None
        return self._mask_size(is_coded or not parts.bits_required)

    def _mask_size(self, is_range: bool) -> Size:
        return Size(0 if is_range else self.mask_bytes, self.mask_bytes, self.mask_bytes)

    def update(self, parts: UploadParts) -> Size:
        """Return the size of the values and further vectors of an update."""
        low, high = self.kept
        if parts.bits_required and parts.max_kept is not None:
            low, high = min(low, parts.max_kept), parts.max_kept
        elif parts.bits_required and parts.values:
            low, high = 1, self.manifest.num_masked
        size = self._values(low, high, of_update=True) if parts.values else ZERO
        for _ in parts.vectors:
            size = size + self.coding.vector(self._count(low), self._count(high))
        return size

    def base(self, *, first: bool = False, to_test: bool = False) -> Size:
        """Return the size of the model that a client gets."""
        if first:
            return self._values(self.kept_at_first, self.kept_at_first)
        if self.settings.downloads == "values":
            least, most = (
                self.coding.base(self._count(kept), holds_previous=False).size for kept in self.kept
            )
            return least.union(most)
        if self.has_own_masks and to_test:
            return self._values(self.manifest.num_masked, self.manifest.num_masked)
        changed = strategy_for(self.settings).rule.max_changed(self.manifest, self.cohort)
        if changed == self.manifest.num_masked:
            return self._values(*self.kept)
        fewest = self._count(self.parts(0).max_kept or 0)
        size = self.coding.change(self.manifest.size, fewest, self._count(changed))
        if self.cohort < self.settings.clients:  # some clients lack the previous values
            return size.union(self._values(*self.kept))
        return size

    def vectors(self, count: int) -> Size:
        """Return the size of `count` further vectors, which are not coded on the way down."""
        low, high = (count * values_only.encoded_bytes(self._count(kept)) for kept in self.kept)
        return Size(low, high, high)

    def _values(self, low: int, high: int, *, of_update: bool = False) -> Size:
        return self.coding.values(self._count(low), self._count(high), of_update=of_update)

    def _count(self, kept: int) -> int:
        return kept + self.manifest.num_unmasked


def moves_masks(manifest: Manifest, settings: RunSettings) -> bool:
    """Return True if masks move in the rounds of a run, or if clients have masks of their own."""
    strategy = strategy_for(settings)
    has_own = strategy.has_seeded_masks or strategy.parts("", manifest).bits
    return strategy.moves_mask or has_own


def num_vectors(manifest: Manifest, settings: RunSettings) -> int:
    """Return the number of further vectors that a rule sends with a model to train."""
    rule = strategy_for(settings).rule
    if type(rule).vectors is Rule.vectors:
        return 0
    initial = np.zeros(manifest.size, dtype=np.float32)
    return len(rule.vectors(rule.begin(MaskSource(settings).begin(manifest, initial))))

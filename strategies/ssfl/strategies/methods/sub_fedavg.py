"""Sub-FedAvg, unstructured (Vahidian et al. 2021): every client prunes a mask of its own.

    m_i <- all ones;  w <- w0, dense at the coordinator
    every round, client i:
        train w on m_i
        c1, c2 <- m_i without the smallest |w| of each layer, after the first and the last epoch
        if the distance between c1 and c2 is above `distance`, the density of m_i is above the
        target and the accuracy of w on c2 is above `accuracy`:  m_i <- c2
        send the values on m_i, and m_i if it changed
    w <- for each weight, the unweighted mean over the clients whose (new) mask holds it;
         a weight that no client holds keeps its value

The distance is the mean over the layers of the share of bits that differ. Client i's own model is
w on m_i.

Choices where the paper and the released code leave room or differ:
- `last_step` target ends at the run's sparsity exactly. If less than a step is left, the authors'
  code prunes that share of each layer, at most 5 % (capped). DisPFL's port takes a whole step
  (full). Both may prune more than the sparsity says.
- A layer of n kept weights drops ceil((n - 1) * step), like the percentile in the released code,
  which keeps all weights that are equal to the percentile: `ties` keep.
- `split`: the authors' code measures the accuracy on the test samples, which leaks them. Here it
  is the validation samples, or the training samples at a site that has no others.
- The authors' code takes c2 after the fifth epoch, whatever the number of epochs. Here a round
  needs at least two epochs. With `local_steps`, a site with one epoch never prunes. Momentum
  restarts after the first epoch (epochs.py).
- The density is that of the masked weights; the released code counts biases too.
- The released code sends the dense model to clients. Here a client gets the values on its mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from ssfl.method.errors import SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import choice, setting
from ssfl.strategies import contract as seam
from ssfl.strategies.contract import Answer, ClientHalf, Memory, OnStep, Received, Rule, SiteTools
from ssfl.strategies.epochs import joined, num_epochs
from ssfl.strategies.layerwise import kept_by_layer, num_kept, spread, top_by_layer

LAST_STEP = 0.05
MASK = "mask"  # name in a client's memory; in the state: mask/<client>


@dataclass(frozen=True)
class SubFedAvgOptions:
    """Hyper-parameters; the defaults are those of the released code."""

    step: float = setting(0.1, "share of each layer's kept weights that a step prunes", le=1.0)
    distance: float = setting(1e-4, "prune if the candidate masks differ by more than this share")
    accuracy: float = setting(0.5, "prune if the accuracy stays above this share", le=1.0)
    split: str = choice("samples that measure this accuracy", "validation", "train", "test")
    last_step: str = choice("last step; capped: at most 5 %", "target", "capped", "full")
    ties: str = choice("weights equal to the smallest that stays", "drop", "keep")


def counts_after_step(kept: Sequence[int], step: float) -> list[int]:
    """Return how many weights each layer keeps after a step.

    >>> counts_after_step([100, 11, 2, 1, 0], 0.1)
    [90, 10, 1, 1, 0]
    """
    return [n - ceil(max(0, n - 1) * step - 1e-9) for n in kept]


def counts_to_target(
    kept: Sequence[int], step: float, target: int, size: int, last_step: str = "target"
) -> list[int]:
    """Return how many weights each layer keeps after a step, which may be the last of `size`.

    "target" drops in proportion to `kept` if a whole step would pass the target.
    """
    total, after = sum(kept), counts_after_step(kept, step)
    if last_step == "capped" and (total - target) / size < step:
        return counts_after_step(kept, min(LAST_STEP, (total - target) / total))
    if last_step != "target" or sum(after) >= target:
        return after
    return [n - lost for n, lost in zip(kept, spread(kept, kept, total - target), strict=True)]


def mask_distance(first: Mask, last: Mask, manifest: Manifest) -> float:
    """Return the mean over the layers of the share of bits that differ."""
    differ = first.bools() ^ last.bools()
    return float(np.mean([differ[place].mean() for _, place in manifest.masked()]))


class SubFedAvg(Rule):
    """A dense global model, of which every client trains a part that shrinks."""

    Options = SubFedAvgOptions
    moves_mask = True
    has_personal_models = True
    reads_single_uploads = True  # their masks

    def check(self) -> None:
        settings = self.settings
        if settings.local_epochs < 2 and not settings.local_steps:
            raise SettingsError(
                "--strategy sub-fedavg compares the weights after the first and the last epoch: "
                "--local-epochs must be at least 2"
            )
        if settings.value_type != "float32" or settings.personalize_epochs:
            raise SettingsError(
                "--strategy sub-fedavg gives every client its own mask and model: leave out "
                "--value-type and --personalize-epochs"
            )

    def begin(self, state: ModelState) -> ModelState:
        num_kept(self.settings, state.manifest)  # raises now if the sparsity is impossible
        return state

    def plan(self, position: seam.Position, clients: Sequence[seam.ClientId]) -> seam.Plan | None:
        plan = super().plan(position, clients)
        return plan and replace(
            plan, reducer=seam.Reducer.WEIGHTED_SUM_BY_HOLDER, equal_weights=True
        )

    def parts(self, task: str, manifest: Manifest) -> seam.UploadParts:
        return seam.UploadParts(bits=True)

    def client_state(self, client: seam.ClientId, state: ModelState) -> ModelState:
        mask = state.extra.get(f"{MASK}/{client}")
        if not isinstance(mask, Mask):
            return state
        assert state.values is not None
        return replace(state, mask=mask, values=mask.gather(state.values))

    def finish(
        self, step: seam.StepDone, state: ModelState, reduced: seam.Reduced, uploads: seam.Uploads
    ) -> ModelState:
        assert state.values is not None and reduced.weights is not None
        values = np.where(reduced.weights > 0, reduced.values, state.values)
        masks = {f"{MASK}/{client}": uploads.mask(client) for client in uploads.clients}
        pruned = {name: mask for name, mask in masks.items() if mask.num_kept < mask.size}
        after = seam.committed(self.settings, state, values)
        return replace(after, extra={**state.extra, **pruned})

    def client(self) -> ClientHalf:
        return SubFedAvgClient(self)


class SubFedAvgClient(ClientHalf):
    """Prunes the site's mask after training, if the three conditions hold."""

    can_be_stacked = True

    def __init__(self, rule: SubFedAvg) -> None:
        self.options, self.settings = rule.options, rule.settings

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        mask, number, epochs = received.mask, received.round_number, num_epochs(site)
        first = site.train(mask, received.values, number, on_step, epochs=range(1))
        last = site.train(mask, first.values, number, on_step, epochs=range(1, epochs))
        trained = joined([first, last], [1, epochs - 1])
        pruned = self.pruned(mask, first.values, last.values, site)
        memory.put(MASK, mask if pruned is None else pruned)
        if pruned is None:
            return Answer(trained)
        values = pruned.gather(mask.scatter(last.values))
        tested = site.evaluate(pruned, values)
        return Answer(replace(trained, values=values, personal=tested), bits=pruned)

    def pruned(self, mask: Mask, first: Vector, last: Vector, site: SiteTools) -> Mask | None:
        """Return the mask after a step; None if a condition does not hold."""
        manifest, target = site.manifest, num_kept(self.settings, site.manifest)
        kept, whole, options = kept_by_layer(mask, manifest), mask.scatter(last), self.options

        def largest(weights: Vector, counts: Sequence[int]) -> Mask:
            among, keep_ties = mask.bools(), options.ties == "keep"
            return top_by_layer(np.abs(weights), counts, manifest, among, keep_ties=keep_ties)

        after = counts_after_step(kept, options.step)
        c1, c2 = largest(mask.scatter(first), after), largest(whole, after)
        if mask_distance(c1, c2, manifest) <= options.distance or mask.num_kept <= target:
            return None
        counts = counts_to_target(kept, options.step, target, mask.size, options.last_step)
        c2 = largest(whole, counts)
        return c2 if c2 != mask and self.is_accurate(c2, c2.gather(whole), site) else None

    def is_accurate(self, mask: Mask, values: Vector, site: SiteTools) -> bool:
        """Return True if the accuracy on the chosen samples is above the threshold."""
        tested = site.evaluate(mask, values, self.options.split)
        if not tested.total:
            tested = site.evaluate(mask, values, "train")
        if tested.correct is None:
            from ssfl.learning.errors import ModelError

            raise ModelError("--strategy sub-fedavg needs a task that has an accuracy")
        return tested.correct > float(self.options.accuracy) * tested.total

    def personal(self, received: Received, site: SiteTools, memory: Memory) -> Vector:
        mask = memory.mask(MASK) or received.mask
        own = mask.gather(received.mask.scatter(received.values))
        return received.mask.gather(mask.scatter(own))

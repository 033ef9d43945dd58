"""What a simulated run computes and sends: local steps, multiplications, densities, mask work.

`Effort` is the work of one client in a training step. `WorkLog` adds up a run; its document is
`work` in the history of a simulated run. A multiplication is that of a conv or linear layer with
one of its weights, for one sample, in the forward pass. Training costs six floating-point
operations per multiplication: a multiplication and an addition in the forward pass, for the
gradient of the inputs, and for the gradient of the weights.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from ssfl.client.local_work import Site, Vector
from ssfl.client.memory import Items
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import batch_tensors
from ssfl.learning.evaluate import eval_mode
from ssfl.learning.load_task import LoadedTask
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import Answer, Received

FLOPS = 6  # of training, per multiplication of the forward pass
DIRECTIONS = ("up", "down")
Result = TypeVar("Result")


@dataclass(slots=True)
class Effort:
    """The work of one client in a training step."""

    steps: int = 0
    # Steps inside a mask. Other steps, of a client half with a training loop of its own, are dense.
    masked: list[tuple[int, Mask]] = field(default_factory=list)
    mask_seconds: float = 0.0  # neither training nor testing


def plain_effort(steps: int, mask: Mask) -> Effort:
    """Return the effort of a client that only trains inside a mask."""
    return Effort(steps, [(steps, mask)])


class CountingSite(Site):
    """A site that counts its steps, and the seconds in which it neither trains nor tests."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._effort = Effort()
        self._depth = 0  # above 0 while the site trains or tests
        self._mark_s = 0.0  # everything before it is attributed

    def counted_answer(
        self, received: Received, items: Items
    ) -> tuple[Answer, dict[str, Vector | Mask], Effort]:
        """Return the answer to a training step, what it puts into memory, and the effort."""
        self._effort = effort = Effort()
        self._mark_s = time.perf_counter()
        answer, puts = self.answer(received, items, self._on_step)
        self._end_mask_work()
        return answer, puts, effort

    def evaluate(self, mask: Mask, values: Vector, split: str = "test") -> Evaluation:
        return self._apart(lambda: super(CountingSite, self).evaluate(mask, values, split))

    def _train(self, mask: Mask, *arguments: Any) -> LocalResult:
        before = self._effort.steps
        trained = self._apart(lambda: super(CountingSite, self)._train(mask, *arguments))
        self._effort.masked.append((self._effort.steps - before, mask))
        return trained

    def _apart(self, work: Callable[[], Result]) -> Result:
        """Do work that is not mask work."""
        if not self._depth:
            self._end_mask_work()
        self._depth += 1
        try:
            return work()
        finally:
            self._depth -= 1
            self._mark_s = time.perf_counter()

    def _end_mask_work(self) -> None:
        now_s = time.perf_counter()
        self._effort.mask_seconds += now_s - self._mark_s
        self._mark_s = now_s

    def _on_step(self, _step: int, _steps: int) -> None:
        self._effort.steps += 1
        self._mark_s = time.perf_counter()  # the time since the last step was training


def multiplications(
    network: nn.Module, manifest: Manifest, task: LoadedTask, shard: Shard, batch_size: int
) -> dict[str, int]:
    """Return the multiplications of each masked tensor for one sample."""
    batch = min(batch_size, shard.num_samples)
    names = {id(value): name for name, value in network.named_parameters()}
    masked, found = {tensor.name for tensor, _ in manifest.masked()}, dict[str, int]()

    def count(module: nn.Module, _inputs: object, output: object) -> None:
        weight: Any = getattr(module, "weight", None)
        name = names.get(id(weight), "")
        channels = getattr(module, "out_channels", getattr(module, "out_features", 0))
        if name in masked and channels and isinstance(output, torch.Tensor):
            places = output.numel() // channels // batch
            found[name] = found.get(name, 0) + places * int(weight.numel())

    hooks = [module.register_forward_hook(count) for module in network.modules()]
    try:
        with eval_mode(network), torch.no_grad(), torch.random.fork_rng(devices=[]):
            x, y = batch_tensors(shard.train_x, shard.train_y, np.arange(batch), network)
            task.loss(network, x, y)
    finally:
        for hook in hooks:
            hook.remove()
    return found


_SUMS = (
    "_updates", "_steps", "_dense", "_sparse", "_mask_seconds", "_travelled", "_round",
    "_round_travelled", "_before",
)  # fmt: skip


class WorkLog:
    """Adds up the work of a run."""

    def __init__(self, manifest: Manifest, costs: Mapping[str, int], settings: RunSettings) -> None:
        self._manifest = manifest
        self._costs = costs
        self._settings = settings
        self._updates = self._steps = 0
        self._dense = self._sparse = 0.0
        self._mask_seconds = 0.0
        self._newest: tuple[Mask | None, float] = (None, 0.0)
        # Kept weights and all weights of the models and updates that rounds send, by direction.
        self._travelled = {direction: [0, 0] for direction in DIRECTIONS}
        self._round = -1
        self._round_travelled = {direction: [0, 0] for direction in DIRECTIONS}
        self._before: dict[str, Any] = {}

    def trained(self, num_samples: int, effort: Effort) -> None:
        """Add the work of a client in a training step."""
        self._updates += 1
        self._steps += effort.steps
        self._mask_seconds += effort.mask_seconds
        per_step = num_samples / -(-num_samples // self._settings.batch_size)  # samples
        dense = FLOPS * per_step * sum(self._costs.values())
        self._dense += effort.steps * dense
        outside = effort.steps - sum(steps for steps, _ in effort.masked)
        self._sparse += outside * dense
        self._sparse += sum(n * FLOPS * per_step * self._inside(mask) for n, mask in effort.masked)

    def _inside(self, mask: Mask) -> float:
        """Return the multiplications for one sample with the weights of a mask."""
        if self._newest[0] != mask:
            kept = mask.kept_by_tensor(self._manifest)
            parts = (self._costs.get(name, 0) * k / size for name, (k, size) in kept.items())
            self._newest = mask, sum(parts)
        return self._newest[1]

    def sent(self, round_number: int, direction: str, num_kept: int) -> None:
        """Add the values of a model or update that a round sends."""
        if round_number != self._round:
            self._round = round_number
            self._round_travelled = {name: [0, 0] for name in DIRECTIONS}
        for counts in (self._travelled[direction], self._round_travelled[direction]):
            counts[0] += num_kept
            counts[1] += self._manifest.num_masked

    def worked_on_masks(self, seconds: float) -> None:
        """Add the seconds of a scoring step, or of a coordinator's step that moved the mask."""
        self._mask_seconds += seconds

    def first_round_begins(self, num_bytes: int, seconds: float) -> None:
        """Store what the run has cost before its first round."""
        if not self._before:
            self._before = {
                "bytes": num_bytes, "seconds": seconds, "client_updates": self._updates,
                "local_steps": self._steps, "flops": self._dense,
            }  # fmt: skip

    def sums(self) -> dict[str, Any]:
        """Return all that `resume` needs, in types that JSON has."""
        return {name: getattr(self, name) for name in _SUMS}

    def resume(self, sums: Mapping[str, Any]) -> None:
        """Continue from the sums of an earlier process."""
        for name in _SUMS:
            setattr(self, name, sums[name])

    def document(self) -> dict[str, Any]:
        """Return the sums in types that JSON has."""
        return {
            "client_updates": self._updates,
            "local_steps": self._steps,
            "flops_executed": self._dense,
            "flops_sparse": self._sparse,
            "mask_seconds": self._mask_seconds,
            "before_first_round": self._before,
            "density": {name: _share(*n) for name, n in self._travelled.items()},
            "density_last_round": {name: _share(*n) for name, n in self._round_travelled.items()},
        }


def _share(kept: int, size: int) -> float | None:
    return kept / size if size else None

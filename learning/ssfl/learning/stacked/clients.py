"""Training and testing of many clients' copies of one small model, in batched steps.

`StackedClients` computes for many clients what `train_locally` and `evaluate` compute for one, with
the same batches, rates and order of mask, clipping and step. Batched kernels add in another order,
so results are close to those of a single client, not bit for bit equal.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ssfl.datasets.shards.shard_file import Array, Shard
from ssfl.learning.batches import steps_of
from ssfl.learning.errors import ModelError
from ssfl.learning.evaluate import BATCH_SIZE
from ssfl.learning.masked_training import personal_settings
from ssfl.learning.stacked.batches import StackedSamples, sequential_batches
from ssfl.learning.stacked.layers import StackedModel
from ssfl.learning.stacked.rounds import StackedRules, evaluate_stacked, train_stacked
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.training_rules import TrainingRule

Vector = npt.NDArray[np.float32]
Client = tuple[str, Shard]  # its id and its data
Rules = Sequence[TrainingRule]
_Start = tuple[Client, Mask, Vector, Rules]  # of a client's round

GROUP = 10  # clients trained at once
TEST_ROWS = 64  # samples of each client tested at once


class StackedClients:
    """Trains and tests many clients' copies of one small model in batched steps."""

    def __init__(self, model: nn.Module, manifest: Manifest, settings: RunSettings) -> None:
        """Copy the model; raise ModelError if it cannot be stacked.

        Call `trial.should_stack` first: it also checks the task's loss.
        """
        self._manifest = manifest
        self._settings = settings
        self._model = StackedModel(model, manifest)

    def train(
        self,
        clients: Sequence[Client],
        masks: Sequence[Mask],
        bases: Sequence[Vector],
        round_number: int,
        rules: Sequence[Rules] | None = None,
        epochs: range | None = None,
    ) -> list[LocalResult]:
        """Return the result of each client's round of local training from its base.

        `rules` has the training rules of each client, on its mask. `epochs` selects some of the
        round's epochs.
        """
        starts = list(zip(clients, masks, bases, rules or [()] * len(clients), strict=True))
        return self._rounds(starts, self._settings, round_number, epochs)

    def personalize(
        self, clients: Sequence[Client], mask: Mask, values: Vector, rounds_done: int
    ) -> list[LocalResult]:
        """Return the result of training each client's personal model from the final model."""
        starts: list[_Start] = [(client, mask, values, ()) for client in clients]
        return self._rounds(starts, personal_settings(self._settings), rounds_done)

    def evaluate(self, shards: Sequence[Shard], mask: Mask, values: Vector) -> list[Evaluation]:
        """Test one global model on the test split of each shard."""
        return self._test([(shard.test_x, shard.test_y) for shard in shards], mask, values)

    def validate(
        self, shards: Sequence[Shard], mask: Mask, values: Vector
    ) -> list[Evaluation | None]:
        """Test one global model on the validation split of each shard; None where it is empty."""
        results = self._test([(shard.val_x, shard.val_y) for shard in shards], mask, values)
        return [result if result.total else None for result in results]

    def _test(
        self, parts: Sequence[tuple[Array, Array]], mask: Mask, values: Vector
    ) -> list[Evaluation]:
        samples = StackedSamples(parts)
        plan = [sequential_batches(0, samples.size, BATCH_SIZE)]
        return evaluate_stacked(self._model, self._stack([mask], [values]), samples, plan)

    def _rounds(
        self,
        starts: Sequence[_Start],
        settings: RunSettings,
        round_number: int,
        epochs: range | None = None,
    ) -> list[LocalResult]:
        """Train in groups of similar numbers of steps, so that few clients wait for others."""
        spans = [steps_of(epochs, shard.num_samples, settings) for (_, shard), *_ in starts]
        steps = [stop - first for first, stop in spans]
        order = sorted(range(len(starts)), key=lambda i: -steps[i])
        rounds: dict[int, LocalResult] = {}
        for first in range(0, len(order), GROUP):
            group = order[first : first + GROUP]
            done = self._group([starts[i] for i in group], settings, round_number, epochs)
            rounds |= zip(group, done, strict=True)
        return [rounds[i] for i in range(len(starts))]

    def _group(
        self,
        starts: Sequence[_Start],
        settings: RunSettings,
        round_number: int,
        epochs: range | None,
    ) -> list[LocalResult]:
        clients, masks, bases, rules = zip(*starts, strict=True)
        weights = self._stack(masks, bases)
        samples = StackedSamples([(shard.test_x, shard.test_y) for _, shard in clients])
        plan = [sequential_batches(first, stop, TEST_ROWS) for first, stop in samples.spans]
        base = evaluate_stacked(self._model, weights, samples, plan)
        size = self._manifest.size
        losses = train_stacked(
            self._model, weights, self._kept(masks), clients, settings, round_number,
            StackedRules(rules, masks, size) if any(rules) else None, epochs,
        )  # fmt: skip
        personal = evaluate_stacked(self._model, weights, samples, plan)
        values = [mask.gather(row.numpy()) for mask, row in zip(masks, weights, strict=True)]
        return [LocalResult(*parts) for parts in zip(values, losses, base, personal, strict=True)]

    def _stack(self, masks: Sequence[Mask], bases: Sequence[Vector]) -> Tensor:
        """Return the weights of clients as rows of a matrix, zero off their masks."""
        for mask in masks:
            if mask.size != self._manifest.num_masked:
                what = f"a mask of {mask.size} weights for a model of {self._manifest.num_masked}"
                raise ModelError(what)
        rows = [mask.scatter(base) for mask, base in zip(masks, bases, strict=True)]
        return torch.from_numpy(np.stack(rows))

    def _kept(self, masks: Sequence[Mask]) -> Tensor | None:
        """Return ones for kept and unmasked weights, zeros for pruned; None if all are kept."""
        if all(mask.num_kept == mask.size for mask in masks):
            return None
        kept = torch.ones(len(masks), self._manifest.size)
        for row, mask in zip(kept, masks, strict=True):
            row[: mask.size] = torch.from_numpy(mask.bools())
        return kept

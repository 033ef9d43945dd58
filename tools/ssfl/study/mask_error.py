"""The error of a mask from a few minibatches, compared with the mask of all the data.

The clients score minibatches by |g·w| as in a run. One minibatch is taken from each client in turn.
The scores of the first n are averaged, weighted by the clients' training samples. The Top-k mask of
that mean is compared with the mask of an oracle that has seen every training sample. The error is
the share of the oracle's kept weights that the mask misses. There are two oracles, which do not
agree:

mean of minibatch scores    each client's samples are shuffled and cut into minibatches, so that
                            every sample is used once; the mean of their |g·w|. A run's
                            minibatches are balanced by class, so their mean comes close to this
score of the full gradient  |g·w| of the loss over all samples at once; gradients of different
                            samples cancel before the magnitude is taken, so a mean of magnitudes
                            does not tend to it

So the error does not fall to zero. `flat_at` is the smallest n from which the error stays near that
at the largest n.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.batches import Indices, batch_tensors, scoring_batches
from ssfl.learning.describe import manifest_of
from ssfl.learning.device import choose_device
from ssfl.learning.flatten import initial_weights, write_vector
from ssfl.learning.saliency import saliency_scores, scoring_mode, trained_places
from ssfl.learning.task import Task
from ssfl.method.density import kept_for_sparsity
from ssfl.method.image_settings import resolve_initialization
from ssfl.method.mask import Mask, top_k
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.study.data import DataSpec, build_shards

MINIBATCHES = (1, 2, 5, 10, 20, 40, 80, 100, 150, 200, 300, 400)
SPARSITIES = ("0.5", "0.9", "0.95")
MEAN_OF_SCORES = "mean of minibatch scores"
FULL_GRADIENT = "score of the full gradient"
_SAMPLES_AT_ONCE = 1000  # samples in memory for the full gradient
_TOLERANCE = 0.1  # relative; an error this close to the last one counts as flat

Doubles = npt.NDArray[np.float64]


def mask_error(
    spec: DataSpec,
    settings: RunSettings,
    seeds: Sequence[int] = range(5),
    minibatches: Sequence[int] = MINIBATCHES,
    sparsities: Sequence[str] = SPARSITIES,
    task: Task = image_task,
    device: str = "cpu",
) -> dict[str, Any]:
    """Return the errors of every seed by oracle and sparsity, in types that JSON has.

    `settings` has the model, the batch size and the initialization. Images are not augmented.
    """
    measured = []
    for seed in seeds:
        scores = InitialScores(build_shards(spec, seed), replace(settings, seed=seed), task, device)
        measured.append(_errors_of_seed(scores, minibatches, sparsities))
    oracles = {
        oracle: {
            sparsity: _summary([errors[oracle][sparsity] for errors in measured], minibatches)
            for sparsity in sparsities
        }
        for oracle in (MEAN_OF_SCORES, FULL_GRADIENT)
    }
    return {
        "minibatches": list(minibatches),
        "batch_size": settings.batch_size,
        "model": settings.model,
        "seeds": list(seeds),
        "oracles": oracles,
    }


def flat_at(minibatches: Sequence[int], mean: Sequence[float], deviation: float) -> int:
    """Return the smallest number of minibatches from which the error stays near the last one.

    An error is near if it exceeds the last error by at most a tenth of the last error, or by at
    most `deviation`, the standard deviation of the last error over seeds.
    """
    limit = mean[-1] + max(_TOLERANCE * mean[-1], deviation)
    above = [place for place, error in enumerate(mean) if error > limit]
    return minibatches[above[-1] + 1 if above else 0]


def _summary(errors: list[list[float]], minibatches: Sequence[int]) -> dict[str, Any]:
    table = np.array(errors)
    mean = table.mean(axis=0).tolist()
    deviation = table.std(axis=0, ddof=1 if len(errors) > 1 else 0).tolist()
    return {
        "errors": errors,  # by seed, then by number of minibatches
        "mean": mean,
        "standard_deviation": deviation,
        "flat_at": flat_at(minibatches, mean, deviation[-1]),
    }


class InitialScores:
    """The scores of one seed's clients, for the same initial weights."""

    def __init__(
        self,
        shards: Mapping[str, Shard],
        settings: RunSettings,
        task: Task = image_task,
        device: str = "cpu",
    ) -> None:
        self._shards, self._settings, self._task = shards, settings, task
        shard = next(iter(shards.values()))
        network = task.build_model(settings, shard)
        self.model = self._model = network.to(choose_device(device))
        rule = resolve_initialization(settings.initialization, shard.input_shape)
        self._manifest = manifest_of(self._model, {}, initialization=rule)
        initial = initial_weights(self._model, self._manifest, settings.seed)
        write_vector(self._model, self._manifest, initial)

    def places(self) -> list[tuple[Tensor, slice]]:
        """Return the scored parameters, with their places among the scores."""
        return trained_places(self._model, self._manifest)

    @property
    def size(self) -> int:
        """Number of scored weights."""
        return self._manifest.num_masked

    def of_clients(self) -> Iterator[tuple[int, Doubles]]:
        """Yield, for each client, its number of samples and its scores on one minibatch."""
        for name, shard in self._shards.items():
            (indices,) = scoring_batches(shard, self._settings, name, 0, 1)
            yield shard.num_samples, self._saliency(shard, indices)

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        """Return about `count` training samples, the same number of each client if it has them."""
        each = -(-count // len(self._shards))
        parts = []
        for name, shard in self._shards.items():
            stream = Stream(self._settings.seed, "study", "batch", name)
            indices = stream.choose(shard.num_samples, min(each, shard.num_samples))
            parts.append(batch_tensors(shard.train_x, shard.train_y, indices, self._model))
        x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return x, y

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of samples, in the mode in which weights are scored."""
        with scoring_mode(self._model):
            return self._task.loss(self._model, x, y)

    def running_means(self, minibatches: Sequence[int]) -> Iterator[Doubles]:
        """Yield the mean score of the first n minibatches, for each n in ascending order."""
        shards = self._shards
        turns = -(-max(minibatches) // len(shards))
        batches = {
            name: list(scoring_batches(shard, self._settings, name, 0, turns))
            for name, shard in shards.items()
        }
        total, weight = np.zeros(self._manifest.num_masked), 0
        for number, name in enumerate(islice(cycle(shards), max(minibatches)), start=1):
            shard, own = shards[name], batches[name]
            indices = own[(number - 1) // len(shards) % len(own)]
            total += shard.num_samples * self._saliency(shard, indices)
            weight += shard.num_samples
            if number in minibatches:
                yield total / weight

    def mean_of_scores(self) -> Doubles:
        """Return the mean of the scores of all minibatches, each weighted by its samples."""
        total, samples, size = np.zeros(self._manifest.num_masked), 0, self._settings.batch_size
        for name, shard in self._shards.items():
            stream = Stream(self._settings.seed, "study", "oracle", name)
            order = stream.permutation(shard.num_samples)
            for start in range(0, len(order), size):
                indices = order[start : start + size]
                total += len(indices) * self._saliency(shard, indices)
                samples += len(indices)
        return total / samples

    def full_gradient(self) -> Doubles:
        """Return |g·w| of the mean loss over all training samples, computed in batches."""
        places = trained_places(self._model, self._manifest)
        total, samples = np.zeros(self._manifest.num_masked), 0
        for shard in self._shards.values():
            for start in range(0, shard.num_samples, _SAMPLES_AT_ONCE):
                indices = np.arange(start, min(start + _SAMPLES_AT_ONCE, shard.num_samples))
                x, y = batch_tensors(shard.train_x, shard.train_y, indices, self._model)
                with scoring_mode(self._model):
                    gradients = torch.autograd.grad(
                        self._task.loss(self._model, x, y), [weight for weight, _ in places],
                        allow_unused=True, materialize_grads=True,
                    )  # fmt: skip
                for (weight, place), gradient in zip(places, gradients, strict=True):
                    product = (gradient * weight.detach()).double()
                    total[place] += len(indices) * product.cpu().numpy().reshape(-1)
                samples += len(indices)
        return np.abs(total / samples)

    def _saliency(self, shard: Shard, indices: Indices) -> Doubles:
        x, y = batch_tensors(shard.train_x, shard.train_y, indices, self._model)
        scores = saliency_scores(self._model, self._manifest, self._task, x, y)
        return scores.astype(np.float64)


def _errors_of_seed(
    scores: InitialScores, minibatches: Sequence[int], sparsities: Sequence[str]
) -> dict[str, dict[str, list[float]]]:
    oracles = {MEAN_OF_SCORES: scores.mean_of_scores(), FULL_GRADIENT: scores.full_gradient()}
    oracle_masks = {
        (oracle, sparsity): _mask(mean, sparsity)
        for oracle, mean in oracles.items()
        for sparsity in sparsities
    }
    errors: dict[str, dict[str, list[float]]] = {
        oracle: {sparsity: [] for sparsity in sparsities} for oracle in oracles
    }
    for mean in scores.running_means(minibatches):
        masks = {sparsity: _mask(mean, sparsity) for sparsity in sparsities}
        for (oracle, sparsity), oracle_mask in oracle_masks.items():
            errors[oracle][sparsity].append(missed(oracle_mask, masks[sparsity]))
    return errors


def missed(oracle: Mask, found: Mask) -> float:
    """Return the share of the oracle's kept weights that `found` does not keep."""
    return int(np.count_nonzero(oracle.bools() & ~found.bools())) / oracle.num_kept


def _mask(scores: Doubles, sparsity: str) -> Mask:
    return top_k(scores.astype(np.float32), kept_for_sparsity(sparsity, scores.size))

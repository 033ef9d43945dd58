"""The computation at a site: score, train, evaluate and personalize."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import LearningError, ModelError
from ssfl.learning.evaluate import Evaluation, evaluate, validate
from ssfl.learning.first_batch import try_first_batch
from ssfl.learning.flatten import initial_weights, read_vector, write_vector
from ssfl.learning.grasp import grasp_locally
from ssfl.learning.load_task import LoadedTask
from ssfl.learning.masked_training import LocalResult, personal_settings, train_locally
from ssfl.learning.saliency import score_locally
from ssfl.learning.synflow import synflow_scores
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.v1 import coordinator_pb2 as pb

Vector = npt.NDArray[np.float32]
OnStep = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class ScoringRequest:
    """The model to score and how to score it."""

    whole: Vector  # (manifest.size,) trained values on the mask, resting values off it
    mask: Mask | None = None  # the current mask; None before the first one
    criterion: str = "saliency"
    num_batches: int = 1
    num_kept: int = 0  # of the next mask
    epoch: int = 0  # selects the draw of minibatches

    @classmethod
    def of(cls, work: pb.ScoreTask, whole: Vector, mask: Mask | None) -> "ScoringRequest":
        """Return the scoring request of a task."""
        num_batches = max(1, work.num_batches)
        return cls(whole, mask, work.criterion, num_batches, work.num_kept, work.scoring_epoch)


@dataclass(frozen=True, eq=False)
class GlobalEvaluation:
    """Evaluations of a global model on a site's test split and, if any, validation split."""

    evaluation: Evaluation
    validation: Evaluation | None


@dataclass(frozen=True, eq=False)
class SiteModel:
    """The network of a site, its manifest and its initial vector."""

    network: nn.Module
    manifest: Manifest
    initial: Vector

    @classmethod
    def build(
        cls,
        task: LoadedTask,
        shard: Shard,
        settings: RunSettings,
        device: torch.device,
        run_manifest: Manifest | None = None,
    ) -> "SiteModel":
        """Build the model; a known run manifest decides how its tensors are initialised."""
        description = task.description(settings, shard)
        with _data_compared(run_manifest, description):
            network = task.build_model(settings, shard).to(device)
        manifest = manifest_of(
            network, description, own_weights=task.own_weights,
            initialization=settings.initialization,
        )  # fmt: skip
        if run_manifest and manifest.same_except_init(run_manifest):
            manifest = run_manifest
        initial = initial_weights(network, manifest, settings.seed)
        write_vector(network, manifest, initial)
        return cls(network, manifest, initial)


@contextmanager
def _data_compared(run: Manifest | None, description: Mapping[str, Any]) -> Iterator[None]:
    """Add to a LearningError how this site's data differ from the run's."""
    try:
        yield
    except LearningError as error:
        if run is None or not (difference := run.data_difference(description)):
            raise
        raise ModelError(f"this site's data do not fit the run: {difference}\n{error}") from error


class Site:
    """The client's side of the method."""

    def __init__(
        self,
        task: LoadedTask,
        shard: Shard,
        settings: RunSettings,
        client_id: str,
        model: SiteModel,
    ) -> None:
        """Use `model`; sites that work one after another may share it."""
        self._task = task
        self._shard = shard
        self._settings = settings
        self._client_id = client_id
        self._model = model.network
        self.manifest = model.manifest
        self.initial = model.initial

    @classmethod
    def build(
        cls,
        task: LoadedTask,
        shard: Shard,
        settings: RunSettings,
        client_id: str,
        device: torch.device,
        run_manifest: Manifest | None = None,
    ) -> "Site":
        """Build a site with its own model and try it on a batch."""
        model = SiteModel.build(task, shard, settings, device, run_manifest)
        with _data_compared(run_manifest, task.description(settings, shard)):
            try_first_batch(model.network, task, shard, settings.batch_size)
        return cls(task, shard, settings, client_id, model)

    def score(self, request: ScoringRequest) -> Vector:
        """Return the score of every masked weight; the largest scores are kept."""
        shard, manifest, settings = self._shard, self.manifest, self._settings
        weights, mask = None, request.mask
        if mask is not None and settings.scoring_point == "masked":
            weights = request.whole[: manifest.num_masked]
            write_vector(self._model, manifest, mask.scatter(mask.gather(request.whole)))
        else:
            write_vector(self._model, manifest, request.whole)
        where = self._model, manifest, self._task, shard, settings, self._client_id
        match request.criterion:
            case "saliency":
                return score_locally(*where, request.epoch, request.num_batches, weights)
            case "grasp":
                return grasp_locally(*where, request.epoch, request.num_batches)
            case "synflow":
                return synflow_scores(self._model, manifest, shard.input_shape, request.num_kept)
            case unknown:
                raise ModelError(f"the coordinator asks for an unknown criterion: {unknown!r}")

    def train(self, mask: Mask, base: Vector, round_number: int, on_step: OnStep) -> LocalResult:
        """Train from the base for one round; return the kept values and the evaluations."""
        return self._train(mask, base, self._settings, round_number, on_step)

    def personalize(
        self, mask: Mask, values: Vector, rounds_done: int, on_step: OnStep
    ) -> LocalResult:
        """Train the final model on this site's data; test both models."""
        return self._train(mask, values, personal_settings(self._settings), rounds_done, on_step)

    def evaluate(self, mask: Mask, values: Vector) -> GlobalEvaluation:
        """Test a global model on the site's test split and validation split."""
        tested = self._test(mask, values)
        return GlobalEvaluation(tested, validate(self._model, self._task, self._shard))

    def _train(
        self, mask: Mask, base: Vector, settings: RunSettings, round_number: int, on_step: OnStep
    ) -> LocalResult:
        tested = self._test(mask, base)
        mean_loss = train_locally(
            self._model, self.manifest, mask, self._task, self._shard, settings, round_number,
            self._client_id, on_step,
        )  # fmt: skip
        personal = evaluate(self._model, self._task, self._shard)
        values = mask.gather(read_vector(self._model, self.manifest))
        return LocalResult(values, mean_loss, tested, personal)

    def _test(self, mask: Mask, values: Vector) -> Evaluation:
        write_vector(self._model, self.manifest, mask.scatter(values))
        return evaluate(self._model, self._task, self._shard)

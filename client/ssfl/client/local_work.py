"""The computation at a site: score, train, evaluate and personalize."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ssfl.client.memory import Items, StepMemory
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import batch_tensors, plain_batch
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import LearningError, ModelError
from ssfl.learning.evaluate import evaluate, validate
from ssfl.learning.first_batch import try_first_batch
from ssfl.learning.flatten import initial_weights, read_vector, write_vector
from ssfl.learning.load_task import LoadedTask
from ssfl.learning.masked_training import personal_settings, train_locally
from ssfl.learning.optimizer_state import StateMemory
from ssfl.learning.optimizers import optimizer_for
from ssfl.learning.saliency import whole_gradient
from ssfl.method.errors import SettingsError
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.image_settings import resolve_initialization
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.method.training_rules import TrainingRule
from ssfl.strategies.contract import Answer, ClientId, Received, ScoringRequest
from ssfl.strategies.registry import criterion_for, strategy_for
from ssfl.v1 import coordinator_pb2 as pb

Vector = npt.NDArray[np.float32]
OnStep = Callable[[int, int], None]


def scoring_request(work: pb.ScoreTask, whole: Vector, mask: Mask | None) -> ScoringRequest:
    """Return the scoring request of a task."""
    num_batches = max(1, work.num_batches)
    return ScoringRequest(
        whole, mask, work.criterion, num_batches, work.num_kept, work.scoring_epoch
    )


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
        with _explain_data_mismatch(run_manifest, description):
            network = task.build_model(settings, shard).to(device)
            if task.fit is None:  # raise now, not in the first round
                optimizer_for(list(network.parameters()), settings)
            elif strategy_for(settings).rule.needs_our_loop:
                raise ModelError(
                    f"strategy {settings.strategy} changes the steps of local training: it cannot "
                    "be combined with a task that has its own fit"
                )
            elif settings.optimizer_state == "keep":
                raise ModelError(
                    "--optimizer-state keep is not available for a task with its own fit, which "
                    "makes its optimizer: use restart"
                )
        manifest = manifest_of(
            network, description, own_weights=task.own_weights,
            initialization=resolve_initialization(settings.initialization, shard.input_shape),
        )  # fmt: skip
        if run_manifest and manifest.same_except_init(run_manifest):
            manifest = run_manifest
        initial = initial_weights(network, manifest, settings.seed)
        write_vector(network, manifest, initial)
        return cls(network, manifest, initial)


@contextmanager
def _explain_data_mismatch(run: Manifest | None, description: Mapping[str, Any]) -> Iterator[None]:
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
        self.task = task
        self.shard = shard
        self.settings = settings
        self.client_id = client_id
        self.network = model.network
        self.manifest = model.manifest
        self.initial = model.initial
        self.memory: StateMemory | None = None  # keeps the optimizer's state between rounds

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
        with _explain_data_mismatch(run_manifest, task.description(settings, shard)):
            try_first_batch(model.network, task, shard, settings.batch_size)
        return cls(task, shard, settings, client_id, model)

    def score(self, request: ScoringRequest) -> Vector:
        """Return the score of every masked weight; the largest scores are kept."""
        try:
            criterion = criterion_for(request.criterion)
        except SettingsError:
            raise ModelError(
                f"the coordinator asks for an unknown criterion: {request.criterion!r}"
            ) from None
        return criterion.score(self, request)

    def scoring_inputs(
        self, request: ScoringRequest
    ) -> tuple[nn.Module, Manifest, LoadedTask, Shard, RunSettings, str]:
        """Load the model to score; return what a scoring function needs."""
        mask, whole = request.mask, request.whole
        if mask is not None and self.settings.scoring_point == "masked":
            whole = mask.scatter(mask.gather(whole))
        write_vector(self.network, self.manifest, whole)
        return self.network, self.manifest, self.task, self.shard, self.settings, self.client_id

    def resting_weights(self, request: ScoringRequest) -> Vector | None:
        """Return the weights to score in place of the zeros off the mask; None: the loaded ones."""
        if request.mask is None or self.settings.scoring_point != "masked":
            return None
        return request.whole[: self.manifest.num_masked]

    def answer(
        self, received: Received, items: Items, on_step: OnStep
    ) -> tuple[Answer, dict[str, Vector | Mask]]:
        """Return the strategy's answer to a training step, and what it puts into memory."""
        self.memory = memory = StepMemory(items)
        half = strategy_for(self.settings).client()
        return half.train(received, self, memory, on_step), memory.puts

    def personal_model(
        self, received: Received, items: Items, on_step: OnStep
    ) -> tuple[Mask, LocalResult]:
        """Return this site's own model and its mask, and tests of it and of the global model.

        It is the model that the strategy kept or, without one, the final model. With
        `personalize_epochs`, the final model is first trained on this site's data, inside the
        site's own mask if it has one.
        """
        mask, base = received.mask, received.values
        strategy = strategy_for(self.settings)
        own = strategy.client().personal(received, self, StepMemory(items))
        if own is None and self.settings.personalize_epochs:
            mask, base = self.deployed(mask, base)
            own_mask = strategy.client_mask(ClientId(self.client_id), self.manifest)
            if own_mask is None:
                return mask, self.personalize(mask, base, received.round_number, on_step)
            tested, start = self.evaluate(mask, base), own_mask.gather(mask.scatter(base))
            trained = self.personalize(own_mask, start, received.round_number, on_step)
            return own_mask, replace(trained, base=tested)
        tested = self.evaluate_global(mask, base).evaluation
        if own is None:
            mask, base = self.deployed(mask, base)
            return mask, LocalResult(base, 0.0, tested, tested)
        return mask, LocalResult(own, 0.0, tested, self.evaluate(mask, own))

    def deployed(self, mask: Mask, values: Vector) -> tuple[Mask, Vector]:
        """Return the weights of a global model that are tested and served."""
        strategy = strategy_for(self.settings)
        if not strategy.has_other_weights:
            return mask, values
        model = strategy.deployed(ModelState(self.manifest, self.initial, mask, 1, values))
        assert model.mask is not None and model.values is not None
        return model.mask, model.values

    def train(
        self,
        mask: Mask,
        values: Vector,
        round_number: int,
        on_step: OnStep,
        rules: Sequence[TrainingRule] = (),
        epochs: range | None = None,
    ) -> LocalResult:
        """Test the values, train them for one round inside the mask, test the result."""
        return self._train(
            mask, values, self.settings, round_number, on_step, rules, epochs, self.memory
        )

    def personalize(
        self, mask: Mask, values: Vector, rounds_done: int, on_step: OnStep
    ) -> LocalResult:
        """Train the final model on this site's data; test it before and after."""
        return self._train(mask, values, personal_settings(self.settings), rounds_done, on_step)

    def evaluate(self, mask: Mask, values: Vector, split: str = "test") -> Evaluation:
        """Test values on the samples of a split."""
        write_vector(self.network, self.manifest, mask.scatter(values))
        return evaluate(self.network, self.task, self.shard, split)

    def evaluate_global(self, mask: Mask, values: Vector) -> GlobalEvaluation:
        """Test a global model on the site's test split and, if there is one, validation split."""
        tested = self.evaluate(*self.deployed(mask, values))
        return GlobalEvaluation(tested, validate(self.network, self.task, self.shard))

    def gradient(self, mask: Mask, values: Vector, round_number: int) -> Vector:
        """Return the gradient of every weight, (manifest.size,), on one batch of a round."""
        write_vector(self.network, self.manifest, mask.scatter(values))
        stream = self.stream("gradient", round_number)
        indices = plain_batch(self.shard.num_samples, self.settings.batch_size, stream)
        x, y = batch_tensors(self.shard.train_x, self.shard.train_y, indices, self.network)
        return whole_gradient(self.network, self.manifest, self.task, x, y)

    def stream(self, purpose: str, round_number: int) -> Stream:
        """Return the random stream of this client for a purpose in a round."""
        return Stream(self.settings.seed, purpose, round_number, self.client_id)

    def _train(
        self,
        mask: Mask,
        base: Vector,
        settings: RunSettings,
        round_number: int,
        on_step: OnStep,
        rules: Sequence[TrainingRule] = (),
        epochs: range | None = None,
        memory: StateMemory | None = None,
    ) -> LocalResult:
        tested = self.evaluate(mask, base)
        mean_loss = train_locally(
            self.network, self.manifest, mask, self.task, self.shard, settings, round_number,
            self.client_id, on_step, rules, epochs, memory,
        )  # fmt: skip
        personal = evaluate(self.network, self.task, self.shard)
        values = mask.gather(read_vector(self.network, self.manifest))
        return LocalResult(values, mean_loss, tested, personal)

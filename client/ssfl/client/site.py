"""What a site computes: its model, its data, and the work the coordinator asks for."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from ssfl.datasets.shards import Shard
from ssfl.learning.describe import manifest_of
from ssfl.learning.evaluate import Evaluation, evaluate
from ssfl.learning.first_batch import try_first_batch
from ssfl.learning.flatten import first_weights, read_vector, write_vector
from ssfl.learning.load_task import LoadedTask
from ssfl.learning.masked_training import train_locally
from ssfl.learning.saliency import score_locally
from ssfl.learning.trained import Trained
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings

Vector = npt.NDArray[np.float32]
OnStep = Callable[[int, int], None]


class Site:
    """One client's half of the method."""

    def __init__(
        self,
        task: LoadedTask,
        shard: Shard,
        settings: RunSettings,
        client_id: str,
        device: torch.device,
        run_manifest: Manifest | None = None,
    ) -> None:
        """Build the model; where its tensors start is up to the run, once that is known."""
        self._task = task
        self._shard = shard
        self._settings = settings
        self._client_id = client_id
        self._model = task.build_model(settings, shard).to(device)
        description = task.description(settings, shard)
        manifest = manifest_of(self._model, description, own_weights=task.own_weights)
        if run_manifest and manifest.differs_only_in_rules(run_manifest):
            manifest = run_manifest
        self.manifest = manifest
        self.initial = first_weights(self._model, self.manifest, settings.seed)
        write_vector(self._model, self.manifest, self.initial)
        try_first_batch(self._model, task, shard, settings.batch_size)

    def score(self, initial: Vector) -> Vector:
        """Return the saliency of every masked weight at the initial model."""
        write_vector(self._model, self.manifest, initial)
        return score_locally(
            self._model, self.manifest, self._task, self._shard, self._settings, self._client_id
        )

    def train(self, mask: Mask, base: Vector, round_number: int, on_step: OnStep) -> Trained:
        """Return the values after a round of local training from the base."""
        tested = self.evaluate(mask, base)
        report = train_locally(
            self._model, self.manifest, mask, self._task, self._shard, self._settings,
            round_number, self._client_id, on_step,
        )  # fmt: skip
        personal = evaluate(self._model, self._task, self._shard)
        values = mask.gather(read_vector(self._model, self.manifest))
        return Trained(values, report.mean_loss, tested, personal)

    def evaluate(self, mask: Mask, values: Vector) -> Evaluation:
        """Test a global model on the site's test split."""
        write_vector(self._model, self.manifest, mask.scatter(values))
        return evaluate(self._model, self._task, self._shard)

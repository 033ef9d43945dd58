"""A client without a coordinator to call: what it holds, and its work coded as it would be sent."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ssfl.client.coding import EncodedPayload, write_scores, write_update
from ssfl.client.local_work import GlobalEvaluation, Vector
from ssfl.learning.evaluate import Evaluation
from ssfl.learning.trained import LocalResult
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId
from ssfl.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client has to say to a task."""

    report: Mapping[str, Any]  # for the history
    coded: EncodedPayload | None = None  # scores or values; a test has none


class SimulatedClient:
    """One client: `ssfl.client.agent` without the calls, the waiting and the disk."""

    def __init__(
        self, name: ClientId, num_samples: int, initial_digest: bytes, settings: RunSettings
    ) -> None:
        self.name = name
        self.num_samples = num_samples
        # What it holds, as it would tell when it asks for a task.
        self.request = pb.NextTaskRequest(initial_digest=initial_digest)
        self.residual: Vector | None = None  # lossy runs: what its updates have lost so far
        self._residual_mask = b""
        self._settings = settings

    def hold(self, task: pb.Task, model: ModelState) -> None:
        """Note what came with a task."""
        self.request.initial_digest = model.initial_digest
        if task.HasField("score"):
            self.request.scored_digest = task.score.initial_digest
        if model.mask is not None:
            self.request.mask_digest = model.mask.digest
            self.request.base_digest = model.base_digest

    def scored(self, task: pb.Task, scores: Vector) -> Answer:
        """Return the answer to SCORE."""
        return Answer({}, write_scores(scores, task.score, self._settings, self.name))

    def trained(self, task: pb.Task, trained: LocalResult, model: ModelState) -> Answer:
        """Return the answer to TRAIN."""
        assert model.mask is not None and model.values is not None
        residual = self.residual if self._residual_mask == model.mask.digest else None
        coded = write_update(
            trained.values, model.values, task.train, self._settings, self.name, residual
        )
        if coded.residual is not None:
            self.residual, self._residual_mask = coded.residual, model.mask.digest
        report = {
            "training_loss": trained.training_loss,
            "coding_error": coded.error,
            "evaluation": _told(trained.base),
            "personal": _told(trained.personal),
        }
        return Answer(report, coded)

    def evaluated(self, tested: GlobalEvaluation) -> Answer:
        """Return the answer to EVALUATE."""
        report = {"evaluation": _told(tested.evaluation)}
        if tested.validation is not None:
            report["validation"] = _told(tested.validation)
        return Answer(report)

    def personalized(self, tested: Evaluation, own: Evaluation) -> Answer:
        """Return the answer to PERSONALIZE."""
        return Answer({"evaluation": _told(tested), "personal": _told(own)})


def _told(tested: Evaluation) -> dict[str, Any]:
    """Return an evaluation as the history keeps it."""
    return {**asdict(tested), "metric_sums": dict(sorted(tested.metric_sums.items()))}

"""A simulated client: the digests it holds, and its results encoded as for sending."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ssfl.client.coding import EncodedPayload, write_scores, write_update
from ssfl.client.local_work import GlobalEvaluation, Vector
from ssfl.learning.evaluate import Evaluation
from ssfl.learning.masked_training import LocalResult
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId
from ssfl.simulator.executors import masked
from ssfl.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, eq=False)
class ClientResult:
    """A client's result of a task."""

    report: Mapping[str, Any]  # for the history
    coded: EncodedPayload | None = None  # scores or values; an evaluation has none


class SimulatedClient:
    """A client: `ssfl.client.agent` without calls, waiting and files."""

    def __init__(
        self, name: ClientId, num_samples: int, initial_digest: bytes, settings: RunSettings
    ) -> None:
        self.name = name
        self.num_samples = num_samples
        # The digests it holds, as a real client sends them when it asks for a task.
        self.request = pb.NextTaskRequest(initial_digest=initial_digest)
        self.residual: Vector | None = None  # lossy runs: the error of its updates so far
        self._residual_mask = b""
        self._settings = settings

    def hold(self, task: pb.Task, model: ModelState) -> None:
        """Record the model that came with a task."""
        self.request.initial_digest = model.initial_digest
        if task.HasField("score"):
            self.request.scored_digest = task.score.initial_digest
        if model.mask is not None:
            self.request.mask_digest = model.mask.digest
            self.request.base_digest = model.base_digest

    def report_scores(self, task: pb.Task, scores: Vector) -> ClientResult:
        """Return the result of SCORE."""
        return ClientResult({}, write_scores(scores, task.score, self._settings, self.name))

    def report_update(self, task: pb.Task, trained: LocalResult, model: ModelState) -> ClientResult:
        """Return the result of TRAIN."""
        mask, values = masked(model)
        residual = self.residual if self._residual_mask == mask.digest else None
        coded = write_update(
            trained.values, values, task.train, self._settings, self.name, residual
        )
        if coded.residual is not None:
            self.residual, self._residual_mask = coded.residual, mask.digest
        report = {
            "training_loss": trained.training_loss,
            "coding_error": coded.error,
            "evaluation": _history_entry(trained.base),
            "personal": _history_entry(trained.personal),
        }
        return ClientResult(report, coded)

    def report_evaluation(self, tested: GlobalEvaluation) -> ClientResult:
        """Return the result of EVALUATE."""
        report = {"evaluation": _history_entry(tested.evaluation)}
        if tested.validation is not None:
            report["validation"] = _history_entry(tested.validation)
        return ClientResult(report)

    def report_personal(self, tested: Evaluation, own: Evaluation) -> ClientResult:
        """Return the result of PERSONALIZE."""
        return ClientResult({"evaluation": _history_entry(tested), "personal": _history_entry(own)})


def _history_entry(tested: Evaluation) -> dict[str, Any]:
    """Return an evaluation in the form of the history."""
    return {**asdict(tested), "metric_sums": dict(sorted(tested.metric_sums.items()))}

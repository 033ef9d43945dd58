"""A simulated client: the digests it holds, and its results encoded as for sending."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ssfl.client.coding import EncodedPayload, EncodedUpdate, write_reply, write_scores
from ssfl.client.local_work import GlobalEvaluation, Vector
from ssfl.client.memory import Items, residual_items, residual_of
from ssfl.method.evaluation import Evaluation
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import Answer, ClientId, Received
from ssfl.strategies.registry import strategy_for
from ssfl.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, eq=False)
class ClientResult:
    """A client's result of a task."""

    report: Mapping[str, Any]  # for the history
    scores: EncodedPayload | None = None
    update: EncodedUpdate | None = None


class SimulatedClient:
    """A client: `ssfl.client.agent` without calls, waiting and files."""

    def __init__(
        self, name: ClientId, num_samples: int, initial_digest: bytes, settings: RunSettings
    ) -> None:
        self.name = name
        self.num_samples = num_samples
        # The digests it holds, as a real client sends them when it asks for a task.
        self.request = pb.NextTaskRequest(initial_digest=initial_digest)
        self.memory: dict[str, Vector | Mask] = {}  # what it keeps between its steps
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

    def report_update(
        self, task: pb.Task, received: Received, reply: Answer, puts: Items, manifest: Manifest
    ) -> ClientResult:
        """Return the result of TRAIN; every step counts, so what it puts into memory stays."""
        sent_mask = received.mask if reply.bits is None else reply.bits
        residual = residual_of({**self.memory, **puts}, sent_mask)
        coded = write_reply(
            reply, received, task.train, self._settings, manifest, self.name, residual
        )
        self.memory |= {**puts, **residual_items(coded.residual, sent_mask)}
        if reply.bits is not None and strategy_for(self._settings).has_own_masks:
            self.request.mask_digest = reply.bits.digest
        trained = reply.trained
        report = {
            "training_loss": trained.training_loss,
            "coding_error": coded.error,
            "evaluation": _history_entry(trained.base),
            "personal": _history_entry(trained.personal),
        }
        return ClientResult(report, update=coded)

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

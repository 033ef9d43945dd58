"""A client without a coordinator to call: the site's work, coded as it would be sent."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ssfl.client.coding import Coded, write_scores, write_update
from ssfl.client.site import Site, Vector
from ssfl.learning.evaluate import Evaluation
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId
from ssfl.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client has to say to a task."""

    report: Mapping[str, Any]  # for the history
    coded: Coded | None = None  # scores or values; an evaluation has none


class SimulatedClient:
    """One client: `ssfl.client.agent` without the calls, the waiting and the disk."""

    def __init__(self, name: ClientId, site: Site, num_samples: int, settings: RunSettings) -> None:
        self.name = name
        self.site = site
        self.num_samples = num_samples
        # What it holds, as it would tell when it asks for a task.
        self.request = pb.NextTaskRequest(initial_digest=values_digest(site.initial))
        self._settings = settings
        self._residual: Vector | None = None  # lossy runs: what its updates have lost so far

    def answer(self, task: pb.Task, model: ModelState) -> Answer:
        """Do what a task asks, with the model that comes with it."""
        began_s = time.perf_counter()
        self._hold(task, model)
        match task.WhichOneof("work"):
            case "score":
                done = self._score(task.score, model)
            case "train":
                done = self._train(task.train, model)
            case "evaluate":
                done = self._evaluate(model)
            case _:
                done = Answer({})  # the final model: nothing to do
        return Answer({**done.report, "work_s": time.perf_counter() - began_s}, done.coded)

    def _hold(self, task: pb.Task, model: ModelState) -> None:
        self.request.initial_digest = model.initial_digest
        if not task.HasField("score"):
            self.request.mask_digest = model.mask.digest if model.mask else b""
            self.request.base_digest = model.base_digest

    def _score(self, work: pb.ScoreTask, model: ModelState) -> Answer:
        scores = self.site.score(model.initial)
        return Answer({}, write_scores(scores, work, self._settings, self.name))

    def _train(self, work: pb.TrainTask, model: ModelState) -> Answer:
        assert model.mask is not None and model.values is not None
        trained = self.site.train(model.mask, model.values, work.round_number, _ignore)
        coded = write_update(
            trained.values, model.values, work, self._settings, self.name, self._residual
        )
        if coded.residual is not None:
            self._residual = coded.residual
        report = {
            "training_loss": trained.training_loss,
            "coding_error": coded.error,
            "evaluation": _told(trained.base),
            "personal": _told(trained.personal),
        }
        return Answer(report, coded)

    def _evaluate(self, model: ModelState) -> Answer:
        assert model.mask is not None and model.values is not None
        return Answer({"evaluation": _told(self.site.evaluate(model.mask, model.values))})


def _told(tested: Evaluation) -> dict[str, Any]:
    """Return an evaluation as the history keeps it."""
    return {**asdict(tested), "metric_sums": dict(sorted(tested.metric_sums.items()))}


def _ignore(_step: int, _steps: int) -> None:
    """Nobody watches the steps of a round."""

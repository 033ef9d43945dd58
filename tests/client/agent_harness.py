"""An agent with a fake site, and the replies of a scripted coordinator."""

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from grpc import StatusCode

from client.fakes import INITIAL, MANIFEST, FakeCall, FakeRpcError, FakeStub
from ssfl.client.agent import Agent, Identity
from ssfl.client.client_stats import ClientStats
from ssfl.client.connection import ReconnectBackoff
from ssfl.client.local_state import LocalState
from ssfl.client.local_work import GlobalEvaluation, Vector
from ssfl.client.memory import Items
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.server.broadcast.tasks import settings_to_message
from ssfl.strategies.contract import Answer, Received, ScoringRequest
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, transfer_pb2

SETTINGS = RunSettings(model="mlp")
MASK = Mask.from_bools(np.arange(20) % 2 == 0)
VALUES = np.arange(14, dtype=np.float32)  # ten kept, four biases


class FakeSite:
    """A site whose work is plain arithmetic."""

    delta = np.float32(1)  # training adds it to every value
    validation: Evaluation | None = None  # on the validation split

    def __init__(self, settings: RunSettings, manifest: Manifest = MANIFEST) -> None:
        self.settings = settings
        self.manifest = manifest
        self.initial = INITIAL
        self.trained_rounds: list[int] = []
        self.scored: list[ScoringRequest] = []

    def score(self, request: ScoringRequest) -> Vector:
        self.scored.append(request)
        return request.whole[:20] * 2

    def train(
        self, mask: Mask, base: Vector, round_number: int, on_step: Callable[[int, int], None]
    ) -> LocalResult:
        assert mask.digest == MASK.digest
        on_step(1, 1)
        self.trained_rounds.append(round_number)
        return LocalResult(base + self.delta, 0.5, Evaluation(1, 2, 3.0), Evaluation(2, 2, 1.0))

    def answer(
        self, received: Received, _items: Items, on_step: Callable[[int, int], None]
    ) -> tuple[Answer, dict[str, Any]]:
        trained = self.train(received.mask, received.values, received.round_number, on_step)
        return Answer(trained), {}

    def personal_model(
        self, received: Received, _items: Items, on_step: Callable[[int, int], None]
    ) -> tuple[Mask, LocalResult]:
        mask, values = received.mask, received.values
        return mask, self.personalize(mask, values, received.round_number, on_step)

    def deployed(self, mask: Mask, values: Vector) -> tuple[Mask, Vector]:
        return mask, values

    def evaluate_global(self, mask: Mask, values: Vector) -> GlobalEvaluation:
        assert mask.num_kept + 4 == values.size
        return GlobalEvaluation(Evaluation(1, 2, 3.0), self.validation)

    def personalize(
        self, mask: Mask, values: Vector, rounds_done: int, on_step: Callable[[int, int], None]
    ) -> LocalResult:
        assert mask.num_kept + 4 == values.size
        on_step(1, 1)
        own = values + np.float32(rounds_done)
        return LocalResult(own, 0.5, Evaluation(1, 2, 3.0), Evaluation(2, 2, 1.0))


class AgentHarness:
    """An agent, the sites it built and the calls it made."""

    def __init__(self, folder: Path, stub: FakeStub) -> None:
        self.stub = stub
        self.folder = folder
        self.local = LocalState(folder / "state")
        self.sites: list[FakeSite] = []
        self.pauses: list[float] = []
        self.manifest = MANIFEST
        identity = Identity("ann", 40, "cpu", {})
        self.stats = ClientStats()
        backoff = ReconnectBackoff(
            "there:1", 600.0, lambda: sum(self.pauses), self.pauses.append, stats=self.stats
        )
        self.agent = Agent(
            stub, identity, self.local, backoff, self._build, folder / "out", self.stats
        )

    def _build(self, settings: RunSettings, _known: Manifest | None) -> Any:
        self.sites.append(FakeSite(settings, self.manifest))
        return self.sites[-1]

    @property
    def order(self) -> list[str]:
        return [name for name, _ in self.stub.requests]


def joined(
    session: int, run_id: str = "run-1", settings: RunSettings = SETTINGS
) -> pb.JoinResponse:
    return pb.JoinResponse(run_id=run_id, session=session, settings=settings_to_message(settings))


def payload(data: bytes, encoding: Any) -> transfer_pb2.Payload:
    digest = hashlib.sha256(data).digest()
    return transfer_pb2.Payload(encoding=encoding, num_bytes=len(data), digest=digest)


def call_of(task: pb.Task, data: bytes = b"") -> FakeCall:
    responses = [pb.NextTaskResponse(task=task)]
    if data:
        chunk = transfer_pb2.Chunk(offset=0, data=data, crc32=zlib.crc32(data))
        responses.append(pb.NextTaskResponse(chunk=chunk))
    return FakeCall(responses)


def model_fields(values: Vector = VALUES) -> dict[str, Any]:
    """Return the fields of a task that carry mask and base."""
    mask = mask_pb2.MaskBroadcast(
        mask_digest=MASK.digest,
        mask_epoch=1,
        num_kept=MASK.num_kept,
        mask=payload(MASK.bits, transfer_pb2.ENCODING_BITMASK),
    )
    base = payload(values.tobytes(), transfer_pb2.ENCODING_VALUES_ONLY)
    return {"mask": mask, "base_digest": values_digest(values), "base": base}


MODEL = MASK.bits + VALUES.tobytes()
FINISH = pb.Task(task_digest=b"end", finish=pb.FinishTask(**model_fields()))
NO_MODEL = pb.Task(task_digest=b"end", finish=pb.FinishTask(stopped=True))


def train_task(**changes: Any) -> pb.Task:
    work = pb.TrainTask(**{"round_number": 2, "upload_granted": True, **model_fields(), **changes})
    return pb.Task(task_digest=b"train", step=5, train=work)


def accepted() -> FakeCall:
    """Return the call of an accepted upload; it does not read the chunks."""
    receipt = transfer_pb2.Receipt(outcome=transfer_pb2.OUTCOME_ACCEPTED)
    return FakeCall([pb.SendUpdateResponse(receipt=receipt)])


def refusal(code: StatusCode, reason: str, details: str = "") -> FakeRpcError:
    return FakeRpcError(code, details, reason)


JOIN_AGAIN = refusal(StatusCode.FAILED_PRECONDITION, "join_again")
GONE = FakeRpcError(StatusCode.UNAVAILABLE, "socket closed")

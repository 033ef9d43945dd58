"""A simulated client: the coding error that it keeps belongs to the mask of its values."""

import numpy as np

from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.simulator.clients import SimulatedClient
from ssfl.strategies.contract import CODING_ERROR_MASK, Answer, ClientId, Received
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2

SETTINGS = RunSettings(strategy="topk-weights", value_type="int8")
MANIFEST = Manifest((TensorSpec("w", (16,), Role.MASKED, Init("zeros")),))
ALL = Mask.full(16)
FIRST, SECOND = (Mask.from_bools(np.arange(16) % 4 == place) for place in (0, 1))
TESTED = Evaluation(1, 2, 0.5)


def client() -> SimulatedClient:
    return SimulatedClient(ClientId("c1"), 10, b"initial", SETTINGS)


def sent(site: SimulatedClient, mask: Mask, number: int) -> bytes:
    """Return the bytes of an update with values on a mask of the client's own."""
    encoding = transfer_pb2.ENCODING_INT8
    task = pb.Task(train=pb.TrainTask(round_number=number, update_encoding=encoding))
    values = np.linspace(0.1, 1.0, mask.num_kept).astype(np.float32) ** 3
    base = np.zeros(ALL.num_kept, dtype=np.float32)
    received = Received(ALL, base, number)
    answer = Answer(LocalResult(values, 0.5, TESTED, TESTED), mask)
    result = site.report_update(task, received, answer, {}, MANIFEST)
    assert result.update is not None
    return bytes(result.update.data)


def test_a_coding_error_is_added_to_the_next_update_on_the_same_mask_alone() -> None:
    kept = client()
    sent(kept, FIRST, 0)
    assert kept.memory[CODING_ERROR_MASK] == FIRST
    assert sent(kept, FIRST, 1) != sent(client(), FIRST, 1)

    moved = client()
    sent(moved, FIRST, 0)
    assert sent(moved, SECOND, 1) == sent(client(), SECOND, 1)
    assert moved.memory[CODING_ERROR_MASK] == SECOND

"""Between what an agent knows and what its messages say."""

from typing import Any

from ssfl.client.local_work import ScoringRequest, Vector
from ssfl.learning.evaluate import Evaluation
from ssfl.method.mask import Mask
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2, update_pb2


def scoring_request(work: pb.ScoreTask, whole: Vector, mask: Mask | None) -> ScoringRequest:
    """Return what a task asks to be scored."""
    return ScoringRequest(
        whole,
        mask,
        work.criterion,
        max(1, work.num_batches),
        work.num_kept,
        work.scoring_epoch,
    )


def evaluation_message(tested: Evaluation) -> update_pb2.Evaluation:
    return update_pb2.Evaluation(
        correct=tested.correct,
        total=tested.total,
        loss_sum=tested.loss_sum,
        metric_sums=tested.metric_sums,
    )


def enum_name(value: int, enum: Any = transfer_pb2.Outcome) -> str:
    prefix = enum.DESCRIPTOR.name.upper() + "_"
    return str(enum.Name(value)).removeprefix(prefix).lower()

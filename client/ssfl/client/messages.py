"""Conversion between the agent's values and protobuf messages."""

from typing import Any

from ssfl.client.local_work import ScoringRequest, Vector
from ssfl.learning.evaluate import Evaluation
from ssfl.method.mask import Mask
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2, update_pb2


def scoring_request(work: pb.ScoreTask, whole: Vector, mask: Mask | None) -> ScoringRequest:
    """Return the scoring request of a task."""
    return ScoringRequest(
        whole,
        mask,
        work.criterion,
        max(1, work.num_batches),
        work.num_kept,
        work.scoring_epoch,
    )


def evaluation_message(evaluation: Evaluation) -> update_pb2.Evaluation:
    return update_pb2.Evaluation(
        correct=evaluation.correct,
        total=evaluation.total,
        loss_sum=evaluation.loss_sum,
        metric_sums=evaluation.metric_sums,
    )


def enum_name(value: int, enum: Any = transfer_pb2.Outcome) -> str:
    """Return the name of an enum value in lower case, without the prefix of its enum."""
    prefix = enum.DESCRIPTOR.name.upper() + "_"
    return str(enum.Name(value)).removeprefix(prefix).lower()

"""Between what an agent knows and what its messages say."""

from dataclasses import fields
from typing import Any

from ssfl.client.errors import Refused
from ssfl.client.site import Scoring, Vector
from ssfl.learning.evaluate import Evaluation
from ssfl.method.errors import SettingsError
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import settings_pb2, transfer_pb2, update_pb2


def read_settings(message: settings_pb2.RunSettings) -> RunSettings:
    """Return the run's settings as they came in Join; raise Refused if they cannot be.

    A choice that an older coordinator does not know of has its default.
    """
    told = {one.name: getattr(message, one.name) for one in fields(RunSettings)}
    choices = [one.name for one in fields(RunSettings) if one.metadata.get("choices")]
    settings = RunSettings(**{k: v for k, v in told.items() if v or k not in choices})
    try:
        settings.validate()
    except SettingsError as error:
        raise Refused(f"the run's settings are not for this version: {error}") from error
    return settings


def scoring(work: pb.ScoreTask, whole: Vector, mask: Mask | None) -> Scoring:
    """Return what a task asks to be scored."""
    return Scoring(
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


def word(value: int, enum: Any = transfer_pb2.Outcome) -> str:
    prefix = enum.DESCRIPTOR.name.upper() + "_"
    return str(enum.Name(value)).removeprefix(prefix).lower()

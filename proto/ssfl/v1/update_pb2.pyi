from ssfl.v1 import mask_pb2 as _mask_pb2
from ssfl.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SparseUpdate(_message.Message):
    __slots__ = ("mask_digest", "mask_epoch", "base_digest", "step", "round_number", "attempt", "num_samples", "values", "base_evaluation", "personal_evaluation", "training_loss", "work_s", "own_mask", "vectors", "numbers", "coding_error")
    MASK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MASK_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROUND_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BASE_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    TRAINING_LOSS_FIELD_NUMBER: _ClassVar[int]
    WORK_S_FIELD_NUMBER: _ClassVar[int]
    OWN_MASK_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    CODING_ERROR_FIELD_NUMBER: _ClassVar[int]
    mask_digest: bytes
    mask_epoch: int
    base_digest: bytes
    step: int
    round_number: int
    attempt: int
    num_samples: int
    values: _transfer_pb2.Payload
    base_evaluation: Evaluation
    personal_evaluation: Evaluation
    training_loss: float
    work_s: float
    own_mask: _mask_pb2.MaskBroadcast
    vectors: _containers.RepeatedCompositeFieldContainer[_transfer_pb2.NamedVector]
    numbers: _containers.RepeatedScalarFieldContainer[float]
    coding_error: float
    def __init__(self, mask_digest: _Optional[bytes] = ..., mask_epoch: _Optional[int] = ..., base_digest: _Optional[bytes] = ..., step: _Optional[int] = ..., round_number: _Optional[int] = ..., attempt: _Optional[int] = ..., num_samples: _Optional[int] = ..., values: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ..., base_evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., personal_evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., training_loss: _Optional[float] = ..., work_s: _Optional[float] = ..., own_mask: _Optional[_Union[_mask_pb2.MaskBroadcast, _Mapping]] = ..., vectors: _Optional[_Iterable[_Union[_transfer_pb2.NamedVector, _Mapping]]] = ..., numbers: _Optional[_Iterable[float]] = ..., coding_error: _Optional[float] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("correct", "total", "loss_sum", "metric_sums")
    class MetricSumsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    METRIC_SUMS_FIELD_NUMBER: _ClassVar[int]
    correct: int
    total: int
    loss_sum: float
    metric_sums: _containers.ScalarMap[str, float]
    def __init__(self, correct: _Optional[int] = ..., total: _Optional[int] = ..., loss_sum: _Optional[float] = ..., metric_sums: _Optional[_Mapping[str, float]] = ...) -> None: ...

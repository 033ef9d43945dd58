from ssfl.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SaliencyReport(_message.Message):
    __slots__ = ("manifest_digest", "initial_digest", "step", "num_samples", "scores", "work_s")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INITIAL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    WORK_S_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    initial_digest: bytes
    step: int
    num_samples: int
    scores: _transfer_pb2.Payload
    work_s: float
    def __init__(self, manifest_digest: _Optional[bytes] = ..., initial_digest: _Optional[bytes] = ..., step: _Optional[int] = ..., num_samples: _Optional[int] = ..., scores: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ..., work_s: _Optional[float] = ...) -> None: ...

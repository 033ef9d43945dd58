from ssfl.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MaskBroadcast(_message.Message):
    __slots__ = ("mask_digest", "mask_epoch", "num_kept", "all_kept", "mask", "from_seed")
    MASK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MASK_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_KEPT_FIELD_NUMBER: _ClassVar[int]
    ALL_KEPT_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    FROM_SEED_FIELD_NUMBER: _ClassVar[int]
    mask_digest: bytes
    mask_epoch: int
    num_kept: int
    all_kept: bool
    mask: _transfer_pb2.Payload
    from_seed: bool
    def __init__(self, mask_digest: _Optional[bytes] = ..., mask_epoch: _Optional[int] = ..., num_kept: _Optional[int] = ..., all_kept: bool = ..., mask: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ..., from_seed: bool = ...) -> None: ...

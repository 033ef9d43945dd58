from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_VALUES_ONLY: _ClassVar[Encoding]
    ENCODING_DENSE: _ClassVar[Encoding]
    ENCODING_BITMASK: _ClassVar[Encoding]
    ENCODING_BITMASK_ZSTD: _ClassVar[Encoding]
    ENCODING_REFERENCE: _ClassVar[Encoding]
    ENCODING_BFLOAT16: _ClassVar[Encoding]
    ENCODING_INT8: _ClassVar[Encoding]
    ENCODING_GRID: _ClassVar[Encoding]
    ENCODING_SCORES: _ClassVar[Encoding]
    ENCODING_BITMASK_SORTED: _ClassVar[Encoding]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_ACCEPTED: _ClassVar[Outcome]
    OUTCOME_ALREADY_ACCEPTED: _ClassVar[Outcome]
    OUTCOME_STEP_CLOSED: _ClassVar[Outcome]
ENCODING_UNSPECIFIED: Encoding
ENCODING_VALUES_ONLY: Encoding
ENCODING_DENSE: Encoding
ENCODING_BITMASK: Encoding
ENCODING_BITMASK_ZSTD: Encoding
ENCODING_REFERENCE: Encoding
ENCODING_BFLOAT16: Encoding
ENCODING_INT8: Encoding
ENCODING_GRID: Encoding
ENCODING_SCORES: Encoding
ENCODING_BITMASK_SORTED: Encoding
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_ACCEPTED: Outcome
OUTCOME_ALREADY_ACCEPTED: Outcome
OUTCOME_STEP_CLOSED: Outcome

class Chunk(_message.Message):
    __slots__ = ("offset", "data", "crc32")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    crc32: int
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32: _Optional[int] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("encoding", "num_bytes", "digest", "reference_digest")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    encoding: Encoding
    num_bytes: int
    digest: bytes
    reference_digest: bytes
    def __init__(self, encoding: _Optional[_Union[Encoding, str]] = ..., num_bytes: _Optional[int] = ..., digest: _Optional[bytes] = ..., reference_digest: _Optional[bytes] = ...) -> None: ...

class NamedVector(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: Payload
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("ahead",)
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    ahead: int
    def __init__(self, ahead: _Optional[int] = ...) -> None: ...

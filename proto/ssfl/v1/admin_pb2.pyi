from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("run_id", "phase", "waiting_for", "rounds_done", "rounds_all", "mask_epoch", "num_kept", "num_masked", "num_values", "clients", "accuracy", "seconds_left", "ledger", "peak_memory_bytes", "model_digest", "out_dir", "delivered", "loss", "metrics", "refusals", "stall", "paused", "refresh_asked")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_ALL_FIELD_NUMBER: _ClassVar[int]
    MASK_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_KEPT_FIELD_NUMBER: _ClassVar[int]
    NUM_MASKED_FIELD_NUMBER: _ClassVar[int]
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    OUT_DIR_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    STALL_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    REFRESH_ASKED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    phase: str
    waiting_for: str
    rounds_done: int
    rounds_all: int
    mask_epoch: int
    num_kept: int
    num_masked: int
    num_values: int
    clients: _containers.RepeatedCompositeFieldContainer[ClientStatus]
    accuracy: float
    seconds_left: float
    ledger: _containers.RepeatedCompositeFieldContainer[LedgerEntry]
    peak_memory_bytes: int
    model_digest: bytes
    out_dir: str
    delivered: bool
    loss: float
    metrics: _containers.ScalarMap[str, float]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusals]
    stall: Stall
    paused: bool
    refresh_asked: bool
    def __init__(self, run_id: _Optional[str] = ..., phase: _Optional[str] = ..., waiting_for: _Optional[str] = ..., rounds_done: _Optional[int] = ..., rounds_all: _Optional[int] = ..., mask_epoch: _Optional[int] = ..., num_kept: _Optional[int] = ..., num_masked: _Optional[int] = ..., num_values: _Optional[int] = ..., clients: _Optional[_Iterable[_Union[ClientStatus, _Mapping]]] = ..., accuracy: _Optional[float] = ..., seconds_left: _Optional[float] = ..., ledger: _Optional[_Iterable[_Union[LedgerEntry, _Mapping]]] = ..., peak_memory_bytes: _Optional[int] = ..., model_digest: _Optional[bytes] = ..., out_dir: _Optional[str] = ..., delivered: bool = ..., loss: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., refusals: _Optional[_Iterable[_Union[Refusals, _Mapping]]] = ..., stall: _Optional[_Union[Stall, _Mapping]] = ..., paused: bool = ..., refresh_asked: bool = ...) -> None: ...

class Stall(_message.Message):
    __slots__ = ("reason", "missing", "unblock", "seconds")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    UNBLOCK_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    missing: _containers.RepeatedCompositeFieldContainer[ClientStatus]
    unblock: str
    seconds: float
    def __init__(self, reason: _Optional[str] = ..., missing: _Optional[_Iterable[_Union[ClientStatus, _Mapping]]] = ..., unblock: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Refusals(_message.Message):
    __slots__ = ("client_id", "reason", "count")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    reason: str
    count: int
    def __init__(self, client_id: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ClientStatus(_message.Message):
    __slots__ = ("client_id", "num_samples", "state", "last_seen_s", "steps_done", "steps_all")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_ALL_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    num_samples: int
    state: str
    last_seen_s: float
    steps_done: int
    steps_all: int
    def __init__(self, client_id: _Optional[str] = ..., num_samples: _Optional[int] = ..., state: _Optional[str] = ..., last_seen_s: _Optional[float] = ..., steps_done: _Optional[int] = ..., steps_all: _Optional[int] = ...) -> None: ...

class LedgerEntry(_message.Message):
    __slots__ = ("phase", "direction", "payload_bytes", "message_bytes", "encoding", "socket_bytes")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SOCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    phase: str
    direction: str
    payload_bytes: int
    message_bytes: int
    encoding: str
    socket_bytes: int
    def __init__(self, phase: _Optional[str] = ..., direction: _Optional[str] = ..., payload_bytes: _Optional[int] = ..., message_bytes: _Optional[int] = ..., encoding: _Optional[str] = ..., socket_bytes: _Optional[int] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("history_json",)
    HISTORY_JSON_FIELD_NUMBER: _ClassVar[int]
    history_json: str
    def __init__(self, history_json: _Optional[str] = ...) -> None: ...

class StartRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartRunResponse(_message.Message):
    __slots__ = ("num_clients", "was_started")
    NUM_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    WAS_STARTED_FIELD_NUMBER: _ClassVar[int]
    num_clients: int
    was_started: bool
    def __init__(self, num_clients: _Optional[int] = ..., was_started: bool = ...) -> None: ...

class PauseRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseRunResponse(_message.Message):
    __slots__ = ("was_paused", "rounds_done")
    WAS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    was_paused: bool
    rounds_done: int
    def __init__(self, was_paused: bool = ..., rounds_done: _Optional[int] = ...) -> None: ...

class ResumeRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRunResponse(_message.Message):
    __slots__ = ("was_paused",)
    WAS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    was_paused: bool
    def __init__(self, was_paused: bool = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RefreshMaskRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RefreshMaskResponse(_message.Message):
    __slots__ = ("mask_epoch", "rounds_done")
    MASK_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    mask_epoch: int
    rounds_done: int
    def __init__(self, mask_epoch: _Optional[int] = ..., rounds_done: _Optional[int] = ...) -> None: ...

class RemoveClientRequest(_message.Message):
    __slots__ = ("client_id", "readmit")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    READMIT_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    readmit: bool
    def __init__(self, client_id: _Optional[str] = ..., readmit: bool = ...) -> None: ...

class RemoveClientResponse(_message.Message):
    __slots__ = ("was_member", "was_removed")
    WAS_MEMBER_FIELD_NUMBER: _ClassVar[int]
    WAS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    was_member: bool
    was_removed: bool
    def __init__(self, was_member: bool = ..., was_removed: bool = ...) -> None: ...

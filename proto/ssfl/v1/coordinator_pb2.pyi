from ssfl.v1 import mask_pb2 as _mask_pb2
from ssfl.v1 import saliency_pb2 as _saliency_pb2
from ssfl.v1 import settings_pb2 as _settings_pb2
from ssfl.v1 import transfer_pb2 as _transfer_pb2
from ssfl.v1 import update_pb2 as _update_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeaveReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEAVE_REASON_UNSPECIFIED: _ClassVar[LeaveReason]
    LEAVE_REASON_FINISHED: _ClassVar[LeaveReason]
    LEAVE_REASON_STOPPING: _ClassVar[LeaveReason]
LEAVE_REASON_UNSPECIFIED: LeaveReason
LEAVE_REASON_FINISHED: LeaveReason
LEAVE_REASON_STOPPING: LeaveReason

class Caller(_message.Message):
    __slots__ = ("run_id", "client_id", "session")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    client_id: str
    session: int
    def __init__(self, run_id: _Optional[str] = ..., client_id: _Optional[str] = ..., session: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("protocol_version", "client_id", "token", "num_samples", "manifest_digest", "manifest", "fingerprint", "class_counts", "encodings", "software", "labels", "strategy")
    class ClassCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    client_id: str
    token: bytes
    num_samples: int
    manifest_digest: bytes
    manifest: bytes
    fingerprint: str
    class_counts: _containers.ScalarMap[int, int]
    encodings: _containers.RepeatedScalarFieldContainer[_transfer_pb2.Encoding]
    software: str
    labels: _containers.RepeatedScalarFieldContainer[int]
    strategy: str
    def __init__(self, protocol_version: _Optional[int] = ..., client_id: _Optional[str] = ..., token: _Optional[bytes] = ..., num_samples: _Optional[int] = ..., manifest_digest: _Optional[bytes] = ..., manifest: _Optional[bytes] = ..., fingerprint: _Optional[str] = ..., class_counts: _Optional[_Mapping[int, int]] = ..., encodings: _Optional[_Iterable[_Union[_transfer_pb2.Encoding, str]]] = ..., software: _Optional[str] = ..., labels: _Optional[_Iterable[int]] = ..., strategy: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("run_id", "session", "settings", "manifest", "protocol_version", "software", "strategy")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    session: int
    settings: _settings_pb2.RunSettings
    manifest: bytes
    protocol_version: int
    software: str
    strategy: str
    def __init__(self, run_id: _Optional[str] = ..., session: _Optional[int] = ..., settings: _Optional[_Union[_settings_pb2.RunSettings, _Mapping]] = ..., manifest: _Optional[bytes] = ..., protocol_version: _Optional[int] = ..., software: _Optional[str] = ..., strategy: _Optional[str] = ...) -> None: ...

class NextTaskRequest(_message.Message):
    __slots__ = ("caller", "finished_step", "initial_digest", "mask_digest", "base_digest", "scored_digest", "task_digest", "offset")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_STEP_FIELD_NUMBER: _ClassVar[int]
    INITIAL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MASK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SCORED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TASK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    finished_step: int
    initial_digest: bytes
    mask_digest: bytes
    base_digest: bytes
    scored_digest: bytes
    task_digest: bytes
    offset: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., finished_step: _Optional[int] = ..., initial_digest: _Optional[bytes] = ..., mask_digest: _Optional[bytes] = ..., base_digest: _Optional[bytes] = ..., scored_digest: _Optional[bytes] = ..., task_digest: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class NextTaskResponse(_message.Message):
    __slots__ = ("waiting", "task", "chunk")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    waiting: Waiting
    task: Task
    chunk: _transfer_pb2.Chunk
    def __init__(self, waiting: _Optional[_Union[Waiting, _Mapping]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_digest", "step", "offset", "initialize", "score", "train", "evaluate", "finish", "personalize", "counted_step")
    TASK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    INITIALIZE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    PERSONALIZE_FIELD_NUMBER: _ClassVar[int]
    COUNTED_STEP_FIELD_NUMBER: _ClassVar[int]
    task_digest: bytes
    step: int
    offset: int
    initialize: InitializeTask
    score: ScoreTask
    train: TrainTask
    evaluate: EvaluateTask
    finish: FinishTask
    personalize: PersonalizeTask
    counted_step: int
    def __init__(self, task_digest: _Optional[bytes] = ..., step: _Optional[int] = ..., offset: _Optional[int] = ..., initialize: _Optional[_Union[InitializeTask, _Mapping]] = ..., score: _Optional[_Union[ScoreTask, _Mapping]] = ..., train: _Optional[_Union[TrainTask, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateTask, _Mapping]] = ..., finish: _Optional[_Union[FinishTask, _Mapping]] = ..., personalize: _Optional[_Union[PersonalizeTask, _Mapping]] = ..., counted_step: _Optional[int] = ...) -> None: ...

class InitializeTask(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScoreTask(_message.Message):
    __slots__ = ("criterion", "manifest_digest", "initial_digest", "initial", "report_encoding", "num_coded", "num_batches", "num_kept", "mask", "base_digest", "base", "resting_digest", "resting", "scoring_epoch")
    CRITERION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INITIAL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    REPORT_ENCODING_FIELD_NUMBER: _ClassVar[int]
    NUM_CODED_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_KEPT_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    RESTING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    SCORING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    criterion: str
    manifest_digest: bytes
    initial_digest: bytes
    initial: _transfer_pb2.Payload
    report_encoding: _transfer_pb2.Encoding
    num_coded: int
    num_batches: int
    num_kept: int
    mask: _mask_pb2.MaskBroadcast
    base_digest: bytes
    base: _transfer_pb2.Payload
    resting_digest: bytes
    resting: _transfer_pb2.Payload
    scoring_epoch: int
    def __init__(self, criterion: _Optional[str] = ..., manifest_digest: _Optional[bytes] = ..., initial_digest: _Optional[bytes] = ..., initial: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ..., report_encoding: _Optional[_Union[_transfer_pb2.Encoding, str]] = ..., num_coded: _Optional[int] = ..., num_batches: _Optional[int] = ..., num_kept: _Optional[int] = ..., mask: _Optional[_Union[_mask_pb2.MaskBroadcast, _Mapping]] = ..., base_digest: _Optional[bytes] = ..., base: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ..., resting_digest: _Optional[bytes] = ..., resting: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ..., scoring_epoch: _Optional[int] = ...) -> None: ...

class TrainTask(_message.Message):
    __slots__ = ("round_number", "attempt", "mask", "base_digest", "base", "upload_granted", "fraction_bits", "value_bound", "update_encoding", "task", "vectors")
    ROUND_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_GRANTED_FIELD_NUMBER: _ClassVar[int]
    FRACTION_BITS_FIELD_NUMBER: _ClassVar[int]
    VALUE_BOUND_FIELD_NUMBER: _ClassVar[int]
    UPDATE_ENCODING_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    round_number: int
    attempt: int
    mask: _mask_pb2.MaskBroadcast
    base_digest: bytes
    base: _transfer_pb2.Payload
    upload_granted: bool
    fraction_bits: int
    value_bound: float
    update_encoding: _transfer_pb2.Encoding
    task: str
    vectors: _containers.RepeatedCompositeFieldContainer[_transfer_pb2.NamedVector]
    def __init__(self, round_number: _Optional[int] = ..., attempt: _Optional[int] = ..., mask: _Optional[_Union[_mask_pb2.MaskBroadcast, _Mapping]] = ..., base_digest: _Optional[bytes] = ..., base: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ..., upload_granted: bool = ..., fraction_bits: _Optional[int] = ..., value_bound: _Optional[float] = ..., update_encoding: _Optional[_Union[_transfer_pb2.Encoding, str]] = ..., task: _Optional[str] = ..., vectors: _Optional[_Iterable[_Union[_transfer_pb2.NamedVector, _Mapping]]] = ...) -> None: ...

class EvaluateTask(_message.Message):
    __slots__ = ("rounds_done", "mask", "base_digest", "base")
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    rounds_done: int
    mask: _mask_pb2.MaskBroadcast
    base_digest: bytes
    base: _transfer_pb2.Payload
    def __init__(self, rounds_done: _Optional[int] = ..., mask: _Optional[_Union[_mask_pb2.MaskBroadcast, _Mapping]] = ..., base_digest: _Optional[bytes] = ..., base: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ...) -> None: ...

class PersonalizeTask(_message.Message):
    __slots__ = ("rounds_done", "mask", "base_digest", "base")
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    rounds_done: int
    mask: _mask_pb2.MaskBroadcast
    base_digest: bytes
    base: _transfer_pb2.Payload
    def __init__(self, rounds_done: _Optional[int] = ..., mask: _Optional[_Union[_mask_pb2.MaskBroadcast, _Mapping]] = ..., base_digest: _Optional[bytes] = ..., base: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ...) -> None: ...

class FinishTask(_message.Message):
    __slots__ = ("rounds_done", "mask", "base_digest", "base", "stopped")
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    rounds_done: int
    mask: _mask_pb2.MaskBroadcast
    base_digest: bytes
    base: _transfer_pb2.Payload
    stopped: bool
    def __init__(self, rounds_done: _Optional[int] = ..., mask: _Optional[_Union[_mask_pb2.MaskBroadcast, _Mapping]] = ..., base_digest: _Optional[bytes] = ..., base: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ..., stopped: bool = ...) -> None: ...

class InitialModel(_message.Message):
    __slots__ = ("manifest", "initial_digest", "initial")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    INITIAL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    initial_digest: bytes
    initial: _transfer_pb2.Payload
    def __init__(self, manifest: _Optional[bytes] = ..., initial_digest: _Optional[bytes] = ..., initial: _Optional[_Union[_transfer_pb2.Payload, _Mapping]] = ...) -> None: ...

class SendInitialRequest(_message.Message):
    __slots__ = ("caller", "header", "chunk")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    header: InitialModel
    chunk: _transfer_pb2.Chunk
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., header: _Optional[_Union[InitialModel, _Mapping]] = ..., chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ...) -> None: ...

class SendInitialResponse(_message.Message):
    __slots__ = ("queued", "grant", "receipt")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    queued: _transfer_pb2.Queued
    grant: _transfer_pb2.Grant
    receipt: _transfer_pb2.Receipt
    def __init__(self, queued: _Optional[_Union[_transfer_pb2.Queued, _Mapping]] = ..., grant: _Optional[_Union[_transfer_pb2.Grant, _Mapping]] = ..., receipt: _Optional[_Union[_transfer_pb2.Receipt, _Mapping]] = ...) -> None: ...

class ReportSaliencyRequest(_message.Message):
    __slots__ = ("caller", "header", "chunk")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    header: _saliency_pb2.SaliencyReport
    chunk: _transfer_pb2.Chunk
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., header: _Optional[_Union[_saliency_pb2.SaliencyReport, _Mapping]] = ..., chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ...) -> None: ...

class ReportSaliencyResponse(_message.Message):
    __slots__ = ("queued", "grant", "receipt")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    queued: _transfer_pb2.Queued
    grant: _transfer_pb2.Grant
    receipt: _transfer_pb2.Receipt
    def __init__(self, queued: _Optional[_Union[_transfer_pb2.Queued, _Mapping]] = ..., grant: _Optional[_Union[_transfer_pb2.Grant, _Mapping]] = ..., receipt: _Optional[_Union[_transfer_pb2.Receipt, _Mapping]] = ...) -> None: ...

class SendUpdateRequest(_message.Message):
    __slots__ = ("caller", "header", "chunk")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    header: _update_pb2.SparseUpdate
    chunk: _transfer_pb2.Chunk
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., header: _Optional[_Union[_update_pb2.SparseUpdate, _Mapping]] = ..., chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ...) -> None: ...

class SendUpdateResponse(_message.Message):
    __slots__ = ("queued", "grant", "receipt")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    queued: _transfer_pb2.Queued
    grant: _transfer_pb2.Grant
    receipt: _transfer_pb2.Receipt
    def __init__(self, queued: _Optional[_Union[_transfer_pb2.Queued, _Mapping]] = ..., grant: _Optional[_Union[_transfer_pb2.Grant, _Mapping]] = ..., receipt: _Optional[_Union[_transfer_pb2.Receipt, _Mapping]] = ...) -> None: ...

class ReportEvaluationRequest(_message.Message):
    __slots__ = ("caller", "step", "evaluation", "work_s", "validation", "personal")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    WORK_S_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    step: int
    evaluation: _update_pb2.Evaluation
    work_s: float
    validation: _update_pb2.Evaluation
    personal: _update_pb2.Evaluation
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., step: _Optional[int] = ..., evaluation: _Optional[_Union[_update_pb2.Evaluation, _Mapping]] = ..., work_s: _Optional[float] = ..., validation: _Optional[_Union[_update_pb2.Evaluation, _Mapping]] = ..., personal: _Optional[_Union[_update_pb2.Evaluation, _Mapping]] = ...) -> None: ...

class ReportEvaluationResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: _transfer_pb2.Outcome
    def __init__(self, outcome: _Optional[_Union[_transfer_pb2.Outcome, str]] = ...) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ("caller", "step", "steps_done", "steps_all")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_ALL_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    step: int
    steps_done: int
    steps_all: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., step: _Optional[int] = ..., steps_done: _Optional[int] = ..., steps_all: _Optional[int] = ...) -> None: ...

class ProgressResponse(_message.Message):
    __slots__ = ("step_closed",)
    STEP_CLOSED_FIELD_NUMBER: _ClassVar[int]
    step_closed: bool
    def __init__(self, step_closed: bool = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("caller", "reason", "detail")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    reason: LeaveReason
    detail: str
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., reason: _Optional[_Union[LeaveReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("client_id", "question", "echo", "noise", "download")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    question: CheckQuestion
    echo: CheckEcho
    noise: bytes
    download: CheckDownload
    def __init__(self, client_id: _Optional[str] = ..., question: _Optional[_Union[CheckQuestion, _Mapping]] = ..., echo: _Optional[_Union[CheckEcho, _Mapping]] = ..., noise: _Optional[bytes] = ..., download: _Optional[_Union[CheckDownload, _Mapping]] = ...) -> None: ...

class CheckQuestion(_message.Message):
    __slots__ = ("protocol_version", "token", "num_samples", "software")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    token: bytes
    num_samples: int
    software: str
    def __init__(self, protocol_version: _Optional[int] = ..., token: _Optional[bytes] = ..., num_samples: _Optional[int] = ..., software: _Optional[str] = ...) -> None: ...

class CheckEcho(_message.Message):
    __slots__ = ("number", "unix_time_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNIX_TIME_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    unix_time_s: float
    def __init__(self, number: _Optional[int] = ..., unix_time_s: _Optional[float] = ...) -> None: ...

class CheckDownload(_message.Message):
    __slots__ = ("num_bytes",)
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    def __init__(self, num_bytes: _Optional[int] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("answer", "echo", "received", "noise", "sent")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    answer: CheckAnswer
    echo: CheckEcho
    received: CheckReceived
    noise: bytes
    sent: CheckSent
    def __init__(self, answer: _Optional[_Union[CheckAnswer, _Mapping]] = ..., echo: _Optional[_Union[CheckEcho, _Mapping]] = ..., received: _Optional[_Union[CheckReceived, _Mapping]] = ..., noise: _Optional[bytes] = ..., sent: _Optional[_Union[CheckSent, _Mapping]] = ...) -> None: ...

class CheckAnswer(_message.Message):
    __slots__ = ("protocol_version", "software", "unix_time_s", "run_id", "phase", "rounds_done", "num_clients", "refusal_reason", "refusal", "settings", "manifest", "reference_coding", "upload_slots")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    UNIX_TIME_S_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_CODING_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_SLOTS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    software: str
    unix_time_s: float
    run_id: str
    phase: str
    rounds_done: int
    num_clients: int
    refusal_reason: str
    refusal: str
    settings: _settings_pb2.RunSettings
    manifest: bytes
    reference_coding: bool
    upload_slots: int
    def __init__(self, protocol_version: _Optional[int] = ..., software: _Optional[str] = ..., unix_time_s: _Optional[float] = ..., run_id: _Optional[str] = ..., phase: _Optional[str] = ..., rounds_done: _Optional[int] = ..., num_clients: _Optional[int] = ..., refusal_reason: _Optional[str] = ..., refusal: _Optional[str] = ..., settings: _Optional[_Union[_settings_pb2.RunSettings, _Mapping]] = ..., manifest: _Optional[bytes] = ..., reference_coding: bool = ..., upload_slots: _Optional[int] = ...) -> None: ...

class CheckReceived(_message.Message):
    __slots__ = ("num_bytes",)
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    def __init__(self, num_bytes: _Optional[int] = ...) -> None: ...

class CheckSent(_message.Message):
    __slots__ = ("num_bytes",)
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    def __init__(self, num_bytes: _Optional[int] = ...) -> None: ...

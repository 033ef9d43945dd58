from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RunSettings(_message.Message):
    __slots__ = ("strategy", "model", "sparsity", "bytes_per_round", "rounds", "clients", "clients_per_round", "min_clients", "local_epochs", "local_steps", "batch_size", "learning_rate", "lr_decay", "momentum", "weight_decay", "clip_norm", "seed", "evaluate_every", "reproducible", "round_deadline_s", "no_progress_s", "scores", "value_type", "grid_bits", "rounding", "error_feedback", "norm", "width")
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SPARSITY_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_PER_ROUND_FIELD_NUMBER: _ClassVar[int]
    MIN_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LR_DECAY_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_EVERY_FIELD_NUMBER: _ClassVar[int]
    REPRODUCIBLE_FIELD_NUMBER: _ClassVar[int]
    ROUND_DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    NO_PROGRESS_S_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    VALUE_TYPE_FIELD_NUMBER: _ClassVar[int]
    GRID_BITS_FIELD_NUMBER: _ClassVar[int]
    ROUNDING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    strategy: str
    model: str
    sparsity: str
    bytes_per_round: str
    rounds: int
    clients: int
    clients_per_round: int
    min_clients: int
    local_epochs: int
    local_steps: int
    batch_size: int
    learning_rate: float
    lr_decay: float
    momentum: float
    weight_decay: float
    clip_norm: float
    seed: int
    evaluate_every: int
    reproducible: bool
    round_deadline_s: float
    no_progress_s: float
    scores: str
    value_type: str
    grid_bits: int
    rounding: str
    error_feedback: bool
    norm: str
    width: int
    def __init__(self, strategy: _Optional[str] = ..., model: _Optional[str] = ..., sparsity: _Optional[str] = ..., bytes_per_round: _Optional[str] = ..., rounds: _Optional[int] = ..., clients: _Optional[int] = ..., clients_per_round: _Optional[int] = ..., min_clients: _Optional[int] = ..., local_epochs: _Optional[int] = ..., local_steps: _Optional[int] = ..., batch_size: _Optional[int] = ..., learning_rate: _Optional[float] = ..., lr_decay: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., clip_norm: _Optional[float] = ..., seed: _Optional[int] = ..., evaluate_every: _Optional[int] = ..., reproducible: _Optional[bool] = ..., round_deadline_s: _Optional[float] = ..., no_progress_s: _Optional[float] = ..., scores: _Optional[str] = ..., value_type: _Optional[str] = ..., grid_bits: _Optional[int] = ..., rounding: _Optional[str] = ..., error_feedback: _Optional[bool] = ..., norm: _Optional[str] = ..., width: _Optional[int] = ...) -> None: ...

"""The settings of a run: they live on the coordinator and travel to every client in Join."""

from dataclasses import dataclass, field, fields
from typing import Any

from ssfl.method.density import parse_bytes, parse_sparsity
from ssfl.method.errors import DensityError, SettingsError

STRATEGIES = ("ssfl", "fedavg")
MODELS = (
    "mlp", "cnn", "lenet5", "resnet18", "resnet50",
    "resnet20", "resnet32", "resnet44", "resnet56", "resnet110",
)  # fmt: skip
NORMS = ("group", "batch")
VALUE_TYPES = ("float32", "bfloat16", "int8", "grid")
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1


def setting(default: Any, text: str, **more: Any) -> Any:
    """Declare a setting: its default, and a line of meaning and unit for --help."""
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that decides what a run computes; a client is told, never asked."""

    strategy: str = setting("ssfl", "how the federation learns", choices=STRATEGIES)
    model: str = setting("cnn", "the network of the built-in image task", choices=MODELS)
    norm: str = setting("group", "norm layers of built-in networks", choices=NORMS)
    width: int = setting(
        0, "channels or units of a built-in network's first layer; 0: its own", most=4096
    )
    sparsity: str = setting("0.9", "share of conv and linear weights to prune, between 0 and 1")
    bytes_per_round: str = setting(
        "", "keep as many weights as fit this update size per client (2MB); instead of sparsity"
    )
    rounds: int = setting(30, "training rounds", least=1)
    clients: int = setting(
        0, "start when this many clients have joined; 0: on `ssfl start`, or after 15 s of quiet"
    )
    clients_per_round: int = setting(0, "clients sampled for each round; 0: all")
    min_clients: int = setting(2, "fewest reports that make a round count", least=1)
    local_epochs: int = setting(5, "passes over the client's data in each round", least=1)
    local_steps: int = setting(0, "local steps in each round, instead of epochs; 0: use epochs")
    batch_size: int = setting(16, "samples in a local step and in the scoring minibatch", least=1)
    learning_rate: float = setting(0.1, "SGD step size in round 0", positive=True)
    lr_decay: float = setting(0.998, "factor on the learning rate after each round", positive=True)
    momentum: float = setting(0.0, "SGD momentum, restarted in each round")
    weight_decay: float = setting(5e-4, "L2 penalty on every trained value")
    clip_norm: float = setting(10.0, "largest gradient norm in a step; 0: no clipping")
    seed: int = setting(0, "the one seed behind every random choice of the run", most=MAX_SEED)
    evaluate_every: int = setting(
        10, "all clients test the global model every so many rounds; 0: at the end only"
    )
    reproducible: bool = setting(
        False, "wait for every selected client, so that the same seed gives the same model"
    )
    round_deadline_s: float = setting(
        3600.0, "seconds until a step closes with those who reported", positive=True
    )
    no_progress_s: float = setting(
        60.0, "seconds without a byte until a transfer is given up", positive=True
    )
    scores: str = setting(
        "compact",
        "how scores travel: a log code of about 3 bits, or float32",
        choices=("compact", "exact"),
    )
    value_type: str = setting(
        "float32", "how values travel: exact, or as lossy changes", choices=VALUE_TYPES
    )
    grid_bits: int = setting(
        16, "value type grid: changes are multiples of 2 to minus this", least=1, most=40
    )
    rounding: str = setting("stochastic", "of lossy value types", choices=("stochastic", "nearest"))
    error_feedback: bool = setting(
        True, "lossy value types: a client adds what one update lost to the next"
    )

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        for one in fields(self):
            _check(one.name, getattr(self, one.name), one.metadata)
        try:
            parse_sparsity(self.sparsity)
            if self.bytes_per_round:
                parse_bytes(self.bytes_per_round)
        except DensityError as error:
            name = "--sparsity" if str(error).startswith("sparsity") else "--bytes-per-round"
            raise SettingsError(f"{name}: {error}") from error
        if self.bytes_per_round and self.strategy == "fedavg":
            raise SettingsError(
                "--bytes-per-round needs a sparse strategy: fedavg keeps everything"
            )
        if not 0 <= self.momentum < 1:
            raise SettingsError(f"--momentum must be at least 0 and below 1, got {self.momentum}")
        if self.clients and self.clients < self.min_clients:
            raise SettingsError(
                f"--clients {self.clients} is below --min-clients {self.min_clients}: "
                "the run could never start"
            )
        if self.clients_per_round and self.clients_per_round < self.min_clients:
            raise SettingsError(
                f"--clients-per-round {self.clients_per_round} is below "
                f"--min-clients {self.min_clients}: no round could count"
            )
        if self.reproducible and not self.clients:
            raise SettingsError("--reproducible needs --clients N: who takes part must be fixed")


def _check(name: str, value: Any, metadata: Any) -> None:
    flag = "--" + name.replace("_", "-")
    if "choices" in metadata and value not in metadata["choices"]:
        raise SettingsError(
            f"{flag} must be one of {', '.join(metadata['choices'])}, got {value!r}"
        )
    if isinstance(value, bool | str):
        return
    least = metadata.get("least", 0)
    if not value >= least or value == float("inf"):
        raise SettingsError(f"{flag} must be a number of at least {least}, got {value}")
    if isinstance(value, int) and value > metadata.get("most", MAX_COUNT):
        raise SettingsError(
            f"{flag} must be at most {metadata.get('most', MAX_COUNT)}, got {value}"
        )
    if metadata.get("positive") and not value > 0:
        raise SettingsError(f"{flag} must be above 0, got {value}")

"""The settings of a run: they live on the coordinator and travel to every client in Join."""

from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any

from ssfl.method.density import parse_bytes, parse_sparsity
from ssfl.method.errors import DensityError, SettingsError
from ssfl.method.profiles import PROFILES
from ssfl.method.schedule import parse_rounds, parse_schedule

STRATEGIES = ("ssfl", "fedavg")
MODELS = (
    "mlp", "cnn", "cnn-small", "lenet5", "resnet18", "resnet50",
    "resnet20", "resnet32", "resnet44", "resnet56", "resnet110",
)  # fmt: skip
NORMS = ("group", "batch")
VALUE_TYPES = ("float32", "bfloat16", "int8", "grid")
INITIALIZATIONS = ("kaiming-normal", "torch-default")
CRITERIA = (
    "saliency", "shuffled", "random", "client-random", "one-client", "magnitude", "synflow",
    "grasp",
)  # fmt: skip
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1


def setting(default: Any, text: str, **more: Any) -> Any:
    """Declare a setting: its default, and a line of meaning and unit for --help."""
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that decides what a run computes; a client is told, never asked."""

    profile: str = setting(
        "ours",
        "a named set of defaults for the settings below: ours, the paper's, its released code's",
        choices=tuple(PROFILES),
        presets=PROFILES,
    )
    strategy: str = setting("ssfl", "how the federation learns", choices=STRATEGIES)
    model: str = setting("cnn", "the network of the built-in image task", choices=MODELS)
    norm: str = setting("group", "norm layers of built-in networks", choices=NORMS)
    width: int = setting(
        0, "channels or units of a built-in network's first layer; 0: its own", most=4096
    )
    initialization: str = setting(
        "kaiming-normal",
        "of conv and linear layers: N(0, 2 / fan-in), or torch's own uniform rule",
        choices=INITIALIZATIONS,
    )
    sparsity: str = setting("0.9", "share of conv and linear weights to prune, between 0 and 1")
    bytes_per_round: str = setting(
        "", "keep as many weights as fit this update size per client (2MB); instead of sparsity"
    )
    sparsity_schedule: str = setting(
        "", "sparsities from rounds on, instead of sparsity: 0:0.98,30:0.95; renews the mask there"
    )
    criterion: str = setting(
        "saliency",
        "what decides which weights are kept; all but the first are controls",
        choices=CRITERIA,
    )
    scoring_batches: int = setting(
        0, "minibatches each client scores; 0: clients x minibatches reach 100"
    )
    scoring_samples: str = setting(
        "balanced",
        "minibatches to score: as many of each class, or plain random",
        choices=("balanced", "plain"),
    )
    score_weights: str = setting(
        "samples",
        "the mean of scores: by the clients' samples, or all equal",
        choices=("samples", "equal"),
    )
    layer_guard: float = setting(
        0.0, "every layer keeps at least this share of its weights; 0: no guard", most=1.0
    )
    warmup_rounds: int = setting(0, "dense rounds before the weights are scored")
    refresh_rounds: str = setting("", "score anew and renew the mask before these rounds: 30,60")
    refresh_every: int = setting(0, "renew the mask every so many rounds; 0: never")
    refresh_on_new_labels: bool = setting(
        False, "renew the mask when a client joins with labels that no voter had"
    )
    refresh_on_loss_jump: float = setting(
        0.0, "renew the mask when the mean client loss reaches this many times its recent median"
    )
    refresh_mode: str = setting(
        "renew",
        "a new mask of all weights, or keep the old one and add to it",
        choices=("renew", "grow"),
    )
    deactivated: str = setting(
        "keep",
        "weights that a new mask drops: keep their trained value for a later mask, or reset",
        choices=("keep", "reset"),
    )
    scoring_point: str = setting(
        "unmasked",
        "a refresh scores the whole model, or with the dropped weights at zero",
        choices=("unmasked", "masked"),
    )
    rounds: int = setting(30, "training rounds", least=1)
    clients: int = setting(
        0, "start when this many clients have joined; 0: on `ssfl start`, or after 15 s of quiet"
    )
    clients_per_round: int = setting(0, "clients sampled for each round; 0: all")
    client_fraction: float = setting(
        0.0,
        "share of the clients sampled for each round, instead of a number; 0: use the number",
        most=1.0,
    )
    newcomers_per_round: int = setting(
        0, "of the sampled clients, so many joined after the start, if there are; 0: as it comes"
    )
    min_clients: int = setting(2, "fewest reports that make a round count", least=1)
    scoring_quorum: int = setting(
        0, "fewest votes that make a mask count; 0: all who joined, at the deadline min-clients"
    )
    over_selection: float = setting(
        1.3,
        "sampled rounds: ask so many times the clients wanted at first, then by the share lost "
        "of late; the first reports count; 1: ask no more than wanted",
        least=1,
        most=3.0,
    )
    local_epochs: int = setting(5, "passes over the client's data in each round", least=1)
    local_steps: int = setting(0, "local steps in each round, instead of epochs; 0: use epochs")
    batch_size: int = setting(16, "samples in a local step and in the scoring minibatch", least=1)
    learning_rate: float = setting(0.1, "SGD step size in round 0", positive=True)
    lr_decay: float = setting(0.998, "factor on the learning rate after each round", positive=True)
    local_schedule: str = setting(
        "constant",
        "learning rate inside a round: constant, or a cosine from epoch to epoch",
        choices=("constant", "cosine"),
    )
    momentum: float = setting(0.5, "SGD momentum, restarted in each round")
    weight_decay: float = setting(5e-4, "L2 penalty on every trained value")
    clip_norm: float = setting(10.0, "largest gradient norm in a step; 0: no clipping")
    update_weights: str = setting(
        "samples",
        "the mean of updates: by the clients' samples, or all equal",
        choices=("samples", "equal"),
    )
    averaging: str = setting(
        "holders",
        "client-random: a weight's mean over clients that hold it, or others as zeros",
        choices=("holders", "zeros"),
    )
    seed: int = setting(0, "the one seed behind every random choice of the run", most=MAX_SEED)
    evaluate_every: int = setting(
        10, "all clients test the global model every so many rounds; 0: at the end only"
    )
    evaluate_last: int = setting(0, "and after each of the last so many rounds")
    target_accuracy: float = setting(
        0.0, "end when all clients' pooled accuracy reaches this, 0 to 1; 0: no target", most=1.0
    )
    patience: int = setting(
        0, "end after so many evaluations of all clients without a better one; 0: never"
    )
    personalize_epochs: int = setting(
        0, "at the end every client trains the model so long for itself; 0: not at all"
    )
    personalize_lr: str = setting(
        "continue",
        "learning rate of that: what the next round's would be, or the first round's",
        choices=("continue", "restart"),
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
    max_samples: int = setting(
        0, "largest number of training samples a client may claim; 0: no bound"
    )
    samples_over_max: str = setting(
        "refuse",
        "who claims more: refuse the client, or clip: it weighs as if it had max-samples",
        choices=("refuse", "clip"),
    )
    max_update_norm: float = setting(
        0.0, "longest change of the base (L2 norm); longer updates are scaled down; 0: no limit"
    )
    score_outliers: str = setting(
        "exclude",
        "scores a million times the median client's: leave that client out of the mean, or keep",
        choices=("exclude", "keep"),
    )

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        for one in fields(self):
            _check(one.name, getattr(self, one.name), one.metadata)
        try:
            parse_sparsity(self.sparsity)
            parse_schedule(self.sparsity_schedule)
            if self.bytes_per_round:
                parse_bytes(self.bytes_per_round)
        except DensityError as error:
            raise SettingsError(f"{self._flag_of(str(error))}: {error}") from error
        self._validate_mask()
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
        if self.clients and self.clients < self.scoring_quorum:
            raise SettingsError(
                f"--clients {self.clients} is below --scoring-quorum {self.scoring_quorum}: "
                "no mask could count"
            )
        if self.reproducible and not self.clients:
            raise SettingsError("--reproducible needs --clients N: who takes part must be fixed")
        if self.client_fraction and self.clients_per_round:
            raise SettingsError(
                "--client-fraction and --clients-per-round say the same thing: give one of them"
            )
        if (self.target_accuracy or self.patience) and not (
            self.evaluate_every or self.evaluate_last
        ):
            raise SettingsError(
                "--target-accuracy and --patience need evaluations: set --evaluate-every"
            )

    @property
    def refreshes(self) -> bool:
        """Tell whether the mask may change by itself after it was first agreed."""
        return bool(
            self.refresh_rounds
            or self.refresh_every
            or self.refresh_on_new_labels
            or self.refresh_on_loss_jump
            or self.sparsity_schedule
        )

    def _flag_of(self, message: str) -> str:
        if message.startswith("sparsity-schedule"):
            return "--sparsity-schedule"
        return "--sparsity" if message.startswith("sparsity") else "--bytes-per-round"

    def _validate_mask(self) -> None:
        """Raise SettingsError for settings of the mask that contradict each other."""
        try:
            planned = parse_rounds(self.refresh_rounds)
        except DensityError as error:
            raise SettingsError(f"--refresh-rounds: {error}") from error
        if never := sorted(n for n in planned if not self.warmup_rounds < n < self.rounds):
            raise SettingsError(
                f"--refresh-rounds {never[0]}: a mask can be renewed after round "
                f"{self.warmup_rounds} and before the last, {self.rounds}"
            )
        if self.strategy == "fedavg":
            for name in ("bytes_per_round", "sparsity_schedule", "warmup_rounds"):
                if getattr(self, name):
                    raise SettingsError(
                        f"{_flag(name)} needs a sparse strategy: fedavg keeps everything"
                    )
            if self.refreshes:
                raise SettingsError("fedavg keeps everything: there is no mask to refresh")
            if self.criterion != "saliency" or self.layer_guard:
                raise SettingsError(
                    "fedavg keeps everything: leave out --criterion and --layer-guard"
                )
        self._validate_guard()
        if self.bytes_per_round and self.sparsity_schedule:
            raise SettingsError(
                "--bytes-per-round and --sparsity-schedule say the same thing: give one of them"
            )
        if self.refresh_mode == "grow":
            falling = [sparsity for _, sparsity in parse_schedule(self.sparsity_schedule)]
            if len(falling) < 2 or sorted(falling, reverse=True) != falling:
                raise SettingsError(
                    "--refresh-mode grow only adds weights: it needs a --sparsity-schedule that "
                    "falls, such as 0:0.98,30:0.95"
                )
            if self.criterion in ("random", "shuffled") or self.layer_guard:
                raise SettingsError(
                    "--refresh-mode grow adds the best-scoring weights to a mask: it does not go "
                    "with --layer-guard, nor with --criterion random or shuffled"
                )
            if self.refresh_rounds or self.refresh_every or self.refresh_on_loss_jump:
                raise SettingsError(
                    "--refresh-mode grow adds weights where --sparsity-schedule says: leave out "
                    "--refresh-rounds, --refresh-every and --refresh-on-loss-jump"
                )
        if 0 < self.refresh_on_loss_jump <= 1:
            raise SettingsError(
                f"--refresh-on-loss-jump must be above 1 (1.5: half as much again), "
                f"got {self.refresh_on_loss_jump}"
            )
        if self.warmup_rounds and self.warmup_rounds >= self.rounds:
            raise SettingsError(
                f"--warmup-rounds {self.warmup_rounds} leaves no sparse round of {self.rounds}"
            )
        if self.scoring_point == "masked" and self.criterion in ("grasp", "synflow"):
            raise SettingsError(
                f"--scoring-point masked is for saliency: {self.criterion} would score every "
                "pruned weight as nothing"
            )
        if self.criterion == "client-random":
            self._validate_client_random()

    def _validate_guard(self) -> None:
        if self.criterion == "random" and self.layer_guard:
            raise SettingsError("--criterion random keeps any weights: leave out --layer-guard")
        schedule = parse_schedule(self.sparsity_schedule) or [(0, parse_sparsity(self.sparsity))]
        kept = 1 - max(sparsity for _, sparsity in schedule)
        if not self.bytes_per_round and Decimal(str(self.layer_guard)) > kept:
            raise SettingsError(
                f"--layer-guard {self.layer_guard:g} asks for more of every layer than is kept of "
                f"all: at most {kept} fits the sparsity"
            )

    def _validate_client_random(self) -> None:
        clashing = {
            "refreshes": self.refreshes,
            "--warmup-rounds": self.warmup_rounds,
            "--bytes-per-round": self.bytes_per_round,
            "--layer-guard": self.layer_guard,
            f"--value-type {self.value_type}": self.value_type != "float32",
            "--personalize-epochs": self.personalize_epochs,
        }
        for name, given in clashing.items():
            if given:
                raise SettingsError(
                    f"--criterion client-random gives every client a mask of its own, for good: "
                    f"it does not go with {name}, which must be left out or 0"
                )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check(name: str, value: Any, metadata: Any) -> None:
    flag = _flag(name)
    if "choices" in metadata and value not in metadata["choices"]:
        raise SettingsError(
            f"{flag} must be one of {', '.join(metadata['choices'])}, got {value!r}"
        )
    if isinstance(value, bool | str):
        return
    least = metadata.get("least", 0)
    if not value >= least or value == float("inf"):
        raise SettingsError(f"{flag} must be a number of at least {least}, got {value}")
    most = metadata.get("most", MAX_COUNT if isinstance(value, int) else None)
    if most is not None and value > most:
        limit = most if isinstance(most, int) else f"{most:g}"
        raise SettingsError(f"{flag} must be at most {limit}, got {value}")
    if metadata.get("positive") and not value > 0:
        raise SettingsError(f"{flag} must be above 0, got {value}")

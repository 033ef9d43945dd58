"""The settings of a run. The coordinator owns them and sends them to every client in Join."""

from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any

from ssfl.method.density import parse_bytes, parse_sparsity
from ssfl.method.errors import DensityError, SettingsError
from ssfl.method.image_settings import AUGMENTATIONS, AUTO, INITIALIZATIONS, NONE, check_normalize
from ssfl.method.optimizers import check_optimizer
from ssfl.method.profiles import PROFILES
from ssfl.method.schedule import parse_lr_schedule, parse_rounds, parse_schedule

MODELS = (
    "mlp", "cnn", "cnn-small", "lenet5", "resnet18", "resnet50",
    "resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110",
)  # fmt: skip
NORMS = ("group", "batch")
VALUE_TYPES = ("float32", "bfloat16", "int8", "grid")
DOWNLOADS = ("change", "values")
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1


def setting(default: Any, text: str, **more: Any) -> Any:
    """Declare a setting: its default and a line of --help; `ge` and `le` limit its range."""
    return field(default=default, metadata={"help": text, **more})


def choice(text: str, *choices: str) -> Any:
    """Declare a setting that is one of `choices`; the first is its default."""
    return setting(choices[0], text, choices=choices)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All settings that decide the result of a run."""

    profile: str = setting(
        "ours",
        "a named set of defaults for other settings",
        choices=tuple(PROFILES),
        presets=PROFILES,
    )
    strategy: str = setting("ssfl", "how the federation learns", names="strategies")
    strategy_options: str = setting(
        "", "settings of the strategy, such as ditto.strength=0.5; also as --ditto.strength 0.5"
    )
    model: str = setting("cnn", "network of the built-in image task", choices=MODELS)
    norm: str = choice("norm layers of the built-in networks", *NORMS)
    width: int = setting(
        0, "channels or units of a built-in network's first layer; 0: the network's own", le=4096
    )
    normalize: str = setting(
        NONE,
        "statistics by which the image task's network scales pixels: cifar10, cifar100, or mean "
        "and standard deviation of each channel, such as 0.5:0.4:0.4/0.25:0.2:0.2; auto: those of "
        "the paper's code for images of 3x32x32 and 3x64x64, else none",
    )
    initialization: str = choice(
        "initial weights of conv and linear layers; "
        "kaiming-normal: N(0, 2 / fan-in); torch-default: torch's own uniform rule; "
        "paper: kaiming-normal for conv weights, torch-default for all others; "
        "auto: paper for images of 3x32x32 and 3x64x64, else kaiming-normal",
        *INITIALIZATIONS,
        AUTO,
    )
    sparsity: str = setting("0.9", "share of conv and linear weights to prune, between 0 and 1")
    bytes_per_round: str = setting("", "largest update of a client, such as 2MB; replaces sparsity")
    sparsity_schedule: str = setting(
        "", "sparsity by round, such as 0:0.98,30:0.95; refreshes the mask at these rounds"
    )
    criterion: str = setting(
        "saliency",
        "score that decides which weights are kept; all but saliency are controls",
        names="criteria",
    )
    scoring_batches: int = setting(
        0, "minibatches that each client scores; 0: enough for 100 over all clients"
    )
    scoring_samples: str = choice(
        "how scored samples are drawn; balanced: equally from each class", "balanced", "plain"
    )
    scoring_augment: bool = setting(
        False, "score minibatches that are augmented as in training; otherwise plain images"
    )
    score_weights: str = choice("weights of the clients in the mean of scores", "samples", "equal")
    layer_guard: float = setting(
        0.0, "smallest share of its weights that a layer keeps; 0: no guard", le=1.0
    )
    warmup_rounds: int = setting(0, "dense rounds before the weights are scored")
    refresh_rounds: str = setting("", "refresh the mask before these rounds, such as 30,60")
    refresh_every: int = setting(0, "refresh the mask every N rounds; 0: never")
    refresh_on_new_labels: bool = setting(
        False, "refresh the mask when a client joins with labels that no scoring client had"
    )
    refresh_on_loss_jump: float = setting(
        0.0,
        "refresh the mask when the mean client loss reaches X times its recent median; 0: never",
    )
    refresh_mode: str = choice(
        "how the mask is refreshed; renew: choose from all weights; grow: only add weights",
        "renew",
        "grow",
    )
    deactivated: str = choice(
        "what happens to the value of a weight that a new mask drops", "keep", "reset"
    )
    scoring_point: str = choice(
        "model that a refresh scores; masked: dropped weights are zero", "unmasked", "masked"
    )
    rounds: int = setting(30, "training rounds", ge=1)
    clients: int = setting(
        0, "start when N clients have joined; 0: on `ssfl start`, or 15 s after the last join"
    )
    clients_per_round: int = setting(0, "clients sampled for each round; 0: all clients")
    client_fraction: float = setting(
        0.0, "share of the clients sampled for each round; 0: use --clients-per-round", le=1.0
    )
    newcomers_per_round: int = setting(
        0, "sampled clients that joined after the start, if available; 0: no preference"
    )
    min_clients: int = setting(2, "smallest number of updates that completes a round", ge=1)
    scoring_quorum: int = setting(
        0,
        "smallest number of scores that completes a mask; "
        "0: all clients, or --min-clients at the deadline",
    )
    over_selection: float = setting(
        1.3,
        "sampled rounds: ask X times the clients wanted; later X follows the share of clients "
        "recently lost; the first updates count; 1: ask only as many as wanted",
        ge=1,
        le=3.0,
    )
    local_epochs: int = setting(5, "passes over the client's data in each round", ge=1)
    local_steps: int = setting(0, "local steps in each round; 0: use --local-epochs")
    batch_size: int = setting(16, "samples in a local step and in a scoring minibatch", ge=1)
    augment: str = choice(
        "changes of training images; crop-flip: a random crop of the image with 4 black pixels "
        "around it, and a random horizontal flip; auto: crop-flip for images of 3x32x32 and "
        "3x64x64, else none",
        *AUGMENTATIONS,
    )
    optimizer: str = setting("sgd", "optimizer of torch.optim for local steps, such as adam")
    optimizer_options: str = setting(
        "", "further options of the optimizer, such as betas=0.9:0.99,eps=1e-6"
    )
    optimizer_state: str = choice(
        "state of the optimizer, such as momentum, at the start of a round; restart: new; keep: "
        "that of the client's previous round",
        "restart",
        "keep",
    )
    learning_rate: float = setting(
        0.1, "learning rate in the first round; adam needs about 0.001", positive=True
    )
    lr_schedule: str = setting(
        "decay",
        "learning rate over the rounds; decay: times --lr-decay after each; "
        "cosine: falls towards 0 at the end; step:30:0.1: times 0.1 after every 30 rounds",
    )
    lr_warmup_rounds: int = setting(0, "rounds in which the learning rate rises to its schedule")
    lr_decay: float = setting(
        0.998, "factor applied to the learning rate after each round", positive=True
    )
    local_schedule: str = choice(
        "learning rate within a round; cosine: falls from epoch to epoch", "constant", "cosine"
    )
    momentum: float = setting(
        0.5, "momentum of sgd, rmsprop and muon; starts at zero in each round"
    )
    weight_decay: float = setting(
        5e-4, "L2 penalty on every trained value; with adamw and muon, a direct decay"
    )
    clip_norm: float = setting(10.0, "largest gradient norm of a step; 0: no clipping")
    update_weights: str = choice(
        "weights of the clients in the mean of updates", "samples", "equal"
    )
    averaging: str = choice(
        "criterion client-random: mean over clients that hold a weight, or zeros for the rest",
        "holders",
        "zeros",
    )
    seed: int = setting(0, "seed of every random choice of the run", le=MAX_SEED)
    evaluate_every: int = setting(
        10, "all clients test the global model every N rounds; 0: only at the end"
    )
    evaluate_last: int = setting(0, "all clients also test after each of the last N rounds")
    target_accuracy: float = setting(
        0.0, "end the run when the pooled accuracy reaches X, between 0 and 1; 0: no target", le=1.0
    )
    patience: int = setting(
        0, "end the run after N evaluations by all clients without improvement; 0: never"
    )
    personalize_epochs: int = setting(
        0, "epochs that each client trains its personal model at the end; 0: no personal models"
    )
    personalize_lr: str = choice(
        "learning rate of personal models; continue: the next round's; restart: the first round's",
        "continue",
        "restart",
    )
    reproducible: bool = setting(
        False, "wait for every selected client; the same seed then gives the same model"
    )
    round_deadline_s: float = setting(
        3600.0, "seconds after which a step closes with the clients that reported", positive=True
    )
    no_progress_s: float = setting(
        60.0, "seconds without a byte after which a transfer is aborted", positive=True
    )
    scores: str = choice(
        "encoding of scores; compact: about 3 bits each; exact: float32", "compact", "exact"
    )
    value_type: str = choice(
        "encoding of values; float32 is exact, the others are lossy", *VALUE_TYPES
    )
    grid_bits: int = setting(16, "value type grid: changes are multiples of 2^-N", ge=1, le=40)
    rounding: str = choice("rounding of lossy value types", "stochastic", "nearest")
    error_feedback: bool = setting(
        True, "lossy value types: add the rounding error of an update to the next one"
    )
    downloads: str = choice(
        "lossy value types: what clients download; change: the change of the last round, or exact "
        "values if they missed it; values: rounded values, smaller if most clients miss a round",
        *DOWNLOADS,
    )
    max_samples: int = setting(
        0, "largest number of training samples a client may claim; 0: no limit"
    )
    samples_over_max: str = choice(
        "a client that claims more is refused, or weighed as if it had --max-samples",
        "refuse",
        "clip",
    )
    max_update_norm: float = setting(
        0.0, "largest L2 norm of an update; larger updates are scaled down; 0: no limit"
    )
    score_outliers: str = choice(
        "a client with scores a million times the median is excluded from the mean, or kept",
        "exclude",
        "keep",
    )

    def validate(self) -> None:
        """Raise SettingsError, naming the flag, if a setting is invalid."""
        for option in fields(self):
            check_value(_flag(option.name), getattr(self, option.name), option.metadata)
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
        self._validate_optimizer()
        self._validate_images()
        for name, least, why in (
            ("clients", "min_clients", "the run could never start"),
            ("clients_per_round", "min_clients", "no round could count"),
            ("clients", "scoring_quorum", "no mask could count"),
        ):
            given, needed = getattr(self, name), getattr(self, least)
            if 0 < given < needed:
                raise SettingsError(
                    f"{_flag(name)} {given} is below {_flag(least)} {needed}: {why}"
                )
        if self.reproducible and not self.clients:
            raise SettingsError("--reproducible needs --clients N: a fixed set of clients")
        if self.client_fraction and self.clients_per_round:
            raise SettingsError(
                "--client-fraction and --clients-per-round set the same thing: give one of them"
            )
        if self.downloads == "values" and self.value_type == "float32":
            raise SettingsError(
                "--downloads values rounds the values: it needs a lossy --value-type, such as int8"
            )
        tested = self.evaluate_every or self.evaluate_last
        if (self.target_accuracy or self.patience) and not tested:
            raise SettingsError(
                "--target-accuracy and --patience need evaluations: set --evaluate-every"
            )

    @property
    def refreshes(self) -> bool:
        """True if the mask may be refreshed without an operator's command."""
        on_change = self.refresh_on_new_labels or self.refresh_on_loss_jump
        planned = self.refresh_rounds or self.refresh_every or self.sparsity_schedule
        return bool(on_change or planned)

    def _flag_of(self, message: str) -> str:
        if message.startswith("sparsity-schedule"):
            return "--sparsity-schedule"
        return "--sparsity" if message.startswith("sparsity") else "--bytes-per-round"

    def _validate_mask(self) -> None:
        """Raise SettingsError if settings of the mask contradict each other."""
        try:
            planned = parse_rounds(self.refresh_rounds)
        except DensityError as error:
            raise SettingsError(f"--refresh-rounds: {error}") from error
        if never := sorted(n for n in planned if not self.warmup_rounds < n < self.rounds):
            raise SettingsError(
                f"--refresh-rounds {never[0]}: a mask can be refreshed after round "
                f"{self.warmup_rounds} and before the last, {self.rounds}"
            )
        self._validate_guard()
        if self.bytes_per_round and self.sparsity_schedule:
            raise SettingsError(
                "--bytes-per-round and --sparsity-schedule set the same thing: give one of them"
            )
        if self.refresh_mode == "grow":
            falling = [sparsity for _, sparsity in parse_schedule(self.sparsity_schedule)]
            if len(falling) < 2 or sorted(falling, reverse=True) != falling:
                raise SettingsError(
                    "--refresh-mode grow only adds weights: it needs a --sparsity-schedule that "
                    "falls, such as 0:0.98,30:0.95"
                )
            if self.layer_guard:
                raise SettingsError(
                    "--refresh-mode grow adds the best-scoring weights to a mask: it cannot be "
                    "combined with --layer-guard"
                )
            if self.refresh_rounds or self.refresh_every or self.refresh_on_loss_jump:
                raise SettingsError(
                    "--refresh-mode grow adds weights at the rounds of --sparsity-schedule: leave "
                    "out --refresh-rounds, --refresh-every and --refresh-on-loss-jump"
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

    def _validate_optimizer(self) -> None:
        check_optimizer(
            self.optimizer, self.optimizer_options, self.momentum, self.weight_decay,
            self.learning_rate,
        )  # fmt: skip
        parse_lr_schedule(self.lr_schedule)
        if self.lr_warmup_rounds >= self.rounds:
            raise SettingsError(
                f"--lr-warmup-rounds {self.lr_warmup_rounds} must be below --rounds {self.rounds}"
            )

    def _validate_images(self) -> None:
        check_normalize(self.normalize)
        if self.scoring_augment and self.augment == NONE:
            raise SettingsError(
                "--scoring-augment scores images that are augmented as in training: set --augment "
                "crop-flip, or leave it out with --no-scoring-augment"
            )

    def _validate_guard(self) -> None:
        schedule = parse_schedule(self.sparsity_schedule) or [(0, parse_sparsity(self.sparsity))]
        kept = 1 - max(sparsity for _, sparsity in schedule)
        if not self.bytes_per_round and Decimal(str(self.layer_guard)) > kept:
            raise SettingsError(
                f"--layer-guard {self.layer_guard:g} would keep more of every layer than the "
                f"sparsity allows: use at most {kept}"
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_value(flag: str, value: Any, metadata: Any) -> None:
    """Raise SettingsError unless a value is one of the choices, or in the range, of a setting."""
    if "choices" in metadata and value not in metadata["choices"]:
        raise SettingsError(
            f"{flag} must be one of {', '.join(metadata['choices'])}, got {value!r}"
        )
    if isinstance(value, bool | str):
        return
    lowest = metadata.get("ge", 0)
    if not value >= lowest or value == float("inf"):
        raise SettingsError(f"{flag} must be a number of at least {lowest}, got {value}")
    highest = metadata.get("le", MAX_COUNT if isinstance(value, int) else None)
    if highest is not None and value > highest:
        limit = highest if isinstance(highest, int) else f"{highest:g}"
        raise SettingsError(f"{flag} must be at most {limit}, got {value}")
    if metadata.get("positive") and not value > 0:
        raise SettingsError(f"{flag} must be above 0, got {value}")

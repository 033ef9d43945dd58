"""The optimizers of local training and their options, as settings; no torch.

An optimizer is one of torch.optim, in capitals or not. `learning_rate`, `momentum` and
`weight_decay` are the run's settings. All other options are torch's, and have torch's defaults.
"""

import math

from ssfl.method.errors import SettingsError

Option = bool | int | float | str | None | tuple[int | float | None, ...]

SGD = "sgd"
OPTIONS: dict[str, tuple[str, ...]] = {
    SGD: ("dampening", "nesterov"),
    "adadelta": ("rho", "eps"),
    "adafactor": ("beta2_decay", "eps", "d"),
    "adagrad": ("lr_decay", "initial_accumulator_value", "eps"),
    "adam": ("betas", "eps", "amsgrad", "decoupled_weight_decay"),
    "adamax": ("betas", "eps"),
    "adamw": ("betas", "eps", "amsgrad"),
    "asgd": ("lambd", "alpha", "t0"),
    "muon": ("nesterov", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn"),
    "nadam": ("betas", "eps", "momentum_decay", "decoupled_weight_decay"),
    "radam": ("betas", "eps", "decoupled_weight_decay"),
    "rmsprop": ("alpha", "eps", "centered"),
    "rprop": ("etas", "step_sizes"),
}
REFUSED = {
    "lbfgs": "it computes the loss several times in a step. Choose another, such as adam, or call "
    "it in the task's own fit",
    "sparseadam": "it needs sparse gradients, and those of masked weights are dense. Choose adam",
}
WITH_MOMENTUM = (SGD, "muon", "rmsprop")
WITHOUT_WEIGHT_DECAY = ("rprop",)
_SMALL_RATES = ("adam", "adamax", "adamw", "nadam", "radam", "rmsprop")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None}


def check_optimizer(
    name: str, options: str, momentum: float, weight_decay: float, learning_rate: float
) -> None:
    """Raise SettingsError, naming the flag, if the settings of an optimizer are not valid."""
    word = name.lower()
    if word in REFUSED:
        raise SettingsError(f"--optimizer {name} cannot train inside a mask: {REFUSED[word]}")
    if word not in OPTIONS:
        raise SettingsError(f"--optimizer must be one of {', '.join(OPTIONS)}, got {name!r}")
    given = parse_options(options)
    if unknown := [option for option in given if option not in OPTIONS[word]]:
        raise SettingsError(
            f"--optimizer-options: {word} has {' and '.join(OPTIONS[word])}, got {unknown[0]!r}"
        )
    if word == SGD and given.get("nesterov") and (not momentum or given.get("dampening")):
        raise SettingsError(
            "--optimizer-options nesterov=true needs --momentum above 0 and no dampening"
        )
    if word in WITHOUT_WEIGHT_DECAY and weight_decay:
        raise SettingsError(f"--optimizer {word} has no weight decay: give --weight-decay 0")
    if word in _SMALL_RATES and learning_rate >= 0.1:
        raise SettingsError(
            f"--learning-rate {learning_rate:g} is for sgd: --optimizer {word} needs a smaller "
            "one, such as 0.001"
        )


def parse_options(text: str) -> dict[str, Option]:
    """Return the options of a list; raise SettingsError if it is not one.

    Examples:
        >>> parse_options("betas=0.9:0.99, amsgrad=true")
        {'betas': (0.9, 0.99), 'amsgrad': True}
    """
    options: dict[str, Option] = {}
    for part in text.split(",") if text.strip() else []:
        name, _, value = (word.strip() for word in part.partition("="))
        if not name or not value:
            raise SettingsError(
                "--optimizer-options is a list of name=value such as betas=0.9:0.99,eps=1e-6, "
                f"got {part.strip()!r}"
            )
        if name in options:
            raise SettingsError(f"--optimizer-options has {name} twice")
        values = [_value(name, word) for word in value.split(":")]
        options[name] = tuple(values) if len(values) > 1 else values[0]  # type: ignore[arg-type]
    return options


def _value(name: str, text: str) -> bool | int | float | str | None:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        number = int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        raise SettingsError(f"--optimizer-options {name} must be a finite number, got {text}")
    return number

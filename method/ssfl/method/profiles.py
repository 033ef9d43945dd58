"""Named sets of defaults: what the paper says, what its released code does, and what we advise.

A setting that is given wins over the profile, and the profile over the plain default. `ours` is
the defaults themselves. docs/profiles.md says where the three differ and why.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ssfl.method.errors import SettingsError

DEFAULT = "ours"
PROFILES: dict[str, dict[str, Any]] = {
    "ours": {},
    # The text of the paper: section 4 and Algorithm 1. It names no clipping of gradients.
    "paper": {
        "sparsity": "0.5",
        "rounds": 500,
        "client_fraction": 0.1,
        "local_epochs": 5,
        "batch_size": 16,
        "learning_rate": 0.1,
        "lr_decay": 0.998,
        "momentum": 0.0,
        "weight_decay": 5e-4,
        "clip_norm": 0.0,
        "initialization": "kaiming-normal",
        "scoring_batches": 1,
        "scoring_samples": "balanced",
        "score_weights": "samples",
        "scores": "exact",
        "personalize_epochs": 5,
    },
    # The published code for CIFAR-10: its round counter starts at 1, so the first learning rate
    # is 0.1 * 0.998; it scores the first shuffled minibatch and averages scores plainly.
    "released": {
        "sparsity": "0.5",
        "rounds": 999,
        "client_fraction": 0.1,
        "local_epochs": 5,
        "batch_size": 16,
        "learning_rate": 0.0998,
        "lr_decay": 0.998,
        "momentum": 0.0,
        "weight_decay": 5e-4,
        "clip_norm": 10.0,
        "initialization": "torch-default",
        "scoring_batches": 1,
        "scoring_samples": "plain",
        "score_weights": "equal",
        "scores": "exact",
    },
}

# Settings that say the same thing in another way: who gives the first means it instead of what
# the profile says of the second.
_INSTEAD = {"clients_per_round": "client_fraction"}


def with_profile(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are given, and those that their `profile` adds to them.

    Raises SettingsError for a profile that there is not.

    Examples:
        >>> settings = with_profile({"profile": "paper", "rounds": 7})
        >>> settings["rounds"], settings["sparsity"]
        (7, '0.5')
        >>> with_profile({"rounds": 7})
        {'rounds': 7}
    """
    name = given.get("profile", DEFAULT)
    if name not in PROFILES:
        raise SettingsError(f"--profile must be one of {', '.join(PROFILES)}, got {name!r}")
    return {**preset_defaults(PROFILES[name], given), **given}


def preset_defaults(preset: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Return what a preset says about settings that are not given, in this way or another.

    Examples:
        >>> preset_defaults({"client_fraction": 0.1, "rounds": 500}, {"clients_per_round": 5})
        {'rounds': 500}
    """
    said = {*given, *(_INSTEAD[name] for name in given if name in _INSTEAD)}
    return {name: value for name, value in preset.items() if name not in said}

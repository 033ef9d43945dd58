"""Named sets of defaults: those of the paper, of its released code, and ours.

A given setting overrides the profile, and the profile overrides the plain default. `ours` is the
plain defaults. docs/profiles.md explains the differences.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ssfl.method.errors import SettingsError

DEFAULT = "ours"
PROFILES: dict[str, dict[str, Any]] = {
    "ours": {},
    # The text of the paper: section 4 and Algorithm 1. It does not mention gradient clipping. Nor
    # does it mention augmentation and normalization, which its code has for all its data sets;
    # `auto` applies them, and the initialization of the text, to images of these data sets.
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
        "augment": "auto",
        "normalize": "auto",
        "initialization": "auto",
        "scoring_batches": 1,
        "scoring_samples": "balanced",
        "score_weights": "samples",
        "scores": "exact",
        "personalize_epochs": 5,
    },
    # The published code for CIFAR-10. Its round counter starts at 1, so the first learning rate
    # is 0.1 * 0.998. It scores the first shuffled minibatch, augmented, and averages scores with
    # equal weights.
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
        "augment": "auto",
        "normalize": "auto",
        "initialization": "torch-default",
        "scoring_batches": 1,
        "scoring_samples": "plain",
        "scoring_augment": True,
        "score_weights": "equal",
        "scores": "exact",
    },
}

# Settings that express the same thing: giving the first overrides the profile's second.
_OVERRIDES = {"clients_per_round": "client_fraction"}


def with_profile(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings, completed by those of their `profile`.

    Raise SettingsError for an unknown profile.

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
    """Return the settings of a preset that are not overridden by `given`.

    Examples:
        >>> preset_defaults({"client_fraction": 0.1, "rounds": 500}, {"clients_per_round": 5})
        {'rounds': 500}
    """
    overridden = {*given, *(_OVERRIDES[name] for name in given if name in _OVERRIDES)}
    return {name: value for name, value in preset.items() if name not in overridden}

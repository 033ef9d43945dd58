"""Named sets of defaults: what the paper says, what its released code does, and what we advise.

A setting that is given wins over the profile, and the profile over the plain default. `ours` is
the defaults themselves. docs/profiles.md says where the three differ and why.
"""

from typing import Any

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

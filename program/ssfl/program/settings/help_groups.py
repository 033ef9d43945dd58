"""The groups of settings that --help can show, for every program.

A program with more than MAX_SHOWN settings shows the basic ones in `--help`. `--help GROUP` shows
one group and `--help all` shows every setting. A setting has the same group in every program that
has it. A setting without a group is always shown.
"""

from dataclasses import dataclass

MAX_SHOWN = 15  # plain --help shows every setting of a program with at most this many
ALL = "all"


@dataclass(frozen=True, slots=True)
class Group:
    """Settings that --help shows together; `about` is the line that introduces them."""

    name: str
    about: str
    settings: tuple[str, ...]


GROUPS = (
    Group(
        "run",
        "strategy, number of rounds, seed, first model",
        ("profile", "strategy", "strategy_options", "rounds", "seed", "reproducible", "init",
         "dense", "grid", "seeds", "mode", "estimate"),
    ),
    Group(
        "model",
        "task and neural network",
        ("task", "model", "norm", "width", "normalize", "initialization", "input", "classes"),
    ),
    Group(
        "masks",
        "sparsity and how the first mask is chosen",
        ("sparsity", "bytes_per_round", "sparsity_schedule", "criterion", "scoring_batches",
         "scoring_samples", "scoring_augment", "score_weights", "scoring_quorum", "layer_guard",
         "warmup_rounds"),
    ),
    Group(
        "refresh",
        "when and how the mask is refreshed",
        ("refresh_rounds", "refresh_every", "refresh_on_new_labels", "refresh_on_loss_jump",
         "refresh_mode", "deactivated", "scoring_point"),
    ),
    Group(
        "clients",
        "how many clients take part in the run and in a round",
        ("clients", "min_clients", "clients_per_round", "client_fraction", "newcomers_per_round",
         "over_selection", "late_clients", "late_round", "late_classes"),
    ),
    Group(
        "training",
        "local training and the mean of updates",
        ("local_epochs", "local_steps", "batch_size", "augment", "optimizer", "optimizer_options",
         "optimizer_state", "learning_rate", "lr_schedule", "lr_decay", "lr_warmup_rounds",
         "local_schedule", "momentum", "weight_decay", "clip_norm", "update_weights", "averaging"),
    ),
    Group(
        "evaluation",
        "tests of the model, early end, personal models",
        ("evaluate_every", "evaluate_last", "target_accuracy", "patience", "personalize_epochs",
         "personalize_lr"),
    ),
    Group(
        "encoding",
        "how scores and values are encoded on the wire",
        ("scores", "value_type", "grid_bits", "rounding", "error_feedback", "downloads",
         "reference_coding"),
    ),
    Group(
        "protection",
        "guards against clients that claim or send too much",
        ("max_samples", "samples_over_max", "max_update_norm", "score_outliers"),
    ),
    Group(
        "waiting",
        "deadlines, and when the program ends",
        ("round_deadline_s", "no_progress_s", "give_up_after", "exit_on_stall", "exit_when_done"),
    ),
    Group(
        "data",
        "data sets, shards and partitions",
        ("data", "data_root", "source", "path", "download", "mirror", "test", "label", "target",
         "ignore", "missing", "standardize", "layout", "image_size", "grey", "pool", "partition",
         "alpha", "classes_per_client", "samples_per_client", "validation", "test_share",
         "share_class_counts", "share_labels"),
    ),
    Group(
        "network",
        "addresses, ports and names",
        ("coordinator", "client_id", "host", "port", "admin_host", "admin_port", "link", "up",
         "down", "rtt", "coordinator_link"),
    ),
    Group(
        "security",
        "TLS and the join token",
        ("tls_cert", "tls_key", "tls_ca", "tls_server_name", "join_token_file", "insecure"),
    ),
    Group(
        "output",
        "folders for state and results",
        ("state_dir", "fresh", "keep_uploads", "out_dir", "out", "overwrite", "json"),
    ),
    Group(
        "monitoring",
        "status page, metrics, health probes, log",
        ("status_port", "status_host", "metrics_port", "metrics_host", "health_port",
         "log_format", "log_level"),
    ),
    Group(
        "resources",
        "device, threads, memory and connections",
        ("device", "threads", "workers", "upload_slots", "max_clients", "max_connections",
         "max_model_values"),
    ),
)  # fmt: skip

BASIC = frozenset(
    (
        *("grid", "seeds", "mode", "rounds", "seed", "dense", "task", "model", "input", "classes"),
        *("sparsity", "clients", "local_epochs", "learning_rate", "data", "data_root"),
        *("source", "label", "test", "partition", "alpha", "coordinator", "client_id"),
        *("host", "port", "link", "state_dir", "fresh", "out_dir", "out", "json", "status_port"),
    )
)


def group_of(setting: str) -> Group | None:
    """Return the group that holds a setting; None if no group does."""
    return next((group for group in GROUPS if setting in group.settings), None)

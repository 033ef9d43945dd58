from dataclasses import fields
from typing import Any

import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.settings import MAX_SEED, RunSettings
from ssfl.strategies.registry import check_settings

INF, NAN = float("inf"), float("nan")


def refusal(**changes: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        check_settings(RunSettings(**changes))
    return str(caught.value)


def test_the_defaults_are_valid_and_every_setting_is_explained() -> None:
    check_settings(RunSettings())
    for option in fields(RunSettings):
        assert option.metadata["help"], option.name


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 0},
        {"seed": MAX_SEED},
        {"clients": 2, "min_clients": 2},
        {"clients_per_round": 2},
        {"clients": 3, "reproducible": True},
        {"bytes_per_round": "2MB"},
        {"momentum": 0.99},
        {"clip_norm": 0.0},
        {"min_clients": 1, "clients": 1},
        {"strategy": "fedavg", "model": "resnet18"},
    ],
)
def test_these_settings_are_valid(changes: dict[str, Any]) -> None:
    check_settings(RunSettings(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"strategy": "magic"},
            "--strategy must be one of d-psgd, dispfl, ditto, fedavg, feddst, ",
        ),
        (
            {"model": "vgg"},
            "--model must be one of mlp, cnn, cnn-small, lenet5, resnet18, resnet50, resnet8, "
            "resnet20, resnet32, resnet44, resnet56, resnet110, got 'vgg'",
        ),
        ({"rounds": 0}, "--rounds must be a number of at least 1, got 0"),
        ({"clients": -1}, "--clients must be a number of at least 0, got -1"),
        ({"min_clients": 0}, "--min-clients must be a number of at least 1, got 0"),
        ({"local_epochs": 0}, "--local-epochs must be a number of at least 1, got 0"),
        ({"batch_size": 0}, "--batch-size must be a number of at least 1, got 0"),
        ({"learning_rate": 0.0}, "--learning-rate must be above 0, got 0.0"),
        ({"learning_rate": -1.0}, "--learning-rate must be a number of at least 0, got -1.0"),
        ({"learning_rate": NAN}, "--learning-rate must be a number of at least 0, got nan"),
        ({"weight_decay": INF}, "--weight-decay must be a number of at least 0, got inf"),
        ({"lr_decay": 0.0}, "--lr-decay must be above 0, got 0.0"),
        ({"round_deadline_s": 0.0}, "--round-deadline-s must be above 0, got 0.0"),
        ({"no_progress_s": -1.0}, "--no-progress-s must be a number of at least 0, got -1.0"),
        ({"momentum": 1.0}, "--momentum must be at least 0 and below 1, got 1.0"),
        (
            {"bytes_per_round": "2MB", "strategy": "fedavg"},
            "--bytes-per-round needs a sparse strategy: fedavg keeps everything",
        ),
        ({"rounds": 2**40}, "--rounds must be at most 2147483647, got 1099511627776"),
        ({"seed": -1}, "--seed must be a number of at least 0, got -1"),
        ({"seed": MAX_SEED + 1}, f"--seed must be at most {MAX_SEED}, got {MAX_SEED + 1}"),
        ({"sparsity": "90"}, "--sparsity: sparsity must lie strictly between 0 and 1, got 90 (wr"),
        ({"sparsity": "nan"}, "--sparsity: sparsity must be a number such as 0.9, got 'nan'"),
        ({"bytes_per_round": "2 apples"}, "--bytes-per-round: a size is a number and B, kB, MB"),
        (
            {"clients": 2, "min_clients": 3},
            "--clients 2 is below --min-clients 3: the run could never start",
        ),
        (
            {"clients_per_round": 1},
            "--clients-per-round 1 is below --min-clients 2: no round could count",
        ),
        (
            {"reproducible": True},
            "--reproducible needs --clients N: a fixed set of clients",
        ),
    ],
)
def test_invalid_settings_are_refused_naming_the_flag(
    changes: dict[str, Any], message: str
) -> None:
    assert refusal(**changes).startswith(message)


GROW: dict[str, Any] = {"refresh_mode": "grow", "sparsity_schedule": "0:0.98,9:0.95"}
ADDS_THE_BEST = (
    "--refresh-mode grow adds the best-scoring weights to a mask: it cannot be combined with"
)
ADDS_BY_SCHEDULE = (
    "--refresh-mode grow adds weights at the rounds of --sparsity-schedule: leave out"
)
NEVER = "a mask can be refreshed after round"


@pytest.mark.parametrize(
    ("changes", "wrong", "message"),
    [
        (GROW, {"criterion": "random"}, ADDS_THE_BEST),
        (GROW, {"criterion": "shuffled"}, ADDS_THE_BEST),
        (GROW, {"layer_guard": 0.01}, ADDS_THE_BEST),
        (GROW, {"refresh_rounds": "3"}, ADDS_BY_SCHEDULE),
        (GROW, {"refresh_every": 3}, ADDS_BY_SCHEDULE),
        (GROW, {"refresh_on_loss_jump": 2.0}, ADDS_BY_SCHEDULE),
        ({"rounds": 9}, {"refresh_rounds": "8,9"}, f"--refresh-rounds 9: {NEVER} 0 and before"),
        (
            {"rounds": 9, "warmup_rounds": 3},
            {"refresh_rounds": "8,3"},
            f"--refresh-rounds 3: {NEVER} 3 and before the last, 9",
        ),
        (
            {"criterion": "client-random"},
            {"warmup_rounds": 1},
            "--criterion client-random gives every client its own fixed mask: it cannot be "
            "combined with --warmup-rounds",
        ),
        (
            {"scoring_point": "masked"},
            {"criterion": "grasp"},
            "--scoring-point masked is for saliency: grasp would score",
        ),
        (
            {"scoring_point": "masked"},
            {"criterion": "synflow"},
            "--scoring-point masked is for saliency: synflow would score",
        ),
    ],
)
def test_settings_of_the_mask_that_contradict_each_other_are_refused(
    changes: dict[str, Any], wrong: dict[str, Any], message: str
) -> None:
    check_settings(RunSettings(**changes))
    assert refusal(**changes, **wrong).startswith(message)


@pytest.mark.parametrize("planned", ["1", "8", "1,8"])
def test_a_mask_may_be_refreshed_before_any_round_but_the_first(planned: str) -> None:
    check_settings(RunSettings(rounds=9, refresh_rounds=planned))
    check_settings(RunSettings(rounds=9, refresh_rounds="4", warmup_rounds=3))


def test_no_number_may_be_negative_or_not_a_number() -> None:
    numbers = [
        option.name for option in fields(RunSettings) if type(option.default) in (int, float)
    ]
    assert len(numbers) > 10
    for name in numbers:
        flag = "--" + name.replace("_", "-")
        for wrong in (-1, NAN, INF):
            assert refusal(**{name: wrong}).startswith(flag), name

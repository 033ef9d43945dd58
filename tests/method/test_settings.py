from dataclasses import fields
from typing import Any

import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.settings import MAX_SEED, RunSettings

INF, NAN = float("inf"), float("nan")


def refusal(**changes: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        RunSettings(**changes).validate()
    return str(caught.value)


def test_the_defaults_are_valid_and_every_setting_is_explained() -> None:
    RunSettings().validate()
    for one in fields(RunSettings):
        assert one.metadata["help"], one.name


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
def test_these_are_possible(changes: dict[str, Any]) -> None:
    RunSettings(**changes).validate()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "magic"}, "--strategy must be one of ssfl, fedavg, got 'magic'"),
        (
            {"model": "vgg"},
            "--model must be one of mlp, cnn, cnn-small, lenet5, resnet18, resnet50, resnet20, "
            "resnet32, resnet44, resnet56, resnet110, got 'vgg'",
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
            "--reproducible needs --clients N: who takes part must be fixed",
        ),
    ],
)
def test_what_cannot_work_is_refused_naming_the_flag(changes: dict[str, Any], message: str) -> None:
    assert refusal(**changes).startswith(message)


def test_no_number_may_be_negative_or_not_a_number() -> None:
    numbers = [one.name for one in fields(RunSettings) if type(one.default) in (int, float)]
    assert len(numbers) > 10
    for name in numbers:
        flag = "--" + name.replace("_", "-")
        for wrong in (-1, NAN, INF):
            assert refusal(**{name: wrong}).startswith(flag), name

from typing import Any

import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.optimizers import OPTIONS, parse_options
from ssfl.method.schedule import parse_lr_schedule
from ssfl.method.settings import RunSettings


def settings(**changes: Any) -> RunSettings:
    return RunSettings(**{"learning_rate": 0.001, "weight_decay": 0.0, **changes})


@pytest.mark.parametrize("name", [*OPTIONS, "Adam", "AdamW", "RMSprop", "SGD"])
def test_every_optimizer_is_a_setting_in_capitals_or_not(name: str) -> None:
    settings(optimizer=name).validate()


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        (" betas = 0.9:0.99 , eps=1e-6", {"betas": (0.9, 0.99), "eps": 1e-6}),
        ("ns_steps=5,nesterov=False", {"ns_steps": 5, "nesterov": False}),
        (
            "eps=none:0.001,adjust_lr_fn=original",
            {"eps": (None, 0.001), "adjust_lr_fn": "original"},
        ),
    ],
)
def test_options_are_numbers_words_and_tuples(text: str, options: dict[str, Any]) -> None:
    parsed = parse_options(text)
    assert parsed == options
    assert [type(value) for value in parsed.values()] == [type(v) for v in options.values()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": "LBFGS"},
            "--optimizer LBFGS cannot train inside a mask: it computes the loss several times in a "
            "step. Choose another, such as adam, or call it in the task's own fit",
        ),
        (
            {"optimizer": "sparseadam"},
            "--optimizer sparseadam cannot train inside a mask: it needs sparse gradients, and "
            "those of masked weights are dense. Choose adam",
        ),
        ({"optimizer": "adm"}, "--optimizer must be one of sgd, adadelta, adafactor, adagrad, "),
        ({"optimizer": ""}, "--optimizer must be one of sgd, "),
        (
            {"optimizer": "adamw", "optimizer_options": "beta=0.9"},
            "--optimizer-options: adamw has betas and eps and amsgrad, got 'beta'",
        ),
        (
            {"optimizer_options": "momentum=0.9"},
            "--optimizer-options: sgd has dampening and nesterov, got 'momentum'",
        ),
        (
            {"optimizer": "adam", "optimizer_options": "betas"},
            "--optimizer-options is a list of name=value such as betas=0.9:0.99,eps=1e-6, "
            "got 'betas'",
        ),
        (
            {"optimizer": "adam", "optimizer_options": "eps=1e-6,eps=1e-7"},
            "--optimizer-options has eps twice",
        ),
        (
            {"optimizer": "adam", "optimizer_options": "eps=nan"},
            "--optimizer-options eps must be a finite number, got nan",
        ),
        (
            {"optimizer_options": "nesterov=true", "momentum": 0.0},
            "--optimizer-options nesterov=true needs --momentum above 0 and no dampening",
        ),
        (
            {"optimizer": "rprop", "weight_decay": 5e-4},
            "--optimizer rprop has no weight decay: give --weight-decay 0",
        ),
        (
            {"optimizer": "adam", "learning_rate": 0.1},
            "--learning-rate 0.1 is for sgd: --optimizer adam needs a smaller one, such as 0.001",
        ),
        (
            {"lr_schedule": "step:30"},
            "--lr-schedule must be decay, cosine or step:ROUNDS:FACTOR such as step:30:0.1 "
            "(a factor of at most 1), got 'step:30'",
        ),
        ({"lr_schedule": "linear"}, "--lr-schedule must be decay, cosine or step:ROUNDS:FACTOR"),
        ({"lr_schedule": "step:0:0.1"}, "--lr-schedule must be decay, cosine or "),
        ({"lr_schedule": "step:9:nan"}, "--lr-schedule must be decay, cosine or "),
        ({"lr_schedule": "step:9:1.5"}, "--lr-schedule must be decay, cosine or "),
        (
            {"lr_warmup_rounds": 30},
            "--lr-warmup-rounds 30 must be below --rounds 30",
        ),
    ],
)
def test_settings_that_no_optimizer_can_use_are_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(**changes).validate()
    assert str(caught.value).startswith(message)


def test_a_schedule_is_a_word_or_a_step() -> None:
    assert parse_lr_schedule("decay") == ("decay", 0, 1.0)
    assert parse_lr_schedule("step:5:0.5") == ("step", 5, 0.5)

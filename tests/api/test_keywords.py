from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ssfl.api.simulation import run_settings
from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings


def test_without_keywords_the_settings_are_those_of_the_coordinator() -> None:
    settings = run_settings({}, clients=3)
    usual = RunSettings()
    changed = {
        field.name
        for field in fields(RunSettings)
        if getattr(settings, field.name) != getattr(usual, field.name)
    }
    assert changed == {"clients", "reproducible"}
    assert (settings.clients, settings.reproducible) == (3, True)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("sparsity", 0.9, "0.9"),
        ("sparsity", "0.90", "0.90"),
        ("sparsity", np.float64(0.95), "0.95"),
        ("bytes_per_round", "2MB", "2MB"),
        ("bytes_per_round", 20000, "20000"),
        ("learning_rate", 1, 1.0),
        ("learning_rate", 1e-30, 1e-30),
        ("local_steps", np.int64(3), 3),
        ("error_feedback", False, False),
    ],
)
def test_values_are_parsed_like_those_of_flags(name: str, given: Any, expected: Any) -> None:
    found = getattr(run_settings({name: given}, clients=2), name)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"sparsity": 90}, r"^sparsity: sparsity must lie strictly between 0 and 1, got 90"),
        ({"rounds": 2.5}, r"^rounds must be a whole number, got '2\.5'"),
        ({"rounds": 0}, r"^rounds must be at least 1"),
        ({"learning_rate": 0}, r"^learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, r"^learning_rate must be a finite number"),
        ({"value_type": "int4"}, r"^value_type must be one of float32, "),
        ({"momentum": 1.0}, r"^momentum must be at least 0 and below 1"),
        ({"clients_per_round": 1}, r"^clients_per_round 1 is below min_clients 2"),
        ({"min_clients": 4}, r"^clients 3 is below min_clients 4"),
        ({"clients": 5}, r"^clients is 5, but there are 3 shards"),
        ({"error_feedback": "perhaps"}, r"^error_feedback must be true or false"),
        ({"bytes_per_round": "much"}, r"^bytes_per_round: a size is a number"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_keyword(
    keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        run_settings(keywords, clients=3)


def test_a_profile_sets_the_other_settings() -> None:
    assert run_settings({"profile": "paper"}, clients=3).rounds == 500


def test_an_unknown_keyword_is_a_type_error_with_the_closest_one() -> None:
    with pytest.raises(TypeError, match=r"^local_epoch is not a .*; did you mean local_epochs\?$"):
        run_settings({"local_epoch": 1}, clients=3)
    with pytest.raises(TypeError, match=r"^zzz is not a setting of a run$"):
        run_settings({"zzz": 1}, clients=3)

"""The sped-up copy of the rules differs only in its waiting times."""

import pytest
import yaml
from monitoring.build import HERE
from monitoring.servers import hurried_rules, seconds_of


def test_durations_are_parsed_as_in_prometheus() -> None:
    assert [seconds_of(text) for text in ("15s", "3m", "1h30m", "1d")] == [15, 180, 5400, 86400]
    with pytest.raises(ValueError, match="'3 minutes' is not a Prometheus duration"):
        seconds_of("3 minutes")


def test_only_the_for_durations_of_alerts_are_divided() -> None:
    plain = yaml.safe_load((HERE / "rules.yml").read_text("utf-8"))
    hurried = hurried_rules(60.0)
    for group, quick in zip(plain["groups"], hurried["groups"], strict=True):
        for rule, other in zip(group["rules"], quick["rules"], strict=True):
            waits = rule.pop("for", None)
            assert other.pop("for", None) == (waits and f"{seconds_of(waits) // 60}s")
            assert rule == other

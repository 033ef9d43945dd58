"""Every setting of a program with many settings is in one group, and --help stays short."""

from collections import Counter

import pytest

from ssfl.client.config import ClientConfig
from ssfl.program.settings.help_groups import ALL, BASIC, GROUPS, MAX_SHOWN, group_of
from ssfl.program.settings.options import options_of
from ssfl.server.config import CoordinatorConfig
from ssfl.tools.check.command import CheckConfig
from ssfl.tools.local.rehearse import RehearseConfig
from ssfl.tools.plan.command import PlanConfig
from ssfl.tools.shards.command import ShardsConfig
from ssfl.tools.simulate.command import OPTIONS

PROGRAMS = {
    "ssfl-coordinator": [option.name for option in options_of(CoordinatorConfig)],
    "ssfl-client": [option.name for option in options_of(ClientConfig)],
    "ssfl check": [option.name for option in options_of(CheckConfig)],
    "ssfl plan": [option.name for option in options_of(PlanConfig)],
    "ssfl rehearse": [option.name for option in options_of(RehearseConfig)],
    "ssfl shards": [option.name for option in options_of(ShardsConfig)],
    "ssfl simulate": [option.name for option in OPTIONS],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_setting_of_a_large_program_has_a_group(program: str) -> None:
    names = PROGRAMS[program]
    assert len(names) > MAX_SHOWN
    assert [name for name in names if group_of(name) is None] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_plain_help_shows_a_few_basic_settings(program: str) -> None:
    assert 5 <= len(BASIC & set(PROGRAMS[program])) <= MAX_SHOWN


def test_groups_hold_each_setting_once_and_no_other_name() -> None:
    counts = Counter(name for group in GROUPS for name in group.settings)
    assert max(counts.values()) == 1
    assert set(counts) == {name for names in PROGRAMS.values() for name in names}
    assert set(counts) >= BASIC
    assert ALL not in {group.name for group in GROUPS}

"""The memory limit of a process, by its control groups."""

import os
from pathlib import Path

from ssfl.server.accounting.memory import memory_limit_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_lowest_limit_of_the_parent_control_groups_applies(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    own = groups / "pod" / "container"
    own.mkdir(parents=True)
    (groups / "pod" / "memory.max").write_text("500000\n")
    (own / "memory.max").write_text("max\n")
    (tmp_path / "memory.max").write_text("1\n")  # outside the groups: ignored
    assert memory_limit_bytes(groups, "/pod/container") == 500_000


def test_limits_of_cgroup_v1_apply(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("700000\n")
    assert memory_limit_bytes(tmp_path, "/") == 700_000


def test_without_control_groups_the_limit_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path / "none", "/pod") == MACHINE
    assert 0 < memory_limit_bytes() <= MACHINE

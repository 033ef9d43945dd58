import os
from pathlib import Path

import pytest

from ssfl.learning.cores import usable_cores


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_limits_every_pinned_core_is_usable(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 16


def test_without_pinning_every_core_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert usable_cores(tmp_path) == 10


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("400000 100000\n", 4), ("150000 100000\n", 1), ("50000 100000\n", 1), ("max 100000\n", 16),
     ("6400000 100000\n", 16), ("", 16), ("nonsense\n", 16), ("1 0\n", 16)],
)  # fmt: skip
def test_the_quota_of_a_container_is_rounded_down_to_whole_cores(
    tmp_path: Path, limit: str, cores: int
) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": limit}
    assert usable_cores(write(tmp_path, files)) == cores


def test_the_tightest_group_around_the_process_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/user.slice/job\n",
        "sys/fs/cgroup/user.slice/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/user.slice/job/cpu.max": "800000 100000\n",
        "sys/fs/cgroup/other/cpu.max": "100000 100000\n",
    }
    assert usable_cores(write(tmp_path, files)) == 2


@pytest.mark.parametrize(("quota", "cores"), [("300000", 3), ("-1", 16)])
def test_version_1_of_cgroups_is_read(tmp_path: Path, quota: str, cores: int) -> None:
    files = {
        "proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/docker/ab:c\n1:name=systemd:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": f"{quota}\n",  # seen from inside, the group is /
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert usable_cores(write(tmp_path, files)) == cores

"""How many CPU cores this process may use: not what the machine has, but what it is given.

A process may be pinned to some cores (taskset, Slurm), and a container may be given a share of
them (cgroups, versions 1 and 2). More threads than that only wait for each other.
"""

import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores this process may use, at least one; half a core counts as none."""
    if hasattr(os, "sched_getaffinity"):
        pinned = len(os.sched_getaffinity(0))
    else:  # macOS
        pinned = os.cpu_count() or 1
    return max(1, int(min([pinned, *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    """Yield every limit on this process's share of the cores, in cores."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers == "":  # version 2
            for folder in _and_above(root / "sys/fs/cgroup", place):
                yield from _quota(_read(folder / "cpu.max"))
        elif "cpu" in controllers.split(","):
            for folder in _and_above(root / "sys/fs/cgroup/cpu", place):
                limit = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
                yield from _quota(" ".join(limit))


def _and_above(mount: Path, place: str) -> Iterator[Path]:
    """Yield a group's folder and those of the groups around it; in a container, some are hidden."""
    folder = mount / place.lstrip("/")
    yield from [folder, *folder.parents[: len(folder.parts) - len(mount.parts)]]


def _quota(text: str) -> Iterator[float]:
    """Yield microseconds of computing per microsecond, unless there is no limit (max, or -1)."""
    match text.split():
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # another system, or not ours to see: no limit that we know of
        return ""

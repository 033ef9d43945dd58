"""The number of CPU cores that this process may use.

A process may be pinned to some cores (taskset, Slurm), and cgroups (versions 1 and 2) may limit
a container's share of them. More threads than that only wait for each other.
"""

import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores this process may use, rounded down, at least one."""
    if hasattr(os, "sched_getaffinity"):
        pinned = len(os.sched_getaffinity(0))
    else:  # macOS
        pinned = os.cpu_count() or 1
    return max(1, int(min([pinned, *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    """Yield every cgroup limit of this process, in cores."""
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
    """Yield the folder of a cgroup and of its parents; a container cannot see all of them."""
    folder = mount / place.lstrip("/")
    yield from [folder, *folder.parents[: len(folder.parts) - len(mount.parts)]]


def _quota(text: str) -> Iterator[float]:
    """Yield CPU time per wall time; nothing if there is no limit (max, or -1)."""
    match text.split():
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # another system, or hidden from this process: no known limit
        return ""

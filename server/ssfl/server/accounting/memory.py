"""Memory and disk usage of the coordinator."""

import os
import resource
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process."""
    try:  # getrusage would include the parent process
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


@cache
def memory_limit_bytes(groups: Path = Path("/sys/fs/cgroup"), own: str = "") -> int:
    """Return the memory limit of this process: that of its control group or of the machine."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = groups / (own or _control_group()).lstrip("/")
    for place in (group, *group.parents):  # a parent group may have a lower limit
        with suppress(OSError, ValueError):  # no file, or "max"
            limit = min(limit, int((place / "memory.max").read_text()))
        if place == groups:
            break
    with suppress(OSError, ValueError):  # cgroup v1
        limit = min(limit, int((groups / "memory" / "memory.limit_in_bytes").read_text()))
    return limit


def _control_group() -> str:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return line.removeprefix("0::")
    return "/"


def folder_bytes(folder: Path) -> int:
    """Return the size of all files under a folder, which may change during the call."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(place, name).stat().st_size
            except FileNotFoundError:
                continue
    return total

"""How much memory and disk the coordinator takes."""

import os
import resource
import sys
from pathlib import Path


def peak_memory_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    try:  # getrusage would count the process that started us, too
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def folder_bytes(folder: Path) -> int:
    """Return the size of all files under a folder; they may come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(place, name).stat().st_size
            except FileNotFoundError:
                continue
    return total

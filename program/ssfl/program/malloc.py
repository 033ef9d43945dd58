"""glibc's heap: reused for the buffers of messages, trimmed after many messages."""

import ctypes
import gc
from typing import Any

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8  # malloc.h
_MIB = 2**20
_RECLAIM_EVERY = 4 * _MIB


def _of_glibc(function: str) -> Any:
    """Return a function of glibc; None without glibc."""
    try:
        return getattr(ctypes.CDLL(None), function)
    except (AttributeError, OSError, TypeError):
        return None


def keep_chunk_buffers() -> None:
    """Serve buffers up to 4 MiB from a heap that is kept; do nothing without glibc.

    By default glibc maps each large buffer and unmaps it when freed, so each message of a
    megabyte pays a page fault for every 4 KiB: several times its real cost. Whole vectors are
    larger and few. They are mapped, so that freeing them returns their memory at once (ResNet-18
    scoring: 296 MB at its peak, 348 MB with everything on the heap).
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, 4 * _MIB)
    # The process keeps up to 64 MiB of free memory for the chunks of concurrent uploads. 16 MiB
    # survive a trim, so that the next upload does not grow the heap page by page.
    mallopt(_M_TRIM_THRESHOLD, 64 * _MIB)
    mallopt(_M_TOP_PAD, 16 * _MIB)
    # Two heaps for all threads: with one heap each, gRPC's threads cannot share free memory.
    mallopt(_M_ARENA_MAX, 2)


def trim_heap() -> None:
    """Return free heap memory to the kernel; call this after much memory was freed."""
    if malloc_trim := _of_glibc("malloc_trim"):
        malloc_trim(0)


class MemoryReclaimer:
    """Frees memory that messages leave behind: reference cycles and holes in the heap."""

    def __init__(self) -> None:
        self._reclaimed_at = 0

    def passed(self, num_bytes: int) -> None:
        """Reclaim memory if _RECLAIM_EVERY bytes have passed since the last time.

        `num_bytes` is the total so far.
        """
        if num_bytes - self._reclaimed_at >= _RECLAIM_EVERY:
            self._reclaimed_at = num_bytes
            gc.collect()
            trim_heap()


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_bytes() -> int | None:
    """Return the memory in use by glibc's count, mapped buffers included; None without glibc.

    Python's own pools of small objects are not included.
    """
    mallinfo2 = _of_glibc("mallinfo2")
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)

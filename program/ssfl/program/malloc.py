"""Memory of messages: kept by glibc from one to the next, cleared away when many have passed."""

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8  # malloc.h
_MIB = 2**20
_RECLAIM_EVERY = 4 * _MIB


def keep_chunk_buffers() -> None:
    """Serve buffers up to 4 MiB from a heap that is kept; nothing happens where glibc is absent.

    By default glibc maps a big buffer afresh and unmaps it when freed, so each message of a
    megabyte pays a page fault for every 4 KiB: several times its real cost. Whole vectors are
    larger and few; they are mapped, so that they are returned at once when freed (ResNet-18
    scoring: 296 MB at its peak, 348 MB with everything on the heap).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 4 * _MIB)
    # Up to 64 MiB of free memory stay ours: the chunks of several uploads at once. 16 MiB survive
    # a trim, so that the next upload does not grow the heap page by page.
    mallopt(_M_TRIM_THRESHOLD, 64 * _MIB)
    mallopt(_M_TOP_PAD, 16 * _MIB)
    # Two heaps for all threads: with one each, every thread of gRPC keeps what others could use.
    mallopt(_M_ARENA_MAX, 2)


def trim_heap() -> None:
    """Return to the kernel what is free inside the heaps: for a moment when much was freed."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


class MemoryReclaimer:
    """What messages leave behind: cycles that hold them, and holes in the heaps."""

    def __init__(self) -> None:
        self._cleared_bytes = 0

    def passed(self, num_bytes: int) -> None:
        """Clear it away, if by now so many bytes have passed that it is worth a millisecond."""
        if num_bytes - self._cleared_bytes >= _RECLAIM_EVERY:
            self._cleared_bytes = num_bytes
            gc.collect()
            trim_heap()


class _Mallinfo2(ctypes.Structure):
    """As malloc.h has it."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_bytes() -> int | None:
    """Return the memory in use as glibc counts it, mapped buffers included; None elsewhere.

    What Python keeps for its own small objects is not in it.
    """
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo2.restype = _Mallinfo2
    told = mallinfo2()
    return int(told.uordblks) + int(told.hblkhd)

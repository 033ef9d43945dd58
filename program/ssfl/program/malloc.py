"""Keep glibc from giving the buffers of messages back to the kernel after each one."""

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8  # malloc.h
_MIB = 2**20


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


def give_back() -> None:
    """Return to the kernel what is free inside the heaps: for a moment when much was freed."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


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

"""Keep glibc from giving big buffers back to the kernel after every message."""

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_MIB = 2**20


def keep_big_buffers() -> None:
    """Serve big buffers from a heap that is kept; nothing happens where glibc is absent.

    By default glibc maps a big buffer afresh and unmaps it when freed, so each message and each
    array of a round pays a page fault for every 4 KiB: several times its real cost.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 1024 * _MIB)
    # Up to 64 MiB of free memory stay ours: the chunks and updates of several uploads at once.
    # Without a limit the largest moment of a run (scoring, at full width) would never be
    # returned. 16 MiB survive a trim, so that the next upload does not grow the heap page by page.
    mallopt(_M_TRIM_THRESHOLD, 64 * _MIB)
    mallopt(_M_TOP_PAD, 16 * _MIB)

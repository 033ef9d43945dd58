import ctypes
import gc
import subprocess
import sys

import pytest

from ssfl.program import malloc

COUNT_FAULTS = """
import resource, sys
from ssfl.program.malloc import keep_chunk_buffers
if sys.argv[1] == "kept":
    keep_chunk_buffers()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(20):
    chunks = [b"x" * (1 << 20) for _ in range(16)]
    del chunks
print(faults() - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt"
)
def test_chunk_buffers_of_several_uploads_are_reused() -> None:
    assert faults("kept") * 4 < faults("default")


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    malloc.keep_chunk_buffers()


def test_memory_is_reclaimed_after_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: cleared.append("cycles"))
    monkeypatch.setattr(malloc, "trim_heap", lambda: cleared.append("holes"))
    garbage, mib = malloc.MemoryReclaimer(), 1 << 20
    for passed in (0, 3 * mib, 4 * mib - 1):
        garbage.passed(passed)
        assert cleared == []
    garbage.passed(4 * mib)
    assert cleared == ["cycles", "holes"]
    garbage.passed(7 * mib)
    assert len(cleared) == 2
    garbage.passed(100 * mib)
    assert len(cleared) == 4

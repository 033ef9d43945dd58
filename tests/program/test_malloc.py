import ctypes
import subprocess
import sys

import pytest

from ssfl.program import malloc

COUNT_FAULTS = """
import resource, sys
from ssfl.program.malloc import keep_big_buffers
if sys.argv[1] == "kept":
    keep_big_buffers()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(20):
    b"x" * (40 << 20)
print(faults() - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt"
)
def test_a_big_buffer_is_not_mapped_afresh_each_time() -> None:
    assert faults("kept") * 4 < faults("default")


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    malloc.keep_big_buffers()

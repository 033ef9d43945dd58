"""Workers of simulations."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np
from ssfl.simulator.processes import keep_freed_memory

def work():
    arrays = [np.ones(1 << 17) for _ in range(8)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if {keep}:
    keep_freed_memory()
work()
before = faults()
for _ in range(20):
    work()
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_memory_that_is_freed_is_used_again_without_page_faults() -> None:
    def faults(keep: bool) -> int:
        script = SCRIPT.format(keep=keep)
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=True, timeout=60
        )
        return int(done.stdout)

    assert faults(True) < 100 < faults(False)

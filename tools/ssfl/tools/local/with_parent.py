"""Run a module as a program that ends with its parent, however the parent ends, on Linux.

The kernel sends the signal, because a killed parent cannot. A function between fork and exec would
also work, but it is not safe in a parent with threads.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; exit if that has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGKILL)


def with_parent() -> list[str]:
    """Return the start of a command; a module and its flags follow."""
    return [sys.executable, "-m", "ssfl.tools.local.with_parent", str(os.getpid())]


def main() -> None:
    """Become the program."""
    parent, module, *flags = sys.argv[1:]
    end_with_parent(int(parent))
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

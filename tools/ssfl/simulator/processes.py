"""How worker processes of simulations start."""

import contextlib
import ctypes
import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, SpawnContext

from ssfl.method.errors import SettingsError
from ssfl.strategies.registry import given_digests, given_files, use_criterion, use_strategy

_IMPORTED = ("torch._dynamo", "ssfl.study.one_run")  # the first optimizer imports the former


# Options of glibc's mallopt and their values in bytes: trim threshold, padding, mmap threshold.
_MALLOC_OPTIONS = {-1: 1 << 30, -2: 1 << 26, -3: 1 << 30}


def worker_context() -> ForkServerContext | SpawnContext:
    """Return the start method of workers: on Linux, forks of one process that has imported torch.

    That process starts with the first worker and ends with this one. Workers started later fork
    from it in a tenth of a second. It keeps the variables of its start: see `Inherited`.
    """
    if sys.platform != "linux":  # other systems' libraries do not survive a fork
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    return context


def keep_freed_memory() -> None:
    """Let glibc keep the memory that it frees, instead of returning it to the system.

    A step of training allocates the same tensors as the one before. If their pages are fresh each
    time, faults take a tenth to a quarter of the step. Elsewhere this does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another libc
            libc = ctypes.CDLL("libc.so.6")
            for option, value in _MALLOC_OPTIONS.items():
                libc.mallopt(option, value)


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a worker takes over from its owner: variables, and files of strategies and criteria."""

    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    files: tuple[tuple[str, ...], tuple[str, ...]] = field(default_factory=given_files)
    digests: Mapping[str, str] = field(default_factory=given_digests)

    def apply(self) -> None:
        """Use it in this process."""
        os.environ.clear()
        os.environ.update(self.variables)
        strategies, criteria = self.files
        for file in strategies:
            use_strategy(file)
        for file in criteria:
            use_criterion(file)
        if changed := [file for file, was in self.digests.items() if given_digests()[file] != was]:
            raise SettingsError(f"{changed[0]} has changed since the command started: run it again")

"""Torch settings of a client, for the duration of a simulation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ssfl.learning.device import prepare_torch


@contextmanager
def client_torch_settings() -> Iterator[None]:
    """Use one thread and deterministic kernels; restore the caller's torch settings afterwards."""
    threads = torch.get_num_threads()
    exact = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic = torch.utils.deterministic
    fill = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with torch.random.fork_rng(devices=[]):
        prepare_torch(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(exact, warn_only=warn_only)
            deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]

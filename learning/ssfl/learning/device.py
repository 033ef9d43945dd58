"""Where tensors live, and what decides the bits of a computation."""

import os

import numpy as np
import torch

from ssfl.learning.errors import DeviceError

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the fastest there is."""
    there = ["cpu"]
    if torch.backends.mps.is_available():
        there.insert(0, "mps")
    if torch.cuda.is_available():
        there.insert(0, "cuda")
    if name == "auto":
        return torch.device(there[0])
    if name not in DEVICES:
        raise DeviceError(f"--device must be one of {', '.join(DEVICES)}, got {name!r}")
    if name not in there:
        raise DeviceError(
            f"--device {name}: this machine, or its torch, has only {', '.join(there)}"
        )
    return torch.device(name)


def prepare_torch(threads: int) -> None:
    """Fix the number of threads and choose deterministic kernels wherever torch has them.

    The bits of a sum depend on how it is split among threads, so the default is one. Call this
    before the first use of a GPU.
    """
    if threads < 1:
        raise DeviceError(f"--threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS: repeatable sums
    torch.use_deterministic_algorithms(True, warn_only=True)
    # A debugging aid that comes with it and costs time; torch's own stubs do not know it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def fingerprint(device: torch.device) -> str:
    """Return what the bits of training depend on: equal fingerprints, equal bits."""
    threads = torch.get_num_threads()
    parts = [
        f"torch {torch.__version__}",
        torch.backends.cpu.get_cpu_capability(),
        f"{threads} thread{'s' if threads > 1 else ''}",
        f"numpy {np.__version__}",
    ]
    if device.type == "cuda":
        parts[1:1] = [torch.cuda.get_device_name(device), f"CUDA {torch.version.cuda}"]
    elif device.type != "cpu":
        parts.insert(1, device.type)
    return ", ".join(parts)

"""Choice of the device, and the settings that make torch deterministic.

docs/devices.md is the user's page. The cuda and mps paths are tested with a fake device
(tests/learning/fake_device.py), not on a real GPU.
"""

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ssfl.learning.cores import usable_cores
from ssfl.learning.errors import DeviceError, TaskError

log = logging.getLogger("ssfl.learning")

DEVICES = ("auto", "cpu", "cuda", "mps")
_CPU_WORKS = "--device cpu works everywhere"
_NO_MEMORY = r"out of memory|can't allocate memory|ALLOC_FAILED"


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the fastest that works.

    A GPU is tested before it is returned: one that is full, or too old for this torch, is
    refused. `auto` then logs a warning and tries the next device.
    """
    if name not in DEVICES:
        number = name.removeprefix("cuda:")
        hint = f"; for that GPU, set CUDA_VISIBLE_DEVICES={number}" if number != name else ""
        raise DeviceError(f"--device must be one of {', '.join(DEVICES)}, got {name!r}{hint}")
    if name == "cpu":
        return torch.device(name)
    if name != "auto":
        if reason := _why_absent(name):
            raise DeviceError(f"--device {name}: {reason}; {_CPU_WORKS}")
        return _tested(name)
    for candidate in ("cuda", "mps"):
        if not _why_absent(candidate):
            try:
                return _tested(candidate)
            except DeviceError as error:
                log.warning("%s: trying the next device", error)
    return torch.device("cpu")


def prepare_torch(threads: int) -> None:
    """Set the number of threads and choose deterministic kernels where torch has them.

    The bits of a sum depend on its split among threads, so the default is one; 0 means every core
    this process may use. Call this before the first use of a GPU.
    """
    if threads < 0:
        raise DeviceError(f"--threads must be 0 (every core) or more, got {threads}")
    torch.set_num_threads(threads or usable_cores())
    if torch.get_num_interop_threads() != 1:  # a separate pool that only torch.jit.fork uses
        with contextlib.suppress(RuntimeError):  # already started; it does not affect results
            torch.set_num_interop_threads(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS: repeatable sums
    torch.use_deterministic_algorithms(True, warn_only=True)
    # A debugging aid that deterministic mode enables and that costs time; not in torch's stubs.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextlib.contextmanager
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


@contextlib.contextmanager
def working_on(device: torch.device) -> Iterator[None]:
    """Run a site's work; turn failures of the device into DeviceErrors that name a remedy.

    Torch warns at every call of a nondeterministic kernel; each warning is logged once.
    """
    try:
        with _log_nondeterminism_once():
            yield
    except (RuntimeError, TaskError) as error:
        cause = error.__cause__ if isinstance(error, TaskError) else error
        first = str(cause).partition("\n")[0]
        if isinstance(cause, torch.OutOfMemoryError) or re.search(_NO_MEMORY, first):
            other = "" if device.type == "cpu" else "--device cpu, or "
            raise DeviceError(
                f"{first}: try {other}a smaller --batch-size on the coordinator"
            ) from error
        if first.startswith("CUDA error"):
            raise DeviceError(f"--device cuda: {first}; use --device cpu for details") from error
        raise


def fingerprint(device: torch.device) -> str:
    """Return versions and hardware that training depends on; equal fingerprints give equal bits."""
    threads = torch.get_num_threads()
    parts = [
        f"torch {torch.__version__}",
        torch.backends.cpu.get_cpu_capability(),
        f"{threads} thread{'s' if threads > 1 else ''}",
        f"numpy {np.__version__}",
    ]
    if device.type == "cuda":
        hip, cudnn = torch.version.hip, torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        system = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
        parts[1:1] = [torch.cuda.get_device_name(device), f"{system}, cuDNN {cudnn}"]
    elif device.type != "cpu":
        parts.insert(1, device.type)
    return ", ".join(parts)


def _why_absent(name: str) -> str:
    """Return why the device is not available, as an error message; empty if it is."""
    with warnings.catch_warnings(record=True) as caught:  # torch warns of old drivers
        warnings.simplefilter("always")
        available = {"cuda": torch.cuda, "mps": torch.backends.mps}[name].is_available()
    if available:
        return ""
    for warning in caught:
        log.warning("%s", str(warning.message).partition("\n")[0])
    if name == "mps" and not torch.backends.mps.is_built():
        return f"it needs torch for macOS; this is torch {torch.__version__}"
    if name == "mps":
        return "torch finds no Apple GPU; it needs Apple silicon and a macOS that torch supports"
    if not (torch.version.cuda or torch.version.hip):
        return (
            f"torch {torch.__version__} is built without CUDA; install a build with CUDA, see "
            "https://pytorch.org/get-started/locally"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    return f"torch {torch.__version__} sees no GPU{hidden}; does nvidia-smi show one?"


def _tested(name: str) -> torch.device:
    """Return the device if it can add two numbers; torch lists devices that cannot."""
    device = torch.device(name)
    try:
        torch.ones(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as error:
        first = str(error).partition("\n")[0]
        raise DeviceError(
            f"--device {name}: it is present, but does not work: {first}; {_CPU_WORKS}"
        ) from error
    return device


@contextlib.contextmanager
def _log_nondeterminism_once() -> Iterator[None]:
    """Log each warning about determinism once; show all other warnings as usual."""
    logged: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def log_once(message: Warning | str, *where: Any) -> None:
            text = str(message)
            if "determinis" not in text:
                show(message, *where)
            elif text not in logged:
                logged.add(text)
                log.warning("training may not be reproducible: %s", text.partition(", but")[0])

        warnings.filterwarnings("always", message="(?s).*determinis", category=UserWarning)
        warnings.showwarning = log_once  # type: ignore[assignment]
        yield

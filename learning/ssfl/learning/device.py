"""Where tensors live, and what decides the bits of a computation.

docs/devices.md is for users. The paths for cuda and mps are tested with a pretended device
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
    """Return the device of that name; `auto` is the fastest that works, and says what does not.

    A GPU is tried before it is returned: one that is too old for its torch, or full, is refused.
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
        return _tried(name)
    for one in ("cuda", "mps"):
        if not _why_absent(one):
            try:
                return _tried(one)
            except DeviceError as error:
                log.warning("%s: taking the next best device", error)
    return torch.device("cpu")


def prepare_torch(threads: int) -> None:
    """Fix the number of threads and choose deterministic kernels wherever torch has them.

    The bits of a sum depend on how it is split among threads, so the default is one; 0 is every
    core this process may use. Call this before the first use of a GPU.
    """
    if threads < 0:
        raise DeviceError(f"--threads must be 0 (every core) or more, got {threads}")
    torch.set_num_threads(threads or usable_cores())
    if torch.get_num_interop_threads() != 1:  # a pool of its own, for torch.jit.fork alone
        with contextlib.suppress(RuntimeError):  # it runs already: too late, and no bits hang on it
            torch.set_num_interop_threads(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS: repeatable sums
    torch.use_deterministic_algorithms(True, warn_only=True)
    # A debugging aid that comes with it and costs time; torch's own stubs do not know it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextlib.contextmanager
def working_on(device: torch.device) -> Iterator[None]:
    """Do a site's work: when the device fails it, DeviceError says what to change.

    Kernels that may not repeat their bits, of which torch warns at every call, are logged once
    each.
    """
    try:
        with _logged_once():
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
            raise DeviceError(f"--device cuda: {first}: --device cpu tells more of it") from error
        raise


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
        hip, cudnn = torch.version.hip, torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        system = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
        parts[1:1] = [torch.cuda.get_device_name(device), f"{system}, cuDNN {cudnn}"]
    elif device.type != "cpu":
        parts.insert(1, device.type)
    return ", ".join(parts)


def _why_absent(name: str) -> str:
    """Return why there is no such device, in words for its user; empty if there is one."""
    with warnings.catch_warnings(record=True) as told:  # a driver that is too old is a warning
        warnings.simplefilter("always")
        there = {"cuda": torch.cuda, "mps": torch.backends.mps}[name].is_available()
    if there:
        return ""
    for one in told:
        log.warning("%s", str(one.message).partition("\n")[0])
    if name == "mps" and not torch.backends.mps.is_built():
        return f"only torch for macOS has it, and this is torch {torch.__version__}"
    if name == "mps":
        return "torch finds no Apple GPU; it needs Apple silicon and a macOS that torch supports"
    if not (torch.version.cuda or torch.version.hip):
        return (
            f"torch {torch.__version__} is built without CUDA; install one with it, as "
            "https://pytorch.org/get-started/locally says"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    return f"torch {torch.__version__} sees no GPU{hidden}; does nvidia-smi show one?"


def _tried(name: str) -> torch.device:
    """Return the device if it can add two numbers; torch finds it before it knows that."""
    device = torch.device(name)
    try:
        torch.ones(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as error:
        first = str(error).partition("\n")[0]
        raise DeviceError(
            f"--device {name}: it is there, but does not work: {first}; {_CPU_WORKS}"
        ) from error
    return device


@contextlib.contextmanager
def _logged_once() -> Iterator[None]:
    """Log each warning about determinism when it is first given; leave all others alone."""
    told: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def tell(message: Warning | str, *where: Any) -> None:
            text = str(message)
            if "determinis" not in text:
                show(message, *where)
            elif text not in told:
                told.add(text)
                log.warning("the bits of training may not repeat: %s", text.partition(", but")[0])

        warnings.filterwarnings("always", message="(?s).*determinis", category=UserWarning)
        warnings.showwarning = tell  # type: ignore[assignment]
        yield

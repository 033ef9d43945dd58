"""The speed of checksums and digests, and the share of a round that those in use take."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.async_client import AsyncClient
from benchmarks.codec_cases import LARGE, UPDATE, take_turns
from benchmarks.coordinator_process import coordinator
from benchmarks.workload import Workload, digest

Hash = Callable[[memoryview], object]
ROUNDS = 8  # before the first task to evaluate

# Name, package, function. Packages that ssfl does not depend on may be absent.
OTHERS = (
    ("crc32c", "crc32c", "crc32c"),
    ("xxh3, 64 bits", "xxhash", "xxh3_64_digest"),
    ("xxh3, 128 bits", "xxhash", "xxh3_128_digest"),
    ("BLAKE3, one thread", "blake3", "blake3"),
)
IN_USE: dict[str, Hash] = {
    "CRC-32 (zlib)": zlib.crc32,
    "SHA-256 (hashlib)": lambda data: hashlib.sha256(data).digest(),
}
# Hides the SHA instructions from OpenSSL, as on x86 before about 2016.
NO_SHA_NI = {"OPENSSL_ia32cap": ":~0x20000000"}
_NO_SHA_SCRIPT = """
import hashlib, time
data = bytes({size})
print(min((lambda t: (hashlib.sha256(data).digest(), time.thread_time() - t)[1])(time.thread_time())
          for _ in range(20)))
"""


def checksum_rows(budget_s: float) -> list[dict[str, Any]]:
    """Measure every checksum over an update of ResNet-18 and over data larger than any cache."""
    rows: list[dict[str, Any]] = [
        {"name": name, "installed": version is not None, "version": version}
        for name, version in (*((n, "standard library") for n in _standard()), *_others())
    ]
    found = {**_standard(), **_installed()}
    for size in (UPDATE, LARGE):
        data = np.random.default_rng(0).integers(0, 256, 4 * size, dtype=np.uint8)
        runs: dict[str, Callable[[], object]] = {
            name: partial(run, data.data) for name, run in found.items()
        }
        runs["memcpy"] = partial(np.copyto, np.ones_like(data), data)
        min_s = take_turns(runs, budget_s)
        for row in rows:
            if row["installed"]:
                row[f"gb_per_s_{size}"] = data.size / min_s[row["name"]] / 1e9
                row[f"times_memcpy_{size}"] = min_s[row["name"]] / min_s["memcpy"]
    return rows


def sha256_without_instructions() -> float | None:
    """Return GB/s of SHA-256 over an update, SHA instructions switched off; None if not x86."""
    if platform.machine() != "x86_64":
        return None
    done = subprocess.run(
        [sys.executable, "-c", _NO_SHA_SCRIPT.format(size=4 * UPDATE)],
        env={**os.environ, **NO_SHA_NI},
        capture_output=True,
        text=True,
        check=True,
    )
    return 4 * UPDATE / float(done.stdout) / 1e9


def has_sha_instructions() -> bool | None:
    """Return True if this processor has them; None if the kernel does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    return "sha_ni" in text or "sha2" in text


def _standard() -> dict[str, Hash]:
    return {**IN_USE, "BLAKE2b (hashlib)": lambda data: hashlib.blake2b(data).digest()}


def _others() -> list[tuple[str, str | None]]:
    return [(name, _version(package)) for name, package, _ in OTHERS]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed() -> dict[str, Hash]:
    found: dict[str, Hash] = {}
    for name, package, function in OTHERS:
        if _version(package) is not None:
            hasher = getattr(importlib.import_module(package), function)
            found[name] = hasher if package != "blake3" else partial(_digest, hasher)
    return found


def _digest(hasher: Callable[[memoryview], Any], data: memoryview) -> bytes:
    return bytes(hasher(data).digest())


async def coordinator_cpu_s() -> float:
    """Return CPU seconds of a real coordinator for one client's round of ResNet-18 at 90 %.

    4.5 MB down and up, one client; work done once per round is included.
    """
    workload = Workload(11_164_352, 9_610, weights=[100])
    initial = digest(workload.initial)
    update = memoryview(workload.update(0, 0).astype("<f4").tobytes())
    flags = ["--clients", "1", "--min-clients", "1", "--rounds", str(ROUNDS + 1)]
    with (
        tempfile.TemporaryDirectory(prefix="ssfl-speed-") as folder,
        coordinator(Path(folder), *flags, "--log-level", "warning") as server,
    ):
        client = AsyncClient(server.address, "site", 100, workload.manifest)
        await client.join()
        await client.receive(client.ask(initial))
        await client.initialize(initial)
        scoring = await client.receive(client.ask(initial))
        scores = memoryview(workload.scores(0).astype("<f4").tobytes())
        await client.send_scores(scoring, scores)
        began_s = 0.0
        for round_number in range(ROUNDS + 1):  # the first sends the mask and is not counted
            task = await client.receive(client.ask(initial))
            await client.send_update(task, update)
            if round_number == 0:
                began_s = server.cpu_s()
        used_s = server.cpu_s() - began_s
        await client.close()
    return used_s / ROUNDS

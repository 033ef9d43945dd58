"""Disk space for a client's state during a run and for its outputs."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ssfl.client.config import ClientConfig
from ssfl.codec import blocks, reference, scores, values_only
from ssfl.datasets.wording import format_bytes
from ssfl.durable.lock import LOCK
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.tools.check.steps import CheckResult, Owner, Remedy, StepFailed, Steps
from ssfl.tools.plan.masks import planned_masks

COMFORTABLE_FACTOR = 2  # warn if less than this multiple of the needed bytes is free
RESIDUAL_FILES = 3  # of a lossy run: the current, the previous and the next


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write on the disk of a folder."""
    return shutil.disk_usage(folder).free


def check_disk(
    steps: Steps,
    config: ClientConfig,
    state_dir: Path,
    settings: RunSettings,
    manifest: Manifest | None,
    free: Callable[[Path], int] = free_bytes,
) -> None:
    """Compare the free bytes of both folders with the needed bytes.

    Files in `state_dir` must be usable by this user; another may have started an earlier client.
    """

    def check(
        flag: str, folder: Path, needed: Callable[[Manifest, RunSettings], int]
    ) -> CheckResult:
        existing = _writable_parent(flag, folder)
        with suppress(DensityError):  # too small a model for the sparsity: "round" reports it
            if manifest is not None:
                return _compare(flag, folder, free(existing), needed(manifest, settings))
        left = format_bytes(free(existing))
        return CheckResult(f"{left} free in {folder} (the needed space is unknown)")

    def state() -> CheckResult:
        result = check("--state-dir", state_dir, state_bytes)
        _check_leftover_files(state_dir)
        return result

    steps.run("state disk", state)
    steps.run("output disk", lambda: check("--out-dir", config.out_dir, output_bytes))


def _check_leftover_files(folder: Path) -> None:
    """Raise StepFailed if this user cannot use a file that an earlier client left."""
    for file in sorted(folder.iterdir()) if folder.exists() else []:
        try:
            file.open("r+b" if file.name == LOCK else "rb").close()
        except FileNotFoundError:  # a running client has just replaced it
            continue
        except OSError as error:
            text = f"--state-dir: {file} cannot be used: {error.strerror}"
            remedy = Remedy(Owner.MACHINE, f"let this user read and write everything in {folder}")
            raise StepFailed(text, remedy, ExitCode.STATE) from error


def state_bytes(manifest: Manifest, settings: RunSettings) -> int:
    """Return the largest size of a client's state: an unsent report, and residuals if lossy."""
    count = max_update_values(manifest, settings)
    update = blocks.max_encoded_bytes(reference.CODE, count)
    compact = scores.max_encoded_bytes(manifest.num_masked)
    report = max(values_only.encoded_bytes(manifest.num_masked), compact)
    residuals = RESIDUAL_FILES if settings.value_type != "float32" else 0
    return max(update, report) + residuals * values_only.encoded_bytes(count)


def output_bytes(manifest: Manifest, settings: RunSettings) -> int:
    """Return the size of the final model, with the personalized model if the run makes one."""
    whole, kept = manifest.size, max_update_values(manifest, settings)
    model = values_only.encoded_bytes(whole) + values_only.encoded_bytes(kept)
    model += 2 * -(-manifest.num_masked // 8) + 3 * len(manifest.json)
    return model * (2 if settings.personalize_epochs else 1)


def max_update_values(manifest: Manifest, settings: RunSettings) -> int:
    """Return the number of values in the largest update of a run."""
    kept = max(mask.num_kept for mask in planned_masks(manifest, settings))
    return kept + manifest.num_unmasked


def _writable_parent(flag: str, folder: Path) -> Path:
    """Return the folder, or its closest parent that exists; raise StepFailed if it is unusable."""
    here = folder.absolute()
    existing = next(path for path in (here, *here.parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        problem = "cannot be written" if existing.is_dir() else "is not a folder"
        remedy = Remedy(Owner.MACHINE, f"let this user write there, or choose another with {flag}")
        raise StepFailed(f"{flag} {folder}: {existing} {problem}", remedy, ExitCode.STATE)
    return existing


def _compare(flag: str, folder: Path, left: int, needed: int) -> CheckResult:
    text = f"{format_bytes(left)} free in {folder}, {format_bytes(needed)} needed"
    remedy = Remedy(Owner.MACHINE, f"free some space, or choose another disk with {flag}")
    if left < needed:
        raise StepFailed(text, remedy, ExitCode.STATE)
    return CheckResult(text, remedy if left < COMFORTABLE_FACTOR * needed else None)

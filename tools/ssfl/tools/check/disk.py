"""Disk space for a client's state during a run and for its outputs."""

import os
import shutil
from collections.abc import Callable
from functools import partial
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

Free = Callable[[Path], int]
Needed = Callable[[Manifest, RunSettings], int]


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write on the disk of a folder."""
    return shutil.disk_usage(folder).free


def check_disk(
    steps: Steps,
    config: ClientConfig,
    state_dir: Path,
    settings: RunSettings,
    manifest: Manifest | None,
    free: Free = free_bytes,
) -> None:
    """Compare the free bytes of both folders with the needed bytes.

    `state_dir` is the client's own folder. Files in it must be usable by this user; another user
    may have started an earlier client.
    """
    steps.part = "site"

    def state() -> CheckResult[None]:
        result = _check_space("--state-dir", state_dir, bytes_for(state_bytes), free)
        _check_leftover_files(state_dir)
        return result

    def bytes_for(needed: Needed) -> Callable[[], int | None]:
        return partial(_needed, needed, manifest, settings)

    steps.run("state disk", state)
    steps.run(
        "output disk",
        lambda: _check_space("--out-dir", config.out_dir, bytes_for(output_bytes), free),
    )


def _check_leftover_files(folder: Path) -> None:
    """Raise StepFailed if this user cannot use a file that an earlier client left."""
    for file in sorted(folder.iterdir()) if folder.exists() else []:
        try:
            file.open("r+b" if file.name == LOCK else "rb").close()
        except FileNotFoundError:  # a running client has just replaced it
            continue
        except OSError as error:
            raise StepFailed(
                f"--state-dir: {file} cannot be used: {error.strerror}",
                Remedy(Owner.MACHINE, f"let this user read and write everything in {folder}"),
                ExitCode.STATE,
            ) from error


def _needed(needed: Needed, manifest: Manifest | None, settings: RunSettings) -> int | None:
    """Return the needed bytes; None if they are unknown."""
    if manifest is None:
        return None
    try:
        return needed(manifest, settings)
    except DensityError:  # the model is too small for the sparsity; the step "round" reports it
        return None


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


def _check_space(
    flag: str, folder: Path, needed_bytes: Callable[[], int | None], free: Free
) -> CheckResult[None]:
    existing = _nearest_existing(folder)
    if not existing.is_dir() or not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        problem = "cannot be written" if existing.is_dir() else "is not a folder"
        raise StepFailed(
            f"{flag} {folder}: {existing} {problem}",
            Remedy(Owner.MACHINE, f"let this user write there, or choose another with {flag}"),
            ExitCode.STATE,
        )
    left, needed = free(existing), needed_bytes()
    if needed is None:
        return CheckResult(
            None, f"{format_bytes(left)} free in {folder} (the needed space is unknown)"
        )
    text = f"{format_bytes(left)} free in {folder}, {format_bytes(needed)} needed"
    remedy = Remedy(Owner.MACHINE, f"free some space, or choose another disk with {flag}")
    if left < needed:
        raise StepFailed(text, remedy, ExitCode.STATE)
    return CheckResult(None, text, remedy if left < COMFORTABLE_FACTOR * needed else None)


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or its closest parent that exists."""
    here = folder.absolute()
    return next(path for path in (here, *here.parents) if os.path.lexists(path))

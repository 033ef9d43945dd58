"""Room on disk: what a client keeps while it takes part, and what it keeps for good."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ssfl.client.config import ClientConfig
from ssfl.codec import blocks, reference, scores, values_only
from ssfl.datasets.wording import size
from ssfl.durable.lock import LOCK
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.tools.check.steps import Owner, Remedy, StepFailed, StepResult, Steps
from ssfl.tools.plan.masks import planned_masks

SPARE = 2  # so many times what is needed is comfortable
RESIDUAL_FILES = 3  # files of a lossy run: the one in use, the one before, the one to come

Free = Callable[[Path], int]
Needed = Callable[[Manifest, RunSettings], int]


def free_bytes(folder: Path) -> int:
    """Return what this user may still write where a folder is."""
    return shutil.disk_usage(folder).free


def check_disk(
    steps: Steps,
    config: ClientConfig,
    state_dir: Path,
    settings: RunSettings,
    manifest: Manifest | None,
    free: Free = free_bytes,
) -> None:
    """Compare the free bytes of both folders with what is needed; `state_dir` is the client's own.

    What is in the latter must be of use to this user, too: a client that was once started by
    another one left it.
    """
    steps.part = "site"

    def state() -> StepResult[None]:
        found = _check_space("--state-dir", state_dir, room_for(state_bytes), free)
        _check_leftover_files(state_dir)
        return found

    def room_for(needed: Needed) -> Callable[[], int | None]:
        return partial(_needed, needed, manifest, settings)

    steps.run("state disk", state)
    steps.run(
        "output disk",
        lambda: _check_space("--out-dir", config.out_dir, room_for(output_bytes), free),
    )


def _check_leftover_files(folder: Path) -> None:
    """Raise Wrong if a client could not take up what an earlier one left in its folder."""
    for file in sorted(folder.iterdir()) if folder.exists() else []:
        try:
            file.open("r+b" if file.name == LOCK else "rb").close()
        except FileNotFoundError:  # of a client that runs: it has just replaced it
            continue
        except OSError as error:
            raise StepFailed(
                f"--state-dir: {file} cannot be used: {error.strerror}",
                Remedy(Owner.MACHINE, f"let this user read and write all of {folder}"),
                ExitCode.STATE,
            ) from error


def _needed(needed: Needed, manifest: Manifest | None, settings: RunSettings) -> int | None:
    """Return the bytes that are needed; None where nobody can know."""
    if manifest is None:
        return None
    try:
        return needed(manifest, settings)
    except DensityError:  # so small a model: another step tells it
        return None


def state_bytes(manifest: Manifest, settings: RunSettings) -> int:
    """Return the most a client's state takes: an unsent answer, and what lossy updates lost."""
    count = max_update_values(manifest, settings)
    update = blocks.max_encoded_bytes(reference.CODE, count)
    compact = scores.max_encoded_bytes(manifest.num_masked)
    report = max(values_only.encoded_bytes(manifest.num_masked), compact)
    residuals = RESIDUAL_FILES if settings.value_type != "float32" else 0
    return max(update, report) + residuals * values_only.encoded_bytes(count)


def output_bytes(manifest: Manifest, settings: RunSettings) -> int:
    """Return what the final model takes, with the site's own one if the run makes one."""
    whole, kept = manifest.size, max_update_values(manifest, settings)
    one = values_only.encoded_bytes(whole) + values_only.encoded_bytes(kept)
    one += 2 * -(-manifest.num_masked // 8) + 3 * len(manifest.json)
    return one * (2 if settings.personalize_epochs else 1)


def max_update_values(manifest: Manifest, settings: RunSettings) -> int:
    """Return the values of the largest update of a run."""
    kept = max(mask.num_kept for mask in planned_masks(manifest, settings))
    return kept + manifest.num_unmasked


def _check_space(
    flag: str, folder: Path, room: Callable[[], int | None], free: Free
) -> StepResult[None]:
    there = _nearest_existing(folder)
    if not there.is_dir() or not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        action = "cannot be written" if there.is_dir() else "is no folder"
        raise StepFailed(
            f"{flag} {folder}: {there} {action}",
            Remedy(Owner.MACHINE, f"let this user write there, or choose another with {flag}"),
            ExitCode.STATE,
        )
    left, needed = free(there), room()
    if needed is None:
        return StepResult(None, f"{size(left)} free in {folder} (what is needed is not known)")
    text = f"{size(left)} free in {folder}, {size(needed)} needed"
    remedy = Remedy(Owner.MACHINE, f"make room, or choose another disk with {flag}")
    if left < needed:
        raise StepFailed(text, remedy, ExitCode.STATE)
    return StepResult(None, text, remedy if left < SPARE * needed else None)


def _nearest_existing(folder: Path) -> Path:
    """Return the path, or the closest one above it that exists."""
    here = folder.absolute()
    return next(one for one in (here, *here.parents) if os.path.lexists(one))

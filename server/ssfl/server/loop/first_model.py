"""The first model of a run: described by its first client, or read from a file.

Every path ends in `Initialized`: the run's manifest and initial weights are stored and journalled,
and every client's model is compared with them.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ssfl.method.errors import DensityError, ModelFileError
from ssfl.method.exact_sum import VALUE_BOUND
from ssfl.method.image_settings import AUTO, STATISTICS
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest, Role
from ssfl.method.model_state import ModelState, Vector, values_digest
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.model_io.stored_model import apply_recorded, network_of, read_initial
from ssfl.server.errors import ModelUnusable, StateError
from ssfl.server.loop.run_loop import RunLoop
from ssfl.server.run import events
from ssfl.server.storage.model_store import Store
from ssfl.strategies.contract import ClientId
from ssfl.strategies.registry import strategy_for


def begin_model(settings: RunSettings, manifest: Manifest, initial: Vector) -> ModelState:
    """Return the run's state before any step; raise ModelUnusable if the settings do not fit."""
    statistics = [tensor.name for tensor in manifest.tensors if tensor.role is Role.BUFFER]
    if statistics and settings.value_type != "float32":
        raise ModelUnusable(
            f"the model has running statistics ({statistics[0]}), and --value-type "
            f"{settings.value_type} would round variances below zero: use float32, or other norms"
        )
    try:
        return strategy_for(settings).begin(manifest, initial)
    except DensityError as error:
        raise ModelUnusable(f"the run's settings do not fit this model: {error}") from error


def initialized(author: ClientId, model: ModelState) -> events.Initialized:
    """Return the event that makes a model the run's."""
    mask = model.mask
    return events.Initialized(
        author, model.manifest.digest.hex(), model.initial_digest.hex(), model.mask_epoch,
        mask.digest.hex() if mask else "", mask.num_kept if mask else 0, model.base_digest.hex(),
        model.stage,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class FirstModel:
    """A model that `ssfl init` wrote, and the run settings it fits."""

    path: Path
    manifest: Manifest
    initial: Vector
    settings: RunSettings


def read_first_model(path: Path, settings: RunSettings, *, is_new: bool = True) -> FirstModel:
    """Return the model of a file; the file of a built-in network also holds its settings.

    If a run exists (`is_new` is False), `begin_with` compares the file with the run's model. That
    is faster than building the weights from the seed.
    """
    try:
        manifest, initial = read_initial(path)
        first = FirstModel(path, manifest, initial, _settings_of(path, manifest, settings))
    except ModelFileError as error:
        raise ProgramError(f"--init: {error}", ExitCode.BAD_DATA) from error
    if is_new:
        _begun(first)
    return first


def _begun(first: FirstModel) -> ModelState:
    """Return the run's state before any step, after a check of the file."""
    try:
        _check_values(first)
        return begin_model(first.settings, first.manifest, first.initial)
    except (ModelFileError, ModelUnusable) as error:
        raise ProgramError(f"--init: {error}", ExitCode.BAD_DATA) from error


async def begin_with(first: FirstModel, run: RunLoop, store: Store) -> None:
    """Make this model the run's; after a restart, check that it still is."""
    state = run.state
    if not state.manifest_digest:
        model = await asyncio.to_thread(_begun, first)
        await asyncio.to_thread(store.save_initial, first.manifest, first.initial)
        author = ClientId(f"--init {first.path.name}")
        await run.post(initialized(author, model), store.lean(model))
    elif (state.manifest_digest, state.initial_digest) != (
        first.manifest.digest.hex(), values_digest(first.initial).hex(),
    ):  # fmt: skip
        raise StateError(
            f"the state directory holds run {state.run_id}, which began with another model than "
            f"{first.path}: to resume, give that model with --init; to begin a new run, use --fresh"
        )


def _settings_of(path: Path, manifest: Manifest, settings: RunSettings) -> RunSettings:
    """Return the settings with the manifest's network; raise if another was chosen."""
    built = network_of(manifest)
    changed, usual = apply_recorded(settings, built, path), RunSettings()
    for name, value in built.items():
        chosen = getattr(settings, name)
        chosen = STATISTICS.get(chosen, chosen)  # a file has numbers, not the name of a data set
        if chosen not in (value, getattr(usual, name), AUTO):
            raise ModelFileError(f"{path}: the file is for --{name} {value}, this run has {chosen}")
    return changed


def _check_values(first: FirstModel) -> None:
    manifest, initial, seed = first.manifest, first.initial, first.settings.seed
    largest = np.abs(initial).max(initial=0.0)
    if largest > VALUE_BOUND:
        where = manifest.tensor_at(int(np.argmax(np.abs(initial))))
        raise ModelFileError(
            f"{first.path}: {where} holds a value of size {largest:g}; at most {VALUE_BOUND:g} "
            "can be summed exactly"
        )
    if manifest.rebuildable and not np.array_equal(initial_vector(manifest, seed), initial):
        raise ModelFileError(
            f"{first.path} does not hold the weights of --seed {seed}: give the seed that `ssfl "
            f"init` had or, to begin with trained weights, make a file of them with "
            f"`ssfl init --weights {first.path}`"
        )

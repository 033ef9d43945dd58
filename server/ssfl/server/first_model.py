"""The model a run begins with: described by its first client, or read from a file.

Every path ends in `Initialized`: the run's manifest and initial weights are stored and journalled,
and every client's model is compared with them.
"""

import asyncio
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import DensityError, ModelFileError
from ssfl.method.exact_sum import VALUE_BOUND
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.model_files import read_initial
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import strategy_for
from ssfl.method.strategies.contract import ClientId
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.server import events
from ssfl.server.conductor import Conductor
from ssfl.server.errors import ModelUnusable, StateError


def begin_model(
    settings: RunSettings, manifest: Manifest, initial: npt.NDArray[np.float32]
) -> ModelState:
    """Return the run's state before any step; raise ModelUnusable if the settings do not fit."""
    try:
        return strategy_for(settings).begin(manifest, initial)
    except DensityError as error:
        raise ModelUnusable(f"the run's settings do not fit this model: {error}") from error


def initialized(author: ClientId, model: ModelState) -> events.Initialized:
    """Return the event that makes a model the run's."""
    mask = model.mask
    return events.Initialized(
        author,
        model.manifest.digest.hex(),
        model.initial_digest.hex(),
        model.mask_epoch,
        mask.digest.hex() if mask else "",
        mask.num_kept if mask else 0,
        model.base_digest.hex(),
    )


async def begin_with_file(conductor: Conductor, path: Path) -> None:
    """Make the model in a file of `ssfl init` the run's; on a restart, see that it still is."""
    settings, state = conductor.state.settings, conductor.state
    try:
        manifest, initial = await asyncio.to_thread(_read, path, settings.seed)
        if state.manifest_digest:
            _check_same(path, manifest, initial, conductor)
            return
        model = begin_model(settings, manifest, initial)
    except (ModelFileError, ModelUnusable) as error:
        raise ProgramError(f"--init: {error}", ExitCode.BAD_DATA) from error
    await asyncio.to_thread(conductor.store.save_initial, manifest, initial)
    await conductor.post(initialized(ClientId(f"--init {path.name}"), model), model)


def _read(path: Path, seed: int) -> tuple[Manifest, npt.NDArray[np.float32]]:
    manifest, initial = read_initial(path)
    largest = np.abs(initial).max(initial=0.0)
    if largest > VALUE_BOUND:
        where = manifest.tensor_at(int(np.argmax(np.abs(initial))))
        raise ModelFileError(
            f"{path}: {where} holds a value of size {largest:g}; at most {VALUE_BOUND:g} can be "
            "summed exactly"
        )
    rebuilt = initial_vector(manifest, seed) if manifest.rebuildable else initial
    if not np.array_equal(rebuilt, initial):
        raise ModelFileError(
            f"{path} holds the weights of another seed than this run's {seed}: give --seed the "
            "one that `ssfl init` had, or make the file again"
        )
    return manifest, initial


def _check_same(
    path: Path, manifest: Manifest, initial: npt.NDArray[np.float32], conductor: Conductor
) -> None:
    state = conductor.state
    same = (state.manifest_digest, state.initial_digest)
    if (manifest.digest.hex(), values_digest(initial).hex()) != same:
        raise StateError(
            f"the state directory holds run {state.run_id}, which began with another model than "
            f"{path}: give --init that one to resume it, or use --fresh to begin a new run"
        )

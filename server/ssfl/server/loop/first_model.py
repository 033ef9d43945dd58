"""The first model of a run: described by its first client, or read from a file.

Every path ends in `Initialized`: the run's manifest and initial weights are stored and journalled,
and every client's model is compared with them.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import DensityError, ModelFileError
from ssfl.method.exact_sum import VALUE_BOUND
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest, Role
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import strategy_for
from ssfl.method.strategies.contract import ClientId
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.model_io.stored_model import apply_recorded, network_of, read_initial
from ssfl.server.broadcast.tasks import initializer
from ssfl.server.errors import JoinAgain, ModelUnusable, StateError
from ssfl.server.loop.run_loop import RunLoop
from ssfl.server.run import events
from ssfl.server.run.events import Reply
from ssfl.server.run.state import Member
from ssfl.server.storage.model_store import Store

Check = Callable[[], None]  # raises JoinAgain when a build is no longer wanted


def begin_model(
    settings: RunSettings, manifest: Manifest, initial: npt.NDArray[np.float32]
) -> ModelState:
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
        author,
        model.manifest.digest.hex(),
        model.initial_digest.hex(),
        model.mask_epoch,
        mask.digest.hex() if mask else "",
        mask.num_kept if mask else 0,
        model.base_digest.hex(),
    )


@dataclass(frozen=True, slots=True)
class _Build:
    """A build in progress."""

    key: tuple[object, ...]
    abandoned: threading.Event
    reply: asyncio.Future[Reply]


class Builds:
    """Builds the model that the chosen client describes, one build at a time.

    A build ends when its client is no longer the chosen one, or describes another model. A new
    description waits for at most one block of values of the build it replaces, so two models are
    never in memory. A repeated call shares the build.
    """

    def __init__(self, run_loop: RunLoop) -> None:
        self._run_loop = run_loop
        self._current: _Build | None = None

    def check_asked(self, member: Member) -> None:
        """Raise JoinAgain unless this client was asked to describe the model it joined with."""
        asked = initializer(self._run_loop.state)
        if asked is None or asked.client != member.client:
            raise JoinAgain("another client was asked to describe the model: join again")
        if asked.manifest_digest != member.manifest_digest:
            raise JoinAgain(f"{member.client} has joined with another model since: join again")

    async def reply(
        self, member: Member, initial_digest: bytes, build: Callable[[Check], Awaitable[Reply]]
    ) -> Reply:
        """Return the run's reply to the model that `build` builds; raise JoinAgain if not wanted.

        A cancelled caller does not end the build: the client asks again after a lost connection.
        """
        key = (member.client, member.manifest_digest, initial_digest)
        while (current := self._current) and not current.reply.done():
            if current.key == key:
                return await asyncio.shield(current.reply)
            current.abandoned.set()
            await asyncio.wait({current.reply})
        self.check_asked(member)
        abandoned = threading.Event()

        def check() -> None:
            if abandoned.is_set():
                raise JoinAgain(
                    "another description of the model has replaced this one: join again"
                )
            self.check_asked(member)

        async def built() -> Reply:
            try:
                return await build(check)
            finally:
                abandoned.set()  # let the thread end when the coordinator does

        self._current = _Build(key, abandoned, asyncio.ensure_future(built()))
        self._current.reply.add_done_callback(_retrieve)
        return await asyncio.shield(self._current.reply)


def _retrieve(reply: asyncio.Future[Reply]) -> None:
    """Retrieve the exception, which asyncio would log if the caller is gone."""
    if not reply.cancelled():
        reply.exception()


@dataclass(frozen=True, eq=False)
class FirstModel:
    """A model that `ssfl init` wrote, and the run settings it fits."""

    path: Path
    manifest: Manifest
    initial: npt.NDArray[np.float32]
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
            f"{first.path}: give --init that one to resume it, or use --fresh to begin a new run"
        )


def _settings_of(path: Path, manifest: Manifest, settings: RunSettings) -> RunSettings:
    """Return the settings with the network of the manifest; refuse others that were chosen."""
    built = network_of(manifest)
    changed, usual = apply_recorded(settings, built, path), RunSettings()
    for name, value in built.items():
        chosen = getattr(settings, name)
        if chosen not in (value, getattr(usual, name)):
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

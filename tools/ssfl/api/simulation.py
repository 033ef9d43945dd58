"""`find_mask` and `simulate`: the first step of a run, or all of it, in this process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn

from ssfl.api.data import Shards, by_client
from ssfl.api.errors import flags_as_keywords
from ssfl.api.history import Layers, RunHistory
from ssfl.learning.device import client_torch_settings
from ssfl.learning.flatten import write_vector
from ssfl.learning.load_task import IMAGE, load_task
from ssfl.method.errors import SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.profiles import with_profile
from ssfl.method.settings import RunSettings
from ssfl.program.settings.loading import Setting, values_by_name
from ssfl.simulator.executors import masked
from ssfl.simulator.federation import SimulatedFederation
from ssfl.strategies.contract import Work
from ssfl.strategies.registry import check_settings, strategy_for

OnRound = Callable[[int, RunHistory], object]


@dataclass(frozen=True, eq=False, repr=False)
class FoundMask:
    """A mask and the scores it was made from.

    Attributes:
        mask: keeps the weights with the largest scores; `mask.bools()` has one bool per weight
        manifest: the model's tensors; `manifest.unflatten` gives a vector their names and shapes
        scores: (manifest.num_masked,) mean over clients, weighted by data size
        initial: (manifest.size,) the weights that were scored
    """

    mask: Mask
    manifest: Manifest
    scores: npt.NDArray[np.float32]
    initial: npt.NDArray[np.float32]

    def __repr__(self) -> str:
        return f"<FoundMask: {self.mask.num_kept:,} of {self.mask.size:,} weights kept>"

    @property
    def layers(self) -> Layers:
        """The number of kept weights of every masked tensor."""
        return Layers.of(self.mask.kept_by_tensor(self.manifest))


def find_mask(shards: Shards, *, task: str | Path = IMAGE, **settings: Setting) -> FoundMask:
    """Return the mask that a run on these shards agrees on before its first round.

    Every client scores its weights on a few minibatches. The scores are encoded by the setting
    `scores` and averaged by data size; the largest over all layers are kept. Settings are those of
    `ssfl-coordinator`. The clients of a list are called shard_00, shard_01, …

    Examples:
        >>> from ssfl import api
        >>> found = api.find_mask(api.digits(clients=3), model="mlp", sparsity=0.9)
        >>> found.mask.num_kept, found.mask.size
        (5480, 54800)
        >>> dict(zip(found.layers.names, found.layers.size.tolist()))
        {'1.weight': 12800, '3.weight': 40000, '5.weight': 2000}
        >>> bool(found.scores[found.mask.bools()].min() >= found.scores[~found.mask.bools()].max())
        True
    """
    clients = by_client(shards)
    run = run_settings(settings, len(clients))
    if strategy_for(run).is_dense:
        raise SettingsError(f"strategy {run.strategy} keeps every weight: there is no mask to find")
    with flags_as_keywords(), client_torch_settings():
        federation = SimulatedFederation(load_task(str(task)), clients, run)
        if federation.next_work is not Work.SCORE:
            raise SettingsError("clients score nothing before the first round of such a run")
        federation.run_step()
    model, scores = federation.model, federation.scores
    assert model.mask is not None and scores is not None
    return FoundMask(model.mask, model.manifest, scores, model.initial)


@dataclass(frozen=True, eq=False, repr=False)
class Simulated:
    """A finished run.

    Attributes:
        digest: SHA-256 of the final values, hex: `model_digest` of a real run
        model: the final network, on the CPU, in eval mode
        mask: the mask of the final network
        manifest: the tensors of the network
        values: the kept weights, then dense tensors and buffers
        history: the results of every round
    """

    digest: str
    model: nn.Module
    mask: Mask
    manifest: Manifest
    values: npt.NDArray[np.float32]
    history: RunHistory

    def __repr__(self) -> str:
        return f"<Simulated {self.digest[:12]}: {self.history.summary}>"


def simulate(
    shards: Shards,
    *,
    task: str | Path = IMAGE,
    rounds: int | None = None,
    on_round: OnRound | None = None,
    **settings: Setting,
) -> Simulated:
    """Run a federation on these shards; return its final model, bit for bit that of the service.

    Clients run one after the other, on one thread of the CPU. `ssfl-coordinator --reproducible`
    with the same settings, the same client names and the same fingerprint (torch version, CPU, one
    thread) ends with the same digest. A task with `OWN_WEIGHTS` starts from the first shard's
    model. `on_round(round_number, history)` is called after every round, and after the
    evaluation that may follow it.

    Examples:
        >>> from ssfl import api
        >>> done = api.simulate(
        ...     api.digits(clients=3), model="mlp", rounds=3, local_epochs=1, clients_per_round=2
        ... )
        >>> done.history.rounds.tolist(), bool(done.history.accuracy[-1] > 0.5)
        ([0, 1, 2], True)
        >>> done.values.size == done.mask.num_kept + done.manifest.num_unmasked
        True
    """
    clients = by_client(shards)
    if rounds is not None:
        settings["rounds"] = rounds
    run = run_settings(settings, len(clients))
    with flags_as_keywords(), client_torch_settings():
        loaded = load_task(str(task))
        federation = SimulatedFederation(loaded, clients, run)
        reported = 0
        while federation.next_work is not None:
            federation.run_step()
            if on_round and federation.next_work is not Work.EVALUATE:
                for number in range(reported, federation.state.rounds_done):
                    on_round(number, RunHistory.of(federation.document()))
                reported = federation.state.rounds_done
        final = strategy_for(run).deployed(federation.model)
        mask, values = masked(final)
        model = loaded.build_model(run, next(iter(clients.values())))
        write_vector(model, final.manifest, mask.scatter(values))
    history = RunHistory.of(federation.document())
    return Simulated(history.digest, model.eval(), mask, final.manifest, values, history)


def run_settings(given: Mapping[str, Setting], clients: int) -> RunSettings:
    """Return the settings of a run that waits for all of its `clients`.

    Raises TypeError for an unknown name and SettingsError for a value that is out of range.
    """
    values = with_profile(values_by_name(RunSettings, given, "a run"))
    if values.get("clients", clients) != clients:
        raise SettingsError(
            f"clients is {values['clients']}, but there are {clients} shards: leave it out, "
            "every shard is a client"
        )
    with flags_as_keywords():
        settings = RunSettings(**{**values, "clients": clients, "reproducible": True})
        check_settings(settings, simulated=True)
    return settings

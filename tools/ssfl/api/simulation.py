"""`simulate`: a whole run in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn

from ssfl.api.data import Shards, by_client
from ssfl.api.errors import flags_as_keywords
from ssfl.api.history import RunHistory
from ssfl.api.keywords import Setting, run_settings
from ssfl.api.quiet_torch import client_torch_settings
from ssfl.learning.flatten import write_vector
from ssfl.learning.load_task import IMAGE, load_task
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.strategies.contract import Work
from ssfl.simulator.federation import SimulatedFederation

OnRound = Callable[[int, RunHistory], object]


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
        final = federation.model
        assert final.mask is not None and final.values is not None
        model = loaded.build_model(run, next(iter(clients.values())))
        write_vector(model, final.manifest, final.mask.scatter(final.values))
    history = RunHistory.of(federation.document())
    return Simulated(
        history.digest, model.eval(), final.mask, final.manifest, final.values, history
    )

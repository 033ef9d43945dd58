"""A small simulated run of every strategy that notes each transfer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ssfl.client.coding import EncodedUpdate
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.load_task import load_task
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import Direction
from ssfl.server.broadcast.tasks import Ready
from ssfl.server.run import events
from ssfl.server.run.state import Step
from ssfl.simulator.clients import SimulatedClient
from ssfl.simulator.federation import SimulatedFederation
from ssfl.strategies.contract import ClientId, Work
from ssfl.study.data import DataSpec, build_shards

CLIENTS, ROUNDS = 3, 4
SMALL = RunSettings(
    model="mlp", width=5, rounds=ROUNDS, clients=CLIENTS, local_epochs=2, learning_rate=0.05,
    sparsity="0.8", reproducible=True, evaluate_every=0, scores="exact", seed=4,
)  # fmt: skip
# The settings under which a run of four rounds does all that a strategy does.
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "ssfl": {},
    "ditto": {"criterion": "none", "strategy_options": "ditto.personal_epochs=2"},
    "fedprox": {"criterion": "none"},
    "fedopt": {"criterion": "none", "strategy_options": "fedopt.optimizer=adam"},
    "robust": {"criterion": "none", "strategy_options": "robust.kind=median"},
    "scaffold": {"criterion": "none"},
    "feddst": {
        "strategy_options": "feddst.every=2,feddst.alpha=0.3,feddst.until_round=4",
    },
    "flash-spdst": {"strategy_options": "flash-spdst.init_epochs=2"},
    "flash-jmwst": {"strategy_options": "flash-jmwst.init_epochs=2,flash-jmwst.every=2"},
    "sub-fedavg": {"strategy_options": "sub-fedavg.accuracy=0,sub-fedavg.distance=0"},
    "sparsyfed": {},
    "topk-weights": {},
    "topk-updates": {"strategy_options": "topk-updates.share=0.2"},
    "fedpm": {},
}


def settings_of(strategy: str, **more: Any) -> RunSettings:
    """Return the settings of a run."""
    fields = {name: getattr(SMALL, name) for name in RunSettings.__dataclass_fields__}
    return RunSettings(**{**fields, "strategy": strategy, **METHODS[strategy], **more})


@cache
def shards() -> Mapping[str, Shard]:
    """Return the data of the clients."""
    return build_shards(DataSpec(clients=CLIENTS, samples_per_client=20), seed=4)


@dataclass
class Transfer:
    """What a client was sent with a task, or sent with an update."""

    work: Work | None  # None: the final model
    round_number: int  # of a warm-up: -1
    client: ClientId
    direction: Direction
    mask: Mask  # that the values lie on
    own_mask: bool = False  # the client sent a mask of its own
    sizes: dict[str, int] = field(default_factory=dict)  # bytes by ledger phase
    encodings: set[str] = field(default_factory=set)


class CountedRun(SimulatedFederation):
    """A run that notes its transfers."""

    def __init__(self, settings: RunSettings, *, coding: bool) -> None:
        self.transfers: list[Transfer] = []
        self._sizes: dict[str, int] = {}
        self._encodings: set[str] = set()
        super().__init__(load_task("image"), shards(), settings, reference_coding=coding)
        while self.next_work is not None:
            self.run_step()
        self.close()

    def _send_task(self, client: SimulatedClient) -> tuple[Ready, ModelState]:
        self._sizes, self._encodings = {}, set()
        ready, seen = super()._send_task(client)
        mask = seen.mask or Mask.full(seen.manifest.num_masked)
        self._note(client.name, Direction.DOWN, mask)
        return ready, seen

    def _accept_update(
        self, accepted: events.UploadReceived, model: ModelState, coded: EncodedUpdate, step: Step
    ) -> events.UploadReceived:
        self._sizes, self._encodings = {}, set()
        result = super()._accept_update(accepted, model, coded, step)
        own = coded.header.HasField("own_mask")
        mask = model.mask
        if own:
            bits = self._received[accepted.client].bits
            mask = Mask(bits, model.manifest.num_masked)
        assert mask is not None
        self._note(accepted.client, Direction.UP, mask, own_mask=own)
        return result

    def _note(
        self, client: ClientId, direction: Direction, mask: Mask, *, own_mask: bool = False
    ) -> None:
        step = self.state.step
        number = -1 if step is None or not step.counts_as_round else step.round_number
        work = step.work if step else None
        self.transfers.append(
            Transfer(work, number, client, direction, mask, own_mask, self._sizes, self._encodings)
        )
        self._sizes, self._encodings = {}, set()

    def _count_bytes(
        self, client: ClientId, phase: str, direction: Direction, num_bytes: int, encoding: str
    ) -> None:
        super()._count_bytes(client, phase, direction, num_bytes, encoding)
        self._sizes[phase] = self._sizes.get(phase, 0) + num_bytes
        self._encodings.add(encoding)


@cache
def counted_run(strategy: str, *, coding: bool) -> CountedRun:
    """Return the finished run of a strategy."""
    return CountedRun(settings_of(strategy), coding=coding)

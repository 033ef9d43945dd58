"""Whatever the strategy: the same accepted uploads give the same model, bit for bit.

Clients send random parts of the kinds that the strategy asks for. The uploads arrive in several
orders, some of them only when the step is closed, as after a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pytest

from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector, extra_digest
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.server.aggregate.step_sum import StepSum
from ssfl.server.run.facts import UploadAccepted
from ssfl.server.run.state import Step
from ssfl.strategies.contract import ClientId, Plan, Position, Work
from ssfl.strategies.registry import strategy_for, strategy_names
from ssfl.strategies.strategy import Strategy

MANIFEST = Manifest(
    (
        TensorSpec("v", (8, 5), Role.MASKED, Init("ones")),
        TensorSpec("w", (4, 8), Role.MASKED, Init("ones")),
        TensorSpec("b", (4,), Role.DENSE, Init("zeros")),
        TensorSpec("mean", (2,), Role.BUFFER, Init("zeros")),
    )
)
COHORT = {ClientId(f"c{number}"): weight for number, weight in enumerate((10, 31, 7, 64, 23))}
ORDERS = list(permutations(COHORT))[::7]  # 18 of 120

# Options that reduce in different ways.
OPTIONS: Mapping[str, Sequence[str]] = {
    "fedopt": [f"fedopt.optimizer={name}" for name in ("momentum", "adam", "yogi", "adagrad")],
    "robust": ["", "robust.kind=trimmed-mean,robust.trim=0.2", "robust.kind=krum",
               "robust.kind=krum,robust.chosen=3"],
    "scaffold": ["", "scaffold.server_rate=0.5"],
    "topk-weights": ["", "topk-weights.averaging=holders", "topk-weights.averaging=keep-old"],
    "flash-spdst": ["flash-spdst.init_fraction=1"],
    "flash-jmwst": ["flash-jmwst.init_fraction=1", "flash-jmwst.update_mode=holders"],
    "feddst": ["feddst.every=1,feddst.until_round=4,feddst.alpha=0.3"],
    "fedpm": ["", "fedpm.reset_every=3"],
}  # fmt: skip
RUNS = [
    (name, options, "")
    for name in strategy_names()
    for options in OPTIONS.get(name, [""])
] + [("ssfl", "", criterion) for criterion in ("shuffled", "client-random")]  # fmt: skip


@dataclass(frozen=True)
class RandomUploads:
    """The uploads of a step as the spool stores them."""

    values: Mapping[ClientId, Vector]
    masks: Mapping[ClientId, Mask]

    def read(self, _step: int, client: ClientId, _digest: bytes, start: int, count: int) -> Vector:
        return self.values[client][start : start + count]

    def tail(self, _step: int, client: ClientId, _digest: bytes, num_bytes: int) -> bytes:
        bits = self.masks[client].bits
        assert len(bits) == num_bytes
        return bits

    def accepted(self, client: ClientId) -> UploadAccepted:
        own = self.masks[client].digest.hex() if client in self.masks else ""
        return UploadAccepted(
            1, client, "00", float(np.abs(self.values[client]).max()), own_mask=own
        )


def random_uploads(strategy: Strategy, plan: Plan, state: ModelState, seed: int) -> RandomUploads:
    """Return an upload of each client, with all parts that the strategy takes."""
    values, masks = dict[ClientId, Vector](), dict[ClientId, Mask]()
    for client in plan.cohort:
        stream = Stream(seed, "upload", client)
        if plan.work is Work.SCORE:
            values[client] = stream.uniform(MANIFEST.num_masked).astype(np.float32)
            continue
        parts = strategy.parts(plan.task, MANIFEST)
        mask = strategy.client_state(client, plan.work, state).mask
        assert mask is not None
        if parts.bits:
            count = min(parts.max_kept or MANIFEST.num_masked, MANIFEST.num_masked - 9)
            bools = np.zeros(MANIFEST.num_masked, dtype=np.bool_)
            bools[stream.choose(MANIFEST.num_masked, count)] = True
            mask = masks[client] = Mask.from_bools(bools)
        size = (mask.num_kept + MANIFEST.num_unmasked) * (parts.values + len(parts.vectors))
        drawn = stream.uniform(max(1, size)) - 0.5
        values[client] = (drawn / 3).astype(np.float32)[:size] if size else np.zeros(1, np.float32)
    return RandomUploads(values, masks)


def summed(
    strategy: Strategy, plan: Plan, state: ModelState, uploads: RandomUploads, rounds_done: int,
    order: Sequence[ClientId], num_folded: int,
) -> ModelState:  # fmt: skip
    """Return the next model; the first uploads are folded on arrival, the others at the end."""
    cohort = {client: COHORT[client] for client in plan.cohort}
    arrived = [client for client in order if client in cohort]
    step = Step(
        1, plan.work, plan.criterion, rounds_done, 0, cohort, {}, reducer=plan.reducer,
        equal_weights=plan.equal_weights, task=plan.task,
    )  # fmt: skip
    step_sum = StepSum(step, state, uploads, strategy)
    for client in arrived[:num_folded]:
        step_sum.fold(uploads.accepted(client), step.weights[client])
    accepted = {client: uploads.accepted(client) for client in arrived}
    closed = replace(step, uploads=accepted, closed=tuple(sorted(arrived)))
    return step_sum.finish(closed).model


def bits_of(state: ModelState) -> tuple[object, ...]:
    assert state.mask is not None and state.values is not None
    extra = extra_digest(state.extra)
    return state.mask_epoch, state.mask.digest, state.values.tobytes(), extra, state.stage


@pytest.mark.parametrize(("name", "options", "criterion"), RUNS)
def test_the_order_of_arrival_does_not_change_a_bit_of_the_model(
    name: str, options: str, criterion: str
) -> None:
    settings = RunSettings(
        strategy=name, strategy_options=options, rounds=4, sparsity="0.5", clients=len(COHORT),
        min_clients=len(COHORT), criterion=criterion or RunSettings().criterion,
    )  # fmt: skip
    strategy = strategy_for(settings)
    initial = (Stream(1, "initial").uniform(MANIFEST.size) - 0.5).astype(np.float32)
    state, rounds_done = strategy.begin(MANIFEST, initial), 0
    while rounds_done < 3:
        position = Position(rounds_done, state.mask_epoch, 0, stage=state.stage)
        plan = strategy.plan(position, sorted(COHORT))
        assert plan is not None
        uploads = random_uploads(strategy, plan, state, seed=rounds_done)
        results = [
            summed(strategy, plan, state, uploads, rounds_done, order, number % (len(COHORT) + 1))
            for number, order in enumerate(ORDERS)
        ]
        assert len(set(map(bits_of, results))) == 1, plan
        if plan.work is Work.TRAIN:
            assert bits_of(results[0]) != bits_of(state), "the uploads count"
        state = results[0]
        rounds_done += plan.work is Work.TRAIN and plan.counts_as_round

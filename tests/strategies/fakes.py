"""Fakes for the tests of rules: small models, uploads, a client's memory and a site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.method.training_rules import TrainingRule
from ssfl.strategies.contract import ClientId, OnStep, Rule, ScoringRequest
from ssfl.strategies.registry import rule_for, strategy_for
from ssfl.strategies.strategy import Strategy

# Four masked weights in two layers, a bias, and a running statistic.
SMALL = Manifest(
    (
        TensorSpec("v", (3,), Role.MASKED, Init("zeros")),
        TensorSpec("w", (1,), Role.MASKED, Init("zeros")),
        TensorSpec("b", (1,), Role.DENSE, Init("zeros")),
        TensorSpec("mean", (1,), Role.BUFFER, Init("zeros")),
    )
)


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


def mask_of(*places: int, size: int = SMALL.num_masked) -> Mask:
    """Return the mask that keeps these places."""
    kept = np.zeros(size, dtype=np.bool_)
    kept[list(places)] = True
    return Mask.from_bools(kept)


def rule_of(name: str, settings: RunSettings | None = None, **options: Any) -> Rule:
    """Return a rule with some options other than its defaults."""
    settings = replace(settings or RunSettings(), strategy=name)
    kind = rule_for(name)
    return kind(settings, kind.Options(**options))


def strategy_of(name: str, settings: RunSettings | None = None, **options: Any) -> Strategy:
    """Return a strategy with some options of its rule other than their defaults."""
    rule = rule_of(name, settings, **options)
    return Strategy(rule.settings, strategy_for(rule.settings).source, rule)


def model(mask: Mask, *values: float, extra: Mapping[str, Vector] | None = None) -> ModelState:
    """Return a model state under a mask."""
    return ModelState(SMALL, vector(*range(1, 7)), mask, 1, vector(*values), extra=extra or {})


def floats(values: Vector | None) -> list[float]:
    assert values is not None
    assert values.dtype == np.float32
    return [float(value) for value in values]


@dataclass
class FakeUploads:
    """Uploads of a step; `reads` has the size of every block that was read."""

    values: Mapping[str, Vector]
    reads: list[int] = field(default_factory=list)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return tuple(ClientId(name) for name in sorted(self.values))

    def weight(self, client: ClientId) -> int:
        return 1000 if client == "heavy" else 1

    def mask(self, client: ClientId) -> Mask:
        raise NotImplementedError

    def numbers(self, client: ClientId) -> tuple[float, ...]:
        raise NotImplementedError(client)

    def read(self, client: ClientId, start: int, count: int, vector: str = "") -> Vector:
        assert vector == ""
        block = self.values[client][start : start + count]
        self.reads.append(block.size)
        return block


@dataclass
class FakeMemory:
    """A client's memory; `puts` takes effect when a test assigns it to `items`."""

    items: Mapping[str, Vector | Mask] = field(default_factory=dict)
    puts: dict[str, Vector | Mask] = field(default_factory=dict)

    def vector(self, name: str) -> Vector | None:
        value = self.items.get(name)
        assert not isinstance(value, Mask)
        return value

    def mask(self, name: str) -> Mask | None:
        value = self.items.get(name)
        assert value is None or isinstance(value, Mask)
        return value

    def put(self, name: str, value: Vector | Mask) -> None:
        self.puts[name] = value


@dataclass(frozen=True)
class Training:
    """The arguments of a call of `FakeSite.train`."""

    mask: Mask
    values: Vector
    round_number: int
    rules: Sequence[TrainingRule]
    epochs: range | None


@dataclass
class FakeSite:
    """A site whose n-th training adds the n-th vector of `moves`.

    Its loss is n, and n and 10 n of 100 test samples are correct before and after it.
    """

    moves: Sequence[Vector]
    settings: RunSettings = field(default_factory=RunSettings)
    shard: Any = field(default_factory=lambda: SimpleNamespace(num_samples=32))
    initial: Vector = field(default_factory=lambda: vector(1, 2, 3, 4, 5, 6))
    manifest: Manifest = SMALL
    client_id: str = "c1"
    network: Any = None
    task: Any = None
    calls: list[Training] = field(default_factory=list)

    def train(
        self,
        mask: Mask,
        values: Vector,
        round_number: int,
        on_step: OnStep,
        rules: Sequence[TrainingRule] = (),
        epochs: range | None = None,
    ) -> LocalResult:
        assert values.size == mask.num_kept + self.manifest.num_unmasked
        move = self.moves[len(self.calls)]
        self.calls.append(Training(mask, values, round_number, rules, epochs))
        for done in (1, 2):
            on_step(done, 2)
        number = len(self.calls)
        before, after = (Evaluation(correct, 100, 0.0) for correct in (number, 10 * number))
        return LocalResult(values + move, float(number), before, after)

    def evaluate(self, mask: Mask, values: Vector, split: str = "test") -> Evaluation:
        raise NotImplementedError

    def gradient(self, mask: Mask, values: Vector, round_number: int) -> Vector:
        raise NotImplementedError

    def stream(self, purpose: str, round_number: int) -> Stream:
        return Stream(self.settings.seed, purpose, round_number, self.client_id)

    def scoring_inputs(
        self, request: ScoringRequest
    ) -> tuple[Any, Manifest, Any, Any, RunSettings, str]:
        raise NotImplementedError

    def resting_weights(self, request: ScoringRequest) -> Vector | None:
        raise NotImplementedError


def ignore(_done: int, _total: int) -> None:
    """Ignore progress."""

"""A site whose training, gradients and tests are written in the test, and what goes with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import Vector
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.method.training_rules import TrainingRule
from ssfl.strategies.contract import ClientId, OnStep, Received, ScoringRequest


def manifest_of(*sizes: int | tuple[int, ...], biases: int = 1) -> Manifest:
    """Return a manifest of masked tensors, then a dense one."""
    shapes = [size if isinstance(size, tuple) else (size,) for size in sizes]
    masked = [
        TensorSpec(f"w{number}", shape, Role.MASKED, Init("zeros"))
        for number, shape in enumerate(shapes)
    ]
    dense = [TensorSpec("b", (biases,), Role.DENSE, Init("zeros"))] if biases else []
    return Manifest((*masked, *dense))


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


def mask_of(bits: str) -> Mask:
    """Return a mask from a text such as "1101 0"; spaces do not count."""
    return Mask.from_bools(np.array([bit == "1" for bit in bits.replace(" ", "")]))


def bits_of(mask: Mask | None) -> str:
    assert mask is not None
    return "".join("1" if bit else "0" for bit in mask.bools())


def ignore(_done: int, _total: int) -> None:
    """Ignore progress."""


@dataclass
class Training:
    """A call of `ScriptedSite.train`."""

    mask: str
    values: list[float]
    round_number: int
    epochs: range | None


@dataclass
class ScriptedSite:
    """Adds `step` to every value in each epoch, unless `trained` says otherwise."""

    manifest: Manifest
    settings: RunSettings
    step: float = 0.0
    trained: Callable[[Mask, Vector, range], Vector] | None = None
    gradients: Vector | None = None
    accuracy: Callable[[Mask, Vector, str], Evaluation] | None = None
    num_samples: int = 10
    client_id: str = "c1"
    calls: list[Training] = field(default_factory=list)
    network: Any = None
    task: Any = None

    def __post_init__(self) -> None:
        self.initial = np.zeros(self.manifest.size, dtype=np.float32)
        self.shard: Any = SimpleNamespace(num_samples=self.num_samples)

    def train(
        self,
        mask: Mask,
        values: Vector,
        round_number: int,
        on_step: OnStep,
        rules: Sequence[TrainingRule] = (),
        epochs: range | None = None,
    ) -> LocalResult:
        assert values.size == mask.num_kept + self.manifest.num_unmasked and not rules
        self.calls.append(Training(bits_of(mask), values.tolist(), round_number, epochs))
        passes = range(self.settings.local_epochs) if epochs is None else epochs
        if self.trained:
            after = self.trained(mask, values, passes)
        else:
            after = values + np.float32(self.step * len(passes))
        on_step(len(self.calls), len(self.calls))
        tested = Evaluation(len(self.calls), 10, 0.0)
        return LocalResult(after, float(len(self.calls)), tested, tested)

    def evaluate(self, mask: Mask, values: Vector, split: str = "test") -> Evaluation:
        assert self.accuracy is not None
        return self.accuracy(mask, values, split)

    def gradient(self, mask: Mask, values: Vector, round_number: int) -> Vector:
        assert values.size == mask.num_kept + self.manifest.num_unmasked
        assert self.gradients is not None and round_number == self.calls[-1].round_number
        return self.gradients

    def stream(self, purpose: str, round_number: int) -> Stream:
        return Stream(self.settings.seed, purpose, round_number, self.client_id)

    def scoring_inputs(
        self, request: ScoringRequest
    ) -> tuple[Any, Manifest, Any, Any, RunSettings, str]:
        raise NotImplementedError

    def resting_weights(self, request: ScoringRequest) -> Vector | None:
        raise NotImplementedError


@dataclass
class DictMemory:
    """A client's memory."""

    kept: dict[str, Vector | Mask] = field(default_factory=dict)

    def vector(self, name: str) -> Vector | None:
        value = self.kept.get(name)
        return None if isinstance(value, Mask) else value

    def mask(self, name: str) -> Mask | None:
        value = self.kept.get(name)
        return value if isinstance(value, Mask) else None

    def put(self, name: str, value: Vector | Mask) -> None:
        self.kept[name] = value


@dataclass
class MaskUploads:
    """The uploads of a step, of which only the masks are read."""

    masks: Mapping[ClientId, Mask]

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return tuple(sorted(self.masks))

    def weight(self, client: ClientId) -> int:
        raise KeyError(client)

    def mask(self, client: ClientId) -> Mask:
        return self.masks[client]

    def numbers(self, client: ClientId) -> tuple[float, ...]:
        raise KeyError(client)

    def read(self, client: ClientId, start: int, count: int, vector: str = "") -> Vector:
        raise KeyError(client, start, count, vector)


def received(bits: str, values: Vector, round_number: int = 0, task: str = "") -> Received:
    return Received(mask_of(bits), values, round_number, task)


def votes(*counts: int) -> npt.NDArray[np.int64]:
    return np.array(counts, dtype=np.int64)

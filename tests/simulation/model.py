"""Reference computation of a run with exact fractions and plain lists.

It shares no code with the sums and masks of the coordinator, which are compared with it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
OwnUpdate = Mapping[int, float]  # by place, of a client with a mask of its own

GRID = (
    2**36
)  # values are multiples of 1/GRID; cohorts of more than 65,000 samples have a coarser grid
MASKED, DENSE = 60, 6
TENSORS = (("first.weight", (6, 10), "masked"), ("first.bias", (6,), "dense"))


def manifest_json(*, sent: bool) -> bytes:
    """Return the manifest; the initial vector is built from the seed or uploaded."""
    rules = {"masked": "sent" if sent else "ones", "dense": "sent" if sent else "zeros"}
    document = {
        "format": 1,
        "model": {"name": "simulated"},
        "tensors": [
            {
                "name": name,
                "shape": list(shape),
                "dtype": "float32",
                "role": role,
                "init": {"rule": rules[role], "scale": "0x0.0p+0"},
            }
            for name, shape, role in TENSORS
        ],
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")


def initial_values(*, sent: bool) -> Vector:
    """Return the vector that a run starts from."""
    values = np.r_[np.ones(MASKED), np.zeros(DENSE)]
    if sent:
        values = (np.arange(MASKED + DENSE) % 7 - 3) / 4
    start: Vector = values.astype(np.float32)
    return start


def digest_of(values: Vector) -> str:
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()


def mask_digest(kept: Sequence[int]) -> str:
    """Return the digest of a mask, given its kept coordinates."""
    bits = np.zeros(MASKED, dtype=np.bool_)
    bits[list(kept)] = True
    packed = np.packbits(bits, bitorder="little").tobytes()
    return hashlib.sha256(MASKED.to_bytes(8, "little") + packed).hexdigest()


def kept_at(sparsity: str) -> int:
    return int(((1 - Decimal(sparsity)) * MASKED).to_integral_value(ROUND_FLOOR))


def rounded(exact: Fraction) -> float:
    """Return the nearest float32; ties go to the even one."""
    guess = np.float32(float(exact))
    around = [guess, *(np.nextafter(guess, np.float32(to)) for to in (-np.inf, np.inf))]

    def distance(one: np.float32) -> tuple[Fraction, int]:
        return abs(Fraction(float(one)) - exact), int(one.view(np.int32)) & 1

    return float(min(around, key=distance))


def mean(vectors: Mapping[str, Vector], weights: Mapping[str, int]) -> Vector:
    """Return the weighted mean on the grid: one exact fraction per value, rounded once."""
    total = sum(weights[client] for client in vectors)
    units = [
        sum(weights[client] * round(Fraction(float(one)) * GRID) for client, one in column)
        for column in zip(*([(c, x) for x in v] for c, v in vectors.items()), strict=True)
    ]
    return np.array([rounded(Fraction(unit, total * GRID)) for unit in units], dtype=np.float32)


class Model:
    """The model of a run, updated by each commit."""

    def __init__(
        self, initial: Vector, *, sparse: bool, sparsity: str, keep: bool, moves: bool = False
    ) -> None:
        """`sparse`: a mask is chosen by scores; `moves`: the largest weights are the first mask."""
        self._initial = self._resting = initial
        self._sparsity, self._keep = sparsity, keep
        self.epoch = 0 if sparse else 1
        self.kept: list[int] = [] if sparse else list(range(MASKED))
        self.values: Vector | None = None if sparse else initial
        if moves:
            self._keep_largest({i: float(initial[i]) for i in range(initial.size)})

    @property
    def whole(self) -> Vector:
        """The vector that is scored."""
        if self.values is None:
            return self._initial
        whole = self._resting.copy()
        whole[self.kept] = self.values[: len(self.kept)]
        whole[MASKED:] = self.values[len(self.kept) :]
        return whole

    @property
    def base_digest(self) -> str:
        return "" if self.values is None else digest_of(self.values)

    @property
    def mask_digest(self) -> str:
        return mask_digest(self.kept) if self.epoch else ""

    def score(self, scores: Mapping[str, Vector], weights: Mapping[str, int]) -> None:
        """Agree on a mask: the largest means, ties in favor of the first."""
        means, whole = mean(scores, weights), self.whole
        order = sorted(range(MASKED), key=lambda i: (-means[i], i))
        self._resting = whole if self._keep else self._initial
        self.kept = sorted(order[: kept_at(self._sparsity)])
        self.values = np.r_[whole[self.kept], whole[MASKED:]].astype(np.float32)
        self.epoch += 1

    def train(self, updates: Mapping[str, Vector], weights: Mapping[str, int]) -> None:
        """Apply the mean of the updates."""
        self.values = mean(updates, weights)

    def move(self, updates: Mapping[str, "OwnUpdate"], weights: Mapping[str, int]) -> None:
        """Move the mask to the largest means, each over the clients that hold the weight."""
        before, means = self.kept, dict[int, float]()
        for i in range(MASKED + DENSE):
            held = {client: one[i] for client, one in updates.items() if i in one}
            if held:
                column = {client: np.array([x], dtype=np.float32) for client, x in held.items()}
                means[i] = float(mean(column, weights)[0])
        self._keep_largest(means)
        self.epoch += self.kept != before

    def _keep_largest(self, weights: Mapping[int, float]) -> None:
        """Keep the largest magnitudes; of equal ones the first, as many as the sparsity says."""
        held = [i for i in weights if i < MASKED]
        order = sorted(held, key=lambda i: (-abs(weights[i]), i))
        self.kept = sorted(order[: kept_at(self._sparsity)])
        places = [*self.kept, *range(MASKED, MASKED + DENSE)]
        self.values = np.array([weights[i] for i in places], dtype=np.float32)


def _stream(*parts: object) -> np.random.Generator:
    seed = hashlib.sha256(repr(parts).encode()).digest()
    return np.random.default_rng(int.from_bytes(seed[:8], "little"))


def scores_of(client: str, scored_digest: str) -> Vector:
    """Return a client's honest scores: integers, the same for every call."""
    return _stream(client, scored_digest).integers(0, 50, MASKED).astype(np.float32)


def update_of(client: str, base: Vector, base_digest: str, round_number: int) -> Vector:
    """Return a client's honest update, the same for every call."""
    change = _stream(client, base_digest, round_number).integers(-512, 512, base.size)
    trained: Vector = base + change.astype(np.float32) / np.float32(1024)
    return trained


def memory_after(client: str, memory: Vector, base_digest: str, round_number: int) -> Vector:
    """Return what a client keeps after a round: a few integers."""
    drawn = _stream("memory", client, base_digest, round_number).integers(0, 512, memory.size)
    return (memory + drawn.astype(np.float32)) % np.float32(512)


def own_mask_of(client: str, kept: Sequence[int], base_digest: str) -> list[int]:
    """Return the mask that a client chooses: a quarter of its weights move."""
    stream, others = _stream("mask", client, base_digest), sorted({*range(MASKED)} - {*kept})
    count = min(len(others), -(-len(kept) // 4))
    stay = stream.permutation(kept)[count:]
    return sorted([*stay.tolist(), *stream.permutation(others)[:count].tolist()])


def correct_of(client: str, base_digest: str) -> int:
    """Return how many of 10 samples of a client the model gets right."""
    return int(_stream("test", client, base_digest).integers(0, 11))

"""A channel that codes what passes through it, counts the bytes and hands on what is decoded."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from benchmarks.fashion import Vector

from ssfl.codec import bfloat16, blocks, grid, int8, reference
from ssfl.codec.blocks import ValueCode
from ssfl.method.streams import Stream

Watch = Callable[[int, str, Vector, Vector], None]


@dataclass(frozen=True)
class Variant:
    """A way to send values."""

    name: str
    code: ValueCode
    stochastic: bool = False  # rounding of uploads; of bases always to nearest
    feedback: bool = True  # what rounding took from an upload is added to the client's next one
    from_first: bool = False  # bases on the code's grid around the epoch's first base


LOSSLESS = Variant("lossless", reference.CODE)
LOSSY = (
    Variant("bfloat16", bfloat16.CODE),
    Variant("int8", int8.CODE),
    Variant("grid 2^-16", grid.Grid(16)),
    Variant("grid 2^-14", grid.Grid(14)),
    Variant("grid 2^-14, first", grid.Grid(14), from_first=True),
    Variant("int8, no feedback", int8.CODE, feedback=False),
    Variant("int8, stochastic", int8.CODE, stochastic=True, feedback=False),
)


@dataclass
class Round:
    """What a round took, in bytes."""

    up: list[int] = field(default_factory=list)  # of each upload
    down: dict[str, list[int]] = field(default_factory=dict)  # of each download, by form
    up_error: list[float] = field(default_factory=list)  # |lost| / |change| of each upload
    base_error: float = 0.0


class CodedChannel:
    """Codes uploads against the round's base, and bases against what the client holds.

    A client that took part in the round before holds its base. The others can rebuild the
    epoch's first base, the initial weights on the mask, and get what is smallest of: coded
    against that, coded without reference, plain. Those forms are lossless: a client must end
    with the coordinator's bits.
    """

    def __init__(self, variant: Variant, seed: int, first: Vector, watch: Watch | None) -> None:
        self.rounds: list[Round] = []
        self._variant = variant
        self._seed = seed
        self._first = first
        self._watch = watch
        self._present: list[str] = []  # clients of the round before
        self._change = 0  # bytes of the base, coded against the one before
        self._residuals: dict[str, Vector] = {}

    def down(self, round_number: int, cohort: list[str], base: Vector) -> None:
        forms: dict[str, list[int]] = {}
        away: tuple[str, int] | None = None
        for client in cohort:
            if round_number == 0:
                form, num_bytes = "rebuilt", 0
            elif self._variant.from_first:
                form, num_bytes = "first base", self._change
            elif client in self._present:
                form, num_bytes = "previous base", self._change
            else:
                away = away or self._smallest(base)
                form, num_bytes = away
            forms.setdefault(form, []).append(num_bytes)
        self.rounds.append(Round(down=forms))
        self._present = cohort

    def up(self, round_number: int, client: str, values: Vector, base: Vector) -> Vector:
        variant, wanted, words = self._variant, values, None
        if variant.feedback and not variant.code.lossless:
            wanted = values + self._residuals.get(client, np.float32(0))
        if variant.stochastic:
            stream = Stream(self._seed, "rounding", round_number, client)
            words = (stream.words(values.size) >> np.uint64(32)).astype(np.uint32)
        payload = blocks.encode(variant.code, wanted, base, words)
        received = blocks.decode(variant.code, payload, values.size, base)
        self._residuals[client] = wanted - received
        this = self.rounds[-1]
        this.up.append(len(payload))
        this.up_error.append(blocks.relative_error(wanted, received, base))
        if self._watch:
            self._watch(round_number, client, values, base)
        return received

    def commit(self, mean: Vector, base: Vector) -> Vector:
        against = self._first if self._variant.from_first else base
        payload = blocks.encode(self._variant.code, mean, against)
        received = blocks.decode(self._variant.code, payload, mean.size, against)
        self._change = len(payload)
        self.rounds[-1].base_error = blocks.relative_error(mean, received, base)
        return received

    def _smallest(self, base: Vector) -> tuple[str, int]:
        """Return the smallest form for a client that was away, and its bytes."""
        forms = {
            "first base": len(blocks.encode(reference.CODE, base, self._first)),
            "no reference": len(blocks.encode(reference.CODE, base, None)),
            "plain": base.nbytes,
        }
        best = min(forms, key=lambda form: forms[form])
        return best, forms[best]

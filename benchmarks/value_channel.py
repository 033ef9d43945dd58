"""A channel that codes the values, counts the bytes and passes on the decoded values."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from benchmarks.fashion import Vector

from ssfl.codec import blocks, grid, reference
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import commit_change, lossy_code, rounding_words
from ssfl.strategies.registry import check_settings

UpdateObserver = Callable[[int, str, Vector, Vector], None]


@dataclass(frozen=True)
class Variant:
    """A way to send values: run settings, and one option that is not a setting."""

    name: str
    value_type: str = "float32"
    grid_bits: int = 16
    rounding: str = "stochastic"
    error_feedback: bool = True
    from_first: bool = False  # bases lie on the grid around the epoch's first base

    def applied_to(self, settings: RunSettings) -> RunSettings:
        return replace(
            settings, value_type=self.value_type, grid_bits=self.grid_bits,
            rounding=self.rounding, error_feedback=self.error_feedback,
        )  # fmt: skip


LOSSLESS = Variant("lossless")
LOSSY = (
    Variant("bfloat16", "bfloat16"),
    Variant("int8", "int8"),
    Variant("grid 2^-16", "grid"),
    Variant("int8, nearest", "int8", rounding="nearest"),
    Variant("grid 2^-14, first", "grid", grid_bits=14, from_first=True),
)


@dataclass
class Round:
    """The bytes of a round."""

    up: list[int] = field(default_factory=list)  # of each upload
    down: dict[str, list[int]] = field(default_factory=dict)  # of each download, by form
    up_error: list[float] = field(default_factory=list)  # |lost| / |change| of each upload
    base_error: float = 0.0


class CodedChannel:
    """Codes uploads against the round's base, and bases against what the client holds.

    A client of the previous round holds its base. The others can rebuild the epoch's first base
    (the initial weights on the mask) and get the smallest of: coded against that, coded without
    reference, plain. Those forms are lossless, because a client must end with the coordinator's
    bits.
    """

    def __init__(
        self, variant: Variant, settings: RunSettings, first: Vector, watch: UpdateObserver | None
    ) -> None:
        self.rounds: list[Round] = []
        self._settings = variant.applied_to(settings)
        check_settings(self._settings)
        self._code = lossy_code(self._settings)
        self._first = first
        self._from_first = variant.from_first
        self._watch = watch
        self._present: list[str] = []  # clients of the previous round
        self._change = 0  # bytes of the base, coded against the previous one
        self._residuals: dict[str, Vector] = {}

    def down(self, round_number: int, cohort: list[str], base: Vector) -> None:
        forms: dict[str, list[int]] = {}
        away: tuple[str, int] | None = None
        for client in cohort:
            if round_number == 0:
                form, num_bytes = "rebuilt", 0
            elif self._from_first:
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
        wanted, words = values, None
        if self._code:
            if client in self._residuals:
                wanted = values + self._residuals[client]
            words = rounding_words(self._settings, values.size, "update", round_number, client)
        code = self._code or reference.CODE
        payload = blocks.encode(code, wanted, base, words)
        received = blocks.decode(code, payload, values.size, base)
        if self._code and self._settings.error_feedback:
            self._residuals[client] = wanted - received
        this = self.rounds[-1]
        this.up.append(len(payload))
        this.up_error.append(blocks.relative_error(wanted, received, base))
        if self._watch:
            self._watch(round_number, client, values, base)
        return received

    def commit(self, mean: Vector, base: Vector) -> Vector:
        if self._from_first:
            code = grid.Grid(self._settings.grid_bits)
            payload = blocks.encode(code, mean, self._first)
            new = blocks.decode(code, payload, mean.size, self._first)
        else:
            digest = hashlib.sha256(base.astype("<f4").tobytes()).digest()
            new, change = commit_change(self._settings, base, mean, digest)
            payload = change or blocks.encode(reference.CODE, new, base)
        self._change = len(payload)
        self.rounds[-1].base_error = blocks.relative_error(mean, new, base)
        return new

    def _smallest(self, base: Vector) -> tuple[str, int]:
        """Return the smallest form for a client that lacks the previous base, and its bytes."""
        forms = {
            "first base": len(blocks.encode(reference.CODE, base, self._first)),
            "no reference": len(blocks.encode(reference.CODE, base, None)),
            "plain": base.nbytes,
        }
        best = min(forms, key=lambda form: forms[form])
        return best, forms[best]

"""The prediction for a run: bytes by phase and direction, and seconds on a link."""

from dataclasses import dataclass

from ssfl.method.settings import RunSettings
from ssfl.tools.plan.masks import PlannedMask
from ssfl.tools.plan.sizes import ZERO, Seconds, Size


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer of one client."""

    payload: Size
    message: Size  # the header and all chunks

    def __add__(self, other: "Transfer") -> "Transfer":
        return Transfer(self.payload + other.payload, self.message + other.message)

    def __mul__(self, times: int) -> "Transfer":
        return Transfer(self.payload * times, self.message * times)

    def union(self, other: "Transfer") -> "Transfer":
        return Transfer(self.payload.union(other.payload), self.message.union(other.message))


NOTHING = Transfer(ZERO, ZERO)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of transfers on the link, without work at either end."""

    base: Seconds  # from the coordinator's first byte to the client's last
    update: Seconds  # from the client's first byte to its receipt, without queueing
    round: Seconds  # base and update, with queueing for the upload slots
    scoring: Seconds  # the scores of all clients
    mask: Seconds  # sent with the first task; the client derives the base from it
    run: Seconds


@dataclass(frozen=True)
class RunPlan:
    """The prediction for one run."""

    settings: RunSettings
    num_masked: int
    num_unmasked: int
    num_kept: int
    num_clients: int
    cohort: int
    rows: dict[tuple[str, str], Transfer]  # (phase, direction) -> total of the run's ledger
    update: Transfer  # one client, one round
    base: Transfer
    scores: Transfer  # one client, for each mask
    mask: Transfer
    masks: tuple[PlannedMask, ...]  # the transfers above are those of the last mask
    costs: tuple[tuple[int, int], ...]  # per mask: bytes of one client, once and per round
    times: Times | None = None

    def total(self, *directions: str) -> Transfer:
        """Return the run's bytes at the coordinator, in these directions or in both."""
        wanted = directions or ("up", "down")
        rows = (row for (_, direction), row in self.rows.items() if direction in wanted)
        return sum(rows, start=NOTHING)

    @property
    def num_scorings(self) -> int:
        return sum(mask.is_agreed for mask in self.masks)

    def break_even(self, dense: "RunPlan") -> int | None:
        """Return the rounds after which a client has moved fewer bytes than in the dense run."""
        ((_, in_dense),) = dense.costs
        ahead = 0  # bytes saved so far against the dense run
        for mask, (once, in_round) in zip(self.masks, self.costs, strict=True):
            ahead -= once
            saved = in_dense - in_round
            needed = -ahead // saved + 1 if saved > 0 else None
            is_last = mask is self.masks[-1]  # the last mask may pay off only after the run
            if needed is not None and (is_last or needed <= mask.stop - mask.first):
                return mask.first + max(1, needed)
            ahead += saved * (mask.stop - mask.first)
        return None

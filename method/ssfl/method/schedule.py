"""Schedules by round: sparsities, learning rates, and rounds that start with a refreshed mask."""

from decimal import Decimal

from ssfl.method.density import parse_sparsity
from ssfl.method.errors import DensityError, SettingsError


def parse_schedule(text: str) -> list[tuple[int, Decimal]]:
    """Return (round, sparsity) pairs, with rounds rising from 0; empty for an empty text.

    >>> parse_schedule("0:0.98, 30:0.95")
    [(0, Decimal('0.98')), (30, Decimal('0.95'))]
    """
    pairs = []
    for part in text.split(",") if text.strip() else []:
        number, _, sparsity = part.partition(":")
        if not number.strip().isdecimal() or not sparsity:
            raise DensityError(
                f"sparsity-schedule is a list of round:sparsity such as 0:0.98,30:0.95, "
                f"got {part.strip()!r}"
            )
        try:
            pairs.append((int(number), parse_sparsity(sparsity.strip())))
        except DensityError as error:
            raise DensityError(f"sparsity-schedule, round {int(number)}: {error}") from None
    rounds = [number for number, _ in pairs]
    if pairs and (rounds[0] != 0 or sorted(set(rounds)) != rounds):
        raise DensityError("sparsity-schedule must begin with round 0, and rounds must rise")
    return pairs


def sparsity_at(text: str, round_number: int) -> str:
    """Return the sparsity of a schedule at a round.

    >>> sparsity_at("0:0.98,30:0.95", 29), sparsity_at("0:0.98,30:0.95", 30)
    ('0.98', '0.95')
    """
    (*_, last) = [sparsity for number, sparsity in parse_schedule(text) if number <= round_number]
    return str(last)


def parse_rounds(text: str) -> frozenset[int]:
    """Return the round numbers of a list such as 30,60; empty for an empty text."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if wrong := [part for part in parts if not part.isdecimal() or int(part) < 1]:
        raise DensityError(f"must be a list of rounds above 0, such as 30,60, got {wrong[0]!r}")
    return frozenset(int(part) for part in parts)


def parse_lr_schedule(text: str) -> tuple[str, int, float]:
    """Return the kind of a schedule of learning rates; with step also its rounds and its factor.

    >>> parse_lr_schedule("cosine"), parse_lr_schedule("step:30:0.1")
    (('cosine', 0, 1.0), ('step', 30, 0.1))
    """
    if text in ("decay", "cosine"):
        return text, 0, 1.0
    kind, *parts = text.split(":")
    try:
        every, factor = int(parts[0]), float(parts[1])
        if kind == "step" and len(parts) == 2 and every > 0 and 0 < factor <= 1:
            return kind, every, factor
    except (ValueError, IndexError):
        pass
    raise SettingsError(
        "--lr-schedule must be decay, cosine or step:ROUNDS:FACTOR such as step:30:0.1 "
        f"(a factor of at most 1), got {text!r}"
    )

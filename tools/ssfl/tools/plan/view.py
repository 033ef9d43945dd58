"""Output of a plan: a table with a column per run, notes, and the JSON document."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import Any

from rich import box
from rich.table import Column, Table
from rich.text import Text

from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import ROUND_MASKS
from ssfl.strategies.registry import strategy_for
from ssfl.tools.plan.advice import advice
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.result import RunPlan, Transfer
from ssfl.tools.plan.sizes import Seconds, Size

NONE = "·"


def empty_table(title: str, headings: Iterable[str]) -> Table:
    """Return a table without rows: a column of names, and one for every heading."""
    columns = [Column(heading, justify="right", no_wrap=True) for heading in headings]
    return Table(
        Column(no_wrap=True), *columns,
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip


def plan_table(model: str, dense: RunPlan, sparse: list[RunPlan]) -> Table:
    """Return the comparison: dense FedAvg first, then a column for every sparsity."""
    plans = [dense, *sparse]
    table = empty_table(
        f"{model}: {dense.num_masked:,} prunable and {dense.num_unmasked:,} other values, "
        f"{dense.settings.rounds} rounds, {dense.cohort} of {dense.num_clients} clients",
        ["dense", *map(_heading, sparse)],
    )
    table.add_row("kept values", *(f"{plan.num_kept:,}" for plan in plans))
    for heading, rows in _sections(plans):
        table.add_row()
        table.add_row(Text(heading, style="bold"))
        for name, cell in rows:
            cells = [cell(plan) for plan in plans]
            if any(text != NONE for text in cells):
                table.add_row(f"  {name}", *cells)
    return table


def notes(
    dense: RunPlan,
    sparse: list[RunPlan],
    link: Link | None,
    coordinator_bits_per_s: float | None,
    upload_slots: int,
) -> Iterator[str]:
    """Yield the explanations of the table."""
    yield "MB are 1000² bytes. Framing is the part of messages that is not tensor data."
    if moved := [phase for phase, _ in sparse[0].rows if phase == ROUND_MASKS]:
        yield (
            f"Masks that rounds move ({moved[0]} in the ledger) are part of update and base. What "
            "a mask keeps, and whether it moves, may not be known before the run: hence the ranges."
        )
    if len(sparse[0].masks) > 1:
        yield _masks_note(sparse[0])
    run = sparse[0].settings
    is_sampled = dense.cohort < dense.num_clients
    if is_sampled and run.value_type != "float32" and run.downloads == "change":
        yield (
            "Clients that missed the round before download exact values. With --downloads values "
            f"they download {run.value_type} values."
        )
    if link is None:
        yield "Give --link, such as --link 20mbit/50ms, to predict seconds, too."
        return
    rates = f"{link.up_bits_per_s / 1e6:g} Mbit/s up, {link.down_bits_per_s / 1e6:g} down"
    shared = "and the coordinator's link is unlimited"
    if coordinator_bits_per_s is not None:
        shared = f"and all share {coordinator_bits_per_s / 1e6:g} Mbit/s at the coordinator"
    yield (
        f"Seconds are for transfers only. Every client has its own link ({rates}, "
        f"{1000 * link.rtt_s:g} ms), {shared}."
    )
    if dense.cohort > upload_slots:
        yield (
            f"The coordinator receives {upload_slots} uploads at once (--upload-slots), so the "
            f"{dense.cohort} uploads of a round take {-(-dense.cohort // upload_slots)} turns."
        )
    yield from advice(dense.num_masked, link, sampled=dense.cohort < dense.num_clients)


def _masks_note(plan: RunPlan) -> str:
    """Return which masks the run has, and which one the rows for one client show."""
    warm, agreed = plan.settings.warmup_rounds, [mask for mask in plan.masks if mask.is_agreed]
    dense = f"{warm} dense rounds come first. " if warm else ""
    rounds = ", ".join(str(mask.first) for mask in agreed)
    return (
        f"{dense}A mask is agreed before round {rounds}. Scores and mask are sent {len(agreed)} "
        "times. The rows for a client and the kept values are those of the last mask. Masks "
        "refreshed on request, for new labels or on a jump of the loss are not included."
    )


def plan_document(
    dense: RunPlan, sparse: list[RunPlan], link: Link | None, coordinator_bits_per_s: float | None
) -> dict[str, Any]:
    """Return the JSON document: bytes and seconds, each as low, high and most."""
    return {
        "num_masked": dense.num_masked,
        "num_unmasked": dense.num_unmasked,
        "rounds": dense.settings.rounds,
        "clients": dense.num_clients,
        "clients_per_round": dense.cohort,
        "link": asdict(link) if link else None,
        "coordinator_bits_per_s": coordinator_bits_per_s,
        "dense": _run_document(dense, dense),
        "sparse": [_run_document(plan, dense) for plan in sparse],
    }


def _run_document(plan: RunPlan, dense: RunPlan) -> dict[str, Any]:
    return {
        "strategy": plan.settings.strategy,
        "sparsity": plan.settings.sparsity if plan is not dense else None,
        "num_kept": plan.num_kept,
        "masks": [asdict(mask) for mask in plan.masks],
        **{name: _bytes(getattr(plan, name)) for name in ("update", "base", "scores", "mask")},
        "run_up": _bytes(plan.total("up")),
        "run_down": _bytes(plan.total("down")),
        "ledger": [
            {"phase": phase, "direction": direction, **_bytes(transfer)}
            for (phase, direction), transfer in plan.rows.items()
        ],
        "seconds": asdict(plan.times) if plan.times else None,
        "break_even_rounds": None if plan is dense else plan.break_even(dense),
    }


def _bytes(transfer: Transfer) -> dict[str, Any]:
    return {"payload_bytes": asdict(transfer.payload), "message_bytes": asdict(transfer.message)}


Cell = Callable[[RunPlan], str]
TIMES = {  # the parts of `Times` by their names in the table
    "base, down": "base", "update, up": "update", "a round": "round",
    "scoring, once": "scoring", "mask, once": "mask", "all transfers": "run",
}  # fmt: skip


def _sections(plans: list[RunPlan]) -> Iterator[tuple[str, Iterable[tuple[str, Cell]]]]:
    dense = plans[0]
    each = [*_transfer_rows("update, up", "update"), *_transfer_rows("base, down", "base")]
    yield "client, each round", each
    once = [*_transfer_rows("scores, up", "scores"), *_transfer_rows("mask, down", "mask")]
    once.append(("pays off", lambda plan: _break_even(plan, dense)))
    yield "client, once" if plans[-1].num_scorings < 2 else "client, each mask", once
    n = dense.num_clients
    yield (
        "whole run, messages",
        [
            ("mean client, up", lambda plan: format_size(plan.total("up").message, n)),
            ("mean client, down", lambda plan: format_size(plan.total("down").message, n)),
            ("coordinator, in", lambda plan: format_size(plan.total("up").message)),
            ("coordinator, out", lambda plan: format_size(plan.total("down").message)),
            ("both, at most", lambda plan: _format_bound(plan.total().message)),
        ],
    )
    if dense.times:
        seconds = ((name, partial(_time, part=part)) for name, part in TIMES.items())
        yield "seconds on the link", seconds


def _transfer_rows(name: str, field: str) -> Iterator[tuple[str, Cell]]:
    transfer: Callable[[RunPlan], Transfer] = attrgetter(field)
    yield name, lambda plan: format_size(transfer(plan).payload)
    yield "  at most", lambda plan: _format_bound(transfer(plan).payload)
    yield "  framing", lambda plan: _framing(transfer(plan))


def _heading(plan: RunPlan) -> str:
    settings, strategy = plan.settings, strategy_for(plan.settings)
    kept = (
        "dense"
        if strategy.is_dense
        else f"{settings.sparsity_schedule or settings.sparsity} sparse"
    )
    is_usual = settings.strategy == RunSettings().strategy
    return kept if is_usual else f"{settings.strategy}, {kept}"


def _break_even(plan: RunPlan, dense: RunPlan) -> str:
    if plan is dense:
        return NONE
    rounds = plan.break_even(dense)
    return "never" if rounds is None else f"in round {rounds}"


def format_size(size: Size, among: int = 1) -> str:
    """Return a size as "4.50 MB", or a range as "3.30–3.80 MB"."""
    if not size.most:
        return NONE
    units = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
    unit = next((unit for unit, least in units.items() if size.high / among >= least), "B")
    return _range(size.low / among / units[unit], size.high / among / units[unit], unit)


def _format_bound(size: Size) -> str:
    """Return the upper bound if it is well above the expected size."""
    return NONE if size.most < 1.01 * size.high else format_size(Size.fixed(size.most))


def _framing(transfer: Transfer) -> str:
    more = transfer.message.high - transfer.payload.high
    return f"+ {more:,} B" if more else NONE


def _time(plan: RunPlan, part: str) -> str:
    seconds: Seconds = getattr(plan.times, part)
    return _range(seconds.low, seconds.high, "s") if seconds.most else NONE


def _range(low: float, high: float, unit: str) -> str:
    ends = dict.fromkeys(map(_format_number, (low, high)))  # equal ends are shown once
    return f"{'–'.join(ends)} {unit}"


def _format_number(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"

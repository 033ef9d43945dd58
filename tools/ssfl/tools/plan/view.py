"""A plan as people and programs read it: a table with a column per run, notes, a JSON document."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ssfl.tools.plan.link import Link
from ssfl.tools.plan.result import RunPlan, Seconds, Times, Transfer
from ssfl.tools.plan.sizes import Size

NONE = "·"


def plan_table(model: str, dense: RunPlan, sparse: list[RunPlan]) -> Table:
    """Return the comparison: dense FedAvg first, then a column for every sparsity."""
    plans = [dense, *sparse]
    table = Table(
        title=f"{model}: {dense.num_masked:,} prunable and {dense.num_unmasked:,} other values, "
        f"{dense.settings.rounds} rounds, {dense.cohort} of {dense.num_clients} clients",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for plan in plans:
        table.add_column(_heading(plan), justify="right", no_wrap=True)
    table.add_row("kept values", *(f"{plan.num_kept:,}" for plan in plans))
    for heading, rows in _sections(plans):
        table.add_row()
        table.add_row(Text(heading, style="bold"))
        for name, cell in rows:
            cells = [cell(plan) for plan in plans]
            if any(one != NONE for one in cells):
                table.add_row(f"  {name}", *cells)
    return table


def notes(
    dense: RunPlan,
    sparse: list[RunPlan],
    link: Link | None,
    coordinator_bits_per_s: float | None,
    upload_slots: int,
) -> Iterator[str]:
    """Yield what a reader of the table has to know."""
    yield "MB are 1000² bytes. Framing is what messages have beyond their tensors."
    if len(sparse[0].masks) > 1:
        yield _masks_note(sparse[0])
    if link is None:
        yield "With --link 20mbit/50ms there are also seconds."
        return
    rates = f"{link.up_bits_per_s / 1e6:g} Mbit/s up, {link.down_bits_per_s / 1e6:g} down"
    shared = (
        "and the coordinator's is no limit"
        if coordinator_bits_per_s is None
        else f"and all share the coordinator's {coordinator_bits_per_s / 1e6:g} Mbit/s"
    )
    yield (
        f"Seconds are those of transfers alone. Every client has a link of its own ({rates}, "
        f"{1000 * link.rtt_s:g} ms), {shared}."
    )
    if dense.cohort > upload_slots:
        yield (
            f"The coordinator receives {upload_slots} uploads at once (--upload-slots), so the "
            f"{dense.cohort} of a round take {-(-dense.cohort // upload_slots)} turns."
        )


def _masks_note(plan: RunPlan) -> str:
    """Say which masks the run has, and of which one the rows for one client are."""
    warm, agreed = plan.settings.warmup_rounds, [one for one in plan.masks if one.is_agreed]
    dense = f"{warm} dense rounds come first. " if warm else ""
    rounds = ", ".join(str(one.first) for one in agreed)
    return (
        f"{dense}A mask is agreed before round {rounds}: scores and mask travel {len(agreed)}x; a "
        "client's rows and kept values are those of the last. Masks renewed on request, for new "
        "labels or on a jump of the loss come on top."
    )


def plan_document(
    dense: RunPlan, sparse: list[RunPlan], link: Link | None, coordinator_bits_per_s: float | None
) -> dict[str, Any]:
    """Return everything as plain types: bytes and seconds, each from low to high and at most."""
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


def _sections(plans: list[RunPlan]) -> Iterator[tuple[str, Iterable[tuple[str, Cell]]]]:
    dense = plans[0]
    yield (
        "client, each round",
        [
            *_transfer_rows("update, up", lambda plan: plan.update),
            *_transfer_rows("base, down", lambda plan: plan.base),
        ],
    )
    yield (
        "client, once" if plans[-1].num_scorings < 2 else "client, each mask",
        [
            *_transfer_rows("scores, up", lambda plan: plan.scores),
            *_transfer_rows("mask, down", lambda plan: plan.mask),
            ("pays off", lambda plan: _break_even(plan, dense)),
        ],
    )
    n = dense.num_clients
    yield (
        "whole run, messages",
        [
            ("mean client, up", lambda plan: format_size(plan.total("up").message, n)),
            ("mean client, down", lambda plan: format_size(plan.total("down").message, n)),
            ("coordinator, in", lambda plan: format_size(plan.total("up").message)),
            ("coordinator, out", lambda plan: format_size(plan.total("down").message)),
            (
                "both, at most",
                lambda plan: _format_bound(plan.total("up").message + plan.total("down").message),
            ),
        ],
    )
    if dense.times:
        yield (
            "seconds on the link",
            [
                ("base, down", lambda plan: _time(plan, lambda times: times.base)),
                ("update, up", lambda plan: _time(plan, lambda times: times.update)),
                ("a round", lambda plan: _time(plan, lambda times: times.round)),
                ("scoring, once", lambda plan: _time(plan, lambda times: times.scoring)),
                ("mask, once", lambda plan: _time(plan, lambda times: times.mask)),
                ("all transfers", lambda plan: _time(plan, lambda times: times.run)),
            ],
        )


def _transfer_rows(
    name: str, transfer: Callable[[RunPlan], Transfer]
) -> Iterator[tuple[str, Cell]]:
    yield name, lambda plan: format_size(transfer(plan).payload)
    yield "  at most", lambda plan: _format_bound(transfer(plan).payload)
    yield "  framing", lambda plan: _framing(transfer(plan))


def _heading(plan: RunPlan) -> str:
    if plan.settings.strategy == "fedavg":
        return "dense"
    return f"{plan.settings.sparsity_schedule or plan.settings.sparsity} sparse"


def _break_even(plan: RunPlan, dense: RunPlan) -> str:
    if plan is dense:
        return NONE
    rounds = plan.break_even(dense)
    return "never" if rounds is None else f"in round {rounds}"


def format_size(size: Size, among: int = 1) -> str:
    """Return "4.50 MB", or "3.30–3.80 MB" where it is a range."""
    if not size.most:
        return NONE
    unit, divisor = _unit(size.high / among)
    low, high = (format_number(one / among / divisor) for one in (size.low, size.high))
    return f"{high} {unit}" if low == high else f"{low}–{high} {unit}"


def _format_bound(size: Size) -> str:
    """Return the bound where it is worth telling beside the expectation."""
    return NONE if size.most < 1.01 * size.high else format_size(Size.fixed(size.most))


def _framing(transfer: Transfer) -> str:
    more = transfer.message.high - transfer.payload.high
    return f"+ {more:,} B" if more else NONE


def _unit(num_bytes: float) -> tuple[str, float]:
    for unit, divisor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= divisor:
            return unit, divisor
    return "B", 1.0


def _time(plan: RunPlan, chosen: Callable[[Times], Seconds]) -> str:
    assert plan.times is not None
    seconds = chosen(plan.times)
    if not seconds.most:
        return NONE
    first, second = (format_number(one) for one in (seconds.low, seconds.high))
    return f"{second} s" if first == second else f"{first}–{second} s"


def format_number(number: float) -> str:
    """Return three digits, or all of those before the point."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"

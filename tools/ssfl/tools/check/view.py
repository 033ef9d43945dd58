"""Output of a check: the verdict, a line per step, the tables, and the JSON document."""

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ssfl.datasets.wording import plural
from ssfl.method.manifest import Manifest, Role
from ssfl.program.printable import printable
from ssfl.tools.check.forecast import Forecast
from ssfl.tools.check.site_trial import Pace, format_seconds
from ssfl.tools.check.steps import CheckStep, CheckVerdict, Steps
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.sizes import Seconds
from ssfl.tools.plan.view import format_size
from ssfl.tools.terminal import plain_table, right

STYLES = {
    CheckVerdict.OK: "green",
    CheckVerdict.WARNING: "yellow",
    CheckVerdict.FAILED: "bold red",
    CheckVerdict.SKIPPED: "dim",
}
INDENT, VERDICT, NAME = 2, 9, 13  # columns
FIRST, LAST = 12, 6  # tensors shown of a long model
WIDE = 100  # columns, from which "kept" is shown
NARROW = 80  # columns, below which only "up", "down" and "round" are shown
NONE = "·"
MAX_ROUNDS_SHOWN = 5


def show_steps(console: Console, steps: Steps) -> None:
    """Print the steps, part by part."""
    for part, members in groupby(steps.all, lambda step: step.part):
        console.print(Text(part, style="bold"))
        for step in members:
            console.print(step_text(step, console.width))


def step_text(step: CheckStep, width: int) -> Text:
    """Return one step in lines of at most `width`: the result, then the remedies."""
    margin = INDENT + VERDICT + NAME
    head = " " * INDENT + f"{step.verdict:<{VERDICT}}" + f"{step.name:<{NAME}}"
    lines = list(_wrapped(step.text, width - margin))
    text = Text(head + lines[0])
    text.stylize(STYLES[step.verdict], INDENT, INDENT + VERDICT)
    if step.verdict is CheckVerdict.SKIPPED:
        text.stylize("dim")
    for line in lines[1:]:
        text.append("\n" + " " * margin + line)
    for place, remedy in enumerate(step.remedy.options() if step.remedy else ()):
        action = f"{'or' if place else '→'} {remedy.owner}: {remedy.action}"
        for number, line in enumerate(_wrapped(action, width - margin)):
            text.append("\n" + " " * (margin + 2 * bool(number)) + line, style="bold")
    return text


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Yield wrapped lines; line breaks in the text are kept."""
    for line in text.splitlines() or [""]:
        shown = printable(line.replace("\t", "    ").rstrip())
        yield from textwrap.wrap(
            shown, max(20, width - 2), break_on_hyphens=False, drop_whitespace=True,
            subsequent_indent=" " * (len(shown) - len(shown.lstrip())),
        ) or [""]  # fmt: skip


def tensor_table(manifest: Manifest) -> Table:
    """Return the tensors with their roles; the middle of a long model is left out."""
    table = plain_table(Column("tensor", overflow="fold"), "shape", "role", right("values"))
    tensors = manifest.tensors
    shown = tensors if len(tensors) <= FIRST + LAST + 1 else (*tensors[:FIRST], *tensors[-LAST:])
    for index, tensor in enumerate(shown):
        if len(shown) < len(tensors) and index == FIRST:
            table.add_row(f"… {len(tensors) - len(shown)} more (--json has all)", "", "", "")
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        table.add_row(tensor.name, shape, tensor.role.value, f"{tensor.size:,}")
    return table


def role_table(manifest: Manifest, num_frozen: int = 0) -> Table:
    """Return the totals of each role, and what is sent of it."""
    frozen = f"; {num_frozen:,} are frozen and cost almost nothing" if num_frozen else ""
    notes = {
        Role.MASKED: "pruned by the mask; kept values are sent",
        Role.DENSE: f"always sent{frozen}",
        Role.BUFFER: "always sent, never trained",
    }
    table = plain_table(right(), "", right(), right(), "")
    table.show_header = False
    for role, (count, values) in _totals(manifest).items():
        if count:
            share = f"{100 * values / manifest.size:.1f} %"
            table.add_row(str(count), role, f"{values:,}", share, notes[Role(role)], style="bold")
    return table


def _totals(manifest: Manifest) -> dict[str, tuple[int, int]]:
    sizes = {role: [t.size for t in manifest.tensors if t.role is role] for role in Role}
    return {role.value: (len(found), sum(found)) for role, found in sizes.items()}


def forecast_table(forecasts: list[Forecast], width: int) -> Table:
    """Return bytes and seconds of a round, with a row per sparsity; empty columns are left out."""
    cells: dict[str, list[str]] = {
        "kept": [f"{row.num_kept:,}" if width >= WIDE else NONE for row in forecasts],
        "up": [format_size(row.up) for row in forecasts],
        "down": [format_size(row.down) for row in forecasts],
        "download": [_time(row.download) for row in forecasts],
        "work": [NONE if row.work_s is None else format_seconds(row.work_s) for row in forecasts],
        "upload": [_time(row.upload) for row in forecasts],
        "round": [_time(row.round) for row in forecasts],
    }
    shown = {
        name: column
        for name, column in cells.items()
        if set(column) != {NONE} and (width >= NARROW or name in ("up", "down", "round"))
    }
    table = plain_table("sparsity", *map(right, shown))
    for column in table.columns:
        column.no_wrap = True
    for row, texts in zip(forecasts, zip(*shown.values(), strict=True), strict=True):
        table.add_row(format_sparsity(row), *texts, style="bold" if row.is_run else "")
    return table


def forecast_notes(forecasts: list[Forecast], link: Link | None, pace: Pace | None) -> str:
    """Return the explanation of the table."""
    own = next((row for row in forecasts if row.is_run), forecasts[0])
    head, once = "One round of this site. Times are the longest expected.", _once_note(own)
    if link is None:
        return f"{head} {once}The link was not measured, so there are no transfer times."
    if pace is None:
        return f"{head} {once}No batch was trained, so there is no work time."
    return (
        f"{head} A round takes download + work ({pace.num_steps:,} steps of "
        f"{format_seconds(pace.step_s)}, 2 tests of {format_seconds(pace.test_s)}) + upload, "
        f"without waiting for other clients. {once}"
    ).rstrip()


def _once_note(own: Forecast) -> str:
    """Return the other transfers: scores, and the mask."""
    before, at = own.scored_before, "" if own.is_run else f", at {format_sparsity(own)}"
    of_last = f" (this run's row: from round {own.masked_from} on)" if own.masked_from else ""
    mask = f"mask {format_size(own.mask)} down" if own.mask.most else ""
    if not before or not own.scores.most:
        return f"Once, with the first task: {mask}{of_last}. " if mask else ""
    rounds = ", ".join(map(str, before[:MAX_ROUNDS_SHOWN]))
    more = len(before) - MAX_ROUNDS_SHOWN
    when = f"Before round {rounds}" + (f" and {more} more" if more > 0 else "")
    if before == (0,):
        when = f"Once before training{at}"
    transfers = ", ".join(filter(None, [f"scores {format_size(own.scores)} up", mask]))
    return f"{when}: {transfers}{of_last}. "


def verdict_text(steps: Steps) -> Text:
    """Return the first line."""
    failed, warned = map(steps.with_verdict, (CheckVerdict.FAILED, CheckVerdict.WARNING))
    if steps.is_interrupted:
        return Text(f"check interrupted at {failed[-1].name}", style="bold red")
    if not failed:
        warnings = f", {plural(len(warned), 'warning')}" if warned else ""
        return Text(f"check passed: no step failed{warnings}", style="bold green")
    owners = list(dict.fromkeys(step.remedy.owner for step in failed if step.remedy))
    names = ", ".join(step.name for step in failed)
    text = f"check FAILED: {names}; to be fixed by {' and '.join(owners)}"
    return Text(text, style="bold red")


def document(
    steps: Steps,
    manifest: Manifest | None,
    forecasts: list[Forecast],
    link: Link | None,
    pace: Pace | None,
) -> dict[str, Any]:
    """Return the JSON document of a check."""
    return {
        "passed": not steps.with_verdict(CheckVerdict.FAILED),
        "exit_code": int(steps.exit_code),
        "steps": [
            {
                "part": step.part,
                "name": step.name,
                "verdict": step.verdict.lower(),
                "text": step.text,
                "who": step.remedy.owner if step.remedy else None,
                "what": step.remedy.action if step.remedy else None,
                "or": [
                    {"who": remedy.owner, "what": remedy.action}
                    for remedy in (step.remedy.alternatives if step.remedy else ())
                ],
                "seconds": round(step.seconds, 4),
            }
            for step in steps.all
        ],
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "role": t.role.value, "values": t.size}
            for t in (manifest.tensors if manifest else ())
        ],
        "totals": {
            role: {"tensors": count, "values": values}
            for role, (count, values) in (_totals(manifest) if manifest else {}).items()
        },
        "manifest_digest": manifest.digest.hex() if manifest else None,
        "link": asdict(link) if link else None,
        "pace": {**asdict(pace), "round_s": pace.round_s} if pace else None,
        "rounds": [row.document() for row in forecasts],
    }


def format_sparsity(forecast: Forecast) -> str:
    """Return a forecast's sparsity in percent, or by its name."""
    try:
        name = f"{100 * float(forecast.sparsity):g} %"
    except ValueError:
        name = forecast.sparsity
    return f"{name}, {forecast.rounds}" if forecast.rounds else name


def _time(seconds: Seconds | None) -> str:
    return NONE if seconds is None else format_seconds(seconds.high)

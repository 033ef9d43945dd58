"""A check as people and programs read it: a verdict, a line per step, two tables, a document."""

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ssfl.method.manifest import Manifest, Role, TensorSpec
from ssfl.program.printable import printable
from ssfl.tools.check.forecast import Forecast
from ssfl.tools.check.site_trial import Pace, format_seconds
from ssfl.tools.check.steps import CheckStep, CheckVerdict, Steps
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.result import Seconds
from ssfl.tools.plan.view import format_size

STYLES = {
    CheckVerdict.OK: "green",
    CheckVerdict.WARNING: "yellow",
    CheckVerdict.FAILED: "bold red",
    CheckVerdict.SKIPPED: "dim",
}
INDENT, VERDICT, NAME = 2, 9, 13  # columns
FIRST, LAST = 12, 6  # tensors shown of a long model
WIDE = 100  # columns: room for how many values are kept
NARROW = 80  # below, only what a round costs in all
NONE = "·"
MAX_ROUNDS_SHOWN = 5


class Screen:
    """Names the step under way on a terminal, and prints all steps at the end."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status = console.status("")

    def begin(self, name: str) -> None:
        """Say what is being tried; only a terminal shows it."""
        self._status.update(f"{name} …")
        self._status.start()

    def close(self) -> None:
        """Leave the terminal as it was, also after Ctrl-C."""
        self._status.stop()

    def show(self, steps: Steps) -> None:
        """Print the steps, part by part."""
        part = ""
        for step in steps.all:
            if step.part != part:
                self.console.print(Text(step.part, style="bold"))
                part = step.part
            self.console.print(step_text(step, self.console.width))


def step_text(step: CheckStep, width: int) -> Text:
    """Return one step in lines of at most `width`: what was found, then who is to do what."""
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
        told = f"{'or' if place else '→'} {remedy.owner}: {remedy.action}"
        for number, line in enumerate(_wrapped(told, width - margin)):
            text.append("\n" + " " * (margin + 2 * bool(number)) + line, style="bold")
    return text


def _wrapped(told: str, width: int) -> Iterator[str]:
    """Yield lines; those of an author's code keep their own."""
    for line in told.splitlines() or [""]:
        shown = printable(line.replace("\t", "    ").rstrip())
        yield from textwrap.wrap(
            shown, max(20, width - 2), break_on_hyphens=False, drop_whitespace=True,
            subsequent_indent=" " * (len(shown) - len(shown.lstrip())),
        ) or [""]  # fmt: skip


def tensor_table(manifest: Manifest) -> Table:
    """Return the tensors with their roles; the middle of a long model is left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tensor", overflow="fold")
    table.add_column("shape")
    table.add_column("role")
    table.add_column("values", justify="right")
    tensors = manifest.tensors
    shown = tensors if len(tensors) <= FIRST + LAST + 1 else (*tensors[:FIRST], *tensors[-LAST:])
    for index, tensor in enumerate(shown):
        if len(shown) < len(tensors) and index == FIRST:
            table.add_row(f"… {len(tensors) - len(shown)} more (--json has all)", "", "", "")
        table.add_row(tensor.name, _shape(tensor), tensor.role.value, f"{tensor.size:,}")
    return table


def role_table(manifest: Manifest, num_frozen: int = 0) -> Table:
    """Return what each role has in all, and what becomes of it."""
    frozen = f"; {num_frozen:,} are frozen, which cost almost nothing" if num_frozen else ""
    fates = {
        Role.MASKED: "pruned by the mask: the kept ones travel",
        Role.DENSE: f"always travel{frozen}",
        Role.BUFFER: "always travel, never trained",
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    for role, (count, values) in totals(manifest).items():
        if count:
            share = f"{100 * values / manifest.size:.1f} %"
            table.add_row(str(count), role, f"{values:,}", share, fates[Role(role)], style="bold")
    return table


def totals(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """Return the number of tensors and of values, by role."""
    return {
        role.value: (
            sum(tensor.role is role for tensor in manifest.tensors),
            sum(tensor.size for tensor in manifest.tensors if tensor.role is role),
        )
        for role in Role
    }


def forecast_table(forecasts: list[Forecast], width: int) -> Table:
    """Return bytes and seconds of a round, a row per sparsity; no column without an entry."""
    cells: dict[str, list[str]] = {
        "kept": [f"{one.num_kept:,}" if width >= WIDE else NONE for one in forecasts],
        "up": [format_size(one.up) for one in forecasts],
        "down": [format_size(one.down) for one in forecasts],
        "download": [_time(one.download) for one in forecasts],
        "work": [NONE if one.work_s is None else format_seconds(one.work_s) for one in forecasts],
        "upload": [_time(one.upload) for one in forecasts],
        "round": [_time(one.round) for one in forecasts],
    }
    shown = {
        name: column
        for name, column in cells.items()
        if set(column) != {NONE} and (width >= NARROW or name in ("up", "down", "round"))
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("sparsity", no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for one, row in zip(forecasts, zip(*shown.values(), strict=True), strict=True):
        table.add_row(format_sparsity(one), *row, style="bold" if one.is_run else "")
    return table


def forecast_notes(forecasts: list[Forecast], link: Link | None, pace: Pace | None) -> str:
    """Return what a reader of the table has to know."""
    own = next((one for one in forecasts if one.is_run), forecasts[0])
    head, once = "One round of this site, at most as it is expected.", _once_note(own)
    if link is None:
        return f"{head} {once}Without a measured link there are no transfer times."
    if pace is None:
        return f"{head} {once}Without a trained batch there is no time of work."
    return (
        f"{head} It takes download + work ({pace.num_steps:,} steps of "
        f"{format_seconds(pace.step_s)}, 2 tests of {format_seconds(pace.test_s)}) + upload, "
        f"if nobody has to be waited for. {once}"
    ).rstrip()


def _once_note(own: Forecast) -> str:
    """Say what travels besides, when this site scores or first gets a mask."""
    before, at = own.scored_before, "" if own.is_run else f", at {format_sparsity(own)}"
    of_last = f" (this run's row: from round {own.masked_from} on)" if own.masked_from else ""
    mask = f"mask {format_size(own.mask)} down" if own.mask.most else ""
    if not before or not own.scores.most:
        return f"Once, with the first task: {mask}{of_last}. " if mask else ""
    when = (
        f"Once before training{at}" if before == (0,) else f"Before round {_format_rounds(before)}"
    )
    told = ", ".join(filter(None, [f"scores {format_size(own.scores)} up", mask]))
    return f"{when}: {told}{of_last}. "


def _format_rounds(numbers: tuple[int, ...]) -> str:
    told = ", ".join(map(str, numbers[:MAX_ROUNDS_SHOWN]))
    return f"{told} and {more} more" if (more := len(numbers) - MAX_ROUNDS_SHOWN) > 0 else told


def verdict_text(steps: Steps) -> Text:
    """Return the first line."""
    failed, warned = (
        steps.with_verdict(CheckVerdict.FAILED),
        steps.with_verdict(CheckVerdict.WARNING),
    )
    if steps.is_interrupted:
        return Text(f"check not finished: ended at {failed[-1].name}", style="bold red")
    warnings = f"{len(warned)} warning{'s' if len(warned) > 1 else ''}"
    if not failed:
        also = f", {warnings}" if warned else ""
        return Text(f"check passed: nothing is in the way{also}", style="bold green")
    whose = list(dict.fromkeys(step.remedy.owner for step in failed if step.remedy))
    names = ", ".join(step.name for step in failed)
    text = f"check FAILED: {names}; to be mended by {' and '.join(whose)}"
    return Text(text, style="bold red")


def document(
    steps: Steps,
    manifest: Manifest | None,
    forecasts: list[Forecast],
    link: Link | None,
    pace: Pace | None,
) -> dict[str, Any]:
    """Return everything as plain types."""
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
                    {"who": one.owner, "what": one.action}
                    for one in (step.remedy.alternatives if step.remedy else ())
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
            for role, (count, values) in (totals(manifest) if manifest else {}).items()
        },
        "manifest_digest": manifest.digest.hex() if manifest else None,
        "link": asdict(link) if link else None,
        "pace": {**asdict(pace), "round_s": pace.round_s} if pace else None,
        "rounds": [one.document() for one in forecasts],
    }


def _shape(tensor: TensorSpec) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def format_sparsity(one: Forecast) -> str:
    """Return a forecast's sparsity in percent, or by its name."""
    try:
        name = f"{100 * float(one.sparsity):g} %"
    except ValueError:
        name = one.sparsity
    return f"{name}, {one.rounds}" if one.rounds else name


def _time(seconds: Seconds | None) -> str:
    return NONE if seconds is None else format_seconds(seconds.high)

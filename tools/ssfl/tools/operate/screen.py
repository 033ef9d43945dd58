"""The view of a run's status, for `ssfl status` and the demo's live screen."""

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ssfl.server.accounting.ledger import ONE_OFF
from ssfl.v1 import admin_pb2 as pb

MAX_CLIENTS_SHOWN = 20
MAX_REFUSALS_SHOWN = 8
STATE_STYLE = {
    "working": "yellow",
    "reported": "green",
    "lost": "bold red",
    "left": "dim",
    "removed": "dim",
    "waiting": "",
}


def status_view(status: pb.GetStatusResponse, title: str = "") -> Group:
    """Return the whole view: progress, clients, and what the run waits for."""
    head = Text()
    head.append(title or f"run {status.run_id}", style="bold")
    head.append(f"   {status.phase}", style="cyan")
    if status.paused and status.phase != "paused":
        head.append("   pauses after this step", style="yellow")
    if status.refresh_asked:
        head.append("   the mask will be refreshed", style="yellow")
    bar = Table.grid()
    bar.add_row(
        ProgressBar(total=max(1, status.rounds_all), completed=status.rounds_done, width=60)
    )
    facts = Text("   ".join(_facts(status)))
    style = "bold red" if status.HasField("stall") else "dim"
    waiting = Text(f"waiting for {status.waiting_for}" if status.waiting_for else "", style=style)
    if status.HasField("stall"):
        waiting.append(f" (for {status.stall.seconds:.0f} s now)")
    refused = Text(_refused(status), style="yellow")
    return Group(head, bar, facts, _clients(status), waiting, *([refused] if refused else []))


def status_line(status: pb.GetStatusResponse, title: str) -> str:
    """Return the status as one line, for logs and pipes."""
    return f"{title}: {status.phase}  " + "  ".join(_facts(status))


def megabytes(
    status: pb.GetStatusResponse, direction: str | None = None, *, one_off: bool | None = None
) -> float:
    """Return message bytes in MB, of one direction or both, with or without one-off phases."""
    return (
        sum(
            entry.message_bytes
            for entry in status.ledger
            if direction in (None, entry.direction) and one_off in (None, entry.phase in ONE_OFF)
        )
        / 1e6
    )


def _facts(status: pb.GetStatusResponse) -> list[str]:
    facts = [f"round {status.rounds_done}/{status.rounds_all}"]
    reported = sum(client.state == "reported" for client in status.clients)
    working = sum(client.state == "working" for client in status.clients)
    if reported or working:
        facts.append(f"reported {reported}/{reported + working}")
    if status.HasField("accuracy"):
        facts.append(f"accuracy {100 * status.accuracy:.1f} %")
    elif status.HasField("loss"):
        facts.append(f"loss {status.loss:.4g}")
    facts += [f"{name} {value:.4g}" for name, value in sorted(status.metrics.items())[:3]]
    if status.num_masked and status.num_kept:
        facts.append(f"kept {status.num_kept:,} of {status.num_masked:,}")
    facts.append(f"up {megabytes(status, 'up'):.2f} MB, down {megabytes(status, 'down'):.2f} MB")
    if status.HasField("seconds_left"):
        facts.append(f"about {status.seconds_left:.0f} s left")
    return facts


def _refused(status: pb.GetStatusResponse) -> str:
    """Return the refusals by client, largest counts first; empty if there are none."""
    refusals = sorted(
        status.refusals, key=lambda entry: (-entry.count, entry.client_id, entry.reason)
    )
    texts = [
        f"{entry.client_id} {entry.reason} {entry.count}" for entry in refusals[:MAX_REFUSALS_SHOWN]
    ]
    more = len(refusals) - MAX_REFUSALS_SHOWN
    texts += [f"{more} more (--json has all)"] if more > 0 else []
    return "refused: " + ", ".join(texts) if texts else ""


def _clients(status: pb.GetStatusResponse) -> Table:
    table = Table.grid(padding=(0, 2))
    for client in status.clients[:MAX_CLIENTS_SHOWN]:
        state = Text(client.state, style=STATE_STYLE.get(client.state, ""))
        steps = f"step {client.steps_done}/{client.steps_all}" if client.steps_all else ""
        seen = f"last seen {client.last_seen_s:.0f} s ago" if client.last_seen_s > 5 else ""
        table.add_row(client.client_id, f"{client.num_samples} samples", state, steps, seen)
    if len(status.clients) > MAX_CLIENTS_SHOWN:
        table.add_row(f"… {len(status.clients) - MAX_CLIENTS_SHOWN} more")
    return table

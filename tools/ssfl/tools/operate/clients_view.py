"""The table of `ssfl clients`: clients in trouble first, then clients that the run waits for.

The order is: clients that a stalled run waits for, lost clients, clients with refusals, then by
state as in STATES. Names come from the sites, so they are shown as text, never as markup.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.console import Group
from rich.text import Text

from ssfl.tools.operate.screen import STATE_STYLE
from ssfl.tools.terminal import plain_table
from ssfl.v1 import admin_pb2 as pb

MAX_SHOWN = 40
WIDE = 80  # terminal columns, below which some table columns are hidden
HIDDEN_IF_NARROW, FOLDED = ("work", "samples"), ("client", "refused")
STATES = ("lost", "working", "waiting", "reported", "left", "removed")  # in order of interest

Refused = dict[str, dict[str, int]]  # client -> reason -> count


def clients_document(status: pb.GetStatusResponse) -> dict[str, Any]:
    """Return the document of `ssfl clients --json`."""
    refused, known = _refused(status), {client.client_id for client in status.clients}
    missing = _missing(status)
    return {
        "run_id": status.run_id,
        "phase": status.phase,
        "waiting_for": status.waiting_for,
        "counts": _counts(status.clients),
        "clients": [
            {
                "client_id": client.client_id,
                "state": client.state,
                "missing": client.client_id in missing,
                "num_samples": client.num_samples,
                "last_seen_s": round(client.last_seen_s, 1),
                "steps_done": client.steps_done,
                "steps_all": client.steps_all,
                "refused": refused.get(client.client_id, {}),
            }
            for client in _ordered(status)
        ],
        "refused_others": {name: reasons for name, reasons in refused.items() if name not in known},
    }


def clients_view(
    status: pb.GetStatusResponse, *, show_all: bool = False, width: int = WIDE
) -> Group:
    """Return the table, cut after MAX_SHOWN rows unless `show_all` is set; names are never cut."""
    ordered, refused, missing = _ordered(status), _refused(status), _missing(status)
    counts = _format_counts(ordered)
    head = Text(f"run {status.run_id}   {status.phase}   {len(ordered)} clients")
    head.append(f": {counts}" if counts else "")
    shown = ordered if show_all else ordered[:MAX_SHOWN]
    cells = {
        "client": [Text(client.client_id) for client in shown],
        "state": [_format_state(client, client.client_id in missing) for client in shown],
        "samples": [Text(f"{client.num_samples:,}") for client in shown],
        "last seen": [Text(_ago(client.last_seen_s)) for client in shown],
        "work": [Text(_progress(client)) for client in shown],
        "refused": [Text(_format_reasons(refused.get(client.client_id, {}))) for client in shown],
    }
    hidden = HIDDEN_IF_NARROW if width < WIDE else ()
    kept = {name: column for name, column in cells.items() if any(column) and name not in hidden}
    table = plain_table()
    longest = max((len(client.client_id) for client in shown), default=0)
    for name in kept:
        table.add_column(
            name,
            no_wrap=name not in FOLDED,
            overflow="fold" if name in FOLDED else "ellipsis",
            min_width=min(longest, width // 3) if name == "client" else None,
            justify="right" if name in ("samples", "last seen") else "left",
        )
    for row in zip(*kept.values(), strict=True):
        table.add_row(*row)
    lines = []
    if rest := ordered[len(shown) :]:
        note = f"… {len(rest)} more: {_format_counts(rest)} (--all shows them)"
        lines.append(Text(note, style="dim"))
    others = [name for name in refused if name not in {client.client_id for client in ordered}]
    if others:
        text = "; ".join(f"{name} {_format_reasons(refused[name])}" for name in others[:8])
        more = f" and {len(others) - 8} more (--json has all)" if len(others) > 8 else ""
        lines.append(Text(f"refused, not joined: {text}{more}", style="yellow"))
    if status.waiting_for:
        lines.append(Text(f"waiting for {status.waiting_for}"))
    return Group(head, table, *lines)


def _format_state(client: pb.ClientStatus, is_missing: bool) -> Text:
    state = Text(client.state, style=STATE_STYLE.get(client.state, ""))
    return state.append(" (waited for)" if is_missing else "")


def _ordered(status: pb.GetStatusResponse) -> list[pb.ClientStatus]:
    missing, refused = _missing(status), _refused(status)

    def rank(client: pb.ClientStatus) -> tuple[Any, ...]:
        gone = client.state in ("left", "removed")
        trouble = 0 if client.client_id in missing else 1 if client.state == "lost" else 3
        if trouble == 3 and client.client_id in refused and not gone:
            trouble = 2
        is_working = client.state == "working" and client.steps_all
        done = client.steps_done / client.steps_all if is_working else 0.0
        state = STATES.index(client.state) if client.state in STATES else 0
        return trouble, state, done, -client.last_seen_s, client.client_id

    return sorted(status.clients, key=rank)


def _missing(status: pb.GetStatusResponse) -> set[str]:
    return {client.client_id for client in status.stall.missing}


def _refused(status: pb.GetStatusResponse) -> Refused:
    refused: Refused = {}
    for refusal in status.refusals:
        refused.setdefault(refusal.client_id, {})[refusal.reason] = refusal.count
    return refused


def _counts(clients: Iterable[pb.ClientStatus]) -> dict[str, int]:
    counts = Counter(client.state for client in clients)
    return {state: counts[state] for state in STATES}


def _format_counts(clients: Iterable[pb.ClientStatus]) -> str:
    return ", ".join(f"{count} {state}" for state, count in _counts(clients).items() if count)


def _progress(client: pb.ClientStatus) -> str:
    if client.state not in ("working", "lost") or not client.steps_all:
        return ""
    return f"{client.steps_done} of {client.steps_all} ({client.steps_done / client.steps_all:.0%})"


def _ago(seconds: float) -> str:
    """Return a duration as "... ago".

    >>> _ago(4.6), _ago(600), _ago(90000)
    ('5 s ago', '10 min ago', '25 h ago')
    """
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


def _format_reasons(reasons: dict[str, int]) -> str:
    by_count = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count}" for reason, count in by_count)

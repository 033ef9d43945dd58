"""The clients of a run as an operator wants them: who is in trouble, then who is waited for.

In order: whom a stalled run waits for, who is lost, who was refused something, who works (least
done first), who waits, who has reported, who has left or was removed. A name is what the site
says of itself: it is shown as text, never as markup.
"""

from collections import Counter, defaultdict
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ssfl.tools.operate.screen import STATE_STYLE
from ssfl.v1 import admin_pb2 as pb

MAX_SHOWN = 40
WIDE = 80  # columns: below, some are spared
HIDDEN_IF_NARROW, FOLDED = ("work", "samples"), ("client", "refused")
STATES = ("lost", "working", "waiting", "reported", "left", "removed")  # most interesting first

Refused = dict[str, dict[str, int]]  # client -> reason -> count


def clients_document(status: pb.GetStatusResponse) -> dict[str, Any]:
    """Return what `ssfl clients --json` prints."""
    refused, known = _refused(status), {one.client_id for one in status.clients}
    missing = _missing(status)
    return {
        "run_id": status.run_id,
        "phase": status.phase,
        "waiting_for": status.waiting_for,
        "counts": _counts(status),
        "clients": [
            {
                "client_id": one.client_id,
                "state": one.state,
                "missing": one.client_id in missing,
                "num_samples": one.num_samples,
                "last_seen_s": round(one.last_seen_s, 1),
                "steps_done": one.steps_done,
                "steps_all": one.steps_all,
                "refused": refused.get(one.client_id, {}),
            }
            for one in _ordered(status)
        ],
        "refused_others": {who: told for who, told in refused.items() if who not in known},
    }


def clients_view(
    status: pb.GetStatusResponse, *, show_all: bool = False, width: int = WIDE
) -> Group:
    """Return the table for people, cut after MAX_SHOWN rows unless all are wanted.

    Columns without an entry are left out and, where there is no room, those one can do without:
    the names stay whole.
    """
    ordered, refused, missing = _ordered(status), _refused(status), _missing(status)
    counts = ", ".join(f"{count} {state}" for state, count in _counts(status).items() if count)
    head = Text(f"run {status.run_id}   {status.phase}   {len(ordered)} clients")
    head.append(f": {counts}" if counts else "")
    shown = ordered if show_all else ordered[:MAX_SHOWN]
    cells = {
        "client": [Text(one.client_id) for one in shown],
        "state": [_format_state(one, is_missing=one.client_id in missing) for one in shown],
        "samples": [Text(f"{one.num_samples:,}") for one in shown],
        "last seen": [Text(_ago(one.last_seen_s)) for one in shown],
        "work": [Text(_progress(one)) for one in shown],
        "refused": [Text(_format_reasons(refused.get(one.client_id, {}))) for one in shown],
    }
    hidden = HIDDEN_IF_NARROW if width < WIDE else ()
    kept = {name: column for name, column in cells.items() if any(column) and name not in hidden}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    longest = max((len(one.client_id) for one in shown), default=0)
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
    rest = [_hidden_note(ordered[len(shown) :])] if len(ordered) > len(shown) else []
    return Group(head, table, *rest, *_refused_others(status, refused), *_waiting_line(status))


def _format_state(one: pb.ClientStatus, *, is_missing: bool) -> Text:
    doing = Text(one.state, style=STATE_STYLE.get(one.state, ""))
    return doing.append(" (waited for)" if is_missing else "")


def _ordered(status: pb.GetStatusResponse) -> list[pb.ClientStatus]:
    missing, refused = _missing(status), _refused(status)

    def rank(one: pb.ClientStatus) -> tuple[Any, ...]:
        gone = one.state in ("left", "removed")
        trouble = 0 if one.client_id in missing else 1 if one.state == "lost" else 3
        if trouble == 3 and one.client_id in refused and not gone:
            trouble = 2
        done = one.steps_done / one.steps_all if one.steps_all else 0.0
        is_working = one.state == "working"
        state = STATES.index(one.state) if one.state in STATES else 0
        return (trouble, state, done if is_working else 0.0, -one.last_seen_s, one.client_id)

    return sorted(status.clients, key=rank)


def _missing(status: pb.GetStatusResponse) -> set[str]:
    return {one.client_id for one in status.stall.missing}


def _refused(status: pb.GetStatusResponse) -> Refused:
    refused: Refused = defaultdict(dict)
    for one in status.refusals:
        refused[one.client_id][one.reason] = one.count
    return dict(refused)


def _counts(status: pb.GetStatusResponse) -> dict[str, int]:
    found = Counter(one.state for one in status.clients)
    return {state: found[state] for state in STATES}


def _progress(one: pb.ClientStatus) -> str:
    if one.state not in ("working", "lost") or not one.steps_all:
        return ""
    return f"{one.steps_done} of {one.steps_all} ({one.steps_done / one.steps_all:.0%})"


def _ago(seconds: float) -> str:
    """Return a time for people.

    >>> _ago(4.6), _ago(600), _ago(90000)
    ('5 s ago', '10 min ago', '25 h ago')
    """
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


def _format_reasons(reasons: dict[str, int]) -> str:
    most = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{reason} {count}" for reason, count in most)


def _hidden_note(rest: list[pb.ClientStatus]) -> Text:
    found = Counter(one.state for one in rest)
    told = ", ".join(f"{found[state]} {state}" for state in STATES if found[state])
    return Text(f"… {len(rest)} more: {told} (--all shows them)", style="dim")


def _refused_others(status: pb.GetStatusResponse, refused: Refused) -> list[Text]:
    """Say who was refused that has not joined."""
    known = {one.client_id for one in status.clients}
    told = [
        f"{who} {_format_reasons(reasons)}" for who, reasons in refused.items() if who not in known
    ]
    more = f" and {len(told) - 8} more (--json has all)" if len(told) > 8 else ""
    return [Text(f"refused besides: {'; '.join(told[:8])}{more}", style="yellow")] if told else []


def _waiting_line(status: pb.GetStatusResponse) -> list[Text]:
    return [Text(f"waiting for {status.waiting_for}")] if status.waiting_for else []

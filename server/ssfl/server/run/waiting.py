"""Texts for users: what a run waits for, the state of each client, the remaining time."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice

from ssfl.server.run.state import Phase, RunState, Step, initializer
from ssfl.strategies.contract import ClientId

QUIET_S = 15.0  # without --clients, a run starts after this long without a new client
NAMES = 5  # names shown; the others are counted
STATES = ("working", "waiting", "reported", "lost", "left", "removed")  # of a client


def waiting_for(state: RunState, now_s: float) -> str:
    """Return what the run waits for, as text; empty if nothing."""
    if state.finished:
        return ""
    if state.draining and state.step is None:
        return "the coordinator, which is being stopped, to start again"
    if state.paused_at is not None and state.step is None:
        since = f"{datetime.fromtimestamp(state.paused_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        joined = "" if state.founders else f"; clients that have joined: {state.num_ready}"
        return f"an operator: paused since {since}, continue with `ssfl resume`{joined}"
    if state.stall:
        absent = named(state, state.stall.missing) or "no known client"
        return f"{state.stall.reason} (missing: {absent}); it takes {state.stall.unblock}"
    if state.phase is Phase.GATHERING:
        return _gathering(state, now_s)
    if state.step is None:
        return "the next step"
    then = "; then the run pauses" if state.paused else ""
    if state.step.closed is not None:
        return f"the sum{then}"
    return f"{state.step.work.value} of {_pending(state, state.step)}{then}"


def named(state: RunState, clients: "tuple[ClientId, ...] | list[ClientId]") -> str:
    """Return up to NAMES client names, each with the reason if the client is away."""
    return _with_more(state, clients[:NAMES], len(clients))


def _pending(state: RunState, step: Step) -> str:
    """Return up to NAMES names of pending clients.

    The text is composed for each waiting client, so it does not sort the whole cohort, which is
    sorted except for clients that were added later.
    """
    first = islice((client for client in step.cohort if client not in step.uploads), NAMES)
    return _with_more(state, sorted(first), len(step.cohort) - len(step.uploads))


def _with_more(state: RunState, first: Iterable[ClientId], number: int) -> str:
    names = ", ".join(_named(state, client) for client in first)
    return f"{names} and {number - NAMES} more" if number > NAMES else names


def _named(state: RunState, client: ClientId) -> str:
    now = client_state(state, client)
    return f"{client} ({now})" if now in ("removed", "left", "lost") else client


def _gathering(state: RunState, now_s: float) -> str:
    if state.members and not state.manifest_digest:
        here = sum(not member.left for member in state.members.values())
        asked = initializer(state)
        whose = f"{asked.client}'s" if asked else "a client's"
        return f"{whose} description of the model (joined so far: {here})"
    ready, number = state.num_ready, state.settings.clients
    if number:
        return f"clients: {ready} of {number} have joined"
    fewest = state.settings.min_clients
    if ready < fewest:
        return f"clients: {ready} of at least {fewest} have joined"
    left = max(0.0, QUIET_S - (now_s - state.countdown_from_s))
    return f"more clients: {ready} have joined, starting in {left:.0f} s (or now: ssfl start)"


def client_state(state: RunState, client: ClientId) -> str:
    """Return one of STATES."""
    if client in state.removed:
        return "removed"
    if state.members[client].left:
        return "left"
    if client in state.lost:
        return "lost"
    if state.step and client in state.step.uploads:
        return "reported"
    return "working" if state.step and client in state.step.cohort else "waiting"


def seconds_left(state: RunState, pace: float | None) -> float | None:
    """Return the remaining seconds of the run; `pace` is the seconds per round.

    None if unknown: no round is done yet, or the run is paused or stalled.
    """
    if pace is None or state.finished or state.paused or state.stall:
        return None
    return pace * (state.settings.rounds - state.rounds_done)

"""Forecast of a round at this site: bytes by sparsity, and seconds from measured speeds."""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any

from ssfl.datasets.wording import format_bytes, plural
from ssfl.method.density import parse_bytes
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.strategies.registry import strategy_for
from ssfl.tools.check.site_trial import Pace
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.result import RunPlan
from ssfl.tools.plan.sizes import Seconds, Size
from ssfl.tools.plan.whole_run import PlannedSite, plan_run
from ssfl.v1 import coordinator_pb2 as pb

SPARSITIES = ("0.5", "0.9", "0.95")
MIN_CLIENTS = 2  # assumed if the run does not set the number of clients
UNKNOWN = pb.CheckAnswer(reference_coding=True, upload_slots=8, phase="gathering")  # assumed


@dataclass(frozen=True, slots=True)
class Forecast:
    """One round of this site at one sparsity; times that were not measured are None."""

    sparsity: str  # as set, or "dense" without a mask
    is_run: bool  # True for the run's own sparsity
    rounds: str  # which rounds of the run have it, in words; empty: none
    num_kept: int
    up: Size  # message bytes
    down: Size
    download: Seconds | None
    work_s: float | None
    upload: Seconds | None
    scores: Size  # message bytes up, each time this site scores
    mask: Size  # message bytes down, each time this site scores
    scored_before: tuple[int, ...]  # rounds before which this site scores
    masked_from: int  # first round of the last mask, for which these bytes hold

    @property
    def round(self) -> Seconds | None:
        """Download, work and upload in sequence."""
        if self.download is None or self.upload is None or self.work_s is None:
            return None
        return self.download + Seconds.fixed(self.work_s) + self.upload

    def document(self) -> dict[str, Any]:
        """Return this forecast as plain types, for JSON."""
        return {**asdict(self), "round": asdict(self.round) if self.round else None}


def forecasts(
    manifest: Manifest,
    settings: RunSettings | None,
    answer: pb.CheckAnswer | None,
    link: Link | None,
    pace: Pace | None,
    num_frozen: int = 0,
) -> list[Forecast]:
    """Return a forecast for each of `SPARSITIES`, and for the run's own if it has `settings`.

    Sparsities at which the model would keep nothing are left out.
    """
    answer, run = answer or UNKNOWN, settings or RunSettings()
    clients = run.clients or max(MIN_CLIENTS, answer.num_clients + 1)
    run = replace(run, clients=clients, clients_per_round=0, client_fraction=0.0)
    others = [text for text in SPARSITIES if not (settings and _has_sparsity(run, text))]
    wanted = [(_with_sparsity(run, text), "") for text in others]
    if settings:
        wanted.append((run, "this run"))
        if (warm := run.warmup_rounds) > answer.rounds_done:
            dense = _with_sparsity(run, "0", "fedavg")
            wanted.append((dense, f"the first {plural(warm, 'round')}"))
    found = []
    for variant, rounds in wanted:
        with suppress(DensityError):
            plan = plan_run(
                manifest, variant, answer.upload_slots, reference_coding=answer.reference_coding,
                link=link, site=PlannedSite(num_frozen=num_frozen),
            )  # fmt: skip
            found.append(_forecast(plan, answer, pace, rounds))
    return sorted(found, key=lambda forecast: -forecast.num_kept)


def _with_sparsity(run: RunSettings, sparsity: str, strategy: str = "ssfl") -> RunSettings:
    return replace(
        run, strategy=strategy, strategy_options="", sparsity=sparsity, bytes_per_round="",
        sparsity_schedule="", warmup_rounds=0, refresh_rounds="", refresh_every=0,
    )  # fmt: skip


def sparsity_of(run: RunSettings) -> str:
    """Return a run's sparsity as text: a share, a size, or a schedule."""
    if strategy_for(run).is_dense:
        return "dense"
    if run.bytes_per_round:
        return f"{format_bytes(parse_bytes(run.bytes_per_round))} a round"
    return run.sparsity_schedule or run.sparsity


def _has_sparsity(run: RunSettings, sparsity: str) -> bool:
    """Return True if a run has this sparsity, however it is written."""
    other = strategy_for(run).is_dense or run.bytes_per_round or run.sparsity_schedule
    return not other and Decimal(run.sparsity) == Decimal(sparsity)


def _forecast(plan: RunPlan, answer: pb.CheckAnswer, pace: Pace | None, rounds: str) -> Forecast:
    times, agreed = plan.times, [mask.first for mask in plan.masks if mask.is_agreed]
    done = answer.rounds_done
    if not done and answer.phase in ("gathering", "paused"):
        done = -1  # the run has not begun
    to_come = [number for number in agreed if number > done]
    return Forecast(
        sparsity_of(plan.settings),
        rounds == "this run",
        rounds,
        plan.num_kept,
        plan.update.message,
        plan.base.message,
        times.base if times else None,
        pace.round_s if pace else None,
        times.update if times else None,
        plan.scores.message,
        plan.mask.message,
        tuple(to_come),
        plan.masks[-1].first,
    )

"""What a round will cost this site: bytes by sparsity, and seconds from what was measured."""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any

from ssfl.datasets.wording import counted, size
from ssfl.method.density import parse_bytes
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.tools.check.site_trial import Pace
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.result import RunPlan, Seconds
from ssfl.tools.plan.sizes import Size
from ssfl.tools.plan.whole_run import PlannedSite, plan_run

SPARSITIES = ("0.5", "0.9", "0.95")
MIN_CLIENTS = 2  # clients, where the run does not say how many


@dataclass(frozen=True, slots=True)
class Forecast:
    """One round of this site at one sparsity; seconds are None where nothing was measured."""

    sparsity: str  # as it is set; "dense" without a mask
    is_run: bool  # the run's own
    rounds: str  # of the run that are so, in words; empty: none
    num_kept: int
    up: Size  # message bytes
    down: Size
    download: Seconds | None
    work_s: float | None
    upload: Seconds | None
    scores: Size  # message bytes, each time this site scores: up
    mask: Size  # likewise, down
    scored_before: tuple[int, ...]  # rounds
    masked_from: int  # the round whose mask, the last, these bytes are of

    @property
    def round(self) -> Seconds | None:
        """Download, work and upload, one after the other."""
        if self.download is None or self.upload is None or self.work_s is None:
            return None
        work = Seconds(self.work_s, self.work_s, self.work_s)
        return self.download + work + self.upload

    def document(self) -> dict[str, Any]:
        """Return it as plain types."""
        return {**asdict(self), "round": asdict(self.round) if self.round else None}


@dataclass(frozen=True, slots=True)
class Terms:
    """What a round's cost depends on beyond the run's settings."""

    reference_coding: bool = True
    upload_slots: int = 8
    num_clients: int = MIN_CLIENTS  # joined so far
    rounds_done: int = 0
    has_begun: bool = False
    num_frozen: int = 0  # values of this site's model that are not trained


def forecasts(
    manifest: Manifest,
    settings: RunSettings,
    terms: Terms,
    link: Link | None,
    pace: Pace | None,
    *,
    is_run: bool,
) -> list[Forecast]:
    """Return a forecast for each sparsity worth knowing, and for the run's own.

    One at which so small a model keeps nothing is left out.
    """
    clients = settings.clients or max(MIN_CLIENTS, terms.num_clients)
    run = replace(settings, clients=clients, clients_per_round=0, client_fraction=0.0)
    others = [one for one in SPARSITIES if not (is_run and _has_sparsity(run, one))]
    wanted = [(_with_sparsity(run, one), "") for one in others]
    if is_run:
        wanted.append((run, "this run"))
        if (warm := run.warmup_rounds) > terms.rounds_done:
            wanted.append(
                (_with_sparsity(run, "0", "fedavg"), f"the first {counted(warm, 'round')}")
            )
    found = []
    for settings_of_one, rounds in wanted:
        with suppress(DensityError):
            found.append(_forecast(manifest, settings_of_one, terms, link, pace, rounds))
    return sorted(found, key=lambda one: -one.num_kept)


def _with_sparsity(run: RunSettings, sparsity: str, strategy: str = "ssfl") -> RunSettings:
    return replace(
        run, strategy=strategy, sparsity=sparsity, bytes_per_round="", sparsity_schedule="",
        warmup_rounds=0, refresh_rounds="", refresh_every=0,
    )  # fmt: skip


def sparsity_of(run: RunSettings) -> str:
    """Return what a run's sparsity is set to, for people: a share, a size, or a schedule."""
    if run.strategy != "ssfl":
        return "dense"
    if run.bytes_per_round:
        return f"{size(parse_bytes(run.bytes_per_round))} a round"
    return run.sparsity_schedule or run.sparsity


def _has_sparsity(run: RunSettings, sparsity: str) -> bool:
    """Tell whether a run has just this sparsity, however it is written."""
    other = run.strategy != "ssfl" or run.bytes_per_round or run.sparsity_schedule
    return not other and Decimal(run.sparsity) == Decimal(sparsity)


def _forecast(
    manifest: Manifest,
    run: RunSettings,
    terms: Terms,
    link: Link | None,
    pace: Pace | None,
    rounds: str,
) -> Forecast:
    plan: RunPlan = plan_run(
        manifest, run, terms.upload_slots, reference_coding=terms.reference_coding, link=link,
        site=PlannedSite(num_frozen=terms.num_frozen),
    )  # fmt: skip
    times, agreed = plan.times, [mask.first for mask in plan.masks if mask.is_agreed]
    to_come = [one for one in agreed if one > terms.rounds_done or not terms.has_begun]
    return Forecast(
        sparsity_of(run),
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

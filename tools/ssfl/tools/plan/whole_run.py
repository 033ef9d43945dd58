"""Prediction of a whole run: bytes by phase and direction, and seconds on a link."""

from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.planner import PlannedSite, Planner
from ssfl.tools.plan.result import RunPlan
from ssfl.tools.plan.rule_rounds import moves_masks
from ssfl.tools.plan.rule_run import RulePlanner
from ssfl.tools.plan.sizes import Coding

__all__ = ["PlannedSite", "plan_run"]


def plan_run(
    manifest: Manifest,
    settings: RunSettings,
    upload_slots: int,
    *,
    reference_coding: bool,
    link: Link | None = None,
    coordinator_bits_per_s: float | None = None,
    site: PlannedSite | None = None,
) -> RunPlan:
    """Return the prediction for a run with `settings.clients` clients, each with its own link.

    Clients that transfer at the same time share `coordinator_bits_per_s`.
    """
    site = site or PlannedSite()
    coding = Coding(settings, reference_coding, site.num_frozen)
    planner = RulePlanner if moves_masks(manifest, settings) else Planner
    return planner(
        manifest, settings, upload_slots, coding, link, coordinator_bits_per_s, site
    ).plan()

"""`ssfl plan`: predict the bytes and transfer times of a run before it starts."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ssfl.method.errors import DensityError, SettingsError
from ssfl.method.manifest import MAX_PARAMETERS, Manifest
from ssfl.method.settings import RunSettings, setting
from ssfl.program import settings
from ssfl.program.exits import usage_error
from ssfl.server.uploads.encoding_choice import REFERENCE_CODING
from ssfl.strategies.registry import check_settings, strategy_for
from ssfl.tools.model import build
from ssfl.tools.plan.gossip import gossip_document, gossip_notes, gossip_table, plan_gossip
from ssfl.tools.plan.link import Link, parse_link, parse_rate, parse_time
from ssfl.tools.plan.sizes import Coding
from ssfl.tools.plan.view import notes, plan_document, plan_table
from ssfl.tools.plan.whole_run import PlannedSite, plan_run
from ssfl.tools.terminal import console

Parsed = TypeVar("Parsed")

DESCRIPTION = (
    "Predicts the bytes of a run and the seconds its transfers take on a link, for one or more "
    "sparsities of a strategy and for dense FedAvg. Nothing is trained and nothing is sent. It "
    "leaves out what depends on data or people: masks refreshed on request, for new labels or on a "
    "jump of the loss, and an early end (--target-accuracy, --patience)."
)
EXAMPLE = (
    "For example: ssfl plan --model resnet18 --input 3x32x32 --classes 10 --sparsity 0.9,0.95 "
    "--rounds 100 --clients 10 --link 20mbit/50ms"
)


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """The run to predict. Flags of the coordinator have the same meaning here."""

    model: str = build.same_as_run("model")
    norm: str = build.same_as_run("norm")
    width: int = build.same_as_run("width")
    input: str = setting("", "shape of a sample, such as 3x32x32; not needed with --data")
    classes: int = setting(10, "number of classes; not needed with --data", ge=2)
    task: str = setting("image", "task, as for ssfl-client; all but image need --data")
    data: str = setting("", "shard that gives the shapes: a name under --data-root, or a path")
    data_root: Path = setting(Path("shards"), "folder that holds the shards")
    strategy: str = build.same_as_run("strategy")
    strategy_options: str = build.same_as_run("strategy_options")
    criterion: str = build.same_as_run("criterion")
    sparsity: str = setting("0.9", "share of weights to prune, or several: 0.5,0.9,0.95")
    sparsity_schedule: str = build.same_as_run("sparsity_schedule")
    warmup_rounds: int = build.same_as_run("warmup_rounds")
    refresh_rounds: str = build.same_as_run("refresh_rounds")
    refresh_every: int = build.same_as_run("refresh_every")
    rounds: int = setting(30, "training rounds", ge=1, le=1_000_000)
    clients: int = setting(10, "clients in the federation", ge=1)
    clients_per_round: int = build.same_as_run("clients_per_round")
    client_fraction: float = build.same_as_run("client_fraction")
    over_selection: float = build.same_as_run("over_selection")
    seed: int = build.same_as_run("seed")  # decides the neighbours of some strategies
    reproducible: bool = build.same_as_run("reproducible")
    local_epochs: int = build.same_as_run("local_epochs")  # some strategies need several
    local_steps: int = build.same_as_run("local_steps")
    evaluate_every: int = build.same_as_run("evaluate_every")
    evaluate_last: int = build.same_as_run("evaluate_last")
    personalize_epochs: int = build.same_as_run("personalize_epochs")
    scores: str = build.same_as_run("scores")
    value_type: str = build.same_as_run("value_type")
    grid_bits: int = build.same_as_run("grid_bits")
    downloads: str = build.same_as_run("downloads")
    reference_coding: str = setting(
        "auto",
        "encode values against the base that both ends hold (auto: on)",
        choices=REFERENCE_CODING,
    )
    upload_slots: int = setting(8, "uploads the coordinator receives at once", ge=1)
    link: str = setting("", "rate and round trip of a client's link, such as 20mbit/50ms")
    up: str = setting("", "rate from client to coordinator, such as 5mbit")
    down: str = setting("", "rate from coordinator to client")
    rtt: str = setting("", "round trip, such as 50ms")
    coordinator_link: str = setting(
        "", "rate of the coordinator's link, shared by its clients; unlimited by default"
    )
    json: bool = setting(False, "print JSON, in bytes and seconds")

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        if not self.data and self.task != "image":
            raise SettingsError("--task needs --data: the model depends on a shard of its task")
        if not (self.data or self.input):
            raise SettingsError(
                "--input is missing: the shape of one sample, for example --input 3x32x32 "
                "(or name a shard with --data)"
            )
        if self.input and math.prod(build.parse_shape(self.input)) > MAX_PARAMETERS:
            raise SettingsError(f"--input {self.input} is more than {MAX_PARAMETERS} values")
        if self.link and (self.up or self.down or self.rtt):
            raise SettingsError("--link stands for --up, --down and --rtt: give one or the other")
        given = [bool(value) for value in (self.up, self.down, self.rtt)]
        if any(given) and not all(given):
            raise SettingsError("--up, --down and --rtt belong together: give all three")
        if self.coordinator_link and not (self.link or self.up):
            raise SettingsError("--coordinator-link needs the clients' links, too: give --link")
        if (wanted := self.clients_per_round) > self.clients:
            raise SettingsError(
                f"--clients-per-round {wanted} is more than --clients {self.clients}"
            )
        self.client_link()
        self.coordinator_bits_per_s()
        for sparsity in self.sparsities():
            check_settings(self.run_settings(sparsity), simulated=True)
        if self.is_gossip and (self.link or self.up):
            raise SettingsError(
                f"--link: strategy {self.strategy} runs in `ssfl simulate` only, which has no links"
            )

    def sparsities(self) -> list[str]:
        """Return the sparsities to compare; a schedule replaces them."""
        if self.sparsity_schedule:
            return ["0.9"]
        found = [text.strip() for text in self.sparsity.split(",")]
        return found[:1] if strategy_for(self.run_settings(found[0])).is_dense else found

    @property
    def is_gossip(self) -> bool:
        """True if clients receive each other's updates."""
        return strategy_for(self.run_settings(self.sparsities()[0])).is_gossip

    def client_link(self) -> Link | None:
        """Return the clients' link, or None."""
        if self.link:
            return _parse("--link", parse_link, self.link)
        if not self.up:
            return None
        up, down = _parse("--up", parse_rate, self.up), _parse("--down", parse_rate, self.down)
        return Link(up, down, _parse("--rtt", parse_time, self.rtt))

    def coordinator_bits_per_s(self) -> float | None:
        text = self.coordinator_link
        return _parse("--coordinator-link", parse_rate, text) if text else None

    def run_settings(self, sparsity: str) -> RunSettings:
        """Return the run's settings as the coordinator would have them."""
        cohort = self.clients_per_round or self.clients
        return build.run_settings(self, sparsity=sparsity, min_clients=min(cohort, self.clients))

    def dense_settings(self) -> RunSettings:
        """Return the settings of dense FedAvg, for comparison."""
        return replace(
            self.run_settings("0.9"), strategy="fedavg", strategy_options="",
            criterion=RunSettings().criterion, sparsity_schedule="", warmup_rounds=0,
            refresh_rounds="", refresh_every=0,
        )  # fmt: skip


def _parse(flag: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return parse(text)
    except SettingsError as error:
        raise SettingsError(f"{flag}: {error}") from error


def plan(argv: Sequence[str]) -> None:
    """Run the command."""
    config = settings.load(PlanConfig, argv, None, "ssfl plan", DESCRIPTION, EXAMPLE)
    manifest, site = _model(config)
    link, coordinator = config.client_link(), config.coordinator_bits_per_s()
    network = manifest.model.get("model", manifest.model["task"])  # own models have no name
    try:
        if config.is_gossip:
            _plan_gossip(config, network, manifest, site)
            return
        runs = [config.dense_settings()]
        runs += [config.run_settings(sparsity) for sparsity in config.sparsities()]
        dense, *sparse = [
            plan_run(
                manifest, run, config.upload_slots, link=link, coordinator_bits_per_s=coordinator,
                reference_coding=config.reference_coding != "off", site=site,
            )
            for run in runs
        ]  # fmt: skip
    except DensityError as error:
        raise usage_error(f"--sparsity: {error}") from error
    if config.json:
        print(json.dumps(plan_document(dense, sparse, link, coordinator), indent=1))
    else:
        screen = console()
        screen.print(plan_table(network, dense, sparse))
        for note in notes(dense, sparse, link, coordinator, config.upload_slots):
            screen.print(note)


def _plan_gossip(config: PlanConfig, network: str, manifest: Manifest, site: PlannedSite) -> None:
    """Print the bytes of a run whose clients receive each other's updates."""
    is_coded = config.reference_coding != "off"
    runs = [config.run_settings(sparsity) for sparsity in config.sparsities()]
    plans = [plan_gossip(manifest, run, Coding(run, is_coded, site.num_frozen)) for run in runs]
    if config.json:
        print(json.dumps(gossip_document(plans), indent=1))
        return
    screen = console()
    screen.print(gossip_table(network, plans))
    for note in gossip_notes(plans):
        screen.print(note)


def _model(config: PlanConfig) -> tuple[Manifest, PlannedSite]:
    """Build the model and describe it as a client would. Imports torch."""
    with build.learning_errors():
        import torch

        from ssfl.learning.describe import manifest_of, num_frozen
        from ssfl.learning.load_task import load_task

        task, run = load_task(config.task), config.run_settings(config.sparsities()[0])
        site = PlannedSite()
        if config.data:
            shard = build.load_data(task, config.data, config.data_root)
            model = task.build_model(run, shard)
            site = PlannedSite(shard.num_samples, len(shard.test_x))
        else:
            shard = build.placeholder_shard(build.parse_shape(config.input), config.classes)
            with torch.device("meta"):  # shapes only: no memory, no random numbers
                model = task.build_model(run, shard)
        site = replace(site, num_frozen=num_frozen(model))
        description = task.description(run, shard)
        return manifest_of(model, description, own_weights=task.own_weights), site

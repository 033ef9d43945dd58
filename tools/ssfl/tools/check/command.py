"""`ssfl check`: test whether this site can take part, without joining."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rich.console import Console

from ssfl.client.config import (
    CLIENT_ID,
    Access,
    ClientConfig,
    client_id_of,
    read_access,
    settings_elsewhere,
)
from ssfl.method.errors import ManifestError, SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings, setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.strategies.registry import strategy_for
from ssfl.tools.check import view
from ssfl.tools.check.coordinator import PreflightSession, same_version
from ssfl.tools.check.disk import check_disk
from ssfl.tools.check.forecast import Forecast, forecasts, sparsity_of
from ssfl.tools.check.network import Route, check_route
from ssfl.tools.check.probe import TOKEN_BYTES, Question
from ssfl.tools.check.site_trial import Pace, SiteCheck
from ssfl.tools.check.steps import CheckInterrupted, CheckResult, Owner, Remedy, StepFailed, Steps
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.view import format_size
from ssfl.tools.terminal import console, stdout_aside
from ssfl.v1 import coordinator_pb2 as pb

DESCRIPTION = (
    "Tests a site before it joins: the route to the coordinator, whether the coordinator would "
    "admit this client, and the site's own task, shard and model, on one batch. It does not join "
    "and does not disturb a run. Each failure names the remedy and the person who should act. Give "
    "it the flags of ssfl-client. Without --coordinator only the site is checked, without --data "
    "only the route."
)
EXAMPLE = (
    "For example: ssfl check --task my_task.py --data shard_00 --coordinator fl.example.org:50051 "
    "--tls-ca ca.pem"
)
UNNAMED_CLIENT = "ssfl-check"  # client id of a check that no flag or certificate names


@dataclass(frozen=True, slots=True)
class CheckConfig(ClientConfig):
    """The settings of ssfl-client, by the same names."""

    coordinator: str = setting("", "host:port of the coordinator; without it only the site")
    json: bool = setting(False, "print JSON, in bytes and seconds")

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        if not (self.data or self.coordinator):
            raise SettingsError(
                "nothing to check: give --coordinator host:port, --data shard_00, or both"
            )
        data, coordinator = self.data or "shard", self.coordinator or "localhost:1"
        ClientConfig.validate(replace(self, data=data, coordinator=coordinator))  # it needs both


@dataclass
class CheckReport:
    """The results of a check."""

    steps: Steps
    asks_coordinator: bool
    client_id: str = UNNAMED_CLIENT
    access: Access | None = None  # certificates and token; None if they cannot be used
    session: PreflightSession | None = None
    settings: RunSettings | None = None  # of the run; None: unknown
    run_manifest: Manifest | None = None  # of the run's model; None: no model yet, or unknown
    site: SiteCheck | None = None
    rounds: list[Forecast] = field(default_factory=list)  # the cost of a round, by sparsity

    @property
    def link(self) -> Link | None:
        return self.session.link if self.session else None

    @property
    def pace(self) -> Pace | None:
        return self.site.pace if self.site else None

    @property
    def num_frozen(self) -> int:
        return self.site.num_frozen if self.site else 0

    def manifest(self) -> Manifest | None:
        """Return this site's model, or the run's if no shard is checked."""
        if not self.settings and self.asks_coordinator:
            return None  # the site built its model with default settings: the run's may differ
        return self.site.manifest if self.site else self.run_manifest


def check(argv: Sequence[str]) -> int:
    """Run the command."""
    config = settings.load(
        CheckConfig, argv, os.environ, "ssfl check", DESCRIPTION, EXAMPLE, settings_elsewhere()
    )
    if config.json:
        with stdout_aside():  # a task may print
            report = run_check(config, Steps())
        shown = view.document(
            report.steps, report.manifest(), report.rounds, report.link, report.pace
        )
        print(json.dumps(shown, indent=1))
        return int(report.steps.exit_code)
    screen = console()
    with screen.status("") as status:  # shown on a terminal only
        report = run_check(config, Steps(lambda name: status.update(f"{name} …")))
    _show(report, screen)
    return int(report.steps.exit_code)


def run_check(config: CheckConfig, steps: Steps) -> CheckReport:
    """Run the steps that the settings select, until the last or until Ctrl-C."""
    report = CheckReport(steps, bool(config.coordinator))
    try:
        if config.coordinator:
            _check_coordinator(config, report)
        if config.data:
            _check_site(config, report)
        if report.site or report.run_manifest:
            needs = ["settings"] if config.coordinator else []
            needs += ["model"] if report.site else []
            steps.run("round", lambda: _round(report), needs)
    except CheckInterrupted:  # the interrupted step is in the report
        pass
    finally:
        if report.session:
            report.session.close()
    return report


def _check_coordinator(config: CheckConfig, report: CheckReport) -> None:
    steps = report.steps
    steps.part = "network"
    steps.run("files", lambda: _read_files(config, report))
    check_route(steps, Route(config.coordinator, report.access.tls if report.access else None))
    steps.part = "coordinator"
    _check_client_id(config, report)
    question = Question(report.client_id, _token(config, report.client_id))
    session = report.session = PreflightSession(question)
    session.check(steps, report.access)
    steps.run("settings", lambda: _read_settings(report, session.answer), ["call"])
    steps.run("run's model", lambda: _read_run_model(report, session.answer), ["call"])


def _check_site(config: CheckConfig, report: CheckReport) -> None:
    report.steps.part = "site"
    if not config.coordinator:
        _check_client_id(config, report)
    report.site = SiteCheck(
        config, report.client_id, report.settings, report.run_manifest, report.session
    )
    report.site.check(report.steps)
    state_dir, run = config.state_dir / report.client_id, report.settings or RunSettings()
    check_disk(report.steps, config, state_dir, run, report.manifest())


def _read_files(config: CheckConfig, report: CheckReport) -> CheckResult:
    try:
        access = report.access = read_access(config)
    except ProgramError as error:
        remedy = Remedy(Owner.MACHINE, "fix this flag or file; ssfl-client needs it, too")
        raise StepFailed(str(error), remedy, ExitCode.USAGE) from error
    held = [f"CA {config.tls_ca}"] if access.tls else ["no TLS"]
    held += [f"certificate of {access.tls.pair.name}"] if access.tls and access.tls.pair else []
    held += ["join token"] if access.token else []
    return CheckResult(", ".join(held))


def _check_client_id(config: CheckConfig, report: CheckReport) -> None:
    """Find the client id that ssfl-client would use, else the name in the certificate."""
    pair = report.access.tls.pair if report.access and report.access.tls else None
    certified = pair.name if pair and CLIENT_ID.fullmatch(pair.name) else ""
    report.client_id = certified or UNNAMED_CLIENT

    def find() -> CheckResult:
        if config.client_id or config.data:
            try:
                report.client_id = client_id_of(config)
            except ProgramError as error:
                remedy = Remedy(Owner.MACHINE, "choose a name with --client-id")
                text = str(error).partition(": choose")[0]
                raise StepFailed(text, remedy, error.exit_code) from error
            return CheckResult(report.client_id)
        if certified:
            return CheckResult(f"{certified}, from its certificate")
        return CheckResult(f"{UNNAMED_CLIENT}: no --client-id or --data is given")

    report.steps.run("client id", find)


def _token(config: CheckConfig, client_id: str) -> bytes:
    """Return the token that an earlier start of this client saved; empty if there is none."""
    try:
        token = (config.state_dir / client_id / "token").read_bytes()
    except OSError:
        return b""
    return token if len(token) == TOKEN_BYTES else b""


def _read_settings(report: CheckReport, answer: pb.CheckAnswer) -> CheckResult:
    """Read the run's settings as a client does."""
    from ssfl.client.coding import read_settings
    from ssfl.client.errors import Refused

    try:
        run = report.settings = read_settings(answer.settings)
    except Refused as error:
        raise StepFailed(str(error), same_version(answer), ExitCode.REFUSED) from error
    steps = f"{run.local_steps} local steps" if run.local_steps else f"{run.local_epochs} epochs"
    mask = sparsity_of(run)
    if not strategy_for(run).is_dense and not run.bytes_per_round:
        mask += " sparse"
    return CheckResult(
        f"{run.model}, {mask}, {run.rounds} rounds of {steps}, batches of {run.batch_size}"
    )


def _read_run_model(report: CheckReport, answer: pb.CheckAnswer) -> CheckResult:
    if not answer.manifest:
        return CheckResult("none yet: the first client describes one")
    try:
        model = report.run_manifest = Manifest.from_json(answer.manifest)
    except ManifestError as error:
        text = f"the run's model cannot be read here: {error}"
        raise StepFailed(text, same_version(answer), ExitCode.REFUSED) from error
    return CheckResult(f"{model.size:,} values, {model.num_masked:,} can be pruned")


def _round(report: CheckReport) -> CheckResult:
    """Forecast a round, and fail if the run's settings do not fit the model."""
    from ssfl.server.errors import ModelUnusable
    from ssfl.server.loop.first_model import begin_model

    manifest = report.manifest()
    assert manifest is not None
    answer = report.session.answer if report.session and report.session.reply else None
    rounds = report.rounds = forecasts(
        manifest, report.settings, answer, report.link, report.pace, report.num_frozen
    )
    if report.settings:
        try:
            begin_model(report.settings, manifest, np.zeros(manifest.size, np.float32))
        except ModelUnusable as error:
            action = "start the run with settings that fit this model, or choose another model"
            remedy = Remedy(Owner.OPERATOR, action)
            raise StepFailed(str(error), remedy, ExitCode.REFUSED) from error
    own = next((row for row in rounds if row.is_run), rounds[0] if rounds else None)
    if own is None:
        return CheckResult("no forecast: the model is too small for 50 % sparsity")
    up, down = format_size(own.up), format_size(own.down)
    return CheckResult(f"{up} up, {down} down at {view.format_sparsity(own)}")


def _show(report: CheckReport, shown: Console) -> None:
    shown.print(view.verdict_text(report.steps))
    shown.print()
    view.show_steps(shown, report.steps)
    if manifest := report.manifest():
        shown.print()
        shown.print(view.tensor_table(manifest))
        shown.print(view.role_table(manifest, report.num_frozen))
    if rounds := report.rounds:
        shown.print()
        shown.print(view.forecast_table(rounds, shown.width))
        shown.print(view.forecast_notes(rounds, report.link, report.pace))

"""`ssfl check`: test whether this site can take part, without joining."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

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
from ssfl.tools.check.coordinator import PreflightSession, check_coordinator
from ssfl.tools.check.disk import check_disk
from ssfl.tools.check.forecast import Forecast, Terms, forecasts, sparsity_of
from ssfl.tools.check.network import Route, check_route
from ssfl.tools.check.probe import TOKEN_BYTES, Question
from ssfl.tools.check.site_trial import SiteCheck
from ssfl.tools.check.steps import CheckInterrupted, CheckResult, Owner, Remedy, StepFailed, Steps
from ssfl.tools.check.view import (
    Screen,
    document,
    forecast_notes,
    forecast_table,
    format_sparsity,
    role_table,
    tensor_table,
    verdict_text,
)
from ssfl.tools.plan.view import format_size
from ssfl.tools.terminal import console, stdout_aside

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
        whole = replace(
            self, data=self.data or "shard", coordinator=self.coordinator or "localhost:1"
        )
        ClientConfig.validate(whole)  # a client needs both flags


@dataclass
class CheckReport:
    """The results of a check."""

    steps: Steps
    client_id: str = UNNAMED_CLIENT
    asks_coordinator: bool = False
    session: PreflightSession | None = None
    settings: RunSettings | None = None  # of the run; None: unknown
    run_manifest: Manifest | None = None  # of the run's model; None: no model yet, or unknown
    site: SiteCheck | None = None
    rounds: list[Forecast] = field(default_factory=list)  # the cost of a round, by sparsity

    def forecasts(self, manifest: Manifest) -> list[Forecast]:
        """Return the cost of a round at each sparsity."""
        answer = self.session.answer if self.session else None
        frozen = self.site.num_frozen if self.site else 0
        terms = Terms(num_frozen=frozen)
        if answer:
            begun = answer.rounds_done or answer.phase not in ("gathering", "paused")
            terms = Terms(
                answer.reference_coding, answer.upload_slots, answer.num_clients + 1,
                answer.rounds_done, has_begun=bool(begun), num_frozen=frozen,
            )  # fmt: skip
        return forecasts(
            manifest,
            self.settings or RunSettings(),
            terms,
            self.session.link if self.session else None,
            self.site.pace if self.site else None,
            is_run=self.settings is not None,
        )

    def manifest(self) -> Manifest | None:
        """Return this site's model, or the run's if no shard is checked.

        Return None if the coordinator did not send its settings: the site then built its model
        with default settings, and the run's model may differ.
        """
        if not self.settings and self.asks_coordinator:
            return None
        return self.site.manifest if self.site else self.run_manifest


def check(argv: Sequence[str]) -> int:
    """Run the command."""
    config = settings.load(
        CheckConfig, argv, os.environ, "ssfl check", DESCRIPTION, EXAMPLE, settings_elsewhere()
    )
    if config.json:
        with stdout_aside():  # a task may print
            report = run_check(config, Steps())
        print(json.dumps(_document(report), indent=1))
        return int(report.steps.exit_code)
    screen = Screen(console())
    try:
        report = run_check(config, Steps(screen.begin))
    finally:
        screen.close()
    _show(report, screen)
    return int(report.steps.exit_code)


def run_check(config: CheckConfig, steps: Steps) -> CheckReport:
    """Run the steps that the settings select, up to Ctrl-C if it is pressed."""
    report = CheckReport(steps, asks_coordinator=bool(config.coordinator))
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
    access = _check_files(config, steps)
    check_route(steps, Route(config.coordinator, access.tls if access else None))
    steps.part = "coordinator"
    _check_client_id(config, report, access)
    question = Question(report.client_id, _token(config, report.client_id))
    report.session = check_coordinator(steps, access, question)
    steps.run("settings", lambda: _settings(report), ["call"])
    steps.run("run's model", lambda: _run_model(report), ["call"])


def _check_site(config: CheckConfig, report: CheckReport) -> None:
    run, report.steps.part = report.settings, "site"
    if not config.coordinator:
        _check_client_id(config, report, None)
    report.site = SiteCheck(
        config, report.client_id, run or RunSettings(), report.run_manifest, report.session,
        is_run=run is not None,
    )  # fmt: skip
    report.site.check(report.steps)
    state_dir = config.state_dir / report.client_id
    check_disk(report.steps, config, state_dir, run or RunSettings(), report.manifest())


def _check_files(config: CheckConfig, steps: Steps) -> Access | None:
    """Return certificates and token; None if they cannot be used."""
    steps.part = "network"

    def read() -> CheckResult[Access]:
        try:
            access = read_access(config)
        except ProgramError as error:
            remedy = Remedy(Owner.MACHINE, "fix this flag or file; ssfl-client needs it, too")
            raise StepFailed(str(error), remedy, ExitCode.USAGE) from error
        held = [f"CA {config.tls_ca}"] if access.tls else ["no TLS"]
        held += [f"certificate of {access.tls.pair.name}"] if access.tls and access.tls.pair else []
        held += ["join token"] if access.token else []
        return CheckResult(access, ", ".join(held))

    return steps.run("files", read)


def _check_client_id(config: CheckConfig, report: CheckReport, access: Access | None) -> None:
    """Find the client id that ssfl-client would use, else the name in the certificate."""
    pair = access.tls.pair if access and access.tls else None
    certified = pair.name if pair and CLIENT_ID.fullmatch(pair.name) else ""

    def find() -> CheckResult[str]:
        if config.client_id or config.data:
            try:
                name = client_id_of(config)
            except ProgramError as error:
                remedy = Remedy(Owner.MACHINE, "choose a name with --client-id")
                raise StepFailed(
                    str(error).partition(": choose")[0], remedy, error.exit_code
                ) from error
            return CheckResult(name, name)
        if certified:
            return CheckResult(certified, f"{certified}, from its certificate")
        return CheckResult(UNNAMED_CLIENT, f"{UNNAMED_CLIENT}: no --client-id or --data is given")

    report.client_id = report.steps.run("client id", find) or certified or UNNAMED_CLIENT


def _token(config: CheckConfig, client_id: str) -> bytes:
    """Return the token that an earlier start of this client saved; empty if there is none."""
    try:
        token = (config.state_dir / client_id / "token").read_bytes()
    except OSError:
        return b""
    return token if len(token) == TOKEN_BYTES else b""


def _settings(report: CheckReport) -> CheckResult[None]:
    """Read the run's settings as a client does."""
    from ssfl.client.coding import read_settings
    from ssfl.client.errors import Refused

    answer = report.session.answer if report.session else None
    assert answer is not None
    try:
        run = report.settings = read_settings(answer.settings)
    except Refused as error:
        raise StepFailed(
            str(error),
            Remedy(Owner.MACHINE, f"install ssfl {answer.software}, as the coordinator has"),
            ExitCode.REFUSED,
        ) from error
    steps = f"{run.local_steps} local steps" if run.local_steps else f"{run.local_epochs} epochs"
    mask = sparsity_of(run)
    if run.strategy == "ssfl" and not run.bytes_per_round:
        mask += " sparse"
    return CheckResult(
        None,
        f"{run.model}, {mask}, {run.rounds} rounds of {steps}, batches of {run.batch_size}",
    )


def _run_model(report: CheckReport) -> CheckResult[None]:
    """Read the description of the run's model."""
    answer = report.session.answer if report.session else None
    assert answer is not None
    if not answer.manifest:
        return CheckResult(None, "none yet: the first client describes one")
    try:
        model = report.run_manifest = Manifest.from_json(answer.manifest)
    except ManifestError as error:
        raise StepFailed(
            f"the run's model cannot be read here: {error}",
            Remedy(Owner.MACHINE, f"install ssfl {answer.software}, as the coordinator has"),
            ExitCode.REFUSED,
        ) from error
    return CheckResult(None, f"{model.size:,} values, {model.num_masked:,} can be pruned")


def _round(report: CheckReport) -> CheckResult[None]:
    """Forecast a round, and fail if the run's settings do not fit the model."""
    from ssfl.server.errors import ModelUnusable
    from ssfl.server.loop.first_model import begin_model

    manifest = report.manifest()
    assert manifest is not None
    rounds = report.rounds = report.forecasts(manifest)
    if report.settings:
        try:
            begin_model(report.settings, manifest, np.zeros(manifest.size, np.float32))
        except ModelUnusable as error:
            action = "start the run with settings that fit this model, or choose another model"
            raise StepFailed(
                str(error), Remedy(Owner.OPERATOR, action), ExitCode.REFUSED
            ) from error
    own = next((row for row in rounds if row.is_run), rounds[0] if rounds else None)
    if own is None:
        return CheckResult(None, "no forecast: the model is too small for 50 % sparsity")
    return CheckResult(
        None, f"{format_size(own.up)} up, {format_size(own.down)} down at {format_sparsity(own)}"
    )


def _show(report: CheckReport, screen: Screen) -> None:
    """Print the verdict, the steps, the tensors and the forecast."""
    shown = screen.console
    shown.print(verdict_text(report.steps))
    shown.print()
    screen.show(report.steps)
    if manifest := report.manifest():
        shown.print()
        shown.print(tensor_table(manifest))
        shown.print(role_table(manifest, report.site.num_frozen if report.site else 0))
    if rounds := report.rounds:
        shown.print()
        shown.print(forecast_table(rounds, shown.width))
        link = report.session.link if report.session else None
        shown.print(forecast_notes(rounds, link, report.site.pace if report.site else None))


def _document(report: CheckReport) -> dict[str, object]:
    return document(
        report.steps,
        report.manifest(),
        report.rounds,
        report.session.link if report.session else None,
        report.site.pace if report.site else None,
    )

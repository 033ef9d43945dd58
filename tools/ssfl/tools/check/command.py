"""`ssfl check`: can this site take part? Tried before it joins, without joining."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ssfl.client.access import Access, read_access
from ssfl.client.config import CLIENT_ID, ClientConfig, client_id_of, settings_elsewhere
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
from ssfl.tools.check.steps import CheckInterrupted, Owner, Remedy, StepFailed, StepResult, Steps
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
    "Finds out whether a site can take part, before it does: the way to the coordinator, what the "
    "coordinator says of this client, and the site's own task, shard and model, on one batch. It "
    "joins nothing and disturbs no run. Each failure says who must fix what. Give it the flags of "
    "ssfl-client: without --coordinator only the site is checked, without --data only the way."
)
EXAMPLE = (
    "For example: ssfl check --task my_task.py --data shard_00 --coordinator fl.example.org:50051 "
    "--tls-ca ca.pem"
)
UNNAMED_CLIENT = "ssfl-check"  # a client id to ask with, where nothing names the client


@dataclass(frozen=True, slots=True)
class CheckConfig(ClientConfig):
    """The settings of the client that is to be checked, by the same names."""

    coordinator: str = setting("", "host:port of the coordinator; left out: only the site")
    json: bool = setting(False, "answer as JSON, in bytes and seconds")

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        if not (self.data or self.coordinator):
            raise SettingsError(
                "what is to be checked? --coordinator host:port, --data shard_00, or both"
            )
        whole = replace(
            self, data=self.data or "shard", coordinator=self.coordinator or "localhost:1"
        )
        ClientConfig.validate(whole)  # which wants both


@dataclass
class CheckReport:
    """All that a check has found."""

    steps: Steps
    client_id: str = UNNAMED_CLIENT
    asks_coordinator: bool = False
    session: PreflightSession | None = None
    settings: RunSettings | None = None  # of the run; None: not known
    run_manifest: Manifest | None = None  # of the run's model; None: it has none, or is not known
    site: SiteCheck | None = None
    rounds: list[Forecast] = field(default_factory=list)  # what a round costs, by sparsity

    def forecasts(self, manifest: Manifest) -> list[Forecast]:
        """Return what a round costs."""
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
        """Return the model that this site builds; where no shard is checked, the run's.

        Without the run's settings the site built a model of default ones, which the run does not
        have: that one is not shown.
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
            checked = run_check(config, Steps())
        print(json.dumps(_document(checked), indent=1))
        return int(checked.steps.exit_code)
    screen = Screen(console())
    try:
        checked = run_check(config, Steps(screen.begin))
    finally:
        screen.close()
    _show(checked, screen)
    return int(checked.steps.exit_code)


def run_check(config: CheckConfig, steps: Steps) -> CheckReport:
    """Do all steps that the settings ask for; those before Ctrl-C, if that ends it."""
    checked = CheckReport(steps, asks_coordinator=bool(config.coordinator))
    try:
        if config.coordinator:
            _check_coordinator(config, checked)
        if config.data:
            _check_site(config, checked)
        if checked.site or checked.run_manifest:
            needs = ["settings"] if config.coordinator else []
            needs += ["model"] if checked.site else []
            steps.run("round", lambda: _round(checked), needs)
    except CheckInterrupted:  # the step says so
        pass
    finally:
        if checked.session:
            checked.session.close()
    return checked


def _check_coordinator(config: CheckConfig, checked: CheckReport) -> None:
    steps = checked.steps
    access = _check_files(config, steps)
    check_route(steps, Route(config.coordinator, access.tls if access else None))
    steps.part = "coordinator"
    _check_client_id(config, checked, access)
    question = Question(checked.client_id, _token(config, checked.client_id))
    checked.session = check_coordinator(steps, access, question)
    steps.run("settings", lambda: _settings(checked), ["call"])
    steps.run("run's model", lambda: _run_model(checked), ["call"])


def _check_site(config: CheckConfig, checked: CheckReport) -> None:
    run, checked.steps.part = checked.settings, "site"
    if not config.coordinator:
        _check_client_id(config, checked, None)
    checked.site = SiteCheck(
        config, checked.client_id, run or RunSettings(), checked.run_manifest, checked.session,
        is_run=run is not None,
    )  # fmt: skip
    checked.site.check(checked.steps)
    state_dir = config.state_dir / checked.client_id
    check_disk(checked.steps, config, state_dir, run or RunSettings(), checked.manifest())


def _check_files(config: CheckConfig, steps: Steps) -> Access | None:
    """Read certificates and token; None if they will not do."""
    steps.part = "network"

    def read() -> StepResult[Access]:
        try:
            access = read_access(config)
        except ProgramError as error:
            remedy = Remedy(Owner.MACHINE, "mend this flag or file: a client would end here, too")
            raise StepFailed(str(error), remedy, ExitCode.USAGE) from error
        held = [f"CA {config.tls_ca}"] if access.tls else ["no TLS"]
        held += [f"certificate of {access.tls.pair.name}"] if access.tls and access.tls.pair else []
        held += ["join token"] if access.token else []
        return StepResult(access, ", ".join(held))

    return steps.run("files", read)


def _check_client_id(config: CheckConfig, checked: CheckReport, access: Access | None) -> None:
    """Find out the name that ssfl-client would have; without one, ask as who is certified."""
    pair = access.tls.pair if access and access.tls else None
    certified = pair.name if pair and CLIENT_ID.fullmatch(pair.name) else ""

    def find() -> StepResult[str]:
        if config.client_id or config.data:
            try:
                name = client_id_of(config)
            except ProgramError as error:
                remedy = Remedy(Owner.MACHINE, "choose a name with --client-id")
                raise StepFailed(
                    str(error).partition(": choose")[0], remedy, error.exit_code
                ) from error
            return StepResult(name, name)
        if certified:
            return StepResult(certified, f"{certified}, as its certificate says")
        return StepResult(UNNAMED_CLIENT, f"{UNNAMED_CLIENT}, for want of --client-id or --data")

    checked.client_id = checked.steps.run("client id", find) or certified or UNNAMED_CLIENT


def _token(config: CheckConfig, client_id: str) -> bytes:
    """Return the token that an earlier start of this client left; none is made."""
    try:
        token = (config.state_dir / client_id / "token").read_bytes()
    except OSError:
        return b""
    return token if len(token) == TOKEN_BYTES else b""


def _settings(checked: CheckReport) -> StepResult[None]:
    """Read the run's settings as a client does."""
    from ssfl.client.errors import Refused
    from ssfl.client.run_settings import read_settings

    answer = checked.session.answer if checked.session else None
    assert answer is not None
    try:
        run = checked.settings = read_settings(answer.settings)
    except Refused as error:
        raise StepFailed(
            str(error),
            Remedy(Owner.MACHINE, f"install ssfl {answer.software}, as the coordinator has"),
            ExitCode.REFUSED,
        ) from error
    steps = f"{run.local_steps} local steps" if run.local_steps else f"{run.local_epochs} epochs"
    told = sparsity_of(run)
    mask = told if run.strategy != "ssfl" or run.bytes_per_round else f"{told} sparse"
    return StepResult(
        None,
        f"{run.model}, {mask}, {run.rounds} rounds of {steps}, batches of {run.batch_size}",
    )


def _run_model(checked: CheckReport) -> StepResult[None]:
    """Read the description of the run's model."""
    answer = checked.session.answer if checked.session else None
    assert answer is not None
    if not answer.manifest:
        return StepResult(None, "none yet: the first client describes one")
    try:
        model = checked.run_manifest = Manifest.from_json(answer.manifest)
    except ManifestError as error:
        raise StepFailed(
            f"the run's model cannot be read here: {error}",
            Remedy(Owner.MACHINE, f"install ssfl {answer.software}, as the coordinator has"),
            ExitCode.REFUSED,
        ) from error
    return StepResult(None, f"{model.size:,} values, {model.num_masked:,} can be pruned")


def _round(checked: CheckReport) -> StepResult[None]:
    """Forecast a round, and find out whether the run's settings fit the model at all."""
    from ssfl.server.errors import ModelUnusable
    from ssfl.server.loop.first_model import begin_model

    manifest = checked.manifest()
    assert manifest is not None
    rounds = checked.rounds = checked.forecasts(manifest)
    if checked.settings:
        try:
            begin_model(checked.settings, manifest, np.zeros(manifest.size, np.float32))
        except ModelUnusable as error:
            action = "begin the run with settings that fit this model, or choose another model"
            raise StepFailed(
                str(error), Remedy(Owner.OPERATOR, action), ExitCode.REFUSED
            ) from error
    own = next((one for one in rounds if one.is_run), rounds[0] if rounds else None)
    if own is None:
        return StepResult(None, "so small a model keeps nothing at the sparsities we know of")
    return StepResult(
        None, f"{format_size(own.up)} up, {format_size(own.down)} down at {format_sparsity(own)}"
    )


def _show(checked: CheckReport, screen: Screen) -> None:
    """Print the verdict, the steps, and what they have led to."""
    shown = screen.console
    shown.print(verdict_text(checked.steps))
    shown.print()
    screen.show(checked.steps)
    if manifest := checked.manifest():
        shown.print()
        shown.print(tensor_table(manifest))
        shown.print(role_table(manifest, checked.site.num_frozen if checked.site else 0))
    if told := checked.rounds:
        shown.print()
        shown.print(forecast_table(told, shown.width))
        link = checked.session.link if checked.session else None
        shown.print(forecast_notes(told, link, checked.site.pace if checked.site else None))


def _document(checked: CheckReport) -> dict[str, object]:
    return document(
        checked.steps,
        checked.manifest(),
        checked.rounds,
        checked.session.link if checked.session else None,
        checked.site.pace if checked.site else None,
    )

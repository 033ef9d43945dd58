"""`ssfl status`, `start`, `refresh-mask`, `remove`, `stop`: for those who run a federation."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.json_format import MessageToJson

from ssfl.method.errors import SettingsError
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode
from ssfl.tools.admin_client import AdminClient
from ssfl.tools.screen import status_view
from ssfl.tools.terminal import console


@dataclass(frozen=True, slots=True)
class OperateConfig:
    """Which coordinator, and in which form to answer."""

    admin: str = setting("localhost:50052", "host:port of the coordinator's admin port")
    json: bool = setting(False, "answer as JSON")


@dataclass(frozen=True, slots=True)
class RemoveConfig(OperateConfig):
    """Whom to remove."""

    site: str = setting("", "the client's name", positional=True)
    readmit: bool = setting(False, "take an earlier removal back")

    def validate(self) -> None:
        """Raise SettingsError if no site is named."""
        if not self.site:
            raise SettingsError("which site? For example: ssfl remove shard_07")


def status(argv: Sequence[str]) -> int:
    """Show what the run is doing."""
    config = _load(argv, "ssfl status", "Shows what a run is doing and who takes part.")
    answer = AdminClient(config.admin).status()
    if config.json:
        print(
            MessageToJson(
                answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        )
    else:
        console().print(status_view(answer))
    return int(ExitCode.DONE)


def start(argv: Sequence[str]) -> int:
    """Begin the run with the clients that have joined."""
    config = _load(argv, "ssfl start", "Begins the run with the clients that have joined.")
    num_clients = AdminClient(config.admin).start()
    _answer(config, f'{{"num_clients": {num_clients}}}', f"started with {num_clients} clients")
    return int(ExitCode.DONE)


def refresh_mask(argv: Sequence[str]) -> int:
    """Let all clients score anew and agree on a new mask, before the next round."""
    config = _load(
        argv, "ssfl refresh-mask", "Renews the mask: all clients score anew before the next round."
    )
    answer = AdminClient(config.admin).refresh_mask()
    epoch, rounds = answer.mask_epoch, answer.rounds_done
    _answer(
        config,
        f'{{"mask_epoch": {epoch}, "rounds_done": {rounds}}}',
        f"mask {epoch} will be renewed before the next round; {rounds} are done",
    )
    return int(ExitCode.DONE)


def remove(argv: Sequence[str]) -> int:
    """Refuse a site from now on; what it sent before counts."""
    config = settings.load(
        RemoveConfig, argv, _environ(), "ssfl remove", "Refuses a site from now on."
    )
    was_member = AdminClient(config.admin).remove(config.site, readmit=config.readmit)
    done = "may join again" if config.readmit else "is removed and will be refused"
    known = "" if was_member else " (it had not joined this run)"
    answer = {"site": config.site, "removed": not config.readmit, "was_member": was_member}
    _answer(config, json.dumps(answer), f"{config.site} {done}{known}")
    return int(ExitCode.DONE)


def stop(argv: Sequence[str]) -> int:
    """End the run; the last committed model becomes the final one."""
    config = _load(argv, "ssfl stop", "Ends the run; every site gets the last committed model.")
    AdminClient(config.admin).stop()
    _answer(
        config,
        '{"stopped": true}',
        "the run is ending; every site gets the last committed model, if there is one",
    )
    return int(ExitCode.DONE)


def _load(argv: Sequence[str], prog: str, description: str) -> OperateConfig:
    return settings.load(OperateConfig, argv, _environ(), prog, description)


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name == "SSFL_ADMIN"}


def _answer(config: OperateConfig, as_json: str, as_text: str) -> None:
    print(as_json if config.json else as_text)

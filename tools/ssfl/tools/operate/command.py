"""`ssfl status`, `clients`, `start`, `pause`, `resume`, `refresh-mask`, `remove`, `stop`.

With `--json` each prints one JSON object. Errors are printed on stderr and set the exit code.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ssfl.client.config import CLIENT_ID
from ssfl.method.errors import SettingsError
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.addresses import split
from ssfl.tools.operate.clients_view import clients_document, clients_view
from ssfl.tools.operate.screen import status_view
from ssfl.tools.terminal import console

if TYPE_CHECKING:
    from ssfl.tools.operate.admin_client import AdminClient
    from ssfl.v1 import admin_pb2 as pb

Config = TypeVar("Config", bound="OperateConfig")


@dataclass(frozen=True, slots=True)
class OperateConfig:
    """The coordinator to call, and the form of the output."""

    admin: str = setting("localhost:50052", "host:port of the coordinator's admin port")
    json: bool = setting(False, "print JSON")
    tls_ca: str = setting(
        "", "use TLS: file with the CA of the coordinator, PEM; system: this machine's roots",
        metavar="PATH",
    )  # fmt: skip
    tls_cert: Path | None = setting(None, "the certificate of `admin`, PEM")
    tls_key: Path | None = setting(None, "its key, PEM")
    tls_server_name: str = setting(
        "", "name in the coordinator's certificate, if it differs from its address", metavar="NAME"
    )

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        try:
            split(self.admin)
        except ValueError:
            raise SettingsError(
                f"--admin must be host:port (localhost:50052), got {self.admin!r}"
            ) from None


@dataclass(frozen=True, slots=True)
class ClientsConfig(OperateConfig):
    """The clients to show."""

    all: bool = setting(False, "show every client, not only the first rows; --json always has all")


@dataclass(frozen=True, slots=True)
class RemoveConfig(OperateConfig):
    """The client to remove."""

    site: str = setting("", "the client's name", positional=True)
    readmit: bool = setting(
        False, "revoke a removal; the next client that joins under the name owns it"
    )

    def validate(self) -> None:
        """Raise SettingsError if the site is missing or not a client id."""
        OperateConfig.validate(self)
        if not self.site:
            raise SettingsError("which site? For example: ssfl remove shard_07")
        if not CLIENT_ID.fullmatch(self.site):
            raise SettingsError(
                f"{self.site!r} cannot be a client id (letters, digits, '.', '_', '-'): "
                "`ssfl clients` lists them"
            )


def status(argv: Sequence[str]) -> None:
    """Show the state of the run."""
    config = _load(OperateConfig, argv, "status", "Shows the state of a run and of its clients.")
    answer = _coordinator(config).status()
    if config.json:
        print(json.dumps(plain_document(answer), indent=2))
    else:
        console().print(status_view(answer))


def clients(argv: Sequence[str]) -> None:
    """Show the clients, those in trouble first."""
    text = "Shows the clients of a run: clients in trouble first, then clients it waits for."
    config = _load(ClientsConfig, argv, "clients", text)
    answer = _coordinator(config).status()
    if config.json:
        print(json.dumps(clients_document(answer), indent=2))
    else:
        shown = console()
        shown.print(clients_view(answer, show_all=config.all, width=shown.width))


def start(argv: Sequence[str]) -> None:
    """Start the run with the clients that have joined."""
    text = "Starts the run with the clients that have joined."
    config = _load(OperateConfig, argv, "start", text)
    answer: pb.StartRunResponse = _coordinator(config).call("StartRun")
    document = {"num_clients": answer.num_clients, "was_started": answer.was_started}
    now = "the run had already started" if answer.was_started else "started"
    _print_answer(config, document, f"{now} with {answer.num_clients} clients")


def pause(argv: Sequence[str]) -> None:
    """Finish the current step, then start no other."""
    text = (
        "Pauses the run. The current step finishes and counts; if too few clients are present to "
        "finish it, it is repeated later. No other step starts until `ssfl resume`, even if the "
        "coordinator restarts."
    )
    config = _load(OperateConfig, argv, "pause", text)
    answer: pb.PauseRunResponse = _coordinator(config).call("PauseRun")
    document = {"paused": True, "was_paused": answer.was_paused, "rounds_done": answer.rounds_done}
    now = "the run was already paused" if answer.was_paused else "the run is paused"
    then = "the current step finishes, then no step starts until `ssfl resume`"
    _print_answer(config, document, f"{now}: {then}; {answer.rounds_done} rounds are done")


def resume(argv: Sequence[str]) -> None:
    """Resume a paused run."""
    config = _load(OperateConfig, argv, "resume", "Resumes a paused run where it stopped.")
    answer: pb.ResumeRunResponse = _coordinator(config).call("ResumeRun")
    was_paused = answer.was_paused
    done = "the run is resumed" if was_paused else "the run was not paused: nothing to do"
    _print_answer(config, {"paused": False, "was_paused": was_paused}, done)


def refresh_mask(argv: Sequence[str]) -> None:
    """Refresh the mask before the next round."""
    text = "Refreshes the mask: all clients score before the next round."
    config = _load(OperateConfig, argv, "refresh-mask", text)
    answer: pb.RefreshMaskResponse = _coordinator(config).call("RefreshMask")
    epoch, rounds = answer.mask_epoch, answer.rounds_done
    done = f"mask {epoch} will be refreshed before the next round; {rounds} rounds are done"
    _print_answer(config, {"mask_epoch": epoch, "rounds_done": rounds}, done)


def remove(argv: Sequence[str]) -> None:
    """Refuse a site from now on; its earlier updates still count."""
    config = _load(RemoveConfig, argv, "remove", "Refuses a site from now on.")
    answer: pb.RemoveClientResponse = _coordinator(config).call(
        "RemoveClient", client_id=config.site, readmit=config.readmit
    )
    done = "may join again" if config.readmit else "is removed and will be refused"
    if config.readmit and not answer.was_removed:
        done = "was not removed: nothing to do"
        if answer.was_member:
            done = "was not removed; the next client that joins under this name owns it"
    if not config.readmit and answer.was_removed:
        done = "was already removed"
    known = "" if answer.was_member else " (it had not joined this run)"
    document = {
        "site": config.site, "removed": not config.readmit, "was_member": answer.was_member,
        "was_removed": answer.was_removed,
    }  # fmt: skip
    _print_answer(config, document, f"{config.site} {done}{known}")


def stop(argv: Sequence[str]) -> None:
    """End the run; the last committed model becomes the final one."""
    text = "Ends the run; every site gets the last committed model."
    config = _load(OperateConfig, argv, "stop", text)
    _coordinator(config).call("StopRun")
    done = "the run is ending; every site gets the last committed model, if there is one"
    _print_answer(config, {"stopped": True}, done)


def plain_document(message: Any) -> dict[str, Any]:
    """Return a message as plain types, with bytes in hex and without unset optional fields.

    protobuf's own JSON writes 64-bit numbers as text and bytes in base64.
    """
    return {
        field.name: _plain_value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _plain_value(field: Any, value: Any) -> Any:
    if field.message_type and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.message_type:
        is_one = field.has_presence
        return plain_document(value) if is_one else [plain_document(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def _load(kind: type[Config], argv: Sequence[str], name: str, description: str) -> Config:
    ours = {f"SSFL_{option.upper()}" for option in settings.setting_names(OperateConfig)}
    environ = {key: os.environ[key] for key in ours - {"SSFL_JSON"} if key in os.environ}
    return settings.load(kind, argv, environ, f"ssfl {name}", description)


def _coordinator(config: OperateConfig) -> "AdminClient":
    if "grpc" not in sys.modules:  # grpc reads the variable when it is imported
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # ssfl prints the errors itself
    from ssfl.tools.operate.admin_client import AdminClient

    tls = None
    if config.tls_ca or config.tls_cert or config.tls_key or config.tls_server_name:
        from ssfl.program.tls.pem import client_tls

        tls = client_tls(config.tls_ca, config.tls_cert, config.tls_key, config.tls_server_name)
    return AdminClient(config.admin, tls)


def _print_answer(config: OperateConfig, document: dict[str, Any], text: str) -> None:
    print(json.dumps(document) if config.json else text)

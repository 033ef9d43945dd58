"""Settings of a client, and the credentials that they name.

Run settings come from the coordinator.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ssfl.datasets.shards.shard_file import full_name
from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings, setting
from ssfl.program.addresses import is_loopback, split
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.settings.loading import setting_names
from ssfl.program.settings.options import source_file

if TYPE_CHECKING:
    from ssfl.program.tls.pem import ClientTls
    from ssfl.program.tls.probe import Finding

log = logging.getLogger("ssfl.client")

# Settings that only ssfl-coordinator has, without those of a run; tests/test_settings_split.py
# compares them with the coordinator's.
COORDINATOR_SETTINGS = (
    "host", "port", "admin_host", "admin_port", "init", "fresh", "exit_when_done", "exit_on_stall",
    "status_port", "status_host", "health_port", "keep_uploads", "upload_slots", "workers",
    "reference_coding", "insecure",
    "max_clients", "max_connections", "max_model_values",
)  # fmt: skip
CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RUN_SETTING = "is a setting of the run: set it on the coordinator, which sends it to every client"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings that each site chooses for itself."""

    data: str = setting("", "shard to train on: a name under --data-root, or a path")
    data_root: Path = setting(Path("shards"), "folder that holds the shards")
    coordinator: str = setting("localhost:50051", "host:port of the coordinator")
    task: str = setting("image", "task: image, table, a .py file, or an importable module")
    device: str = setting("auto", "device to compute on", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = setting(
        1, "torch threads; 0: every core; the number affects the exact results", ge=0
    )
    client_id: str = setting("", "name in the federation; by default the shard's name")
    strategy: str = source_file("strategy")
    criterion: str = source_file("criterion")
    state_dir: Path = setting(
        Path(".ssfl/clients"), "folder for state that survives a restart, with one for each client"
    )
    out_dir: Path = setting(
        Path("runs"), "folder for the final model, with one folder for each run"
    )
    share_class_counts: bool = setting(
        False, "send the coordinator the number of samples of each class"
    )
    share_labels: bool = setting(
        False, "send the coordinator the list of classes; new classes can then refresh the mask"
    )
    give_up_after: float = setting(
        86400.0, "exit when the coordinator has been unreachable for this long", duration=True
    )
    tls_ca: str = setting(
        "", "use TLS and trust the CA in this PEM file; `system`: trust the CAs of this machine",
        metavar="PATH",
    )  # fmt: skip
    tls_cert: Path | None = setting(
        None, "certificate of this site, PEM; for coordinators that require one"
    )
    tls_key: Path | None = setting(None, "key of the certificate, PEM")
    tls_server_name: str = setting(
        "", "name in the coordinator's certificate; needed if it differs from the address",
        metavar="NAME",
    )  # fmt: skip
    join_token_file: Path | None = setting(
        None, "file with the token that the coordinator requires"
    )
    metrics_port: int | None = setting(
        None,
        "port for Prometheus (/metrics) and probes (/healthz); 0: a free port; default: no port",
        le=65535,
    )
    metrics_host: str = setting("127.0.0.1", "address of the metrics port")
    log_format: str = setting(
        "text", "text for people, json for machines", choices=("text", "json")
    )
    log_level: str = setting(
        "info", "lowest level that is logged", choices=("debug", "info", "warning", "error")
    )

    def validate(self) -> None:
        """Raise SettingsError, which names the flag, if a value cannot be used."""
        if not self.data:
            raise SettingsError("--data is missing: name a shard, for example --data shard_00")
        host, colon, port = self.coordinator.rpartition(":")
        if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
            raise SettingsError(
                f"--coordinator must be host:port (localhost:50051), got {self.coordinator!r}"
            )
        if self.client_id and not CLIENT_ID.fullmatch(self.client_id):
            raise SettingsError(
                "--client-id must be 1 to 64 letters, digits, '.', '_' or '-', with a letter or "
                f"digit first; got {self.client_id!r}"
            )


def client_id_of(config: ClientConfig) -> str:
    """Return the client id, by default the shard's name; raise ProgramError if it is not valid."""
    if config.client_id:
        return config.client_id
    name = Path(full_name(config.data, config.data_root)).name.removesuffix(".npz")
    if not CLIENT_ID.fullmatch(name):
        raise ProgramError(
            f"{name!r} cannot be a client id (letters, digits, '.', '_', '-'; a letter or digit "
            "first): choose one with --client-id",
            ExitCode.USAGE,
        )
    return name


def settings_elsewhere() -> dict[str, str]:
    """Return the settings of other programs, each with the reason why a client refuses it."""
    own = setting_names(ClientConfig)  # in which `strategy` and `criterion` name files
    run = {name: RUN_SETTING for name in setting_names(RunSettings) if name not in own}
    coordinator = dict.fromkeys(
        COORDINATOR_SETTINGS, "is a setting of ssfl-coordinator: set it there"
    )
    return run | coordinator | {"admin": "is for operator commands such as `ssfl status`"}


@dataclass(frozen=True, slots=True)
class Access:
    """Address of a coordinator and the credentials for it."""

    address: str
    tls: "ClientTls | None" = None
    token: str = ""

    def diagnose(self) -> "Finding | None":
        """Probe the coordinator; return the cause of a failed connection, or None if unknown."""
        from ssfl.program.tls.probe import diagnose  # imported only after a failure

        return diagnose(self.address, self.tls)


def read_access(config: ClientConfig) -> Access:
    """Read and check the credential files; raise ProgramError(USAGE) if one cannot be used."""
    files = (config.tls_ca, config.tls_cert, config.tls_key, config.tls_server_name)
    if not (any(files) or config.join_token_file):
        return Access(config.coordinator)
    from ssfl.program.tls.pem import client_tls, read_token, token_warning

    tls = client_tls(*files)
    token = read_token(config.join_token_file) if config.join_token_file else ""
    if config.join_token_file and (warning := token_warning(config.join_token_file)):
        log.warning("%s", warning)
    if token and tls is None and not is_loopback(split(config.coordinator)[0]):
        log.warning("without --tls-ca the join token is sent unencrypted: others can read it")
    if tls and tls.pair:
        for warning in filter(None, (tls.pair.warning(), tls.pair.key_warning())):
            log.warning("%s", warning)
    return Access(config.coordinator, tls, token)

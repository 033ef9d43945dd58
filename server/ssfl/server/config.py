"""All settings of the coordinator, with their help and checks."""

from dataclasses import dataclass, field
from pathlib import Path

from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings, setting
from ssfl.program.addresses import is_loopback
from ssfl.program.monitor.web import TlsFiles
from ssfl.server.loop.limits import MAX_CLIENTS, MAX_CONNECTIONS, MAX_MODEL_VALUES

DEFAULT_PORT = 50051
DEFAULT_ADMIN_PORT = 50052

# Settings of ssfl-client: refused as flags here, ignored as variables, since both programs may
# share one environment. (tests/test_settings_split.py compares the list with the client's own.)
CLIENT_SETTINGS = (
    "data", "data_root", "coordinator", "task", "device", "threads", "client_id",
    "share_class_counts", "share_labels", "tls_server_name",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Addresses, directories and limits of the coordinator, and the settings of its run."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for every interface")
    port: int = setting(DEFAULT_PORT, "port for clients; 0: a free port, which is printed")
    admin_port: int = setting(
        DEFAULT_ADMIN_PORT, "port for `ssfl status`, `start`, `stop`; 0: a free port"
    )
    admin_host: str = setting(
        "127.0.0.1", "address of the admin port; beyond loopback it needs --tls-ca"
    )
    metrics_port: int | None = setting(
        None, "port for Prometheus (/metrics); 0: a free port; without this flag there is none"
    )
    metrics_host: str = setting("127.0.0.1", "address of the metrics port")
    status_port: int | None = setting(
        None, "port for a live page in the browser; 0: a free port; without this flag there is none"
    )
    status_host: str = setting("127.0.0.1", "address of the status page")
    health_port: int | None = setting(
        None,
        "port on --host for health probes without TLS (/healthz, /readyz); 0: a free port; "
        "without this flag there is none",
    )
    state_dir: Path = setting(
        Path(".ssfl/coordinator"), "folder from which the run resumes after a crash"
    )
    out_dir: Path = setting(Path("runs"), "folder for results, with one folder for each run")
    init: Path | None = setting(
        None, "first model, a file written by `ssfl init`; by default the first client's"
    )
    fresh: bool = setting(False, "move the state of an earlier run aside and start a new one")
    exit_when_done: bool = setting(False, "exit when every site has the final model")
    give_up_after: float = setting(
        86400.0, "exit when a run has waited this long for clients that it needs", duration=True
    )
    exit_on_stall: bool = setting(
        False, "exit as soon as the run cannot continue with the connected clients"
    )
    keep_uploads: bool = setting(
        False,
        "keep every upload in the state directory; `ssfl audit` needs this to compute the run "
        "again; it takes 4 bytes for each value sent",
    )
    upload_slots: int = setting(8, "uploads received at once; limits memory", ge=1)
    max_clients: int = setting(MAX_CLIENTS, "largest number of clients in a run", ge=1)
    max_connections: int = setting(
        MAX_CONNECTIONS,
        "largest number of connections to the client port; further ones are closed",
        ge=1,
    )
    max_model_values: int = setting(
        MAX_MODEL_VALUES, "values of the largest model that a client may describe", ge=1
    )
    workers: int = setting(
        2, "threads that verify uploads; the result does not depend on the number", ge=1
    )
    reference_coding: str = setting(
        "auto",
        "encode values losslessly against the base that both ends hold; auto: except on loopback",
        choices=("auto", "on", "off"),
    )
    log_format: str = setting(
        "text", "text for people, json for machines", choices=("text", "json")
    )
    log_level: str = setting(
        "info", "lowest level that is logged", choices=("debug", "info", "warning", "error")
    )
    tls_cert: Path | None = setting(None, "certificate of this coordinator, PEM")
    tls_key: Path | None = setting(None, "key of the certificate, PEM")
    tls_ca: Path | None = setting(
        None, "CA of the sites, PEM; every client must then present a certificate with its id"
    )
    join_token_file: Path | None = setting(
        None, "file with a token that every client must present; for sites without certificates",
    )  # fmt: skip
    insecure: bool = setting(
        False, "listen beyond loopback without TLS; only inside a VPN you trust"
    )
    run: RunSettings = field(default_factory=RunSettings)

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        names = ("port", "admin_port", "metrics_port", "status_port", "health_port")
        ports = {f"--{name.replace('_', '-')}": getattr(self, name) or 0 for name in names}
        for name, value in ports.items():
            if not 0 <= value <= 65535:
                raise SettingsError(f"{name} must be between 0 and 65535, got {value}")
        chosen = [port for port in ports.values() if port]
        if len(set(chosen)) < len(chosen):
            raise SettingsError(f"{', '.join(ports)} must differ")
        limits = {"--max-clients": self.max_clients, "--max-connections": self.max_connections}
        for name, value in limits.items():
            if value < self.run.clients:
                raise SettingsError(
                    f"{name} {value} is below --clients {self.run.clients}: "
                    "the run could never start"
                )
        self._validate_security()

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files for any port of this coordinator; None: it runs without TLS."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_ca)

    def _validate_security(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("--tls-cert and --tls-key belong together: give both")
        if self.tls_ca and not self.tls_cert:
            raise SettingsError("--tls-ca needs --tls-cert and --tls-key of this coordinator")
        if not (is_loopback(self.host) or self.tls_cert or self.insecure):
            raise SettingsError(
                f"--host {self.host} can be reached from other machines, and without TLS anyone on "
                "the network path can read and change the traffic: give --tls-cert and --tls-key "
                "(`ssfl certs` makes some to try), or --insecure if this is inside a VPN you trust"
            )
        for name, host in (
            ("--metrics-host", self.metrics_host),
            ("--status-host", self.status_host),
        ):
            if not (is_loopback(host) or self.tls_cert or self.insecure):
                raise SettingsError(
                    f"{name} {host} can be reached from other machines, and shows the names of all "
                    "clients: give --tls-cert and --tls-key, or --insecure if only people "
                    "you trust can reach it"
                )
        if not (is_loopback(self.admin_host) or self.tls_ca):
            raise SettingsError(
                f"--admin-host {self.admin_host} can be reached from other machines, where anyone "
                "could stop the run: give --tls-cert, --tls-key and --tls-ca, so that it asks for "
                "the certificate of `admin`"
            )


def warnings_of(config: CoordinatorConfig) -> list[str]:
    """Return the warnings to log at every start about access without TLS or authentication."""
    if is_loopback(config.host):
        return []
    warnings = []
    if not config.tls_cert:
        warnings.append(
            "--insecure: listening beyond this machine without TLS; anyone on the network path can "
            "read and change the traffic"
            + (" and the join token" if config.join_token_file else "")
        )
    if not (config.tls_ca or config.join_token_file):
        warnings.append(
            "anyone who reaches this port can join: use --tls-ca to require certificates, or "
            "--join-token-file to require a token"
        )
    return warnings


def client_settings() -> dict[str, str]:
    """Return the setting names that the coordinator refuses, each with the reason."""
    reasons = dict.fromkeys(CLIENT_SETTINGS, "is a setting of ssfl-client: give it there")
    return reasons | {"admin": "is for `ssfl status` and similar commands; here it is --admin-port"}

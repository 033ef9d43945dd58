"""Every setting of the coordinator: its meaning, its unit, its check."""

from dataclasses import dataclass, field
from pathlib import Path

from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings, setting

DEFAULT_PORT = 50051
DEFAULT_ADMIN_PORT = 50052

# Settings of ssfl-client: refused as flags here, ignored as variables, since both programs may
# share one environment. (tests/test_settings_split.py compares the list with the client's own.)
CLIENT_SETTINGS = (
    "data", "data_root", "coordinator", "task", "device", "threads", "client_id",
    "share_class_counts", "share_labels",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Where the coordinator listens and keeps things, and the run it conducts."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for every interface")
    port: int = setting(DEFAULT_PORT, "port for clients; 0 takes a free one and prints it")
    admin_port: int = setting(
        DEFAULT_ADMIN_PORT, "port for `ssfl status`, `start`, `stop`; loopback only; 0: a free one"
    )
    state_dir: Path = setting(Path(".ssfl/coordinator"), "where the run survives a crash")
    out_dir: Path = setting(Path("runs"), "where the final model goes, in a folder per run")
    init: Path | None = setting(
        None, "begin with the model in this file of `ssfl init`, instead of the first client's"
    )
    fresh: bool = setting(False, "move the state of an earlier run aside and begin a new one")
    exit_when_done: bool = setting(
        False, "end when every site has the final model, instead of serving it"
    )
    give_up_after: float = setting(
        86400.0, "end when the run has waited so long for clients it needs", duration=True
    )
    exit_on_stall: bool = setting(
        False, "end as soon as the run cannot go on with the clients that are here"
    )
    upload_slots: int = setting(8, "uploads received at once; bounds memory", least=1)
    workers: int = setting(
        2, "threads that verify uploads; the result does not depend on it", least=1
    )
    reference_coding: str = setting(
        "auto",
        "code values against the base both ends hold, lossless; auto: except on loopback",
        choices=("auto", "on", "off"),
    )
    log_format: str = setting(
        "text", "text for people, json for machines", choices=("text", "json")
    )
    log_level: str = setting(
        "info", "how much to tell", choices=("debug", "info", "warning", "error")
    )
    run: RunSettings = field(default_factory=RunSettings)

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        for name, value in (("--port", self.port), ("--admin-port", self.admin_port)):
            if not 0 <= value <= 65535:
                raise SettingsError(f"{name} must be between 0 and 65535, got {value}")
        if self.port and self.port == self.admin_port:
            raise SettingsError("--port and --admin-port must differ")
        for name, count in (("--upload-slots", self.upload_slots), ("--workers", self.workers)):
            if count < 1:
                raise SettingsError(f"{name} must be at least 1, got {count}")


def client_settings() -> dict[str, str]:
    """Return the names the coordinator refuses, with the sentence that says why."""
    told = dict.fromkeys(CLIENT_SETTINGS, "is a setting of ssfl-client: give it there")
    return told | {"admin": "is for `ssfl status` and its like; here it is --admin-port"}

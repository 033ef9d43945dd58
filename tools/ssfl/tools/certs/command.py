"""`ssfl certs`: a test CA, and certificates for a coordinator, its sites and its operator.

Use a managed CA for real federations: the key of this one is a plain file. The coordinator's
certificate is for servers, a site's is for clients and names its client id.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from rich.table import Column, Table

from ssfl.client.config import CLIENT_ID
from ssfl.method.errors import SettingsError
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.tls.pem import format_time
from ssfl.tools.certs.authority import Authority, CertsFolderError, Issued
from ssfl.tools.terminal import console

DESCRIPTION = (
    "Makes a test CA and certificates for mutual TLS: one for the coordinator, one per SITE with "
    "its client id as the name, and one called admin for `ssfl status` and the other operator "
    "commands. An existing CA in the folder signs, and existing certificates are kept."
)
EXAMPLE = "For example: ssfl certs --out certs --host fl.example.org hospital_a hospital_b"
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
RESERVED_NAMES = ("ca", "coordinator", "admin")


@dataclass(frozen=True, slots=True)
class CertsConfig:
    """The certificates to make."""

    sites: str = setting(
        "", "client ids to make certificates for", positional=True, several=True, metavar="SITE"
    )
    out: Path = setting(Path("certs"), "folder to write to")
    host: str = setting(
        "", "names and addresses of the coordinator for clients, in addition to localhost: a,b",
        metavar="NAMES",
    )  # fmt: skip
    days: int = setting(365, "how long the certificates are valid", unit="days", ge=1, le=3650)
    overwrite: bool = setting(False, "replace existing certificates; the CA is kept")

    @property
    def site_names(self) -> list[str]:
        return list(dict.fromkeys(self.sites.split()))

    @property
    def hosts(self) -> list[str]:
        parts = map(str.strip, self.host.split(","))
        return list(dict.fromkeys(filter(None, parts)))

    def validate(self) -> None:
        """Raise SettingsError naming the flag or site at fault."""
        for site in self.site_names:
            if not CLIENT_ID.fullmatch(site):
                raise SettingsError(
                    f"{site!r} cannot be a client id: 1 to 64 letters, digits, '.', '_' or '-'"
                )
            if site in RESERVED_NAMES or site.endswith("-key"):
                raise SettingsError(f"{site!r} cannot be a site: its file name is reserved")
        for host in self.hosts:
            if not (_is_address(host) or HOST.fullmatch(host)):
                raise SettingsError(f"--host: {host!r} is neither a host name nor an address")
        if self.out.exists() and not self.out.is_dir():
            raise SettingsError(f"--out: {self.out} is not a folder")


def certs(argv: Sequence[str]) -> None:
    """Run the command."""
    config = settings.load(CertsConfig, argv, None, "ssfl certs", DESCRIPTION, EXAMPLE)
    screen = console()
    days, overwrite = timedelta(days=config.days), config.overwrite
    try:
        authority = Authority.open(config.out, datetime.now(UTC))
        issued = [authority.own, authority.coordinator(config.hosts, days, overwrite=overwrite)]
        for name in ("admin", *config.site_names):
            issued.append(authority.client(name, days, overwrite=overwrite))
    except CertsFolderError as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error
    except OSError as error:
        raise ProgramError(f"cannot write to {config.out}: {error}", ExitCode.BAD_DATA) from error
    screen.print(_table(issued))
    for line in _next(config):
        screen.print(line, soft_wrap=True, markup=False)


def _table(issued: Sequence[Issued]) -> Table:
    columns = ("file", "for", "valid until", "")
    table = Table(*(Column(name, overflow="fold") for name in columns))
    for made in issued:
        state = "new" if made.new else "kept"
        table.add_row(made.file.name, made.use, format_time(made.ends)[:10], state)
    return table


def _next(config: CertsConfig) -> list[str]:
    out, site = shlex.quote(str(config.out)), (config.site_names or ["SITE"])[0]
    host = next(iter(config.hosts), "")
    listen = "--host 0.0.0.0 " if host else ""

    def files(name: str) -> str:
        return f"--tls-ca {out}/ca.pem --tls-cert {out}/{name}.pem --tls-key {out}/{name}-key.pem"

    return [
        f"in {out}/; the key of NAME.pem is NAME-key.pem. Next:",
        f"  ssfl-coordinator {listen}{files('coordinator')}",
        f"  ssfl-client --data {site} --client-id {site} --coordinator {host or 'localhost'}:50051 "
        f"{files(site)}",
        f"  ssfl status {files('admin')}",
        "A site needs only ca.pem and its own two files. Keep ca-key.pem here: with it, anyone can "
        "act as any site.",
    ]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True

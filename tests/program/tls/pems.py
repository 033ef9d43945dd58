"""Certificates for tests: a folder with a CA and its certificates, valid or expired."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from ssfl.program.tls.pem import ClientTls, client_tls
from ssfl.tools.certs.authority import Authority

YEAR = timedelta(days=365)


def make(folder: Path, *sites: str, hosts: tuple[str, ...] = ()) -> Path:
    """Make a CA with certificates for the coordinator, `admin` and sites; return its folder."""
    authority = Authority.open(folder, datetime.now(UTC))
    authority.coordinator(hosts, YEAR, overwrite=False)
    for name in ("admin", *sites):
        authority.client(name, YEAR, overwrite=False)
    return folder


def make_expired(folder: Path, *sites: str) -> Path:
    """Make such a folder with certificates that expired 70 days ago."""
    authority = Authority.open(folder, datetime.now(UTC) - timedelta(days=100))
    authority.coordinator((), timedelta(days=30), overwrite=False)
    for site in sites:
        authority.client(site, timedelta(days=30), overwrite=True)
    return folder


def flags(folder: Path, name: str, authority: Path | None = None) -> list[str]:
    """Return the flags with which a program uses a certificate of the folder."""
    return [
        f"--tls-ca={(authority or folder) / 'ca.pem'}",
        f"--tls-cert={folder / name}.pem",
        f"--tls-key={folder / name}-key.pem",
    ]


def trust(folder: Path, name: str = "", server_name: str = "") -> ClientTls:
    """Return the caller's TLS settings from the folder, with the certificate of `name` if given."""
    certificate = folder / f"{name}.pem" if name else None
    key = folder / f"{name}-key.pem" if name else None
    found = client_tls(str(folder / "ca.pem"), certificate, key, server_name)
    assert found is not None
    return found


def channel_credentials(authority: Path, folder: Path, name: str) -> grpc.ChannelCredentials:
    """Return credentials that check nothing beforehand: certificates may be expired."""
    return grpc.ssl_channel_credentials(
        (authority / "ca.pem").read_bytes(),
        (folder / f"{name}-key.pem").read_bytes(),
        (folder / f"{name}.pem").read_bytes(),
    )

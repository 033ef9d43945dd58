"""A small certificate authority in a folder, with its own certificate and those it signs.

Keys are on the curve P-256, in files that only their owner can read. Existing certificates are
replaced only with `overwrite`, and the CA never.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from ssfl.program.tls.pem import CLIENT, SERVER

NAME = "ssfl test CA"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
CA_LIFETIME = timedelta(days=3650)
BACKDATED = timedelta(days=1)  # valid since yesterday, because clocks differ


class CertsFolderError(Exception):
    """A file in the folder cannot be used, or would have to be replaced."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate in the folder."""

    file: Path
    use: str
    ends: datetime
    new: bool


class Authority:
    """A CA that can sign."""

    def __init__(
        self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey,
        now: datetime, *, new: bool,
    ) -> None:  # fmt: skip
        self._folder, self._certificate, self._key, self._now = folder, certificate, key, now
        ends = certificate.not_valid_after_utc
        self.own = Issued(folder / "ca.pem", "the CA, for all sites", ends, new)

    @classmethod
    def open(cls, folder: Path, now: datetime) -> "Authority":
        """Return the CA of a folder, and create it if needed; raise CertsFolderError if damaged."""
        file, key_file = folder / "ca.pem", folder / "ca-key.pem"
        existing = [path for path in (file, key_file) if path.exists()]
        if not existing:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _own_certificate(key, now)
            _write_key(key_file, key)
            _write(file, certificate.public_bytes(Encoding.PEM), 0o644)
            return cls(folder, certificate, key, now, new=True)
        if len(existing) == 1:
            missing = key_file if existing == [file] else file
            raise CertsFolderError(
                f"{missing} is missing next to {existing[0]}: restore it, or choose another --out"
            )
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            found = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        except (ValueError, TypeError):
            raise CertsFolderError(
                f"{file} and {key_file} are not a CA of ssfl certs: choose another --out"
            ) from None
        if not isinstance(found, ec.EllipticCurvePrivateKey) or (
            found.public_key() != certificate.public_key()
        ):
            raise CertsFolderError(f"{key_file} is not the key of {file}: choose another --out")
        if certificate.not_valid_after_utc <= now:
            raise CertsFolderError(f"the CA {file} has expired: make a new one in another --out")
        return cls(folder, certificate, found, now, new=False)

    def coordinator(self, hosts: Sequence[str], days: timedelta, *, overwrite: bool) -> Issued:
        """Make the coordinator's certificate for `hosts` and for those of the existing one."""
        file = self._folder / "coordinator.pem"
        known = _hosts_of(file) if file.exists() else []
        missing = [host for host in hosts if host not in known]
        if known and missing and not overwrite:
            raise CertsFolderError(
                f"{file} exists, but not for {', '.join(missing)}: --overwrite replaces it and "
                "adds these names"
            )
        names = list(dict.fromkeys([*LOCAL_HOSTS, *known, *hosts]))
        use = f"the coordinator at {', '.join(names)}"
        kept = self._existing("coordinator", use, overwrite)
        return kept or self._issue("coordinator", map(_general_name, names), SERVER, use, days)

    def client(self, name: str, days: timedelta, *, overwrite: bool) -> Issued:
        """Make the certificate of a site, or of `admin`."""
        use = "ssfl status, start, stop …" if name == "admin" else f"the site {name}"
        kept = self._existing(name, use, overwrite)
        return kept or self._issue(name, [x509.DNSName(name)], CLIENT, use, days)

    def _existing(self, name: str, use: str, overwrite: bool) -> Issued | None:
        file = self._folder / f"{name}.pem"
        if overwrite or not file.exists():
            return None
        try:
            existing = x509.load_pem_x509_certificate(file.read_bytes())
            existing.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise CertsFolderError(
                f"{file} exists, but was not signed by the CA of this folder: --overwrite "
                "replaces it"
            ) from error
        return Issued(file, use, existing.not_valid_after_utc, new=False)

    def _issue(
        self, name: str, names: Iterable[x509.GeneralName], purpose: x509.ObjectIdentifier,
        use: str, days: timedelta,
    ) -> Issued:  # fmt: skip
        key = ec.generate_private_key(ec.SECP256R1())
        ends = min(self._now + days, self._certificate.not_valid_after_utc)
        builder = (
            _builder(name, self._certificate.subject, key, self._now, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        file = self._folder / f"{name}.pem"
        _write_key(self._folder / f"{name}-key.pem", key)
        _write(file, certificate.public_bytes(Encoding.PEM), 0o644)
        return Issued(file, use, certificate.not_valid_after_utc, new=True)


def _own_certificate(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    builder = (
        _builder(NAME, name, key, now, now + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )
    return builder.sign(key, hashes.SHA256())


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _hosts_of(file: Path) -> list[str]:
    """Return the names and addresses in a certificate; none if the file is not a certificate."""
    try:
        existing = x509.load_pem_x509_certificate(file.read_bytes())
        names = existing.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in names]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(file, pem, 0o600)


def _write(file: Path, data: bytes, mode: int) -> None:
    """Write a file atomically; its mode is set before its content is written."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(descriptor)
    temporary.replace(file)

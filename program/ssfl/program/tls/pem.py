"""Reading and checking of PEM files and join tokens.

Functions raise ProgramError(USAGE) with the flag, the file and the remedy. Key, dates and extended
key usage of a certificate are checked here, because later they would fail at the peer with an
obscure error. Import this module only where TLS is used: cryptography takes 18 MB.
"""

import os
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ssfl.program.exits import usage_error

SYSTEM = "system"  # value of --tls-ca for the CAs that this machine trusts
WARN_BEFORE = timedelta(days=30)  # a certificate that expires within this time gets a warning
MAX_FILE_BYTES = 4 << 20  # a system's CA file has a quarter of a megabyte
MIN_TOKEN, MAX_TOKEN = 16, 512  # characters
TOKEN_FLAG = "--join-token-file"
TOKEN_HINT = "the operator of the coordinator has it, or makes one: openssl rand -hex 32"

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its chain and its key, both as PEM."""

    file: Path
    key_file: Path
    certificate: bytes
    key: bytes
    names: tuple[str, ...]  # the common name first, then the DNS names
    issuer: str
    ends: datetime

    @property
    def name(self) -> str:
        return self.names[0] if self.names else "an unnamed subject"

    def warning(self, now: datetime | None = None) -> str:
        """Return a warning if the certificate expires soon; else an empty string."""
        now = now or datetime.now(UTC)
        if self.ends - now > WARN_BEFORE:
            return ""
        days = (self.ends - now).days
        expires = f"expires in {days} days" if self.ends > now else "has expired"
        return f"the certificate {self.file} {expires} ({format_time(self.ends)}): renew it"

    def key_warning(self) -> str:
        """Return a warning if users other than the owner may read the key; else an empty string."""
        return secret_warning("private key", self.key_file)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS settings of a caller: the CAs it trusts and its own certificate."""

    authorities: bytes
    trusts: str  # the value of --tls-ca
    pair: KeyPair | None
    server_name: str  # name in the coordinator's certificate, if not its address


def client_tls(
    authorities: str, certificate: Path | None, key: Path | None, server_name: str = ""
) -> ClientTls | None:
    """Read the files of the --tls-* flags; return None without --tls-ca."""
    if not authorities:
        alone = {"--tls-cert": certificate, "--tls-key": key, "--tls-server-name": server_name}
        for flag, given in alone.items():
            if given:
                raise usage_error(
                    f"{flag} needs --tls-ca: the file with the CA of the coordinator's "
                    f"certificate, or {SYSTEM} for the CAs that this machine trusts"
                )
        return None
    is_system = authorities == SYSTEM
    file = Path(authorities).expanduser()
    found = system_roots() if is_system else read_authorities(file, "--tls-ca")
    pair = read_pair(certificate, key, CLIENT) if certificate or key else None
    return ClientTls(found, authorities, pair, server_name)


def read_pair(certificate: Path | None, key: Path | None, use: x509.ObjectIdentifier) -> KeyPair:
    """Read --tls-cert and --tls-key; check that they match and are valid now."""
    if certificate is None or key is None:
        given, missing = ("--tls-cert", "--tls-key") if certificate else ("--tls-key", "--tls-cert")
        raise usage_error(f"{given} needs {missing}: a certificate works only with its key")
    pem, key_pem = _read(certificate, "--tls-cert"), _read(key, "--tls-key")
    first = _certificates(pem, certificate, "--tls-cert")[0]
    if _public_key(key_pem, key) != first.public_key():
        raise usage_error(
            f"--tls-key: the key in {key} does not match the certificate in {certificate}: "
            "use the key that the certificate was made with"
        )
    _check_dates(first, certificate)
    _check_use(first, certificate, use)
    return KeyPair(
        certificate,
        key,
        pem,
        key_pem,
        names_of(first),
        _common_name(first.issuer) or "an issuer without a name",
        first.not_valid_after_utc,
    )


def read_authorities(file: Path, flag: str) -> bytes:
    """Return the contents of a CA file; at least one of its certificates must be a CA's."""
    pem = _read(file, flag)
    found = _certificates(pem, file, flag)
    authorities = [certificate for certificate in found if _is_authority(certificate)]
    if not authorities:
        subject, issuer = _shown(found[0].subject), _shown(found[0].issuer)
        raise usage_error(
            f"{flag}: {file} has no CA certificate: it is the certificate of {subject}, issued by "
            f"{issuer}; use the CA file of {issuer}"
        )
    if all(_is_expired(authority) for authority in authorities):
        raise usage_error(
            f"{flag}: the CA in {file} expired on "
            f"{format_time(authorities[0].not_valid_after_utc)}: "
            "make a new one, and new certificates with it"
        )
    return pem


def system_roots() -> bytes:
    """Return the CA certificates that this machine trusts."""
    file = ssl.get_default_verify_paths().cafile
    if file is None:
        raise usage_error(
            f"--tls-ca {SYSTEM}: this machine has no file of CA certificates: install "
            "ca-certificates, or set SSL_CERT_FILE"
        )
    return _read(Path(file), f"--tls-ca {SYSTEM}")


def read_token(file: Path) -> str:
    """Return the join token in a file, without surrounding white space."""
    token = _read(file, TOKEN_FLAG).decode("ascii", errors="replace").strip()
    if not (MIN_TOKEN <= len(token) <= MAX_TOKEN and token.isprintable() and token.isascii()):
        raise usage_error(
            f"{TOKEN_FLAG}: {file} must have one line of {MIN_TOKEN} to {MAX_TOKEN} ASCII "
            f"characters; {TOKEN_HINT}"
        )
    return token


def token_warning(file: Path) -> str:
    """Return a warning if users other than the owner may read the join token; else ""."""
    return secret_warning("join token", file)


def secret_warning(what: str, file: Path) -> str:
    """Return a warning if users other than the owner may read a secret; else an empty string.

    A file of root may be readable by its group: Kubernetes mounts secrets that way.
    """
    found = file.stat()
    mode = stat.S_IMODE(found.st_mode)
    of_root = found.st_uid == 0 and os.geteuid() != 0
    if not stat.S_ISREG(found.st_mode):  # a pipe, such as /dev/stdin
        return ""
    if not mode & (stat.S_IRWXO if of_root else stat.S_IRWXG | stat.S_IRWXO):
        return ""
    return (
        f"the {what} {file} is open to other users of this machine (mode {mode:04o}): run "
        f"`chmod {0o640 if of_root else 0o600:o} {file}`"
    )


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names in a certificate: the common name, then the DNS names."""
    common = _common_name(certificate.subject)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        others = found.value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        others = []
    return tuple(dict.fromkeys([*([common] if common else []), *others]))


def format_time(moment: datetime) -> str:
    """Return a time such as 2026-01-31 14:22 UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _read(file: Path, flag: str) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        hint = TOKEN_HINT if flag == TOKEN_FLAG else "`ssfl certs` makes test certificates"
        raise usage_error(f"{flag}: there is no file {file} ({hint})") from None
    except OSError as error:
        raise usage_error(f"{flag}: {file} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise usage_error(
            f"{flag}: {file} is larger than {MAX_FILE_BYTES >> 20} MiB: choose another file"
        )
    return data


def _certificates(pem: bytes, file: Path, flag: str) -> list[x509.Certificate]:
    wrong = (
        "is a key, not a certificate"
        if b"PRIVATE KEY-----" in pem and b"BEGIN CERTIFICATE" not in pem else
        "is not a certificate in PEM form, which begins with -----BEGIN CERTIFICATE-----"
    )  # fmt: skip
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise usage_error(f"{flag}: {file} {wrong}") from None


def _public_key(key_pem: bytes, file: Path) -> PublicKeyTypes:
    try:
        key = load_pem_private_key(key_pem, password=None)
    except TypeError:
        raise usage_error(
            f"--tls-key: {file} is encrypted with a passphrase, which cannot be entered here: "
            f"openssl pkey -in {file} -out NEW decrypts it"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        is_certificate = b"BEGIN CERTIFICATE" in key_pem
        wrong = "is a certificate, not a key" if is_certificate else "is not a key in PEM form"
        raise usage_error(f"--tls-key: {file} {wrong}") from None
    return key.public_key()


def _check_dates(certificate: x509.Certificate, file: Path) -> None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    what = f"--tls-cert: the certificate in {file}"
    if _is_expired(certificate):
        raise usage_error(f"{what} expired on {format_time(ends)}: renew it")
    if begins > datetime.now(UTC):
        before = f"before {format_time(begins)}: check this machine's clock"
        raise usage_error(f"{what} is not valid {before}")


def _check_use(certificate: x509.Certificate, file: Path, use: x509.ObjectIdentifier) -> None:
    try:
        found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except x509.ExtensionNotFound:
        return
    if use not in found.value and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in found.value:
        needed, other = ("server", "client") if use == SERVER else ("client", "server")
        raise usage_error(
            f"--tls-cert: the certificate of {_shown(certificate.subject)} in {file} is for a TLS "
            f"{other} only: choose one for a TLS {needed}"
        )


def _is_expired(certificate: x509.Certificate) -> bool:
    return certificate.not_valid_after_utc <= datetime.now(UTC)


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return certificate.issuer == certificate.subject  # old and self-signed
    return found.value.ca or certificate.issuer == certificate.subject


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _shown(name: x509.Name) -> str:
    return repr(_common_name(name) or name.rfc4514_string())

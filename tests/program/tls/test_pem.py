"""PEM files that are missing, broken, mismatched or expired: each message names the file."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from program.tls.pems import make, make_expired, trust
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.tls.pem import (
    CLIENT,
    MAX_FILE_BYTES,
    SERVER,
    client_tls,
    read_authorities,
    read_pair,
    read_token,
    system_roots,
)
from ssfl.tools.certs.authority import Authority


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("tls") / "certs", "ann")


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(ProgramError) as caught:
        read()
    assert caught.value.exit_code is ExitCode.USAGE
    return str(caught.value)


def test_a_valid_pair_is_read_with_names_and_expiry(certs: Path) -> None:
    pair = read_pair(certs / "ann.pem", certs / "ann-key.pem", CLIENT)
    assert pair.names == ("ann",)
    assert pair.issuer == "ssfl test CA"
    assert timedelta(days=363) < pair.ends - datetime.now(UTC) < timedelta(days=366)
    assert pair.warning() == ""
    names = read_pair(certs / "coordinator.pem", certs / "coordinator-key.pem", SERVER).names
    assert names == ("coordinator", "localhost")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
def test_a_key_that_others_can_read_is_reported_with_the_remedy(
    tmp_path: Path, mode: int, warned: bool
) -> None:
    folder = make(tmp_path / "certs", "ann")
    key = folder / "ann-key.pem"
    key.chmod(mode)
    warning = read_pair(folder / "ann.pem", key, CLIENT).key_warning()
    assert bool(warning) == warned
    if warned:
        assert str(key) in warning and f"{mode:04o}" in warning and f"chmod 600 {key}" in warning


def test_a_key_of_root_may_be_readable_by_its_group(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = read_pair(certs / "ann.pem", certs / "ann-key.pem", CLIENT)
    owner = SimpleNamespace(st_uid=0, st_mode=0o100640)
    monkeypatch.setattr(Path, "stat", lambda _path: owner)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert pair.key_warning() == ""
    owner.st_mode = 0o100644
    assert "chmod 640" in pair.key_warning()


def test_a_certificate_that_expires_soon_gets_a_warning(certs: Path) -> None:
    pair = read_pair(certs / "ann.pem", certs / "ann-key.pem", CLIENT)
    soon = pair.warning(pair.ends - timedelta(days=3, hours=1))
    assert "ann.pem expires in 3 days" in soon
    assert "renew it" in soon
    assert "has expired" in pair.warning(pair.ends + timedelta(days=1))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no file"),
        (b"", "is not a certificate in PEM form"),
        (b"\x00\x01\x02", "is not a certificate in PEM form"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "is not a certificate"),
        (b" " * (MAX_FILE_BYTES + 1), "is larger than 4 MiB"),
    ],
)
def test_a_file_that_is_not_a_certificate_is_named(
    certs: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "site.pem"
    if content is not None:
        file.write_bytes(content)
    text = refused(lambda: read_pair(file, certs / "ann-key.pem", CLIENT))
    assert text.startswith("--tls-cert: ")
    assert str(file) in text
    assert words in text
    text = refused(lambda: read_authorities(file, "--tls-ca"))
    assert text.startswith("--tls-ca: ")
    assert str(file) in text


def test_a_folder_or_a_key_in_place_of_a_certificate_is_named(certs: Path) -> None:
    text = refused(lambda: read_pair(certs, certs / "ann-key.pem", CLIENT))
    assert f"{certs} cannot be read: Is a directory" in text
    text = refused(lambda: read_pair(certs / "ann-key.pem", certs / "ann.pem", CLIENT))
    assert "ann-key.pem is a key, not a certificate" in text


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("admin-key.pem", "does not match the certificate in"),
        ("ann.pem", "ann.pem is a certificate, not a key"),
        ("none.pem", "there is no file"),
    ],
)
def test_a_key_that_does_not_match_is_named(certs: Path, key: str, words: str) -> None:
    text = refused(lambda: read_pair(certs / "ann.pem", certs / key, CLIENT))
    assert text.startswith("--tls-key: ")
    assert key in text
    assert words in text


def test_an_encrypted_key_is_refused_with_the_command_that_decrypts_it(
    certs: Path, tmp_path: Path
) -> None:
    key = generate_private_key(SECP256R1())
    locked = BestAvailableEncryption(b"secret")
    file = tmp_path / "locked.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    text = refused(lambda: read_pair(certs / "ann.pem", file, CLIENT))
    assert "encrypted with a passphrase" in text
    assert "openssl pkey" in text


def test_an_expired_certificate_is_refused_with_its_date(tmp_path: Path) -> None:
    old = make_expired(tmp_path / "old", "ann")
    text = refused(lambda: read_pair(old / "ann.pem", old / "ann-key.pem", CLIENT))
    when = datetime.now(UTC) - timedelta(days=70)
    assert f"ann.pem expired on {when:%Y-%m-%d}" in text


def test_a_certificate_that_is_not_yet_valid_mentions_the_clock(tmp_path: Path) -> None:
    later = Authority.open(tmp_path, datetime.now(UTC) + timedelta(days=9))
    later.client("ann", timedelta(days=9), overwrite=False)
    text = refused(lambda: read_pair(tmp_path / "ann.pem", tmp_path / "ann-key.pem", CLIENT))
    assert "is not valid before" in text
    assert "clock" in text


def test_a_certificate_for_another_key_usage_is_refused(certs: Path) -> None:
    text = refused(lambda: read_pair(certs / "ann.pem", certs / "ann-key.pem", SERVER))
    assert "is for a TLS client only" in text
    pair = certs / "coordinator.pem", certs / "coordinator-key.pem"
    assert "is for a TLS server only" in refused(lambda: read_pair(*pair, CLIENT))


def test_a_certificate_or_key_alone_is_refused(certs: Path) -> None:
    assert "--tls-cert needs --tls-key" in refused(lambda: read_pair(certs, None, CLIENT))
    assert "--tls-key needs --tls-cert" in refused(lambda: read_pair(None, certs, CLIENT))


def test_a_file_without_a_ca_names_its_subject_and_issuer(certs: Path) -> None:
    text = refused(lambda: read_authorities(certs / "ann.pem", "--tls-ca"))
    assert "has no CA certificate: it is the certificate of 'ann', issued by 'ssfl test CA'" in text
    assert read_authorities(certs / "ca.pem", "--tls-ca").startswith(b"-----BEGIN CERTIFICATE")


def test_an_expired_ca_is_named(tmp_path: Path) -> None:
    Authority.open(tmp_path, datetime.now(UTC) - timedelta(days=4000))
    assert "the CA in" in refused(lambda: read_authorities(tmp_path / "ca.pem", "--tls-ca"))


def test_tls_flags_without_a_ca_are_refused(certs: Path) -> None:
    assert client_tls("", None, None) is None
    assert "--tls-cert needs --tls-ca" in refused(lambda: client_tls("", certs, None))
    assert "--tls-server-name needs" in refused(lambda: client_tls("", None, None, "there"))
    found = trust(certs, "ann", "there")
    assert found.pair is not None
    assert (found.pair.name, found.server_name) == ("ann", "there")


def test_the_machines_ca_file_is_found_or_asked_for(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certs / "ca.pem"))
    assert system_roots() == (certs / "ca.pem").read_bytes()
    found = client_tls("system", None, None)
    assert found is not None
    assert found.authorities == system_roots()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    assert "install ca-certificates" in refused(system_roots)


def test_a_join_token_must_be_one_line_of_allowed_length(tmp_path: Path) -> None:
    file = tmp_path / "token"
    missing = refused(lambda: read_token(file))
    assert "there is no file" in missing and "the operator of the coordinator has it" in missing
    assert "ssfl certs" not in missing, "it does not make tokens"
    file.write_text("0123456789abcdef\n")
    assert read_token(file) == "0123456789abcdef"
    for wrong in ("", "short", "0123456789abcdef\nagain", "0123456789abcdeé", "x" * 600):
        file.write_text(wrong)
        text = refused(lambda: read_token(file))
        assert text.startswith(f"--join-token-file: {file} must have one line")
        assert "openssl rand -hex 32" in text
        assert wrong[:16] not in text or not wrong, "the message must not show the token"

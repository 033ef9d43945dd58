"""The coordinator's certificates follow the files; warnings at every start."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from program.tls.pems import make
from ssfl.method.errors import SettingsError
from ssfl.program.monitor.web import TlsFiles
from ssfl.server.config import CoordinatorConfig, warnings_of
from ssfl.server.rpc.tls import Certificates, read_security
from ssfl.tools.certs.authority import Authority

FILE = Path("x.pem")


def files_in(folder: Path) -> TlsFiles:
    config = CoordinatorConfig(
        tls_cert=folder / "coordinator.pem",
        tls_key=folder / "coordinator-key.pem",
        tls_ca=folder / "ca.pem",
    )
    files = config.tls_files
    assert files is not None
    return files


def test_without_certificates_there_are_no_files() -> None:
    assert CoordinatorConfig().tls_files is None
    assert not read_security(CoordinatorConfig()).mutual


def test_new_tls_files_are_loaded_and_bad_ones_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fetchers: list[Callable[[], object]] = []

    def remember(configuration: object, fetch: Callable[[], object], **_more: object) -> object:
        fetchers.append(fetch)
        return configuration

    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", remember)
    folder = make(tmp_path / "certs")
    certificates = Certificates(files_in(folder))
    certificates.server_credentials()
    certificates.server_credentials()
    clients, admin = fetchers
    assert clients() is None
    good = (folder / "coordinator.pem").read_bytes()
    (folder / "coordinator.pem").write_text("half a file")
    assert clients() is None
    assert "the old ones stay in use: --tls-cert: " in caplog.text
    (folder / "coordinator.pem").write_bytes(good)
    assert clients() is not None
    assert admin() is not None, "every port must load the new files"
    assert clients() is None
    assert caplog.text.count("certificates renewed") == 1


def test_an_expiring_certificate_is_logged_once_a_day_from_a_month_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority.open(tmp_path, datetime.now(UTC))
    authority.coordinator((), timedelta(days=40), overwrite=False)
    now = datetime.now(UTC)
    certificates = Certificates(files_in(tmp_path), lambda: now)
    assert caplog.text == ""
    for days in (9, 11, 11.5, 12.5):
        now = datetime.now(UTC) + timedelta(days=days)
        certificates._follow()
    assert caplog.text.count("coordinator.pem expires in") == 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CoordinatorConfig(host="0.0.0.0"), "--insecure if this is inside a VPN"),
        (CoordinatorConfig(host="fl.example.org"), "--tls-cert and --tls-key"),
        (CoordinatorConfig(host="::"), "from other machines"),
        (CoordinatorConfig(tls_cert=FILE), "belong together"),
        (CoordinatorConfig(tls_key=FILE), "belong together"),
        (CoordinatorConfig(tls_ca=FILE), "--tls-ca needs"),
        (CoordinatorConfig(admin_host="0.0.0.0", insecure=True), "anyone could stop the run"),
        (
            CoordinatorConfig(admin_host="0.0.0.0", tls_cert=FILE, tls_key=FILE),
            "anyone could stop the run",
        ),
    ],
)
def test_an_unprotected_address_beyond_loopback_is_refused(
    config: CoordinatorConfig, words: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        config.validate()
    assert words in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_loopback_needs_nothing_and_warns_of_nothing(host: str) -> None:
    config = CoordinatorConfig(host=host)
    config.validate()
    assert warnings_of(config) == []


def test_every_start_warns_of_what_is_open() -> None:
    (first, second) = warnings_of(CoordinatorConfig(host="0.0.0.0", insecure=True))
    assert first.startswith("--insecure: listening beyond this machine without TLS")
    assert second.startswith("anyone who reaches this port can join")
    (one,) = warnings_of(
        CoordinatorConfig(host="0.0.0.0", insecure=True, join_token_file=Path("token"))
    )
    assert one.endswith("and the join token")
    (one,) = warnings_of(CoordinatorConfig(host="0.0.0.0", tls_cert=FILE, tls_key=FILE))
    assert "can join" in one
    mutual = CoordinatorConfig(host="0.0.0.0", tls_cert=FILE, tls_key=FILE, tls_ca=FILE)
    mutual.validate()
    assert warnings_of(mutual) == []


def test_a_key_that_others_can_read_is_logged_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = files_in(make(tmp_path / "certs"))
    Certificates(files)
    assert caplog.text == ""
    files.key.chmod(0o644)
    Certificates(files)
    assert f"run `chmod 600 {files.key}`" in caplog.text


def test_a_join_token_that_others_can_read_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    for mode, warned in ((0o600, False), (0o640, True), (0o644, True)):
        caplog.clear()
        token.chmod(mode)
        config = CoordinatorConfig(host="localhost", join_token_file=token)
        assert read_security(config).token == "0123456789abcdef"
        assert (f"the join token {token} is open to other users" in caplog.text) == warned

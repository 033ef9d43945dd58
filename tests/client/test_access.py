"""Credential files of a client, read at its start."""

from pathlib import Path

import pytest

from program.tls.pems import make
from ssfl.client.config import ClientConfig, read_access


def test_a_key_that_others_can_read_is_logged_with_the_command_that_fixes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make(tmp_path / "certs", "ann")
    key = folder / "ann-key.pem"
    config = ClientConfig(
        data="ann", tls_ca=str(folder / "ca.pem"), tls_cert=folder / "ann.pem", tls_key=key
    )
    read_access(config)
    assert caplog.text == ""
    key.chmod(0o640)
    read_access(config)
    assert f"{key} is open to other users of this machine (mode 0640)" in caplog.text
    assert f"run `chmod 600 {key}`" in caplog.text


def test_a_join_token_that_others_can_read_is_logged_with_the_command_that_fixes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    config = ClientConfig(data="ann", join_token_file=token)
    assert read_access(config).token == "0123456789abcdef"
    assert caplog.text == ""
    token.chmod(0o644)
    read_access(config)
    assert f"the join token {token} is open to other users of this machine" in caplog.text
    assert f"(mode 0644): run `chmod 600 {token}`" in caplog.text

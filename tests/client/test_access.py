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

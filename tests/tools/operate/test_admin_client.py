import re
import socket
from collections.abc import Callable

import pytest

from ssfl.program.exits import ExitCode, ProgramError
from ssfl.tools.operate import admin_client
from ssfl.tools.operate.command import status, stop


@pytest.mark.parametrize("command", [status, stop])
def test_a_port_that_never_answers_is_named_while_waiting(
    command: Callable[[list[str]], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(admin_client, "CONNECT_S", 0.5)
    monkeypatch.setattr(admin_client, "NOTICE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ProgramError, match=f"no coordinator answers .* {address}") as caught:
            command([f"--admin={address}"])
    assert "did not answer within" not in str(caught.value), "connecting has a deadline of its own"
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    notice = rf"waiting for {address} to answer, until \d\d:\d\d:\d\d at the latest\n"
    assert re.fullmatch(notice, capsys.readouterr().err)

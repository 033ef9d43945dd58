import os
import signal
import subprocess
import sys
import time
from typing import NoReturn

import pytest

from ssfl.program.exits import (
    ExitCode,
    ProgramError,
    Terminated,
    deferred_signals,
    run_program,
)


def _raising(error: BaseException) -> int:
    def body() -> NoReturn:
        raise error

    return run_program(body, "ssfl-client")


def test_the_documented_codes_never_change() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "BUG": 1,
        "USAGE": 2,
        "BAD_DATA": 3,
        "UNREACHABLE": 4,
        "REFUSED": 5,
        "STATE": 6,
        "PORT_IN_USE": 7,
        "STOPPED": 8,
        "STALLED": 9,
        "NOT_YET": 10,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }


def test_every_code_has_a_line_for_help() -> None:
    assert all(code.meaning for code in ExitCode)


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (8, 8), (ExitCode.STATE, 6)])
def test_the_result_of_the_body_is_the_exit_code(returned: int | None, code: int) -> None:
    assert run_program(lambda: returned) == code


def test_an_expected_error_is_one_line_without_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _raising(ProgramError("no shard named shard_07", ExitCode.BAD_DATA)) == 3
    assert capsys.readouterr().err == "ssfl-client: error: no shard named shard_07\n"


def test_text_quoted_in_an_error_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        raise ProgramError(
            "no column \x1b[31m\x1b]0;title\x07 ärger\n  in row\t1", ExitCode.BAD_DATA
        )

    assert run_program(body, "ssfl shards") == ExitCode.BAD_DATA
    printed = capsys.readouterr().err
    assert "\x1b" not in printed and "\x07" not in printed
    assert printed.splitlines()[0].endswith(" ärger") and printed.splitlines()[1] == "  in row    1"


def test_deferred_signals_leave_the_mask_as_it_was() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with deferred_signals(), deferred_signals():
            held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert {signal.SIGINT, signal.SIGTERM} <= held
        after = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert signal.SIGTERM in after and signal.SIGINT not in after
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def test_a_bug_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert _raising(ZeroDivisionError("oh")) == 1
    assert "Traceback" in (shown := capsys.readouterr().err)
    assert shown.endswith("ZeroDivisionError: oh\n")


def test_a_traceback_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    assert _raising(RuntimeError("oh\x1b[2J\u202e")) == 1
    assert capsys.readouterr().err.endswith("RuntimeError: oh\\x1b[2J\\u202e\n")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "ssfl-client: interrupted\n"),
        (Terminated(), 143, "ssfl-client: terminated\n"),
    ],
)
def test_signals_end_quietly(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _raising(error) == code
    assert capsys.readouterr().err == line


def test_system_exit_of_help_is_not_caught() -> None:
    with pytest.raises(SystemExit) as exit_info:
        _raising(SystemExit(0))
    assert exit_info.value.code == 0


def test_sigterm_runs_finally_blocks_and_exits_143() -> None:
    script = """
import sys, time
from ssfl.program.exits import raise_on_sigterm, run_program
def body():
    raise_on_sigterm()
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
sys.exit(run_program(body, "ssfl-client"))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (143, "cleaned up\n", "ssfl-client: terminated\n")
    assert time.monotonic() - started < 30


def run(body: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    code = f"import sys; from ssfl.program.exits import run_program as r\n{body}"
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {environ.pop("to", "")}', sys.executable, code],
        env={**os.environ, **environ}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("length", [1, 10**6])
def test_an_output_that_cannot_be_written_is_reported(length: int) -> None:
    ended = run(f"sys.exit(r(lambda: print('x' * {length}), 'ssfl status'))", to="> /dev/full")
    message = b"ssfl status: error: the output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, message)


def test_characters_that_the_encoding_lacks_are_replaced() -> None:
    ended = run("sys.exit(r(lambda: print('a \\u2192 b')))", PYTHONIOENCODING="latin-1")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"a ? b\n", b"")


def test_a_reader_that_closes_the_pipe_is_not_an_error() -> None:
    body = "print('x' * 10**6)"
    code = (
        f"import sys; from ssfl.program.exits import run_program as r; sys.exit(r(lambda: {body}))"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout and program.stderr
    program.stdout.read(1)
    program.stdout.close()
    with program.stderr as stderr:
        assert stderr.read() == b""
    assert program.wait(timeout=60) == 0

"""`ssfl check` as a command: its output, JSON and exit codes."""

import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from ssfl.datasets.shards.shard_file import write_shard
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.program.exits import ExitCode
from ssfl.tools import main as tools
from ssfl.tools.check import probe, steps
from ssfl.tools.check.steps import (
    CheckResult,
    CheckStep,
    CheckVerdict,
    Owner,
    Remedy,
    StepFailed,
    Steps,
)
from ssfl.tools.check.view import step_text, verdict_text
from tools.check.check_fixtures import report_of, small, with_coordinator

NOWHERE = "127.0.0.1:9"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with a shard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "NOISE_BYTES", 1 << 16)
    Path("shards").mkdir()
    write_shard(Path("shards/shard_00.npz"), small())
    return tmp_path


def test_the_verdict_is_printed_before_steps_tensors_and_forecast(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def body(address: str) -> None:
        assert tools.main(["check", "--data", "shard_00", "--coordinator", address]) == 0

    with_coordinator(here / "run", body)
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:3] == ["check passed: no step failed", "", "network"]
    parts = [line for line in lines if line in ("network", "coordinator", "site")]
    assert parts == ["network", "coordinator", "site"]
    assert re.search(r"^  ok       bandwidth    .* up, .* down, round trip", shown, re.MULTILINE)
    assert re.search(r"conv2.weight +32x16x3x3 +masked +4,608", shown)
    for row in ("50 %, this run", "90 %", "95 %"):
        assert re.search(rf"^{row} +\S+ [kM]?B .*ms", shown, re.MULTILINE), row
    assert "A round takes download + work (15 steps of" in " ".join(shown.split())


def test_json_is_one_object_with_every_tensor(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    def body(address: str) -> None:
        flags = ["--data", "shard_00", "--coordinator", address, "--json"]
        assert tools.main(["check", *flags]) == ExitCode.DONE

    with_coordinator(here / "run", body)
    document = json.loads(capsys.readouterr().out)
    assert (document["passed"], document["exit_code"]) == (True, 0)
    assert {step["verdict"] for step in document["steps"]} <= {"ok", "warning", "skipped"}
    assert sum(row["values"] for row in document["tensors"]) == 22_602
    assert document["totals"]["masked"] == {"tensors": 4, "values": 22_416}
    assert [row["sparsity"] for row in document["rounds"]] == ["0.5", "0.9", "0.95"]
    own = document["rounds"][0]
    assert own["is_run"] is True
    whole = own["download"]["high"] + own["work_s"] + own["upload"]["high"]
    assert own["round"]["high"] == pytest.approx(whole)
    assert document["link"]["rtt_s"] > 0


def test_output_of_a_task_goes_to_stderr_with_json(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task = here / "loud_task.py"
    task.write_text(
        "from ssfl.learning.image_task import build_model, load_shard, loss\nprint('I am loud')\n"
        "import os\nos.write(1, b'very loud\\n')\nos.system('echo from a shell')\n"
    )
    tools.main(["check", "--data", "shard_00", "--task", str(task), "--json"])
    output = capfd.readouterr()
    assert json.loads(output.out)["passed"] is True
    assert all(text in output.err for text in ("I am loud", "very loud", "from a shell"))


@pytest.mark.usefixtures("here")
def test_no_forecast_is_printed_if_the_runs_settings_are_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--data", "shard_00", "--coordinator", NOWHERE]
    assert tools.main(["check", *flags]) == ExitCode.UNREACHABLE
    shown = capsys.readouterr().out
    assert re.search(r"^  skipped  round +because tcp failed$", shown, re.MULTILINE)
    assert not re.search(r"sparsity|tensor|conv1|kB needed", shown)
    assert tools.main(["check", *flags, "--json"]) == ExitCode.UNREACHABLE
    document = json.loads(capsys.readouterr().out)
    assert (document["rounds"], document["tensors"], document["manifest_digest"]) == ([], [], None)


def test_the_exit_code_is_that_of_the_first_failure(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "shards/shard_00.npz").write_bytes(b"no archive")
    flags = ["--data", "shard_00", "--coordinator", NOWHERE]
    assert tools.main(["check", *flags]) == ExitCode.UNREACHABLE
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("check FAILED: tcp, shard; to be fixed by the coordinator's operator")
    assert tools.main(["check", "--data", "shard_00"]) == ExitCode.BAD_DATA


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "nothing to check: give --coordinator"),
        (["--coordinator", "nowhere"], "--coordinator must be host:port"),
        (["--data", "a", "--client-id", "no/name"], "--client-id must be"),
        (["--data", "a", "--rounds", "3"], "is a setting of the run"),
    ],
)
def test_invalid_flags_are_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert tools.main(["check", *flags]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_the_variables_of_ssfl_client_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSFL_COORDINATOR", NOWHERE)
    assert tools.main(["check"]) == ExitCode.UNREACHABLE
    assert f"{NOWHERE}: nothing listens there" in capsys.readouterr().out


def test_long_lines_are_wrapped_below_their_text() -> None:
    remedy = Remedy(Owner.NETWORK, "allow outgoing TCP to fl.example.org:50051 (firewall or VPN)")
    step = CheckStep("network", "tcp", CheckVerdict.FAILED, "no answer within 5 s " * 4, remedy)
    lines = step_text(step, 60).plain.splitlines()
    assert lines[0].startswith("  FAILED   tcp          no answer")
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith(" " * 24) for line in lines[1:])
    assert "→ network administrators:" in " ".join(" ".join(lines).split())


def test_control_characters_from_a_peer_are_escaped() -> None:
    step = CheckStep("coordinator", "admission", CheckVerdict.FAILED, "no\x1b[2Jway")
    assert "\x1b" not in step_text(step, 80).plain


def test_a_long_model_is_shortened_with_totals_by_role(capsys: pytest.CaptureFixture[str]) -> None:
    from ssfl.tools.check.view import role_table, tensor_table
    from ssfl.tools.terminal import console

    tensors = [
        TensorSpec(f"layer{n}.weight", (3, 5), Role.MASKED, Init("zeros")) for n in range(40)
    ]
    tensors.append(TensorSpec("norm.mean", (), Role.BUFFER, Init("zeros")))
    manifest = Manifest(tuple(tensors))
    console().print(tensor_table(manifest))
    console().print(role_table(manifest))
    shown = capsys.readouterr().out
    assert "… 23 more (--json has all)" in shown
    assert "layer39.weight" in shown
    assert re.search(r"norm.mean +scalar +buffer +1\n", shown)
    assert re.search(r"40 +masked +600 +99.8 %", shown)
    assert "layer20" not in shown


def test_logged_warnings_become_part_of_the_step() -> None:
    steps = Steps()

    def body() -> CheckResult:
        logging.getLogger("ssfl.client").warning("a number adds up")
        return CheckResult("done")

    assert steps.run("score", body)
    (step,) = steps.all
    assert (step.verdict, step.text) == (CheckVerdict.WARNING, "done")
    assert step.remedy and step.remedy.action == "a number adds up"
    assert "1 warning" in verdict_text(steps).plain


def test_logged_warnings_are_added_to_the_remedy_of_a_step() -> None:
    def body() -> CheckResult:
        logging.getLogger("ssfl.anything").warning("the file is old")
        return CheckResult("done", Remedy(Owner.NETWORK, "open the port"))

    steps = Steps()
    steps.run("step", body)
    (step,) = steps.all
    assert step.remedy == Remedy(Owner.NETWORK, "open the port; the file is old")


def test_an_unexpected_error_is_a_failed_step_with_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = Steps()

    def broken() -> CheckResult:
        raise ZeroDivisionError("no link")

    assert not steps.run("one", broken)
    assert steps.run("two", lambda: CheckResult("")), "the other steps run"
    assert steps.all[0].verdict is CheckVerdict.FAILED
    assert steps.all[0].text == "unexpected: ZeroDivisionError: no link"
    assert steps.exit_code is ExitCode.BUG
    assert "in broken" in capsys.readouterr().err


@pytest.mark.parametrize("raised", ["SystemExit(3)", "type('Odd', (BaseException,), {})('x')"])
def test_a_task_that_would_end_the_program_is_a_failed_step(here: Path, raised: str) -> None:
    task = here / "ends_task.py"
    task.write_text(
        "from ssfl.learning.image_task import load_shard, loss\n"
        f"def build_model(settings, shard):\n    raise {raised}\n"
    )
    found = report_of(data="shard_00", task=str(task)).steps
    named = {step.name: step for step in found.all}
    assert named["model"].verdict is CheckVerdict.FAILED
    assert named["model"].remedy and named["model"].remedy.owner is Owner.AUTHOR
    assert named["state disk"].verdict is CheckVerdict.OK, "the other steps run"
    assert found.exit_code is ExitCode.BAD_DATA


def test_a_slow_step_is_reported_and_ctrl_c_interrupts_the_check(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SLOW_AFTER_S", 0.01)
    monkeypatch.setattr(steps, "REPEAT_S", 0.01)
    task = here / "long_task.py"
    task.write_text(
        "from ssfl.learning.image_task import load_shard, loss\n"
        "import io, sys, time\n"
        "def build_model(settings, shard):\n"
        "    while sys.stderr.getvalue().count('still running: model') < 2:\n"
        "        time.sleep(0.001)\n"
        "    raise KeyboardInterrupt\n"
    )
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    flags = ["check", "--data", "shard_00", "--task", str(task)]
    assert tools.main([*flags, "--json"]) == ExitCode.INTERRUPTED
    document = json.loads(capsys.readouterr().out)
    assert (document["passed"], document["exit_code"]) == (False, 130)
    last = document["steps"][-1]
    assert (last["name"], last["text"]) == ("model", "interrupted after 0 s")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert tools.main(flags) == ExitCode.INTERRUPTED
    assert capsys.readouterr().out.splitlines()[0] == "check interrupted at model"


def test_a_skipped_step_names_the_first_failure() -> None:
    steps = Steps()

    def fail() -> CheckResult:
        raise StepFailed("no", Remedy(Owner.YOU, "x"), ExitCode.REFUSED)

    steps.run("one", fail)
    steps.run("two", lambda: CheckResult(""), ["one"])
    steps.run("three", lambda: CheckResult(""), ["two"])
    assert [step.text for step in steps.all] == ["no", "because one failed", "because one failed"]
    assert steps.exit_code is ExitCode.REFUSED

"""Mistakes at the coordinator end it with the documented exit code and a helpful message."""

import re
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
from grpc import StatusCode

from ssfl.program.exits import ExitCode
from ssfl.server.main import main
from system.programs import Programs, until
from system.raw_client import KEPT, MASKED, RUN, RawClient, sha256, take_part_together
from system.raw_run import RawRun, refused

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sparsity=0"], "--sparsity: sparsity must lie strictly between 0 and 1, got 0"),
        (["--sparsity=1"], "strictly between 0 and 1"),
        (["--sparsity=90"], "write 0.9 for 90 %"),
        (["--sparsity=-0.1"], "strictly between 0 and 1"),
        (["--sparsity=nan"], "'nan'"),
        (["--sparsity=lots"], "'lots'"),
        (["--bytes-per-round=2 parsecs"], "--bytes-per-round: a size is a number and B, kB"),
        (["--rounds=0"], "--rounds must be at least 1"),
        (["--rounds=many"], "--rounds must be a whole number, got 'many'"),
        (["--model=transformer"], "--model must be one of mlp, cnn"),
        (["--clients=1"], "--clients 1 is below --min-clients 2"),
        (["--reproducible"], "--reproducible needs --clients"),
        (["--port=70000"], "--port must be between 0 and 65535"),
        (["--sparsty=0.9"], "unknown flag --sparsty; did you mean --sparsity?"),
        (["--data=shard_00"], "--data is a setting of ssfl-client"),
        (["extra"], "unexpected argument 'extra'"),
    ],
)
def test_a_wrong_setting_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert main(flags) == ExitCode.USAGE
    stderr = capsys.readouterr().err
    assert stderr.startswith("ssfl-coordinator: error: ")
    assert words in stderr
    assert stderr.count("\n") == 1
    assert list(here.iterdir()) == [], "a wrong flag must leave no trace"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = ", "is not valid TOML"),
        ("rounds = 0", "rounds in run.toml must be at least 1"),
        (
            "roundz = 3",
            "roundz in run.toml is not a setting of ssfl-coordinator; did you mean rounds?",
        ),
        ("[run]\nrounds = 3", "run in run.toml"),
    ],
)
def test_a_bad_settings_file_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (here / "run.toml").write_text(text)
    assert main(["--config=run.toml"]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_the_installed_script_ends_with_the_same_code_and_no_traceback(programs: Programs) -> None:
    done = programs.run("ssfl-coordinator", "--sparsity=1.5")
    assert done.ends() == ExitCode.USAGE
    assert "strictly between 0 and 1" in done.err


def test_a_port_in_use_is_reported_with_the_remedy(programs: Programs) -> None:
    first = programs.coordinator()
    for flags in ([f"--port={first.port}"], [f"--admin-port={first.port}"]):
        second = programs.run(
            "ssfl-coordinator", "--port=0", "--admin-port=0", "--state-dir=other", *flags
        )
        assert second.ends() == ExitCode.PORT_IN_USE
        assert f"127.0.0.1:{first.port}" in second.err
        assert "choose another port with" in second.err
    assert first.running


@pytest.mark.parametrize("port", ["--port", "--admin-port", "--metrics-port", "--status-port"])
def test_a_start_without_its_port_creates_no_run_and_moves_none(
    programs: Programs, port: str
) -> None:
    old = programs.folder / ".ssfl/coordinator/journal"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flag = f"{port}={taken.getsockname()[1]}"
        first = programs.try_coordinator(flag)
        assert first.ends() == ExitCode.PORT_IN_USE
        assert f"choose another port with {port}, or" in first.err
        assert not old.exists()
        old.write_bytes(b"of an earlier run")
        assert programs.try_coordinator(flag, "--fresh").ends() == ExitCode.PORT_IN_USE
    assert old.read_bytes() == b"of an earlier run"


def test_a_state_directory_serves_one_coordinator(programs: Programs) -> None:
    first = programs.coordinator()
    second = programs.try_coordinator()
    assert second.ends() == ExitCode.STATE
    assert f"is in use by process {first.process.pid}" in second.err
    assert first.running


def test_a_state_directory_that_is_a_file_is_refused(programs: Programs) -> None:
    (programs.folder / "file").write_text("not a folder")
    done = programs.run("ssfl-coordinator", "--port=0", "--admin-port=0", "--state-dir=file")
    assert done.ends() == ExitCode.STATE
    assert "file" in done.err


def test_changed_settings_are_named_and_fresh_moves_the_old_state_aside(
    programs: Programs,
) -> None:
    first = programs.coordinator("--rounds=3", "--seed=1")
    (opened,) = first.facts("RunOpened")
    first.kill()

    other = programs.try_coordinator("--rounds=4", "--seed=1", "--round-deadline-s=5")
    assert other.ends() == ExitCode.STATE
    assert "--rounds was 3, is 4" in other.err
    assert "--seed" not in other.err
    assert "deadline" not in other.err, "deadlines may change between two starts"
    assert "--fresh" in other.err

    fresh = programs.coordinator("--rounds=4", "--seed=1", "--fresh")
    (begun,) = fresh.facts("RunOpened")
    assert begun["run_id"] != opened["run_id"]
    (aside,) = programs.folder.glob(".ssfl/coordinator.*")
    assert (aside / "journal").exists()
    assert str(aside.relative_to(programs.folder)) in fresh.err
    fresh.kill()

    resumed = programs.run(
        "ssfl-coordinator", "--rounds=5", "--state-dir", str(aside), "--port=0", "--admin-port=0"
    )
    assert opened["run_id"] in resumed.err, "the old run is whole in its new place"


def test_a_damaged_journal_is_refused_and_left_alone(programs: Programs) -> None:
    first = programs.coordinator()
    first.kill()
    journal = first.state_dir / "journal"
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    data += bytes(data[8:])  # more records follow, so it is not a torn tail
    journal.write_bytes(data)
    again = programs.try_coordinator()
    assert again.ends() == ExitCode.STATE
    assert re.search(r"journal is damaged at byte \d+", again.err)
    assert journal.read_bytes() == data


def test_a_torn_tail_is_cut_and_logged(programs: Programs) -> None:
    first = programs.coordinator()
    first.kill()
    with (first.state_dir / "journal").open("ab") as file:
        file.write(b"\x40\x00\x00")
    again = programs.coordinator()
    assert "torn tail was cut" in again.err
    assert len(again.facts()) == 1


def test_a_byte_budget_below_the_dense_values_is_refused_and_logged(
    programs: Programs,
) -> None:
    raw = RawRun(programs, programs.coordinator("--clients=2", "--bytes-per-round=120"))
    raw.ann.join()
    raw.bob.join()
    min_bytes = 4 * (30 + 1)
    with refused(StatusCode.FAILED_PRECONDITION, "model_unusable", "120", f"at least {min_bytes}"):
        raw.ann.upload(raw.ann.initial_header(), [])
    assert f"at least {min_bytes}" in raw.coordinator.says("call refused")
    raw.close()


def test_a_mask_that_empties_a_layer_is_allowed_with_a_warning(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN))
    only_first = np.r_[np.ones(600), np.zeros(MASKED - 600)].astype(np.float32)
    for client in (raw.ann, raw.bob):
        client.scores = lambda: only_first
        client.join()
    raw.finish_honestly()
    line = raw.coordinator.says("the mask empties a tensor")
    assert "WARNING" in line
    assert "tensor=second.weight" in line
    assert raw.coordinator.err.count("empties a tensor") == 1
    raw.close()


def test_a_finished_coordinator_serves_its_model_to_a_late_site(programs: Programs) -> None:
    """Also after a restart; the same command does not start a new run."""
    raw = RawRun(programs, programs.coordinator(*RUN))
    raw.ann.join()
    raw.bob.join()
    raw.finish_honestly()
    until(lambda: raw.coordinator.status().delivered, "the history is written")
    history = raw.coordinator.history()
    raw.restart()
    raw.coordinator.says("this run is finished")
    late = raw.client("late")
    late.join()
    (model,) = take_part_together(late)
    assert raw.coordinator.status().model_digest == sha256(model.tobytes())
    assert model.size == KEPT + 30
    again = raw.coordinator.history()
    for document in (history, again):  # the mask that each client fetches again is counted later
        document["ledger"] = {(row["phase"], row["direction"]) for row in document["ledger"]}
        document["clients"].pop("late", None)  # present once it has the model
        document["not_voted"] = [client for client in document["not_voted"] if client != "late"]
    assert again == history
    raw.close()


def test_ctrl_c_ends_the_coordinator_with_its_code_and_keeps_the_run(programs: Programs) -> None:
    coordinator = programs.coordinator(*RUN)
    client = RawClient(coordinator.address, "ann")
    client.join()
    coordinator.signal(signal.SIGINT)
    assert coordinator.ends() == ExitCode.INTERRUPTED
    assert "without --fresh, to resume" in coordinator.err
    again = programs.coordinator(*RUN, port=coordinator.port)
    again.says("resumed")
    assert again.status().phase == "gathering"  # it serves, so signal handlers are installed
    again.signal(signal.SIGTERM)
    assert again.ends() == ExitCode.TERMINATED
    client.close()


def test_the_outputs_have_a_folder_per_run(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN))
    raw.ann.join()
    raw.bob.join()
    raw.finish_honestly()
    until(lambda: raw.coordinator.status().delivered, "everything is written")
    run_id = raw.ann.caller.run_id
    folder = Path(raw.coordinator.status().out_dir)
    assert folder == programs.folder / "runs" / run_id / "coordinator"
    assert {"history.json", "model.safetensors"} <= {file.name for file in folder.iterdir()}
    raw.close()


def test_a_damaged_upload_that_was_accepted_is_never_summed(raw: RawRun) -> None:
    raw.ann.answer(raw.training())
    raw.coordinator.kill()
    (file,) = (raw.coordinator.state_dir / "spool").glob("*/ann.*.bin")
    data = bytearray(file.read_bytes())
    data[8] ^= 1
    file.write_bytes(data)
    again = raw.programs.try_coordinator(*RUN)
    assert again.ends() == ExitCode.STATE
    assert f"{file.name} is damaged: it is not what was accepted" in again.err
    audit = raw.programs.run("ssfl", "audit", str(raw.coordinator.state_dir))
    assert audit.ends() == ExitCode.BAD_DATA and "is damaged" in audit.out


@pytest.mark.parametrize("num_bytes", [8, 100, 1500])
def test_a_journal_shorter_than_its_run_is_refused(raw: RawRun, num_bytes: int) -> None:
    raw.ann.answer(raw.training())
    raw.bob.answer(raw.bob.next_task())
    until(lambda: raw.coordinator.status().rounds_done == 1, "a round is committed")
    raw.coordinator.kill()
    journal = raw.coordinator.state_dir / "journal"
    journal.write_bytes(journal.read_bytes()[:num_bytes])
    again = raw.programs.try_coordinator(*RUN)
    assert again.ends() == ExitCode.STATE
    assert "has lost its" in again.err and "restore it from a backup" in again.err.lower()
    assert list(raw.coordinator.state_dir.glob("values-*.f32"))


def test_fresh_moves_only_state_files(programs: Programs) -> None:
    home = programs.folder / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("mine")
    coordinator = programs.coordinator("--state-dir=home", "--fresh")
    coordinator.kill()
    assert (home / "thesis.txt").read_text() == "mine"
    again = programs.coordinator("--state-dir=home", "--fresh")
    assert (home / "thesis.txt").read_text() == "mine"
    again.says("moved the earlier run aside")

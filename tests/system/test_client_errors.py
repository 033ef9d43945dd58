"""Mistakes at a client end it with the documented exit code and a helpful message.

Where a second member is needed, it is a raw client: a real one takes seconds to start.
"""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ssfl.client.main import main
from ssfl.program.exits import ExitCode
from system.federation import HELD_TASK, Hold
from system.programs import Coordinator, Program, Programs, until
from system.raw_client import RawClient

pytestmark = pytest.mark.system

MLP = ("--model=mlp", "--clients=2")
TASK = f"--task={HELD_TASK}"

OTHER_MODEL = """
from torch import nn
from ssfl.learning.image_task import load_shard, loss, metrics

def build_model(settings, shard):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@contextmanager
def member(coordinator: Coordinator, client_id: str) -> Iterator[RawClient]:
    """A raw client that has joined."""
    client = RawClient(coordinator.address, client_id)
    client.join()
    try:
        yield client
    finally:
        client.close()


def ended(program: Program) -> str:
    """Wait for the program to end and return its last line, the message for its user."""
    program.ends()
    return program.err.splitlines()[-1]


# -- before torch is loaded


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--data is missing"),
        (["--data=shard_00", "--coordinator=nowhere"], "--coordinator must be host:port"),
        (["--data=shard_00", "--rounds=3"], "--rounds is a setting of the run"),
        (["--data=shard_00", "--sparsity", "0.9"], "set it on the coordinator"),
        (["--data=shard_00", "--port=1"], "--port is a setting of ssfl-coordinator"),
        (["--data=shard_00", "--device=tpu"], "--device must be one of auto, cpu"),
        (["--data=shard_00", "--shard=1"], "unknown flag --shard"),
        (["--data=shard_00", "--client-id=../x"], "--client-id must be 1 to 64"),
        (["--data=shard_00", "--config=none.toml"], "none.toml cannot be read"),
    ],
)
def test_a_wrong_setting_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert main(flags) == ExitCode.USAGE
    stderr = capsys.readouterr().err
    assert stderr.startswith("ssfl-client: error: ")
    assert words in stderr
    assert list(here.iterdir()) == [], "a wrong flag must leave no trace"


def test_a_shard_whose_name_cannot_be_an_id_needs_one(programs: Programs) -> None:
    done = programs.run("ssfl-client", "--data=my shard")
    assert done.ends() == ExitCode.USAGE
    assert "'my shard' cannot be a client id" in done.err
    assert "--client-id" in done.err


def test_a_run_setting_in_a_clients_file_is_refused(programs: Programs) -> None:
    (programs.folder / "site.toml").write_text('data = "shard_00"\nsparsity = 0.9\n')
    done = programs.run("ssfl-client", "--config=site.toml")
    assert done.ends() == ExitCode.USAGE
    assert "sparsity in site.toml is a setting of the run" in done.err
    assert "coordinator" in done.err


def test_a_state_directory_serves_one_client(sites: Programs) -> None:
    first = sites.client("shard_00", "localhost:1", "--give-up-after=600")
    until((sites.folder / ".ssfl/clients/shard_00/lock").exists, "the first client has started")
    second = sites.client("shard_00", "localhost:1")
    assert second.ends() == ExitCode.STATE
    assert f"is in use by process {first.process.pid}" in second.err


# -- data


def test_a_missing_shard_is_reported_with_those_that_exist(sites: Programs) -> None:
    client = sites.client("shard_07", "localhost:1")
    line = ended(client)
    assert client.ends() == ExitCode.BAD_DATA
    assert "there is no shard shard_07 under shards" in line
    assert "shard_00, shard_01, shard_02" in line


def test_a_shard_without_samples_is_refused_before_joining(programs: Programs) -> None:
    (programs.folder / "shards").mkdir()
    x, y = np.zeros((0, 1, 8, 8), np.float32), np.zeros(0, np.int64)
    np.savez(
        programs.folder / "shards" / "empty.npz",
        train_x=x, train_y=y, test_x=x, test_y=y, num_classes=np.int64(10),
    )  # fmt: skip
    client = programs.client("empty", "localhost:1")
    line = ended(client)
    assert client.ends() == ExitCode.BAD_DATA
    assert "empty.npz: there are no training samples" in line


# -- the coordinator


def test_an_unreachable_coordinator_is_retried_until_give_up_after(
    sites: Programs,
) -> None:
    with socket.socket() as reserved:  # bound but not listening: no other process can answer
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        client = sites.client("shard_00", f"localhost:{port}", "--give-up-after=2")
        line = ended(client)
    assert client.ends() == ExitCode.UNREACHABLE
    assert f"no coordinator at localhost:{port} for 2 s (--give-up-after)" in line
    tries = client.err.count("cannot reach the coordinator, retrying")
    assert tries >= 2
    assert "giving_up_in_s=2" in client.err


def test_a_service_that_is_not_a_coordinator_is_reported(sites: Programs) -> None:
    """The admin port speaks gRPC but has no Join."""
    coordinator = sites.coordinator(*MLP)
    client = sites.client("shard_00", f"localhost:{coordinator.admin_port}")
    line = ended(client)
    assert client.ends() == ExitCode.REFUSED
    assert "not an ssfl coordinator" in line


def test_a_live_clients_name_is_not_given_away(sites: Programs) -> None:
    coordinator = sites.coordinator(*MLP)
    with member(coordinator, "shard_00"):
        client = sites.client("shard_00", coordinator, "--state-dir=elsewhere")
        line = ended(client)
    assert client.ends() == ExitCode.REFUSED
    assert "the coordinator refused: the name shard_00 belongs to the client that joined" in line
    assert "--client-id" in line and "ssfl remove shard_00 --readmit" in line
    assert "the name shard_00 belongs to" in coordinator.says("call refused")


def test_another_model_is_refused_by_its_first_differing_tensor(sites: Programs) -> None:
    coordinator = sites.coordinator(*MLP)
    with member(coordinator, "first") as first:
        first.answer(first.next_task())  # describes its own small model
        (sites.folder / "task.py").write_text(OTHER_MODEL)
        client = sites.client("shard_00", coordinator, "--task=task.py")
        line = ended(client)
    assert client.ends() == ExitCode.REFUSED
    difference = "shard_00 built another model: tensor 0: 1.weight (10x64, masked"
    assert difference in line
    assert "instead of first.weight (20x30, masked" in line
    assert difference in coordinator.says("call refused: shard_00")
    coordinator.waits_for("shard_00", "left")


def test_a_byte_budget_below_the_dense_values_ends_the_client_that_describes_the_model(
    sites: Programs,
) -> None:
    coordinator = sites.coordinator(*MLP, "--bytes-per-round=1kB")
    client = sites.client("shard_00", coordinator)
    line = ended(client)
    assert client.ends() == ExitCode.REFUSED
    assert "bytes-per-round 1000 is too small" in line
    assert "at least 1644" in line  # 410 biases and one weight


def test_a_task_that_fails_shows_its_own_lines(sites: Programs) -> None:
    coordinator = sites.coordinator(*MLP)
    text = OTHER_MODEL.replace("return nn.Sequential", "raise RuntimeError('no GPU')  #")
    (sites.folder / "task.py").write_text(text)
    client = sites.client("shard_00", coordinator, "--task=task.py")
    assert client.ends() == ExitCode.BAD_DATA
    assert "task task: build_model raised RuntimeError: no GPU" in client.err
    coordinator.waits_for("shard_00", "left")


def test_a_stopped_client_leaves_the_run(sites: Programs) -> None:
    coordinator = sites.coordinator(*MLP)
    client = sites.client("shard_00", coordinator)
    until(lambda: coordinator.facts("ModelInitialized"), "the client waits for others")
    client.signal(signal.SIGTERM)
    assert client.ends() == ExitCode.TERMINATED
    assert client.err.splitlines()[-1] == "ssfl-client: terminated"
    assert coordinator.client_state("shard_00") == "left"


def test_an_out_dir_that_cannot_hold_the_model_is_reported(sites: Programs) -> None:
    """The run is unaffected: a client with a usable folder fetches the model later."""
    coordinator = sites.coordinator("--model=mlp", "--clients=1", "--min-clients=1", "--rounds=1",
                                    "--local-steps=1")  # fmt: skip
    hold, out_dir = Hold(sites.folder, gradient=1), sites.folder / "file"
    client = sites.client("shard_00", coordinator, TASK, "--out-dir=file", **hold.env)
    hold.reached()
    out_dir.rmdir()  # it could be written at the start
    out_dir.write_text("not a folder")
    hold.release()
    line = ended(client)
    assert client.ends() == ExitCode.STATE
    assert "file" in line
    again = sites.client("shard_00", coordinator, TASK)
    assert again.ends() == ExitCode.DONE
    assert "final model stored" in again.err

"""Runs that start from a model file, and a task with its own metrics."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from ssfl.program.exits import ExitCode
from ssfl.tools import main as tools
from system.programs import Programs

pytestmark = pytest.mark.system

RUN = ("--clients=2", "--rounds=2", "--local-epochs=1", "--exit-when-done")

REGRESSION = """
import numpy as np
from torch import nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard


def load_shard(path):
    rng = np.random.default_rng(int(path.name))
    x = rng.normal(size=(60, 5)).astype(np.float32)
    y = x @ np.array([1, -2, 0, 0.5, 0], np.float32)
    return Shard(x[:40], y[:40], x[40:], y[40:], num_classes=0)


def build_model(settings, shard):
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))


def loss(model, x, y):
    return functional.mse_loss(model(x).squeeze(1), y)


def metrics(model, x, y):
    return {"absolute_error": (model(x).squeeze(1) - y).abs().mean()}
"""


def init(folder: Path, *flags: str) -> str:
    out = str(folder / "initial.safetensors")
    flags = ("--input=1x8x8", f"--out={out}", "--overwrite", *flags)
    assert tools.main(["init", *flags]) == ExitCode.DONE
    return out


def test_a_model_from_the_seed_is_the_one_a_client_would_describe(sites: Programs) -> None:
    digests = []
    for flags in (("--model=mlp",), (f"--init={init(sites.folder, '--model=mlp')}",)):
        coordinator = sites.coordinator(*RUN, *flags, "--fresh")
        clients = [sites.client(f"shard_0{n}", coordinator) for n in range(2)]
        assert [program.ends() for program in (coordinator, *clients)] == [0, 0, 0]
        (finished,) = coordinator.facts("RunFinished")
        digests.append(coordinator.facts("StepCommitted")[-1]["base_digest"])
        sent = [row for row in finished["report"]["ledger"] if row["phase"] == "initial"]
        assert sum(row["payload_bytes"] for row in sent) == 0
    assert digests[0] == digests[1]


def test_pretrained_weights_reach_every_client_and_survive_a_restart(sites: Programs) -> None:
    model = init(sites.folder, "--model=mlp", "--seed=5")
    weights = {name: array + 0.01 for name, array in load_file(model).items()}
    save_file(weights, sites.folder / "trained.safetensors")
    path = init(sites.folder, "--model=mlp", f"--weights={sites.folder}/trained.safetensors")
    flags = (*RUN, f"--init={path}")
    coordinator = sites.coordinator(*flags)
    assert "model initialized" in coordinator.says('client="--init initial.safetensors"')
    first = sites.client("shard_00", coordinator)
    coordinator.says("client ready")
    coordinator.kill()
    coordinator = sites.coordinator(*flags, port=coordinator.port)
    second = sites.client("shard_01", coordinator)
    assert [program.ends() for program in (coordinator, first, second)] == [0, 0, 0]
    (finished,) = coordinator.facts("RunFinished")
    sent = [row for row in finished["report"]["ledger"] if row["phase"] == "initial"]
    size = sum(array.size for array in weights.values())
    assert sum(row["payload_bytes"] for row in sent) == 2 * 4 * size


def test_another_file_on_a_restart_is_refused(sites: Programs) -> None:
    path = init(sites.folder, "--model=mlp")
    coordinator = sites.coordinator("--clients=2", f"--init={path}")
    coordinator.kill()
    init(sites.folder, "--model=cnn")
    again = sites.try_coordinator("--clients=2", f"--init={path}")
    assert again.ends() == ExitCode.STATE
    assert "--model was 'mlp', is 'cnn'" in again.err
    init(sites.folder, "--model=mlp", "--classes=9")
    again = sites.try_coordinator("--clients=2", f"--init={path}")
    assert again.ends() == ExitCode.STATE
    assert "which began with another model" in again.err


def test_unusable_init_files_are_refused_and_move_nothing(sites: Programs) -> None:
    coordinator = sites.coordinator("--clients=2")
    coordinator.kill()
    path = init(sites.folder, "--model=mlp", "--seed=1")
    for flags, complaint in (
        ((f"--init={path}",), "does not hold the weights of --seed 0"),
        ((f"--init={path}", "--seed=1", "--model=resnet20"), "the file is for --model mlp"),
        (("--init=absent.safetensors",), "there is no file absent.safetensors"),
    ):
        refused = sites.try_coordinator("--fresh", "--clients=2", *flags)
        assert refused.ends() == ExitCode.BAD_DATA
        assert complaint in refused.err
    assert coordinator.facts("RunOpened")


def test_a_client_with_another_model_than_the_init_file_is_refused(sites: Programs) -> None:
    path = init(sites.folder, "--model=mlp", "--classes=9")
    coordinator = sites.coordinator("--clients=2", f"--init={path}")
    client = sites.client("shard_00", coordinator)
    assert client.ends() == ExitCode.REFUSED
    assert "built another model: 10 classes here, 9 in the run. The run has" in client.err
    assert "The run has that of --init initial.safetensors" in client.err


def test_a_regression_has_metrics_and_no_accuracy(programs: Programs) -> None:
    (programs.folder / "shards").mkdir()
    for number in range(2):
        (programs.folder / "shards" / str(number)).touch()
    (programs.folder / "regression.py").write_text(REGRESSION)
    coordinator = programs.coordinator(*RUN, "--rounds=6", "--sparsity=0.3", "--learning-rate=0.05")
    clients = [
        programs.client(str(n), coordinator, "--task=regression.py", f"--client-id=site-{n}")
        for n in range(2)
    ]
    assert [program.ends() for program in (coordinator, *clients)] == [0, 0, 0]
    history = coordinator.history()
    first, last = history["rounds"][0], history["evaluations"][-1]
    assert (last["pooled"], last["mean"], last["metrics"].keys()) == (
        None, None, {"absolute_error"},
    )  # fmt: skip
    assert last["metrics"]["absolute_error"] < 0.7 * first["metrics"]["absolute_error"]
    assert "absolute_error=" in coordinator.says("global model evaluated")

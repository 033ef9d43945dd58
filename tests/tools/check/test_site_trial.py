"""`ssfl check` and failures at a site: shard, task, model, device, disk."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.run_loop_harness import begin
from ssfl.client.config import ClientConfig
from ssfl.datasets.shards.shard_file import Shard, write_shard
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.server.loop.coordinator import Coordinator
from ssfl.tools.check import probe, site_trial
from ssfl.tools.check.command import CheckReport
from ssfl.tools.check.disk import check_disk, output_bytes, state_bytes
from ssfl.tools.check.steps import CheckStep, CheckVerdict, Steps
from tools.check.check_fixtures import (
    fails,
    manifest,
    report_of,
    small,
    steps_of,
    with_coordinator,
)

TASK = """
from torch import nn
from torch.nn import functional
from ssfl.learning.image_task import load_shard

def build_model(settings, shard):
    return nn.Sequential(nn.Flatten(), nn.Linear({inputs}, 10))

def loss(model, x, y):
    return functional.cross_entropy(model(x), y)
"""


TINY_TASK = """
import torch
from torch import nn
from torch.nn import functional
from ssfl.learning.image_task import load_shard

class Tiny(nn.Module):  # five weights that can be pruned, ten biases
    def __init__(self):
        super().__init__()
        self.pick, self.bias = nn.Linear(5, 1, bias=False), nn.Parameter(torch.zeros(10))

    def forward(self, x):
        return self.pick(x.flatten(1)[:, 30:35]) + self.bias

def build_model(settings, shard):
    return Tiny()

def loss(model, x, y):
    return functional.cross_entropy(model(x), y)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with one small shard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "NOISE_BYTES", 1 << 16)
    Path("shards").mkdir()
    write_shard(Path("shards/ann.npz"), small())
    return tmp_path


def by_name(found: CheckReport) -> dict[str, CheckStep]:
    return {step.name: step for step in found.steps.all}


@pytest.mark.usefixtures("here")
def test_a_good_site_scores_and_trains_a_batch() -> None:
    found = report_of(data="ann")
    assert found.steps.with_verdict(CheckVerdict.FAILED) == []
    assert [step.part for step in found.steps.all] == ["site"] * len(found.steps.all)
    named = by_name(found)
    assert named["shard"].text == (
        "40 training samples of 1x8x8, 20 to test, 0 to validate; 10 classes"
    )
    assert named["score"].text.startswith("a batch of 16 samples in ")
    assert "a round has 15 steps" in named["train"].text  # 5 epochs of 40 samples by 16
    assert found.site and found.site.pace and found.site.pace.num_steps == 15
    assert found.site.pace.step_s > 0
    assert not Path(".ssfl").exists(), "a check writes nothing"


def test_a_damaged_shard_is_for_data_managers_and_the_disk_is_still_checked(here: Path) -> None:
    whole = (here / "shards/ann.npz").read_bytes()
    (here / "shards/ann.npz").write_bytes(whole[: len(whole) // 2])
    found = report_of(data="ann")
    named = by_name(found)
    message = fails(named, "shard")
    assert "this is not a numpy .npz archive" in message
    assert "→ data managers: make the shard again (ssfl shards)" in message
    assert found.steps.exit_code is ExitCode.BAD_DATA
    assert named["train"].text == "because shard failed"
    assert named["round"].text == "because shard failed"
    assert named["state disk"].verdict is CheckVerdict.OK


@pytest.mark.usefixtures("here")
def test_a_missing_shard_is_for_data_managers() -> None:
    assert "→ data managers" in fails(steps_of(data="bob"), "shard")


@pytest.mark.usefixtures("here")
def test_a_missing_device_fails_and_the_shard_is_still_checked() -> None:
    found = steps_of(data="ann", device="cuda")
    assert "the administrator of the machine: fix the device, or try --device cpu" in fails(
        found, "device"
    )
    assert found["shard"].verdict is CheckVerdict.OK


@pytest.mark.usefixtures("here")
def test_missing_torch_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site_trial, "find_spec", lambda _name: None)
    assert "pip install 'ssfl[client]'" in fails(steps_of(data="ann"), "torch")


@pytest.mark.usefixtures("here")
def test_a_task_that_fails_on_a_batch_is_for_its_author() -> None:
    Path("my_task.py").write_text(TASK.format(inputs=63))
    message = fails(steps_of(data="ann", task="my_task.py"), "score")
    assert "a linear layer was built for 63 inputs and got 64" in message
    assert "→ the author of the task: fix the task" in message


FIT = """
import torch

def fit(model, batches, settings):
    optimizer = torch.optim.Adam(model.parameters(){broken})
    for x, y in batches:
        value = loss(model, x, y)
        value.backward()
        optimizer.step()
    return value
"""


@pytest.mark.usefixtures("here")
def test_a_task_with_its_own_loop_is_tried_and_its_errors_are_for_its_author() -> None:
    Path("my_task.py").write_text(TASK.format(inputs=64) + FIT.format(broken=""))
    found = steps_of(data="ann", task="my_task.py")
    assert found["train"].verdict is CheckVerdict.OK
    assert "a round has 15 steps" in found["train"].text
    Path("wrong.py").write_text(TASK.format(inputs=64) + FIT.format(broken=", beta=1"))
    message = fails(steps_of(data="ann", task="wrong.py"), "train")
    assert "task wrong: fit raised TypeError: Adam.__init__() got an unexpected" in message
    assert "→ the author of the task: fix the fit of the task" in message


@pytest.mark.usefixtures("here")
def test_a_task_that_cannot_be_read_is_for_its_author() -> None:
    Path("my_task.py").write_text("def load_shard(path:")
    assert "→ the author of the task: fix the task (my_task.py)" in fails(
        steps_of(data="ann", task="my_task.py"), "task"
    )


@pytest.mark.usefixtures("here")
def test_samples_that_overflow_are_for_data_managers() -> None:
    shard = small()
    x = shard.train_x.copy()
    x[:, 0, 0, 0] = 3e38
    write_shard(Path("shards/ann.npz"), replace(shard, train_x=x))
    message = fails(steps_of(data="ann"), "score")
    assert "→ data managers: inspect the samples and labels" in message


def run_with(tmp_path: Path, model: str, **config: Any) -> dict[str, Any]:
    """Check against a run that has an mlp."""
    found: dict[str, Any] = {}

    async def prepare(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest())

    def body(address: str) -> None:
        found.update(steps_of(data="ann", coordinator=address, **config))

    settings = RunSettings(clients=2, rounds=2, model=model, seed=5)
    with_coordinator(tmp_path / "run", body, prepare=prepare, settings=settings)
    return found


def test_the_runs_model_is_recognized(here: Path) -> None:
    found = run_with(here, "mlp")
    assert found["same model"].verdict is CheckVerdict.OK
    assert found["same model"].text == f"as the run's ({manifest().digest.hex()[:12]})"


def test_a_different_model_is_reported_with_its_first_tensor(here: Path) -> None:
    message = fails(run_with(here, "cnn"), "same model")
    assert "this site builds a different model than the run's: tensor 0: " in message
    assert "the author of the task: give every site the same task file" in message


def of_size(size: int) -> Shard:
    """Return a shard with images of this size."""
    shard = small()
    x = np.zeros((60, 1, size, size), np.float32)
    return Shard(x[:40], shard.train_y, x[40:], shard.test_y, num_classes=10)


def test_data_of_another_shape_are_reported_with_both_shapes(here: Path) -> None:
    write_shard(Path("shards/ann.npz"), of_size(10))
    message = fails(run_with(here, "mlp"), "same model")
    assert (
        "a different model than the run's: samples of 1x10x10 here, 1x8x8 in the run →" in message
    )
    assert "data managers: make the shard again with samples of the run's shape" in message
    assert "the author of the task" not in message


def test_a_task_that_fails_on_data_of_another_shape_is_reported_with_both_shapes(
    here: Path,
) -> None:
    write_shard(Path("shards/ann.npz"), of_size(10))
    Path("task.py").write_text(
        "from ssfl.learning.image_task import load_shard, loss, metrics\n"
        "def build_model(settings, shard):\n    assert shard.input_shape == (1, 8, 8)\n"
    )
    message = fails(run_with(here, "mlp", task="task.py"), "model")
    assert (
        "this site's data do not fit the run: samples of 1x10x10 here, 1x8x8 in the run" in message
    )
    assert "data managers" in message


FROZEN = """
from torch import nn
from ssfl.learning.image_task import load_shard, loss, metrics

def build_model(settings, shard):
    body, head = nn.Linear(64, 3000), nn.Linear(3000, 10)
    body.requires_grad_({train_body})
    return nn.Sequential(nn.Flatten(), body, nn.ReLU(), head)
"""


@pytest.mark.usefixtures("here")
def test_a_forecast_charges_almost_nothing_for_frozen_layers() -> None:
    Path("frozen.py").write_text(FROZEN.format(train_body=False))
    Path("trained.py").write_text(FROZEN.format(train_body=True))
    frozen, trained = (report_of(data="ann", task=f"{name}.py") for name in ("frozen", "trained"))
    half, whole = frozen.rounds[0], trained.rounds[0]
    assert (half.sparsity, whole.sparsity) == ("0.5", "0.5")
    assert half.up.high < 4 * 15_010 + 0.1 * 4 * 195_000, "15,000 of the head, 10 biases"
    assert half.down.high < 4 * 15_010 + 0.1 * 4 * 195_000
    assert whole.up.low > 4 * half.up.high


def report_against(here: Path, settings: RunSettings, **config: Any) -> CheckReport:
    """Check against a run that gathers its clients."""
    found: list[CheckReport] = []
    with_coordinator(
        here / "run",
        lambda address: found.append(report_of(data="ann", coordinator=address, **config)),
        settings=settings,
    )
    return found[0]


def test_more_samples_than_the_runs_limit_are_refused(here: Path) -> None:
    run = RunSettings(clients=2, model="mlp", max_samples=30)
    message = fails(by_name(report_against(here, run)), "samples")
    assert "ann claims 40 training samples, but this run takes at most 30" in message
    assert "→ the coordinator's operator: raise --max-samples" in message


def test_clipped_samples_are_reported_with_their_weight(here: Path) -> None:
    run = RunSettings(clients=2, model="mlp", max_samples=30, samples_over_max="clip")
    found = by_name(report_against(here, run))
    assert found["samples"].verdict is CheckVerdict.OK
    assert found["samples"].text == "admitted with 40 training samples, weighted as 30"


def test_a_model_too_small_for_the_runs_sparsity_fails_only_the_round_step(
    here: Path,
) -> None:
    Path("tiny_task.py").write_text(TINY_TASK)
    found = report_against(here, RunSettings(clients=2, sparsity="0.95"), task="tiny_task.py")
    message = fails(by_name(found), "round")
    assert "sparsity 0.95 keeps none of the model's 5 masked weights" in message
    assert "→ the coordinator's operator: start the run with settings that fit" in message
    assert [step.name for step in found.steps.with_verdict(CheckVerdict.FAILED)] == ["round"]
    assert by_name(found)["state disk"].text.endswith("(the needed space is unknown)")
    assert [row.sparsity for row in found.rounds] == ["0.5"], "the other sparsities keep nothing"


def test_a_model_that_the_runs_settings_exclude_fails(here: Path) -> None:
    run = RunSettings(clients=2, model="resnet20", norm="batch", value_type="int8")
    message = fails(by_name(report_against(here, run)), "round")
    assert "the model has running statistics (norm1.running_mean)" in message


@pytest.mark.usefixtures("here")
def test_a_tiny_model_passes_without_a_run() -> None:
    Path("tiny_task.py").write_text(TINY_TASK)
    found = report_of(data="ann", task="tiny_task.py")
    assert found.steps.with_verdict(CheckVerdict.FAILED) == []
    assert by_name(found)["round"].text.endswith(" down at 50 %")


def disk(free: int, config: ClientConfig) -> tuple[Steps, Manifest]:
    steps, model = Steps(), manifest()
    folder = config.state_dir / "ann"
    check_disk(steps, config, folder, RunSettings(model="mlp"), model, lambda _folder: free)
    return steps, model


@pytest.mark.usefixtures("here")
def test_a_nearly_full_disk_warns_and_a_full_one_fails() -> None:
    config, model = ClientConfig(), manifest()
    settings = RunSettings(model="mlp")
    state, output = state_bytes(model, settings), output_bytes(model, settings)
    assert output > 4 * model.size, "the whole model is written"
    assert state >= 4 * model.num_masked, "unsent scores fit"
    steps, _ = disk(10 * output, config)
    assert [step.verdict for step in steps.all] == [CheckVerdict.OK, CheckVerdict.OK]
    steps, _ = disk(output + 1, config)
    assert [step.verdict for step in steps.all] == [CheckVerdict.WARNING, CheckVerdict.WARNING]
    steps, _ = disk(100, config)
    assert steps.exit_code is ExitCode.STATE
    message = fails({step.name: step for step in steps.all}, "state disk")
    assert "0.1 kB free in .ssfl/clients" in message
    assert "→ the administrator of the machine: free some space" in message


@pytest.mark.usefixtures("here")
def test_a_folder_that_is_a_file_fails() -> None:
    Path("runs").write_text("not a folder")
    steps, _ = disk(10**9, ClientConfig(out_dir=Path("runs/ann")))
    message = fails({step.name: step for step in steps.all}, "output disk")
    assert "--out-dir runs/ann: " in message
    assert "runs is not a folder" in message


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("left", "message"),
    [
        (
            "ann",
            "ann is not a folder → the administrator of the machine: let this user write there",
        ),
        (
            "ann/token/x",
            "ann/token cannot be used: Is a directory → the administrator of the machine",
        ),
        (
            "ann/lock/x",
            "ann/lock cannot be used: Is a directory → the administrator of the machine",
        ),
    ],
)
def test_unusable_files_of_an_earlier_client_fail(left: str, message: str) -> None:
    """Tests run as root may read everything, so folders stand for another user's files."""
    file = Path("state") / left
    file.parent.mkdir(parents=True)
    file.write_text("")
    steps, _ = disk(10**9, ClientConfig(state_dir=Path("state")))
    assert message in fails({step.name: step for step in steps.all}, "state disk")
    assert steps.exit_code is ExitCode.STATE


def test_an_invalid_client_id_fails_only_its_step(here: Path) -> None:
    write_shard(here / "my shard.npz", small())
    found = report_of(data="my shard.npz")
    message = fails(by_name(found), "client id")
    assert "'my shard' cannot be a client id" in message
    assert message.endswith("→ the administrator of the machine: choose a name with --client-id")
    assert found.steps.exit_code is ExitCode.USAGE
    assert by_name(found)["train"].verdict is CheckVerdict.OK, "other steps run"
    assert report_of(data="my shard.npz", client_id="ann").steps.exit_code is ExitCode.DONE


def test_a_shard_named_without_leading_zeros_gives_the_same_client_id(here: Path) -> None:
    write_shard(here / "shards/shard_07.npz", small())
    assert steps_of(data="shard_7")["client id"].text == "shard_07"


def test_a_written_model_fits_into_the_predicted_bytes(tmp_path: Path) -> None:
    from ssfl.method.mask import Mask
    from ssfl.program.model_io.safetensors_model import write_model

    model, settings = manifest(), RunSettings(model="mlp", strategy="fedavg")
    mask = Mask.full(model.num_masked)
    write_model(tmp_path, model, mask, np.zeros(model.size, dtype=np.float32))
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert 0.98 * output_bytes(model, settings) < written <= output_bytes(model, settings)


def test_lossy_runs_and_personal_models_need_more_space() -> None:
    model, plain = manifest(), RunSettings(model="mlp")
    lossy = replace(plain, value_type="int8")
    assert state_bytes(model, lossy) > state_bytes(model, plain)
    personal = replace(plain, personalize_epochs=1)
    assert output_bytes(model, personal) == 2 * output_bytes(model, plain)

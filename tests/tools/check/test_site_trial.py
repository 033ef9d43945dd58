"""`ssfl check` and what can be wrong at a site: shard, task, model, device, disk."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from server.run_loop_harness import begin
from ssfl.client.config import ClientConfig
from ssfl.datasets.shards.shard_file import Shard, write_shard
from ssfl.learning.describe import manifest_of
from ssfl.learning.load_task import load_task
from ssfl.learning.models import build_model
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.server.loop.run_loop import Conductor
from ssfl.tools.check import probe, site_trial
from ssfl.tools.check.command import CheckReport
from ssfl.tools.check.disk import check_disk, output_bytes, state_bytes
from ssfl.tools.check.forecast import Terms, forecasts
from ssfl.tools.check.site_trial import Pace
from ssfl.tools.check.steps import CheckStep, CheckVerdict, Steps
from ssfl.tools.check.view import forecast_notes, forecast_table, format_sparsity
from ssfl.tools.plan.link import parse_link
from tools.check.check_fixtures import checked, fails, small, steps_of, with_coordinator

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
    """A folder to stand in, with one small shard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "NOISE_BYTES", 1 << 16)
    Path("shards").mkdir()
    write_shard(Path("shards/ann.npz"), small())
    return tmp_path


def by_name(found: CheckReport) -> dict[str, CheckStep]:
    return {step.name: step for step in found.steps.all}


def manifest(model: str = "mlp") -> Manifest:
    description = load_task("image").description(RunSettings(model=model), small())
    return manifest_of(build_model(model, (1, 8, 8), 10), description)


@pytest.mark.usefixtures("here")
def test_a_site_that_is_well_scores_and_trains_a_batch() -> None:
    found = checked(data="ann")
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


def test_a_damaged_shard_is_for_the_data_people_and_hides_no_disk(here: Path) -> None:
    whole = (here / "shards/ann.npz").read_bytes()
    (here / "shards/ann.npz").write_bytes(whole[: len(whole) // 2])
    found = checked(data="ann")
    named = by_name(found)
    said = fails(named, "shard")
    assert "this is not a numpy .npz archive" in said
    assert "→ data managers: make the shard again (ssfl shards)" in said
    assert found.steps.exit_code is ExitCode.BAD_DATA
    assert named["train"].text == "because shard failed"
    assert named["round"].text == "because shard failed"
    assert named["state disk"].verdict is CheckVerdict.OK


@pytest.mark.usefixtures("here")
def test_a_shard_that_is_not_there_is_told() -> None:
    assert "→ data managers" in fails(steps_of(data="bob"), "shard")


@pytest.mark.usefixtures("here")
def test_a_device_that_is_not_there_hides_no_shard() -> None:
    found = steps_of(data="ann", device="cuda")
    assert "the administrator of the machine: fix the device, or try --device cpu" in fails(
        found, "device"
    )
    assert found["shard"].verdict is CheckVerdict.OK


@pytest.mark.usefixtures("here")
def test_without_torch_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_trial, "find_spec", lambda _name: None)
    assert "pip install 'ssfl[client]'" in fails(steps_of(data="ann"), "torch")


@pytest.mark.usefixtures("here")
def test_a_task_that_fails_on_a_batch_is_for_its_author() -> None:
    Path("my_task.py").write_text(TASK.format(inputs=63))
    said = fails(steps_of(data="ann", task="my_task.py"), "score")
    assert "a linear layer was built for 63 inputs and got 64" in said
    assert "→ the author of the task: fix the task" in said


@pytest.mark.usefixtures("here")
def test_a_task_that_cannot_be_read_is_for_its_author() -> None:
    Path("my_task.py").write_text("def load_shard(path:")
    assert "→ the author of the task: fix the task (my_task.py)" in fails(
        steps_of(data="ann", task="my_task.py"), "task"
    )


@pytest.mark.usefixtures("here")
def test_samples_that_are_no_numbers_are_for_the_data_people() -> None:
    shard = small()
    x = shard.train_x.copy()
    x[:, 0, 0, 0] = 3e38
    write_shard(Path("shards/ann.npz"), replace(shard, train_x=x))
    said = fails(steps_of(data="ann"), "score")
    assert "→ data managers: inspect the samples and labels" in said


def run_with(tmp_path: Path, model: str, **config: Any) -> dict[str, Any]:
    """Check beside a run whose model is known: an mlp."""
    found: dict[str, Any] = {}

    async def prepare(conductor: Conductor) -> None:
        await begin(conductor, manifest())

    def body(address: str) -> None:
        found.update(steps_of(data="ann", coordinator=address, **config))

    settings = RunSettings(clients=2, rounds=2, model=model, seed=5)
    with_coordinator(tmp_path / "run", body, prepare=prepare, settings=settings)
    return found


def test_the_runs_model_is_recognized(here: Path) -> None:
    found = run_with(here, "mlp")
    assert found["same model"].verdict is CheckVerdict.OK
    assert found["same model"].text == f"as the run's ({manifest().digest.hex()[:12]})"


def test_a_model_that_differs_is_told_with_the_tensor(here: Path) -> None:
    said = fails(run_with(here, "cnn"), "same model")
    assert "this site builds a different model than the run's: tensor 0: " in said
    assert "the author of the task: give every site the same task file" in said


def of_size(size: int) -> Shard:
    """Return a shard whose images have another size."""
    shard = small()
    x = np.zeros((60, 1, size, size), np.float32)
    return Shard(x[:40], shard.train_y, x[40:], shard.test_y, num_classes=10)


def test_data_of_another_shape_are_named_by_their_shapes(here: Path) -> None:
    write_shard(Path("shards/ann.npz"), of_size(10))
    said = fails(run_with(here, "mlp"), "same model")
    assert "a different model than the run's: samples of 1x10x10 here, 1x8x8 in the run →" in said
    assert "data managers: make the shard again with samples of the run's shape" in said
    assert "the author of the task" not in said


def test_a_task_that_fails_with_data_of_another_shape_names_both(here: Path) -> None:
    write_shard(Path("shards/ann.npz"), of_size(10))
    Path("task.py").write_text(
        "from ssfl.learning.image_task import load_shard, loss, metrics\n"
        "def build_model(settings, shard):\n    assert shard.input_shape == (1, 8, 8)\n"
    )
    said = fails(run_with(here, "mlp", task="task.py"), "model")
    assert "this site's data do not fit the run: samples of 1x10x10 here, 1x8x8 in the run" in said
    assert "data managers" in said


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
    frozen, trained = (checked(data="ann", task=f"{name}.py") for name in ("frozen", "trained"))
    half, whole = frozen.rounds[0], trained.rounds[0]
    assert (half.sparsity, whole.sparsity) == ("0.5", "0.5")
    assert half.up.high < 4 * 15_010 + 0.1 * 4 * 195_000, "15,000 of the head, 10 biases"
    assert half.down.high < 4 * 15_010 + 0.1 * 4 * 195_000
    assert whole.up.low > 4 * half.up.high


def beside(here: Path, settings: RunSettings, **config: Any) -> CheckReport:
    """Check beside a run that gathers its clients."""
    found: list[CheckReport] = []
    with_coordinator(
        here / "run",
        lambda address: found.append(checked(data="ann", coordinator=address, **config)),
        settings=settings,
    )
    return found[0]


def test_more_samples_than_the_run_takes_are_told_by_the_coordinator(here: Path) -> None:
    run = RunSettings(clients=2, model="mlp", max_samples=30)
    said = fails(by_name(beside(here, run)), "samples")
    assert "ann claims 40 training samples, this run takes at most 30" in said
    assert "→ the coordinator's operator: raise --max-samples" in said


def test_samples_that_the_run_cuts_are_told_with_their_weight(here: Path) -> None:
    run = RunSettings(clients=2, model="mlp", max_samples=30, samples_over_max="clip")
    found = by_name(beside(here, run))
    assert found["samples"].verdict is CheckVerdict.OK
    assert found["samples"].text == "admitted with 40 training samples, weighted as 30"


def test_a_model_too_small_for_the_runs_sparsity_is_told_and_everything_else_tried(
    here: Path,
) -> None:
    Path("tiny_task.py").write_text(TINY_TASK)
    found = beside(here, RunSettings(clients=2, sparsity="0.95"), task="tiny_task.py")
    said = fails(by_name(found), "round")
    assert "sparsity 0.95 keeps none of the model's 5 masked weights" in said
    assert "→ the coordinator's operator: start the run with settings that fit" in said
    assert [step.name for step in found.steps.with_verdict(CheckVerdict.FAILED)] == ["round"]
    assert by_name(found)["state disk"].text.endswith("(the needed space is unknown)")
    assert [one.sparsity for one in found.rounds] == ["0.5"], "the others keep nothing, too"


def test_a_kind_of_model_that_the_run_cannot_have_is_told(here: Path) -> None:
    run = RunSettings(clients=2, model="resnet20", norm="batch", value_type="int8")
    said = fails(by_name(beside(here, run)), "round")
    assert "the model has running statistics (norm1.running_mean)" in said


@pytest.mark.usefixtures("here")
def test_a_tiny_model_passes_where_no_run_asks_for_its_sparsity() -> None:
    Path("tiny_task.py").write_text(TINY_TASK)
    found = checked(data="ann", task="tiny_task.py")
    assert found.steps.with_verdict(CheckVerdict.FAILED) == []
    assert by_name(found)["round"].text.endswith(" down at 50 %")


def disk(free: int, config: ClientConfig) -> tuple[Steps, Manifest]:
    steps, model = Steps(), manifest()
    folder = config.state_dir / "ann"
    check_disk(steps, config, folder, RunSettings(model="mlp"), model, lambda _folder: free)
    return steps, model


@pytest.mark.usefixtures("here")
def test_a_disk_that_is_nearly_full_is_told_with_what_is_needed() -> None:
    config, model = ClientConfig(), manifest()
    settings = RunSettings(model="mlp")
    state, output = state_bytes(model, settings), output_bytes(model, settings)
    assert output > 4 * model.size, "the whole model is kept"
    assert state >= 4 * model.num_masked, "scores may be unsent"
    steps, _ = disk(10 * output, config)
    assert [step.verdict for step in steps.all] == [CheckVerdict.OK, CheckVerdict.OK]
    steps, _ = disk(output + 1, config)
    assert [step.verdict for step in steps.all] == [CheckVerdict.WARNING, CheckVerdict.WARNING]
    steps, _ = disk(100, config)
    assert steps.exit_code is ExitCode.STATE
    said = fails({step.name: step for step in steps.all}, "state disk")
    assert "0.1 kB free in .ssfl/clients" in said
    assert "→ the administrator of the machine: free some space" in said


@pytest.mark.usefixtures("here")
def test_a_folder_that_is_a_file_is_told() -> None:
    Path("runs").write_text("not a folder")
    steps, _ = disk(10**9, ClientConfig(out_dir=Path("runs/ann")))
    said = fails({step.name: step for step in steps.all}, "output disk")
    assert "--out-dir runs/ann: " in said
    assert "runs is not a folder" in said


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("left", "said"),
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
def test_what_an_earlier_client_left_must_be_of_use(left: str, said: str) -> None:
    """Root, who runs tests, may read everything: folders and files stand for another user's."""
    file = Path("state") / left
    file.parent.mkdir(parents=True)
    file.write_text("")
    steps, _ = disk(10**9, ClientConfig(state_dir=Path("state")))
    assert said in fails({step.name: step for step in steps.all}, "state disk")
    assert steps.exit_code is ExitCode.STATE


def test_a_name_that_no_client_can_have_is_told(here: Path) -> None:
    write_shard(here / "my shard.npz", small())
    found = checked(data="my shard.npz")
    said = fails(by_name(found), "client id")
    assert "'my shard' cannot be a client id" in said
    assert said.endswith("→ the administrator of the machine: choose a name with --client-id")
    assert found.steps.exit_code is ExitCode.USAGE
    assert by_name(found)["train"].verdict is CheckVerdict.OK, "everything else is tried"
    assert checked(data="my shard.npz", client_id="ann").steps.exit_code is ExitCode.DONE


def test_a_shard_given_without_its_zeros_is_the_same_client(here: Path) -> None:
    write_shard(here / "shards/shard_07.npz", small())
    assert steps_of(data="shard_7")["client id"].text == "shard_07"


def test_a_final_model_fits_what_is_said_to_be_needed(tmp_path: Path) -> None:
    from ssfl.method.mask import Mask
    from ssfl.program.model_io.safetensors_model import write_model

    model, settings = manifest(), RunSettings(model="mlp", strategy="fedavg")
    mask = Mask.full(model.num_masked)
    write_model(tmp_path, model, mask, np.zeros(model.size, dtype=np.float32))
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert 0.98 * output_bytes(model, settings) < written <= output_bytes(model, settings)


def test_lossy_runs_and_personal_models_need_more_room() -> None:
    model, plain = manifest(), RunSettings(model="mlp")
    lossy = replace(plain, value_type="int8")
    assert state_bytes(model, lossy) > state_bytes(model, plain)
    personal = replace(plain, personalize_epochs=1)
    assert output_bytes(model, personal) == 2 * output_bytes(model, plain)


def test_a_forecast_adds_download_work_and_upload() -> None:
    link, pace = parse_link("20mbit/50ms"), Pace(0.1, 0.02, 0.5, num_steps=100)
    run = RunSettings(model="mlp", sparsity="0.8")
    rows = forecasts(manifest(), run, Terms(), link, pace, is_run=True)
    assert [(one.sparsity, one.is_run) for one in rows] == [
        ("0.5", False), ("0.8", True), ("0.9", False), ("0.95", False),
    ]  # fmt: skip
    for one in rows:
        assert one.round and one.download and one.upload and one.work_s
        assert one.work_s == pytest.approx(100 * 0.02 + 2 * 0.5)
        assert one.round.high == pytest.approx(one.download.high + one.work_s + one.upload.high)
        assert one.up.high <= one.up.most
    sizes = [one.up.high for one in rows]
    assert sizes == sorted(sizes, reverse=True)


def test_a_narrow_terminal_has_whole_cells_of_what_matters() -> None:
    link, pace = parse_link("20mbit/50ms"), Pace(0.1, 0.02, 0.5, num_steps=100)
    rows = forecasts(manifest(), RunSettings(model="mlp"), Terms(), link, pace, is_run=True)
    console = Console(width=60, file=StringIO())
    console.print(forecast_table(rows, console.width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].split() == ["sparsity", "up", "down", "round"]
    assert all(line.rstrip().endswith(" s") and "…" not in line for line in lines[1:])


def test_a_run_by_bytes_is_told_in_bytes_not_in_percent() -> None:
    run = RunSettings(model="mlp", bytes_per_round="20000")
    rows = forecasts(manifest(), run, Terms(), None, None, is_run=True)
    assert [format_sparsity(one) for one in rows if one.is_run] == ["20.0 kB a round, this run"]


def test_one_sparsity_has_one_row_however_it_is_written() -> None:
    run = RunSettings(model="mlp", sparsity="0.90")
    rows = forecasts(manifest(), run, Terms(), None, None, is_run=True)
    assert [format_sparsity(one) for one in rows] == ["50 %", "90 %, this run", "95 %"]


def noted(run: RunSettings, terms: Terms) -> tuple[list[str], str]:
    """Return the rows of a forecast, and the note below it."""
    rows = forecasts(manifest(), run, terms, None, None, is_run=True)
    return [format_sparsity(one) for one in rows], forecast_notes(rows, None, None)


def test_a_warm_up_has_a_row_of_its_own_until_it_is_over() -> None:
    run = RunSettings(model="mlp", warmup_rounds=2)
    rows, note = noted(run, Terms())
    assert rows == ["dense, the first 2 rounds", "50 %", "90 %, this run", "95 %"]
    assert "Before round 2: scores" in note
    rows, note = noted(run, Terms(rounds_done=3, has_begun=True))
    assert rows == ["50 %", "90 %, this run", "95 %"]
    assert "scores" not in note and "Once, with the first task: mask" in note


def test_who_comes_later_does_not_score_and_a_schedule_scores_several_times() -> None:
    _, note = noted(RunSettings(model="mlp"), Terms())
    assert "Once before training: scores" in note
    _, note = noted(RunSettings(model="mlp"), Terms(has_begun=True))
    assert "scores" not in note and "Once, with the first task: mask" in note
    run = RunSettings(model="mlp", rounds=50, sparsity_schedule="0:0.98,10:0.95,30:0.9")
    _, note = noted(run, Terms())
    assert "Before round 0, 10, 30: scores" in note
    assert "(this run's row: from round 30 on)" in note
    _, note = noted(run, Terms(rounds_done=12, has_begun=True))
    assert "Before round 30: scores" in note


def test_a_forecast_of_a_dense_run_says_so() -> None:
    run = RunSettings(model="mlp", strategy="fedavg")
    rows = forecasts(manifest(), run, Terms(), None, None, is_run=True)
    assert [one.sparsity for one in rows] == ["dense", "0.5", "0.9", "0.95"]
    assert rows[0].round is None
    assert rows[0].num_kept == manifest().num_masked

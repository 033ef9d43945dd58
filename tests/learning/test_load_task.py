import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.errors import ModelError, TaskError
from ssfl.learning.load_task import load_task
from ssfl.method.image_settings import STATISTICS
from ssfl.method.settings import RunSettings

GOOD = """
from torch import nn
from ssfl.datasets.shards.shard_file import read_shard as load_shard

def build_model(settings, shard):
    return nn.Linear(2, 2)

def loss(model, x, y):
    return model(x).mean()

def metrics(model, x, y):
    return {"accuracy": 0.5, "error": x.mean()}
"""
X, Y = torch.ones(3, 2), torch.zeros(3)


def write(folder: Path, source: str, name: str = "task.py") -> str:
    path = folder / name
    path.write_text(source)
    return str(path)


def test_image_is_the_built_in_task() -> None:
    task = load_task("image")
    assert task.module is image_task
    assert (task.name, task.own_weights) == ("image", False)


def test_a_file_is_a_task(tmp_path: Path) -> None:
    spec = write(tmp_path, GOOD, "scans.py")
    task = load_task(spec)
    assert (task.name, task.own_weights) == ("scans", False)
    assert task.digest == hashlib.sha256(GOOD.encode()).digest()
    assert task.loss(nn.Linear(2, 2), X, Y).ndim == 0
    assert task.metrics(nn.Linear(2, 2), X, Y) == {"accuracy": 0.5, "error": 1.0}


def test_a_file_edited_within_a_second_runs_its_new_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes a compiled file for current if size and time, in seconds, are the same."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    spec = write(tmp_path, GOOD)
    os.utime(spec, (1, 1))
    load_task(spec)
    write(tmp_path, GOOD.replace("0.5", "0.6"))
    os.utime(spec, (1, 1))
    assert load_task(spec).metrics(nn.Linear(2, 2), X, Y)["accuracy"] == 0.6


def test_a_task_may_keep_its_own_initial_weights(tmp_path: Path) -> None:
    assert load_task(write(tmp_path, GOOD + "OWN_WEIGHTS = True\n")).own_weights


def test_a_dotted_module_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hospital_pkg").mkdir()
    write(tmp_path / "hospital_pkg", GOOD, "scans.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_task("hospital_pkg.scans").name == "hospital_pkg.scans"


def test_a_file_may_import_its_neighbours_and_define_dataclasses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    write(tmp_path, "WIDTH = 7\n", "neighbour_of_the_task.py")
    source = """
from __future__ import annotations
from dataclasses import dataclass
from neighbour_of_the_task import WIDTH

@dataclass
class Options:
    width: int = WIDTH
"""
    task = load_task(write(tmp_path, source + GOOD.replace("Linear(2, 2)", "Linear(2, WIDTH)")))
    model = task.build_model(RunSettings(), None)  # type: ignore[arg-type]  # not used
    assert isinstance(model, nn.Linear) and model.out_features == 7


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("absent/task.py", r"there is no task file absent/task\.py"),
        ("no_such_module", "there is no module no_such_module for the task no_such_module"),
        ("ssfl.learning.absent", "there is no module ssfl.learning.absent"),
    ],
)
def test_a_missing_task_is_named(spec: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        load_task(spec)


def test_missing_functions_of_a_task_are_named(tmp_path: Path) -> None:
    spec = write(tmp_path, GOOD.replace("def loss", "def lost"))
    with pytest.raises(TaskError, match=r"task\.py does not define loss$"):
        load_task(spec)


def test_a_missing_import_of_a_task_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "import no_such_library\n", "needy_task.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TaskError, match="imports no_such_library, which is not installed"):
        load_task("needy_task")


def test_a_failure_at_import_shows_the_authors_lines_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write(tmp_path, "def ratio():\n    return 1 / 0\n\nratio()\n", "broken_task.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (spec, "broken_task"):
        with pytest.raises(TaskError) as caught:
            load_task(name)
        first, *frames = str(caught.value).splitlines()
        assert first == f"task {name} raised ZeroDivisionError: division by zero"
        files = [line for line in frames if line.strip().startswith("File")]
        assert [line.rpartition(", ")[2] for line in files] == ["in <module>", "in ratio"]
        assert all(spec in line for line in files)


def test_a_syntax_error_shows_its_place(tmp_path: Path) -> None:
    spec = write(tmp_path, "x = 1\ndef loss(:\n")
    with pytest.raises(TaskError, match=r'raised SyntaxError: .*\n.*task\.py", line 2') as caught:
        load_task(spec)
    assert "def loss(:" in str(caught.value)


def test_an_error_inside_the_users_model_shows_the_authors_lines_only(tmp_path: Path) -> None:
    source = GOOD.replace("model(x).mean()", "model(x.reshape(1, 6)).mean()")
    task = load_task(write(tmp_path, source))
    with pytest.raises(TaskError, match="task task: loss raised RuntimeError: mat1 and mat2") as e:
        task.loss(nn.Linear(2, 2), X, Y)
    assert "return model(x.reshape(1, 6)).mean()" in str(e.value)
    assert "site-packages" not in str(e.value)


def test_errors_of_built_in_tasks_pass_through(shard: Shard) -> None:
    with pytest.raises(ModelError, match="lenet5"):
        load_task("image").build_model(RunSettings(model="lenet5"), shard)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("'0.3'", "loss must return Tensor, not str"),
        ("model(x)", r"loss must be a scalar, not \(3, 2\)"),
        ("x.mean()", "loss does not depend on the model's weights"),
    ],
)
def test_a_loss_of_the_wrong_kind_is_explained(tmp_path: Path, wrong: str, complaint: str) -> None:
    task = load_task(write(tmp_path, GOOD.replace("model(x).mean()", wrong)))
    with pytest.raises(TaskError, match=complaint):
        task.loss(nn.Linear(2, 2), X, Y)


def test_other_results_of_the_wrong_kind_are_explained(tmp_path: Path, shard: Shard) -> None:
    source = GOOD.replace("return nn.Linear(2, 2)", "return None")
    task = load_task(write(tmp_path, source))
    with pytest.raises(TaskError, match="build_model must return Module, not NoneType"):
        task.build_model(RunSettings(), shard)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("0.5", "metrics must return dict, not float"),
        ("{'error': x}", "metric error must be one number, the mean over the batch, not Tensor"),
        ("{'error': None}", "metric error must be one number.*not NoneType"),
        ("{'error': float('nan')}", "metric error is nan, not a finite number"),
        ("{'accuracy': 2}", "accuracy must lie between 0 and 1, got 2$"),
        ("{'my error': 1.0}", "a metric's name has 1 to 40 letters.*not 'my error'"),
        ("{str(i): i for i in range(17)}", "17 metrics, at most 16 are allowed"),
        ("1 / 0", "metrics raised ZeroDivisionError: division by zero"),
    ],
)
def test_metrics_of_the_wrong_kind_are_explained(
    tmp_path: Path, wrong: str, complaint: str
) -> None:
    source = GOOD.replace('{"accuracy": 0.5, "error": x.mean()}', wrong)
    task = load_task(write(tmp_path, source))
    with pytest.raises(TaskError, match=complaint):
        task.metrics(nn.Linear(2, 2), X, Y)


def test_a_task_may_have_no_metrics(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD.partition("def metrics")[0]))
    assert task.metrics(nn.Linear(2, 2), X, Y) == {}


def test_a_failing_batch_is_described_and_explained(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD))
    with pytest.raises(TaskError) as caught:
        task.loss(nn.Linear(5, 2), X, Y)
    assert str(caught.value).splitlines()[-2:] == [
        "the batch: x float32 3x2 from 1 to 1, y float32 3 from 0 to 0",
        "that is: a linear layer was built for 5 inputs and got 2 for each of 3 rows",
    ]


def test_lines_of_files_next_to_the_task_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    write(tmp_path, "def helped(x):\n    return x.no_such_thing\n", "beside_the_task.py")
    source = "from beside_the_task import helped\n" + GOOD.replace("model(x).mean()", "helped(x)")
    with pytest.raises(TaskError) as caught:
        load_task(write(tmp_path, source)).loss(nn.Linear(2, 2), X, Y)
    assert "in loss" in str(caught.value) and "return x.no_such_thing" in str(caught.value)


def test_a_model_is_described_well_enough_to_be_built_again(tmp_path: Path, shard: Shard) -> None:
    settings = RunSettings(model="resnet20", norm="batch", width=8)
    built = {"input_shape": [1, 8, 8], "num_classes": 4}
    named = {"task": "image", "model": "resnet20", "norm": "batch", "width": 8}
    assert load_task("image").description(settings, shard) == named | built
    own = load_task(write(tmp_path, GOOD, "own.py"))
    assert own.description(settings, shard) == {"task": "own"} | built


def test_a_model_that_scales_pixels_records_the_numbers(shard: Shard) -> None:
    task = load_task("image")
    for normalize, recorded in (("0.5/0.25", "0.5/0.25"), ("none", None), ("auto", None)):
        described = task.description(RunSettings(normalize=normalize), shard)
        assert described.get("normalize") == recorded
    x, y = np.zeros((1, 3, 32, 32), np.float32), np.zeros(1, np.int64)
    colour = Shard(x, y, x, y, num_classes=10)
    described = task.description(RunSettings(normalize="auto"), colour)
    assert described["normalize"] == STATISTICS["cifar10"]
    assert "normalize" not in load_task("table").description(RunSettings(normalize="auto"), colour)


def test_tasks_refuse_settings_of_images_that_have_no_effect(tmp_path: Path, shard: Shard) -> None:
    own = load_task(write(tmp_path, GOOD, "own.py"))
    looping = GOOD + "def fit(model, batches, settings):\n    return 0.0\n"
    fitted = load_task(write(tmp_path, looping, "fitted.py"))
    rows = Shard(*(np.zeros((1, 4), np.float32), np.zeros(1, np.int64)) * 2, num_classes=2)
    with pytest.raises(ModelError, match="let the task own scale its inputs"):
        own.build_model(RunSettings(normalize="0.5/0.5"), shard)
    with pytest.raises(ModelError, match="let the task table scale its inputs"):
        load_task("table").build_model(RunSettings(normalize="0.5/0.5"), rows)
    with pytest.raises(ModelError, match="not available for a task with its own fit"):
        fitted.build_model(RunSettings(augment="crop-flip"), shard)
    with pytest.raises(ModelError, match=r"is for images .* these samples are 4 with classes"):
        load_task("table").build_model(RunSettings(augment="crop-flip"), rows)
    own.build_model(RunSettings(augment="crop-flip"), shard)  # its samples are images
    for task, data in ((own, shard), (fitted, shard), (load_task("table"), rows)):
        task.build_model(RunSettings(augment="auto", normalize="auto", scoring_augment=True), data)


@pytest.mark.parametrize("spec", ["quitting_task.py", "quitting_task"])
def test_a_task_that_calls_exit_at_import_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    write(tmp_path, "import sys\nsys.exit()\n", "quitting_task.py")
    with pytest.raises(TaskError, match="raised SystemExit"):
        load_task(spec)


def test_a_module_in_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    write(tmp_path, GOOD, "task_of_this_folder.py")
    assert load_task("task_of_this_folder").name == "task_of_this_folder"


def test_the_names_of_built_in_tasks_are_reserved(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="the name table is taken by a built-in task: rename"):
        load_task(write(tmp_path, GOOD, "table.py"))


def test_random_weights_of_a_model_follow_from_the_seed(tmp_path: Path, shard: Shard) -> None:
    task = load_task(write(tmp_path, GOOD))
    weights = [
        task.build_model(RunSettings(seed=seed), shard).state_dict()["weight"] for seed in (1, 1, 2)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_data_of_the_wrong_kind_are_refused_with_the_authors_line(tmp_path: Path) -> None:
    source = GOOD.replace(
        "from ssfl.datasets.shards.shard_file import read_shard as load_shard",
        "from ssfl.datasets.shards.shard_file import Shard\n"
        "def load_shard(path):\n    return Shard([1], [0], [], [], 2)\n",
    )
    with pytest.raises(TaskError) as caught:
        load_task(write(tmp_path, source)).load_shard(tmp_path)
    message = str(caught.value)
    assert "load_shard raised ShardError: train_x must be a numpy array, not list" in message
    assert "return Shard([1], [0], [], [], 2)" in message

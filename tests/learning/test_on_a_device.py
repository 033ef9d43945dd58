"""A client's work on a GPU: no tensor stays on the CPU, and the bits equal those of the CPU.

The device is fake (`fake_device.py`); none of this has run on a real GPU.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learning.fake_device import FakeDevice
from ssfl.client.local_work import Site
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import batch_tensors
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import TaskError
from ssfl.learning.evaluate import evaluate
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.load_task import LoadedTask, load_task
from ssfl.learning.masked_training import train_locally
from ssfl.learning.saliency import score_locally
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.initialize import initial_vector
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.strategies.contract import ScoringRequest

TASK = """
from torch import nn
from torch.nn import functional
from ssfl.datasets.shards.shard_file import read_shard as load_shard

def build_model(settings, shard):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 16), nn.LayerNorm(16), nn.Linear(16, 4),
    )

def loss(model, x, y):
    return functional.cross_entropy(model(x), y)

def metrics(model, x, y):
    return {"accuracy": (model(x).argmax(dim=1) == y).float().mean(), "size": model(x).abs().mean()}
"""
SETTINGS = RunSettings(
    local_epochs=2, batch_size=16, momentum=0.9, weight_decay=0.01, clip_norm=0.5, seed=4
)
ACCELERATORS = ("cuda", "mps")


@pytest.fixture
def task(tmp_path: Path) -> LoadedTask:
    file = tmp_path / "device_task.py"
    file.write_text(TASK)
    return load_task(str(file))


@dataclass(frozen=True)
class RoundWork:
    """All results of a client's round."""

    scores: bytes
    mean_loss: float
    trained: bytes
    tested: Evaluation


def work(task: LoadedTask, shard: Shard, device: torch.device) -> RoundWork:
    model = task.build_model(SETTINGS, shard).to(device)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    scores = score_locally(model, manifest, task, shard, SETTINGS, "shard_00")
    mask = Mask.from_bools(Stream(0, "mask").uniform(manifest.num_masked) < 0.3)
    mean_loss = train_locally(model, manifest, mask, task, shard, SETTINGS, 3, "shard_00")
    assert all(tensor.device == device for tensor in model.state_dict().values())
    trained = read_vector(model, manifest).tobytes()
    return RoundWork(scores.tobytes(), mean_loss, trained, evaluate(model, task, shard))


@pytest.mark.parametrize("kind", ACCELERATORS)
def test_a_round_on_a_device_has_the_bits_of_one_on_the_cpu(
    task: LoadedTask, shard: Shard, kind: str
) -> None:
    on_cpu = work(task, shard, torch.device("cpu"))
    with FakeDevice(kind) as fake:
        on_device = work(task, shard, fake.device)
    assert on_device == on_cpu
    assert fake.operations > 500  # 8 steps forward and backward, and the rest of the round


def run_site(
    task: LoadedTask, shard: Shard, device: torch.device
) -> tuple[bytes, bytes, LocalResult]:
    site = Site.build(task, shard, SETTINGS, "shard_00", device)
    scores = site.score(ScoringRequest(site.initial))
    mask = Mask.from_bools(scores >= np.quantile(scores, 0.7))
    trained = site.train(mask, mask.gather(site.initial), 0, lambda done, total: None)  # noqa: ARG005
    return site.manifest.json, scores.tobytes(), trained


@pytest.mark.parametrize("kind", ACCELERATORS)
def test_a_site_on_a_device_sends_what_it_would_send_from_the_cpu(
    task: LoadedTask, shard: Shard, kind: str
) -> None:
    manifest, scores, trained = run_site(task, shard, torch.device("cpu"))
    with FakeDevice(kind) as fake:
        same_manifest, same_scores, same = run_site(task, shard, fake.device)
    assert fake.operations > 500
    assert (same_manifest, same_scores) == (manifest, scores)
    assert same.values.tobytes() == trained.values.tobytes()
    assert (same.training_loss, same.base, same.personal) == (
        trained.training_loss, trained.base, trained.personal,
    )  # fmt: skip


@pytest.mark.parametrize("own_weights", [True, False])
def test_own_weights_leave_the_device_unchanged(
    task: LoadedTask, shard: Shard, own_weights: bool
) -> None:
    model = task.build_model(SETTINGS, shard)
    manifest = manifest_of(model, {}, own_weights=own_weights)
    before = read_vector(model, manifest)
    with FakeDevice("cuda"):
        model.to("cuda")
        assert read_vector(model, manifest).tobytes() == before.tobytes()


def test_dropout_is_reproducible_on_a_device(task: LoadedTask, shard: Shard) -> None:
    with FakeDevice("cuda") as fake:
        first = work(task, shard, fake.device)
        torch.rand(7)  # must not change the result
        assert work(task, shard, fake.device) == first


def test_building_and_a_round_seed_the_generators_of_every_device(
    task: LoadedTask, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[tuple[str, int]] = []
    for module in (torch.cuda, torch.mps):
        kind = module.__name__.removeprefix("torch.")
        name = "manual_seed_all" if kind == "cuda" else "manual_seed"
        monkeypatch.setattr(module, name, lambda seed, kind=kind: seeds.append((kind, seed)))
    work(task, shard, torch.device("cpu"))
    build, round_3 = (
        int(Stream(4, "torch", *name).words(1)[0]) for name in (("build",), (3, "shard_00"))
    )
    assert seeds == [("cuda", build), ("mps", build), ("cuda", round_3), ("mps", round_3)]


def test_a_task_that_forgets_the_device_is_refused(
    task: LoadedTask, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.tensor([1.0, 1.0, 1.0, 2.0])

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y, weight=weights)

    monkeypatch.setattr(task.module, "loss", loss)
    Site.build(task, shard, SETTINGS, "shard_00", torch.device("cpu"))
    with (
        FakeDevice("cuda") as fake,
        pytest.raises(TaskError, match="loss raised RuntimeError: Expected all tensors to be on"),
    ):
        Site.build(task, shard, SETTINGS, "shard_00", fake.device)


def test_float64_data_reach_every_device_as_float32() -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3.0)
    with FakeDevice("mps"):
        model = nn.Linear(2, 1).to("mps")
        batch = batch_tensors(x, y, np.array([0, 2]), model)
        assert [(tensor.dtype, tensor.is_mps) for tensor in batch] == [(torch.float32, True)] * 2
        assert batch[0].tolist() == [[0, 1], [4, 5]]

"""A simulated run on a GPU: all work is done there, with the bits of the CPU.

The device is simulated (tests/learning/fake_device.py); none of this was run on a real GPU.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learning.fake_device import FakeDevice
from ssfl.learning.errors import DeviceError
from ssfl.program.exits import ExitCode
from ssfl.program.settings.loading import Setting
from ssfl.study.data import DataSpec
from ssfl.study.errors import StudyError
from ssfl.study.one_run import run_one
from ssfl.study.run_spec import RunSpec
from ssfl.tools.main import main

TASK = """
from torch import nn
from ssfl.datasets.shards.shard_file import read_shard as load_shard
from ssfl.learning.image_task import loss, metrics

def build_model(settings, shard):
    return LAYERS
"""
NORMED = """nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
)"""
SMALL = "nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))"


def spec_of(folder: Path, layers: str) -> RunSpec:
    """Return a run of the whole method with a user's task.

    Built-in models are measured on torch's `meta` device before they are built, and FakeDevice
    cannot simulate two devices.
    """
    task = folder / "device_task.py"
    task.write_text(TASK.replace("LAYERS", layers))
    settings: dict[str, Setting] = {
        **{"rounds": 3, "local_steps": 4, "momentum": 0.9, "evaluate_every": 1},
        **{"warmup_rounds": 1, "refresh_rounds": "2", "personalize_epochs": 1},
    }
    data = DataSpec(clients=3, samples_per_client=40, validation=0.2)
    return RunSpec("a", data, settings, task=str(task))


@pytest.mark.parametrize("kind", ["cuda", "mps"])
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_run_on_a_gpu_equals_that_on_the_cpu_in_both_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str
) -> None:
    spec = spec_of(tmp_path, NORMED)
    here = run_one(spec)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
    with FakeDevice(kind) as gpu:
        there = run_one(replace(spec, device=kind, mode=mode))
        assert gpu.operations > 1000
    assert there["model_digest"] == here["model_digest"]
    for name in ("pooled", "loss", "validation"):
        assert [test[name] for test in there["evaluations"]] == [
            test[name] for test in here["evaluations"]
        ]
    assert there["personal"]["personal"] == here["personal"]["personal"]


def test_a_small_model_is_not_stacked_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(spec_of(tmp_path, SMALL), mode="fast")
    exact = run_one(replace(spec, mode="exact"))
    assert run_one(spec)["model_digest"] != exact["model_digest"], "on the CPU it is stacked"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with FakeDevice("cuda"):
        assert run_one(replace(spec, device="cuda"))["model_digest"] == exact["model_digest"]


def test_a_missing_device_is_refused_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"--device cuda: .*--device cpu works everywhere"):
        run_one(replace(RunSpec("a"), device="cuda"))
    out = tmp_path / "out"
    assert main(["simulate", "--device", "cuda", "--out", str(out)]) == ExitCode.USAGE
    assert "ssfl simulate: error: --device cuda: " in capsys.readouterr().err
    assert not out.exists()
    with pytest.raises(StudyError, match="device must be one of auto, cpu, cuda, mps, got 'tpu'"):
        replace(RunSpec("a"), device="tpu").check()


def test_the_digest_of_a_spec_depends_on_the_device() -> None:
    assert replace(RunSpec("a"), device="cuda").digest() != RunSpec("a").digest()

import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch

from learning.fake_device import FakeDevice
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import device, image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.device import choose_device, fingerprint, prepare_torch, working_on
from ssfl.learning.errors import DeviceError, LearningError, TaskError
from ssfl.learning.masked_training import train_locally
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def pretend(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "best"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_chooses_the_fastest_device(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, best: str
) -> None:
    pretend(monkeypatch, cuda=cuda, mps=mps)
    with FakeDevice("cuda" if cuda else "mps"):
        assert choose_device("auto") == torch.device(best)
        assert choose_device(best) == torch.device(best)
        assert choose_device("cpu") == torch.device("cpu")


def test_only_the_four_names_are_devices() -> None:
    with pytest.raises(DeviceError, match=r"one of auto, cpu, cuda, mps, got 'tpu'$"):
        choose_device("tpu")
    with pytest.raises(DeviceError, match="got 'cuda:1'; for that GPU, set CUDA_VISIBLE_DEVICES=1"):
        choose_device("cuda:1")


def test_a_torch_without_cuda_is_refused_with_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=False, mps=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    match = r"--device cuda: torch .* is built without CUDA; .*pytorch\.org/get-started.*cpu works"
    with pytest.raises(DeviceError, match=match):
        choose_device("cuda")


@pytest.mark.parametrize("visible", ["", "7", None])
def test_a_torch_that_sees_no_gpu_is_refused_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, visible: str | None
) -> None:
    pretend(monkeypatch, cuda=False, mps=False)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hidden = ""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        hidden = rf" \(CUDA_VISIBLE_DEVICES is '{visible}'\)"
    with pytest.raises(DeviceError, match=f"sees no GPU{hidden}; does nvidia-smi show one"):
        choose_device("cuda")


@pytest.mark.parametrize(("built", "match"), [(False, "torch for macOS"), (True, "no Apple")])
def test_mps_on_another_system_is_refused(
    monkeypatch: pytest.MonkeyPatch, built: bool, match: str
) -> None:
    pretend(monkeypatch, cuda=False, mps=False)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: built)
    with pytest.raises(DeviceError, match=f"--device mps: .*{match}"):
        choose_device("mps")


def test_torchs_warning_about_an_old_driver_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, cuda=False, mps=False)

    def is_available() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old\nmore", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    assert choose_device("auto") == CPU
    assert caplog.messages == ["The NVIDIA driver on your system is too old"]


def test_a_broken_gpu_is_refused_and_auto_continues_without_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A GPU too old for this torch is available, but its first kernel fails."""
    pretend(monkeypatch, cuda=True, mps=True)
    text = "CUDA error: no kernel image is available for execution on the device"
    ones = torch.ones

    def fail(*size: int, device: torch.device) -> torch.Tensor:
        if device.type == "cuda":
            raise torch.AcceleratorError(f"{text}\nmore")
        return ones(*size, device=device)

    monkeypatch.setattr(torch, "ones", fail)
    match = (
        f"--device cuda: it is present, but does not work: {text}; --device cpu works everywhere"
    )
    with pytest.raises(DeviceError, match=match):
        choose_device("cuda")
    assert not caplog.messages
    with FakeDevice("mps"):
        assert choose_device("auto") == torch.device("mps")
    assert caplog.messages == [f"{match}: trying the next device"]


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    prepare_torch(1)


@pytest.mark.usefixtures("threads")
def test_torch_is_prepared_for_deterministic_results(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_torch(2)
    assert torch.get_num_threads() == 2
    assert torch.get_num_interop_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()
    monkeypatch.setattr(device, "usable_cores", lambda: 3)
    prepare_torch(0)
    assert torch.get_num_threads() == 3
    assert ", 3 threads, " in fingerprint(CPU)
    with pytest.raises(DeviceError, match=r"--threads must be 0 \(every core\) or more, got -1"):
        prepare_torch(-1)


def test_a_thread_pool_that_already_runs_is_left_alone() -> None:
    code = (
        "import torch; from ssfl.learning.device import prepare_torch;"
        "torch.set_num_interop_threads(2); prepare_torch(1);"
        "assert torch.get_num_interop_threads() == 2; assert torch.get_num_threads() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_fingerprint_names_versions_threads_and_cpu() -> None:
    text = fingerprint(CPU)
    assert re.fullmatch(r"torch \d[^,]*, \w+, 1 thread, numpy \d[^,]*", text)
    assert torch.backends.cpu.get_cpu_capability() in text


def test_the_fingerprint_of_a_gpu_names_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.type}")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    assert ", GPU cuda, CUDA 12.6, cuDNN 91002, " in fingerprint(CUDA)
    monkeypatch.setattr(torch.version, "hip", "6.3")
    assert ", GPU cuda, ROCm 6.3, " in fingerprint(CUDA)
    assert ", mps, " in fingerprint(torch.device("mps"))


CUDA_FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore")
MPS_FULL = RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)")
CPU_FULL = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")


@pytest.mark.parametrize(
    ("where", "error", "advice"),
    [
        ("cuda", CUDA_FULL, "2.00 GiB: try --device cpu, or a smaller --batch-size on the coord"),
        ("mps", MPS_FULL, "9 GB): try --device cpu, or a smaller --batch-size on the coord"),
        ("cpu", CPU_FULL, "4 bytes: try a smaller --batch-size on the coordinator"),
    ],
)
def test_a_full_device_raises_an_error_with_a_remedy(
    where: str, error: Exception, advice: str
) -> None:
    with pytest.raises(DeviceError, match=re.escape(advice)), working_on(torch.device(where)):
        raise error
    with pytest.raises(DeviceError, match=re.escape(advice)), working_on(torch.device(where)):
        raise TaskError("task mine: loss raised it") from error  # not the task's fault


def test_running_out_of_memory_in_training_is_a_device_error(shard: Shard) -> None:
    settings = RunSettings(model="mlp")
    model = image_task.build_model(settings, shard)
    manifest = manifest_of(model, {})
    mask = Mask.full(manifest.num_masked)

    def exhaust(*_arguments: object) -> None:
        torch.empty(2**50)  # more than any process can address

    with pytest.raises(LearningError, match="try a smaller --batch-size"), working_on(CPU):
        train_locally(model, manifest, mask, image_task, shard, settings, 0, "a", exhaust)


def test_a_failing_gpu_is_a_device_error_and_other_errors_pass_through() -> None:
    failure = torch.AcceleratorError("CUDA error: device-side assert triggered\nmore")
    with pytest.raises(DeviceError, match="triggered; use --device cpu for"), working_on(CUDA):
        raise failure
    for error in (RuntimeError("a bug"), TaskError("task mine"), TypeError("a bug")):
        with pytest.raises(type(error), match=str(error)) as caught, working_on(CUDA):
            raise error
        assert caught.value is error


def test_a_nondeterministic_kernel_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """`put_` is nondeterministic on every device; `made_up` is invented. Warnings are errors."""
    values, index = torch.zeros(4), torch.tensor([1])

    def use(times: int) -> None:
        for _ in range(times):
            values.put_(index, torch.tensor([2.0]))
            warnings.warn("made_up does not have a deterministic implementation", stacklevel=1)

    with caplog.at_level(logging.WARNING), working_on(CPU):
        use(3)
    logged = "training may not be reproducible: {} does not have a deterministic implementation"
    assert caplog.messages == [logged.format("put_"), logged.format("made_up")]
    with pytest.raises(UserWarning, match="put_ does not have a deterministic"):
        use(1)  # outside the block, warnings are errors again


def test_other_warnings_are_left_alone() -> None:
    with pytest.raises(UserWarning, match="something else"), working_on(CPU):
        warnings.warn("something else", stacklevel=1)
    with pytest.warns(UserWarning, match="something else"), working_on(CPU):
        warnings.warn("something else", stacklevel=1)

import re

import pytest
import torch

from ssfl.learning.device import choose_device, fingerprint, prepare_torch
from ssfl.learning.errors import DeviceError


def pretend(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "best"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_takes_the_fastest_there_is(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, best: str
) -> None:
    pretend(monkeypatch, cuda=cuda, mps=mps)
    assert choose_device("auto") == torch.device(best)
    assert choose_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=False, mps=False)
    for name in ("cuda", "mps"):
        with pytest.raises(DeviceError, match=f"--device {name}: .* only cpu"):
            choose_device(name)
    with pytest.raises(DeviceError, match="one of auto, cpu, cuda, mps, got 'tpu'"):
        choose_device("tpu")


def test_torch_is_prepared_for_repeatable_bits() -> None:
    before = torch.get_num_threads()
    try:
        prepare_torch(2)
        assert torch.get_num_threads() == 2
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        prepare_torch(before)
    with pytest.raises(DeviceError, match="--threads must be at least 1, got 0"):
        prepare_torch(0)


def test_the_fingerprint_tells_what_the_bits_depend_on() -> None:
    text = fingerprint(torch.device("cpu"))
    assert re.fullmatch(r"torch \d[^,]*, \w+, 1 thread, numpy \d[^,]*", text)
    assert torch.backends.cpu.get_cpu_capability() in text


def test_the_fingerprint_of_a_gpu_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.type}")
    assert ", GPU cuda, CUDA " in fingerprint(torch.device("cuda"))
    assert ", mps, " in fingerprint(torch.device("mps"))

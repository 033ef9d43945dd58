"""What the coordinator makes of the settings in a file of --init."""

from pathlib import Path
from typing import Any

import pytest

from ssfl.method.image_settings import STATISTICS
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.model_io.safetensors_model import write_initial
from ssfl.server.loop.first_model import read_first_model

TENSOR = TensorSpec("0.weight", (4, 5), Role.MASKED, Init("normal", 0.5))
RECORDED = {"task": "image", "model": "mlp", "norm": "group", "width": 7}


def written(folder: Path, recorded: dict[str, Any]) -> Path:
    manifest = Manifest((TENSOR,), recorded)
    write_initial(folder / "first.safetensors", manifest, initial_vector(manifest, 0))
    return folder / "first.safetensors"


def test_a_built_in_network_brings_its_settings(tmp_path: Path) -> None:
    first = read_first_model(written(tmp_path, RECORDED), RunSettings(rounds=3))
    assert first.settings == RunSettings(rounds=3, model="mlp", width=7)
    other = written(tmp_path, {"task": "mine"})
    assert read_first_model(other, RunSettings(width=9)).settings == RunSettings(width=9)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"width": "abc"}, "width cannot be 'abc'"),
        ({"width": True}, "width cannot be True"),
        ({"width": -3}, "--width must be a number of at least 0, got -3"),
        ({"width": 10**9}, "--width must be at most 4096"),
        ({"model": ["x"]}, r"model cannot be \['x'\]"),
        ({"model": "vgg"}, "--model must be one of"),
        ({"norm": None}, "norm cannot be None"),
    ],
)
def test_settings_that_no_run_could_have_are_refused(
    tmp_path: Path, wrong: dict[str, Any], complaint: str
) -> None:
    path = written(tmp_path, {**RECORDED, **wrong})
    with pytest.raises(ProgramError, match=complaint) as caught:
        read_first_model(path, RunSettings())
    assert str(caught.value).startswith(f"--init: {path}: ")
    assert caught.value.exit_code == ExitCode.BAD_DATA


NUMBERS = STATISTICS["cifar10"]


@pytest.mark.parametrize("chosen", ["none", "auto", "cifar10", NUMBERS])
def test_the_statistics_of_pixels_come_from_the_file(tmp_path: Path, chosen: str) -> None:
    path = written(tmp_path, {**RECORDED, "normalize": NUMBERS})
    assert read_first_model(path, RunSettings(normalize=chosen)).settings.normalize == NUMBERS
    plain = written(tmp_path, RECORDED)
    assert read_first_model(plain, RunSettings(normalize="auto")).settings.normalize == "none"


def test_other_statistics_than_those_of_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"the file is for --normalize none, this run has 0\.4"):
        read_first_model(written(tmp_path, RECORDED), RunSettings(normalize="cifar10"))
    path = written(tmp_path, {**RECORDED, "normalize": "0.5/0.5"})
    with pytest.raises(ProgramError, match=r"the file is for --normalize 0\.5/0\.5, this run"):
        read_first_model(path, RunSettings(normalize="0.5/0.25"))
    path = written(tmp_path, {**RECORDED, "normalize": "0.5/0"})
    with pytest.raises(ProgramError, match="--normalize must be"):
        read_first_model(path, RunSettings())


def test_another_network_than_the_chosen_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="the file is for --model mlp, this run has resnet20"):
        read_first_model(written(tmp_path, RECORDED), RunSettings(model="resnet20"))

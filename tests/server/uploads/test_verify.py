from pathlib import Path

import numpy as np
import pytest

from ssfl.method.exact_sum import VALUE_BOUND
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.server.errors import BadValues
from ssfl.server.storage import upload_files
from ssfl.server.storage.upload_files import StoredValues
from ssfl.server.uploads.verify import ScoreCheck, ValueCheck, largest_of
from ssfl.strategies.contract import ClientId

ANN = ClientId("ann")
QUIET_NAN, SIGNALLING_NAN, INF, MINUS_INF = 0x7FC00001, 0x7F800001, 0x7F800000, 0xFF800000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "upload"


@pytest.fixture(params=[1, 2, 1 << 18], ids=lambda block: f"blocks of {block}")
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of this many values, so that each value is once the first and once the last."""
    monkeypatch.setattr(upload_files, "BLOCK", request.param)
    size: int = request.param
    return size


def write(path: Path, *values: float) -> None:
    path.write_bytes(np.array(values, dtype="<f4").tobytes())


def write_with(path: Path, count: int, at: int, word: int) -> None:
    words = np.full(count, 0x3F800000, dtype="<u4")
    words[at] = word
    path.write_bytes(words.tobytes())


def verified(path: Path, model: ModelState) -> float:
    assert model.mask is not None
    check = ValueCheck(ANN, model.manifest, model.mask)
    return largest_of(StoredValues(path).blocks(6), check)


def verified_scores(path: Path, manifest: Manifest) -> float:
    return largest_of(StoredValues(path).blocks(6), ScoreCheck(ANN, manifest))


@pytest.mark.usefixtures("block")
def test_sound_scores_are_measured(path: Path, manifest: Manifest) -> None:
    write(path, 0.0, 0.25, -0.0, 3.5, 1e-40, 2.0)
    assert verified_scores(path, manifest) == 3.5
    write(path, *[0.0] * 6)
    assert verified_scores(path, manifest) == 0.0


@pytest.mark.usefixtures("block")
def test_sound_values_are_measured_by_size(path: Path, model: ModelState) -> None:
    write(path, 0.0, 0.25, -3.5, 3.0, 1e-40, -0.0)
    assert verified(path, model) == 3.5


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("word", [QUIET_NAN, SIGNALLING_NAN, INF, MINUS_INF, 0xBF800000])
def test_a_bad_score_is_refused_naming_its_tensor(
    path: Path, manifest: Manifest, word: int
) -> None:
    names = ["conv.weight"] * 4 + ["fc.weight"] * 2
    for at, name in enumerate(names):
        write_with(path, 6, at, word)
        with pytest.raises(BadValues, match=rf"^ann sent a score of \S+ in {name}: scores must"):
            verified_scores(path, manifest)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("word", [QUIET_NAN, SIGNALLING_NAN, INF, MINUS_INF, 0x44800001])
def test_a_bad_value_is_refused_naming_its_tensor(path: Path, model: ModelState, word: int) -> None:
    """Kept are coordinates 1 and 3 of conv.weight and 0 of fc.weight; then bias and buffer."""
    names = ["conv.weight"] * 2 + ["fc.weight"] + ["conv.bias"] * 2 + ["norm.mean"]
    for at, name in enumerate(names):
        write_with(path, 6, at, word)
        with pytest.raises(BadValues, match=rf"^ann sent a value of size \S+ in {name}: .* 1024; "):
            verified(path, model)


def test_a_value_may_be_as_large_as_the_bound(path: Path, model: ModelState) -> None:
    write(path, VALUE_BOUND, -VALUE_BOUND, 0, 0, 0, 0)
    assert verified(path, model) == VALUE_BOUND
    write(path, 0, float(np.nextafter(np.float32(VALUE_BOUND), np.float32(np.inf))), 0, 0, 0, 0)
    with pytest.raises(BadValues, match=r"value of size 1024\.0001"):
        verified(path, model)


def test_the_first_of_several_bad_values_is_named(path: Path, model: ModelState) -> None:
    write(path, 0, 0, 2000, 0, 3000, 0)
    with pytest.raises(BadValues, match=r"2000\.0 in fc\.weight"):
        verified(path, model)


def test_without_pruning_a_place_is_its_coordinate(path: Path, manifest: Manifest) -> None:
    write_with(path, 9, 8, QUIET_NAN)
    with pytest.raises(BadValues, match=r"in norm\.mean"):
        largest_of(StoredValues(path).blocks(9), ValueCheck(ANN, manifest, Mask.full(6)))

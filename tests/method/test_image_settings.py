"""Settings of images: what `auto` stands for, and the numbers of --normalize."""

import numpy as np
import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.image_settings import (
    STATISTICS,
    constant_tensors,
    parse_statistics,
    resolve_augment,
    resolve_initialization,
    resolve_normalize,
)
from ssfl.method.settings import RunSettings

PAPER = [((3, 32, 32), 10), ((3, 32, 32), 100), ((3, 64, 64), 200)]
OTHERS = [((1, 8, 8), 10), ((1, 28, 28), 10), ((3, 28, 28), 10), ((30,), 2)]


@pytest.mark.parametrize(("shape", "classes"), PAPER, ids=str)
def test_auto_is_the_recipe_of_the_paper_for_images_of_its_data_sets(
    shape: tuple[int, ...], classes: int
) -> None:
    assert resolve_augment("auto", shape) == "crop-flip"
    assert resolve_initialization("auto", shape) == "paper"
    names = {10: STATISTICS["cifar10"], 100: STATISTICS["cifar100"], 200: "0.5/0.5"}
    assert resolve_normalize("auto", shape, classes) == names[classes]


@pytest.mark.parametrize(("shape", "classes"), OTHERS, ids=str)
def test_auto_is_the_plain_default_for_all_other_samples(
    shape: tuple[int, ...], classes: int
) -> None:
    assert resolve_augment("auto", shape) == "none"
    assert resolve_initialization("auto", shape) == "kaiming-normal"
    assert resolve_normalize("auto", shape, classes) == "none"


@pytest.mark.parametrize(("shape", "classes"), [*PAPER, *OTHERS], ids=str)
def test_a_value_that_is_set_holds_for_all_samples(shape: tuple[int, ...], classes: int) -> None:
    for augment in ("none", "crop-flip"):
        assert resolve_augment(augment, shape) == augment
    for rule in ("kaiming-normal", "torch-default", "paper"):
        assert resolve_initialization(rule, shape) == rule
    assert resolve_normalize("none", shape, classes) == "none"
    assert resolve_normalize("cifar100", shape, classes) == STATISTICS["cifar100"]
    assert resolve_normalize("0.1/0.2", shape, classes) == "0.1/0.2"


def test_statistics_have_a_mean_and_a_deviation_for_each_channel() -> None:
    assert parse_statistics("0.5:0.4:-1/0.25:2e-1:3") == ((0.5, 0.4, -1.0), (0.25, 0.2, 3.0))
    for text in STATISTICS.values():
        means, deviations = parse_statistics(text)
        assert len(means) == len(deviations) == 3
        assert all(0.4 < mean < 0.6 for mean in means)
        assert all(0.2 < deviation < 0.3 for deviation in deviations)


@pytest.mark.parametrize(
    "text",
    ["", "cifar", "0.5", "0.5/", "/0.5", "0.5:0.5/0.5", "0.5/0", "0.5/-1", "nan/1", "0/inf", "a/b",
     "0.5/0.5/0.5", "0.5/1e-9"],
)  # fmt: skip
def test_other_statistics_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--normalize must be .* such as 0\.5:0\.4:0\.4/"):
        RunSettings(normalize=text).validate()


def test_augmented_scoring_needs_an_augmentation() -> None:
    with pytest.raises(SettingsError, match="--no-scoring-augment"):
        RunSettings(scoring_augment=True).validate()
    RunSettings(scoring_augment=True, augment="auto").validate()


def test_the_constants_of_a_network_come_from_its_description() -> None:
    constants = constant_tensors({"normalize": "0.5:0.25/2:4"})
    assert {name: array.shape for name, array in constants.items()} == {
        "normalize.mean": (2, 1, 1), "normalize.std": (2, 1, 1),
    }  # fmt: skip
    assert constants["normalize.mean"].dtype == np.float32
    assert constants["normalize.std"].ravel().tolist() == [2, 4]
    for unusable in ({}, {"normalize": "none"}, {"normalize": 3}, {"normalize": ["x"]}):
        assert constant_tensors(unusable) == {}

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.published.cifar_files import cifar_files, write_files
from ssfl.datasets.errors import PartitionError, SourceError
from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import Shard, read_shard
from ssfl.datasets.shards.write import make_shards
from ssfl.method.errors import SettingsError
from ssfl.study.data import (
    BENCHMARK_S,
    DataSpec,
    _read,
    arrivals,
    available,
    build_shards,
    first_available,
)

ARRAYS = ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y")
LATE = DataSpec(clients=10, late_classes="8,9", late_clients=3, late_round=30)


def same(first: Shard, other: Shard) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(other, name)) for name in ARRAYS)


def rows(shards: dict[str, Shard], name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the samples of all clients as sorted rows, with the label first."""
    x, y = f"{name}_x", f"{name}_y"
    all_x = np.concatenate([getattr(s, x).reshape(len(getattr(s, x)), -1) for s in shards.values()])
    all_y = np.concatenate([getattr(s, y) for s in shards.values()])
    joined = np.column_stack([all_y.astype(np.float32), all_x])
    return joined[np.lexsort(joined.T)]


@pytest.mark.parametrize("partition", ["dirichlet", "classes", "iid", "dirichlet-unbalanced"])
def test_a_study_has_the_shards_that_ssfl_shards_writes(tmp_path: Path, partition: str) -> None:
    cut = Cut(clients=6, partition=partition, validation=0.25, seed=7)
    written = make_shards(tmp_path, digits(), cut).paths
    spec = DataSpec(clients=6, partition=partition, validation=0.25)
    shards = build_shards(spec, seed=7)
    assert list(shards) == [path.stem for path in written]
    for path, shard in zip(written, shards.values(), strict=True):
        stored = read_shard(path)
        assert same(stored, shard)
        assert (stored.num_classes, stored.class_names) == (shard.num_classes, shard.class_names)


def test_shards_depend_on_the_seed() -> None:
    spec = DataSpec(clients=5, samples_per_client=50, validation=0.1)
    first, again, other = (build_shards(spec, seed) for seed in (3, 3, 4))
    assert all(same(first[name], again[name]) for name in first)
    assert not any(same(first[name], other[name]) for name in first)


def test_a_part_of_the_training_samples_is_tested_on_the_whole_test_set() -> None:
    whole = digits()
    shards = build_shards(DataSpec(clients=5, samples_per_client=50), seed=1)
    assert {shard.num_samples for shard in shards.values()} == {50}
    drawn, everything = rows(shards, "train"), rows({"": _as_shard(whole)}, "train")
    assert {row.tobytes() for row in drawn} <= {row.tobytes() for row in everything}
    assert np.array_equal(rows(shards, "test"), rows({"": _as_shard(whole)}, "test"))


def _as_shard(data: Any) -> Shard:
    return Shard(data.train_x, data.train_y, data.test_x, data.test_y, data.num_classes)


def test_too_many_samples_per_client_are_refused() -> None:
    with pytest.raises(PartitionError, match=r"need 1600, but digits has 14\d\d for them"):
        build_shards(DataSpec(clients=4, samples_per_client=400), seed=0)


def test_pooling_takes_the_mean_of_squares() -> None:
    spec = DataSpec(clients=1, partition="iid")
    (large,) = build_shards(spec, seed=0).values()
    (small,) = build_shards(replace(spec, pool=4), seed=0).values()
    assert small.input_shape == (1, 2, 2)
    expected = large.train_x.reshape(-1, 1, 2, 4, 2, 4).astype(np.float64).mean(axis=(3, 5))
    np.testing.assert_allclose(small.train_x, expected, rtol=1e-6)
    with pytest.raises(SettingsError, match="images of 8x8 cannot be pooled by 3"):
        build_shards(replace(spec, pool=3), seed=0)


@pytest.mark.parametrize("partition", ["dirichlet", "classes", "iid"])
def test_only_late_clients_have_late_classes(partition: str) -> None:
    spec = replace(LATE, partition=partition, validation=0.2)
    shards = build_shards(spec, seed=2)
    late = arrivals(spec)
    assert list(late) == list(shards)[-3:] == ["shard_07", "shard_08", "shard_09"]
    assert set(late.values()) == {30}
    for name, shard in shards.items():
        for labels in (shard.train_y, shard.val_y, shard.test_y):
            assert (np.isin(labels, (8, 9)) == (name in late)).all()
    assert np.array_equal(rows(shards, "test"), rows({"": _as_shard(digits())}, "test"))
    assert sum(s.num_samples + len(s.val_y) for s in shards.values()) == len(digits().train_y)


def test_one_late_class_can_arrive_where_clients_hold_two_each() -> None:
    spec = replace(LATE, partition="classes", late_classes="9")
    shards = build_shards(spec, seed=0)
    assert all(set(shards[name].train_y.tolist()) == {9} for name in arrivals(spec))


def test_late_and_early_clients_have_the_same_number_of_samples() -> None:
    shards = build_shards(replace(LATE, samples_per_client=40), seed=0)
    assert {shard.num_samples for shard in shards.values()} == {40}


def test_without_late_classes_late_clients_are_like_the_others() -> None:
    spec = DataSpec(clients=4, late_clients=1, late_round=5)
    assert arrivals(spec) == {"shard_03": 5}
    plain = build_shards(DataSpec(clients=4), seed=0)
    assert all(same(plain[name], shard) for name, shard in build_shards(spec, seed=0).items())
    assert arrivals(DataSpec(clients=4)) == {}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clients": 0}, "clients must be 1 or more, got 0"),
        ({"partition": "even"}, "must be one of dirichlet, .*got 'even'"),
        ({"alpha": 0.0}, "alpha must be between"),
        ({"pool": 0}, "pool must be 1 or more"),
        ({"validation": 1.0}, "validation must be at least 0 and below 1"),
        ({"late_clients": 8}, "leaves none of 8 clients"),
        ({"late_classes": "8"}, "late_classes needs late_clients"),
        ({"late_clients": 1}, "late_clients needs late_round"),
        (
            {"late_classes": "8;9", "late_clients": 1, "late_round": 1},
            "0 to 9, separated by commas; got '8;9'",
        ),
        ({"late_classes": "10", "late_clients": 1, "late_round": 1}, "got '10'"),
        (
            {"late_classes": "0,1,2,3,4,5,6,7,8,9", "late_clients": 1, "late_round": 1},
            "names all classes",
        ),
    ],
)
def test_an_impossible_spec_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build_shards(replace(DataSpec(), **changed), seed=0)


def test_a_folder_of_shards_is_used_unchanged(tmp_path: Path) -> None:
    paths = make_shards(tmp_path, digits(), Cut(clients=3)).paths
    spec = DataSpec(source=str(tmp_path), late_clients=1, late_round=9)
    shards = build_shards(spec, seed=5)
    assert all(same(read_shard(path), shards[path.stem]) for path in paths)
    assert arrivals(spec) == {"shard_02": 9}
    with pytest.raises(SettingsError, match="alpha is for cutting one of digits"):
        build_shards(replace(spec, alpha=1.0), seed=0)
    with pytest.raises(SettingsError, match="leaves none of the 3 shards"):
        build_shards(replace(spec, late_clients=3), seed=0)


def test_a_missing_source_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SourceError, match=r"fashion.* is neither a data set nor a folder"):
        build_shards(DataSpec(source="fashion"), seed=0)
    with pytest.raises(SourceError, match=r"cifar100 not found in .*--source cifar100 --download"):
        build_shards(DataSpec(source="cifar100"), seed=0)
    assert not available("cifar100")
    assert available("digits")
    assert available(str(tmp_path))
    assert first_available("cifar100", str(tmp_path / "none"), "digits") == "digits"
    with pytest.raises(SourceError, match="cifar100 not found"):
        first_available("cifar100")


def test_a_known_data_set_is_found_in_data_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ssfl.study.data._read", _read.__wrapped__)  # without its cache
    assert not available("cifar100")
    write_files(tmp_path / "data" / "cifar100", cifar_files("cifar100", "binary"))
    assert available("cifar100")


@pytest.mark.skipif(not available("fashion-mnist"), reason="needs Fashion-MNIST")
def test_benchmark_s_is_a_hundred_clients_of_two_hundred_small_images() -> None:
    shards = build_shards(BENCHMARK_S, seed=0)
    assert list(shards) == [f"shard_{client:02d}" for client in range(100)]
    assert {shard.num_samples for shard in shards.values()} == {200}
    assert {shard.train_x.shape for shard in shards.values()} == {(200, 1, 14, 14)}
    assert sum(len(shard.test_y) for shard in shards.values()) == 10_000
    pixels = np.concatenate([shard.train_x for shard in shards.values()])
    assert pixels.dtype == np.float32
    assert pixels.min() == 0 and 0.99 < pixels.max() <= 1
    # A pixel is the mean of four bytes, so it is a multiple of 1/1020.
    np.testing.assert_allclose(pixels * 1020, np.rint(pixels * 1020), atol=1e-3)

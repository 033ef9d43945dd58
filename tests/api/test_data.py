from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path

import numpy as np
import pytest

from ssfl import api
from ssfl.api.data import by_client
from ssfl.datasets.errors import PartitionError, ShardError, SourceError
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import write_shard
from ssfl.method.errors import SettingsError
from ssfl.tools.main import main

ARRAYS = ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y")


def images(count: int = 12) -> api.DataSet:
    x = (np.arange(count * 16) % 256).astype(np.uint8).reshape(count, 1, 4, 4)
    y = np.arange(count) % 3
    return api.DataSet("images", x, y, x[:3], y[:3], ("a", "b", "c"))


def test_digits_in_memory_equal_the_shards_of_the_command(tmp_path: Path) -> None:
    assert main(["shards", "--clients=3", "--alpha=0.5", "--seed=4", f"--out={tmp_path}"]) == 0
    written = api.read_shards(tmp_path)
    assert list(written) == ["shard_00", "shard_01", "shard_02"]
    mine = by_client(api.digits(clients=3, alpha=0.5, seed=4))
    assert list(mine) == list(written)
    for name, shard in written.items():
        for array in ARRAYS:
            assert np.array_equal(getattr(mine[name], array), getattr(shard, array))
        assert mine[name].class_names == shard.class_names


@pytest.mark.parametrize("function", [api.digits, api.cut])
def test_defaults_equal_those_of_the_command(function: Callable[..., object]) -> None:
    defaults = {field.name: field.default for field in fields(Cut)}
    own = {
        name: parameter.default
        for name, parameter in signature(function).parameters.items()
        if parameter.default is not Parameter.empty
    }
    assert own and own == {name: defaults[name] for name in own}


def test_another_seed_gives_other_shards() -> None:
    first, second = api.digits(clients=2, seed=1), api.digits(clients=2, seed=2)
    assert not np.array_equal(first[0].train_x, second[0].train_x)


def test_pixels_are_scaled_as_a_client_scales_them() -> None:
    (shard,) = api.cut(images(), clients=1, validation=0)
    assert shard.train_x.dtype == np.float32
    assert np.array_equal(np.sort(shard.train_x.ravel()),
                          np.sort(images().train_x.ravel().astype(np.float32) / 255))  # fmt: skip


def test_cut_reads_a_file(tmp_path: Path) -> None:
    data = images()
    np.savez(tmp_path / "mine.npz", x=data.train_x, y=data.train_y)
    source, options = tmp_path / "mine.npz", {"clients": 2, "partition": "iid", "test_share": 0.25}
    shards = api.cut(source, **options, layout="nchw")  # type: ignore[arg-type]
    assert sum(len(s.train_y) + len(s.val_y) + len(s.test_y) for s in shards) == 12


def test_errors_name_keywords_instead_of_flags() -> None:
    with pytest.raises(PartitionError, match="among 50 clients") as error:
        api.cut(images(), clients=50)
    assert "--" not in str(error.value)
    with pytest.raises(SettingsError, match=r"^test_share must be at least 0"):
        api.cut(images(), test_share=2)
    with pytest.raises(PartitionError, match="classes_per_client 9 is impossible"):
        api.cut(images(), partition="classes", classes_per_client=9)


def test_unknown_sources_and_options_are_refused() -> None:
    with pytest.raises(SourceError, match=r"mnits.* mnist"):
        api.cut("mnits")
    with pytest.raises(TypeError, match=r"lable is not an option of cut; .* label"):
        api.cut("mnist", lable="x")
    with pytest.raises(TypeError, match="label is for reading a source; this is a DataSet"):
        api.cut(images(), label="x")


def test_a_folder_without_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="holds no shards; make some with: ssfl shards"):
        api.read_shards(tmp_path)
    with pytest.raises(ShardError, match="there are no shards"):
        by_client([])


def test_a_broken_shard_is_named(tmp_path: Path, shards: list[api.Shard]) -> None:
    write_shard(tmp_path / "a.npz", shards[0])
    (tmp_path / "b.npz").write_bytes(b"nothing")
    with pytest.raises(ShardError, match=r"b\.npz"):
        api.read_shards(tmp_path)


def test_other_files_in_a_folder_of_shards_are_refused(
    tmp_path: Path, shards: list[api.Shard]
) -> None:
    write_shard(tmp_path / "a.npz", shards[0])
    (tmp_path / "notes.txt").write_text("as for the commands, this might be a shard")
    with pytest.raises(ShardError, match=r"notes\.txt: this is not a numpy \.npz archive"):
        api.read_shards(tmp_path)


def test_a_list_of_more_than_a_hundred_has_longer_names(shards: list[api.Shard]) -> None:
    names = list(by_client(shards * 34))
    assert (names[0], names[-1]) == ("shard_000", "shard_101")
    assert names == sorted(names)


def test_named_shards_are_sorted_by_name(shards: list[api.Shard]) -> None:
    assert list(by_client({"b": shards[0], "a": shards[1]})) == ["a", "b"]

import resource
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards.shard_file import Shard, class_counts, read_shard, write_shard


def good_arrays() -> dict[str, Any]:
    return {
        "train_x": np.ones((3, 1, 4, 4), dtype=np.float32),
        "train_y": np.array([0, 1, 1]),
        "test_x": np.zeros((2, 1, 4, 4), dtype=np.float32),
        "test_y": np.array([1, 0]),
        "num_classes": np.int64(2),
    }


def save(path: Path, **changes: Any) -> Path:
    """Write a shard file with numpy: good arrays, some replaced or, if None, omitted."""
    arrays = {k: v for k, v in (good_arrays() | changes).items() if v is not None}
    np.savez(path, **arrays)
    return path


def with_value(value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    x = np.ones((3, 1, 4, 4), dtype=np.float32)
    x[1, 0, 2, 3] = value
    return x


def test_a_shard_is_read_back(tmp_path: Path, shard: Shard) -> None:
    path = tmp_path / "shard_00.npz"
    write_shard(path, shard)
    back = read_shard(path)
    for name in ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(back, name), getattr(shard, name))
        assert getattr(back, name).dtype == getattr(shard, name).dtype
    assert (back.num_classes, back.num_samples, back.input_shape) == (4, 50, (1, 8, 8))


def test_the_same_shard_gives_the_same_bytes_and_leaves_no_other_file(
    tmp_path: Path, shard: Shard
) -> None:
    for name in ("a.npz", "b.npz"):
        write_shard(tmp_path / name, shard)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, shard: Shard) -> None:
    path = tmp_path / "shard_00.npz"
    write_shard(path, shard)
    before = path.read_bytes()
    unwritable = replace(shard)
    object.__setattr__(unwritable, "test_x", np.array([object()]))
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        write_shard(path, unwritable)
    assert path.read_bytes() == before


def test_validation_samples_and_names_of_classes_are_kept(tmp_path: Path, shard: Shard) -> None:
    names = ("a", "ü", "数", "[d]")
    whole = Shard(
        shard.train_x, shard.train_y, shard.test_x, shard.test_y, 4,
        shard.test_x[:3], shard.test_y[:3], names,
    )  # fmt: skip
    write_shard(tmp_path / "s.npz", whole)
    back = read_shard(tmp_path / "s.npz")
    np.testing.assert_array_equal(back.val_x, shard.test_x[:3])
    np.testing.assert_array_equal(back.val_y, shard.test_y[:3])
    assert back.class_names == names


def test_a_shard_without_validation_samples_has_empty_arrays_of_the_right_type(
    shard: Shard,
) -> None:
    assert shard.val_x.shape == (0, 1, 8, 8) and shard.val_x.dtype == np.float32
    assert shard.val_y.shape == (0,) and shard.val_y.dtype == np.int64
    assert shard.class_names == ()


def test_a_file_of_format_one_is_read(tmp_path: Path) -> None:
    back = read_shard(save(tmp_path / "s.npz"))  # format 1 has no "format"
    assert len(back.val_y) == 0 and back.num_samples == 3


def test_a_file_of_format_two_needs_no_validation_and_no_names(tmp_path: Path) -> None:
    back = read_shard(save(tmp_path / "s.npz", format=np.int64(2)))
    assert len(back.val_y) == 0 and back.class_names == ()


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_targets_may_be_numbers(tmp_path: Path, shape: tuple[int, ...]) -> None:
    y = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    path = save(tmp_path / "s.npz", num_classes=np.int64(0), train_y=y, test_y=y[:2])
    back = read_shard(path)
    np.testing.assert_array_equal(back.train_y, y)
    assert back.num_classes == 0 and class_counts(back.train_y) == {}


def test_a_target_that_is_nan_is_refused(tmp_path: Path) -> None:
    y = np.array([1, np.nan, 2], dtype=np.float32)
    path = save(tmp_path / "s.npz", num_classes=np.int64(0), train_y=y, test_y=y[:1].repeat(2))
    with pytest.raises(ShardError, match="train_y holds NaN or infinity, first in sample 1"):
        read_shard(path)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_sequences_stay_integers(tmp_path: Path, dtype: Any) -> None:
    x = np.array([[5, 0, 9], [1, 2, 3], [7, 7, 7]], dtype=dtype)
    back = read_shard(save(tmp_path / "s.npz", train_x=x, test_x=x[:2]))
    np.testing.assert_array_equal(back.train_x, x)
    assert back.train_x.dtype == dtype


def test_a_table_and_samples_of_any_shape_are_read(tmp_path: Path) -> None:
    for shape in ((3, 5), (3, 2, 4), (3, 1, 2, 2, 2)):
        x = np.ones(shape, dtype=np.float32)
        assert (
            read_shard(save(tmp_path / "s.npz", train_x=x, test_x=x[:2])).input_shape == shape[1:]
        )


def test_a_shard_may_hold_only_one_of_several_classes(tmp_path: Path) -> None:
    back = read_shard(save(tmp_path / "s.npz", train_y=np.array([1, 1, 1])))
    assert class_counts(back.train_y) == {1: 3}


def test_uint16_pixels_are_scaled_to_the_unit_interval(tmp_path: Path) -> None:
    x = np.array([0, 13107, 65535], dtype=np.uint16).reshape(3, 1, 1, 1)
    back = read_shard(save(tmp_path / "s.npz", train_x=x, test_x=x[:2]))
    assert back.train_x.dtype == np.float32
    assert back.train_x.reshape(-1).tolist() == [0.0, np.float32(13107) / np.float32(65535), 1.0]


def test_byte_order_and_memory_layout_are_normalised(
    tmp_path: Path,
) -> None:
    x = np.arange(48, dtype=">f4").reshape(3, 1, 4, 4)
    path = save(tmp_path / "s.npz", train_x=np.asfortranarray(x), test_x=x[:2])
    back = read_shard(path).train_x
    np.testing.assert_array_equal(back, x)
    assert back.dtype == np.float32 and back.dtype.isnative and back.flags.c_contiguous


def test_uint8_pixels_are_scaled_to_the_unit_interval(tmp_path: Path) -> None:
    x = np.array([0, 51, 255], dtype=np.uint8).reshape(3, 1, 1, 1)
    path = save(tmp_path / "s.npz", train_x=x, test_x=x[:2])
    back = read_shard(path)
    assert back.train_x.dtype == np.float32
    assert back.train_x.reshape(-1).tolist() == [0.0, np.float32(51) / np.float32(255), 1.0]


def test_a_shard_without_test_samples_is_read(tmp_path: Path) -> None:
    nothing = np.zeros((0, 1, 4, 4), dtype=np.float32)
    path = save(tmp_path / "s.npz", test_x=nothing, test_y=np.zeros(0, dtype=np.int64))
    assert len(read_shard(path).test_y) == 0


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"test_y": None, "num_classes": None}, "lacks test_y, num_classes"),
        (
            {"train_x": np.ones(3, dtype=np.float32)},
            r"train_x must have shape \(N, …\) with at least one value per sample, not \(3,\)",
        ),
        ({"train_x": np.float32(3)}, "train_x must have shape"),
        ({"train_x": np.ones((3, 1, 0, 4), dtype=np.float32)}, "train_x must have shape"),
        (
            {"train_x": np.ones((3, 1, 4, 4))},
            r"must be float32, uint8 or uint16 \(int32 or int64 for sequences\), not float64",
        ),
        (
            {"train_x": np.ones((3, 1, 4, 4), dtype=np.int64)},
            r"train_x is int64, which is for sequences \(N, length\), but has shape \(3, 1, 4"
            r", 4\); "
            "save images as uint8, uint16 or float32",
        ),
        ({"train_x": np.ones((3, 4), dtype=bool)}, "not bool"),
        ({"train_x": np.ones((3, 4), dtype=np.complex64)}, "not complex64"),
        ({"train_x": np.array([["a"], ["b"], ["c"]])}, "not <U1"),
        ({"test_x": np.ones((2, 16), dtype=np.int64)}, "train_x is float32 but test_x is int64"),
        ({"train_y": np.array([0.0, 1.0, 1.0])}, "train_y must be a row of int64, not float64"),
        ({"train_y": np.array([[0], [1], [1]])}, "train_y must be a row of int64"),
        ({"train_y": np.array([0, 1])}, "train_x has 3 samples but train_y has 2 labels"),
        ({"train_y": np.array([0, 1, 2])}, r"labels 0 … 2, but 2 classes are 0 … 1"),
        ({"test_y": np.array([-1, 1])}, r"test_y holds labels -1 … 1"),
        ({"test_x": np.zeros((2, 1, 5, 4), dtype=np.float32)}, "different shapes"),
        ({"num_classes": np.array([2, 2])}, "num_classes must be one int64"),
        (
            {"num_classes": np.int64(1)},
            "num_classes is 1, but a classifier needs at least two classes; it counts the classes "
            "of all sites together, and is 0 where the targets are numbers",
        ),
        ({"num_classes": np.int64(-1)}, r"num_classes must be 2 … 1000000, or 0 for numbers"),
        ({"num_classes": np.int64(10**12)}, "got 1000000000000"),
        (
            {"num_classes": np.int64(0)},
            r"train_y must be float32 of shape \(N,\) or \(N, d\) as num_classes is 0, not int64",
        ),
        ({"format": np.int64(3)}, "it has format 3; this program reads 1 to 2"),
        ({"format": np.int64(0)}, "it has format 0"),
        ({"format": np.array("two")}, "format must be one int64"),
        ({"val_x": np.ones((1, 1, 4, 4), dtype=np.float32)}, "has val_x but lacks val_y"),
        ({"val_y": np.array([1])}, "has val_y but lacks val_x"),
        (
            {"val_x": np.ones((1, 1, 4, 4), dtype=np.float32), "val_y": np.array([2])},
            "val_y holds labels 2 … 2, but 2 classes are 0 … 1",
        ),
        (
            {"val_x": np.ones((1, 1, 4, 5), dtype=np.float32), "val_y": np.array([1])},
            "train and validation samples have different shapes",
        ),
        ({"class_names": np.array(["a", "b", "c"])}, "there are 3 class_names for 2 classes"),
        ({"class_names": np.array([1, 2])}, "class_names must be a row of text, not int64"),
        ({"train_x": with_value(np.nan)}, "train_x holds NaN or infinity, first in sample 1"),
        ({"train_x": with_value(-np.inf)}, "train_x holds NaN or infinity"),
        (
            {"train_x": np.zeros((0, 1, 4, 4), np.float32), "train_y": np.zeros(0, np.int64)},
            "no training samples",
        ),
        ({"train_y": np.array([{}, {}, {}])}, "train_y holds Python objects, which are never read"),
    ],
)
def test_an_invalid_shard_is_refused_with_its_path(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    path = save(tmp_path / "odd.npz", **changes)
    with pytest.raises(ShardError, match=complaint) as caught:
        read_shard(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_empty_foreign_or_truncated_file_raises_shard_error(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    with pytest.raises(ShardError, match="no such file"):
        read_shard(path)
    path.write_bytes(b"")
    with pytest.raises(ShardError, match=r"s\.npz: the file is empty"):
        read_shard(path)
    with pytest.raises(ShardError, match="this is a folder, not a file"):
        read_shard(tmp_path)
    for content in (b"not a shard", np.zeros(3).tobytes()):
        path.write_bytes(content)
        with pytest.raises(ShardError, match=r"not a numpy \.npz archive"):
            read_shard(path)
    whole = save(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ShardError, match="cut short"):
        read_shard(path)


def test_a_damaged_byte_raises_no_other_error_than_shard_error(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    whole = save(path).read_bytes()
    refused = 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            read_shard(path)  # some bytes, such as file dates, do not matter
        except ShardError:
            refused += 1
    assert refused > len(whole) / 7 / 2


def test_an_archive_with_an_invalid_numpy_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in good_arrays():
            archive.writestr(f"{name}.npy", b"\x93NUMPY but not really")
    with pytest.raises(ShardError, match=r"train_x has numpy format version 32\.98"):
        read_shard(path)


def header(shape: str, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            header("(10000000000000, 4)"),
            r"announces float32 of shape \(1\d+, 4\), but 0 bytes foll",
        ),
        (header("(-2, -8)") + bytes(64), r"announces float32 of shape \(-2, -8\)"),
        (header("(3, 4)") + bytes(40), "but 40 bytes follow"),
        (header("(3, 4)") + bytes(60), "but 60 bytes follow"),
        (header("(10000000000000,)", "|V0"), "but 0 bytes follow"),
        (header("(3, 4)", "|O") + bytes(96), "holds Python objects"),
        (header("(3, 4)", "nonsense"), "cannot be read"),
        (b"", "cannot be read"),
    ],
)
@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_whose_header_does_not_match_its_bytes_is_refused(
    tmp_path: Path, content: bytes, complaint: str, packing: int
) -> None:
    path = save(tmp_path / "s.npz", train_x=None)
    with zipfile.ZipFile(path, "a", packing) as archive:
        archive.writestr("train_x.npy", content)
    with pytest.raises(ShardError, match=complaint):
        read_shard(path)


def test_an_entry_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "s.npz")
    whole = bytearray(path.read_bytes())
    at = whole.rindex(b"train_x.npy") - 46 + 24  # the size in the central directory
    whole[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(whole)
    with pytest.raises(ShardError, match="train_x claims 4294967294 bytes, more than the file can"):
        read_shard(path)


def test_an_unsupported_compression_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "s.npz", train_x=None)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("train_x.npy", header("(3, 4)") + bytes(48))
    with pytest.raises(ShardError, match=r"train_x has an unsupported compression"):
        read_shard(path)


def test_a_compressed_archive_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "s.npz", allow_pickle=False, **good_arrays())
    assert read_shard(tmp_path / "s.npz").num_samples == 3


@contextmanager
def little_memory(num_bytes: int) -> Iterator[None]:
    """Limit this process to `num_bytes` more bytes of memory than it has now."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    ("dtype", "room", "message"),
    [
        (np.float32, 100_000_000, r"train_x takes 200\.0 MB, more memory than is free here"),
        (np.uint8, 150_000_000, r"the file has 50\.0 MB, and its arrays take more memory than"),
    ],
)
def test_a_shard_larger_than_the_memory_is_not_called_damaged(
    tmp_path: Path, dtype: type[np.generic], room: int, message: str
) -> None:
    x = np.zeros((2, 1, 5_000, 5_000), dtype)
    y = np.array([0, 1])
    path = save(tmp_path / "s.npz", train_x=x, train_y=y, test_x=x[:0], test_y=y[:0])
    del x
    with pytest.raises(ShardError, match=message) as caught, little_memory(room):
        read_shard(path)
    assert str(path) in str(caught.value) and "damaged" not in str(caught.value)


def test_class_counts_are_plain_integers_sorted_by_class() -> None:
    assert class_counts(np.array([3, 1, 3, 3])) == {1: 1, 3: 3}
    assert list(class_counts(np.array([3, 1]))) == [1, 3]


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        ([[1.0]], "train_x must be a numpy array, not list"),
        (np.array([["a"]]), "train_x is <U1 of shape"),
        (np.array([[None]]), "train_x is object of shape"),
        (np.array([[1.0]], ">f4"), "train_x is big-endian"),
        (np.array([[1j]]), "train_x is complex128"),
        (np.array(1.0), r"train_x is float64 of shape \(\)"),
    ],
)
def test_arrays_that_are_not_numbers_are_refused(x: Any, complaint: str) -> None:
    with pytest.raises(ShardError, match=complaint):
        Shard(x, np.zeros(1, np.int64), x, np.zeros(1, np.int64), 2)


def test_num_classes_must_be_an_integer(shard: Shard) -> None:
    wrong: Any = None
    with pytest.raises(ShardError, match="num_classes must be an integer, 0 for numbers"):
        Shard(shard.train_x, shard.train_y, shard.test_x, shard.test_y, wrong)

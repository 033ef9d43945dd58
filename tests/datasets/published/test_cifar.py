import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from datasets.published import cifar_files
from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import SourceError
from ssfl.datasets.published.cifar import read_cifar
from ssfl.datasets.published.originals import MissingFiles

FOLDERS = {
    ("cifar10", "binary"): "cifar-10-batches-bin",
    ("cifar10", "python"): "cifar-10-batches-py",
    ("cifar100", "binary"): "cifar-100-binary",
    ("cifar100", "python"): "cifar-100-python",
}
ARCHIVES = {
    ("cifar10", "binary"): "cifar-10-binary.tar.gz",
    ("cifar10", "python"): "cifar-10-python.tar.gz",
    ("cifar100", "binary"): "cifar-100-binary.tar.gz",
    ("cifar100", "python"): "cifar-100-python.tar.gz",
}
KINDS = list(FOLDERS)


def check(data: DataSet, name: str) -> None:
    parts = cifar_files.cifar10_parts() if name == "cifar10" else cifar_files.cifar100_parts()
    *train, test = parts.values()
    train_x = np.concatenate([x for x, _ in train]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(data.train_x, train_x)
    np.testing.assert_array_equal(data.train_y, np.concatenate([y for _, y in train]))
    np.testing.assert_array_equal(data.test_x, test[0].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(data.test_y, test[1])
    assert (data.train_x.dtype.name, data.train_y.dtype.name) == ("uint8", "int64")
    assert data.class_names == (cifar_files.TEN if name == "cifar10" else cifar_files.HUNDRED)


@pytest.mark.parametrize(("name", "edition"), KINDS)
def test_batches_are_read_from_their_folder_or_its_parent(
    tmp_path: Path, name: str, edition: str
) -> None:
    folder = cifar_files.write_files(
        tmp_path / FOLDERS[name, edition], cifar_files.cifar_files(name, edition)
    )
    for place in (folder, tmp_path):
        check(read_cifar(name, place), name)


@pytest.mark.parametrize(("name", "edition"), KINDS)
def test_batches_are_read_from_the_archive_or_its_folder(
    tmp_path: Path, name: str, edition: str
) -> None:
    files = cifar_files.cifar_files(name, edition)
    inside = {f"{FOLDERS[name, edition]}/{file}": data for file, data in files.items()}
    archive = cifar_files.write_tar(tmp_path / ARCHIVES[name, edition], inside)
    for place in (archive, tmp_path):
        check(read_cifar(name, place), name)
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]  # nothing is unpacked


def test_the_archive_is_used_if_the_folder_is_incomplete(tmp_path: Path) -> None:
    files = cifar_files.cifar_files("cifar10", "binary")
    cifar_files.write_tar(tmp_path / "cifar-10-binary.tar.gz", files)
    cifar_files.write_files(tmp_path, {"data_batch_1.bin": b"cut"})
    check(read_cifar("cifar10", tmp_path), "cifar10")


def test_files_with_other_checksums_get_a_note(tmp_path: Path) -> None:
    cifar_files.write_files(tmp_path, cifar_files.cifar_files("cifar100", "binary"))
    assert read_cifar("cifar100", tmp_path).notes == (
        "train.bin is not the published file",
        "test.bin is not the published file",
    )


@pytest.mark.parametrize(
    ("name", "edition", "names"),
    [("cifar10", "binary", "batches.meta.txt"), ("cifar100", "python", "meta")],
)
def test_without_the_names_file_classes_are_numbered_with_a_note(
    tmp_path: Path, name: str, edition: str, names: str
) -> None:
    files = cifar_files.cifar_files(name, edition)
    del files[names]
    data = read_cifar(name, cifar_files.write_files(tmp_path, files))
    assert data.class_names[:3] == ("0", "1", "2")
    assert f"{names} is missing: classes are named by their numbers" in data.notes


def test_an_array_in_fortran_order_is_read(tmp_path: Path) -> None:
    files = cifar_files.cifar_files("cifar100", "python")
    x, y = cifar_files.cifar100_parts()["train"]
    files["train"] = cifar_files.python_batch(x, y, "fine_labels", fortran=True)
    check(read_cifar("cifar100", cifar_files.write_files(tmp_path, files)), "cifar100")


X, Y = cifar_files.pixels(0, 3), [1, 2, 3]


@pytest.mark.parametrize(
    ("edition", "file", "data", "message"),
    [
        ("binary", "data_batch_2.bin", b"", "data_batch_2.bin is empty"),
        ("binary", "test_batch.bin", bytes(3072), "has 3,072 bytes, not a multiple of 3,073"),
        (
            "binary",
            "data_batch_4.bin",
            cifar_files.binary_batch(X, [1, 10, 3]),
            "data_batch_4.bin: label 10 of image 1, but the classes are 0 … 9",
        ),
        ("binary", "batches.meta.txt", b"cat\ndog\n", "batches.meta.txt names 2 classes, not 10"),
        ("python", "data_batch_1", b"", "data_batch_1 is empty"),
        ("python", "data_batch_1", b"no pickle", "data_batch_1: "),
        (
            "python",
            "data_batch_1",
            cifar_files.python_batch(X, Y)[:500],
            "data_batch_1: it is not a pickle, or it is cut short",
        ),
        (
            "python",
            "data_batch_1",
            cifar_files.python_batch(X, [1, 2]),
            "data_batch_1 has 3 images but 2 labels",
        ),
        (
            "python",
            "data_batch_1",
            cifar_files.python_batch(X, [1, 2, -7]),
            "label -7 of image 2, but the classes are 0 … 9",
        ),
        (
            "python",
            "data_batch_1",
            cifar_files.python_batch(X, Y, "fine_labels"),
            "has no list of integers called labels",
        ),
        (
            "python",
            "data_batch_1",
            cifar_files.python_batch(X[:, :-1], Y),
            "has no data of 3072 bytes per image",
        ),
        (
            "python",
            "data_batch_1",
            cifar_files.python_batch(X[:0], []),
            "data_batch_1 holds no images",
        ),
        (
            "python",
            "batches.meta",
            cifar_files.pickled(label_names=b"N"),
            "names 0 classes, not 10",
        ),
    ],
)
def test_an_invalid_batch_is_refused_with_the_reason(
    tmp_path: Path, edition: str, file: str, data: bytes, message: str
) -> None:
    cifar_files.write_files(tmp_path, cifar_files.cifar_files("cifar10", edition) | {file: data})
    with pytest.raises(SourceError) as caught:
        read_cifar("cifar10", tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}: ")


def test_missing_batches_are_named(tmp_path: Path) -> None:
    files = cifar_files.cifar_files("cifar10", "python")
    del files["data_batch_3"]
    cifar_files.write_files(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(MissingFiles) as caught:
        read_cifar("cifar10", tmp_path)
    assert (caught.value.missing, caught.value.partly) == (("data_batch_3",), True)
    with pytest.raises(MissingFiles) as caught:
        read_cifar("cifar100", tmp_path)
    assert caught.value.missing == ("cifar-100-binary.tar.gz",)
    assert not caught.value.partly


def test_an_archive_of_another_set_is_refused(tmp_path: Path) -> None:
    archive = cifar_files.write_tar(
        tmp_path / "x.tar.gz", cifar_files.cifar_files("cifar100", "binary")
    )
    with pytest.raises(SourceError, match=r"does not hold the batches of cifar10; it should be"):
        read_cifar("cifar10", archive)


def test_an_archive_that_is_truncated_or_not_an_archive_is_refused(tmp_path: Path) -> None:
    whole = cifar_files.write_tar(
        tmp_path / "a.tar.gz", cifar_files.cifar_files("cifar10", "binary")
    )
    data = whole.read_bytes()
    for wrong in (data[: len(data) // 2], data[:10], b"no archive", b"", gzip.compress(b"no tar")):
        whole.write_bytes(wrong)
        with pytest.raises(SourceError, match=str(whole)):
            read_cifar("cifar10", whole)


def test_links_and_parent_paths_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(cifar_files.binary_batch(X, Y))
    path = tmp_path / "in" / "cifar.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name, data in cifar_files.cifar_files("cifar10", "binary").items():
            member = tarfile.TarInfo(f"../../{name}" if name == "data_batch_1.bin" else name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("data_batch_2.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        archive.addfile(link)
    check(read_cifar("cifar10", path), "cifar10")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["cifar.tar.gz", "in", "secret"]


def test_a_duplicate_member_is_refused(tmp_path: Path) -> None:
    files = cifar_files.cifar_files("cifar10", "binary")
    twice = files | {f"again/{name}": data for name, data in files.items()}
    with pytest.raises(SourceError, match=r"data_batch_1.bin is in the archive twice"):
        read_cifar("cifar10", cifar_files.write_tar(tmp_path / "a.tar.gz", twice))


def test_a_member_larger_than_any_batch_is_refused_before_it_is_read(tmp_path: Path) -> None:
    member = tarfile.TarInfo("data_batch_1.bin")
    member.size = 1 << 33
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(member.tobuf() + bytes(1024)))
    with pytest.raises(SourceError, match=r"holds 8,589,934,592 bytes; no published file has more"):
        read_cifar("cifar10", path)


def test_an_archive_that_unpacks_to_too_many_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssfl.datasets.published.originals.MAX_ARCHIVE_BYTES", 1 << 20)
    bomb = cifar_files.write_tar(tmp_path / "a.tar.gz", {"filler": bytes(3 << 20)})
    assert bomb.stat().st_size < 10_000
    with pytest.raises(SourceError, match="it unpacks to more than 1,048,576 bytes"):
        read_cifar("cifar10", bomb)

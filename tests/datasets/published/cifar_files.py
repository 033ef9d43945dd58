"""Generate CIFAR files for tests in the format of the published files."""

import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from ssfl.method.streams import Stream

Array = np.ndarray[Any, np.dtype[Any]]

TEN: tuple[str, ...] = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
HUNDRED = tuple(f"thing_{number}" for number in range(100))


def pixels(seed: int, count: int) -> Array:
    return (Stream(seed, "cifar").uniform(count * 3072) * 256).astype(np.uint8).reshape(count, 3072)


def labels(seed: int, count: int, num_classes: int) -> list[int]:
    return [int(word) for word in Stream(seed, "labels").words(count) % num_classes]


def text(value: str | bytes) -> bytes:
    """Return a string as the pickle module of Python 2 wrote it."""
    data = value.encode() if isinstance(value, str) else value
    if len(data) < 256:
        return b"U" + bytes([len(data)]) + data
    return b"T" + struct.pack("<i", len(data)) + data


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return (
        b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)
    )


def pickled_list(values: list[bytes]) -> bytes:
    return b"](" + b"".join(values) + b"e"


def array(data: Array, *, fortran: bool = False) -> bytes:
    """Return a uint8 matrix as pickled by numpy of Python 2, including memo numbers."""
    rows, columns = data.shape
    raw = data.tobytes(order="F" if fortran else "C")
    return (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\tU\x01b\x87"
        b"Rq\n(K\x01" + number(rows) + number(columns) + b"\x86q\x0b"
        b"cnumpy\ndtype\nq\x0cU\x02u1K\x00K\x01\x87Rq\r"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + (b"\x88" if fortran else b"\x89")
        + text(raw)
        + b"tb"
    )


def pickled(**items: bytes) -> bytes:
    inside = b"".join(text(key) + value for key, value in items.items())
    return b"\x80\x02}q\x01(" + inside + b"u."


def python_batch(x: Array, y: list[int], key: str = "labels", *, fortran: bool = False) -> bytes:
    names = [text(f"image_{sample}.png") for sample in range(len(y))]
    items = {
        "batch_label": text("training batch 1 of 5"),
        key: pickled_list([number(label) for label in y]),
        "data": array(x, fortran=fortran),
        "filenames": pickled_list(names),
    }
    if key == "fine_labels":
        items["coarse_labels"] = pickled_list([number(label // 5) for label in y])
    return pickled(**items)


def binary_batch(x: Array, *labels: list[int]) -> bytes:
    columns = [np.array(column, dtype=np.uint8)[:, None] for column in labels]
    return np.hstack([*columns, x]).tobytes()


def cifar10_parts() -> dict[str, tuple[Array, list[int]]]:
    """Return pixels and labels by batch name; the batches have different lengths."""
    names = [*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"]
    return {
        name: (pixels(seed, 2 + seed), labels(seed, 2 + seed, 10))
        for seed, name in enumerate(names)
    }


def cifar100_parts() -> dict[str, tuple[Array, list[int]]]:
    return {
        "train": (pixels(20, 9), labels(20, 9, 100)),
        "test": (pixels(21, 4), labels(21, 4, 100)),
    }


def cifar_files(name: str, edition: str) -> dict[str, bytes]:
    """Return the files of cifar10 or cifar100 in their binary or python edition."""
    if name == "cifar10":
        parts, names = cifar10_parts(), TEN
        if edition == "binary":
            files = {f"{batch}.bin": binary_batch(x, y) for batch, (x, y) in parts.items()}
            return files | {"batches.meta.txt": "\n".join((*names, "", "")).encode()}
        files = {batch: python_batch(x, y) for batch, (x, y) in parts.items()}
        meta = pickled(
            num_cases_per_batch=number(10000),
            label_names=pickled_list([text(name) for name in names]),
            num_vis=number(3072),
        )
        return files | {"batches.meta": meta}
    parts, names = cifar100_parts(), HUNDRED
    if edition == "binary":
        files = {
            f"{part}.bin": binary_batch(x, [label // 5 for label in y], y)
            for part, (x, y) in parts.items()
        }
        return files | {"fine_label_names.txt": "\n".join((*names, "")).encode()}
    files = {part: python_batch(x, y, "fine_labels") for part, (x, y) in parts.items()}
    return files | {"meta": pickled(fine_label_names=pickled_list([text(name) for name in names]))}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path

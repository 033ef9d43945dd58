import functools
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import SourceError
from ssfl.datasets.published.originals import MissingFiles
from ssfl.datasets.published.tiny_imagenet import read_tiny_imagenet

GOLDFISH, CRANE, OTHER_CRANE, UNNAMED = "n01443537", "n02012849", "n03126707", "n09999999"


def jpeg(color: tuple[int, int, int] | int, size: tuple[int, int] = (64, 64)) -> bytes:
    file = io.BytesIO()
    Image.new("L" if isinstance(color, int) else "RGB", size, color).save(file, "JPEG", quality=95)
    return file.getvalue()


def files() -> dict[str, bytes]:
    """Return a tree like the published one: four classes, two training and one test image each."""
    wnids = (CRANE, GOLDFISH, UNNAMED, OTHER_CRANE)
    tree = {
        "wnids.txt": "\n".join(wnids).encode(),
        "words.txt": (
            f"n00001740\tentity\n{GOLDFISH}\tgoldfish, Carassius auratus\n"
            f"{CRANE}\tcrane\n{OTHER_CRANE}\tcrane\n"
        ).encode(),
        "test/images/test_0.JPEG": jpeg(0),
    }
    lines = []
    for number, wnid in enumerate(sorted(wnids)):
        for image in range(2):
            color = (40 * number, 100, 50 * image)
            tree[f"train/{wnid}/images/{wnid}_{image}.JPEG"] = jpeg(color)
        tree[f"train/{wnid}/{wnid}_boxes.txt"] = b"n_0.JPEG\t0\t0\t62\t62\n"
        tree[f"val/images/val_{number}.JPEG"] = jpeg(60 * number)  # grey
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    tree["val/val_annotations.txt"] = "".join(reversed(lines)).encode()
    return tree


def write(folder: Path, tree: dict[str, bytes]) -> Path:
    for name, data in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def pack(path: Path, tree: dict[str, bytes], prefix: str = "tiny-imagenet-200/") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in tree.items():
            archive.writestr(prefix + name, data)
    return path


@functools.cache
def packed(folder: Path) -> bytes:
    """Return the bytes of an archive (cached)."""
    return pack(folder / "whole.zip", files()).read_bytes()


def check(data: DataSet) -> None:
    assert (data.train_x.shape, data.test_x.shape) == ((8, 3, 64, 64), (4, 3, 64, 64))
    assert (data.train_x.dtype.name, data.train_y.dtype.name) == ("uint8", "int64")
    assert data.train_y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.test_y.tolist() == [3, 2, 1, 0]  # in the order of the annotations
    assert data.notes == ("8 training and 4 test images; the published set has 100,000 and 10,000",)
    assert data.class_names == (
        "goldfish",
        f"crane ({CRANE})",
        f"crane ({OTHER_CRANE})",
        UNNAMED,
    )
    middle = data.train_x[:, :, 32, 32].astype(int)
    wanted = [(40 * number, 100, 50 * image) for number in range(4) for image in range(2)]
    assert np.abs(middle - np.array(wanted)).max() <= 4  # JPEG
    grey = data.test_x[:, :, 32, 32].astype(int)
    assert np.abs(grey - np.array([180, 120, 60, 0])[:, None]).max() <= 2


@pytest.mark.parametrize("inner", ["", "tiny-imagenet-200"])
def test_the_published_tree_is_read(tmp_path: Path, inner: str) -> None:
    write(tmp_path / inner, files())
    check(read_tiny_imagenet(tmp_path))


@pytest.mark.parametrize("prefix", ["", "tiny-imagenet-200/"])
def test_the_archive_is_read_without_unpacking_it(tmp_path: Path, prefix: str) -> None:
    archive = pack(tmp_path / "tiny-imagenet-200.zip", files(), prefix)
    check(read_tiny_imagenet(archive))
    check(read_tiny_imagenet(tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == [archive.name]


def test_progress_counts_every_image(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    read_tiny_imagenet(write(tmp_path, files()), lambda *step: steps.append(step))
    assert steps == [("reading images", 12, 12)]


NOT_WHOLE = jpeg((1, 2, 3))[:-200]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (f"train/{CRANE}/images/{CRANE}_0.JPEG", b"", f"{CRANE}_0.JPEG: this is not an image"),
        (
            f"train/{CRANE}/images/{CRANE}_0.JPEG",
            b"GIF89a...",
            f"{CRANE}_0.JPEG: this is not an image",
        ),
        (f"train/{CRANE}/images/{CRANE}_0.JPEG", NOT_WHOLE, "the image is damaged or cut"),
        (
            f"train/{CRANE}/images/{CRANE}_0.JPEG",
            jpeg(7, (32, 64)),
            f"{CRANE}_0.JPEG has 32 x 64 pixels, not 64 x 64",
        ),
        ("wnids.txt", b"", "wnids.txt names no classes"),
        ("wnids.txt", b"n00000001\n", "train/n00000001/images holds no .JPEG images"),
        (
            "val/val_annotations.txt",
            b"val_0.JPEG\tn00000001\n",
            "val/val_annotations.txt line 1: expected an image and its class",
        ),
        (
            "val/val_annotations.txt",
            f"../../x.JPEG\t{CRANE}\n".encode(),
            "val/val_annotations.txt line 1: expected an image and its class",
        ),
        ("val/val_annotations.txt", f"gone.JPEG\t{CRANE}\n".encode(), "val/images/gone.JPEG"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_an_invalid_file_is_refused_with_the_reason(
    tmp_path: Path, name: str, data: bytes, message: str, packed: bool
) -> None:
    tree = files() | {name: data}
    place = pack(tmp_path / "t.zip", tree) if packed else write(tmp_path / "t", tree)
    with pytest.raises(SourceError) as caught:
        read_tiny_imagenet(place)
    assert message in str(caught.value)
    assert str(place) in str(caught.value)


def test_transparent_parts_are_placed_on_white(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGBA", (64, 64), (9, 9, 9, 0)).save(file, "PNG")
    name = f"train/{CRANE}/images/{CRANE}_0.JPEG"
    data = read_tiny_imagenet(write(tmp_path, files() | {name: file.getvalue()}))
    assert (data.train_x[2] == 255).all()


@pytest.mark.parametrize("name", ["words.txt", "val/val_annotations.txt"])
def test_a_missing_list_is_named(tmp_path: Path, name: str) -> None:
    tree = files()
    del tree[name]
    with pytest.raises(SourceError, match=f"{name} is missing"):
        read_tiny_imagenet(write(tmp_path, tree))


def test_an_empty_folder_is_missing_the_archive(tmp_path: Path) -> None:
    with pytest.raises(MissingFiles) as caught:
        read_tiny_imagenet(tmp_path)
    assert caught.value.missing == ("tiny-imagenet-200.zip",)


def test_a_file_that_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.zip").write_bytes(b"no archive")
    with pytest.raises(
        SourceError, match=r"t\.zip cannot be unpacked \(File is not a zip file\): it may be"
    ):
        read_tiny_imagenet(tmp_path / "t.zip")


@given(place=st.integers(0, 10**6), value=st.integers(0, 255), from_end=st.booleans())
@settings(max_examples=60)
def test_a_changed_byte_of_the_archive_gives_images_or_a_source_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int, from_end: bool
) -> None:
    archive = tmp_path_factory.mktemp("changed") / "t.zip"
    data = bytearray(packed(tmp_path_factory.getbasetemp()))
    place %= len(data) if not from_end else 1000  # the list of members is at the end
    data[-place if from_end else place] = value
    archive.write_bytes(data)
    try:
        assert len(read_tiny_imagenet(archive).train_x) in (7, 8)  # 7 if the name of one changed
    except SourceError as error:
        assert str(archive) in str(error)


def test_an_archive_of_a_later_version_is_refused(tmp_path: Path) -> None:
    archive = pack(tmp_path / "t.zip", files())
    data = bytearray(archive.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 209  # the version needed to unpack the first member
    archive.write_bytes(data)
    with pytest.raises(
        SourceError, match=r"cannot be unpacked \(zip file version 20\.9\): it may be"
    ):
        read_tiny_imagenet(archive)


def test_a_member_that_unpacks_to_too_many_bytes_is_refused(tmp_path: Path) -> None:
    tree = files() | {"words.txt": bytes(20_000_000)}
    with pytest.raises(SourceError, match=r"words.txt unpacks to more than 16,777,216 bytes"):
        read_tiny_imagenet(pack(tmp_path / "t.zip", tree))


def test_without_pillow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, files())
    monkeypatch.delitem(sys.modules, "ssfl.datasets.images.files", raising=False)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SourceError, match=r"needs Pillow: pip install 'ssfl\[data\]'"):
        read_tiny_imagenet(tmp_path)

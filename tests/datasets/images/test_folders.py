import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import SourceError
from ssfl.datasets.images.folders import read_image_folder
from ssfl.datasets.source import SourceOptions, read_source
from ssfl.method.streams import Stream


def read(folder: Path, **options: Any) -> DataSet:
    return read_image_folder(folder, SourceOptions(source=str(folder), **options))


def save(path: Path, image: Image.Image, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **how)
    return path


def grey(value: int = 9, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new("L", size, value)


def colour(size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new("RGB", size, (10, 20, 30))


def deep(value: int = 4000) -> Image.Image:
    return Image.fromarray(np.full((8, 8), value, np.uint16))


def noise(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return (Stream(0, "image").uniform(int(np.prod(shape))) * 256).astype(np.uint8).reshape(shape)


# Layouts


def test_folders_are_classes_and_pixels_are_kept(tmp_path: Path) -> None:
    pixels = noise(6, 8, 3)
    save(tmp_path / "flowers/tulpe/2.png", Image.fromarray(pixels))
    save(tmp_path / "flowers/rosé/1.png", colour((8, 6)))
    data = read(tmp_path / "flowers")
    assert data.name == "flowers" and data.class_names == ("rosé", "tulpe")
    assert data.train_x.shape == (2, 3, 6, 8) and data.train_x.dtype == np.uint8
    assert data.train_y.tolist() == [0, 1] and data.train_y.dtype == np.int64
    np.testing.assert_array_equal(data.train_x[1], pixels.transpose(2, 0, 1))
    assert data.train_x[0, :, 0, 0].tolist() == [10, 20, 30]
    assert data.test_x.shape == (0, 3, 6, 8) and data.notes == ()


def test_train_and_test_folders_stay_separate_and_validation_is_added_to_train(
    tmp_path: Path,
) -> None:
    save(tmp_path / "Train/a/1.png", grey(1))
    save(tmp_path / "Train/b/1.png", grey(2))
    save(tmp_path / "validation/a/1.png", grey(3))
    save(tmp_path / "test/b/1.png", grey(4))
    save(tmp_path / "extra/b/1.png", grey(5))
    data = read(tmp_path)
    assert data.train_x[:, 0, 0, 0].tolist() == [1, 3, 2] and data.train_y.tolist() == [0, 0, 1]
    assert data.test_x[:, 0, 0, 0].tolist() == [4] and data.test_y.tolist() == [1]
    assert "the images of validation were added to the training images" in data.notes
    assert "folder extra ignored: only train, val and test are read" in data.notes


def test_a_second_folder_can_hold_the_test_images(tmp_path: Path) -> None:
    save(tmp_path / "one/a/1.png", grey(1))
    save(tmp_path / "one/b/1.png", grey(2))
    save(tmp_path / "two/b/1.png", grey(3))
    data = read(tmp_path / "one", test=tmp_path / "two")
    assert data.test_x[:, 0, 0, 0].tolist() == [3] and data.test_y.tolist() == [1]


def test_a_class_called_train_is_a_class_if_it_holds_images(tmp_path: Path) -> None:
    save(tmp_path / "train/1.png", grey())
    save(tmp_path / "ship/1.png", grey())
    assert read(tmp_path).class_names == ("ship", "train")


def test_folders_in_a_class_are_read_one_level_deep(tmp_path: Path) -> None:
    save(tmp_path / "a/1.png", grey(1))
    save(tmp_path / "a/more/2.png", grey(2))
    save(tmp_path / "a/more/deep/3.png", grey(3))
    save(tmp_path / "b/1.png", grey(4))
    data = read(tmp_path)
    assert data.train_x[:, 0, 0, 0].tolist() == [1, 2, 4]
    assert "skipped misplaced images or folders: 1 (deep)" in data.notes


def test_hidden_files_are_skipped_and_other_files_counted(tmp_path: Path) -> None:
    save(tmp_path / "a/1.png", grey())
    save(tmp_path / ".cache/1.png", grey())
    save(tmp_path / "a/.1.png", grey())
    for name in ("a/Thumbs.db", "a/notes.txt", "readme.md"):
        (tmp_path / name).write_text("no image")
    data = read(tmp_path)
    assert len(data.train_x) == 1 and data.class_names == ("a",)
    notes = "skipped files that are not images: 3 (Thumbs.db, notes.txt, readme.md)"
    assert data.notes == (notes,)


def test_a_single_folder_with_all_classes_gets_a_note(tmp_path: Path) -> None:
    save(tmp_path / "wrap/a/1.png", grey())
    save(tmp_path / "wrap/b/1.png", grey())
    (note,) = read(tmp_path).notes
    assert note.endswith(f"the classes (a, b), use --source {tmp_path / 'wrap'}")


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ((), "holds no folders; expected: folders named after the classes"),
        (("1.png",), "holds images but no folders; expected: folders"),
        (("train/1.png", "test/2.png"), "holds test and train without class folders"),
        (("a/1.png", "b/x.txt"), r"the class folder .*b holds no images; add some or remove it"),
        (("wrap/train/a/1.png",), r"if its folders are the classes, use --source .*wrap"),
        (("train/a/1.png", "test/b/1.png"), "classes without training images: b$"),
    ],
)
def test_an_unknown_layout_is_refused_with_the_expected_one(
    tmp_path: Path, files: tuple[str, ...], complaint: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(SourceError, match=complaint):
        read(tmp_path)


def test_a_missing_folder_a_file_and_two_test_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such folder"):
        read(tmp_path / "absent")
    path = save(tmp_path / "x/train/a/1.png", grey())
    save(tmp_path / "x/test/a/1.png", grey())
    with pytest.raises(SourceError, match="this is a file, not a folder"):
        read(path)
    with pytest.raises(SourceError, match="remove --test"):
        read(tmp_path / "x", test=tmp_path / "x/test")


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS refuses such names")
def test_a_folder_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/gr\xfcn"
    os.mkdir(folder)  # noqa: PTH102 - pathlib does not take bytes
    with pytest.raises(SourceError, match=r"the folder name .* is not UTF-8; rename it") as caught:
        read(tmp_path)
    str(caught.value).encode()


# Sizes


def test_different_sizes_are_refused_with_two_files_and_a_remedy(tmp_path: Path) -> None:
    save(tmp_path / "a/1.png", grey())
    save(tmp_path / "b/2.png", grey(size=(9, 7)))
    with pytest.raises(
        SourceError, match=r"1\.png has 8 x 8 pixels, .*2\.png has 9 x 7; .*--image-size 64$"
    ):
        read(tmp_path)
    data = read(tmp_path, image_size=8)
    assert data.train_x.shape == (2, 1, 8, 8)
    assert data.notes == ("images cropped and scaled to 8 x 8: 1 of 2",)


def test_a_long_image_is_cropped_to_its_middle(tmp_path: Path) -> None:
    stripes = np.repeat(np.array([[0, 0, 200, 200, 0, 0]], np.uint8), 2, axis=0)
    save(tmp_path / "a/1.png", Image.fromarray(stripes))
    save(tmp_path / "a/2.png", Image.fromarray(stripes.T.copy()))
    data = read(tmp_path, image_size=2)
    assert data.train_x.min() == data.train_x.max() == 200


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
def test_images_are_rotated_by_their_exif_orientation(tmp_path: Path, ending: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate clockwise
    pixels = np.zeros((16, 32), np.uint8)
    pixels[:, :16] = 255  # the left half becomes the upper half
    save(tmp_path / f"a/1.{ending}", Image.fromarray(pixels), exif=exif)
    save(tmp_path / "a/2.png", grey(size=(16, 32)))
    data = read(tmp_path, grey=True)
    assert data.train_x.shape == (2, 1, 32, 16)
    assert data.train_x[0, 0, :14].min() > 240 and data.train_x[0, 0, 18:].max() < 15


# Modes


def test_grey_images_have_one_channel_and_mixed_ones_three(tmp_path: Path) -> None:
    save(tmp_path / "a/1.png", grey(7))
    save(tmp_path / "a/2.png", Image.new("1", (8, 8), 1))
    data = read(tmp_path)
    assert data.train_x.shape == (2, 1, 8, 8) and data.notes == ()
    assert data.train_x[:, 0, 0, 0].tolist() == [7, 255]
    save(tmp_path / "b/1.png", colour())
    data = read(tmp_path)
    assert data.train_x[:, :, 0, 0].tolist() == [[7, 7, 7], [255, 255, 255], [10, 20, 30]]
    assert data.notes == (
        "images grey, converted to three channels because others are in colour: 2 of 3",
    )
    data = read(tmp_path, grey=True)
    assert data.train_x.shape == (3, 1, 8, 8) and data.train_x[2, 0, 0, 0] == 18
    assert data.notes == ("images converted from colour to grey: 1 of 3",)


def test_grey_images_keep_sixteen_bits(tmp_path: Path) -> None:
    save(tmp_path / "a/1.png", deep(40_000))
    save(tmp_path / "a/2.tif", deep(300))
    data = read(tmp_path)
    assert data.train_x.dtype == np.uint16 and data.train_x.shape == (2, 1, 8, 8)
    assert data.train_x[:, 0, 0, 0].tolist() == [40_000, 300]
    save(tmp_path / "a/3.png", grey(255))
    data = read(tmp_path, image_size=4)
    assert data.train_x[:, 0, 0, 0].tolist() == [40_000, 300, 65_535]
    assert "images with 8 bits, scaled to 16 because others have 16: 1 of 3" in data.notes


def test_sixteen_bits_are_reduced_to_eight_if_other_images_have_colours(tmp_path: Path) -> None:
    save(tmp_path / "a/1.png", deep(65_535))
    save(tmp_path / "a/2.png", colour())
    data = read(tmp_path)
    assert data.train_x.dtype == np.uint8 and data.train_x[0, :, 0, 0].tolist() == [255] * 3
    assert "images with 16 bits, reduced to 8: 1 of 2" in data.notes


def test_palette_and_cmyk_images_become_rgb_and_transparent_parts_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    save(tmp_path / "a/1.png", clear)
    save(tmp_path / "a/2.png", colour().quantize(4))
    save(tmp_path / "a/3.tif", Image.new("CMYK", (8, 8), (0, 0, 0, 255)))
    palette = colour().quantize(4)
    save(tmp_path / "a/4.png", palette, transparency=palette.getpixel((0, 0)))
    data = read(tmp_path)
    white, black = [255] * 3, [0] * 3
    assert data.train_x[:, :, 0, 0].tolist() == [white, [10, 20, 30], black, white]
    assert data.notes == ("images with transparent parts, placed on white: 2 of 4",)


def test_grey_images_with_transparent_parts_keep_one_channel(tmp_path: Path) -> None:
    save(tmp_path / "a/1.png", Image.new("LA", (8, 8), (0, 0)))
    data = read(tmp_path)
    assert data.train_x.shape == (1, 1, 8, 8) and data.train_x.min() == 255


@pytest.mark.parametrize("ending", ["gif", "tif"])
def test_only_the_first_of_several_frames_is_read(tmp_path: Path, ending: str) -> None:
    frames = [Image.new("RGB", (8, 8), (255, 255, 255)), Image.new("RGB", (8, 8))]
    save(tmp_path / f"a/1.{ending}", frames[0], save_all=True, append_images=frames[1:])
    data = read(tmp_path)
    assert data.train_x.shape == (1, 3, 8, 8) and data.train_x.min() == 255
    assert data.notes == ("images with several frames, of which the first is read: 1 of 1",)


# Damage


@pytest.mark.parametrize("ending", ["png", "jpg", "tif", "gif", "webp", "bmp"])
def test_a_truncated_image_is_refused_by_name_or_read_completely(
    tmp_path: Path, ending: str
) -> None:
    path = save(tmp_path / f"a/1.{ending}", Image.fromarray(noise(24, 24, 3)))
    whole = path.read_bytes()
    refused = 0
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:length])
        try:
            read(tmp_path)  # the missing bytes may be an empty trailer
        except SourceError as error:
            assert str(error).startswith(str(path))
            refused += 1
    assert refused > 35


def test_a_text_file_with_the_name_of_an_image_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path / "a/1.png", grey())
    (tmp_path / "a/2.png").write_text("not an image")
    with pytest.raises(SourceError, match=r"a/2\.png: this is not an image, .* or remove it$"):
        read(tmp_path)


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "a/1.png", Image.new("1", (200, 100)))
    for limit in (15_000, 5_000):  # Pillow warns above its limit and raises above twice that
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(SourceError, match=f"the image has more than {limit:,} pixels"):
            read(path.parents[1])


def test_float_pixels_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a/1.tif", Image.new("F", (8, 8), 0.5))
    with pytest.raises(SourceError, match=r"1\.tif: Pillow's pixel mode F is not supported"):
        read(tmp_path)


def test_thirty_two_bit_pixels_are_refused_unless_sixteen_bits_suffice(tmp_path: Path) -> None:
    save(tmp_path / "a/1.tif", Image.fromarray(np.full((8, 8), 65_535, np.int32)))
    assert read(tmp_path).train_x.max() == 65_535
    save(tmp_path / "a/1.tif", Image.fromarray(np.full((8, 8), 65_536, np.int32)))
    with pytest.raises(SourceError, match="the pixels are not in 0 … 65535"):
        read(tmp_path)


def test_a_format_that_needs_another_program_is_skipped(tmp_path: Path) -> None:
    save(tmp_path / "a/1.png", grey())
    save(tmp_path / "a/2.eps", colour())
    assert read(tmp_path).notes == ("skipped files that are not images: 1 (2.eps)",)


def test_progress_is_reported_every_hundred_images(tmp_path: Path) -> None:
    for number in range(120):
        save(tmp_path / f"a/{number}.png", grey())
    seen: list[tuple[str, int, int]] = []
    options = SourceOptions(source=str(tmp_path))
    read_image_folder(tmp_path, options, lambda *step: seen.append(step))
    assert seen == [
        ("images inspected", 100, 120),
        ("images inspected", 120, 120),
        ("training images read", 100, 120),
        ("training images read", 120, 120),
    ]


def test_without_pillow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ssfl.datasets.images.folders")
    monkeypatch.delitem(sys.modules, "ssfl.datasets.images.files")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SourceError, match=r"Pillow: pip install 'ssfl\[data\]'"):
        read_source(SourceOptions(source=str(tmp_path)))


def test_links_to_folders_that_are_already_read_are_skipped(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / "set" / name / "1.png", grey())
    save(tmp_path / "elsewhere" / "1.png", grey())
    save(tmp_path / "set" / ".store" / "1.png", grey())
    (tmp_path / "set" / "loop").symlink_to(".")
    (tmp_path / "set" / "up").symlink_to("..")
    (tmp_path / "set" / "same").symlink_to("a")
    (tmp_path / "set" / "c").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "d").symlink_to(".store")
    data = read(tmp_path / "set")
    assert data.class_names == ("a", "b", "c", "d") and len(data.train_y) == 4
    assert "skipped links to folders that are already read: 3 (loop, same, up)" in data.notes


def test_a_dangling_link_is_refused_with_its_target(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name / "1.png", grey())
    (tmp_path / "b" / "2.png").symlink_to("gone.png")
    with pytest.raises(SourceError, match=r"2\.png is a dangling link: gone\.png does not exist"):
        read(tmp_path)


def test_16_bit_images_that_use_few_bits_get_a_note(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name / "1.png", deep(4000))
    notes = read(tmp_path).notes
    assert any("goes up to 4000 of 65535: 12-bit images?" in note for note in notes)

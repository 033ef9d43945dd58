"""Folders of images as data sets: one class per folder, all images in one array.

The headers of all files are read first, so that a wrong size is reported before the long decoding.
Each image is then decoded into a preallocated array.
"""

from itertools import chain
from pathlib import Path

import numpy as np

from ssfl.datasets.arrays.samples import dark_note
from ssfl.datasets.data_set import Array, DataSet, Progress
from ssfl.datasets.errors import SourceError
from ssfl.datasets.images.files import (
    ImageForm,
    ImageInfo,
    decode,
    image_endings,
    inspect,
    printable_path,
)
from ssfl.datasets.images.trees import ImageTree, find_images
from ssfl.datasets.memory import empty_array
from ssfl.datasets.source import SourceOptions

_KINDS = ("grey", "deep", "colour")  # of `ImageInfo`
_REPORT_EVERY = 100  # images
_SUGGESTED_SIZE = 64  # pixels


def read_image_folder(
    path: Path, options: SourceOptions, on_progress: Progress | None = None
) -> DataSet:
    """Return the images as a data set; raise SourceError if they cannot be read."""
    tree = find_images(path, options.test, image_endings())
    infos = _inspect(tree, on_progress)
    form = _form(infos, options)
    class_names = tuple(tree.train)
    train_x, train_y = _read(tree.train, class_names, form, "training", on_progress)
    test_x, test_y = _read(tree.test, class_names, form, "test", on_progress)
    dark = dark_note("the training set", train_x)
    notes = (*tree.notes, *_notes(infos, form, options), *([dark] if dark else []))
    name = path.resolve().name
    return DataSet(name, train_x, train_y, test_x, test_y, class_names, notes)


def _inspect(tree: ImageTree, on_progress: Progress | None) -> dict[Path, ImageInfo]:
    paths = [*chain(*tree.train.values(), *tree.test.values())]
    infos = {}
    for done, path in enumerate(paths, 1):
        infos[path] = inspect(path)
        _report(on_progress, "images inspected", done, len(paths))
    return infos


def _form(infos: dict[Path, ImageInfo], options: SourceOptions) -> ImageForm:
    """Return the common form: the images' own size, or the requested size."""
    kinds = {info.kind for info in infos.values()}
    channels = 3 if "colour" in kinds and not options.grey else 1
    dtype = np.uint16 if "deep" in kinds and channels == 1 else np.uint8
    if options.image_size:
        return ImageForm(channels, dtype, options.image_size, options.image_size, True)
    (first, wanted), *others = infos.items()
    for path, info in others:
        if (info.width, info.height) != (wanted.width, wanted.height):
            raise SourceError(
                f"the images differ in size: {printable_path(first)} has "
                f"{wanted.width} x {wanted.height} pixels, {printable_path(path)} has "
                f"{info.width} x {info.height}; scale them to one size with "
                f"--image-size {_SUGGESTED_SIZE}"
            )
    return ImageForm(channels, dtype, wanted.height, wanted.width, False)


def _read(
    classes: dict[str, list[Path]],
    class_names: tuple[str, ...],
    form: ImageForm,
    part: str,
    on_progress: Progress | None,
) -> tuple[Array, Array]:
    """Return the pixels and classes of one part, class by class."""
    count = sum(len(images) for images in classes.values())
    x = empty_array((count, *form.shape), form.dtype, f"{count} {part} images")
    y = np.empty(count, np.int64)
    place = 0
    for label, class_name in enumerate(class_names):
        for path in classes.get(class_name, ()):
            x[place], y[place] = decode(path, form), label
            place += 1
            _report(on_progress, f"{part} images read", place, count)
    return x, y


def _notes(infos: dict[Path, ImageInfo], form: ImageForm, options: SourceOptions) -> list[str]:
    """Return the conversions of pixels, each with the number of images."""
    size = (form.width, form.height)
    images = list(infos.values())
    of_kind = {kind: sum(info.kind == kind for info in images) for kind in _KINDS}
    is_colour, is_deep = form.channels == 3, form.dtype == np.uint16
    conversions = {
        f"cropped and scaled to {options.image_size} x {options.image_size}": sum(
            (info.width, info.height) != size for info in images
        ),
        "grey, converted to three channels because others are in colour": is_colour
        * (of_kind["grey"] + of_kind["deep"]),
        "converted from colour to grey": (not is_colour) * of_kind["colour"],
        "with 16 bits, kept as uint16": is_deep * of_kind["deep"],
        "with 8 bits, scaled to 16 because others have 16": is_deep
        * (of_kind["grey"] + of_kind["colour"]),
        "with 16 bits, reduced to 8": (not is_deep) * of_kind["deep"],
        "with transparent parts, placed on white": sum(info.has_alpha for info in images),
        "with several frames, of which the first is read": sum(info.has_frames for info in images),
    }
    return [
        f"images {what}: {count:,} of {len(images):,}"
        for what, count in conversions.items()
        if count
    ]


def _report(on_progress: Progress | None, what: str, done: int, count: int) -> None:
    if on_progress and (done % _REPORT_EVERY == 0 or done == count):
        on_progress(what, done, count)

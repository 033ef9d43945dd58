"""Folders of images: which files there are, and of which class and part each one is.

Two layouts are read. With train and test apart (val or validation joins train):

    flowers/train/rose/1.png    flowers/train/tulip/…    flowers/test/rose/2.png

or all in one:

    flowers/rose/1.png    flowers/tulip/…

A class folder may hold folders, one level, whose images are of the same class. What is hidden
(its name begins with a dot) is passed over; files that are no images are counted, and so are links
to folders that are read anyway.
"""

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from ssfl.datasets.errors import SourceError
from ssfl.datasets.wording import join_names

EXPECTED = (
    "expected are folders named after the classes with images in them, FOLDER/<class>/<image>, "
    "or FOLDER/train/<class>/<image> and FOLDER/test/<class>/<image>"
)
_TRAIN = ("train", "training")
_VALIDATION = ("val", "valid", "validation")
_TEST = ("test", "testing")


@dataclass(frozen=True)
class ImageTree:
    """The images of a folder by class; what else was seen on the way."""

    train: dict[str, list[Path]]
    test: dict[str, list[Path]]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Folder:
    folders: list[Path]
    images: list[Path]
    others: list[Path]


def find_images(root: Path, test_root: Path | None, endings: frozenset[str]) -> ImageTree:
    """Return all images under the folder; raise SourceError if the layout is neither of the two."""
    walk = _Walk(endings, [one.resolve() for one in (root, test_root) if one])
    inside = walk.look(root)
    parts = {folder.name.lower(): folder for folder in inside.folders}
    is_split = any(walk.look(parts[name]).folders for name in _TRAIN if name in parts)
    tree = walk.split(inside, parts) if is_split else ImageTree(walk.classes(root), {})
    if test_root is not None:
        if tree.test:
            raise SourceError(f"{root} has a folder of test images: leave --test out, or rename it")
        tree.test.update(walk.classes(test_root))
    unknown = sorted(set(tree.test) - set(tree.train))
    if unknown:
        raise SourceError(
            f"{root}: there are test images of classes without training images: {join_names(unknown)}"
        )
    if len(tree.train) == 1 and not is_split:
        (only,) = inside.folders
        folders = [folder.name for folder in walk.look(only).folders]
        if folders:
            tree.notes.append(
                f"there is one class only, {only.name}; if the folders in it are the classes "
                f"({join_names(folders)}): --source {shlex.quote(str(only))}"
            )
    tree.notes.extend(walk.notes())
    return tree


class _Walk:
    """Looks into folders and remembers what is no image, or not where images are looked for."""

    def __init__(self, endings: frozenset[str], roots: list[Path]) -> None:
        self.endings = endings
        self.roots = roots
        self.links: list[Path] = []
        self.others: list[Path] = []
        self.misplaced: list[Path] = []

    def look(self, folder: Path) -> _Folder:
        """Return what a folder holds, sorted by name."""
        found = _Folder([], [], [])
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except PermissionError as error:
            raise SourceError(f"{folder}: you have no permission to read this folder") from error
        except FileNotFoundError as error:
            raise SourceError(f"{folder}: there is no such folder") from error
        except NotADirectoryError as error:
            raise SourceError(f"{folder}: this is a file, not a folder of images") from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                self._check_link(Path(entry.path))
            if entry.is_symlink() and entry.is_dir() and self._is_read_anyway(Path(entry.path)):
                self.links.append(Path(entry.path))
            elif entry.is_dir():
                found.folders.append(Path(entry.path))
            elif Path(entry.name).suffix.lower() in self.endings:
                found.images.append(Path(entry.path))
            else:
                found.others.append(Path(entry.path))
        return found

    def _check_link(self, link: Path) -> None:
        if not link.exists():
            raise SourceError(
                f"{link} is a dangling link: {link.readlink()} is not there; bring it back, or "
                "remove the link"
            )

    def _is_read_anyway(self, link: Path) -> bool:
        """Return whether a link leads into a folder that is read, or to one that it is in."""
        target = link.resolve()
        for root in self.roots:
            inside = target.relative_to(root).parts if target.is_relative_to(root) else (".",)
            is_hidden = any(part.startswith(".") for part in inside)
            if root.is_relative_to(target) or not is_hidden:
                return True
        return False

    def split(self, inside: _Folder, parts: dict[str, Path]) -> ImageTree:
        """Return the images of a folder with train and test apart."""
        train: dict[str, list[Path]] = {}
        test: dict[str, list[Path]] = {}
        notes = []
        self.others += inside.others
        self.misplaced += inside.images
        for name, folder in parts.items():
            if name in _TRAIN + _VALIDATION:
                for label, images in self.classes(folder).items():
                    train.setdefault(label, []).extend(images)
                if name in _VALIDATION:
                    notes.append(f"the images of {folder.name} joined those for training")
            elif name in _TEST:
                test.update(self.classes(folder))
            else:
                notes.append(f"folder {folder.name} left out: it is beside train")
        return ImageTree(dict(sorted(train.items())), test, notes)

    def classes(self, root: Path) -> dict[str, list[Path]]:
        """Return the images of each class folder; none may be empty."""
        inside = self.look(root)
        if not inside.folders:
            seen = "images but no folders" if inside.images else "no folders"
            raise SourceError(f"{root} holds {seen}; {EXPECTED}")
        self.others += inside.others
        self.misplaced += inside.images
        _check_names(root, inside.folders)
        return {folder.name: self._images_of(folder) for folder in inside.folders}

    def _images_of(self, folder: Path) -> list[Path]:
        inside = self.look(folder)
        images = inside.images
        self.others += inside.others
        deeper: list[Path] = []
        for nested in map(self.look, inside.folders):
            images += nested.images
            self.others += nested.others
            deeper += nested.folders
        if not images:
            hint = (
                f" (if its folders are the classes: --source {shlex.quote(str(folder))})"
                if deeper
                else ""
            )
            raise SourceError(
                f"the class folder {folder} holds no images; put some there or remove it{hint}. "
                f"In general, {EXPECTED}"
            )
        self.misplaced += deeper
        return images

    def notes(self) -> list[str]:
        """Return what was passed over."""
        passed = {
            "files that are no images": self.others,
            "images or folders where none are looked for": self.misplaced,
            "links to folders that are read anyway": list(dict.fromkeys(self.links)),
        }
        return [
            f"passed over, {what}: {len(paths)} ({_first_names(paths)})"
            for what, paths in passed.items()
            if paths
        ]


def _check_names(root: Path, folders: list[Path]) -> None:
    names = [folder.name for folder in folders]
    if all(name.lower() in _TRAIN + _VALIDATION + _TEST for name in names):
        raise SourceError(f"{root} holds {' and '.join(names)}, but no classes in them; {EXPECTED}")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise SourceError(
                f"{root}: a folder's name is not UTF-8: {name!r}; rename it"
            ) from error


def _first_names(paths: list[Path]) -> str:
    names = sorted({path.name.encode("utf-8", "backslashreplace").decode() for path in paths})
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")

"""Find the images in a folder and the class and part of each, in either layout of EXPECTED.

Images of val or validation are added to train. A class folder may hold one level of folders, whose
images have the same class. Hidden files (with a leading dot) are skipped. Files that are not
images, and links to folders that are already read, are skipped and counted.
"""

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from ssfl.datasets.errors import SourceError
from ssfl.datasets.wording import join_names

EXPECTED = (
    "expected: folders named after the classes with images in them, FOLDER/<class>/<image>, "
    "or FOLDER/train/<class>/<image> and FOLDER/test/<class>/<image>"
)
_NOT_READ: dict[type[OSError], str] = {
    PermissionError: "you have no permission to read this folder",
    FileNotFoundError: "there is no such folder",
    NotADirectoryError: "this is a file, not a folder of images",
}
_TRAIN = ("train", "training")
_VALIDATION = ("val", "valid", "validation")
_TEST = ("test", "testing")


@dataclass(frozen=True)
class ImageTree:
    """The images of a folder by class, and notes about skipped files."""

    train: dict[str, list[Path]]
    test: dict[str, list[Path]]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Folder:
    folders: list[Path]
    images: list[Path]
    others: list[Path]


def find_images(root: Path, test_root: Path | None, endings: frozenset[str]) -> ImageTree:
    """Return all images under the folder; raise SourceError if it has neither layout."""
    walk = _Walk(endings, [path.resolve() for path in (root, test_root) if path])
    inside = walk.look(root)
    parts = {folder.name.lower(): folder for folder in inside.folders}
    is_split = any(walk.look(parts[name]).folders for name in _TRAIN if name in parts)
    tree = walk.split(inside, parts) if is_split else ImageTree(walk.classes(root), {})
    if test_root is not None:
        if tree.test:
            raise SourceError(f"{root} has a folder of test images: rename it, or remove --test")
        tree.test.update(walk.classes(test_root))
    unknown = sorted(set(tree.test) - set(tree.train))
    if unknown:
        raise SourceError(
            f"{root}: test images have classes without training images: {join_names(unknown)}"
        )
    if len(tree.train) == 1 and not is_split:
        (only,) = inside.folders
        folders = [folder.name for folder in walk.look(only).folders]
        if folders:
            tree.notes.append(
                f"there is only one class, {only.name}; if the folders in it are the classes "
                f"({join_names(folders)}), use --source {shlex.quote(str(only))}"
            )
    tree.notes.extend(walk.notes())
    return tree


class _Walk:
    """Lists folders and records the files that are skipped."""

    def __init__(self, endings: frozenset[str], roots: list[Path]) -> None:
        self.endings = endings
        self.roots = roots
        self.links: list[Path] = []
        self.others: list[Path] = []
        self.misplaced: list[Path] = []

    def look(self, folder: Path) -> _Folder:
        """Return the entries of a folder, sorted by name."""
        found = _Folder([], [], [])
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (PermissionError, FileNotFoundError, NotADirectoryError) as error:
            raise SourceError(f"{folder}: {_NOT_READ[type(error)]}") from error
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not path.exists():
                raise SourceError(
                    f"{path} is a dangling link: {path.readlink()} does not exist; restore it, or "
                    "remove the link"
                )
            if entry.is_symlink() and entry.is_dir() and self._is_already_read(path):
                self.links.append(path)
            elif entry.is_dir():
                found.folders.append(path)
            elif path.suffix.lower() in self.endings:
                found.images.append(path)
            else:
                found.others.append(path)
        return found

    def _is_already_read(self, link: Path) -> bool:
        """Return True if a link points into a folder that is read, or to a parent of one."""
        target = link.resolve()
        for root in self.roots:
            # A target outside the root counts as hidden: neither is read.
            inside = target.relative_to(root).parts if target.is_relative_to(root) else (".",)
            is_hidden = any(part.startswith(".") for part in inside)
            if root.is_relative_to(target) or not is_hidden:
                return True
        return False

    def split(self, inside: _Folder, parts: dict[str, Path]) -> ImageTree:
        """Return the images of a folder with separate train and test folders."""
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
                    notes.append(f"the images of {folder.name} were added to the training images")
            elif name in _TEST:
                test.update(self.classes(folder))
            else:
                notes.append(f"folder {folder.name} ignored: only train, val and test are read")
        return ImageTree(dict(sorted(train.items())), test, notes)

    def classes(self, root: Path) -> dict[str, list[Path]]:
        """Return the images of each class folder; raise SourceError if one is empty."""
        inside = self.look(root)
        if not inside.folders:
            found = "images but no folders" if inside.images else "no folders"
            raise SourceError(f"{root} holds {found}; {EXPECTED}")
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
            advice = f" (if its folders are the classes, use --source {shlex.quote(str(folder))})"
            hint = advice if deeper else ""
            raise SourceError(
                f"the class folder {folder} holds no images; add some or remove it{hint}; "
                f"{EXPECTED}"
            )
        self.misplaced += deeper
        return images

    def notes(self) -> list[str]:
        """Return a note for each kind of skipped file."""
        skipped = {
            "files that are not images": self.others,
            "misplaced images or folders": self.misplaced,
            "links to folders that are already read": list(dict.fromkeys(self.links)),
        }
        return [
            f"skipped {what}: {len(paths)} ({_first_names(paths)})"
            for what, paths in skipped.items()
            if paths
        ]


def _check_names(root: Path, folders: list[Path]) -> None:
    names = [folder.name for folder in folders]
    if all(name.lower() in _TRAIN + _VALIDATION + _TEST for name in names):
        raise SourceError(f"{root} holds {' and '.join(names)} without class folders; {EXPECTED}")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise SourceError(
                f"{root}: the folder name {name!r} is not UTF-8; rename it"
            ) from error


def _first_names(paths: list[Path]) -> str:
    names = sorted({path.name.encode("utf-8", "backslashreplace").decode() for path in paths})
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")

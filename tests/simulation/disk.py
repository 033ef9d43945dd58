"""A disk that loses data that was not synced.

The files are real. A hook on `os.fsync` records the length of a synced file and the names in a
synced folder. A power cut keeps all synced data and, at random, some of the rest: part of a tail,
zeros instead of it, a new name or the old one. A killed process leaves everything it wrote.
"""

import os
import random
import shutil
import stat
from pathlib import Path

Names = dict[str, int]  # name -> inode


class Disk:
    """The state directory of one process, from its start to its end."""

    def __init__(self, root: Path, memory: Path) -> None:
        """Watch `root`, whose files are all synced; `memory` keeps data that may reappear."""
        self.root = root
        self._memory = memory
        self._lengths: dict[int, int] = {}
        self._folders: dict[int, Names] = {}
        memory.mkdir()
        for folder, _, files in os.walk(root):
            self._sync_folder(Path(folder))
            for name in files:
                found = (Path(folder) / name).stat()
                self._lengths[found.st_ino] = found.st_size

    def synced(self, descriptor: int) -> None:
        """Note a successful fsync."""
        found = os.fstat(descriptor)
        if not stat.S_ISDIR(found.st_mode):
            self._lengths[found.st_ino] = found.st_size
            return
        for folder, _, _ in os.walk(self.root):
            if Path(folder).stat().st_ino == found.st_ino:
                self._sync_folder(Path(folder))

    def _sync_folder(self, folder: Path) -> None:
        names: Names = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                names[entry.name] = entry.inode()
                kept = self._memory / str(entry.inode())
                if entry.is_file() and not kept.exists():
                    os.link(entry.path, kept)
        self._folders[folder.stat().st_ino] = names

    def image(self, target: Path, rng: random.Random, *, power_cut: bool) -> None:
        """Write the files that a restart will find to `target`."""
        if power_cut:
            self._image(self.root, target, rng)
        else:
            shutil.copytree(self.root, target)

    def _image(self, folder: Path, target: Path, rng: random.Random) -> None:
        target.mkdir()
        synced = self._folders.get(folder.stat().st_ino, {})
        now = {path.name: path for path in sorted(folder.iterdir())}
        inodes = {name: path.stat().st_ino for name, path in now.items()}
        earlier = {inode: name for name, inode in synced.items()}
        for name in sorted({*synced, *now}):
            path, before = now.get(name), synced.get(name)
            if path is not None and (inodes[name] == before or rng.random() < 0.5):
                if path.is_dir():
                    self._image(path, target / name, rng)
                else:
                    self._copy(path, inodes[name], target / name, rng)
                continue
            if path is not None and inodes[name] in earlier and not path.is_dir():
                self._copy(path, inodes[name], target / earlier[inodes[name]], rng)  # not renamed
            kept = self._memory / str(before)
            if before is None or before in inodes.values() or not kept.exists():
                continue  # its name was never synced, or it has another one now
            if path is not None or rng.random() < 0.5:  # not replaced, not removed
                self._copy(kept, before, target / name, rng)

    def _copy(self, source: Path, inode: int, target: Path, rng: random.Random) -> None:
        data = source.read_bytes()
        safe = min(self._lengths.get(inode, 0), len(data))
        match rng.randrange(4):
            case 0:
                data = data[:safe]
            case 1:
                data = data[: rng.randint(safe, len(data))]
            case 2:
                written = rng.randint(safe, len(data))
                data = data[:written] + bytes(
                    len(data) - written
                )  # allocated space that was never written
        target.write_bytes(data)

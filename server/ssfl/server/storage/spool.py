"""Uploads on their way in: one file per client and step, verified whole before they count.

spool/<step>/<client>.<digest>.part    being received; its length is where to resume
spool/<step>/<client>.<digest>.*.plain its values, where it is coded: being decoded and verified
spool/<step>/<client>.<digest>.bin     its values, verified and synced; count if the journal says so

accepted/<step>/<client>.<digest>.bin  with --keep-uploads: those that counted, for `ssfl audit`,
accepted/<step>/SHA256SUMS             and their digests, as sha256sum writes them

The digest is that of the upload as it was sent, by which the journal names it.

A step's folder disappears when the step is over, or becomes that of its accepted uploads; an upload
under way then finds no place to go.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from ssfl.durable.failpoints import failpoint
from ssfl.durable.files import sync_directory, write_atomic
from ssfl.method.strategies.contract import ClientId
from ssfl.server.accounting.memory import folder_bytes
from ssfl.server.errors import StateError
from ssfl.server.storage.upload_files import PartialUpload, StoredValues, UploadFile, Vector

SUMS = "SHA256SUMS"


class Spool:
    """The spool directory."""

    def __init__(self, root: Path, accepted: Path | None = None) -> None:
        """Receive uploads under `root`; keep those that counted under `accepted`, if it is given.

        Both must be on one file system.
        """
        self.root = root
        self._accepted = accepted
        self._named = -1  # the step whose folder is known to outlast a power cut

    @property
    def num_bytes(self) -> int:
        """The bytes of all files that are here now."""
        return folder_bytes(self.root)

    @property
    def is_empty(self) -> bool:
        """True if no upload is here, not even a part of one."""
        return not any(self.root.glob("*/*"))

    def part(self, step: int, client: ClientId, digest: bytes) -> PartialUpload:
        """Return the file of an upload in progress; an unfinished other upload is dropped."""
        folder = self.root / str(step)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what sites sent, in clear
        if step != self._named:  # else a file in it could be synced and still be gone
            sync_directory(self.root)
            sync_directory(self.root.parent)
            self._named = step
        path = folder / f"{client}.{digest.hex()[:16]}.part"
        for other in _named(folder, f"{client}.", ".part"):
            if other != path and other.stem.rpartition(".")[0] == client:
                other.unlink(missing_ok=True)
        path.touch()
        return PartialUpload(path)

    def stored(self, step: int, client: ClientId, digest: bytes) -> StoredValues:
        """Return the values of an upload that was kept."""
        return StoredValues(self.root / str(step) / stored_name(client, digest.hex()))

    def read(self, step: int, client: ClientId, digest: bytes, start: int, count: int) -> Vector:
        """Return up to `count` values of an upload that was kept, from number `start` on."""
        return self.stored(step, client, digest).read(start, count)

    def keep(self, part: PartialUpload, values: StoredValues) -> None:
        """Make verified values permanent: synced, then under their final name.

        `values` are `part.values`, or were decoded from the part into a file of their own.
        """
        path, folder = part.path, part.path.parent
        failpoint("spool.verified")
        with values.path.open("rb") as file:
            os.fsync(file.fileno())
        failpoint("spool.synced")
        values.path.rename(path.with_suffix(".bin"))
        failpoint("spool.renamed")
        part.drop()
        for left in _named(folder, f"{path.stem}.", ".plain"):  # by a call that was cut off
            left.unlink(missing_ok=True)
        sync_directory(folder)
        failpoint("spool.kept")

    def set_aside(self, step: int, counted: Mapping[ClientId, str]) -> None:
        """Keep a committed step's uploads from being dropped, if they are to be kept.

        The folder moves whole or not at all: call it again after a crash.
        """
        folder = self.root / str(step)
        if self._accepted is None or not counted or not folder.exists():
            return
        target = self._accepted / str(step)
        if target.exists():
            return  # it was moved before; what is in the spool came too late
        names = {stored_name(client, digest) for client, digest in counted.items()}
        for file in folder.iterdir():
            if file.name not in names:
                file.unlink(missing_ok=True)
        write_atomic(folder / SUMS, _sums(folder, names))
        if not self._accepted.exists():
            self._accepted.mkdir()
            sync_directory(self._accepted.parent)
        failpoint("accepted.move")
        folder.rename(target)
        failpoint("accepted.moved")
        sync_directory(self._accepted)

    def forget(self, step: int, client: ClientId, digest: bytes) -> None:
        """Drop an upload that was kept and does not count after all."""
        self.stored(step, client, digest).drop()

    def drop_through(self, step: int) -> None:
        """Forget a step's uploads, and what came too late for the steps before it."""
        failpoint("spool.drop")
        for folder in self.root.glob("*"):
            if folder.name.isdigit() and int(folder.name) <= step:
                shutil.rmtree(folder, ignore_errors=True)
        failpoint("spool.dropped")

    def drop_others(self, step: int) -> None:
        """Forget what steps other than `step` left behind, and what was half decoded in it."""
        for folder in self.root.glob("*"):
            if folder.name != str(step):
                shutil.rmtree(folder, ignore_errors=True)
        for left in (self.root / str(step)).glob("*.plain"):
            left.unlink()

    def drop_clients_but(self, client: ClientId, step: int) -> None:
        """Forget what other clients left behind in a step that only this one is asked in."""
        for path in (self.root / str(step)).glob("*.part"):
            if path.stem.rpartition(".")[0] != client:
                path.unlink(missing_ok=True)


def _named(folder: Path, begin: str, end: str) -> list[Path]:
    """Return the files with such names; `glob` would compile and keep a pattern for each."""
    names = (entry.name for entry in os.scandir(folder))
    return [folder / name for name in names if name.startswith(begin) and name.endswith(end)]


def _sums(folder: Path, names: Iterable[str]) -> bytes:
    lines = [f"{UploadFile(folder / name).digest().hex()}  {name}\n" for name in sorted(names)]
    return "".join(lines).encode()


def read_sums(folder: Path) -> dict[str, str]:
    """Return the digests of a step's accepted uploads by file name; {} if they cannot be read."""
    try:
        lines = (folder / SUMS).read_text("ascii").splitlines()
        return {name: digest for digest, name in (line.split("  ") for line in lines)}
    except (OSError, ValueError):
        return {}


def stored_name(client: ClientId, digest: str) -> str:
    """Return the file name of an upload that was kept."""
    return f"{client}.{digest[:16]}.bin"


def check_stored(values: StoredValues, stored: str) -> None:
    """Raise StateError unless an accepted upload is as it was when it was acknowledged."""
    mend = "restore the state directory from a backup, or use --fresh to begin again"
    try:
        if stored and values.digest().hex() != stored:
            raise StateError(f"{values} is damaged: it is not what was accepted; {mend}")
        _ = values.num_bytes
    except FileNotFoundError:
        raise StateError(f"{values} is missing, an accepted upload: {mend}") from None

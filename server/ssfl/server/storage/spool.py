"""The spool: one file per client and step, completely verified before it counts.

spool/<step>/<client>.<digest>.part    being received; its length is the offset to resume at
spool/<step>/<client>.<digest>.*.plain values of a coded upload, being decoded and verified
spool/<step>/<client>.<digest>.bin     verified and synced values; count once journalled

accepted/<step>/<client>.<digest>.bin  with --keep-uploads: those that counted, for `ssfl audit`,
accepted/<step>/SHA256SUMS             and their digests, as sha256sum writes them

The digest is that of the upload as it was sent, which is also its name in the journal.

When a step is over, its folder is deleted or becomes the folder of its accepted uploads. An upload
still in progress then fails.
"""

import os
import re
import shutil
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from ssfl.durable.failpoints import failpoint
from ssfl.durable.files import sync_directory, write_atomic
from ssfl.method.model_state import Vector
from ssfl.server.accounting.memory import folder_bytes
from ssfl.server.errors import StateError
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.server.storage.upload_files import PartialUpload, StoredValues, UploadFile
from ssfl.strategies.contract import ClientId

SUMS = "SHA256SUMS"


class Spool:
    """The spool directory."""

    def __init__(self, root: Path, accepted: Path | None = None) -> None:
        """Receive uploads under `root`; keep counted uploads under `accepted`, if given.

        Both must be on one file system.
        """
        self.root = root
        self._accepted = accepted
        self._lock = threading.Lock()
        self._step = -1  # the step whose folder is synced, and whose parts are known
        self._parts: dict[ClientId, Path] = {}

    @property
    def num_bytes(self) -> int:
        """The size of all files in the spool."""
        return folder_bytes(self.root)

    @property
    def is_empty(self) -> bool:
        """True if the spool holds no upload, not even a partial one."""
        return not any(self.root.glob("*/*"))

    def part(self, step: int, client: ClientId, digest: bytes) -> PartialUpload:
        """Return the file of an upload in progress; drop an unfinished other one of the client."""
        folder = self.root / str(step)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # uploads are not encrypted
        path = folder / f"{client}.{digest.hex()[:16]}.part"
        with self._lock:
            if step != self._step:  # else a power cut could lose a synced file with its folder
                sync_directory(self.root)
                sync_directory(self.root.parent)
                self._step, self._parts = step, _parts_in(folder)
            other = self._parts.get(client, path)
            self._parts[client] = path
        if other != path:
            other.unlink(missing_ok=True)
        path.touch()
        return PartialUpload(path)

    def stored(self, step: int, client: ClientId, digest: bytes) -> StoredValues:
        """Return the values of a kept upload."""
        return StoredValues(self.root / str(step) / stored_name(client, digest.hex()))

    def read(self, step: int, client: ClientId, digest: bytes, start: int, count: int) -> Vector:
        """Return up to `count` values of a kept upload, from value number `start`."""
        return self.stored(step, client, digest).read(start, count)

    def tail(self, step: int, client: ClientId, digest: bytes, num_bytes: int) -> bytes:
        """Return the last bytes of a kept upload."""
        return self.stored(step, client, digest).tail(num_bytes)

    def keep(self, part: PartialUpload, values: StoredValues) -> None:
        """Make verified values permanent: sync them, then rename them to their final name.

        `values` is `part.values`, or a file of its own into which the part was decoded.
        """
        path, folder = part.path, part.path.parent
        failpoint("spool.verified")
        with values.path.open("rb") as file:
            os.fsync(file.fileno())
        failpoint("spool.synced")
        values.path.rename(path.with_suffix(".bin"))
        failpoint("spool.renamed")
        part.drop()
        sync_directory(folder)
        failpoint("spool.kept")

    def set_aside(self, step: int, counted: Mapping[ClientId, str]) -> None:
        """Move the uploads of a committed step to the accepted ones, with `--keep-uploads`.

        The move is atomic; call it again after a crash.
        """
        folder = self.root / str(step)
        if self._accepted is None or not counted or not folder.exists():
            return
        target = self._accepted / str(step)
        if target.exists():
            return  # already moved; files in the spool arrived too late
        names = {stored_name(client, digest) for client, digest in counted.items()}
        for file in folder.iterdir():
            if file.name not in names:
                file.unlink(missing_ok=True)
        sums = (f"{UploadFile(folder / name).digest().hex()}  {name}\n" for name in sorted(names))
        write_atomic(folder / SUMS, "".join(sums).encode())
        if not self._accepted.exists():
            self._accepted.mkdir()
            sync_directory(self._accepted.parent)
        failpoint("accepted.move")
        folder.rename(target)
        failpoint("accepted.moved")
        sync_directory(self._accepted)

    def forget(self, step: int, client: ClientId, digest: bytes) -> None:
        """Drop a kept upload that does not count after all."""
        self.stored(step, client, digest).drop()

    def drop_through(self, step: int) -> None:
        """Delete the uploads of a step and of all steps before it."""
        failpoint("spool.drop")
        for folder in self.root.glob("*"):
            if folder.name.isdigit() and int(folder.name) <= step:
                shutil.rmtree(folder, ignore_errors=True)
        failpoint("spool.dropped")

    def drop_others(self, step: int) -> None:
        """Delete the files of other steps, and partly decoded values of `step`."""
        for folder in self.root.glob("*"):
            if folder.name != str(step):
                shutil.rmtree(folder, ignore_errors=True)
        for left in (self.root / str(step)).glob("*.plain"):
            left.unlink()

    def drop_clients_but(self, clients: Collection[ClientId], step: int) -> None:
        """Delete the partial uploads of a step, except those of `clients`."""
        for path in (self.root / str(step)).glob("*.part"):
            if path.stem.rpartition(".")[0] not in clients:
                path.unlink(missing_ok=True)


def partial_bytes(directory: StateDirectory, client: ClientId) -> int:
    """Return the bytes of a client's unfinished uploads, also of a running coordinator."""
    parts = directory.spool.glob(f"*/{client}.*.part")
    return sum(part.stat().st_size for part in parts)


class KeptUploads:
    """Accepted uploads, in the spool or kept; an audit may read them while they are moved."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory

    def holds(self, step: int) -> bool:
        """Return True if the uploads of a step were kept."""
        return (self._directory.accepted / str(step)).is_dir()

    def find(self, step: int, client: ClientId, digest: str) -> StoredValues:
        """Return the values of an upload; raise FileNotFoundError if they are missing."""
        name = stored_name(client, digest)
        places = (self._directory.accepted, self._directory.spool)
        kept, spooled = (place / str(step) / name for place in places)
        for path in (kept, spooled, kept):  # twice: a running coordinator may just have moved it
            if path.exists():
                return StoredValues(path)
        raise FileNotFoundError(f"{spooled if not self.holds(step) else kept} is missing")

    def noted_digest(self, step: int, client: ClientId, digest: str) -> bytes:
        """Return the SHA-256 of the values that was recorded when they were kept."""
        sums = read_sums(self._directory.accepted / str(step))
        noted = sums.get(stored_name(client, digest), "")
        return bytes.fromhex(noted) if re.fullmatch("[0-9a-f]{64}", noted) else b""

    def read(self, step: int, client: ClientId, digest: bytes, start: int, count: int) -> Vector:
        """Return values of an upload, for the sum."""
        with suppress(FileNotFoundError):  # a running coordinator may move it once
            return self.find(step, client, digest.hex()).read(start, count)
        return self.find(step, client, digest.hex()).read(start, count)

    def tail(self, step: int, client: ClientId, digest: bytes, num_bytes: int) -> bytes:
        """Return the last bytes of an upload."""
        with suppress(FileNotFoundError):
            return self.find(step, client, digest.hex()).tail(num_bytes)
        return self.find(step, client, digest.hex()).tail(num_bytes)


def _parts_in(folder: Path) -> dict[ClientId, Path]:
    """Return the unfinished uploads of a step, which an earlier process may have left."""
    return {ClientId(path.stem.rpartition(".")[0]): path for path in folder.glob("*.part")}


def read_sums(folder: Path) -> dict[str, str]:
    """Return the digests of a step's accepted uploads by file name; {} if they cannot be read."""
    try:
        lines = (folder / SUMS).read_text("ascii").splitlines()
        return {name: digest for digest, name in (line.split("  ") for line in lines)}
    except (OSError, ValueError):
        return {}


def stored_name(client: ClientId, digest: str) -> str:
    """Return the file name of a kept upload."""
    return f"{client}.{digest[:16]}.bin"


def check_stored(values: StoredValues, stored: str) -> None:
    """Raise StateError unless an accepted upload is unchanged since it was acknowledged."""
    mend = "restore the state directory from a backup, or use --fresh to begin again"
    try:
        if stored and values.digest().hex() != stored:
            raise StateError(f"{values} is damaged: it is not what was accepted; {mend}")
        _ = values.num_bytes
    except FileNotFoundError:
        raise StateError(f"{values}, an accepted upload, is missing: {mend}") from None

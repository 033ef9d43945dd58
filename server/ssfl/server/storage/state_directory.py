"""The state directory: the names of its files, and how a run in it is moved aside."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ssfl.durable.files import Bytes, write_atomic
from ssfl.server.errors import StateError

# The files of a run; other files in the directory are left alone.
OURS = (
    "journal*", "manifest-*.json", "*-*.f32", "mask-*.bin", "change-*.bin", "snapshot*",
    "ledger.csv", "spool", "accepted", "session-key",
)  # fmt: skip


class StateDirectory:
    """One state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = root / "journal"  # the facts of the run
        self.snapshot = root / "snapshot.json"  # the state after the first part of the journal
        self.ledger = root / "ledger.csv"  # the bytes of the run, by step and client
        self.spool = root / "spool"  # uploads to the open step
        self.accepted = root / "accepted"  # uploads that counted, with --keep-uploads
        self.session_key = root / "session-key"  # the key that signs session numbers

    def read_snapshot(self) -> bytes | None:
        """Return the newest snapshot; None if there is none."""
        try:
            return self.snapshot.read_bytes()
        except FileNotFoundError:
            return None

    def put_snapshot(self, blocks: Iterable[Bytes]) -> None:
        """Replace the snapshot. It is private: it holds the tokens of clients, like the journal."""
        write_atomic(self.snapshot, blocks, private=True)

    def read_session_key(self, make: Callable[[], bytes]) -> bytes:
        """Return the key that signs session numbers; store the one that `make` returns if none."""
        try:
            return self.session_key.read_bytes()
        except FileNotFoundError:
            key = make()
            write_atomic(self.session_key, key, private=True)
            return key

    def check_files(self) -> None:
        """Raise StateError if a folder has the name of a file of the run."""
        remedies = {
            self.journal: "with the journal from a backup in its place",
            self.session_key: "the coordinator then creates one, and all clients join again",
            self.snapshot: "the coordinator then reads the whole journal",
            self.ledger: "with the file from a backup in its place, if there is one",
        }
        for path, then in remedies.items():
            if path.is_dir():
                raise StateError(
                    f"{path} is a folder, and must be a file: move it away, then start again "
                    f"({then})"
                )

    def move_aside(self) -> Path | None:
        """Move the files of the run to a new folder and return it; None if there are no files.

        The folder is next to the state directory, or inside it if that fails.
        """
        state_dir = self.root.resolve()
        entries = sorted(
            {entry for pattern in OURS for entry in state_dir.glob(pattern)},
            # The journal is moved last, so that a crash leaves it in place.
            key=lambda entry: (entry.name == "journal", entry.name),
        )
        if not entries:
            return None
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        target = state_dir.with_name(f"{state_dir.name}.{stamp}")
        try:
            target.mkdir(parents=True)
            entries[0].rename(target / entries[0].name)
        except OSError:  # a mount point, or the parent is not writable
            with contextlib.suppress(OSError):
                target.rmdir()
            target = state_dir / f"before.{stamp}"
            target.mkdir()
            entries[0].rename(target / entries[0].name)
        for entry in entries[1:]:
            entry.rename(target / entry.name)
        return target

"""The state directory: the name of every file in it."""

import contextlib
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

# The files of a run; other files in the directory are left alone.
OURS = (
    "journal*", "manifest-*.json", "*-*.f32", "mask-*.bin", "change-*.bin", "snapshot*",
    "ledger.csv", "spool", "accepted", "session-key",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """One state directory."""

    root: Path

    @property
    def journal(self) -> Path:
        """The facts of the run."""
        return self.root / "journal"

    @property
    def snapshot(self) -> Path:
        """The state after the beginning of the journal."""
        return self.root / "snapshot.json"

    @property
    def ledger(self) -> Path:
        """The bytes of the run, by step and client."""
        return self.root / "ledger.csv"

    @property
    def spool(self) -> Path:
        """Uploads to the open step."""
        return self.root / "spool"

    @property
    def accepted(self) -> Path:
        """Uploads that counted, with --keep-uploads."""
        return self.root / "accepted"

    @property
    def session_key(self) -> Path:
        """The secret under which session numbers are signed."""
        return self.root / "session-key"

    def move_aside(self) -> Path | None:
        """Move the run to a folder next to the directory, or inside it; return the folder."""
        state_dir = self.root.resolve()
        entries = sorted(
            {entry for pattern in OURS for entry in state_dir.glob(pattern)},
            key=lambda entry: (
                entry.name == "journal",
                entry.name,
            ),  # last: a crash leaves the journal in place
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

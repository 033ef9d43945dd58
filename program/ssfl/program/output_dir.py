"""The output directory of a program, checked before hours of work depend on it."""

import errno
import tempfile
from pathlib import Path

from ssfl.program.exits import usage_error

FULL = (errno.ENOSPC, errno.EDQUOT)


def check_writable(folder: Path, flag: str) -> None:
    """Create `folder` and a file in it; raise ProgramError(USAGE) naming `flag` if that fails.

    A full disk is accepted: it may have space by the time of the first write.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        if error.errno in FULL:
            return
        why = "it is not a directory" if folder.exists() and not folder.is_dir() else error.strerror
        raise usage_error(
            f"{flag}: cannot write to {folder}: {why}; choose a directory that this user may "
            "write to"
        ) from error

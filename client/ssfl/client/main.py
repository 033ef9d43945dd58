"""`ssfl-client`: flags -> config -> take part in a run; signals; exit codes."""

import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ssfl.client.access import Access, read_access
from ssfl.client.config import ClientConfig, settings_elsewhere
from ssfl.datasets.shards import full_name
from ssfl.program import logs, settings
from ssfl.program.exits import (
    ExitCode,
    ProgramError,
    deferred_signals,
    raise_on_sigterm,
    run_program,
)
from ssfl.program.lock import DirectoryLock
from ssfl.program.malloc import keep_chunk_buffers

log = logging.getLogger("ssfl.client")

DESCRIPTION = "Takes part in a sparse federation with one shard of private data."


def main(argv: Sequence[str] | None = None) -> int:
    """Run a client; return its exit code."""
    return run_program(lambda: _main(sys.argv[1:] if argv is None else argv), "ssfl-client")


def _main(argv: Sequence[str]) -> int:
    config = settings.load(
        ClientConfig,
        argv,
        os.environ,
        "ssfl-client",
        DESCRIPTION,
        known_elsewhere=settings_elsewhere(),
    )
    logs.setup(config.log_format, config.log_level)
    raise_on_sigterm()
    keep_chunk_buffers()
    log.info("configuration", extra=settings.describe(config))
    client_id = config.client_id or _id_of(full_name(config.data, config.data_root))
    access = read_access(config)
    folder = config.state_dir / client_id
    with DirectoryLock(folder):
        return _take_part(config, client_id, folder, access)


def _take_part(config: ClientConfig, client_id: str, folder: Path, access: Access) -> int:
    with deferred_signals():
        try:
            import torch  # noqa: F401 -- here, so that a wrong flag is told at once
        except ModuleNotFoundError:
            raise ProgramError(
                "training needs torch: pip install 'ssfl[client]'", ExitCode.BAD_DATA
            ) from None
        from ssfl.client.take_part import take_part

    return take_part(config, client_id, folder, access)


def _id_of(data: str) -> str:
    """Return the default client id: the shard's name."""
    name = Path(data).name.removesuffix(".npz")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ProgramError(
            f"{name!r} cannot be a client id (letters, digits, '.', '_', '-'): "
            "choose one with --client-id",
            ExitCode.USAGE,
        )
    return name


if __name__ == "__main__":
    sys.exit(main())

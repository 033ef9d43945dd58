"""The `ssfl-client` program: settings, signals, exit codes."""

import logging
import os
import sys
from collections.abc import Sequence

from ssfl.client.config import Access, ClientConfig, client_id_of, read_access, settings_elsewhere
from ssfl.durable.lock import DirectoryLock
from ssfl.program import logs, settings
from ssfl.program.exits import (
    ExitCode,
    ProgramError,
    deferred_signals,
    raise_on_sigterm,
    run_program,
)
from ssfl.program.malloc import keep_chunk_buffers

log = logging.getLogger("ssfl.client")

DESCRIPTION = "Takes part in a sparse federation with one shard of private data."


def main(argv: Sequence[str] | None = None) -> int:
    """Run a client; return its exit code."""
    return run_program(lambda: _main(sys.argv[1:] if argv is None else argv), "ssfl-client")


def _main(argv: Sequence[str]) -> int:
    config = settings.load(
        ClientConfig, argv, os.environ, "ssfl-client", DESCRIPTION,
        known_elsewhere=settings_elsewhere(),
    )  # fmt: skip
    logs.setup(config.log_format, config.log_level)
    raise_on_sigterm()
    keep_chunk_buffers()
    logs.log_settings(log, settings.describe(config), settings.changed(config))
    client_id = client_id_of(config)
    access = read_access(config)
    with DirectoryLock(config.state_dir / client_id):
        return _take_part(config, client_id, access)


def _take_part(config: ClientConfig, client_id: str, access: Access) -> int:
    with deferred_signals():
        try:
            import torch  # noqa: F401 -- imported late, so that a wrong flag fails at once
        except ModuleNotFoundError:
            raise ProgramError(
                "training needs torch: pip install 'ssfl[client]'", ExitCode.BAD_DATA
            ) from None
        from ssfl.client.take_part import take_part

    return take_part(config, client_id, access)


if __name__ == "__main__":
    sys.exit(main())

"""What a client needs to be let in: whom it trusts, its certificate, its join token."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ssfl.client.config import ClientConfig
from ssfl.program.addresses import is_loopback, split

if TYPE_CHECKING:
    from ssfl.program.tls.pem import ClientTls
    from ssfl.program.tls.probe import Finding

log = logging.getLogger("ssfl.client")


@dataclass(frozen=True, slots=True)
class Access:
    """How to get in at a coordinator."""

    address: str
    tls: "ClientTls | None" = None
    token: str = ""

    def diagnose(self) -> "Finding | None":
        """Say why the coordinator cannot be spoken to, if that can be found out."""
        from ssfl.program.tls.probe import diagnose  # only where something went wrong

        return diagnose(self.address, self.tls)


def read_access(config: ClientConfig) -> Access:
    """Read and check the files that the settings name; raise ProgramError(USAGE)."""
    files = (config.tls_ca, config.tls_cert, config.tls_key, config.tls_server_name)
    if not (any(files) or config.join_token_file):
        return Access(config.coordinator)
    from ssfl.program.tls.pem import client_tls, read_token

    tls = client_tls(*files)
    token = read_token(config.join_token_file) if config.join_token_file else ""
    if token and tls is None and not is_loopback(split(config.coordinator)[0]):
        log.warning("without --tls-ca the join token travels in the clear: anybody can read it")
    if tls and tls.pair:
        for warning in filter(None, (tls.pair.warning(), tls.pair.key_warning())):
            log.warning("%s", warning)
    return Access(config.coordinator, tls, token)

"""Credentials of a client: the CA it trusts, its certificate and its join token."""

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
    """Address of a coordinator and the credentials for it."""

    address: str
    tls: "ClientTls | None" = None
    token: str = ""

    def diagnose(self) -> "Finding | None":
        """Probe the coordinator; return the cause of a failed connection, or None if unknown."""
        from ssfl.program.tls.probe import diagnose  # imported only after a failure

        return diagnose(self.address, self.tls)


def read_access(config: ClientConfig) -> Access:
    """Read and check the credential files; raise ProgramError(USAGE) if one cannot be used."""
    files = (config.tls_ca, config.tls_cert, config.tls_key, config.tls_server_name)
    if not (any(files) or config.join_token_file):
        return Access(config.coordinator)
    from ssfl.program.tls.pem import client_tls, read_token

    tls = client_tls(*files)
    token = read_token(config.join_token_file) if config.join_token_file else ""
    if token and tls is None and not is_loopback(split(config.coordinator)[0]):
        log.warning("without --tls-ca the join token is sent unencrypted: others can read it")
    if tls and tls.pair:
        for warning in filter(None, (tls.pair.warning(), tls.pair.key_warning())):
            log.warning("%s", warning)
    return Access(config.coordinator, tls, token)

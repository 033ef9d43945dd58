"""TLS credentials of the coordinator's ports, reloaded when their files change.

The files are checked at every new connection, so renewed certificates are used from the next
connection without a restart. Invalid files are logged, and the old certificates stay in use.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import grpc

from ssfl.program.exits import ProgramError
from ssfl.program.monitor.web import TlsFiles
from ssfl.program.tls.pem import (
    SERVER,
    KeyPair,
    read_authorities,
    read_pair,
    read_token,
    token_warning,
)
from ssfl.server.config import CoordinatorConfig

log = logging.getLogger("ssfl.tls")

WARN_EVERY_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Security:
    """The credentials that a coordinator requires of its callers."""

    certificates: "Certificates | None" = None
    token: str = ""

    @property
    def mutual(self) -> bool:
        return bool(self.certificates and self.certificates.mutual)


def read_security(config: CoordinatorConfig) -> Security:
    """Read and check the files that the settings name; raise ProgramError(USAGE)."""
    files = config.tls_files
    token = read_token(config.join_token_file) if config.join_token_file else ""
    if config.join_token_file and (warning := token_warning(config.join_token_file)):
        log.warning("%s", warning)
    return Security(Certificates(files) if files else None, token)


class Certificates:
    """The newest valid certificates on disk."""

    def __init__(
        self, files: TlsFiles, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Read the files; raise ProgramError(USAGE) that says what is wrong with them."""
        self._files = files
        self._now = now
        self._lock = threading.Lock()  # gRPC calls from its own threads, for either port
        self._stamp = self._look()
        self._pair, self._authorities = self._load()
        self._version = 1
        self._warned: datetime | None = None
        self._warn()

    @property
    def mutual(self) -> bool:
        """True if clients must present a certificate."""
        return self._files.authorities is not None

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for one port that follow the files."""
        served = self._version
        configuration = self._configuration()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """Called by gRPC at every handshake; None means no change."""
            nonlocal served
            with self._lock:
                self._follow()
                if served == self._version:
                    return None
                served = self._version
                return self._configuration()

        return grpc.dynamic_ssl_server_credentials(
            configuration, fetch, require_client_authentication=self.mutual
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(self._pair.key, self._pair.certificate)], self._authorities
        )

    def _load(self) -> tuple[KeyPair, bytes | None]:
        files = self._files
        pair = read_pair(files.certificate, files.key, SERVER)
        if warning := pair.key_warning():
            log.warning("%s", warning)
        return pair, read_authorities(files.authorities, "--tls-ca") if files.authorities else None

    def _follow(self) -> None:
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._pair, self._authorities = self._load()
            except ProgramError as error:
                log.warning("the new TLS files cannot be used, the old ones stay in use: %s", error)
            else:
                self._version += 1
                self._warned = None
                log.info("certificates renewed", extra={"file": str(self._files.certificate)})
        self._warn()

    def _warn(self) -> None:
        now = self._now()
        if self._warned and (now - self._warned).total_seconds() < WARN_EVERY_S:
            return
        if text := self._pair.warning(now):
            log.warning("%s", text)
        self._warned = now

    def _look(self) -> object:
        """Return a value that changes when a file is replaced or removed."""
        try:
            return self._files.stamp()
        except OSError:
            return None

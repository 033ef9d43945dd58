"""TLS handshakes that failed, each with the address and a sentence in the log.

gRPC keeps them to itself: no callback, no status, only lines that its C core writes to file
descriptor 2 when it traces handshakes. `heard` turns tracing on and reads these lines: one about a
failed handshake becomes a warning of ours, other traces are dropped, everything else goes on to
stderr unchanged. Tracing costs a few hundred bytes of text per *connection*, nothing per call.

Limits: the trace must be on before grpc is imported; lines that come faster than they are read are
lost; what the C core writes in the instant it aborts the process may be lost, too.
"""

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from ssfl.program import logs

log = logging.getLogger("ssfl.tls")

TRACE = "handshaker"
# Levels of gRPC's own that keep traces back, and what they let through of the rest.
SILENT = {"NONE": "", "ERROR": "EF"}
SAME_EVERY_S = 60.0  # the same failure of the same host is told so often
MAX_HOSTS = 1000  # remembered for that
READ_BYTES = 1 << 16

_RECORD = re.compile(rb"^(?=[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ )", re.MULTILINE)
_FAILED = re.compile(
    r"CallNextHandshakerLocked: error=(?!OK )(?P<error>.*?)\s(?:=== |shutdown=).*?"
    r"endpoint_peer_address=(?P<peer>[^,\s}]+)",
    re.DOTALL,
)
_DROPPED = re.compile(
    r"\] (?:CallNextHandshakerLocked|handshake_manager|handshake manager|gRPC Tracers"
    r"|Handshake failed with error|No match found for server name)"
)

BROKEN_OFF = (
    "the client broke it off: it does not trust this coordinator's certificate (of another CA than "
    "its --tls-ca, expired, or for other names than the one it called)"
)
NO_TLS = "what came is not TLS: a client without --tls-ca, most likely"
SENTENCES = (  # the first that fits
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE",
     "the client showed no certificate: it must give --tls-cert and --tls-key"),
    ("certificate has expired", "the client's certificate has expired: it must be renewed"),
    ("certificate is not yet valid",
     "the client's certificate is not valid yet: one of the two clocks is wrong"),
    ("local issuer", "the client's certificate was not made by a CA of --tls-ca"),
    ("self signed", "the client's certificate was not made by a CA of --tls-ca"),
    ("self-signed", "the client's certificate was not made by a CA of --tls-ca"),
    ("CERTIFICATE_VERIFY_FAILED", "the client's certificate does not stand the check"),
    ("WRONG_VERSION_NUMBER", NO_TLS),
    ("HTTP_REQUEST", NO_TLS),
    ("HTTPS_PROXY_REQUEST", NO_TLS),
    ("_ALERT_", BROKEN_OFF),
    ("BAD_PACKET_LENGTH", BROKEN_OFF),
    ("BAD_DECRYPT", BROKEN_OFF),
    ("Socket closed",
     "the client hung up: it does not trust this coordinator's certificate, or only looked "
     "whether the port is open"),
    ("DEADLINE_EXCEEDED", "the client did not finish it in time"),
)  # fmt: skip


def sentence_for(error: str) -> str:
    """Return what a failure of gRPC's means; its own words where we have none."""
    plain = " ".join(error.split())
    found = next((text for mark, text in SENTENCES if mark in plain), "")
    if not found:
        return plain[:300]
    detail = plain.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2].removesuffix(": OK")
    return f"{found} ({detail})" if "the check" in found else found


class Handshakes:
    """Tells failures, but the same one of the same host not again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failed = 0  # since the start, for a metric
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def take(self, record: str) -> bool:
        """Take a record of the C core; return whether it was one for us."""
        found = _FAILED.search(record)
        if found:
            self._tell(found["error"], found["peer"])
        return bool(found or _DROPPED.search(record))

    def _tell(self, error: str, peer: str) -> None:
        self.failed += 1
        address = unquote(peer).partition(":")[2]
        sentence = sentence_for(error)
        key, now_s = (address.rpartition(":")[0], sentence), self._clock()
        told_s, unsaid = self._told.get(key, (-SAME_EVERY_S, 0))
        if now_s - told_s < SAME_EVERY_S:
            self._told[key] = told_s, unsaid + 1
            return
        if len(self._told) >= MAX_HOSTS:
            self._told.clear()
        self._told[key] = now_s, 0
        extra = {"from": address} | ({"times_since_last_told": unsaid + 1} if unsaid else {})
        log.warning("a TLS handshake failed: %s", sentence, extra=extra)


@contextmanager
def heard(handshakes: Handshakes, log_format: str, log_level: str) -> Iterator[None]:
    """While inside, failed handshakes of servers in this process are told in the log.

    Must be entered before grpc is imported. Our own log goes to stderr directly, past the pipe
    that stands in for file descriptor 2.
    """
    found = {name: os.environ.get(name, "") for name in ("GRPC_TRACE", "GRPC_VERBOSITY")}
    own, level = found["GRPC_TRACE"], found["GRPC_VERBOSITY"].upper()
    os.environ["GRPC_TRACE"] = f"{own},{TRACE}" if own else TRACE
    if level in SILENT:
        os.environ["GRPC_VERBOSITY"] = "INFO"
    real, stderr = os.dup(2), sys.stderr
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # a flood of lines must not hold up the C core
    stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(real, "w", buffering=1, errors="backslashreplace", closefd=False)
    logs.setup(log_format, log_level)

    def take(record: str) -> bool:
        """Return whether a record is not to be seen."""
        taken = handshakes.take(record)
        if level in SILENT and _RECORD.match(record.encode()):
            return record[0] not in SILENT[level]
        return taken and not own  # who asked for traces sees them

    reader = threading.Thread(target=_read, args=(reading, real, take), name="handshakes")
    reader.daemon = True
    reader.start()
    try:
        yield
    finally:
        for name, value in found.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value else {})
        os.dup2(real, 2)  # closes the pipe, which ends the reader
        reader.join(timeout=5)
        sys.stderr.flush()
        sys.stderr = stderr
        logs.setup(log_format, log_level)
        os.close(real)


def _read(reading: int, real: int, take: Callable[[str], bool]) -> None:
    """Sort what comes through the pipe until it is closed."""
    rest = b""
    while data := os.read(reading, READ_BYTES):
        rest += data
        # The C core writes a record at once: only a full read can have cut one.
        whole, rest = _whole(rest) if len(data) == READ_BYTES else (rest, b"")
        for record in _RECORD.split(whole):
            if record and not take(record.decode("utf-8", errors="replace")):
                os.write(real, record)
    os.close(reading)


def _whole(data: bytes) -> tuple[bytes, bytes]:
    """Cut off the last record, which may not be whole."""
    starts = [found.start() for found in _RECORD.finditer(data)]
    cut = starts[-1] if starts and starts[-1] else len(data)
    return data[:cut], data[cut:]

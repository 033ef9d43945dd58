"""Errors of the codec.

CodecError
├─ TruncatedPayload    fewer bytes than expected
├─ TrailingBytes       more bytes than expected
├─ MaskError           not a mask of this size
├─ MalformedPayload    no encoder of this code writes such bytes
├─ UnfitValues         the chosen code cannot hold these values
├─ ChunkError          a gap, a repeat, a reordering, an empty or oversized chunk
├─ ChecksumMismatch    a chunk was damaged in transfer: send it again
└─ DigestMismatch      the whole payload is not the announced one: send it again
"""


class CodecError(Exception):
    """Base of everything `ssfl.codec` raises on purpose."""


class TruncatedPayload(CodecError):
    """The payload is shorter than expected."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"payload has {actual} bytes, {expected} were promised")
        self.expected, self.actual = expected, actual


class TrailingBytes(CodecError):
    """The payload is longer than expected."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"payload has {actual} bytes, only {expected} were promised")
        self.expected, self.actual = expected, actual


class MaskError(CodecError):
    """The bytes are not a mask of the announced size and count."""


class MalformedPayload(CodecError):
    """No encoder of this code writes such bytes."""


class UnfitValues(CodecError):
    """The chosen code cannot hold these values."""


class ChunkError(CodecError):
    """A chunk does not continue the payload."""


class ChecksumMismatch(CodecError):
    """A chunk's CRC-32 differs from the announced one."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"checksum of the chunk at byte {offset} differs: damaged on the way")
        self.offset = offset


class DigestMismatch(CodecError):
    """The whole payload's SHA-256 differs from the announced one."""

    def __init__(self, expected: bytes, actual: bytes) -> None:
        super().__init__(f"payload digest is {actual.hex()[:12]}, announced {expected.hex()[:12]}")
        self.expected, self.actual = expected, actual

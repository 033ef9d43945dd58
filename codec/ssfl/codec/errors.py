"""The ways bytes can be wrong.

CodecError
├─ TruncatedPayload    fewer bytes than promised
├─ TrailingBytes       more bytes than promised
├─ MaskError           not a mask of this size
├─ MalformedPayload    not what this code writes
├─ UnfitValues         the code asked for cannot hold these values
├─ ChunkError          a gap, a repeat, a reordering, an empty or oversized chunk
├─ ChecksumMismatch    a chunk was damaged on the way: send it again
└─ DigestMismatch      the whole payload is not the announced one: send it again
"""


class CodecError(Exception):
    """Base of everything `ssfl.codec` raises on purpose."""


class TruncatedPayload(CodecError):
    """Fewer bytes arrived than were promised."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"payload has {actual} bytes, {expected} were promised")
        self.expected, self.actual = expected, actual


class TrailingBytes(CodecError):
    """More bytes arrived than were promised."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"payload has {actual} bytes, only {expected} were promised")
        self.expected, self.actual = expected, actual


class MaskError(CodecError):
    """The bytes are not a mask of the announced size and count."""


class MalformedPayload(CodecError):
    """The bytes are not what the code writes."""


class UnfitValues(CodecError):
    """The code that was asked for cannot hold these values."""


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

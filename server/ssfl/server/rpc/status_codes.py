"""The table of exceptions and their gRPC status codes."""

import grpc

from ssfl.codec.errors import ChecksumMismatch, CodecError, DigestMismatch
from ssfl.method.errors import ManifestError
from ssfl.server import errors
from ssfl.server.loop.refusals import OUTLIER, REASONS

STATUS: dict[type[Exception], grpc.StatusCode] = {
    CodecError: grpc.StatusCode.INVALID_ARGUMENT,  # resending the same bytes cannot help
    ChecksumMismatch: grpc.StatusCode.DATA_LOSS,  # damaged in transit: send again
    DigestMismatch: grpc.StatusCode.DATA_LOSS,
    ManifestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.WrongName: grpc.StatusCode.PERMISSION_DENIED,
    errors.VersionUnsupported: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ClientIdTaken: grpc.StatusCode.ALREADY_EXISTS,
    errors.RunFull: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Removed: grpc.StatusCode.PERMISSION_DENIED,
    errors.DiskFull: grpc.StatusCode.UNAVAILABLE,
    errors.TooManySamples: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TooManyJoins: grpc.StatusCode.RESOURCE_EXHAUSTED,  # back off, then retry
    errors.TooManyCalls: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooManyChecks: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnknownClient: grpc.StatusCode.NOT_FOUND,  # join again
    errors.SessionEnded: grpc.StatusCode.ABORTED,
    errors.ManifestMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.JoinAgain: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleBase: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UpdateConflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.NoProgress: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.SlotYielded: grpc.StatusCode.UNAVAILABLE,  # retry at once
    errors.RunOver: grpc.StatusCode.FAILED_PRECONDITION,
    errors.IsPaused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NoMask: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TooFewClients: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ModelUnusable: grpc.StatusCode.FAILED_PRECONDITION,
}


def all_reasons() -> list[str]:
    """Return every reason that `reason_of` can return, and the one for outlier scores."""
    found = {"internal", OUTLIER, *REASONS.values()}
    kinds = [errors.Refusal]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        found.add(kind.reason)
    return sorted(found - {errors.Refusal.reason})  # the base class is never raised


def status_of(error: Exception) -> grpc.StatusCode:
    """Return the code of the closest listed ancestor of `error`; INTERNAL if none."""
    return next((STATUS[k] for k in type(error).__mro__ if k in STATUS), grpc.StatusCode.INTERNAL)

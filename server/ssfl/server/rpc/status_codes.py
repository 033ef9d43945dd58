"""The table of exceptions and their gRPC status codes."""

from grpc import StatusCode

from ssfl.codec.errors import ChecksumMismatch, CodecError, DigestMismatch
from ssfl.method.errors import ManifestError
from ssfl.server import errors
from ssfl.server.loop.refusals import OUTLIER, REASONS

_BY_CODE: dict[StatusCode, tuple[type[Exception], ...]] = {
    # Resending the same bytes cannot help.
    StatusCode.INVALID_ARGUMENT: (CodecError, ManifestError, errors.InvalidRequest),
    # The bytes were damaged in transit: send them again.
    StatusCode.DATA_LOSS: (ChecksumMismatch, DigestMismatch),
    StatusCode.UNAUTHENTICATED: (errors.Unauthenticated,),
    StatusCode.PERMISSION_DENIED: (errors.WrongName, errors.Removed),
    StatusCode.ALREADY_EXISTS: (errors.ClientIdTaken, errors.UpdateConflict),
    StatusCode.NOT_FOUND: (errors.UnknownClient,),  # join again
    StatusCode.ABORTED: (errors.SessionEnded,),
    StatusCode.DEADLINE_EXCEEDED: (errors.NoProgress,),
    # Back off, then retry; after SlotYielded, retry at once.
    StatusCode.UNAVAILABLE: (errors.DiskFull, errors.SlotYielded),
    StatusCode.RESOURCE_EXHAUSTED: (errors.TooManyJoins, errors.TooManyCalls, errors.TooManyChecks),
    StatusCode.FAILED_PRECONDITION: (
        *(errors.VersionUnsupported, errors.RunFull, errors.TooManySamples),
        *(
            errors.ManifestMismatch,
            errors.StrategyMismatch,
            errors.JoinAgain,
            errors.StaleBase,
            errors.RunOver,
        ),
        *(errors.IsPaused, errors.NoMask, errors.TooFewClients, errors.ModelUnusable),
    ),
}
STATUS = {kind: code for code, kinds in _BY_CODE.items() for kind in kinds}


def all_reasons() -> list[str]:
    """Return every reason that `reason_of` can return, and the one for outlier scores."""
    found = {"internal", OUTLIER, *REASONS.values()}
    kinds = [errors.Refusal]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        found.add(kind.reason)
    return sorted(found - {errors.Refusal.reason})  # the base class is never raised


def status_of(error: Exception) -> StatusCode:
    """Return the code of the closest listed ancestor of `error`; INTERNAL if none."""
    return next((STATUS[k] for k in type(error).__mro__ if k in STATUS), StatusCode.INTERNAL)

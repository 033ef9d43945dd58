"""Refusals of the coordinator: one class per action that the caller can take (wire-format.md)."""

from typing import ClassVar


class Refusal(Exception):
    """Base of errors that become a gRPC status; `reason` is the word on the wire."""

    reason: ClassVar[str] = "refused"

    def __init_subclass__(cls, reason: str) -> None:
        cls.reason = reason


class InvalidRequest(Refusal, reason="invalid_request"):
    """A field is missing, out of range or contradicts another."""


class BadValues(InvalidRequest, reason="bad_values"):
    """An upload holds numbers that may not enter a sum."""


class Unauthenticated(Refusal, reason="unauthenticated"):
    """The call has no join token, or a wrong one."""


class WrongName(Refusal, reason="wrong_name"):
    """The caller's name is not in its certificate."""


class VersionUnsupported(Refusal, reason="version_unsupported"):
    """The client speaks a newer protocol."""

    def __init__(self, theirs: int, ours: int) -> None:
        super().__init__(
            f"the client speaks protocol {theirs}, this coordinator speaks {ours}: "
            "install the coordinator's version at the client, or upgrade the coordinator"
        )


class ClientIdTaken(Refusal, reason="client_id_taken"):
    """The name belongs to another token or, with certificates, is in use by a live client."""


class RunFull(Refusal, reason="run_full"):
    """The run accepts no new client: it is reproducible and complete, or at --max-clients."""


class Removed(Refusal, reason="removed"):
    """The site was removed from the run by an operator."""


class DiskFull(Refusal, reason="disk_full"):
    """The coordinator's disk has no space for an upload now."""


class TooManySamples(Refusal, reason="too_many_samples"):
    """The client claims more samples than the run allows."""


class TooManyJoins(Refusal, reason="too_many_joins"):
    """One client, or new clients together, join too often."""


class TooManyCalls(Refusal, reason="too_many_calls"):
    """One client holds more calls open than it needs."""


class TooManyChecks(Refusal, reason="too_many_checks"):
    """Too many concurrent or successive checks."""


class UnknownClient(Refusal, reason="unknown_client"):
    """The caller is not a member of this run."""


class SessionEnded(Refusal, reason="session_ended"):
    """A newer Join of the same client replaced the caller's session."""


class ManifestMismatch(Refusal, reason="manifest_mismatch"):
    """The client built another model."""


class StrategyMismatch(Refusal, reason="strategy_mismatch"):
    """The client has another version of the run's strategy."""


class JoinAgain(Refusal, reason="join_again"):
    """The client must join again before it can work."""


class StaleBase(Refusal, reason="stale_base"):
    """The upload was made for another base or initial model."""


class StaleMask(StaleBase, reason="stale_mask"):
    """The upload was made under another mask, usually of an earlier epoch."""


class UpdateConflict(Refusal, reason="update_conflict"):
    """Other bytes were already accepted for this step."""


class NoProgress(Refusal, reason="no_progress"):
    """A transfer made no progress for too long."""


class SlotYielded(Refusal, reason="slot_yielded"):
    """An upload held its slot for its full time while others wait; its bytes are kept."""


class RunOver(Refusal, reason="run_over"):
    """There is nothing left to start or stop."""


class IsPaused(Refusal, reason="paused"):
    """The run is paused until an operator resumes it."""


class TooFewClients(Refusal, reason="too_few_clients"):
    """The run cannot begin yet."""


class NoMask(Refusal, reason="no_mask"):
    """There is no mask to refresh."""


class ModelUnusable(Refusal, reason="model_unusable"):
    """The run's settings do not fit this model."""


class StateError(Exception):
    """The state directory has another configuration or is damaged; the message says what to do."""


class Fenced(StateError):
    """Another coordinator has taken over the state directory: nothing may be committed here."""


class StateGone(StateError):
    """The state directory, or the journal in it, was deleted while the coordinator was running."""

    def __init__(self, folder: object) -> None:
        super().__init__(
            f"the state directory {folder} is gone: its journal was deleted, or its disk was "
            "unmounted, while this coordinator was running. To resume the run, restore the "
            "directory from a backup and start again. Without a backup, start again to begin a "
            "new run"
        )

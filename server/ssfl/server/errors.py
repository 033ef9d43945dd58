"""Refusals of the coordinator: one class per action that the *caller* can take.

Refusal
├─ InvalidRequest        a field breaks the protocol: a bug in the client
│  └─ BadValues          NaN, infinity or out of bound, with client and tensor
├─ Unauthenticated       no join token, or a wrong one
├─ WrongName             not the name in the certificate
├─ VersionUnsupported    a protocol from the future
├─ ClientIdTaken         the name belongs to another token, or its certificate is in use
├─ Removed               an operator removed this site
├─ DiskFull              no room for this upload: try again
├─ RunFull               a reproducible run has all its clients, or --max-clients are here
├─ TooManySamples        more claimed than --max-samples
├─ TooManyJoins          a flood of joins: back off, then join again
├─ TooManyCalls          one client holds too many calls open: back off
├─ TooManyChecks         other sites are measuring: try again
├─ UnknownClient         not of this run: join again
├─ SessionEnded          a newer Join of the same token replaced this session
├─ ManifestMismatch      another model: the first differing tensor is named
├─ JoinAgain             no valid session, left, or joined before the model was known
├─ StaleBase             other base than the step's: ask for the task again
│  └─ StaleMask          other mask than the step's: ask for the task again
├─ UpdateConflict        other bytes were accepted from this client
├─ NoProgress            no byte for no_progress_s
├─ SlotYielded           other uploads wait for the slot: ask for it again, at once
├─ RunOver               `ssfl start`, `pause`, `resume`, `stop`, `refresh-mask` after the end
├─ IsPaused              `ssfl start` before `ssfl resume`
├─ NoMask                `ssfl refresh-mask` where there is none to refresh
├─ TooFewClients         `ssfl start` before enough have joined
└─ ModelUnusable         the run's settings do not fit this model

StateError               the state directory cannot be used (not sent to clients)
"""


class Refusal(Exception):
    """Base of errors that become a gRPC status; `reason` is the word on the wire."""

    reason = "refused"


class InvalidRequest(Refusal):
    """A field is missing, out of range or contradicts another."""

    reason = "invalid_request"


class BadValues(InvalidRequest):
    """An upload holds numbers that may not enter a sum."""

    reason = "bad_values"


class Unauthenticated(Refusal):
    """The call has no join token, or a wrong one."""

    reason = "unauthenticated"


class WrongName(Refusal):
    """The caller's name is not in its certificate."""

    reason = "wrong_name"


class VersionUnsupported(Refusal):
    """The client speaks a newer protocol."""

    reason = "version_unsupported"

    def __init__(self, theirs: int, ours: int) -> None:
        super().__init__(
            f"the client speaks protocol {theirs}, this coordinator speaks {ours}: "
            "install the coordinator's version at the client, or upgrade the coordinator"
        )
        self.theirs, self.ours = theirs, ours


class ClientIdTaken(Refusal):
    """The name belongs to another token, or a live client uses its certificate."""

    reason = "client_id_taken"


class RunFull(Refusal):
    """The run accepts no new client: it is reproducible and complete, or has --max-clients."""

    reason = "run_full"


class Removed(Refusal):
    """The site was removed from the run by an operator."""

    reason = "removed"


class DiskFull(Refusal):
    """The coordinator's disk has no space for an upload now."""

    reason = "disk_full"


class TooManySamples(Refusal):
    """The client claims more samples than the run allows."""

    reason = "too_many_samples"


class TooManyJoins(Refusal):
    """One client, or new clients together, join too often."""

    reason = "too_many_joins"


class TooManyCalls(Refusal):
    """One client holds more calls open than it needs."""

    reason = "too_many_calls"


class TooManyChecks(Refusal):
    """Too many concurrent or successive checks."""

    reason = "too_many_checks"


class UnknownClient(Refusal):
    """The caller is not a member of this run."""

    reason = "unknown_client"


class SessionEnded(Refusal):
    """A newer Join of the same client replaced the caller's session."""

    reason = "session_ended"


class ManifestMismatch(Refusal):
    """The client built another model."""

    reason = "manifest_mismatch"


class JoinAgain(Refusal):
    """The client must join again before it can work."""

    reason = "join_again"


class StaleBase(Refusal):
    """The upload was made for another base or initial model."""

    reason = "stale_base"


class StaleMask(StaleBase):
    """The upload was made under another mask, usually of an earlier epoch."""

    reason = "stale_mask"


class UpdateConflict(Refusal):
    """Other bytes were already accepted for this step."""

    reason = "update_conflict"


class NoProgress(Refusal):
    """A transfer made no progress for too long."""

    reason = "no_progress"


class SlotYielded(Refusal):
    """An upload held its slot for its full time while others wait; its bytes are kept."""

    reason = "slot_yielded"


class RunOver(Refusal):
    """There is nothing left to start or stop."""

    reason = "run_over"


class IsPaused(Refusal):
    """The run is paused until an operator resumes it."""

    reason = "paused"


class TooFewClients(Refusal):
    """The run cannot begin yet."""

    reason = "too_few_clients"


class NoMask(Refusal):
    """There is no mask to refresh."""

    reason = "no_mask"


class ModelUnusable(Refusal):
    """The run's settings do not fit this model."""

    reason = "model_unusable"


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

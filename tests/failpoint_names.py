"""All failpoints of the programs. Those of a file start with the first part of its name."""

_ATOMIC = ("written", "synced", "renamed", "named")  # the stages of files.atomic_file

COORDINATOR_POINTS = (
    "journal.taken", "journal.created", "journal.append", "journal.torn", "journal.written",
    "journal.synced",
    "ledger.append", "ledger.written",
    "spool.chunk", "spool.chunk-written", "spool.verified", "spool.synced", "spool.renamed",
    "spool.kept", "spool.drop", "spool.dropped",
    "sum.open", "sum.fold", "sum.reduce", "sum.stored",
    "ack.join", "ack.initial", "ack.upload", "ack.evaluation", "ack.leave",
    *(f"{kind}.{stage}" for kind in ("manifest", "mask", "values") for stage in _ATOMIC),
)  # fmt: skip
REFRESH_POINTS = tuple(f"scored.{stage}" for stage in _ATOMIC)  # runs that refresh the mask
KEEP_POINTS = ("accepted.move", "accepted.moved")  # runs with --keep-uploads
CLIENT_POINTS = (
    "client.scored", "client.trained", "client.saved", "client.chunk", "client.receipt",
    "client.dropped",
    *(f"answer.{stage}" for stage in _ATOMIC),
)  # fmt: skip
MEMORY_POINTS = (  # clients that keep something, and their own models
    "client.remembered", "client.promoted", "client.personalized",
)  # fmt: skip
ENDED_POINTS = ("client.goodbye",)  # clients whose run is over

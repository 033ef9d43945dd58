"""The Prometheus series of the coordinator and of the client.

Units are base units; counters end in `_total`. Labels are bounded. Most have a few values,
such as a phase, a direction or an outcome; the others are the digest of the mask, and `client` for
at most CLIENTS_SHOWN clients. Run ids and round numbers are never labels.

A counter restarts at 0 with its process, unless its text says otherwise; `rate` and `increase`
handle that. They miss the first increase of a new series, so every counter starts at 0 for every
label that it can get.
"""

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum

# From 5 ms to 2 hours: a round takes 50 ms on one machine and an hour across hospitals.
SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0),
)
# Durations of an fsync: from 0.1 ms on a good disk to 10 s on a failing one.
SYNC_SECONDS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0)
# With more than CLIENTS_SHOWN clients, two groups of up to SLOWEST_SHOWN clients have series: those
# that the step waits for, filled up with those that reported last; and those silent for longest.
CLIENTS_SHOWN, SLOWEST_SHOWN = 200, 20


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric family; `name` is without the `_total` of a counter."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """The name in Prometheus."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


class Histogram:
    """Counts measurements by upper bound, in cumulative buckets as Prometheus defines them."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add a measurement."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[float, int]]:
        """Return each bound, the last one infinite, with the number of values at or below it.

        >>> histogram = Histogram((0.1, 1.0))
        >>> for seconds in (0.05, 0.1, 3.0):
        ...     histogram.observe(seconds)
        >>> histogram.buckets()
        [(0.1, 2), (1.0, 2), (inf, 3)]
        """
        cumulative, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), tuple(self._counts), strict=True):
            cumulative += count
            buckets.append((bound, cumulative))
        return buckets


def _gauge(name: str, text: str, *labels: str) -> Series:
    return Series(name, Kind.GAUGE, text, labels)


def _counter(name: str, text: str, *labels: str) -> Series:
    return Series(name, Kind.COUNTER, text, labels)


def _seconds(name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS) -> Series:
    return Series(name, Kind.HISTOGRAM, text, labels, buckets)


BUILD_INFO = _gauge("ssfl_build_info", "1; the version of this program", "version", "program")

# -- the coordinator: the run

RUN_PHASE = _gauge(
    "ssfl_run_phase", "1 for the current phase of the run, 0 for the others", "phase"
)
RUN_STALLED = _gauge("ssfl_run_stalled", "1 if too few clients are present to continue")
RUN_STALLED_SECONDS = _gauge(
    "ssfl_run_stalled_seconds", "time since the run stalled; 0 if it is not stalled"
)
RUN_MISSING = _gauge("ssfl_run_missing_clients", "clients that a stalled run waits for")
RUN_SECONDS_LEFT = _gauge(
    "ssfl_run_seconds_left",
    "time to the end at the pace of recent rounds; absent while unknown, stalled, paused or over",
)
ROUNDS = _counter("ssfl_rounds", "rounds committed in this run, earlier processes included")
ROUNDS_PLANNED = _gauge("ssfl_rounds_planned", "planned rounds of the run")
ROUND_DEADLINE = _gauge(
    "ssfl_round_deadline_seconds",
    "time limit of a round (--round-deadline-s); absent in a reproducible run, which has none",
)
STEPS_VOID = _counter(
    "ssfl_steps_void", "steps that were repeated because too few clients reported"
)
STEP_SECONDS = _gauge(
    "ssfl_step_elapsed_seconds", "time since the current step started; 0 without a step"
)
STEP_DURATION = _seconds(
    "ssfl_step_duration_seconds", "time from the start of a step to its commit", "work"
)
ROUND_PHASE = _seconds(
    "ssfl_round_phase_seconds",
    "parts of a round, for the client that reported last: broadcast (download of its task), "
    "training (its computation), collection (the rest until the round closed), aggregation (the "
    "sum), commit (until the new model was on disk); their sum is the duration of the round",
    "phase",
)
ACCURACY = _gauge(
    "ssfl_model_accuracy_ratio",
    "newest pooled accuracy of the global model; absent before the first evaluation",
)
LOSS = _gauge(
    "ssfl_model_loss", "newest pooled loss of the global model; absent before the first evaluation"
)
RECOVERED = _gauge(
    "ssfl_run_recovered",
    "1 if this process resumed the run of an earlier process; "
    "changes(process_start_time_seconds) counts restarts",
)

# -- the mask

MASK_INFO = _gauge("ssfl_mask_info", "1; the current mask", "mask_digest")
MASK_EPOCH = _gauge("ssfl_mask_epoch", "number of the current mask; 0 before the first")
MASK_KEPT = _gauge("ssfl_mask_kept_weights", "weights that the mask keeps")
MASK_DENSITY = _gauge(
    "ssfl_mask_density_ratio", "kept weights, as a share of those that a mask can prune"
)
MODEL_VALUES = _gauge("ssfl_model_values", "number of values of the whole model")

# -- clients

CLIENTS = _gauge("ssfl_clients", "clients by state", "state")
JOINED = _counter("ssfl_clients_joined", "times a client joined", "again")
SELECTED = _counter("ssfl_clients_selected", "times a client was asked to work", "work")
REPORTED = _counter("ssfl_clients_reported", "results that counted", "work")
LATE = _counter("ssfl_clients_late", "results that arrived after their step closed")
LOST = _counter("ssfl_clients_lost", "times a client was silent for 30 seconds")
CLIENT_LAST_SEEN = _gauge(
    "ssfl_client_last_seen_seconds",
    "time since the last call of a client; absent if it has left or was removed",
    "client",
)
CLIENT_UP = _gauge(
    "ssfl_client_up", "1 if a client is present, 0 if lost, left or removed", "client"
)
CLIENT_PENDING = _gauge(
    "ssfl_client_pending",
    "1 if the current step waits for a client's result, or a stalled run waits for the client",
    "client",
)
CLIENT_SAMPLES = _gauge("ssfl_client_samples", "training samples of a client", "client")
CLIENT_PHASE = _gauge(
    "ssfl_client_phase_seconds",
    "parts of a client's newest result: broadcast (download of its task), training, upload",
    "client",
    "phase",
)
CLIENT_THROUGHPUT = _gauge(
    "ssfl_client_upload_bytes_per_second", "upload rate of a client's newest result", "client"
)

# -- bytes

_BYTE_LABELS = ("direction", "phase", "encoding")
PAYLOAD_BYTES = _counter("ssfl_payload_bytes", "encoded tensors", *_BYTE_LABELS)
MESSAGE_BYTES = _counter("ssfl_message_bytes", "whole messages, tensors included", *_BYTE_LABELS)
SOCKET_BYTES = _counter("ssfl_socket_bytes", "bytes of TCP by the kernel's count", "direction")
DENSE_BYTES = _counter(
    "ssfl_dense_bytes",
    "size of all updates as dense float32, and of the models sent to clients that did not hold "
    "them; compare with ssfl_payload_bytes_total for phase=values, round_masks and evaluation",
    "direction",
)
DENSE_RATIO = _gauge(
    "ssfl_bytes_to_dense_ratio",
    "payload of the phases values, round_masks and evaluation as a share of "
    "ssfl_dense_bytes_total, since the start and up to the newest round",
    "direction",
)

# -- failures, disk and memory

REFUSALS = _counter("ssfl_refusals", "calls refused", "reason")
RESUMES = _counter("ssfl_resumes", "broken transfers that were resumed", "direction")
RETRIES = _counter("ssfl_retries", "tasks that were sent to a client again")
JOURNAL_SYNC = _seconds(
    "ssfl_journal_sync_seconds", "time to write facts durably to disk", buckets=SYNC_SECONDS
)
JOURNAL_BYTES = _gauge("ssfl_journal_bytes", "length of the journal")
SPOOL_BYTES = _gauge("ssfl_spool_bytes", "uploads on disk that are not yet in a model")
UPLOADS = _gauge("ssfl_uploads_in_flight", "uploads in progress")
UPLOAD_SLOTS = _gauge("ssfl_upload_slots", "limit on concurrent uploads (--upload-slots)")
DISK_FREE = _gauge(
    "ssfl_disk_free_bytes",
    "free space on the disk of --state-dir (state), and of --out-dir (out) if that differs",
    "disk",
)
DISK_SIZE = _gauge(
    "ssfl_disk_size_bytes",
    "size of the disk of --state-dir (state), and of --out-dir (out) if that differs",
    "disk",
)
DISK_FULL = _gauge("ssfl_disk_full", "1 if the coordinator waits for free disk space")
MEMORY_PEAK = _gauge("ssfl_memory_peak_bytes", "largest resident memory so far")
MEMORY_LIMIT = _gauge(
    "ssfl_memory_limit_bytes", "memory limit of this process: of its cgroup, or of the machine"
)
HEAP = _gauge(
    "ssfl_heap_bytes", "heap memory in use as the C library reports it; absent if it does not"
)

# -- the client's own series

SITE_CONNECTED = _gauge("ssfl_site_connected", "1 if the coordinator answered the newest call")
SITE_STATE = _gauge("ssfl_site_state", "1 for the state of this client, 0 for the others", "state")
SITE_SAMPLES = _gauge("ssfl_site_samples", "training samples in the shard")
SITE_RESULTS = _counter("ssfl_site_results", "results sent, by outcome", "outcome")
SITE_WORK = _seconds("ssfl_site_work_seconds", "time to compute a result", "work")
SITE_TRANSFER = _seconds("ssfl_site_transfer_seconds", "time of a download or upload", "direction")
SITE_BYTES = _counter("ssfl_site_payload_bytes", "encoded tensors", "direction")
SITE_RETRIES = _counter("ssfl_site_retries", "times the coordinator was not reached")
SITE_RESUMES = _counter("ssfl_site_resumes", "broken transfers that were resumed", "direction")
SITE_JOINS = _counter("ssfl_site_joins", "times this client joined")
SITE_TRAINING_LOSS = _gauge("ssfl_site_training_loss", "mean loss of the newest training")
SITE_STEPS_DONE = _gauge("ssfl_site_steps_done", "finished minibatches of the current work")
SITE_STEPS_ALL = _gauge("ssfl_site_steps_planned", "all minibatches of the current work")

COORDINATOR = tuple(
    series
    for name, series in globals().items()
    if isinstance(series, Series) and not name.startswith("SITE_")
)
CLIENT = (BUILD_INFO, *(value for name, value in globals().items() if name.startswith("SITE_")))

"""Every series that the two programs show to Prometheus: the one list.

Base units, `_total` for what only grows. Labels are bounded: a phase, a direction, an encoding,
a reason, a state, the digest of the mask; `client` for at most CLIENTS_SHOWN clients. What happened
once (a run's id, a round's number) is never a label.

A counter starts anew with its process unless its text says otherwise; `rate` and `increase` know.
They do not see a series begin, so counters are there from the start, at 0, for every label they
may get.
"""

from dataclasses import dataclass
from enum import StrEnum

# From 5 ms to 2 hours: a round on one machine takes 50 ms, one across hospitals an hour.
SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0),
)
# Of one fsync: from 0.1 ms on a good disk to the 10 s of a failing one.
SYNC_SECONDS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0)
CLIENTS_SHOWN = 200  # with more, only
SLOWEST_SHOWN = 20  # who is waited for, then the slowest; and as many not heard of longest


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """One family of series; `name` without the `_total` that a counter gets."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """The name as Prometheus has it."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


def _gauge(name: str, text: str, *labels: str) -> Series:
    return Series(name, Kind.GAUGE, text, labels)


def _counter(name: str, text: str, *labels: str) -> Series:
    return Series(name, Kind.COUNTER, text, labels)


def _seconds(name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS) -> Series:
    return Series(name, Kind.HISTOGRAM, text, labels, buckets)


BUILD_INFO = _gauge("ssfl_build_info", "1; the version of this program", "version", "program")

# -- the coordinator: the run

RUN_PHASE = _gauge("ssfl_run_phase", "1 for what the run is doing, 0 for the rest", "phase")
RUN_STALLED = _gauge("ssfl_run_stalled", "1 if too few clients are here to go on")
RUN_STALLED_SECONDS = _gauge(
    "ssfl_run_stalled_seconds", "for how long the run could not go on; 0 if it can"
)
RUN_MISSING = _gauge("ssfl_run_missing_clients", "clients that a stalled run waits for")
RUN_SECONDS_LEFT = _gauge(
    "ssfl_run_seconds_left",
    "to the end, at the pace of the newest rounds; absent while unknown, stalled, paused or over",
)
ROUNDS = _counter("ssfl_rounds", "rounds committed in this run, earlier processes included")
ROUNDS_PLANNED = _gauge("ssfl_rounds_planned", "rounds that the run is to have")
ROUND_DEADLINE = _gauge(
    "ssfl_round_deadline_seconds",
    "how long a round may take (--round-deadline-s); absent in a reproducible run, which waits",
)
STEPS_VOID = _counter(
    "ssfl_steps_void", "steps that too few clients reported in, and were repeated"
)
STEP_SECONDS = _gauge("ssfl_step_elapsed_seconds", "since the step under way began; 0 if none is")
STEP_DURATION = _seconds(
    "ssfl_step_duration_seconds", "from the start of a step to its commit", "work"
)
ROUND_PHASE = _seconds(
    "ssfl_round_phase_seconds",
    "where a round's time went, along its last report: broadcast (that client was sent its task), "
    "training (it computed), collection (the rest until the round closed), aggregation (the sum), "
    "commit (until the new model was on the disk); they add up to the round",
    "phase",
)
ACCURACY = _gauge(
    "ssfl_model_accuracy_ratio", "newest pooled accuracy of the global model; absent before it"
)
LOSS = _gauge("ssfl_model_loss", "newest pooled loss of the global model; absent before it")
RECOVERED = _gauge(
    "ssfl_run_recovered",
    "1 if this process took up a run of an earlier one; how often, changes() of "
    "process_start_time_seconds tells",
)

# -- the mask

MASK_INFO = _gauge("ssfl_mask_info", "1; the mask that the run has now", "mask_digest")
MASK_EPOCH = _gauge("ssfl_mask_epoch", "how many masks were agreed")
MASK_KEPT = _gauge("ssfl_mask_kept_weights", "weights that the mask keeps")
MASK_DENSITY = _gauge(
    "ssfl_mask_density_ratio", "of the weights that can be masked, the share kept"
)
MODEL_VALUES = _gauge("ssfl_model_values", "values of the whole model")

# -- clients

CLIENTS = _gauge("ssfl_clients", "clients by what they do", "state")
JOINED = _counter("ssfl_clients_joined", "times a client joined", "again")
SELECTED = _counter("ssfl_clients_selected", "times a client was asked to work", "work")
REPORTED = _counter("ssfl_clients_reported", "results of clients that counted", "work")
LATE = _counter("ssfl_clients_late", "results of clients that came when their step was closed")
LOST = _counter("ssfl_clients_lost", "times a client was not heard of for 30 seconds")
CLIENT_LAST_SEEN = _gauge(
    "ssfl_client_last_seen_seconds",
    "since a client was last heard of; absent when it has left or was removed",
    "client",
)
CLIENT_UP = _gauge(
    "ssfl_client_up", "1 if a client is here, 0 if it is lost, has left or was removed", "client"
)
CLIENT_PENDING = _gauge(
    "ssfl_client_pending",
    "1 if the step under way waits for a client's result, or a stalled run for the client",
    "client",
)
CLIENT_SAMPLES = _gauge("ssfl_client_samples", "training samples of a client", "client")
CLIENT_PHASE = _gauge(
    "ssfl_client_phase_seconds",
    "a client's newest result: broadcast (it was sent its task), training, upload",
    "client",
    "phase",
)
CLIENT_THROUGHPUT = _gauge(
    "ssfl_client_upload_bytes_per_second", "how fast a client's newest result came in", "client"
)

# -- bytes

PAYLOAD_BYTES = _counter(
    "ssfl_payload_bytes",
    "encoded tensors",
    "direction",
    "phase",
    "encoding",
)
MESSAGE_BYTES = _counter(
    "ssfl_message_bytes",
    "whole messages, tensors included",
    "direction",
    "phase",
    "encoding",
)
SOCKET_BYTES = _counter("ssfl_socket_bytes", "what TCP carried, as the kernel counts", "direction")
DENSE_BYTES = _counter(
    "ssfl_dense_bytes",
    "what the same updates, and models sent as values to clients that lacked them, would have "
    "taken as float32; to be compared with ssfl_payload_bytes_total of the phases values and "
    "evaluation",
    "direction",
)
DENSE_RATIO = _gauge(
    "ssfl_bytes_to_dense_ratio",
    "payload of values and evaluations as a share of ssfl_dense_bytes_total, at the newest round",
    "direction",
)

# -- what went wrong, and disk and memory

REFUSALS = _counter("ssfl_refusals", "calls refused", "reason")
RESUMES = _counter(
    "ssfl_resumes", "transfers that went on where they had been cut off", "direction"
)
RETRIES = _counter("ssfl_retries", "tasks that a client had to be sent again")
JOURNAL_SYNC = _seconds(
    "ssfl_journal_sync_seconds", "to put facts on the disk, for good", buckets=SYNC_SECONDS
)
JOURNAL_BYTES = _gauge("ssfl_journal_bytes", "length of the journal")
SPOOL_BYTES = _gauge("ssfl_spool_bytes", "uploads on the disk that are not yet in a model")
UPLOADS = _gauge("ssfl_uploads_in_flight", "uploads that are coming in now")
UPLOAD_SLOTS = _gauge("ssfl_upload_slots", "uploads that may come in at once (--upload-slots)")
DISK_FREE = _gauge(
    "ssfl_disk_free_bytes",
    "room on the disk of --state-dir (state), and of --out-dir (out) if that is another",
    "disk",
)
DISK_SIZE = _gauge("ssfl_disk_size_bytes", "size of these disks", "disk")
DISK_FULL = _gauge("ssfl_disk_full", "1 if the coordinator waits for room on its disk")
MEMORY_PEAK = _gauge("ssfl_memory_peak_bytes", "largest resident memory so far")
MEMORY_LIMIT = _gauge(
    "ssfl_memory_limit_bytes", "memory that this process may have: of its cgroup or the machine"
)
HEAP = _gauge(
    "ssfl_heap_bytes", "memory in use as the C library counts it; absent where it does not"
)

# -- a client's own

SITE_CONNECTED = _gauge("ssfl_site_connected", "1 if the coordinator answered the newest call")
SITE_STATE = _gauge("ssfl_site_state", "1 for what this client does, 0 for the rest", "state")
SITE_SAMPLES = _gauge("ssfl_site_samples", "training samples in the shard")
SITE_RESULTS = _counter("ssfl_site_results", "results sent, by what became of them", "outcome")
SITE_WORK = _seconds("ssfl_site_work_seconds", "to compute a result", "work")
SITE_TRANSFER = _seconds("ssfl_site_transfer_seconds", "of one download or upload", "direction")
SITE_BYTES = _counter("ssfl_site_payload_bytes", "encoded tensors", "direction")
SITE_RETRIES = _counter("ssfl_site_retries", "times the coordinator was not reached")
SITE_RESUMES = _counter(
    "ssfl_site_resumes", "transfers that went on where they had been cut off", "direction"
)
SITE_JOINS = _counter("ssfl_site_joins", "times this client joined")
SITE_TRAINING_LOSS = _gauge("ssfl_site_training_loss", "mean loss of the newest training")
SITE_STEPS_DONE = _gauge("ssfl_site_steps_done", "minibatches of the work under way that are done")
SITE_STEPS_ALL = _gauge("ssfl_site_steps_planned", "minibatches that the work under way has")

COORDINATOR = tuple(
    one
    for name, one in globals().items()
    if isinstance(one, Series) and not name.startswith("SITE_")
)
CLIENT = (BUILD_INFO, *(one for name, one in globals().items() if name.startswith("SITE_")))

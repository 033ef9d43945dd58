"""How long a study will take, and how much memory: from a few steps measured on this machine.

One run of each kind (model, method, data) is tried with a few of its clients: a round of one local
step, and a round of several. The difference is the time of a step; what is left is the time that a
client takes in a round besides. Scoring and the first stage of a method are not counted. Memory is
the largest of the trial, which has read all data, and what all clients of a run keep.
"""

import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from ssfl.datasets.shards.shard_file import Shard
from ssfl.datasets.source import NAMES
from ssfl.learning.cores import usable_cores
from ssfl.method.sampling import cohort_size
from ssfl.method.settings import RunSettings
from ssfl.program.settings.loading import Setting
from ssfl.simulator.processes import Inherited, worker_context
from ssfl.study.data import client_names
from ssfl.study.errors import EXPECTED, StudyError
from ssfl.study.run_spec import CPU, RunSpec

LONG = 20_000  # epochs of clients in a study that is worth an estimate; a run of the paper: 25,000
_CLIENTS = 5  # of a trial
_QUICK_S = 2.0  # a trial that is faster is repeated with more steps
_STEPS = {True: 33, False: 3}
_TERMINATE_TIMEOUT_S = 5.0  # for a process to end after SIGTERM
_TESTS = 1 / 3  # of the time of a training sample
# What a trial leaves out; `rounds` and `local_steps` are added.
_PLAIN: Mapping[str, Setting] = {
    "rounds": 1, "evaluate_every": 0, "evaluate_last": 0, "personalize_epochs": 0, "patience": 0,
    "target_accuracy": 0.0, "warmup_rounds": 0, "lr_warmup_rounds": 0, "refresh_rounds": "",
    "newcomers_per_round": 0, "clients_per_round": 0, "client_fraction": 0.0, "scoring_quorum": 0,
    "min_clients": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """A trial of one kind of run."""

    step_s: float  # a local step of one client
    round_s: float  # what a client takes in a round besides its steps
    samples: float  # training samples of a client
    tests: int  # test samples of all clients
    memory: int  # bytes of a run
    gpu_memory: int = 0


@dataclass(frozen=True, slots=True)
class StudyEstimate:
    """Runs, seconds until all of them are done, and bytes of memory while they run."""

    runs: int
    seconds: float
    memory: int
    gpu_memory: int = 0


def is_long(specs: Sequence[RunSpec]) -> bool:
    """Return True if a study is long enough for a trial of a few seconds to be worth it."""
    epochs = 0
    for spec in specs:
        settings = spec.run_settings()
        epochs += settings.rounds * _cohort(settings, spec) * settings.local_epochs
    return epochs >= LONG


def estimate(specs: Sequence[RunSpec], workers: int = 0) -> StudyEstimate:
    """Return the estimate for runs of which `workers` run at once; 0: one per core, one on a GPU.

    Raises StudyError if a kind of run cannot be tried.
    """
    for spec in specs:
        spec.check()
    kinds = {_kind(spec): spec for spec in specs}
    measured = dict(zip(kinds, _measure_all(list(kinds.values())), strict=True))
    on_gpu = any(found.gpu_memory for found in measured.values())
    at_once = min(workers or (1 if on_gpu else usable_cores()), len(specs)) or 1
    return StudyEstimate(
        len(specs),
        sum(seconds_of(spec, measured[_kind(spec)]) for spec in specs) / at_once,
        at_once * max(found.memory for found in measured.values()) if measured else 0,
        at_once * max(found.gpu_memory for found in measured.values()) if measured else 0,
    )


def seconds_of(spec: RunSpec, measured: Measured) -> float:
    """Return the estimated duration of a run."""
    settings, clients = spec.run_settings(), len(client_names(spec.data))
    per_epoch = -(-measured.samples // settings.batch_size)
    steps = settings.local_steps or settings.local_epochs * per_epoch
    trained = settings.rounds * _cohort(settings, spec) * (
        measured.round_s + steps * measured.step_s
    )  # fmt: skip
    every, last = settings.evaluate_every, settings.evaluate_last
    tests = 1 + (settings.rounds // every if every else 0) + min(last, settings.rounds)
    tested = tests * measured.tests * _TESTS * measured.step_s / settings.batch_size
    own = clients * settings.personalize_epochs * per_epoch * measured.step_s
    return float(trained + tested + own)


def measure(spec: RunSpec) -> Measured:
    """Try a kind of run in this process."""
    from ssfl.study.one_run import run_one, shards_of

    settings, shards = spec.run_settings(), shards_of(spec)
    data = replace(spec.data, late_clients=0, late_classes="", late_round=0)
    names = list(shards)
    if data.source in NAMES:  # a folder is used as it is
        names = names[: min(_CLIENTS, _cohort(settings, spec))]
        data = replace(data, clients=len(names))
    few = {name: _first(shards[name], 3 * settings.batch_size) for name in names}

    def trial(steps: int) -> tuple[float, int]:
        plain = {**spec.settings, **_PLAIN, "local_steps": steps}
        small = replace(spec, data=data, settings=plain, arrivals={})
        history = run_one(small, shards=few)
        return history["rounds"][0]["seconds"] / len(few), history["work"]["held_bytes"]

    trial(1)  # the first round of a process loads libraries
    one_s, held = trial(1)
    steps = _STEPS[one_s * len(few) < _QUICK_S]
    more_s, _ = trial(steps)
    step_s = max(more_s - one_s, 0.0) / (steps - 1)
    return Measured(
        step_s,
        max(one_s - step_s, 0.0),
        sum(shard.num_samples for shard in shards.values()) / len(shards),
        sum(len(shard.test_y) for shard in shards.values()),
        _peak_bytes() + held * (len(shards) - len(few)) // len(few),
        _gpu_bytes(spec.device),
    )


def _measure_all(specs: Sequence[RunSpec]) -> list[Measured]:
    """Try kinds of runs in another process, which ends with this call."""
    context, found = worker_context(), []
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, Inherited(), specs))
    process.start()
    theirs.close()
    try:
        for spec in specs:
            match ours.recv():
                case Measured() as measured:
                    found.append(measured)
                case why:
                    raise StudyError(f"{spec.name} cannot be tried: {why}")
    except EOFError:
        raise StudyError(
            "the process that tries the runs has ended: is there too little memory?"
        ) from None
    finally:
        process.terminate()
        process.join(_TERMINATE_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()
    return found


def _work(connection: Connection, inherited: Inherited, specs: Sequence[RunSpec]) -> None:
    """Send a result or the text of an error for each spec: the main function of the process."""
    from ssfl.learning.device import prepare_torch

    inherited.apply()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    prepare_torch(1)
    for spec in specs:
        try:
            connection.send(measure(spec))
        except EXPECTED as error:
            connection.send(str(error))


def _kind(spec: RunSpec) -> str:
    """Return a text that is the same for runs whose steps take the same time."""
    settings, data = spec.run_settings(), replace(spec.data, late_round=0)
    parts = (
        settings.strategy, settings.strategy_options, settings.model, settings.width,
        settings.norm, settings.batch_size, settings.optimizer, settings.value_type, data,
        spec.mode, spec.task, spec.device,
    )  # fmt: skip
    return repr(parts)


def _cohort(settings: RunSettings, spec: RunSpec) -> int:
    return cohort_size(settings, len(client_names(spec.data)))


def _first(shard: Shard, count: int) -> Shard:
    return replace(
        shard, train_x=shard.train_x[:count], train_y=shard.train_y[:count],
        test_x=shard.test_x[:1], test_y=shard.test_y[:1],
        val_x=shard.val_x[:1], val_y=shard.val_y[:1],
    )  # fmt: skip


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _gpu_bytes(device: str) -> int:
    import torch

    if device == CPU or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.max_memory_reserved())

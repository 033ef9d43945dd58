"""Site checks with the code of a client, timed for the forecast; torch is imported where needed."""

import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ssfl.client.config import ClientConfig
from ssfl.datasets.errors import DataError
from ssfl.datasets.shards.shard_file import Shard, find_shard
from ssfl.datasets.wording import format_bytes, plural
from ssfl.method.errors import MethodError
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.tools.check.coordinator import PreflightSession
from ssfl.tools.check.steps import CheckResult, Owner, Remedy, StepFailed, Steps

if TYPE_CHECKING:
    import torch

    from ssfl.client.local_work import SiteModel
    from ssfl.learning.load_task import LoadedTask
    from ssfl.method.mask import Mask

TIMING_S = 2.0  # stop timing training steps after this long
MAX_STEPS = 4
MAX_TESTED = 1024  # test samples timed; the time is scaled up to the whole split
MAX_MEMORY_SHARE = 0.8  # of the machine's memory, above which to warn
LIKE_THE_RUN = "make the shard again with samples of the run's shape and with its classes"


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a site."""

    score_s: float  # one minibatch
    step_s: float  # one training step
    test_s: float  # the whole test split
    num_steps: int  # per round

    @property
    def round_s(self) -> float:
        """Seconds of work in a round: the model is tested before and after the training."""
        return self.num_steps * self.step_s + 2 * self.test_s


class SiteCheck:
    """The checks of the site, and their results so far."""

    _device: "torch.device"  # this and the following are set by the steps of their names
    _task: "LoadedTask"
    _shard: Shard
    _model: "SiteModel"
    _mask: "Mask"

    def __init__(
        self,
        config: ClientConfig,
        client_id: str,
        settings: RunSettings | None,
        run_manifest: Manifest | None,
        session: PreflightSession | None,
    ) -> None:
        """Without the `settings` of a run, the steps use the defaults."""
        self._config, self._client_id, self._session = config, client_id, session
        self._settings, self._is_run = settings or RunSettings(), settings is not None
        self._run_manifest = run_manifest
        self.manifest: Manifest | None = None
        self.num_frozen = 0  # values of the model that are not trained
        self.pace: Pace | None = None
        self._score_s = 0.0

    def check(self, steps: Steps) -> None:
        """Run each operation of a client once."""
        steps.run("torch", _check_torch)
        steps.run("device", self._check_device, ["torch"])
        steps.run("task", self._check_task, ["torch"])
        steps.run("shard", self._check_shard, ["task"])
        if session := self._session:
            known = ["admission", "shard"]
            steps.run("samples", lambda: session.samples(self._shard.num_samples), known)
        steps.run("model", self._check_model, ["device", "shard"])
        if self._run_manifest is None and steps.passed("run's model"):
            steps.skip("same model", "the run has none yet")
        elif self._session:
            steps.run("same model", self._check_same, ["settings", "run's model", "model"])
        steps.run("score", self._check_score, ["model"])
        steps.run("train", self._check_train, ["score"])
        steps.run("memory", lambda: _check_memory(self._device), ["train"])

    def _check_device(self) -> CheckResult:
        from ssfl.learning.device import choose_device, fingerprint, prepare_torch

        with _failures_for(Owner.MACHINE, "choose another --device"):
            prepare_torch(self._config.threads)
            device = self._device = choose_device(self._config.device)
        return CheckResult(f"{device.type}: {fingerprint(device)}")

    def _check_task(self) -> CheckResult:
        from ssfl.learning.load_task import load_task

        action = f"fix the task ({self._config.task}), or choose another with --task"
        with _failures_for(Owner.AUTHOR, action):
            task = self._task = load_task(self._config.task)
        return CheckResult(f"{task.name} (source {task.digest.hex()[:12]})")

    def _check_shard(self) -> CheckResult:
        action = "make the shard again (ssfl shards), or choose another with --data"
        with _failures_for(Owner.DATA, action):
            path = find_shard(self._config.data, self._config.data_root)
            shard = self._shard = self._task.load_shard(path)
        shape = "x".join(map(str, shard.input_shape)) or "one number"
        classes = plural(shard.num_classes, "class") if shard.num_classes else "numbers to predict"
        tested = f"{len(shard.test_x):,} to test, {len(shard.val_x):,} to validate"
        text = f"{plural(shard.num_samples, 'training sample')} of {shape}, {tested}; {classes}"
        remedy = Remedy(Owner.DATA, "hold out some samples for tests if you can")
        return CheckResult(text, None if len(shard.test_x) else remedy)

    def _check_model(self) -> CheckResult:
        from ssfl.client.local_work import SiteModel
        from ssfl.learning.describe import num_frozen
        from ssfl.learning.device import working_on
        from ssfl.learning.load_task import BUILT_IN

        task, shard, settings = self._task, self._shard, self._settings
        owner, action = Owner.AUTHOR, "fix the task: it cannot build a model for this shard"
        if self._other_data(task.description(settings, shard)):
            owner, action = Owner.DATA, LIKE_THE_RUN
        elif task.name in BUILT_IN:
            owner, action = Owner.OPERATOR, "choose a --model that fits data of this shape"
        with _failures_for(owner, action), working_on(self._device):
            model = SiteModel.build(task, shard, settings, self._device, self._run_manifest)
        manifest, self.num_frozen = model.manifest, num_frozen(model.network)
        self._model, self.manifest = model, manifest
        name = manifest.model.get("model", manifest.model.get("task", ""))
        defaults = "" if self._is_run else " (with default settings; the run's are unknown)"
        sizes = f"{manifest.size:,} values, {manifest.num_masked:,} can be pruned"
        return CheckResult(f"{name}: {sizes}{defaults}")

    def _check_same(self) -> CheckResult:
        assert self._run_manifest is not None
        manifest = self._model.manifest
        difference = self._run_manifest.first_difference(manifest)
        if not difference:
            return CheckResult(f"as the run's ({manifest.digest.hex()[:12]})")
        if self._other_data(manifest.model):
            fresh = "start over with --fresh if the run has the wrong data"
            remedy = Remedy(Owner.DATA, LIKE_THE_RUN, (Remedy(Owner.OPERATOR, fresh),))
        else:
            remedy = Remedy(
                Owner.AUTHOR,
                "give every site the same task file, and data of the same shape and classes; if "
                "the run has the wrong model, its operator starts over with --fresh",
            )
        text = f"this site builds a different model than the run's: {difference}"
        raise StepFailed(text, remedy, ExitCode.BAD_DATA)

    def _other_data(self, description: Mapping[str, Any]) -> bool:
        """Return True if the run's samples differ from this site's in shape or classes."""
        return bool(self._run_manifest and self._run_manifest.data_difference(description))

    def _check_score(self) -> CheckResult:
        from ssfl.learning.device import working_on
        from ssfl.learning.first_batch import try_first_batch
        from ssfl.learning.load_task import BUILT_IN
        from ssfl.learning.saliency import score_locally
        from ssfl.method.mask import top_k

        task, shard, settings = self._task, self._shard, self._settings
        network, manifest = self._model.network, self._model.manifest
        owner, action = Owner.AUTHOR, "fix the task: it fails on this site's first batch"
        if task.name in BUILT_IN:
            owner, action = Owner.DATA, "inspect the samples and labels of the first batch"
        with _failures_for(owner, action), working_on(self._device):
            try_first_batch(network, task, shard, settings.batch_size)
            began_s = time.monotonic()
            scores = score_locally(network, manifest, task, shard, settings, self._client_id)
        self._score_s = time.monotonic() - began_s
        self._mask = top_k(scores, max(1, manifest.num_masked // 10))
        samples = plural(min(settings.batch_size, shard.num_samples), "sample")
        return CheckResult(f"a batch of {samples} in {format_seconds(self._score_s)}")

    def _check_train(self) -> CheckResult:
        from ssfl.learning.batches import count_steps
        from ssfl.learning.device import working_on
        from ssfl.learning.evaluate import evaluate
        from ssfl.learning.masked_training import train_locally

        task, shard, model, clock = self._task, self._shard, self._model, _StepClock()
        settings = replace(self._settings, local_steps=MAX_STEPS)
        owner, action = Owner.OPERATOR, "choose a smaller --learning-rate or --batch-size"
        if task.fit is not None:
            owner, action = Owner.AUTHOR, "fix the fit of the task: it fails on this site's data"
        part = replace(shard, test_x=shard.test_x[:MAX_TESTED], test_y=shard.test_y[:MAX_TESTED])
        with _failures_for(owner, action), working_on(self._device):
            with suppress(_Enough):
                train_locally(
                    model.network, model.manifest, self._mask, task, shard, settings, 0,
                    self._client_id, clock.step,
                )  # fmt: skip
            began_s = time.monotonic()
            evaluate(model.network, task, part)
        test_s = (time.monotonic() - began_s) * len(shard.test_x) / max(1, len(part.test_x))
        num_steps = count_steps(shard.num_samples, self._settings)
        pace = self.pace = Pace(self._score_s, clock.step_s, test_s, num_steps)
        return CheckResult(
            f"a step in {format_seconds(pace.step_s)}, a test in {format_seconds(test_s)}; "
            f"a round has {plural(pace.num_steps, 'step')}: {format_seconds(pace.round_s)}"
        )


@contextmanager
def _failures_for(owner: Owner, action: str) -> Iterator[None]:
    """Turn errors of data, task and model into StepFailed, with this remedy."""
    from ssfl.learning.errors import DeviceError, LearningError

    try:
        yield
    except DeviceError as error:
        text, _, advice = str(error).partition(": try ")
        action = f"try {advice}" if advice else "fix the device, or try --device cpu"
        remedy = Remedy(Owner.MACHINE, action)
        raise StepFailed(text.partition("; --device")[0], remedy, ExitCode.BAD_DATA) from error
    except (DataError, LearningError, MethodError) as error:
        raise StepFailed(str(error), Remedy(owner, action), ExitCode.BAD_DATA) from error


class _Enough(Exception):
    """Enough steps were timed."""


class _StepClock:
    """Times training steps; the first counts only if it is the only one."""

    def __init__(self) -> None:
        self._began_s = self._last_s = time.monotonic()
        self.step_s = 0.0

    def step(self, done: int, _total: int) -> None:
        now_s = time.monotonic()
        if done == 1:
            self.step_s, self._began_s = now_s - self._began_s, now_s
        else:
            self.step_s = (now_s - self._began_s) / (done - 1)
        if self.step_s > TIMING_S or (done > 1 and now_s - self._began_s > TIMING_S):
            raise _Enough


def _check_torch() -> CheckResult:
    if find_spec("torch") is None:
        remedy = Remedy(Owner.MACHINE, "pip install 'ssfl[client]'")
        raise StepFailed("torch is not installed", remedy, ExitCode.BAD_DATA)
    import torch

    return CheckResult(f"torch {torch.__version__}")


def _check_memory(device: "torch.device") -> CheckResult:
    """Report the peak memory of this process, which has trained as a client does."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"{format_bytes(peak)} at the peak, this machine has {format_bytes(machine)}"
    if device.type == "cuda":
        import torch

        text += f"; {format_bytes(torch.cuda.max_memory_allocated(device))} on the GPU"
    remedy = Remedy(Owner.MACHINE, "give this machine more memory")
    return CheckResult(text, remedy if peak > MAX_MEMORY_SHARE * machine else None)


def format_seconds(seconds: float) -> str:
    """Return a duration with its unit.

    >>> format_seconds(0.0042), format_seconds(0.25), format_seconds(12.34), format_seconds(600.0)
    ('4.2 ms', '250 ms', '12.3 s', '10.0 min')
    """
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"

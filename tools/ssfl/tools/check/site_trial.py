"""Site checks: torch and device, task and shard, the model, one batch scored and trained.

The steps use the code of a client and are timed for the forecast. Torch is imported where it is
first needed.
"""

import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

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
Value = TypeVar("Value")


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

    def __init__(
        self,
        config: ClientConfig,
        client_id: str,
        settings: RunSettings,
        run_manifest: Manifest | None,
        session: PreflightSession | None = None,
        *,
        is_run: bool,
    ) -> None:
        """`is_run`: the settings are the run's, not defaults."""
        self._config, self._client_id = config, client_id
        self._settings, self._run_manifest, self._is_run = settings, run_manifest, is_run
        self._session = session
        self.manifest: Manifest | None = None
        self.num_frozen = 0  # values of the model that are not trained
        self.pace: Pace | None = None
        self._score_s = 0.0

    def check(self, steps: Steps) -> None:
        """Run each operation of a client once."""
        steps.part = "site"
        steps.run("torch", self._torch)
        device = steps.run("device", self._device, ["torch"])
        task = steps.run("task", self._task, ["torch"])
        shard = steps.run("shard", lambda: self._shard(_required(task)), ["task"])
        if session := self._session:
            count = shard.num_samples if shard else 0
            steps.run("samples", lambda: session.samples(count), ["admission", "shard"])
        model = steps.run(
            "model",
            lambda: self._model(_required(task), _required(shard), _required(device)),
            ["device", "shard"],
        )
        self.manifest = model.manifest if model else None
        if self._run_manifest is None and steps.passed("run's model"):
            steps.skip("same model", "the run has none yet")
        elif self._session:
            known = ["settings", "run's model", "model"]
            steps.run("same model", lambda: self._same(_required(model)), known)
        mask = steps.run(
            "score",
            lambda: self._score(_required(task), _required(shard), _required(model)),
            ["model"],
        )
        self.pace = steps.run(
            "train",
            lambda: self._train(
                _required(task), _required(shard), _required(model), _required(mask)
            ),
            ["score"],
        )
        steps.run("memory", lambda: _memory(_required(device)), ["train"])

    def _torch(self) -> CheckResult[None]:
        if find_spec("torch") is None:
            raise StepFailed(
                "torch is not installed",
                Remedy(Owner.MACHINE, "pip install 'ssfl[client]'"),
                ExitCode.BAD_DATA,
            )
        import torch

        return CheckResult(None, f"torch {torch.__version__}")

    def _device(self) -> "CheckResult[torch.device]":
        from ssfl.learning.device import choose_device, fingerprint, prepare_torch

        with self._failures_for(Owner.MACHINE, "choose another --device"):
            prepare_torch(self._config.threads)
            device = choose_device(self._config.device)
        return CheckResult(device, f"{device.type}: {fingerprint(device)}")

    def _task(self) -> "CheckResult[LoadedTask]":
        from ssfl.learning.load_task import load_task

        action = f"fix the task ({self._config.task}), or choose another with --task"
        with self._failures_for(Owner.AUTHOR, action):
            task = load_task(self._config.task)
        return CheckResult(task, f"{task.name} (source {task.digest.hex()[:12]})")

    def _shard(self, task: "LoadedTask") -> CheckResult[Shard]:
        action = "make the shard again (ssfl shards), or choose another with --data"
        with self._failures_for(Owner.DATA, action):
            path = find_shard(self._config.data, self._config.data_root)
            shard = task.load_shard(path)
        shape = "x".join(map(str, shard.input_shape)) or "one number"
        classes = plural(shard.num_classes, "class") if shard.num_classes else "numbers to predict"
        tested = f"{len(shard.test_x):,} to test, {len(shard.val_x):,} to validate"
        text = f"{plural(shard.num_samples, 'training sample')} of {shape}, {tested}; {classes}"
        if not len(shard.test_x):
            remedy = Remedy(Owner.DATA, "hold out some samples for tests if you can")
            return CheckResult(shard, text, remedy)
        return CheckResult(shard, text)

    def _model(
        self, task: "LoadedTask", shard: Shard, device: "torch.device"
    ) -> "CheckResult[SiteModel]":
        from ssfl.client.local_work import SiteModel
        from ssfl.learning.describe import num_frozen
        from ssfl.learning.load_task import BUILT_IN

        owner, action = Owner.AUTHOR, "fix the task: it cannot build a model for this shard"
        if self._other_data(task.description(self._settings, shard)):
            owner, action = Owner.DATA, LIKE_THE_RUN
        elif task.name in BUILT_IN:
            owner, action = Owner.OPERATOR, "choose a --model that fits data of this shape"
        with (
            self._failures_for(owner, action),
            self._working(device),
        ):
            model = SiteModel.build(task, shard, self._settings, device, self._run_manifest)
        manifest, self.num_frozen = model.manifest, num_frozen(model.network)
        name = manifest.model.get("model", manifest.model.get("task", ""))
        defaults = "" if self._is_run else " (with default settings; the run's are unknown)"
        text = f"{name}: {manifest.size:,} values, {manifest.num_masked:,} can be pruned{defaults}"
        return CheckResult(model, text)

    def _same(self, model: "SiteModel") -> CheckResult[None]:
        assert self._run_manifest is not None
        difference = self._run_manifest.first_difference(model.manifest)
        if not difference:
            return CheckResult(None, f"as the run's ({model.manifest.digest.hex()[:12]})")
        text = f"this site builds a different model than the run's: {difference}"
        if self._other_data(model.manifest.model):
            fresh = "start over with --fresh if the run has the wrong data"
            remedy = Remedy(Owner.DATA, LIKE_THE_RUN, (Remedy(Owner.OPERATOR, fresh),))
            raise StepFailed(text, remedy, ExitCode.BAD_DATA)
        raise StepFailed(
            text,
            Remedy(
                Owner.AUTHOR,
                "give every site the same task file, and data of the same shape and classes; if "
                "the run has the wrong model, its operator starts over with --fresh",
            ),
            ExitCode.BAD_DATA,
        )

    def _other_data(self, description: Mapping[str, Any]) -> bool:
        """Return True if the run's samples differ from this site's in shape or classes."""
        return bool(self._run_manifest and self._run_manifest.data_difference(description))

    def _score(self, task: "LoadedTask", shard: Shard, model: "SiteModel") -> "CheckResult[Mask]":
        from ssfl.learning.first_batch import try_first_batch
        from ssfl.learning.load_task import BUILT_IN
        from ssfl.learning.saliency import score_locally
        from ssfl.method.mask import top_k

        network, manifest, settings = model.network, model.manifest, self._settings
        owner, action = Owner.AUTHOR, "fix the task: it fails on this site's first batch"
        if task.name in BUILT_IN:
            owner, action = Owner.DATA, "inspect the samples and labels of the first batch"
        device = next(network.parameters()).device
        with self._failures_for(owner, action), self._working(device):
            try_first_batch(network, task, shard, settings.batch_size)
            began_s = time.monotonic()
            scores = score_locally(network, manifest, task, shard, settings, self._client_id)
        self._score_s = time.monotonic() - began_s
        count = min(settings.batch_size, shard.num_samples)
        text = f"a batch of {plural(count, 'sample')} in {format_seconds(self._score_s)}"
        return CheckResult(top_k(scores, max(1, manifest.num_masked // 10)), text)

    def _train(
        self, task: "LoadedTask", shard: Shard, model: "SiteModel", mask: "Mask"
    ) -> CheckResult[Pace]:
        from ssfl.learning.batches import count_steps
        from ssfl.learning.evaluate import evaluate
        from ssfl.learning.masked_training import train_locally

        network, settings = model.network, replace(self._settings, local_steps=MAX_STEPS)
        clock = _StepClock()
        device = next(network.parameters()).device
        with (
            self._failures_for(Owner.OPERATOR, "choose a smaller --learning-rate or --batch-size"),
            self._working(device),
        ):
            with suppress(_Enough):
                train_locally(
                    network, model.manifest, mask, task, shard, settings, 0, self._client_id,
                    clock.step,
                )  # fmt: skip
            part = replace(
                shard, test_x=shard.test_x[:MAX_TESTED], test_y=shard.test_y[:MAX_TESTED]
            )
            began_s = time.monotonic()
            evaluate(network, task, part)
        test_s = (time.monotonic() - began_s) * len(shard.test_x) / max(1, len(part.test_x))
        pace = Pace(
            self._score_s, clock.step_s, test_s, count_steps(shard.num_samples, self._settings)
        )
        return CheckResult(
            pace,
            f"a step in {format_seconds(pace.step_s)}, a test in {format_seconds(test_s)}; "
            f"a round has {plural(pace.num_steps, 'step')}: {format_seconds(pace.round_s)}",
        )

    @contextmanager
    def _failures_for(self, owner: Owner, action: str) -> Iterator[None]:
        """Turn errors of data, task and model into StepFailed, with this remedy."""
        from ssfl.learning.errors import DeviceError, LearningError

        try:
            yield
        except DeviceError as error:
            text, _, advice = str(error).partition(": try ")
            text = text.partition("; --device")[0]
            remedy = Remedy(
                Owner.MACHINE, f"try {advice}" if advice else "fix the device, or try --device cpu"
            )
            raise StepFailed(text, remedy, ExitCode.BAD_DATA) from error
        except (DataError, LearningError, MethodError) as error:
            raise StepFailed(str(error), Remedy(owner, action), ExitCode.BAD_DATA) from error

    @contextmanager
    def _working(self, device: "torch.device") -> Iterator[None]:
        from ssfl.learning.device import working_on

        with working_on(device):
            yield


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


def _memory(device: "torch.device") -> CheckResult[None]:
    """Report the peak memory of this process, which has trained as a client does."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"{format_bytes(peak)} at the peak, this machine has {format_bytes(machine)}"
    if device.type == "cuda":
        import torch

        text += f"; {format_bytes(torch.cuda.max_memory_allocated(device))} on the GPU"
    if peak > MAX_MEMORY_SHARE * machine:
        return CheckResult(None, text, Remedy(Owner.MACHINE, "give this machine more memory"))
    return CheckResult(None, text)


def _required(value: Value | None) -> Value:
    """Return the value of a step that passed."""
    assert value is not None
    return value


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

"""Loading of tasks, and error messages for their authors."""

import hashlib
import importlib
import importlib.util
import math
import re
import sys
import traceback
from dataclasses import dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ssfl.datasets.errors import DataError
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.augment import check_augment
from ssfl.learning.errors import LearningError, ModelError, TaskError
from ssfl.learning.explain import explain
from ssfl.learning.own_fit import Fit
from ssfl.learning.task import ACCURACY, MAX_METRICS
from ssfl.method.image_settings import AUTO, CROP_FLIP, NONE, resolve_normalize
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

IMAGE = "image"
BUILT_IN = {IMAGE: "ssfl.learning.image_task", "table": "ssfl.learning.table_task"}
FUNCTIONS = ("load_shard", "build_model", "loss")  # `metrics` and `fit` are optional

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class LoadedTask:
    """A task whose failures become TaskErrors that show the author's own lines."""

    name: str  # of the built-in task, file or module; the same at every site
    digest: bytes  # SHA-256 of the source, to detect sites with different tasks
    own_weights: bool  # the model starts with the weights from `build_model`
    module: ModuleType
    spec: str = ""  # the argument of `load_task`

    def load_shard(self, path: Path) -> Shard:
        return self._call("load_shard", Shard, path)

    def build_model(self, settings: RunSettings, shard: Shard) -> nn.Module:
        self._check_images(settings, shard)
        torch.manual_seed(int(Stream(settings.seed, "torch", "build").words(1)[0]))
        return self._call("build_model", nn.Module, settings, shard)

    def description(self, settings: RunSettings, shard: Shard) -> dict[str, Any]:
        """Return what is needed to build the model again, for its manifest."""
        built = {"input_shape": list(shard.input_shape), "num_classes": shard.num_classes}
        if self.name == "image":
            built |= {"model": settings.model, "norm": settings.norm, "width": settings.width}
            scaled = settings.normalize, shard.input_shape, shard.num_classes
            if (statistics := resolve_normalize(*scaled)) != NONE:
                built["normalize"] = statistics
        elif self.name == "table":
            built |= {"model": "mlp", "width": settings.width}
        return {"task": self.name, **built}

    def builds_same_model(self, first: Shard, second: Shard) -> bool:
        """Return True if a built-in task builds the same network for both shards.

        For other tasks this is unknown, and the result is False.
        """
        same = first.input_shape == second.input_shape and first.num_classes == second.num_classes
        return same and self.name in BUILT_IN

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = self._call("loss", Tensor, model, x, y)
        if loss.ndim:
            raise TaskError(f"task {self.name}: loss must be a scalar, not {tuple(loss.shape)}")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise TaskError(f"task {self.name}: loss does not depend on the model's weights")
        return loss

    def metrics(self, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
        if not hasattr(self.module, "metrics"):
            return {}
        means = self._call("metrics", dict, model, x, y)
        if len(means) > MAX_METRICS:
            raise TaskError(
                f"task {self.name}: {len(means)} metrics, at most {MAX_METRICS} are allowed"
            )
        return {name: self._metric(name, value) for name, value in means.items()}

    @property
    def fit(self) -> Fit | None:
        """The task's own training loop, if it has one."""
        has_one = callable(getattr(self.module, "fit", None))
        return partial(self._call, "fit", object) if has_one else None

    @property
    def score_with_fit(self) -> bool:
        """True if scores are those of the gradients in `fit`."""
        return bool(getattr(self.module, "SCORE_WITH_FIT", False))

    def _check_images(self, settings: RunSettings, shard: Shard) -> None:
        """Raise ModelError if a setting of images has no effect in this task."""
        check_augment(settings, shard)
        if settings.augment == CROP_FLIP and self.fit:
            raise ModelError(
                f"--augment {settings.augment} is not available for a task with its own fit: let "
                "fit augment its batches, and use --augment none"
            )
        if settings.normalize not in (NONE, AUTO) and self.name != IMAGE:
            raise ModelError(
                f"--normalize is for the built-in image task: let the task {self.name} scale its "
                "inputs, in load_shard or in its network, and use --normalize none"
            )

    def _metric(self, name: Any, value: Any) -> float:
        """Return a metric, a number or a scalar tensor, as a float."""
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,40}", name):
            raise TaskError(
                f"task {self.name}: a metric's name has 1 to 40 letters, digits, '.', '_' or '-', "
                f"not {name!r}"
            )
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TaskError(
                f"task {self.name}: metric {name} must be one number, the mean over the batch, "
                f"not {type(value).__name__}: {str(error).splitlines()[0]}"
            ) from error
        if not math.isfinite(number):
            raise TaskError(
                f"task {self.name}: metric {name} is {number}, not a finite number: a quotient "
                "such as recall is not a mean over samples; report numerator and denominator as "
                "two metrics (docs/tasks.md)"
            )
        if name == ACCURACY and not 0 <= number <= 1:
            raise TaskError(f"task {self.name}: accuracy must lie between 0 and 1, got {number:g}")
        return number

    def _call(self, function: str, kind: type[Kind], *arguments: Any) -> Kind:
        try:
            result = getattr(self.module, function)(*arguments)
        except (Exception, SystemExit) as error:  # a task must not end the client silently
            is_explained = isinstance(error, DataError | LearningError)
            if is_explained and self.name in BUILT_IN:
                raise
            blame = _blame(f"task {self.name}: {function}", error, self.module)
            if function in ("loss", "metrics") and not is_explained:
                blame += "\n" + explain(error, *arguments[1:])
            raise TaskError(blame) from error
        if not isinstance(result, kind):
            raise TaskError(
                f"task {self.name}: {function} must return {kind.__name__}, "
                f"not {type(result).__name__}"
            )
        return result


def load_task(spec: str) -> LoadedTask:
    """Return the task of a built-in name, a file `path/to/task.py`, or a dotted module."""
    if spec in BUILT_IN:
        name, module = spec, importlib.import_module(BUILT_IN[spec])
    elif spec.endswith(".py"):
        name, module = Path(spec).stem, _import_file(Path(spec))
        if name in BUILT_IN:
            raise TaskError(f"the name {name} is taken by a built-in task: rename {spec}")
    else:
        name, module = spec, _import_module(spec)
    missing = [name for name in FUNCTIONS if not callable(getattr(module, name, None))]
    if missing:
        raise TaskError(f"task {spec} does not define {', '.join(missing)}")
    if getattr(module, "SCORE_WITH_FIT", False) and not callable(getattr(module, "fit", None)):
        raise TaskError(f"task {spec} has SCORE_WITH_FIT = True, but does not define fit")
    own_weights = bool(getattr(module, "OWN_WEIGHTS", False))
    source = Path(module.__file__).read_bytes() if module.__file__ else module.__name__.encode()
    return LoadedTask(name, hashlib.sha256(source).digest(), own_weights, module, spec)


class _SourceLoader(SourceFileLoader):
    """A loader that ignores compiled files.

    Python reuses a compiled file if the source has the same size and was written in the same
    second. A task that was edited within a second would then run its old code.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TaskError(f"there is no task file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that modules next to the task shadow nothing
    name, file = f"ssfl_task_{path.stem}", str(path.resolve())
    spec = importlib.util.spec_from_file_location(name, file, loader=_SourceLoader(name, file))
    assert spec and spec.loader  # a .py file always has them
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # for dataclasses and pickling
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise TaskError(_blame(f"task {path}", error, module)) from error
    return module


def _import_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last, so that it shadows nothing installed
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise TaskError(f"task {name} imports {error.name}, which is not installed") from error
        raise TaskError(
            f"there is no module {error.name} for the task {name}; "
            f"a task is {' or '.join(BUILT_IN)}, a file ending in .py, or an importable module"
        ) from error
    except (Exception, SystemExit) as error:
        raise TaskError(_blame(f"task {name}", error, None)) from error


def _blame(what: str, error: BaseException, module: ModuleType | None) -> str:
    """Return the error and the author's own lines of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    if module is not None and module.__file__:
        folder = Path(module.__file__).parent  # the task's file and its neighbours
        own = [frame for frame in frames if Path(frame.filename).parent == folder]
    else:
        importers = (__file__, importlib.__file__)
        own = [f for f in frames if f.filename not in importers and f.filename[0] != "<"]
    where = traceback.StackSummary.from_list(own).format()
    if isinstance(error, SyntaxError):
        where = traceback.format_exception_only(error)[:-1]
    return f"{what} raised {type(error).__name__}: {error}\n{''.join(where)}".rstrip()

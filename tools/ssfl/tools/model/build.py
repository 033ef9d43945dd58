"""Builds the model of a task on this machine, as a client does."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssfl.datasets.errors import DataError
from ssfl.datasets.shards.shard_file import Shard, find_shard, shard_names
from ssfl.method.errors import MethodError, SettingsError
from ssfl.method.settings import RunSettings, setting
from ssfl.program.exits import ExitCode, ProgramError

if TYPE_CHECKING:
    from ssfl.learning.load_task import LoadedTask


@contextmanager
def learning_errors(purpose: str = "building the model") -> Iterator[None]:
    """Turn errors of data, task and model into ProgramError; raise it if torch is missing."""
    try:
        import torch  # noqa: F401 -- imported late, so that a wrong flag is reported at once
    except ModuleNotFoundError:
        raise ProgramError(
            f"{purpose} needs torch: pip install 'ssfl[client]'", ExitCode.BAD_DATA
        ) from None
    from ssfl.learning.errors import LearningError

    try:
        yield
    except (DataError, LearningError, MethodError) as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the shape of one sample, written as 3x32x32."""
    if not re.fullmatch(r"\d{1,9}(x\d{1,9}){0,7}", text):
        raise SettingsError(f"--input must be sizes such as 3x32x32, got {text!r}")
    return tuple(map(int, text.split("x")))


def same_as_run(name: str) -> Any:
    """Declare a command's setting with the default and help of the run setting `name`."""
    (field,) = (field for field in fields(RunSettings) if field.name == name)
    return setting(field.default, **{**field.metadata, "text": field.metadata["help"]})


def run_settings(config: Any, **more: Any) -> RunSettings:
    """Return the run settings in a command's config; the others have their defaults."""
    names = {field.name for field in fields(RunSettings)} & {field.name for field in fields(config)}
    return RunSettings(**{name: getattr(config, name) for name in names} | more)


def load_data(task: "LoadedTask", data: str, data_root: Path) -> Shard:
    """Return the shard called `data`, or else the first one of the folder."""
    return task.load_shard(find_shard(data or shard_names(data_root)[0], data_root))


def placeholder_shard(input_shape: tuple[int, ...], num_classes: int) -> Shard:
    """Return a shard of one sample of zeros, for a model that depends on shapes alone."""
    x = np.zeros((1, *input_shape), dtype=np.float32)
    y = np.zeros(1, dtype=np.int64 if num_classes else np.float32)
    return Shard(x, y, x[:0], y[:0], num_classes)

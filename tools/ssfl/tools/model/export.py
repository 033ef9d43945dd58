"""`ssfl model export`: writes the final model in a format that other programs read."""

import io
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ssfl.datasets.shards.shard_file import Shard
from ssfl.durable.files import write_atomic
from ssfl.method.errors import ModelFileError, SettingsError
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError, usage_error
from ssfl.program.model_io.safetensors_model import stand_alone
from ssfl.program.model_io.stored_model import StoredModel
from ssfl.tools.model.build import learning_errors, load_data
from ssfl.tools.model.folder import read_model
from ssfl.tools.model.network import build_network, shard_of_zeros, task_of

if TYPE_CHECKING:
    from ssfl.learning.load_task import LoadedTask

FORMATS = ("safetensors", "onnx", "csr")

DESCRIPTION = (
    "Writes a model as safetensors (every tensor by name, with its manifest), as ONNX (a network "
    "that runs without torch) or as torch tensors in sparse CSR form (kept weights only). MODEL is "
    "a result folder of a run, such as runs/<run>/coordinator, or a safetensors file."
)


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """Which model, and the format to write."""

    model: Path = setting(
        MISSING, "a result folder of a run, or a safetensors file", positional=True
    )
    format: str = setting(MISSING, "format of the file", choices=FORMATS)
    out: Path = setting(MISSING, "file to write")
    overwrite: bool = setting(False, "replace the file if it exists")
    task: str = setting("", "onnx: the task's .py file or module, unless it is built in")
    data: str = setting("", "onnx: a shard of that task, for the shape of an input")
    data_root: Path = setting(Path("shards"), "folder that holds the shards")

    def validate(self) -> None:
        """Raise SettingsError if a flag is invalid."""
        for flag, given in (("--task", self.task), ("--data", self.data)):
            if given and self.format != "onnx":
                raise SettingsError(f"{flag} is for --format onnx; {self.format} does not need it")


def export(argv: Sequence[str]) -> None:
    """Run the command."""
    config = settings.load(ExportConfig, argv, None, "ssfl model export", DESCRIPTION)
    if config.out.is_dir():
        raise usage_error(f"--out {config.out} is a folder: name a file in it")
    if config.out.exists() and not config.overwrite:
        raise usage_error(f"{config.out} exists already: --overwrite replaces it")
    final = read_model(config.model)
    write = {"safetensors": _safetensors, "onnx": _onnx, "csr": _csr}[config.format]
    data, example = write(config, final)
    try:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(config.out, data)
    except OSError as error:
        text = f"cannot write {config.out}, {len(data) / 1e6:.2f} MB: {error.strerror}"
        raise ProgramError(text, ExitCode.BAD_DATA) from error
    mask, dense = final.mask, f"dense float32: {4 * final.manifest.size / 1e6:.3f} MB"
    print(f"written to {config.out}: {len(data) / 1e6:.3f} MB ({dense})")
    density = 100 * mask.num_kept / mask.size
    print(f"{mask.num_kept:,} of {mask.size:,} weights kept: density {density:.2f} %")
    print(f"\n{example}")


def _safetensors(config: ExportConfig, final: StoredModel) -> tuple[bytes, str]:
    try:
        data = stand_alone(final.manifest, final.mask, final.vector, final.digests)
    except ModelFileError as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error
    return data, (
        f'from safetensors.torch import load_file\nmodel.load_state_dict(load_file("{config.out}"))'
    )


def _csr(config: ExportConfig, final: StoredModel) -> tuple[bytes, str]:
    with learning_errors("writing sparse CSR"):
        import torch

        from ssfl.learning.export import to_csr

        file = io.BytesIO()
        saved = to_csr(final.manifest, final.mask, final.vector)
        torch.save({**saved, "digests": dict(final.digests)}, file)
    first = next(final.manifest.masked())[0].name
    return file.getvalue(), (
        f'saved = torch.load("{config.out}", weights_only=True)\n'
        f'weight, shape = saved["tensors"]["{first}"], saved["shapes"]["{first}"]\n'
        "y = (weight @ x.T).T  # x: (batch, weight.shape[1])"
    )


def _onnx(config: ExportConfig, final: StoredModel) -> tuple[bytes, str]:
    with learning_errors("exporting to ONNX"):
        try:
            import onnx
            import onnxscript  # noqa: F401 -- torch's exporter is written in it
        except ModuleNotFoundError as error:
            raise ProgramError(
                f"--format onnx needs {error.name}: pip install 'ssfl[export]'", ExitCode.BAD_DATA
            ) from None
        import torch

        from ssfl.learning.device import prepare_torch
        from ssfl.learning.export import OPSET, to_onnx

        prepare_torch(threads=1)
        task = task_of(final, config.task)
        shard = _shard(config, final, task)
        model = build_network(final, task, shard, torch.device("cpu"))
        samples = np.resize(shard.train_x[:2], (2, *shard.input_shape))  # repeats a single sample
        data = to_onnx(model, torch.from_numpy(samples), final.digests)
        onnx.checker.check_model(data, full_check=True)
    shape = ", ".join(["batch", *map(str, shard.input_shape)])
    return data, (
        f'session = onnxruntime.InferenceSession("{config.out}")  # opset {OPSET}\n'
        f'y = session.run(None, {{"x": x}})[0]  # x: {samples.dtype} ({shape})'
    )


def _shard(config: ExportConfig, final: StoredModel, task: "LoadedTask") -> Shard:
    """Return a shard for the shape of an input: that of --data, or zeros for a built-in task."""
    from ssfl.learning.load_task import BUILT_IN

    if config.data:
        return load_data(task, config.data, config.data_root)
    if task.name not in BUILT_IN:
        raise usage_error(
            f"--data is needed: a shard of the task {task.name}, for the shape of an input"
        )
    return shard_of_zeros(final)

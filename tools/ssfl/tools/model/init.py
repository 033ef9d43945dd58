"""`ssfl init`: the initial model of a run, as a file for a coordinator without torch."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from ssfl.datasets.wording import join_names
from ssfl.method.errors import SettingsError
from ssfl.method.image_settings import check_normalize, resolve_initialization
from ssfl.method.manifest import MAX_PARAMETERS, Manifest
from ssfl.method.model_state import values_digest
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.model_io.safetensors_model import write_initial
from ssfl.tools.model import build
from ssfl.tools.terminal import console, right

if TYPE_CHECKING:
    from ssfl.learning.pretrained import CopiedWeights

DESCRIPTION = (
    "Builds a task's model and writes its manifest and initial weights into one file for "
    "ssfl-coordinator --init FILE. Without such a file, the first client describes the model."
)


@dataclass(frozen=True, slots=True)
class InitConfig:
    """Which model, and where its weights come from."""

    task: str = setting("image", "task: image, table, a .py file, or an importable module")
    data: str = setting(
        "", "a shard for the shape of the model; default: the first one of --data-root"
    )
    data_root: Path = setting(Path("shards"), "folder that holds the shards")
    input: str = setting("", "shape of one sample, such as 3x32x32, instead of a shard")
    classes: int = setting(10, "with --input: number of classes; 0: the targets are numbers")
    weights: Path | None = setting(
        None, "initial weights: a safetensors file with the model's tensor names"
    )
    partial: bool = setting(
        False, "with --weights: take the tensors that fit; the others start from the seed"
    )
    model: str = build.same_as_run("model")
    norm: str = build.same_as_run("norm")
    width: int = build.same_as_run("width")
    normalize: str = build.same_as_run("normalize")
    initialization: str = build.same_as_run("initialization")
    seed: int = setting(0, "seed of the run", le=2**63 - 1)
    out: Path = setting(Path("initial.safetensors"), "file to write")
    overwrite: bool = setting(False, "replace the file if it exists")

    def validate(self) -> None:
        """Raise SettingsError if a flag is invalid."""
        if self.out.exists() and not self.overwrite:
            raise SettingsError(f"--out: {self.out} exists already: --overwrite replaces it")
        if self.out.exists() and not self.out.is_file():
            raise SettingsError(f"--out: {self.out} is not a file")
        check_normalize(self.normalize)
        if self.classes == 1:
            raise SettingsError("--classes must be 2 or more, or 0 if the targets are numbers")
        if self.input and not math.prod(build.parse_shape(self.input)):
            raise SettingsError(f"--input {self.input} has no values")
        if self.input and self.data:
            raise SettingsError("--input replaces --data: give only one of them")
        if self.input and math.prod(build.parse_shape(self.input)) > MAX_PARAMETERS:
            raise SettingsError(f"--input {self.input} has more than {MAX_PARAMETERS} values")
        if self.partial and not self.weights:
            raise SettingsError("--partial needs --weights")


def init(argv: Sequence[str]) -> None:
    """Run the command."""
    config = settings.load(InitConfig, argv, None, "ssfl init", DESCRIPTION)
    screen = console()
    with build.learning_errors():
        manifest, digest, taken = _write(config)
    screen.print("  ".join(f"{name} {value}" for name, value in manifest.model.items()))
    screen.print(_table(manifest))
    for line in _weights_used(config, taken) if taken else ():
        screen.print(line, soft_wrap=True)
    begin = f"ssfl-coordinator --init {config.out}"
    if manifest.rebuildable:
        screen.print(f"the weights follow from --seed {config.seed} and are not sent to clients")
        begin += f" --seed {config.seed}" if config.seed else ""
    else:
        size = 4 * manifest.size / 1e6
        screen.print(f"the weights are sent once to every client: {size:.2f} MB")
    screen.print(f"manifest {manifest.digest.hex()[:12]}, weights {digest.hex()[:12]}")
    screen.print(f"written to {config.out}; start the run with: {begin}", soft_wrap=True)


def _write(config: InitConfig) -> tuple[Manifest, bytes, "CopiedWeights | None"]:
    from ssfl.learning.describe import manifest_of
    from ssfl.learning.flatten import initial_weights, read_vector, write_vector
    from ssfl.learning.load_task import load_task
    from ssfl.learning.pretrained import copy_weights, read_weights

    task = load_task(config.task)
    if config.input:
        shard = build.placeholder_shard(build.parse_shape(config.input), config.classes)
    else:
        shard = build.load_data(task, config.data, config.data_root)
    model = task.build_model(build.run_settings(config), shard)
    description = task.description(build.run_settings(config), shard)
    rule = resolve_initialization(config.initialization, shard.input_shape)
    manifest = manifest_of(model, description, own_weights=task.own_weights, initialization=rule)
    write_vector(model, manifest, initial_weights(model, manifest, config.seed))
    taken = None
    if config.weights:
        taken = copy_weights(model, manifest, read_weights(config.weights))
        _check(config, taken)
        manifest = manifest_of(model, description, own_weights=True)
    vector = read_vector(model, manifest)
    try:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        write_initial(config.out, manifest, vector)
    except OSError as error:
        raise ProgramError(f"cannot write {config.out}: {error}", ExitCode.BAD_DATA) from error
    return manifest, values_digest(vector), taken


def _check(config: InitConfig, taken: "CopiedWeights") -> None:
    unused = _sentences(taken)
    if not taken.used:
        text = f"no tensor of {config.weights} fits the model: {join_names(unused)}"
        raise ProgramError(text, ExitCode.BAD_DATA)
    absent = [f"{name} is not in the file" for name in taken.missing if name not in taken.unused]
    if (absent or unused) and not config.partial:
        raise ProgramError(
            f"{config.weights} does not fit the model: {join_names([*unused, *absent])}. Use "
            "--partial to take what fits and start the rest from the seed",
            ExitCode.BAD_DATA,
        )


def _weights_used(config: InitConfig, taken: "CopiedWeights") -> Iterator[str]:
    yield f"{len(taken.used)} tensors from {config.weights}"
    if taken.missing:
        yield f"{len(taken.missing)} start from the seed: {join_names(taken.missing)}"
    if taken.unused:
        yield f"{len(taken.unused)} of the file are not used: {join_names(_sentences(taken))}"


def _sentences(taken: "CopiedWeights") -> list[str]:
    return [f"{name} is {what}" for name, what in taken.unused.items()]


def _table(manifest: Manifest) -> Table:
    tensors, values = Counter[str](), Counter[str]()
    for tensor in manifest.tensors:
        tensors[tensor.role.value] += 1
        values[tensor.role.value] += tensor.size
    table = Table("role", right("tensors"), right("values"))
    for role, count in tensors.items():
        table.add_row(role, str(count), f"{values[role]:,}")
    return table

"""Reads the final model of a run from a folder or a safetensors file, and checks its digests.

The contents are described in `ssfl.program.model_io`.
"""

from itertools import islice
from pathlib import Path

from ssfl.method.errors import MethodError, ModelFileError
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.model_io.safetensors_model import MANIFEST, MASK, MODEL
from ssfl.program.model_io.stored_model import StoredModel, read_stored

__all__ = ["MODEL", "read_model"]

WHERE_MODELS_ARE = (
    f"a finished run leaves {MODEL}, {MANIFEST} and {MASK} in runs/<run>/coordinator/ and, at "
    "every site, in runs/<run>/<client>/"
)
SHOWN = 12  # folders listed before "…"


def read_model(where: Path) -> StoredModel:
    """Return the model of a folder or file; raise ProgramError with the remedy."""
    try:
        return read_stored(_find(where))
    except MethodError as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error
    except OSError as error:
        raise ProgramError(f"cannot read {where}: {error}", ExitCode.BAD_DATA) from error


def _find(where: Path) -> Path:
    if where.is_file():
        return where
    if not where.exists():
        raise ModelFileError(f"{where} does not exist: {WHERE_MODELS_ARE}{_nearby(where)}")
    missing = [name for name in (MODEL, MANIFEST, MASK) if not (where / name).is_file()]
    if missing:
        raise ModelFileError(f"{where} has no {missing[0]}: {WHERE_MODELS_ARE}{_nearby(where)}")
    return where / MODEL


def _nearby(where: Path) -> str:
    """Return a list of models in the folder that was named, or else in runs/."""
    return folders_with("models", where, MODEL, 2) or folders_with("models", Path("runs"), MODEL, 2)


def folders_with(what: str, root: Path, name: str, depth: int) -> str:
    """Return where `what` are: the folders with a file of this name, 1 to `depth` below `root`."""
    below = (file for levels in range(1, depth + 1) for file in root.glob("*/" * levels + name))
    found = sorted(str(file.parent) for file in islice(below, SHOWN + 1))
    more = " …" if len(found) > SHOWN else ""
    return f"; {what} are in {', '.join(found[:SHOWN])}{more}" if found else ""

"""Finds and reads the final model of a run, and checks its digests.

A model is a folder of a finished run (contents: `ssfl.program.model_io.safetensors_model`) or one
safetensors file (contents: `ssfl.program.model_io.stored_model`).
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
SHOWN = 12  # models listed before "…"
_RUNS = Path("runs")


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
    for folder in (where, _RUNS):
        below = (file for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{MODEL}"))
        found = [str(file.parent) for file in islice(below, SHOWN + 1)]
        if found:
            more = " …" if len(found) > SHOWN else ""
            return f"; models are in {', '.join(sorted(found)[:SHOWN])}{more}"
    return ""

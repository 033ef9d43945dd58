"""Finding a model that a run left, and reading it: its digests are checked before it is used.

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

LEFT = (
    f"a finished run leaves {MODEL}, {MANIFEST} and {MASK} in runs/<run>/coordinator/ and, at "
    "every site, in runs/<run>/<client>/"
)
SHOWN = 12  # models listed before "…"
_RUNS = Path("runs")


def read_model(where: Path) -> StoredModel:
    """Return the model in a folder or file; ProgramError says what is wrong and what would do."""
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
        raise ModelFileError(f"there is no {where}: {LEFT}{_nearby(where)}")
    missing = [name for name in (MODEL, MANIFEST, MASK) if not (where / name).is_file()]
    if missing:
        raise ModelFileError(f"{where} holds no {missing[0]}: {LEFT}{_nearby(where)}")
    return where / MODEL


def _nearby(where: Path) -> str:
    """Return where there are models: below the folder that was named, or else below runs/."""
    for folder in (where, _RUNS):
        below = (file for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{MODEL}"))
        found = [str(file.parent) for file in islice(below, SHOWN + 1)]
        if found:
            more = " …" if len(found) > SHOWN else ""
            return f"; there are: {', '.join(sorted(found)[:SHOWN])}{more}"
    return ""

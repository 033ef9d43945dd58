"""Results of real runs: their history as arrays, their model as a torch module."""

import json
from pathlib import Path

import torch
from torch import nn

from ssfl.api.errors import RunError, flags_as_keywords
from ssfl.api.history import RunHistory
from ssfl.method.errors import ModelFileError
from ssfl.program.exits import ProgramError
from ssfl.tools.model.folder import MODEL, read_model
from ssfl.tools.model.network import HISTORY, build_network, shard_of_zeros, task_of


def read_run(folder: str | Path) -> RunHistory:
    """Return the history of a run, from `runs/<run>`, its `coordinator` folder or `history.json`.

    Raises RunError if the history is missing or damaged. The coordinator writes it when a run ends.
    """
    path = _find(Path(folder))
    if path is None:
        raise RunError(f"{folder} has no {HISTORY}{_hint(Path(folder))}")
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != 1:
            raise RunError(f"{path} is in format {document['format']}; this program reads 1")
        return RunHistory.of(document)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} is not the history of a run: {type(error).__name__}: {error}"
        ) from error


def load_model(folder: str | Path, task: str | Path = "") -> nn.Module:
    """Return the final model of a run, from the coordinator's or a client's folder, in eval mode.

    `task` is the file of your own task; built-in tasks need none. Raises ModelFileError if files
    are missing or damaged, or do not match each other or this task, and TaskError or ModelError if
    the task fails.
    """
    place = Path(folder)
    if (place / "coordinator" / MODEL).is_file():
        place /= "coordinator"
    with flags_as_keywords():
        try:
            final = read_model(place)
            loaded = task_of(final, str(task))
        except ProgramError as error:
            raise ModelFileError(str(error)) from error
        return build_network(final, loaded, shard_of_zeros(final), torch.device("cpu"))


def _find(folder: Path) -> Path | None:
    places = [folder, folder / HISTORY, folder / "coordinator" / HISTORY]
    places += sorted(folder.glob(f"ssfl/models/*/coordinator/{HISTORY}"))  # a rehearsal's
    return next((path for path in places if path.name == HISTORY and path.is_file()), None)


def _hint(folder: Path) -> str:
    """Return a hint about where the run may be."""
    if not folder.exists():
        return ": the folder does not exist"
    if _find(folder.parent):
        return f"; {folder.parent} has one"
    runs = sorted(file.parents[1].name for file in folder.glob(f"*/coordinator/{HISTORY}"))
    if runs:
        more = f" … ({len(runs)} in all)" if len(runs) > 5 else ""
        return f"; its subfolders with a run are {', '.join(runs[:5])}{more}"
    return ": the results of a run are in runs/<run>/coordinator after it has ended"

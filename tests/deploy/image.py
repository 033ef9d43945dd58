"""The variables and commands of each target of the Dockerfile."""

import json
import re
import shlex
from dataclasses import dataclass

from deploy.kubectl import ROOT

OWN_TO_PYTHON = ("PATH", "HOME", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True)
class Image:
    """The start configuration of an image."""

    environment: dict[str, str]  # without the variables of Python's location
    entrypoint: list[str]
    health: list[str]
    folder: str
    user: str
    stop_signal: str


def image(target: str) -> Image:
    """Read one target of the Dockerfile, with the stages it is based on."""
    steps = list(_steps(target))
    variables = [word for name, text in steps if name == "ENV" for word in shlex.split(text)]
    pairs = dict(word.split("=", 1) for word in variables)
    last = dict(steps)
    return Image(
        {name: value for name, value in pairs.items() if name not in OWN_TO_PYTHON},
        json.loads(last["ENTRYPOINT"]),
        json.loads(last["HEALTHCHECK"].partition("CMD ")[2]),
        last["WORKDIR"],
        last["USER"],
        last["STOPSIGNAL"],
    )


def _steps(target: str) -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    stages: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for line in filter(None, text.splitlines()):
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            current = stages[stage] = list(stages.get(base, []))
        else:
            current.append((name, rest.strip()))
    return stages[target]

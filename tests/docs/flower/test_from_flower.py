"""The Flower apps in docs/from-flower.md work with Flower; their tasks are run with the page.

Flower is not among the packages of ssfl[dev]. It is installed into a folder of its own, in front of
our packages on the path of the process that runs the app (`federate.py`), and nowhere else.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.pages import ROOT, PageBlock, blocks_of
from parts import packages_part

PAGE = (ROOT / "docs" / "from-flower.md").read_text("utf-8")
HERE = Path(__file__).parent
PINS = HERE / "requirements.txt"
ROUNDS = 6
NODES: dict[str, list[dict[str, Any]]] = {
    "numpy_app": [{"partition-id": number, "num-partitions": 3} for number in range(3)],
    "message_app": [{"data-path": "north.csv"}, {"data-path": "south.csv"}],
}
TASKS = ("task.py", "site_task.py")

Exchanges = list[dict[str, Any]]


@pytest.fixture(scope="module")
def files() -> dict[str, PageBlock]:
    """Return the files of the page, by name."""
    return {block.file: block for block in blocks_of(PAGE) if block.file}


@pytest.fixture(scope="module")
def flower() -> Path:
    """A folder with Flower."""
    return packages_part("flower", PINS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, files: dict[str, PageBlock]) -> Path:
    """A folder with the page's files and the data of two sites."""
    folder = tmp_path_factory.mktemp("page")
    for name, block in files.items():
        (folder / name).write_text(block.text, "utf-8")
    (writes_sites,) = [block.text for block in blocks_of(PAGE) if "np.savetxt" in block.text]
    subprocess.run([sys.executable, "-c", writes_sites], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module", params=NODES)
def app(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runs(app: str, flower: Path, place: Path) -> list[Exchanges]:
    """All messages of two runs with Flower's FedAvg: without training, and with it."""
    configs = [
        {"num-server-rounds": rounds, "local-epochs": epochs, "learning-rate": 0.05}
        for rounds, epochs in [(1, 0), (ROUNDS, 1)]
    ]
    own = {"PYTHONPATH": str(flower), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "federate.py"), app, json.dumps(configs),
         json.dumps(NODES[app])],
        cwd=place, env=os.environ | own, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_kind(kind: str, exchanges: Exchanges) -> Exchanges:
    return [exchange for exchange in exchanges if exchange["kind"] == kind]


def mean(number: str, exchanges: Exchanges) -> float:
    return sum(float(exchange["metrics"][number]) for exchange in exchanges) / len(exchanges)


@pytest.mark.system
def test_the_flower_app_learns_with_flower(app: str, runs: list[Exchanges]) -> None:
    _, learned = runs
    nodes = len(NODES[app])
    assert len(of_kind("train", learned)) == ROUNDS * nodes
    tests = of_kind("evaluate", learned)
    assert len(tests) == ROUNDS * nodes
    first, last = tests[:nodes], tests[-nodes:]
    assert mean("loss", last) < mean("loss", first) / 2
    assert mean("accuracy", last) > mean("accuracy", first) + 0.1


@pytest.mark.system
def test_a_flower_client_returns_the_parameters_unchanged_unless_it_trains(
    app: str, runs: list[Exchanges]
) -> None:
    idle, busy = (of_kind("train", run)[: len(NODES[app])] for run in runs)  # the first round
    assert len(idle) == len({exchange["node"] for exchange in idle}) == len(NODES[app])
    assert [exchange["returned"] for exchange in idle] == [exchange["sent"] for exchange in idle]
    returned = {exchange["returned"] for exchange in busy}
    assert len(returned) == len(NODES[app])
    assert returned.isdisjoint(exchange["sent"] for exchange in busy)


def test_the_page_names_the_flower_version_it_is_tested_with() -> None:
    (version,) = re.findall(r"^flwr==(\d+\.\d+)\.\d+$", PINS.read_text("utf-8"), re.MULTILINE)
    assert f"with Flower {version}," in PAGE.replace("\n", " ")


def test_only_the_two_flower_apps_are_left_to_this_test(files: dict[str, PageBlock]) -> None:
    left_out = [block for block in blocks_of(PAGE) if block.reason]
    assert left_out == [files[f"{app}.py"] for app in NODES]
    assert all("tests/docs/flower" in block.reason for block in left_out)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_about_twenty_lines(name: str, files: dict[str, PageBlock]) -> None:
    assert len([line for line in files[name].text.splitlines() if line.strip()]) <= 20


def test_the_page_has_every_strategy_of_flower(flower: Path) -> None:
    """`Strategy` is the base class and `Result` the value of a run."""
    listed = (
        "from flwr.server import strategy as old; from flwr.serverapp import strategy as new;"
        "print(*{*old.__all__, *new.__all__} - {'Strategy', 'Result'})"
    )
    own = {"PYTHONPATH": str(flower), "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", listed], env=os.environ | own, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    names = set(done.stdout.split())
    assert len(names) > 20
    table = PAGE.split("## Flower's strategies")[1].split("## What is lost")[0]
    assert names - set(re.findall(r"`(\w+)`", table)) == set()

"""A strategy from a wheel and one from a file: simulated, served, killed, resumed, audited."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from system.federation import HELD_TASK, LOCAL_STEPS, RUN, SHARDS, Hold, finish
from system.programs import SCRIPTS, Programs, environment

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"


def swap_source() -> str:
    """Return the strategy of the page: it has memory, moves its mask and sends numbers."""
    found = re.search(r"```python\n# swap.py\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed wheel of a package that has the strategy."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = folder / "swapping-1.0-py3-none-any.whl"
    about = "swapping-1.0.dist-info"
    with ZipFile(wheel, "w") as file:
        file.writestr("swapping/__init__.py", swap_source())
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: swapping\nVersion: 1.0\n")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/entry_points.txt", "[ssfl.strategies]\nswap = swapping:Swap\n")
        file.writestr(f"{about}/RECORD", "")
    target = folder / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
         "--target", target, wheel],
        check=True, timeout=120,
    )  # fmt: skip
    return target


def test_a_strategy_from_a_wheel_survives_kills_and_is_audited(
    sites: Programs, shards: Path, installed: Path
) -> None:
    path: Any = {"PYTHONPATH": str(installed)}
    settings = (
        "rounds=3, local_steps=2, model='mlp', sparsity='0.9', seed=7, evaluate_every=0, "
        "strategy='swap', strategy_options='swap.share=0.1'"
    )
    call = f"api.simulate(api.read_shards({str(shards)!r}), {settings})"
    script = f"from ssfl import api; print({call}.digest)"
    simulated = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | path, capture_output=True, text=True,
        check=True, timeout=120,
    ).stdout.strip()  # fmt: skip

    flags = (*RUN, "--strategy=swap", "--swap.share=0.1", "--keep-uploads")
    coordinator = sites.coordinator(*flags, **path)
    hold = Hold(sites.folder, 1 + LOCAL_STEPS)  # nothing is scored: the first of round 1
    task = f"--task={HELD_TASK}"
    clients = [sites.client(shard, coordinator, task, **path) for shard in SHARDS[:-1]]
    held = sites.client(SHARDS[-1], coordinator, task, **path, **hold.env)
    hold.reached()
    for shard in SHARDS[:-1]:
        coordinator.waits_for(shard, "reported")
    held.kill()
    coordinator.kill()
    hold.release()
    coordinator = sites.coordinator(*flags, port=coordinator.port, **path)
    coordinator.says("resumed")
    clients.append(sites.client(SHARDS[-1], coordinator, task, **path))
    assert finish(coordinator, clients).digest == simulated
    audited = subprocess.run(
        [SCRIPTS / "ssfl", "audit", str(coordinator.state_dir)], env=environment() | path,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert audited.stdout.splitlines()[-1] == "same model: yes", audited


def test_sites_need_the_file_of_the_coordinator(sites: Programs, tmp_path: Path) -> None:
    ours, other = tmp_path / "swap.py", tmp_path / "other" / "swap.py"
    other.parent.mkdir()
    ours.write_text(swap_source())
    other.write_text(swap_source() + "# changed\n")
    coordinator = sites.coordinator(*RUN, f"--strategy={ours}")
    without = sites.client(SHARDS[0], coordinator)
    assert without.ends() != 0
    assert "the run's strategy swap is not known at this site: give its file" in without.err
    changed = sites.client(SHARDS[0], coordinator, f"--strategy={other}")
    assert changed.ends() != 0
    assert changed.err.count("swap sha256:") >= 2, changed.err
    clients = [sites.client(shard, coordinator, f"--strategy={ours}") for shard in SHARDS]
    finish(coordinator, clients)


def test_a_run_is_not_resumed_with_another_file(sites: Programs, tmp_path: Path) -> None:
    file = tmp_path / "swap.py"
    file.write_text(swap_source())
    sites.coordinator(*RUN, f"--strategy={file}").kill()
    file.write_text(swap_source() + "# changed\n")
    again = sites.try_coordinator(*RUN, f"--strategy={file}")
    assert again.ends() == 6
    assert "Start with that version to resume it, or use --fresh" in again.err

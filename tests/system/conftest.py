"""What the system tests share: programs that end with their test, small shards, one plain run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssfl.learning.digits import digits
from ssfl.learning.make_shards import make_shards
from ssfl.learning.shards import Shard
from system.federation import Finished, run_federation
from system.programs import Programs


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Start programs in `tmp_path`; none outlives the test, none may show a traceback."""
    started = Programs(tmp_path)
    try:
        yield started
    finally:
        started.end_all()
    for program in started.started:
        assert "Traceback" not in program.err, f"{program.name} shows a traceback"


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of digits, about thirty samples each."""
    whole = digits()
    few = Shard(
        whole.train_x[:90], whole.train_y[:90], whole.test_x[:45], whole.test_y[:45], 10
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("data") / "shards"
    make_shards(folder, 3, alpha=0.5, seed=4, data=few)
    return folder


@pytest.fixture
def sites(programs: Programs, shards: Path) -> Programs:
    """Programs whose default --data-root holds the three shards."""
    (programs.folder / "shards").symlink_to(shards)
    return programs


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Finished:
    """The run that nothing happened to: what every disturbed one must end with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "shards").symlink_to(shards)
    programs = Programs(folder)
    try:
        return run_federation(programs)
    finally:
        programs.end_all()

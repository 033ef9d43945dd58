"""One small federation of real clients, the same in every test that needs one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from system.programs import Coordinator, Program, Programs, until

SHARDS = ("shard_00", "shard_01", "shard_02")
ROUNDS = 3
LOCAL_STEPS = 2
RUN = (
    "--clients=3", "--reproducible", f"--rounds={ROUNDS}", f"--local-steps={LOCAL_STEPS}",
    "--model=mlp", "--sparsity=0.9", "--seed=7", "--evaluate-every=0", "--exit-when-done",
    "--scoring-batches=1",  # so that a Hold can count gradients
)  # fmt: skip

HELD_TASK = Path(__file__).with_name("held_task.py")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run."""

    folder: Path  # working directory of the programs; results are under runs/
    run_id: str
    digest: str  # SHA-256 of the final values, hex
    history: dict[str, Any]


def run_federation(programs: Programs, *flags: str) -> FinishedRun:
    """Run a coordinator and three clients to the end."""
    coordinator = programs.coordinator(*RUN, *flags)
    clients = [programs.client(shard, coordinator) for shard in SHARDS]
    return finish(coordinator, clients)


def finish(coordinator: Coordinator, clients: list[Program]) -> FinishedRun:
    """Wait until all have exited with 0 and return the finished run."""
    assert {client.name: client.ends() for client in clients} == {c.name: 0 for c in clients}
    assert coordinator.ends() == 0
    history = coordinator.history()
    assert history["finished"] and not history["stopped"]
    return FinishedRun(coordinator.folder, history["run_id"], history["model_digest"], history)


class Hold:
    """Blocks a client before its n-th gradient until `release`.

    Gradient 1 is the scoring; LOCAL_STEPS follow for every round. See held_task.py.
    """

    def __init__(self, folder: Path, gradient: int) -> None:
        self._file = folder / f"hold-{gradient}"
        self._file.write_text(str(gradient))

    @property
    def env(self) -> dict[str, str]:
        return {"HOLD_FILE": str(self._file)}

    def reached(self) -> None:
        """Wait until the client is blocked."""
        until(self._file.with_suffix(".reached").exists, "the client reaches the hold")

    def release(self) -> None:
        self._file.unlink()


def first_gradient_of(round_number: int) -> int:
    """Return the number of the first gradient of a round, for a Hold."""
    return 2 + round_number * LOCAL_STEPS

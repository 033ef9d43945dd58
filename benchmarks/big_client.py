"""`ssfl-client` with a model of any size and no training, to measure transfers.

Agent, connection, uploads, downloads and state directory are the program's own; only the site's
work is replaced. Started by benchmarks of links:

    python benchmarks/big_client.py COORDINATOR NUMBER MASKED FOLDER
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ssfl.client.agent import Agent, Identity
from ssfl.client.connection import Connection, ReconnectBackoff, open_channel
from ssfl.client.local_state import LocalState
from ssfl.client.local_work import GlobalEvaluation, Vector
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.program import logs
from ssfl.strategies.contract import Answer, Received, ScoringRequest

DENSE = 100
GIVE_UP_AFTER_S = 600.0


class BigSite:
    """A site whose work takes no time."""

    def __init__(self, settings: RunSettings, masked: int, number: int) -> None:
        self.manifest = Manifest(
            (
                TensorSpec("weight", (masked,), Role.MASKED, Init("normal", 0.125)),
                TensorSpec("bias", (DENSE,), Role.DENSE, Init("zeros")),
            ),
            {"name": "big"},
        )
        self.initial = initial_vector(self.manifest, settings.seed)
        self._random = np.random.default_rng(number)

    def score(self, asked: ScoringRequest) -> Vector:
        return np.abs(asked.whole[: self.manifest.num_masked])

    def answer(
        self, received: Received, _items: object, on_step: Callable[[int, int], None]
    ) -> tuple[Answer, dict[str, Vector]]:
        on_step(1, 1)
        base = received.values
        change = self._random.standard_normal(base.size, dtype=np.float32)
        tested = Evaluation(1, 2, 3.0)
        return Answer(LocalResult(base + np.float32(0.01) * change, 0.5, tested, tested)), {}

    def deployed(self, mask: Mask, values: Vector) -> tuple[Mask, Vector]:
        return mask, values

    def evaluate_global(self, _mask: Mask, _values: Vector) -> GlobalEvaluation:
        return GlobalEvaluation(Evaluation(1, 2, 3.0), None)


def main() -> None:
    address, number, masked, folder = sys.argv[1:]
    logs.setup("text", "info")
    connection = Connection(lambda: open_channel(address))

    def build(settings: RunSettings, _known: Manifest | None) -> Any:
        return BigSite(settings, int(masked), int(number))

    name = f"client_{number}"
    agent = Agent(
        connection,
        Identity(name, 10, "arithmetic", {}),
        LocalState(Path(folder) / name),
        ReconnectBackoff(address, GIVE_UP_AFTER_S, retry=connection.reopen),
        build,
        Path(folder) / "out",
    )
    agent.run()
    connection.close()


if __name__ == "__main__":
    main()

"""Options of cutting a data set among clients."""

from dataclasses import dataclass

from ssfl.datasets.shards.partition import KINDS, MAX_ALPHA, MIN_ALPHA
from ssfl.method.errors import SettingsError
from ssfl.method.settings import MAX_SEED, setting


@dataclass(frozen=True, slots=True)
class Cut:
    """How to cut a data set among clients; each field is a flag of `ssfl shards`."""

    clients: int = setting(8, "number of shards", ge=1, le=100_000)
    partition: str = setting(
        "dirichlet", "how classes are spread over clients; see below", choices=KINDS
    )
    alpha: float = setting(
        0.3, "Dirichlet parameter; near 0 a client has one class; from 100 all clients are alike",
        positive=True,
    )  # fmt: skip
    classes_per_client: int = setting(
        2, "partition classes: number of classes of each client", ge=1
    )
    validation: float = setting(0.1, "share of each client's training samples kept for validation")
    test_share: float = setting(
        0.2, "share of each class kept for testing; used if the data set has no test samples"
    )
    seed: int = setting(0, "the same seed gives the same shards", le=MAX_SEED)

    def validate(self) -> None:
        """Raise SettingsError naming the invalid flag."""
        for flag, share in (("validation", self.validation), ("test-share", self.test_share)):
            if not 0 <= share < 1:
                raise SettingsError(f"--{flag} must be at least 0 and below 1, got {share:g}")
        if not MIN_ALPHA <= self.alpha <= MAX_ALPHA:
            raise SettingsError(f"--alpha must be between 0.000001 and 1000000, got {self.alpha:g}")

"""The small scale of the experiments: minutes on two cores instead of days.

Fashion-MNIST, each image mean-pooled to 14x14; a CNN of 35,434 weights; 100 clients of 200 samples
with Dirichlet 0.3 class mixes; 10 clients in a round, one local epoch, 50 rounds. The rest is as in
the paper: batches of 16, SGD at 0.1, weight decay 5e-4, no momentum. Each round multiplies the
learning rate by 0.98, so that 50 rounds lower it as far as the paper's 500 rounds with 0.998. Each
of the 100 clients scores one minibatch. Without Fashion-MNIST, scikit-learn's digits are cut among
20 clients.

A single round jitters by 1 to 3 points, so accuracies are means over the last ten rounds. Runs of
one seed share data, initial weights and sampled clients, so differences are paired by seed.

The scale of CIFAR-10: all 50,000 images of 32x32, ResNet-8 with GroupNorm (75,290 weights), 100
clients of 500 samples, 10 clients in a round, one local epoch, 100 rounds. The learning rate falls
as far as at the small scale. Clients do not train models of their own at the end, and do not test
the models of a round; all clients test the global model every 25 rounds and in the last ten.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ssfl.program.settings.loading import Setting
from ssfl.study.data import BENCHMARK_S, DataSpec, first_available
from ssfl.study.sweep import RunSpec

ACCURACY = "mean over clients of the global model, last 10 rounds"
FINE_TUNED = "mean over clients of their own model, one local epoch after the last round"
MEAN, PERSONAL = "mean_last_10", "personal"
DIGITS = DataSpec(source="digits", clients=20)
SETTINGS: Mapping[str, Setting] = {
    "profile": "paper",
    "model": "cnn-small",
    "rounds": 50,
    "local_epochs": 1,
    "lr_decay": 0.98,
    "evaluate_every": 5,
    "evaluate_last": 10,
    "personalize_epochs": 1,
}
DENSE: Mapping[str, Setting] = {"strategy": "fedavg"}
OWN_MASKS: Mapping[str, Setting] = {"criterion": "client-random", "personalize_epochs": 0}
CRITERIA = ("shuffled", "random", "one-client", "magnitude", "synflow", "grasp")
NO_MORE: Mapping[str, Setting] = {"personalize_epochs": 0}  # no further personal models
GOSSIP = {"d-psgd-ft": {}, "dispfl": NO_MORE, "fedfomo": NO_MORE}  # every client trains
METHODS: Mapping[str, Mapping[str, Setting]] = {
    "dense": DENSE,
    "ssfl": {},
    "client-random-holders": OWN_MASKS,
    "client-random-zeros": {**OWN_MASKS, "averaging": "zeros"},
    **{name: {"criterion": name} for name in CRITERIA},
    "ditto": {"strategy": "ditto", "criterion": "none", **NO_MORE},
    "sparsyfed": {"strategy": "sparsyfed", **NO_MORE},
    "flash-spdst": {"strategy": "flash-spdst"},
    "flash-jmwst": {"strategy": "flash-jmwst"},
    "sub-fedavg": {"strategy": "sub-fedavg", "local_epochs": 2, **NO_MORE},  # it needs two
    "feddst": {"strategy": "feddst"},
    "topk-weights": {"strategy": "topk-weights"},
    "fedpm": {"strategy": "fedpm", **NO_MORE},
    **{name: {"strategy": name.removesuffix("-ft"), **own} for name, own in GOSSIP.items()},
}
CIFAR = DataSpec(source="cifar10", clients=100)
CIFAR_SETTINGS: Mapping[str, Setting] = {
    **SETTINGS,
    **NO_MORE,
    "model": "resnet8",
    "rounds": 100,
    "lr_decay": 0.99,
    "evaluate_every": 25,
}
WARMUP_ROUNDS = 10  # at the most; a fifth of all rounds if they are few
FEWER = 5  # a gossip method has this many times fewer rounds, in which all clients train
VALIDATION = {"fedfomo": 0.1}  # share of a client's samples on which it compares models
PAPER: Mapping[str, Setting] = {
    "profile": "paper", "model": "resnet18", "rounds": 500, "clients_per_round": 10,
}  # fmt: skip
PAPER_ALPHA = {"cifar10": 0.3, "cifar100": 0.2, "tiny-imagenet": 0.2}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Data, settings and seeds that all experiments start from."""

    data: DataSpec
    settings: Mapping[str, Setting]
    seeds: tuple[int, ...]
    device: str = "cpu"
    round_tests: bool = True  # clients of a round test the model before and after they train

    @classmethod
    def paper(cls, seeds: tuple[int, ...], source: str = "", device: str = "cpu") -> "Recipe":
        """Return the scale of the paper, for measurements without runs."""
        source = source or "cifar10"
        return cls(DataSpec(source, 100, alpha=PAPER_ALPHA[source]), PAPER, seeds, device)

    @classmethod
    def cifar(cls, seeds: tuple[int, ...]) -> "Recipe":
        """Return the scale of CIFAR-10 with ResNet-8."""
        return cls(CIFAR, CIFAR_SETTINGS, seeds, round_tests=False)

    @classmethod
    def quick(cls, seeds: tuple[int, ...], source: str = "") -> "Recipe":
        """Return the small scale, on `source` or on the first data set of this machine."""
        found = source or first_available("fashion-mnist", "digits")
        if found == "digits":  # half of the clients in a round, so that late ones are among them
            return cls(DIGITS, {**SETTINGS, "client_fraction": 0.5}, seeds)
        return cls(replace(BENCHMARK_S, source=found), SETTINGS, seeds)

    def specs(
        self, name: str, settings: Mapping[str, Setting], data: DataSpec | None = None
    ) -> list[RunSpec]:
        """Return the runs of one configuration, one per seed."""
        return [
            RunSpec(
                name,
                data or self.data,
                {**self.settings, **settings},
                seed,
                mode="fast",
                device=self.device,
                round_tests=self.round_tests,
            )
            for seed in self.seeds
        ]

    def methods(
        self, names: Iterable[str], data: DataSpec | None = None, prefix: str = ""
    ) -> list[RunSpec]:
        """Return the runs of methods: `dense`, or a method and its sparsity, as in `ssfl 0.95`."""
        specs = []
        for name in names:
            method, _, sparsity = name.partition(" ")
            settings = {**METHODS[method], **({"sparsity": sparsity} if sparsity else {})}
            if method in GOSSIP:
                settings |= self.fewer_rounds()
            cut = replace(data or self.data, validation=VALIDATION.get(method, 0.0))
            specs += self.specs(prefix + name, settings, cut)
        return specs

    def fewer_rounds(self) -> dict[str, Setting]:
        """Return the settings of rounds in which every client trains: the rate falls as far."""
        decay = float(self.settings["lr_decay"]) ** FEWER
        rounds = max(1, self.rounds // FEWER)
        return {"client_fraction": 0.0, "rounds": rounds, "lr_decay": round(decay, 6)}

    @property
    def rounds(self) -> int:
        """Rounds of a run; an experiment may change them."""
        return int(self.settings["rounds"])

    @property
    def warmup_rounds(self) -> int:
        """Dense rounds before the weights are scored."""
        return min(WARMUP_ROUNDS, self.rounds // 5)

    @property
    def title(self) -> str:
        """Data, clients and seeds, for the title of a chart or table."""
        return f"{self.data.source}, {self.data.clients} clients, {len(self.seeds)} seeds"

"""Ditto (Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization").

    client k:  w_k <- local SGD from the received model w_t; send w_k
               v_k <- local SGD from v_k, which minimises F_k(v) + lambda / 2 * |v - w_t|^2; keep it
    server:    w_{t+1} <- mean of the w_k

The personal model v_k never leaves its site. It is the model that the site tests as its own.

Choices where the paper and released code leave room:
- v_k starts at the initial weights w_0, as in the authors' code, even if the client is sampled
  late. A client that was never sampled has no personal model and tests the global one.
- `pull` gradient adds lambda * (v - w_t) to the gradient, as in the paper; clipping and momentum
  apply to the sum. DisPFL's code, which the published comparison of SSFL uses, pulls after each SGD
  step: v -= rate * lambda * (v - w_t), with the v of after the step (`pull` step).
- Both branches take the same minibatches, as in the authors' code.
- The defaults are the authors': lambda 1, and as many steps for v_k as for w_k. They also choose
  lambda from 0.1, 1 and 2 by the validation loss. DisPFL has lambda 0.5, 3 personal epochs and 2
  global ones: `--local-epochs 3` with `strength` 0.5, `pull` step and `global_epochs` 2.
- v_k is trained inside the mask and stored whole. A weight that a new mask adds starts at the value
  that v_k last had there or, with `deactivated=reset`, at its initial value.
"""

from dataclasses import dataclass, replace

from ssfl.method.errors import SettingsError
from ssfl.method.model_state import Vector
from ssfl.method.settings import RunSettings, choice, setting
from ssfl.strategies.contract import (
    Answer,
    ClientHalf,
    Memory,
    OnStep,
    Pull,
    Received,
    Rule,
    SiteTools,
)

PERSONAL, MASK = "personal", "mask"  # in memory: v_k, whole, and the mask of its last training


@dataclass(frozen=True)
class DittoOptions:
    """Hyper-parameters."""

    strength: float = setting(1.0, "lambda: pull of the personal model towards the global one")
    pull: str = choice(
        "how the pull is applied; gradient: in the gradient; step: after each step",
        "gradient",
        "step",
    )
    personal_epochs: int = setting(
        0, "epochs of the personal model in each round, at most --local-epochs; 0: all"
    )
    global_epochs: int = setting(
        0, "epochs of the global model in each round, at most --local-epochs; 0: all"
    )


class Ditto(Rule):
    """FedAvg, and a personal model at every client."""

    Options = DittoOptions
    has_personal_models = True

    def check(self) -> None:
        if self.settings.personalize_epochs:
            raise SettingsError(
                "--strategy ditto trains a model of its own at every client: leave out "
                "--personalize-epochs"
            )
        for name in ("personal_epochs", "global_epochs"):
            asked, most = getattr(self.options, name), self.settings.local_epochs
            if asked > most and not self.settings.local_steps:
                raise SettingsError(
                    f"--ditto.{name} {asked} is more than --local-epochs {most}, the epochs of a "
                    "round: raise --local-epochs and set the epochs of the other model"
                )

    def client(self) -> ClientHalf:
        return DittoClient(self.options)


class DittoClient(ClientHalf):
    """Trains the global model for the mean and the personal model for itself."""

    can_be_stacked = True

    def __init__(self, options: DittoOptions) -> None:
        self.options = options

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        mask, number, options = received.mask, received.round_number, self.options
        shared = site.train(
            mask, received.values, number, lambda done, total: on_step(done, 2 * total), (),
            first(options.global_epochs),
        )  # fmt: skip
        before = memory.vector(PERSONAL)
        before = site.initial if before is None else before
        own = site.train(
            mask,
            mask.gather(before),
            number,
            lambda done, total: on_step(total + done, 2 * total),
            [Pull(received.values, options.strength, options.pull == "gradient")],
            first(options.personal_epochs),
        )
        memory.put(PERSONAL, mask.scatter(own.values, resting(site.settings, before, site.initial)))
        memory.put(MASK, mask)
        return Answer(replace(shared, personal=own.personal))

    def personal(self, received: Received, site: SiteTools, memory: Memory) -> Vector | None:
        whole, trained_on = memory.vector(PERSONAL), memory.mask(MASK)
        if whole is None or trained_on is None:
            return None
        # Resting values are not part of the model: off the mask of its training it is zero.
        return received.mask.gather(trained_on.scatter(trained_on.gather(whole)))


def first(epochs: int) -> range | None:
    """Return the first epochs of a round; None: all."""
    return range(epochs) if epochs else None


def resting(settings: RunSettings, before: Vector, initial: Vector) -> Vector:
    """Return the values that pruned weights of the personal model rest at."""
    return before if settings.deactivated == "keep" else initial

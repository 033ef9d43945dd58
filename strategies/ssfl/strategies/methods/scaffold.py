"""SCAFFOLD (Karimireddy et al. 2020): control variates correct the drift of clients.

    client i:  y_i <- x;  K steps of  y_i <- y_i - rate * (g(y_i) - c_i + c)
               c_i+ <- c_i - c + (x - y_i) / (K * rate)                        option II
                       gradient of F_i at x, over all samples of the client    option I
               send y_i and c_i+ - c_i;  keep c_i+
    server:    x <- x + server_rate * mean of the y_i - x
               c <- c + |S| / N * mean of the c_i+ - c_i

Option II is the default, as in the paper's experiments. Option I takes a further pass over the
samples. All control variates start at zero. Clients have equal weights, as in the paper, whatever
`update_weights` says.

Choices where the paper leaves room:
- N is the number of clients that are available when the round is planned, or --clients if that is
  more. The plan carries it in its task. If all clients train, the factor is 1.
- The paper's clients run plain SGD at one rate. Here a step has the rate of its round (--lr-decay)
  and of its epoch (--local-schedule), and momentum applies a gradient in later steps again. The
  divisor is therefore the sum over all gradients of the rates by which each moves the weights. It
  is K * rate in the paper's case. c_i+ is a weighted mean of gradients, with weight decay in them.
- Clipping acts on the corrected gradient, so c_i+ is not such a mean in a round that clips. The
  paper does not clip (`--clip-norm 0`).
- A weight that a new mask adds has control variates of zero, except at clients that took part in
  no round since a mask dropped it. Running statistics have none; they take the mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ssfl.method.errors import SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.optimizers import SGD
from ssfl.method.settings import choice, setting
from ssfl.strategies.contract import (
    Answer,
    ClientHalf,
    ClientId,
    Correction,
    Memory,
    OnStep,
    Plan,
    Position,
    Received,
    Reduced,
    Rule,
    SiteTools,
    StepDone,
    UploadParts,
    Uploads,
    committed,
)
from ssfl.strategies.registry import OWN_MASKS

CONTROL = "control"  # c in `extra` and downwards, c_i+ - c_i upwards, c_i, whole, in memory


@dataclass(frozen=True)
class ScaffoldOptions:
    """Hyper-parameters."""

    option: str = choice(
        "control variates of clients; II: mean gradient of the round; I: gradient at its start",
        "II",
        "I",
    )
    server_rate: float = setting(1.0, "step size of the server; 1: the mean", positive=True)


def divisor(rates: Sequence[float], momentum: float) -> float:
    """Return the sum over all gradients of the rates by which each moves the weights.

    >>> divisor([0.5, 0.5, 0.5], 0.0)
    1.5
    >>> divisor([1.0, 1.0, 1.0], 0.5)  # 1 + 1.5 + 1.75
    4.25
    """
    total, buffer = 0.0, 0.0
    for rate in rates:
        buffer = momentum * buffer + 1
        total += rate * buffer
    return total


def control_change(c: Vector, before: Vector, after: Vector, divided_by: float) -> Vector:
    """Return c_i+ - c_i of option II for a round from `before` to `after`."""
    return (before - after) / np.float32(divided_by) - c


class Scaffold(Rule):
    """FedAvg with corrected gradients."""

    Options = ScaffoldOptions
    needs_our_loop = True

    def check(self) -> None:
        if self.settings.criterion == OWN_MASKS:
            raise SettingsError(
                "--strategy scaffold averages control variates under one mask: --criterion "
                f"{OWN_MASKS} gives every client its own"
            )
        if self.settings.optimizer.lower() != SGD or self.settings.optimizer_options:
            raise SettingsError(
                "--strategy scaffold follows from the steps of plain SGD: use --optimizer sgd, and "
                "leave out --optimizer-options"
            )

    def begin(self, state: ModelState) -> ModelState:
        if state.values is None:  # before the first mask
            return state
        return replace(state, extra={CONTROL: np.zeros_like(state.values)})

    def remasked(self, before: ModelState, after: ModelState) -> ModelState:
        if before.mask is None:
            return self.begin(after)
        assert after.mask is not None
        moved = after.mask.gather(before.mask.scatter(before.extra_vector(CONTROL)))
        return replace(after, extra={CONTROL: moved})

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        plan = super().plan(position, clients)
        num_clients = max(len(clients), self.settings.clients)
        return plan and replace(plan, equal_weights=True, task=str(num_clients))

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        return UploadParts(vectors=(CONTROL,))

    def vectors(self, state: ModelState) -> Mapping[str, Vector]:
        return {CONTROL: state.extra_vector(CONTROL)} if state.extra else {}

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        assert state.values is not None
        x, mean, rate = state.values, reduced.values, self.options.server_rate
        if rate != 1:
            mean = x + np.float32(rate) * (mean - x)
            trained = x.size - state.manifest.num_buffers
            mean[trained:] = reduced.values[trained:]
        num_sent = reduced.total_weight  # clients have weight 1
        share = np.float32(num_sent / max(num_sent, int(step.task)))
        control = state.extra_vector(CONTROL) + share * reduced.vectors[CONTROL]
        return replace(committed(self.settings, state, mean), extra={CONTROL: control})

    def client(self) -> ClientHalf:
        return ScaffoldClient(self.options.option)


class ScaffoldClient(ClientHalf):
    """Trains with the correction c - c_i."""

    def __init__(self, option: str) -> None:
        self.option = option
        self.can_be_stacked = option == "II"

    def train(self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep) -> Answer:
        from ssfl.learning.batches import step_rates

        mask, x, number = received.mask, received.values, received.round_number
        stored, c = memory.vector(CONTROL), received.vectors[CONTROL]
        mine = np.zeros_like(x) if stored is None else mask.gather(stored)
        trained = site.train(mask, x, number, on_step, [Correction(c - mine)])
        if self.option == "I":
            change = mask.gather(gradient(site, mask.scatter(x))) - mine
        else:
            rates = step_rates(site.settings, number, site.shard.num_samples)
            change = control_change(c, x, trained.values, divisor(rates, site.settings.momentum))
        change[x.size - site.manifest.num_buffers :] = 0
        memory.put(CONTROL, mask.scatter(mine + change))
        return Answer(trained, vectors={CONTROL: change})


def gradient(site: SiteTools, whole: Vector) -> Vector:
    """Return the gradient of the mean loss over all training samples, (manifest.size,)."""
    from ssfl.learning.batches import batch_tensors
    from ssfl.learning.flatten import write_vector
    from ssfl.learning.saliency import whole_gradient

    shard, size = site.shard, site.settings.batch_size
    write_vector(site.network, site.manifest, whole)
    total = np.zeros(whole.size, dtype=np.float64)
    for start in range(0, shard.num_samples, size):
        some = np.arange(start, min(start + size, shard.num_samples))
        x, y = batch_tensors(shard.train_x, shard.train_y, some, site.network)
        total += len(some) * whole_gradient(site.network, site.manifest, site.task, x, y)
    mean: Vector = (total / shard.num_samples).astype(np.float32)
    return mean

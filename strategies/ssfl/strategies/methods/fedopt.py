"""FedOpt (Reddi et al. 2021, "Adaptive Federated Optimization"): an optimizer at the server.

    clients:   local SGD from x_t, as in FedAvg
    server:    delta <- mean of the x_k, minus x_t
               m     <- beta1 * m + (1 - beta1) * delta
               v     <- v + delta^2                                    adagrad
                        v - (1 - beta2) * delta^2 * sign(v - delta^2)  yogi
                        beta2 * v + (1 - beta2) * delta^2              adam
               x_{t+1} <- x_t + rate * m / (sqrt(v) + tau)

`momentum` is FedAvgM (Hsu et al. 2019): m <- beta1 * m + delta, x_{t+1} <- x_t + rate * m. With
beta1 0 and rate 1 it is FedAvg.

Choices where the paper leaves room:
- m starts at 0 and v at tau^2, the smallest start that the paper allows.
- There is no bias correction, as in the paper. With `bias_correction`, adam divides m by
  1 - beta1^t and v by 1 - beta2^t in round t, and v starts at 0, as in Kingma and Ba 2015.
- The paper tunes the rate for each task. Our default is 1 for momentum and 0.01 for the others.
- beta1 is 0 for adagrad, as in the paper's experiments, and 0.9 for the others.
- A weight that a new mask adds starts with m and v as in the first round.
- Running statistics of norm layers have no gradient: they take the mean.

All arithmetic is float32 in the order of the formulas, so every machine computes the same bits.
"""

from dataclasses import dataclass, replace

import numpy as np

from ssfl.method.errors import SettingsError
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import choice, setting
from ssfl.strategies.contract import Reduced, Rule, StepDone, Uploads, committed

M, V = "momentum", "squares"  # in `extra`, on the values of the state


@dataclass(frozen=True)
class FedOptOptions:
    """Hyper-parameters; the defaults are those of the paper, except the rate."""

    optimizer: str = choice("optimizer of the server", "adam", "yogi", "adagrad", "momentum")
    server_rate: float = setting(0.0, "step size; 0: 1 for momentum and 0.01 for the others")
    beta1: float = setting(
        -1.0, "decay of the mean of updates, below 1; -1: 0 for adagrad, else 0.9", ge=-1, le=1.0
    )
    beta2: float = setting(0.99, "adam and yogi: decay of the mean of squares; below 1", le=1.0)
    tau: float = setting(1e-3, "adaptivity: added to the root of the squares", positive=True)
    bias_correction: bool = setting(False, "adam: correct m and v for their start at zero")

    @property
    def rate(self) -> float:
        """The step size."""
        return self.server_rate or (1.0 if self.optimizer == "momentum" else 0.01)

    @property
    def decay(self) -> float:
        """Beta1."""
        return self.beta1 if self.beta1 >= 0 else 0.0 if self.optimizer == "adagrad" else 0.9

    @property
    def corrects(self) -> bool:
        """True if moments are corrected for their start."""
        return self.bias_correction and self.optimizer == "adam"


def next_momentum(options: FedOptOptions, m: Vector, delta: Vector) -> Vector:
    """Return the next m."""
    beta1 = np.float32(options.decay)
    if options.optimizer == "momentum":
        return beta1 * m + delta
    return beta1 * m + np.float32(1 - options.decay) * delta


def next_squares(options: FedOptOptions, v: Vector, delta: Vector) -> Vector:
    """Return the next v."""
    square, new = delta * delta, np.float32(1 - options.beta2)
    if options.optimizer == "adagrad":
        return v + square
    if options.optimizer == "yogi":
        return v - new * square * np.sign(v - square)
    return np.float32(options.beta2) * v + new * square


def moved(options: FedOptOptions, x: Vector, m: Vector, v: Vector | None, number: int) -> Vector:
    """Return the next x, in round `number`, counted from 1; v is None for momentum."""
    rate = np.float32(options.rate)
    if v is None:
        return x + rate * m
    if options.corrects:
        m = m / np.float32(1 - options.decay**number)
        v = v / np.float32(1 - options.beta2**number)
    root: Vector = np.sqrt(v)
    return x + rate * m / (root + np.float32(options.tau))


class FedOpt(Rule):
    """FedAvg whose mean is a direction for the server's optimizer."""

    Options = FedOptOptions

    @property
    def starts(self) -> dict[str, float]:
        """The first value of every moment."""
        options = self.options
        if options.optimizer == "momentum":
            return {M: 0.0}
        return {M: 0.0, V: 0.0 if options.corrects else options.tau * options.tau}

    def check(self) -> None:
        for name in ("beta1", "beta2"):
            if getattr(self.options, name) >= 1:
                raise SettingsError(f"--fedopt.{name} must be below 1, else moments never decay")
        if -1 < self.options.beta1 < 0:
            raise SettingsError("--fedopt.beta1 must be at least 0, or -1 for the default")

    def begin(self, state: ModelState) -> ModelState:
        if state.values is None:  # before the first mask
            return state
        size = state.values.size
        fresh = {name: np.full(size, start, np.float32) for name, start in self.starts.items()}
        return replace(state, extra=fresh)

    def remasked(self, before: ModelState, after: ModelState) -> ModelState:
        if before.mask is None:
            return self.begin(after)
        assert after.mask is not None
        kept, size = {}, after.manifest.size
        for name, start in self.starts.items():
            whole = np.full(size, start, dtype=np.float32)
            kept[name] = after.mask.gather(before.mask.put(before.extra_vector(name), whole))
        return replace(after, extra=kept)

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        assert state.values is not None
        options, x, v = self.options, state.values, None
        delta = reduced.values - x
        m = next_momentum(options, state.extra_vector(M), delta)
        if V in state.extra:
            v = next_squares(options, state.extra_vector(V), delta)
        after = moved(options, x, m, v, step.round_number + 1)
        trained = x.size - state.manifest.num_buffers
        after[trained:] = reduced.values[trained:]
        extra = {M: m} if v is None else {M: m, V: v}
        return replace(committed(self.settings, state, after), extra=extra)

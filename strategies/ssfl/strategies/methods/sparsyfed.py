"""SparsyFed (Guastella et al. 2025): sparse training of powered weights, pruned by each client.

The network uses sign(t) |t|^a in place of every convolution and linear weight t. Large weights
grow faster than small ones, and an exact zero has no gradient, so that clients agree on the zeros.

    server  t <- sign(t) |t|^(1/a) of the initial weights, so that the network starts as it would
    round   send t, of which a client trains all
    client    local SGD: weight gradients from the largest inputs of a layer, as large a share
              of them as the layer has nonzero weights
              set the round(sparsity W) smallest |t| over all layers to zero
              send where t is not zero, and these values
    server    t <- mean by number of samples, where a weight that a client dropped counts as zero

The first round is dense. Clients prune differently, so the model of the server is their union and
denser than the sparsity. It is what is tested; its weights are those of the network, not t.

Choices:
- The paper draws initial weights from a truncated normal distribution. Here they are those of the
  run, with the correction 1/a.
- The released code keeps the threshold of a convolution's inputs from the first batch of a round:
  `--sparsyfed.activations round`. With `full` all inputs count, as in its variant without
  activation pruning.
- The paper's own rates (0.5, falling to 0.01) and weight decay (0.001) are settings of the run. Its
  variant that derives `a` from the spectral norm of each layer is left out.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import DensityError
from ssfl.method.evaluation import LocalResult
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, top_k
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import choice, setting
from ssfl.strategies.contract import (
    Answer,
    ClientHalf,
    Memory,
    OnStep,
    Received,
    Reduced,
    Rule,
    SiteTools,
    StepDone,
    UploadParts,
    Uploads,
)
from ssfl.strategies.layerwise import moved

_FRACTION_BITS = 32  # of an exponent: far below the precision of float32
_BLOCK = 1 << 16  # values at a time, so that temporaries stay in cache


@dataclass(frozen=True)
class SparsyFedOptions:
    """The paper's hyper-parameter, and what is pruned in the backward pass."""

    exponent: float = setting(
        1.25, "a: the network uses sign(w) |w|^a for every trained w", ge=1, le=4.0
    )
    activations: str = choice(
        "inputs that count for the gradients of weights; batch: the largest of each batch; "
        "round: above the threshold of a round's first batch; full: all",
        "batch",
        "round",
        "full",
    )


def power(size: npt.NDArray[np.float64], exponent: float) -> npt.NDArray[np.float64]:
    """Return size^exponent by multiplications and square roots, the same bits on every machine.

    A library's pow may differ between machines. `size` is not negative.

    >>> power(np.array([0.0, 16.0]), 1.25).tolist()
    [0.0, 32.0]
    """
    whole = math.floor(exponent)
    result, root, fraction = np.ones_like(size), size, exponent - whole
    for _ in range(whole):
        result = result * size
    for _ in range(_FRACTION_BITS if fraction else 0):  # its binary digits
        root, fraction = np.sqrt(root), 2 * fraction
        if fraction >= 1:
            result, fraction = result * root, fraction - 1
        if not fraction:
            break
    return result


def signed_power(values: Vector, exponent: float) -> Vector:
    """Return sign(v) |v|^exponent, rounded once to float32."""
    out = np.empty_like(values)
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK].astype(np.float64)
        out[start : start + _BLOCK] = np.copysign(power(np.abs(block), exponent), block)
    return out


def with_power(mask: Mask, values: Vector, exponent: float) -> Vector:
    """Return the values of a mask with powered weights; the unmasked values do not change."""
    k = mask.num_kept
    return np.concatenate([signed_power(values[:k], exponent), values[k:]])


def num_kept(sparsity: str, num_masked: int) -> int:
    """Return how many weights are left when round(sparsity W) are dropped.

    >>> num_kept("0.95", 50)  # 47.5 is rounded to the even 48
    2
    """
    kept = num_masked - round(Fraction(sparsity) * num_masked)
    if not kept:
        raise DensityError(f"sparsity {sparsity} keeps none of the model's {num_masked} weights")
    return kept


def kept_weights(weights: Vector, k: int) -> Mask:
    """Return the k largest weights by magnitude, without those that are zero."""
    return Mask.from_bools(top_k(np.abs(weights), k).bools() & (weights != 0))


class SparsyFed(Rule):
    """Powered weights, pruned by every client after its training."""

    Options = SparsyFedOptions
    moves_mask = needs_our_loop = True

    def begin(self, state: ModelState) -> ModelState:
        assert state.mask is not None and state.values is not None
        num_kept(self.settings.sparsity, state.manifest.num_masked)  # raises now if impossible
        values = with_power(state.mask, state.values, 1 / self.options.exponent)
        return replace(state, values=values)

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        most = num_kept(self.settings.sparsity, manifest.num_masked)
        return UploadParts(bits=True, bits_required=True, max_kept=most)

    def max_kept(self, manifest: Manifest, num_clients: int) -> int:
        each = num_kept(self.settings.sparsity, manifest.num_masked)
        return min(manifest.num_masked, num_clients * each)

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        assert reduced.votes is not None
        return moved(self.settings, state, Mask.from_bools(reduced.votes > 0), reduced.values)

    def deployed(self, state: ModelState) -> ModelState:
        assert state.mask is not None and state.values is not None
        values = with_power(state.mask, state.values, self.options.exponent)
        return replace(state, values=values, change=None)

    def client(self) -> ClientHalf:
        from ssfl.learning.flatten import read_vector, write_vector
        from ssfl.learning.masked_training import train_locally
        from ssfl.learning.reparametrize import PowerTask

        exponent, activations = self.options.exponent, self.options.activations

        class Client(ClientHalf):
            def train(
                self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep
            ) -> Answer:
                manifest, settings = site.manifest, site.settings
                start, base = received.mask, received.values
                tested = site.evaluate(start, with_power(start, base, exponent))

                write_vector(site.network, manifest, start.scatter(base))
                loss = train_locally(
                    site.network, manifest, Mask.full(manifest.num_masked),
                    PowerTask(site.task, manifest, exponent, activations), site.shard, settings,
                    received.round_number, site.client_id, on_step,
                )  # fmt: skip
                trained = read_vector(site.network, manifest)

                k = num_kept(settings.sparsity, manifest.num_masked)
                kept = kept_weights(trained[: manifest.num_masked], k)
                values = kept.gather(trained)
                personal = site.evaluate(kept, with_power(kept, values, exponent))
                return Answer(LocalResult(values, loss, tested, personal), kept)

        return Client()

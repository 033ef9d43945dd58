"""FedPM (Isik et al. 2023): weights stay random; clients learn with which probability to keep each.

    server  w_i = +c or -c from the seed, c = e / sqrt(fan-in); p_i from scores N(0, 1)
    round   send p
    client    s_i = logit(p_i); every step draws a mask m_i ~ Bernoulli(sigmoid(s_i)), uses w m, and
              takes a step of Adam on s, with the gradient of m_i as that of sigmoid(s_i)
              send one mask ~ Bernoulli(sigmoid(s))
    server    p_i = share of the masks that keep weight i: the mode of a Beta posterior, whose prior
              is uniform and is reset every few rounds
    model   w m with one mask ~ Bernoulli(p)

An update is a bit for each weight. How many weights the model keeps is an outcome: the run's
sparsity has no effect. Every client counts the same, whatever its number of samples.

The state has p in place of weights, so that both ends hold the same bits and only clients take
logarithms. Both ends make w from the seed, and the mask that is tested and served from the seed
and the digest of the state. All values but conv and linear weights stay as they start.

Choices:
- As in the released code, a vote counts as 0.99 or 0.01 (`clamp`): 0 and 1 would never change.
- The released code resets the prior in every round (`reset_every` 1); the paper keeps it for some
  rounds if few clients take part. The code also multiplies the gradient of m by sigmoid(s), here
  only with `scaled_gradient`, and keeps the moments of Adam at the clients (`keep_moments`).
- First scores have 256 values, the quantiles of N(0, 1); in the released code they are draws.
- With `levels` 256, p is rounded to multiples of 1/256, which halves its coded bytes.
- Adam has the run's learning rate, by default the paper's 0.1, but no weight decay. The paper's
  networks have no norm layers, and it masks their biases too; here these stay as they start.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import SettingsError
from ssfl.method.evaluation import LocalResult
from ssfl.method.initialize import normal
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import setting
from ssfl.method.streams import Stream
from ssfl.strategies.contract import (
    Answer,
    ClientHalf,
    ClientId,
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
)

MOMENTS = "moments of Adam"


@dataclass(frozen=True)
class FedPmOptions:
    """Hyper-parameters of the released code; the gradient is the paper's."""

    constant: float = setting(
        math.e, "frozen weights are +-X / sqrt(fan-in); 1.414: Kaiming's", positive=True
    )
    clamp: float = setting(0.01, "a vote counts as 1 - X or X", ge=1e-6, le=0.49)
    reset_every: int = setting(1, "forget the votes of earlier rounds every N rounds", ge=1)
    scaled_gradient: bool = setting(False, "scale the gradient of a bit by its probability")
    keep_moments: bool = setting(False, "clients keep the moments of Adam between rounds")
    threshold: bool = setting(False, "test and serve all weights with p > 0.5, not a draw")
    levels: int = setting(0, "round probabilities to multiples of 1/N; 0: exact", le=1 << 20)


def random_bytes(stream: Stream, count: int) -> npt.NDArray[np.uint8]:
    """Return the next bytes of a stream."""
    return stream.words(-(-count // 8)).astype("<u8").view(np.uint8)[:count]


def frozen_weights(manifest: Manifest, seed: int, constant: float) -> Vector:
    """Return +-constant / sqrt(fan-in) for each masked weight, with a random sign."""
    weights = np.empty(manifest.num_masked, dtype=np.float32)
    for tensor, place in manifest.masked():
        words = random_bytes(Stream(seed, "frozen weights", tensor.name), -(-tensor.size // 8))
        signs = np.unpackbits(words, count=tensor.size).astype(np.float32) * 2 - 1
        fan_in = tensor.size // tensor.shape[0]
        weights[place] = signs * np.float32(constant / math.sqrt(fan_in))
    return weights


def first_levels() -> Vector:
    """Return sigmoid of the middles of 256 equally likely parts of N(0, 1), as multiples of 1/256.

    None is near the middle of two multiples, so every machine gets the same ones.
    """
    scores = normal((np.arange(256) + 0.5) / 256)
    return (np.rint(256 / (1 + np.exp(-scores))) / 256).astype(np.float32)


def probabilities(kept: Vector, dropped: Vector, clamp: float, levels: int) -> Vector:
    """Return the share of votes to keep each weight, where a vote counts as 1 - clamp or clamp.

    With levels, they are multiples of 1 / levels, but not 0 or 1.

    >>> votes = np.array([0, 5, 10], dtype=np.float32)
    >>> (256 * probabilities(votes, 10 - votes, clamp=0.01, levels=256)).tolist()
    [3.0, 128.0, 253.0]
    """
    shares = clamp + (1 - 2 * clamp) * (kept.astype(np.float64) / (kept + dropped))
    rounded = np.clip(np.rint(shares * levels), 1, levels - 1) / levels if levels > 1 else shares
    return rounded.astype(np.float32)


class FedPm(Rule):
    """Random weights, and the probabilities with which they are kept."""

    Options = FedPmOptions
    dense = needs_our_loop = True

    def check(self) -> None:
        lossy, other = self.settings.value_type != "float32", self.settings.optimizer != "sgd"
        if self.settings.norm == "batch" or lossy or other:
            raise SettingsError(
                "--strategy fedpm trains probabilities with its own Adam and sends masks: it needs "
                "--norm group and --value-type float32, and no --optimizer"
            )

    def begin(self, state: ModelState) -> ModelState:
        assert state.values is not None
        num_masked = state.manifest.num_masked
        drawn = random_bytes(Stream(self.settings.seed, "first scores"), num_masked)
        values = np.concatenate([first_levels()[drawn], state.values[num_masked:]])
        return replace(state, values=values)

    def plan(self, position: Position, clients: Sequence[ClientId]) -> Plan | None:
        plan = super().plan(position, clients)
        return plan and replace(plan, equal_weights=True)

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        return UploadParts(values=False, bits=True, bits_required=True)

    def finish(
        self, step: StepDone, state: ModelState, reduced: Reduced, uploads: Uploads
    ) -> ModelState:
        assert state.values is not None and reduced.votes is not None
        options, unmasked = self.options, state.values[state.manifest.num_masked :]
        kept = reduced.votes.astype(np.float32)
        dropped = reduced.total_weight - kept
        if step.round_number % options.reset_every:
            before = {name: v for name, v in state.extra.items() if not isinstance(v, Mask)}
            kept, dropped = kept + before["kept"], dropped + before["dropped"]
        p = probabilities(kept, dropped, options.clamp, options.levels)
        extra = {"kept": kept, "dropped": dropped} if options.reset_every > 1 else {}
        return replace(state, values=np.concatenate([p, unmasked]), extra=extra, change=None)

    def deployed(self, state: ModelState) -> ModelState:
        manifest, settings = state.manifest, self.settings
        assert state.values is not None
        p, unmasked = np.split(state.values, [manifest.num_masked])
        stream = Stream(settings.seed, "served mask", state.base_digest.hex())
        mask = Mask.from_bools(p > (0.5 if self.options.threshold else stream.uniform(p.size)))
        weights = frozen_weights(manifest, settings.seed, self.options.constant)
        values = mask.gather(np.concatenate([weights, unmasked]))
        return replace(state, mask=mask, values=values, change=None, first=None)

    def client(self) -> ClientHalf:
        from ssfl.learning.supermask import train_probabilities

        rule, options = self, self.options

        class Client(ClientHalf):
            def train(
                self, received: Received, site: SiteTools, memory: Memory, on_step: OnStep
            ) -> Answer:
                manifest, seed, base = site.manifest, site.settings.seed, received.values
                model = rule.deployed(ModelState(manifest, site.initial, received.mask, 1, base))
                assert model.mask is not None and model.values is not None
                tested = site.evaluate(model.mask, model.values)
                weights = frozen_weights(manifest, seed, options.constant)
                p, loss, moments = train_probabilities(
                    site.network, manifest, site.task, site.shard, site.settings,
                    received.round_number, site.client_id, on_step, base, weights,
                    memory.vector(MOMENTS) if options.keep_moments else None,
                    times_probability=options.scaled_gradient,
                )  # fmt: skip
                if options.keep_moments:
                    memory.put(MOMENTS, moments)

                uniform = site.stream("sent mask", received.round_number).uniform(p.size)
                sent = Mask.from_bools(uniform < p)
                values = sent.gather(np.concatenate([weights, base[p.size :]]))
                personal = site.evaluate(sent, values)
                return Answer(LocalResult(values, loss, tested, personal), sent)

        return Client()

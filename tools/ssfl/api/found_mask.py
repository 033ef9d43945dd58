"""`find_mask`: the mask on which clients agree, without training."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.api.data import Shards, by_client
from ssfl.api.errors import flags_as_keywords
from ssfl.api.keywords import Setting, run_settings
from ssfl.api.layers import Layers
from ssfl.api.quiet_torch import client_torch_settings
from ssfl.learning.load_task import IMAGE, load_task
from ssfl.method.errors import SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.strategies.contract import Work
from ssfl.simulator.federation import SimulatedFederation


@dataclass(frozen=True, eq=False, repr=False)
class FoundMask:
    """A mask and the scores it was made from.

    Attributes:
        mask: keeps the weights with the largest scores; `mask.bools()` has one bool per weight
        manifest: the model's tensors; `manifest.unflatten` gives a vector their names and shapes
        scores: (manifest.num_masked,) mean over clients, weighted by data size
        initial: (manifest.size,) the weights that were scored
    """

    mask: Mask
    manifest: Manifest
    scores: npt.NDArray[np.float32]
    initial: npt.NDArray[np.float32]

    def __repr__(self) -> str:
        return f"<FoundMask: {self.mask.num_kept:,} of {self.mask.size:,} weights kept>"

    @property
    def layers(self) -> Layers:
        """The number of kept weights of every masked tensor."""
        return Layers.of(self.mask.kept_by_tensor(self.manifest))


def find_mask(shards: Shards, *, task: str | Path = IMAGE, **settings: Setting) -> FoundMask:
    """Return the mask that a run on these shards agrees on before its first round.

    Every client scores its weights on one minibatch. The scores are encoded by the setting
    `scores` and averaged by data size; the largest over all layers are kept. Settings are those of
    `ssfl-coordinator`. The clients of a list are called shard_00, shard_01, …

    Examples:
        >>> from ssfl import api
        >>> found = api.find_mask(api.digits(clients=3), model="mlp", sparsity=0.9)
        >>> found.mask.num_kept, found.mask.size
        (5480, 54800)
        >>> dict(zip(found.layers.names, found.layers.size.tolist()))
        {'1.weight': 12800, '3.weight': 40000, '5.weight': 2000}
        >>> bool(found.scores[found.mask.bools()].min() >= found.scores[~found.mask.bools()].max())
        True
    """
    clients = by_client(shards)
    run = run_settings(settings, len(clients))
    if run.strategy == "fedavg":
        raise SettingsError("strategy fedavg keeps every weight: there is no mask to find")
    with flags_as_keywords(), client_torch_settings():
        federation = SimulatedFederation(load_task(str(task)), clients, run)
        assert federation.next_work is Work.SCORE
        federation.run_step()
    model, scores = federation.model, federation.scores
    assert model.mask is not None and scores is not None
    return FoundMask(model.mask, model.manifest, scores, model.initial)

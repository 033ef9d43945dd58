"""Shared fixtures of the server tests: one small model."""

from dataclasses import replace

import numpy as np
import pytest

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState


@pytest.fixture
def manifest() -> Manifest:
    """Six masked values in two tensors, two dense, one in a buffer."""
    return Manifest(
        (
            TensorSpec("conv.weight", (2, 2), Role.MASKED, Init("normal", 0.1)),
            TensorSpec("conv.bias", (2,), Role.DENSE, Init("zeros")),
            TensorSpec("norm.mean", (1,), Role.BUFFER, Init("ones")),
            TensorSpec("fc.weight", (2,), Role.MASKED, Init("uniform", 0.5)),
        ),
        {"name": "toy"},
    )


@pytest.fixture
def model(manifest: Manifest) -> ModelState:
    """The small model with three of its six masked values kept: 1, 3 and 4."""
    initial = initial_vector(manifest, seed=5)
    mask = Mask.from_bools(np.array([0, 1, 0, 1, 1, 0], dtype=np.bool_))
    return ModelState(manifest, initial, mask, 1, mask.gather(initial))


@pytest.fixture
def plain_manifest(manifest: Manifest) -> Manifest:
    """The same model without running statistics, which lossy values do not support."""
    tensors = (
        replace(t, role=Role.DENSE) if t.role is Role.BUFFER else t for t in manifest.tensors
    )
    return Manifest(tuple(tensors), manifest.model)

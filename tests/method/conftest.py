"""Fixture of the method's tests: a small model with tensors of every role."""

import pytest

from ssfl.method.manifest import Init, Manifest, Role, TensorSpec


@pytest.fixture
def manifest() -> Manifest:
    """Return ten masked values, two dense and two buffers; masked tensors are not adjacent."""
    return Manifest(
        (
            TensorSpec("conv.weight", (2, 3), Role.MASKED, Init("normal", 0.1)),
            TensorSpec("conv.bias", (2,), Role.DENSE, Init("zeros")),
            TensorSpec("norm.mean", (2,), Role.BUFFER, Init("ones")),
            TensorSpec("fc.weight", (2, 2), Role.MASKED, Init("uniform", 0.5)),
        ),
        {"name": "toy"},
    )

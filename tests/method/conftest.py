"""What the method's tests share: one small model with a tensor of every role and rule."""

import pytest

from ssfl.method.manifest import Init, Manifest, Role, TensorSpec


@pytest.fixture
def manifest() -> Manifest:
    """Ten masked values, two dense, two in a buffer; masked tensors are not side by side."""
    return Manifest(
        (
            TensorSpec("conv.weight", (2, 3), Role.MASKED, Init("normal", 0.1)),
            TensorSpec("conv.bias", (2,), Role.DENSE, Init("zeros")),
            TensorSpec("norm.mean", (2,), Role.BUFFER, Init("ones")),
            TensorSpec("fc.weight", (2, 2), Role.MASKED, Init("uniform", 0.5)),
        ),
        {"name": "toy"},
    )

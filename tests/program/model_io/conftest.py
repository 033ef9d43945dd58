"""The small model of the method's tests."""

from method.conftest import manifest

__all__ = ["manifest"]

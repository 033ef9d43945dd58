"""The walls around the package, seen from a fresh interpreter."""

import subprocess
import sys

import pytest


def imported_by(module: str) -> set[str]:
    """Return the top names that importing a module brings in."""
    code = f"import {module}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ["", ".errors", ".make_shards"])
def test_data_can_be_prepared_without_torch(name: str) -> None:
    assert not {"torch", "sklearn", "grpc"} & imported_by(f"ssfl.learning{name}")


def test_learning_knows_nothing_of_the_network() -> None:
    code = """
import pkgutil, sys, importlib, ssfl.learning
for module in pkgutil.iter_modules(ssfl.learning.__path__):
    importlib.import_module("ssfl.learning." + module.name)
walled = ("grpc", "ssfl.server", "ssfl.client", "ssfl.v1")
print([name for name in sys.modules if name.startswith(walled)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""The imports of the package, checked in a new interpreter."""

import subprocess
import sys


def test_learning_does_not_import_the_network() -> None:
    code = """
import pkgutil, sys, importlib, ssfl.learning
for module in pkgutil.iter_modules(ssfl.learning.__path__):
    importlib.import_module("ssfl.learning." + module.name)
walled = ("grpc", "ssfl.server", "ssfl.client", "ssfl.v1")
print([name for name in sys.modules if name.startswith(walled)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

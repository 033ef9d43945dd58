"""Files that a simulated crash leaves open are closed by the garbage collector, as intended."""

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _files_of_the_dead() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()

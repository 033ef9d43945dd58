import pytest
from system.raw_run import RawRun
pytestmark = pytest.mark.system
def test_honest(raw: RawRun) -> None:
    raw.training()
    raw.goes_on()

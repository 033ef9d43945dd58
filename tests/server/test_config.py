"""Settings of a coordinator that contradict each other are refused by their flags."""

import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings
from ssfl.server.config import CoordinatorConfig


@pytest.mark.parametrize("name", ["max_clients", "max_connections"])
def test_a_limit_below_the_number_of_clients_is_refused(name: str) -> None:
    run = RunSettings(clients=50)
    CoordinatorConfig(run=run, **{name: 50}).validate()  # type: ignore[arg-type]
    flag = "--" + name.replace("_", "-")
    with pytest.raises(SettingsError, match=rf"{flag} 49 is below --clients 50"):
        CoordinatorConfig(run=run, **{name: 49}).validate()  # type: ignore[arg-type]


def test_two_ports_cannot_be_the_same() -> None:
    with pytest.raises(SettingsError, match=r"--metrics-port.* must differ"):
        CoordinatorConfig(run=RunSettings(), port=50051, metrics_port=50051).validate()

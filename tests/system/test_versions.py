"""ssfl runs with the oldest gRPC and protobuf it declares, and with the newest.

Each set of versions has its own environment. The wire tests run in it, and its coordinator serves
clients that use the versions of the development environment.
"""

import os
import re
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from parts import ROOT, environment_part
from system.programs import Programs
from system.raw_client import RUN, RawClient, expected_values, sha256, take_part_together

pytestmark = pytest.mark.system


def oldest() -> list[str]:
    """Return the lowest versions that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [
        re.match(r"(grpcio[a-z-]*|protobuf)>=([\d.]+)", dependency)
        for dependency in project["dependencies"]
    ]
    return [f"{match[1]}=={match[2]}" for match in found if match]


def newest() -> list[str]:
    """Return the versions in tests/newest-grpc.txt."""
    lines = (ROOT / "tests" / "newest-grpc.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


VERSIONS = {"oldest": oldest(), "newest": newest()}


@pytest.fixture(scope="module", params=VERSIONS)
def commands(request: pytest.FixtureRequest) -> Path:
    """Return the script folder of an environment with one set of versions."""
    return environment_part(f"grpc-{request.param}", VERSIONS[request.param])


def run_python(commands: Path, *arguments: str) -> str:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command: Sequence[str] = [str(commands / "python"), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wire_tests_pass(commands: Path, request: pytest.FixtureRequest) -> None:
    names = "grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf"
    script = f"from importlib.metadata import version; print(*map(version, {names}))"
    found = run_python(commands, "-c", script).split()
    wanted = [pin.partition("==")[2] for pin in VERSIONS[request.node.callspec.params["commands"]]]
    assert [version.removesuffix(".0") for version in found] == [
        version.removesuffix(".0") for version in wanted
    ]
    # The JavaScript reader is the same with every version of these packages.
    without = "--ignore=tests/wire/test_javascript.py"
    output = run_python(
        commands, "-m", "pytest", "-q", "-p", "no:cacheprovider", without, "tests/wire"
    )
    assert " passed" in output


def test_a_federation_of_both_versions_has_the_expected_model(
    commands: Path, programs: Programs
) -> None:
    programs.scripts = commands
    coordinator = programs.coordinator(*RUN, "--exit-when-done")
    clients = [
        RawClient(coordinator.address, name, num_samples=samples)
        for name, samples in (("ann", 10), ("bob", 30))
    ]
    for client in clients:
        client.join()
    expected = expected_values(clients)
    for final in take_part_together(*clients):
        assert sha256(final.tobytes()) == sha256(expected.tobytes())
    for client in clients:
        client.close()
    assert coordinator.ends() == 0

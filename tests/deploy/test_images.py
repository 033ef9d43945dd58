"""Tests of the Dockerfile that need no image."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from datasets.small_shard import small_shard
from deploy.image import image
from deploy.kubectl import ROOT
from deploy.manifests import overlay, pod_of, workloads
from deploy.pods import free_port
from ssfl.datasets.shards.shard_file import write_shard
from ssfl.program.exits import ExitCode
from system.programs import SCRIPTS, Program, environment, until

TARGETS = ("coordinator", "client")


def is_healthy(target: str, port: int) -> bool:
    """Run the health check of an image, on another port."""
    command, *words = image(target).health
    assert command == "python"
    words = [re.sub(r"(?<='127\.0\.0\.1', )\d+", str(port), word) for word in words]
    return (
        subprocess.run([sys.executable, *words], capture_output=True, check=False).returncode == 0
    )


def started(target: str, folder: Path, *flags: str) -> Program:
    """Start the command of an image with its variables; /var/lib/ssfl and /data are in `folder`."""
    found = image(target)
    assert found.stop_signal == "SIGTERM"
    variables = {
        name: re.sub("^/(var/lib/ssfl|data)", str(folder), value)
        for name, value in found.environment.items()
    }
    (command,) = found.entrypoint
    return Program(target, [SCRIPTS / command, *flags], folder, environment() | variables)


@pytest.mark.system
def test_the_health_checks_pass_only_while_the_programs_work(tmp_path: Path) -> None:
    port, health, metrics = free_port(), free_port(), free_port()
    assert not is_healthy("coordinator", health)
    write_shard(tmp_path / "shard_00.npz", small_shard())
    programs = [
        started("coordinator", tmp_path, "--insecure", "--admin-port=0", f"--port={port}",
                f"--health-port={health}"),
        started("client", tmp_path, "--data=shard_0", f"--coordinator=localhost:{port}",
                f"--metrics-port={metrics}"),
    ]  # fmt: skip
    try:
        until(lambda: is_healthy("coordinator", health), "the coordinator is healthy")
        until(lambda: is_healthy("client", metrics), "the client is healthy")
        for program in reversed(programs):
            program.process.terminate()
            assert program.ends() == ExitCode.TERMINATED
        assert not is_healthy("client", metrics)
    finally:
        for program in programs:
            if program.running:
                program.kill()
            print(program.err)


@pytest.mark.parametrize("target", TARGETS)
def test_the_health_checks_use_the_ports_of_the_variables(target: str) -> None:
    found = image(target)
    name = {"coordinator": "SSFL_HEALTH_PORT", "client": "SSFL_METRICS_PORT"}[target]
    assert re.findall(r"'127\.0\.0\.1', (\d+)", " ".join(found.health)) == [found.environment[name]]
    assert found.user == "10001:10001"


def test_images_have_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.findall(r'image\.version="(.*)"', text) == [project]
    for name in ("production", "site"):
        for workload in workloads(overlay(name)):
            assert workload["metadata"]["labels"]["app.kubernetes.io/version"] == project
            for container in pod_of(workload)["containers"]:
                assert container["image"].endswith(f":{project}")


def test_every_package_of_the_wheel_is_in_the_build_context() -> None:
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignore
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {package.partition("/")[0] for package in packages}
    needed |= {"LICENSE", "README.md", "constraints.txt", "pyproject.toml"}
    assert {f"!{folder}" for folder in needed} == {line for line in ignore if line[0] == "!"}

"""compose.yaml and its mounts: fields, flags, folders and scrape targets."""

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy import compose_schema
from deploy.crds import Schema
from deploy.image import image
from deploy.kubectl import ROOT
from ssfl.client.config import ClientConfig, settings_elsewhere
from ssfl.program import settings
from ssfl.server.config import CoordinatorConfig, client_settings
from ssfl.tools.main import main

TARGETS = ("coordinator", "client")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
OURS = {
    name: service
    for name, service in COMPOSE["services"].items()
    if service["image"].startswith("ssfl-")
}
PROVISIONING = ROOT / "monitoring" / "grafana" / "provisioning"


def mounts(name: str) -> dict[str, str]:
    """Return the mounts of a container: sources by target."""
    service = COMPOSE["services"][name]
    pairs = [volume.split(":")[:2] for volume in service.get("volumes", [])]
    pairs += [(config["source"], config["target"]) for config in service.get("configs", [])]
    return {target: source for source, target in pairs}


def test_every_field_of_compose_is_known() -> None:
    jsonschema.validate(COMPOSE, compose_schema.COMPOSE)


@pytest.mark.parametrize(
    ("file", "schema"),
    [
        ("dashboards/ssfl.yml", compose_schema.PROVIDERS),
        ("datasources/prometheus.yml", compose_schema.DATASOURCES),
    ],
)
def test_every_field_of_the_grafana_provisioning_is_known(file: str, schema: Schema) -> None:
    jsonschema.validate(yaml.safe_load((PROVISIONING / file).read_text("utf-8")), schema)
    assert len(list(PROVISIONING.rglob("*.yml"))) == 2


@pytest.mark.parametrize("name", OURS)
def test_our_programs_write_only_to_mounts(name: str) -> None:
    assert OURS[name]["tmpfs"] == ["/tmp"]
    expected = {"shards": {"/data"}, "coordinator": {"/var/lib/ssfl"}}
    assert set(mounts(name)) == expected.get(name, {"/data", "/var/lib/ssfl"})
    assert image("client").environment["SSFL_DATA_ROOT"] == "/data"


def test_the_sample_data_command_works(tmp_path: Path) -> None:
    service = OURS["shards"]
    command, *words = service["entrypoint"]
    assert (command, words) == ("ssfl", ["shards"])
    words += [word.replace("/data", str(tmp_path)) for word in service["command"]]
    assert main(words) == 0
    made = {file.stem for file in tmp_path.glob("*.npz")}
    taken = {
        word.partition("=")[2]
        for name in OURS if name.startswith("client-") for word in OURS[name]["command"]
    }  # fmt: skip
    assert made == taken


def test_prometheus_and_grafana_find_their_files_where_they_are_mounted() -> None:
    found = mounts("prometheus")
    config = yaml.safe_load((ROOT / "monitoring" / "prometheus.yml").read_text("utf-8"))
    assert found["/etc/prometheus/prometheus.yml"] == "./monitoring/prometheus.yml"
    assert [f"/etc/prometheus/{name}" in found for name in config["rule_files"]] == [True]
    for job in config["scrape_configs"]:
        (pattern,) = job["file_sd_configs"][0]["files"]
        assert [target for target in found if fnmatch(target, f"/etc/prometheus/{pattern}")], (
            pattern
        )
    found = mounts("grafana")
    variables = COMPOSE["services"]["grafana"]["environment"]
    assert found[variables["SSFL_DASHBOARDS"]] == "./monitoring/dashboards"
    assert found["/etc/grafana/provisioning"] == "./monitoring/grafana/provisioning"
    used = {"${SSFL_DASHBOARDS}", "${PROMETHEUS_URL}"}
    texts = "".join(file.read_text("utf-8") for file in PROVISIONING.rglob("*.yml"))
    assert all(reference in texts and reference[2:-1] in variables for reference in used)
    host, _, port = variables["PROMETHEUS_URL"].removeprefix("http://").partition(":")
    assert host in COMPOSE["services"] and port == "9090"


@pytest.mark.parametrize("name", OURS)
def test_the_programs_accept_the_flags_of_compose(name: str) -> None:
    service = OURS[name]
    target = service["build"]["target"]
    assert target in TARGETS
    if "entrypoint" in service:
        return  # its command runs in the test above
    variables = image(target).environment | service.get("environment", {})
    if target == "coordinator":
        config = settings.load(
            CoordinatorConfig, service["command"], variables, name, "",
            known_elsewhere=client_settings(),
        )  # fmt: skip
        assert (config.host, config.metrics_host, config.status_host) == ("0.0.0.0",) * 3
    else:
        client = settings.load(
            ClientConfig, service["command"], variables, name, "",
            known_elsewhere=settings_elsewhere(),
        )  # fmt: skip
        assert client.metrics_host == "0.0.0.0"


def test_references_of_compose_resolve() -> None:
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert not service["image"].endswith(":latest")
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source[0] == "." else source in volumes, volume
        for config in service.get("configs", []):
            assert config["source"] in COMPOSE["configs"]
    for service in OURS.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


def test_prometheus_of_compose_scrapes_every_program() -> None:
    targets = [
        target
        for config in COMPOSE["configs"].values()
        for group in yaml.safe_load(config["content"])
        for target in group["targets"]
    ]
    expected = {
        f"{name}:{9464 if name == 'coordinator' else 9465}" for name in OURS if name != "shards"
    }
    assert set(targets) == expected
    assert "--metrics-port=9464" in OURS["coordinator"]["command"]
    assert image("client").environment["SSFL_METRICS_PORT"] == "9465"

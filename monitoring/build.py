"""Builds dashboards, a PrometheusRule and the tables of docs/monitoring.md.

    python -m monitoring.build                                # writes the files
    python -m monitoring.build --docs https://docs.example.org  # with links to your own docs

The built files are in the repository; a test fails if they are stale.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import yaml
from monitoring.expressions import RULES
from monitoring.panels import Json, dashboard
from monitoring.tables import filled_page

DOCS = "http://localhost:8000"  # `make docs-serve`
HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "monitoring.md"
_RUNBOOK = re.compile(r"(?<=runbook_url: )\S+(?=/operations\.html#)")
_HEAD = "# Built from rules.yml by `python -m monitoring.build`.\n"


def built(docs: str = DOCS) -> dict[Path, str]:
    """Return the content of each file; `docs`: address of the documentation."""
    rules = _RUNBOOK.sub(docs, RULES.read_text("utf-8"))
    tests = _RUNBOOK.sub(docs, (HERE / "rules_test.yml").read_text("utf-8"))
    files = {
        RULES: rules,
        HERE / "rules_test.yml": tests,
        PAGE: filled_page(PAGE.read_text("utf-8"), yaml.safe_load(rules)),
        HERE / "prometheus-rule.yaml": _HEAD + yaml.safe_dump(_rule_object(rules), sort_keys=False),
    }
    for source in sorted((HERE / "dashboards").glob("*.yaml")):
        text = json.dumps(dashboard(source), indent=2, ensure_ascii=False) + "\n"
        files[source.with_suffix(".json")] = text.replace(DOCS, docs)
    return files


def _rule_object(rules: str) -> Json:
    """Return rules.yml as a PrometheusRule object."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "ssfl",
            "labels": {"app.kubernetes.io/name": "ssfl", "app.kubernetes.io/part-of": "ssfl"},
        },
        "spec": {"groups": yaml.safe_load(rules)["groups"]},
    }


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="python -m monitoring.build", description=__doc__)
    parser.add_argument("--docs", default=DOCS, help="address of the documentation site")
    docs = parser.parse_args().docs.rstrip("/")
    try:
        files = built(docs)
    except ValueError as error:
        sys.exit(f"monitoring.build: error: {error}")
    for path, text in files.items():
        path.write_text(text, "utf-8")
        print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    main()

"""The tables of docs/monitoring.md, built from rules.yml and series.py."""

import re
from typing import Any

from ssfl.program.monitor import series


def filled_page(page: str, rules: dict[str, Any]) -> str:
    """Return the page with both tables filled in."""
    for name, table in (("alerts", _alerts(rules)), ("series", _series())):
        parts = re.split(rf"(?<=<!-- {name}: )(.*? -->\n)", page)
        if len(parts) != 3:
            raise ValueError(f"the page has {len(parts) // 2} places for {name}, not one")
        before, comment, rest = parts
        page = before + comment + table + rest[rest.index("<!-- end -->") :]
    return page


def _alerts(rules: dict[str, Any]) -> str:
    lines = ["| alert | severity | after | summary |", "|---|---|---|---|"]
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "alert" not in rule:
                continue
            name = rule["alert"]
            text = re.sub(
                r"\{\{ (?:or )?\$labels\.(\w+)[^}]* \}\}", r"`\1`", rule["annotations"]["summary"]
            )
            assert "{{" not in text, text
            link = f"[{name}](operations.md#{name.lower()})"
            severity = rule["labels"]["severity"]
            lines.append(f"| {link} | {severity} | {rule.get('for', 'at once')} | {text} |")
    return "\n" + "\n".join(lines) + "\n\n"


def _series() -> str:
    parts = []
    for heading, found in (("coordinator", series.COORDINATOR), ("client", series.CLIENT)):
        parts += [f"### Of a {heading}", "", "| series | kind | labels | meaning |"]
        parts.append("|---|---|---|---|")
        for entry in found:
            labels = ", ".join(f"`{label}`" for label in entry.labels)
            parts.append(f"| `{entry.shown}` | {entry.kind} | {labels} | {entry.text} |")
        parts.append("")
    return "\n" + "\n".join(parts) + "\n"

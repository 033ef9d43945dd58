"""A report as one self-contained HTML file with its data, style and script.

The data are JSON in a script element that browsers do not run. Characters that could end that
element, such as in a hostile client's name, are escaped. The script inserts text only as text. A
Content-Security-Policy allows only the style and the script with the right hashes.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

_ESCAPED = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#report">to the report</a>
<div id="report"><noscript><p>{title}: this report draws itself with the script inside this file;
allow it, or read report.json next to it.</p></noscript></div>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def page(title: str, document: Mapping[str, Any]) -> bytes:
    """Return the HTML file for the report document of one run or of two."""
    folder = files("ssfl.server") / "page"
    style = "\n".join((folder / name).read_text("utf-8") for name in ("style.css", "report.css"))
    scripts = ("charts.js", "report_parts.js", "report_compare.js", "report.js")
    script = "\n".join((folder / name).read_text("utf-8") for name in scripts)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(document, ensure_ascii=False, allow_nan=False).translate(_ESCAPED)
    filled = _PAGE.format(policy=policy, title=escape(title), style=style, data=data, script=script)
    return filled.encode()


def to_json(document: Mapping[str, Any]) -> bytes:
    """Return a report's document as a file."""
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

"""Makes links between files of the repository work on the built site, too.

Some files outside docs/ are pages of the site, too (GUESTS). A link to a file that
is not on the site becomes plain text. In `nav`, a folder stands for all its pages.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
GUESTS = (
    *("CONTRIBUTING.md", "CHANGELOG.md", "k8s/README.md"),
    *("benchmarks/README.md", "benchmarks/results/**/*.png"),
)
LINK = re.compile(r"\[([^\]]*)\]\((?!#|\w+:)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> None:
    """Replace each folder in `nav` by its pages."""
    config.nav = _expanded(config.nav)


def _expanded(nav: Any) -> Any:
    if isinstance(nav, list):
        return [_expanded(item) for item in nav]
    if isinstance(nav, dict):
        return {title: _expanded(item) for title, item in nav.items()}
    if nav.endswith("/"):
        return [f"{nav}{file.name}" for file in sorted((ROOT / "docs" / nav).glob("*.md"))]
    return nav


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the guests, each at its path in the repository."""
    for guest in (file for pattern in GUESTS for file in sorted(ROOT.glob(pattern))):
        name = guest.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(guest)))


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = page.file.src_uri
    on_disk = here if (ROOT / here).is_file() else f"docs/{here}"

    def turned(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(on_disk), target))
        name = "index.md" if path == "README.md" else path.removeprefix("docs/")
        if not (ROOT / path).exists():
            return link[0]  # left for mkdocs to complain about
        if files.get_file_from_path(name) is None:
            return text
        return f"[{text}]({posixpath.relpath(name, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(turned, markdown)

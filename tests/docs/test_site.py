"""The site builds without warnings, its links resolve, and it loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from markdown_it import MarkdownIt

from docs.pages import ROOT, pages

# Tags whose target the browser loads by itself.
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}


@dataclass
class PageLinks(HTMLParser):
    """The references of one page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.classes |= set(given.get("class", "").split())
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in LOADED and given.get(LOADED[tag]):
            self.loaded.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, PageLinks]:
    """Every page of the site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    found = {}
    for file in folder.rglob("*.html"):
        links = PageLinks()
        links.feed(file.read_text("utf-8"))
        found[file] = links
    return found


def is_elsewhere(target: str) -> bool:
    return re.match(r"(\w+:)?//|mailto:|data:", target) is not None


def test_every_page_of_the_repository_is_on_the_site(site: dict[Path, PageLinks]) -> None:
    home = min((file for file in site if file.name == "index.html"), key=lambda f: len(f.parts))
    docs = [page for page in pages() if page.startswith("docs/")]
    assert len(docs) > 5
    for page in docs:
        assert (home.parent / page.removeprefix("docs/")).with_suffix(".html") in site


def test_every_link_and_image_resolves(site: dict[Path, PageLinks]) -> None:
    broken = []
    for file, links in site.items():
        if file.name == "404.html":  # its links start at the root of the server
            continue
        for target in [*links.links, *links.loaded]:
            if is_elsewhere(target):
                continue
            path, anchor = urldefrag(unquote(target))
            there = (file.parent / path.partition("?")[0]).resolve() if path else file
            if there.is_dir():
                there /= "index.html"
            if not there.is_file():
                broken.append(f"{file.name}: {target}")
            elif anchor and there in site and anchor not in site[there].anchors:
                broken.append(f"{file.name}: {target} has no such place")
    assert sorted(set(broken)) == []


def test_links_out_of_docs_lead_to_included_pages_or_become_text(
    site: dict[Path, PageLinks],
) -> None:
    (plan,) = [links for file, links in site.items() if file.name == "plan.html"]
    assert "benchmarks/index.html#plan-and-run" in plan.links
    ((file, faq),) = [(file, links) for file, links in site.items() if file.name == "faq.html"]
    assert "CITATION.cff" in file.read_text("utf-8")
    assert [link for link in faq.links if "CITATION" in link] == []


def test_nothing_is_loaded_from_another_host(site: dict[Path, PageLinks]) -> None:
    assert [(file.name, target) for file, links in site.items() for target in links.loaded
            if is_elsewhere(target)] == []  # fmt: skip
    root = min(site, key=lambda file: len(file.parts)).parent
    styles = [file.read_text("utf-8") for file in root.rglob("*.css")]
    assert styles
    assert [
        text for text in styles if re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", text)
    ] == []
    # The theme would fetch the program that draws mermaid diagrams.
    assert [file.name for file, links in site.items() if "mermaid" in links.classes] == []


def test_the_reference_has_the_public_names(site: dict[Path, PageLinks]) -> None:
    anchors = set().union(*(links.anchors for links in site.values()))
    assert {
        "ssfl.api.simulate",
        "ssfl.learning.task.Task.build_model",
        "ssfl.datasets.shards.shard_file.Shard",
        "ssfl.datasets.shards.partition",
        "ssfl.method.settings.RunSettings",
        "ssfl.codec.contract.Encoding.encoded_bytes",
    } <= anchors


@pytest.mark.parametrize(
    "page", [*pages(), "benchmarks/README.md", *(f"docs/decisions/{file.name}" for file in
             sorted((ROOT / "docs" / "decisions").glob("*.md")))]
)  # fmt: skip
def test_links_to_files_of_the_repository_resolve(page: str) -> None:
    tokens = MarkdownIt().parse((ROOT / page).read_text("utf-8"))
    parts = [child for token in tokens for child in token.children or []]
    targets = [str(part.attrGet("href") or part.attrGet("src") or "") for part in parts]
    near = [urldefrag(unquote(target))[0] for target in targets if not is_elsewhere(target)]
    assert [path for path in near if not ((ROOT / page).parent / path).exists()] == []

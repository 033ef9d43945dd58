"""Reports in a real browser, opened from the file system: wide, dark, on a phone, on paper.

Screenshots are left in the test's folder.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ssfl.server.report.contents import write_report
from ssfl.tools.report.command import open_run, write_comparison
from ssfl.tools.report.compare import comparison_document
from system.browsing import Browser
from tools.report.report_fixtures import make_results, make_state, rewrite

pytestmark = pytest.mark.system

HOSTILE = '</script><img src=x onerror="document.title=1">'
UNFOLD = "document.querySelectorAll('details').forEach((element) => { element.open = true; })"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SECOND_CELLS = (
    "[...document.querySelectorAll(`{} tbody tr`)].map((row) => row.children[{}].textContent)"
)
CLIENTS = "[aria-label='Each client over the run']"
LOOKS: dict[str, dict[str, Any]] = {
    "wide": {"width": 1200},
    "dark": {"width": 1200, "scheme": "dark"},
    "phone": {"width": 360, "height": 740},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with hostile names of a client and of a layer."""
    folder = tmp_path_factory.mktemp("run")
    make_results(make_state(folder / "state"), folder / "r1" / "coordinator")
    rewrite(folder / "r1", _with_harm)
    return folder / "r1"


def _with_harm(history: dict[str, Any]) -> None:
    history["clients"][HOSTILE] = 5
    history["mask"]["layers"][HOSTILE] = {"kept": 1, "size": 2}
    history["num_void"] = 1
    for number, entry in enumerate(history["rounds"]):
        entry["missing"] = [HOSTILE]
        parts = ("broadcast", "training", "collection", "aggregation", "commit")
        entry["phases"] = {name: 0.1 * (number + k) for k, name in enumerate(parts)}
        for row in entry["clients"]:
            row.update(asked_s=0.0, sent_s=0.1, work_s=1.0, upload_s=0.5, received_s=2.0)


def look_at(browser: Browser, page: Path, look: str, picture: Path) -> None:
    """Open a page; fail on errors in the console, of axe, or in its width."""
    browser.do("open", url=page.as_uri(), **LOOKS[look])
    browser.do("text", selector="h1", fits=".")
    assert browser.do("evaluate", code=TOO_WIDE) == 0
    browser.do("shot", file=str(picture))
    browser.do("evaluate", code=UNFOLD)
    assert browser.do("axe") == []
    assert browser.do("messages") == []


@pytest.mark.parametrize("look", LOOKS)
def test_the_report_of_a_run_renders_without_errors(
    look: str, browser: Browser, run: Path, tmp_path: Path
) -> None:
    page = write_report(run / "coordinator")
    look_at(browser, page, look, tmp_path / f"report-{look}.png")
    title = browser.do("evaluate", code="document.title")
    assert title == "Run r1: finished all 3 rounds"
    assert browser.do("count", selector=".chart-plot svg") >= 8
    assert browser.do("count", selector=".pictures canvas") == 3
    assert browser.do("count", selector="img") == 0  # a hostile name would have made one
    facts = browser.do("text", selector="dl.facts")
    assert re.search(r"best model[0-9.]+ %after \d rounds, chosen on the \w+ data", facts)


def test_the_table_of_clients_sorts(browser: Browser, run: Path) -> None:
    browser.do("open", url=write_report(run / "coordinator").as_uri(), **LOOKS["wide"])
    missed = SECOND_CELLS.format(CLIENTS, 4)
    names = SECOND_CELLS.format(CLIENTS, 0)
    assert browser.do("evaluate", code=missed) == ["3", "0", "0", "0"]  # "<" comes first
    button = f"{CLIENTS} th:nth-child(5) button"
    browser.do("click", selector=button)
    assert browser.do("evaluate", code=names)[0] == HOSTILE
    browser.do("click", selector=button)
    assert browser.do("evaluate", code=names)[-1] == HOSTILE
    head = f"{CLIENTS} th:nth-child(5)"
    assert browser.do("attribute", selector=head, name="aria-sort") == "ascending"


def test_an_older_round_can_be_chosen(browser: Browser, run: Path) -> None:
    browser.do("open", url=write_report(run / "coordinator").as_uri(), **LOOKS["wide"])
    browser.do("select", selector="select", value="0")
    label = "[aria-label='Round 0: who did what when']"
    read = browser.do("attribute", selector=label, name="aria-valuetext")
    assert ", broadcast 100 ms, training 1 s, queue to upload 400 ms, upload 500 ms, wait" in read
    assert browser.do("messages") == []


@pytest.mark.parametrize("look", LOOKS)
def test_the_comparison_of_two_runs_renders_without_errors(
    look: str, browser: Browser, run: Path, tmp_path: Path
) -> None:
    page = tmp_path / "comparison.html"
    write_comparison(page, comparison_document(open_run(run), open_run(run.parent / "state")))
    look_at(browser, page, look, tmp_path / f"comparison-{look}.png")
    assert browser.do("text", selector="h1") == "A and B: two runs compared"


def test_dense_and_sparse_runs_have_fixed_colours_and_no_mask_card(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    def dense(history: dict[str, Any]) -> None:
        history["settings"]["strategy"] = "fedavg"

    copy_of(run, tmp_path, dense)
    sources = open_run(tmp_path / "r1"), open_run(run)
    page = tmp_path / "comparison.html"
    write_comparison(page, comparison_document(*sources, names=("dense", "ssfl")))
    look_at(browser, page, "wide", tmp_path / "dense.png")
    looks = (
        "[...document.querySelector('.chart-legend').querySelectorAll('li')].map((element) =>"
        " [element.textContent, element.querySelector('path').classList[1]])"
    )
    assert browser.do("evaluate", code=looks) == [["dense", "stroke-1"], ["ssfl", "stroke-0"]]
    titles = "[...document.querySelectorAll('h2')].map((element) => element.textContent)"
    assert "Masks" not in browser.do("evaluate", code=titles)


def copy_of(run: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write the report of a run with a changed history."""
    copied = folder / "r1"
    (copied / "coordinator").mkdir(parents=True)
    source = run / "coordinator" / "history.json"
    (copied / "coordinator" / "history.json").write_bytes(source.read_bytes())
    rewrite(copied, change)
    return write_report(copied / "coordinator")


@pytest.mark.parametrize("metrics", [{"mae": 0.25}, {}])
def test_a_task_without_accuracy_leaves_no_empty_card(
    metrics: dict[str, float], browser: Browser, run: Path, tmp_path: Path
) -> None:
    def without(history: dict[str, Any]) -> None:
        for entry in (*history["rounds"], *history["evaluations"]):
            entry.update(pooled=None, mean=None, metrics=metrics)

    page = copy_of(run, tmp_path, without)
    look_at(browser, page, "wide", tmp_path / "without.png")
    titles = "[...document.querySelectorAll('.card.half h2')].map((element) => element.textContent)"
    halves = browser.do("evaluate", code=titles)
    assert ("Test mae" in halves) == ("Test loss" in halves) == bool(metrics)
    assert len(halves) % 2 == 0


def test_captions_stay_visible_and_table_heads_align_on_a_phone(
    browser: Browser, run: Path
) -> None:
    browser.do("open", url=write_report(run / "coordinator").as_uri(), width=390, height=844)
    inside = ".table-scroll caption, .table-scroll .caption"
    assert browser.do("count", selector=inside) == 0
    assert browser.do("count", selector="p.caption") > 5
    ends = """[...document.querySelectorAll(`%s thead button`)].map((button) => {
      const range = document.createRange();
      range.selectNodeContents(button);
      return Math.round(range.getBoundingClientRect().bottom);
    })"""
    assert len(set(browser.do("evaluate", code=ends % CLIENTS))) == 1


def test_the_report_of_a_run_that_has_not_started_renders(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    def begun(history: dict[str, Any]) -> None:
        history.update(finished=False, rounds_done=0, best=None, ledger=[], mask=None)
        history.update(rounds=[], masks=[], evaluations=[])

    page = copy_of(run, tmp_path, begun)
    look_at(browser, page, "wide", tmp_path / "begun.png")
    assert "Nothing has been tested yet." in browser.do("text", selector="main")

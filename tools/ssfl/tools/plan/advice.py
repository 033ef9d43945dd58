"""Which method takes the fewest seconds on a user's link, from the runs of docs/when-to-use.md.

advice.json has their mean curves (budget.py); `python -m benchmarks.when_to_use_page` writes it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ssfl.comparison.comparison import METHODS
from ssfl.tools.plan.budget import Course, costs, courses_of
from ssfl.tools.plan.link import Link

ADVICE = METHODS.with_name("advice.json")
POINTS = (1, 5)
_DIGITS = 6


def advice_document(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the curves of the comparisons `sampled` and `all`, and the weights of their model."""
    return {
        part: {
            "weights": summary["runs"][0]["num_masked"],
            "courses": {
                name: _rounded(asdict(course)) for name, course in courses_of(summary).items()
            },
        }
        for part, summary in summaries.items()
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def advice(num_masked: int, link: Link, *, sampled: bool) -> Iterator[str]:
    """Yield the fastest method for each loss of accuracy; nothing if no curves are stored."""
    if not ADVICE.is_file():
        return
    part = json.loads(ADVICE.read_bytes())["sampled" if sampled else "all"]
    courses = {name: Course(**fields) for name, fields in part["courses"].items()}
    size, (yardstick, dense) = num_masked / part["weights"], next(iter(courses.items()))
    found = []
    for points in POINTS:
        seconds = costs(courses, link, size, dense.final - points / 100)
        if seconds:
            best = min(seconds, key=lambda name: seconds[name])
            usual = f"{seconds[yardstick] / seconds[best]:.1f} times as fast as {yardstick}"
            words = best if best == yardstick else f"{best}, {usual}"
            found.append(f"{points} point{'s' * (points > 1)}: {words}")
    yield (
        "Fastest on this link to come within some points of dense accuracy, if your curves are "
        f"like those of docs/when-to-use.md ({part['weights']:,} weights): {'; '.join(found)}."
    )

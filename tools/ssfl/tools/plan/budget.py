"""What methods reach with a budget of megabytes, or of seconds on a link.

The first method of a comparison is the yardstick. Curves are means over seeds. The seconds of a
round are those of a mean client: the download, the training and the upload, each client on its own
link (`plan/link.py`). Training takes the same time with every method: the CPU time of a
client-update of the yardstick, on one core. The scores of a mask are computed and uploaded before
its first round, all clients at once. Coding values, tests and the final delivery are not counted.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from ssfl.durable.files import write_atomic
from ssfl.study.costs import CURVE
from ssfl.study.intervals import mean_and_sd
from ssfl.study.outcome import final
from ssfl.study.result_tables import runs_by_name
from ssfl.study.tables import Cell, Number, Table, csv_text, markdown
from ssfl.tools.plan.link import Link, parse_link

LINKS: dict[str, Link | None] = {
    "loopback": None,
    "20 Mbit/s, 60 ms": parse_link("20mbit/60ms"),
    "5 Mbit/s, 150 ms": parse_link("5mbit/150ms"),
}
TARGET = 0.97  # of the final accuracy of the yardstick
MEASURE = "pooled"
POINTS = (0.5, 1, 2, 5)  # below the yardstick's final accuracy
SIZES = (1, 10, 100)  # times the weights of the compared model
FRAMING_BYTES = 250  # of the messages that carry a tensor
_MEGA = 1e-6


@dataclass(frozen=True)
class Course:
    """The mean curve of a method over its seeds."""

    rounds: Sequence[int]  # of the tests
    accuracy: Sequence[float]
    megabytes: Sequence[float]  # of training, all clients
    transfers: Sequence[Sequence[float]]  # of each round: bytes up, down and of scores
    final: float
    train_s: float  # of a client in a round
    score_s: float  # of a client, for a mask

    def reaches(self, accuracy: float) -> int | None:
        """Return the index of the first test with at least this accuracy; None: there is none."""
        return next((at for at, found in enumerate(self.accuracy) if found >= accuracy), None)

    def seconds(self, link: Link | None, size: float = 1) -> list[float]:
        """Return the seconds up to each test, for a model of `size` times the weights."""
        rounds = accumulate(self._round_s(link, [size * n for n in sent])
                            for sent in self.transfers)  # fmt: skip
        after = [0.0, *rounds]
        return [after[number] for number in self.rounds]

    def _round_s(self, link: Link | None, sent: Sequence[float]) -> float:
        scoring_s = self.score_s if sent[2] else 0.0
        if link is None:
            return scoring_s + self.train_s
        up, down, scores = (math.ceil(count) + FRAMING_BYTES for count in sent)
        if sent[2]:
            scoring_s += link.rtt_s + link.up_s(scores)
        return scoring_s + link.down_s(down) + self.train_s + link.up_s(up) + link.rtt_s / 2


def courses_of(summary: Mapping[str, Any]) -> dict[str, Course]:
    """Return the curve of each method that measured an accuracy; the yardstick is the first."""
    at = {name: CURVE.index(name) for name in ("rounds", "bytes", MEASURE)}
    found: dict[str, Course] = {}
    for name, runs in runs_by_name(summary).items():
        if any(not run["curve"] or run["curve"][-1][at[MEASURE]] is None for run in runs):
            continue
        curves = [run["curve"] for run in runs]
        found[name] = Course(
            [point[at["rounds"]] for point in curves[0]],
            [_mean([point[at[MEASURE]] for point in points])
             for points in zip(*curves, strict=True)],
            [_mean([point[at["bytes"]] for point in points]) * _MEGA
             for points in zip(*curves, strict=True)],
            [[_mean(counts) for counts in zip(*rounds, strict=True)]
             for rounds in zip(*(run["transfers"] for run in runs), strict=True)],
            _mean([final(run, MEASURE) for run in runs]),
            _train_s(next(iter(runs_by_name(summary).values()))),
            _mean([_score_s(run) for run in runs]),
        )  # fmt: skip
    return found


def _train_s(runs: Sequence[Mapping[str, Any]]) -> float:
    return _mean([run["cpu_seconds"] / run["client_updates"] for run in runs])


def _score_s(run: Mapping[str, Any]) -> float:
    """Return the seconds before the first round, in which every client scores, of one client."""
    seconds: float = run.get("before_seconds") or 0.0
    clients: int = run["spec"]["data"]["clients"]
    return seconds / clients


def _mean(values: Sequence[float]) -> float:
    return mean_and_sd(values)[0]


def write_budget(folder: Path, summary: Mapping[str, Any]) -> list[Table]:
    """Write the tables and, with matplotlib, accuracy by seconds on each link."""
    tables = budget_tables(summary)
    write_atomic(folder / "budget.md", markdown(tables).encode())
    for table in tables:
        write_atomic(folder / f"{table.name}.csv", csv_text(table).encode())
    if tables and find_spec("matplotlib"):
        _draw(folder, summary)
    return tables


def _draw(folder: Path, summary: Mapping[str, Any]) -> None:
    from ssfl.study.charts.accuracy import convergence_picture

    groups, at = runs_by_name(summary), CURVE.index(MEASURE)
    for name, link in LINKS.items():
        curves = {
            method: {
                "rounds": course.seconds(link),
                "seeds": [[point[at] for point in run["curve"]] for run in groups[method]],
            }
            for method, course in courses_of(summary).items()
        }
        drawn = {"title": f"{summary['title']}; {name}", "axis": "seconds", "logarithmic": True,
                 "accuracy": "accuracy of the global model", "curves": curves}  # fmt: skip
        convergence_picture(drawn, folder / curve_file(name))


def curve_file(link: str) -> str:
    """Return the name of a link's chart.

    >>> curve_file("20 Mbit/s, 60 ms")
    'curves-20-mbit-s-60-ms.png'
    """
    return f"curves-{'-'.join(re.findall(r'[a-z0-9]+', link.lower()))}.png"


def budget_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Return the cost of an accuracy, the accuracy at equal megabytes, and what to use."""
    courses = courses_of(summary)
    return [_to_target(courses), _at_megabytes(courses), _advice(courses)] if courses else []


def _to_target(courses: Mapping[str, Course]) -> Table:
    yardstick, best = next(iter(courses.items()))
    target = TARGET * best.final
    rows: list[list[Cell]] = []
    for name, course in courses.items():
        place = course.reaches(target)
        cells: list[Cell] = [name, Number(100 * course.final)]
        if place is None:
            rows.append([*cells, "not reached", *(None for _ in range(1 + len(LINKS)))])
            continue
        seconds = [course.seconds(link)[place] for link in LINKS.values()]
        rows.append(
            [*cells, Number(course.rounds[place], digits=0),
             Number(course.megabytes[place], digits=2), *(Number(s, digits=1) for s in seconds)]
        )  # fmt: skip
    columns = ["method", "final %", "rounds", "MB", *(f"s, {name}" for name in LINKS)]
    return Table(
        "to-target", f"To {100 * TARGET:g} % of the accuracy of {yardstick}", columns, rows,
        [f"The first test at which the mean over seeds reaches {100 * target:.1f} %. *MB*: all "
         "clients, both directions, scores and masks included. *s*: seconds on a link; training "
         f"takes {best.train_s:.2f} s of a round."],
    )  # fmt: skip


def _at_megabytes(courses: Mapping[str, Course]) -> Table:
    ends = sorted(course.megabytes[-1] for course in courses.values())
    places = _round_numbers(ends[0] / 4, ends[-1])
    rows: list[list[Cell]] = []
    for name, course in courses.items():
        cells: list[Cell] = [name]
        for place in places:
            tests = [a for mb, a in zip(course.megabytes, course.accuracy, strict=True)
                     if mb <= place]  # fmt: skip
            is_over = course.megabytes[-1] < place
            cells.append(Number(100 * tests[-1]) if tests and not is_over else None)
        rows.append(cells)
    return Table(
        "accuracy-at-megabytes", "Accuracy at equal megabytes",
        ["method", *(f"{place:g} MB" for place in places)], rows,
        ["Accuracy in %, mean over seeds, at the newest test. · : before the first test, or after "
         "the last round."],
    )  # fmt: skip


def _round_numbers(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two numbers.

    >>> _round_numbers(0.7, 12)
    [1, 2, 5, 10]
    """
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [n for ten in tens for n in (10**ten, 2 * 10**ten, 5 * 10**ten) if low <= n <= high]


def _advice(courses: Mapping[str, Course]) -> Table:
    best = next(iter(courses.values()))
    rows: list[list[Cell]] = [
        [link, f"x {size}", *(fastest(courses, LINKS[link], size, best.final - points / 100)
                              for points in POINTS)]
        for link in LINKS
        if LINKS[link]
        for size in SIZES
    ]  # fmt: skip
    return Table(
        "what-to-use", "What to use",
        ["link", "model", *(f"{n:g} point{'s' * (n != 1)}" for n in POINTS)], rows,
        ["The method that takes the fewest seconds to come within these points of the final "
         f"accuracy of {next(iter(courses))}. *model*: the bytes of a model with this many times "
         "the weights; curves and training time are those of the compared model."],
    )  # fmt: skip


def fastest(
    courses: Mapping[str, Course], link: Link | None, size: float, accuracy: float
) -> str | None:
    """Return the method that reaches an accuracy in the fewest seconds; None: none reaches it."""
    seconds = costs(courses, link, size, accuracy)
    return min(seconds, key=lambda name: seconds[name], default=None)


def costs(
    courses: Mapping[str, Course], link: Link | None, size: float, accuracy: float
) -> dict[str, float]:
    """Return the seconds on a link to reach an accuracy, by method that reaches it."""
    return {
        name: course.seconds(link, size)[place]
        for name, course in courses.items()
        if (place := course.reaches(accuracy)) is not None
    }

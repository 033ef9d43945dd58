"""Runs independent work in processes of one torch thread each, with progress bars.

Results come back in the order of the work and do not depend on the number of processes.
"""

import argparse
import multiprocessing
import os
import queue
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ssfl.learning.device import prepare_torch

Work = TypeVar("Work")
Result = TypeVar("Result")
Report = Callable[[int], None]

_reports: Any = None  # a worker's end of the queue of reports


def run_all(
    function: Callable[[Work, Report], Result],
    work: Sequence[Work],
    costs: Sequence[int],
    processes: int,
    title: str,
) -> list[Result]:
    """Return function(item, report) for every item of `work`.

    `costs` are roughly proportional to the time of each item; the most expensive start first. The
    function calls `report(units)` as units of its cost are done.
    """
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    reports = context.Queue()
    order = sorted(range(len(work)), key=lambda place: -costs[place])
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
               TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    with (
        ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(reports,)) as pool,
        Progress(*columns) as progress,
    ):
        shown = progress.add_task(title, total=sum(costs))
        futures: dict[int, Future[Result]] = {}
        for place in order:
            futures[place] = pool.submit(_call, function, work[place])
        pending = set(futures.values())
        try:
            while pending:
                with suppress(queue.Empty):
                    progress.advance(shown, reports.get(timeout=0.2))
                done = {future for future in pending if future.done()}
                for future in done:
                    future.result()  # raises the exception of the work
                pending -= done
                if done and not progress.console.is_terminal:
                    print(f"{title}: {len(work) - len(pending)} of {len(work)}", file=sys.stderr)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [futures[place].result() for place in range(len(work))]


def _begin(reports: Any) -> None:
    global _reports  # noqa: PLW0603 - set once per worker, by the initializer
    _reports = reports
    prepare_torch(1)


def _call(function: Callable[[Work, Report], Result], work: Work) -> Result:
    return function(work, _reports.put)


def add_processes_flag(parser: argparse.ArgumentParser) -> None:
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--processes", type=int, default=min(cores, 8), help="runs at a time (%(default)s)"
    )

"""Client halves of many clients that run together, so that their trainings form one batch.

Each half runs on a thread of its own, on a `JointSite`. A call of `train`, `evaluate` or `gradient`
waits until every other half has called, too, or has ended. Then the caller of `work_together`
serves all calls at once on its own thread. Results do not depend on the order of the threads.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from ssfl.client.local_work import OnStep, Site, Vector
from ssfl.learning.batches import steps_of
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.mask import Mask
from ssfl.method.streams import Stream
from ssfl.method.training_rules import TrainingRule
from ssfl.simulator.work import Effort
from ssfl.strategies.contract import ScoringRequest

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class TrainCall:
    """A call of `train`."""

    mask: Mask
    values: Vector
    round_number: int
    rules: Sequence[TrainingRule]
    epochs: range | None


@dataclass(frozen=True, eq=False)
class OtherCall:
    """A call that is served alone."""

    serve: Callable[[], Any]


Call = TrainCall | OtherCall
Ask = Callable[[Call], Any]


class _Stopped(BaseException):
    """Ends the thread of a half after another one has failed."""


class JointSite:
    """The site of one client, whose calls are served together with those of other clients."""

    def __init__(self, site: Site, ask: Ask) -> None:
        self._site = site
        self._ask = ask
        self.manifest, self.initial = site.manifest, site.initial
        self.settings, self.client_id = site.settings, site.client_id
        self.task, self.shard = site.task, site.shard
        self.network = None  # in use by all clients
        self._effort = Effort()
        self._began_s = time.thread_time()

    def train(
        self,
        mask: Mask,
        values: Vector,
        round_number: int,
        on_step: OnStep,  # noqa: ARG002  a simulated client reports no progress
        rules: Sequence[TrainingRule] = (),
        epochs: range | None = None,
    ) -> LocalResult:
        trained: LocalResult = self._ask(TrainCall(mask, values, round_number, rules, epochs))
        first, stop = steps_of(epochs, self.shard.num_samples, self.settings)
        self._effort.steps += stop - first
        self._effort.masked.append((stop - first, mask))
        return trained

    def evaluate(self, mask: Mask, values: Vector, split: str = "test") -> Evaluation:
        tested: Evaluation = self._ask(OtherCall(lambda: self._site.evaluate(mask, values, split)))
        return tested

    def gradient(self, mask: Mask, values: Vector, round_number: int) -> Vector:
        def serve() -> Vector:
            began_s = time.perf_counter()
            found = self._site.gradient(mask, values, round_number)
            self._effort.mask_seconds += time.perf_counter() - began_s
            return found

        gradient: Vector = self._ask(OtherCall(serve))
        return gradient

    def total_effort(self) -> Effort:
        """Return the work of this client; its mask work is that of its thread, and gradients."""
        self._effort.mask_seconds += time.thread_time() - self._began_s
        return self._effort

    def stream(self, purpose: str, round_number: int) -> Stream:
        return self._site.stream(purpose, round_number)

    def scoring_inputs(self, request: ScoringRequest) -> Any:
        raise NotImplementedError("a client half that can be stacked does not score")

    def resting_weights(self, request: ScoringRequest) -> Vector | None:
        raise NotImplementedError("a client half that can be stacked does not score")


@dataclass(frozen=True)
class _Ended:
    result: Any = None
    error: BaseException | None = None


def work_together(
    jobs: Sequence[Callable[[Ask], Result]],
    serve: Callable[[Mapping[int, Call]], Mapping[int, Any]],
) -> list[Result]:
    """Run all jobs; return their results in order, or raise the error of the first that failed.

    `serve` gets the calls by the number of their job, and returns their results.
    """
    asked: SimpleQueue[tuple[int, Call | _Ended]] = SimpleQueue()
    replies: list[SimpleQueue[Any]] = [SimpleQueue() for _ in jobs]

    def run(number: int) -> None:
        def ask(call: Call) -> Any:
            asked.put((number, call))
            reply = replies[number].get()
            if reply is _Stopped:
                raise _Stopped
            return reply

        try:
            asked.put((number, _Ended(jobs[number](ask))))
        except BaseException as error:  # noqa: BLE001  raised again by work_together
            asked.put((number, _Ended(error=error)))

    ended: dict[int, _Ended] = {}
    try:
        for number in range(len(jobs)):
            threading.Thread(target=run, args=(number,), daemon=True).start()
        while len(ended) < len(jobs):
            calls: dict[int, Call] = {}
            while len(calls) + len(ended) < len(jobs):
                number, said = asked.get()
                if isinstance(said, _Ended):
                    ended[number] = said
                else:
                    calls[number] = said
            for _, one in sorted(ended.items()):
                if one.error:
                    raise one.error
            for number, reply in serve(dict(sorted(calls.items()))).items():
                replies[number].put(reply)
    except BaseException:
        for queue in replies:
            queue.put(_Stopped)
        raise
    return [ended[number].result for number in range(len(jobs))]

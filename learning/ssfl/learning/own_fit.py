"""A task's own training loop, `fit(model, batches, settings)`, inside the mask.

Torch calls hooks around every step of every `torch.optim` optimizer, so the loop can be any: here
they mask gradients before a step and weights after it. Gradients are also masked as soon as
`backward` has computed them, so that a norm that the loop clips is that of the kept weights.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import Indices, batch_tensors
from ssfl.learning.errors import DivergedError, TaskError
from ssfl.learning.pruned_weights import Pruned, StepChange, force_zeros, mask_gradients
from ssfl.method.settings import RunSettings

Step = tuple[int, tuple[Indices, float]]  # its number from 1, its samples and its learning rate
Batch = tuple[Tensor, Tensor]
Fit = Callable[[nn.Module, "Batches", RunSettings], Any]


class Batches:
    """The batches of a round for a task's own loop: `for x, y in batches`.

    They are those of the built-in loop, in the same order, all epochs of the round in one pass.
    For a loop over epochs: `for epoch in batches.epochs(): for x, y in epoch`.
    """

    def __init__(
        self,
        shard: Shard,
        settings: RunSettings,
        round_number: int,
        model: nn.Module,
        steps: Iterable[Step],
        count: int,
    ) -> None:
        self.shard = shard  # for a loader of your own
        self.round_number = round_number  # from 0
        self.done = 0  # the number of the last batch in the round
        self._steps = iter(steps)
        self._first = next(self._steps, None)
        self.rate = self._first[1][1] if self._first else 0.0  # learning rate of the current batch
        self._count = count
        self._per_epoch = -(-shard.num_samples // settings.batch_size)
        self._model = model
        self._is_used = False

    def __len__(self) -> int:
        """Return the number of batches."""
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        """Yield x and y of each batch, on the model's device."""
        return self._read(self._all_steps())

    def epochs(self) -> Iterator[Iterator[Batch]]:
        """Yield the batches of each epoch; the last epoch may be shorter."""
        for _, steps in groupby(self._all_steps(), lambda step: (step[0] - 1) // self._per_epoch):
            yield self._read(steps)

    def _all_steps(self) -> Iterator[Step]:
        if self._is_used:
            raise TaskError(
                "batches has all epochs of the round in one pass, and can be read once: for a loop "
                "over epochs use `for epoch in batches.epochs()`"
            )
        self._is_used = True
        if self._first:
            yield self._first
        yield from self._steps

    def _read(self, steps: Iterable[Step]) -> Iterator[Batch]:
        for self.done, (indices, self.rate) in steps:
            yield batch_tensors(self.shard.train_x, self.shard.train_y, indices, self._model)


class StepHooks:
    """Calls `before` and `after` around every optimizer step on parameters of the model.

    Both get the optimizer and the ids of the model's parameters that it moves. Steps of other
    optimizers are ignored. If `before` reads gradients, a step with a closure is refused, because
    the closure computes them later.
    """

    def __init__(
        self,
        model: nn.Module,
        before: Callable[[set[int]], None],
        after: Callable[[Optimizer, set[int]], None],
        *,
        reads_gradients: bool,
    ) -> None:
        self._own = {id(parameter) for parameter in model.parameters()}
        self._before, self._after = before, after
        self._reads_gradients = reads_gradients
        self.num_steps = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the hooks; remove them at the end of the block."""
        with ExitStack() as stack:
            for handle in (
                register_optimizer_step_pre_hook(self._on_begin),
                register_optimizer_step_post_hook(self._on_end),
            ):
                stack.callback(handle.remove)
            yield

    def _moved(self, optimizer: Optimizer) -> set[int]:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        return self._own.intersection(map(id, parameters))

    def _on_begin(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if moved := self._moved(optimizer):
            if self._reads_gradients and (len(args) > 1 or kwargs.get("closure")):  # 1: itself
                raise TaskError(
                    "optimizer.step(closure) hides the gradients that scores and the run's "
                    "strategy need: call loss.backward() and then optimizer.step()"
                )
            self._before(moved)

    def _on_end(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if moved := self._moved(optimizer):
            self.num_steps += 1
            self._after(optimizer, moved)


def fit_round(
    fit: Fit,
    name: str,
    model: nn.Module,
    batches: Batches,
    settings: RunSettings,
    pruned: Pruned,
    changes: Sequence[StepChange],
    on_step: Callable[[int], None],
) -> float:
    """Call the own loop of the task with this name; return the mean loss that it returns.

    Raise TaskError if it took no step or replaced a parameter, DivergedError if the loss is not
    finite. What `on_step` raises leaves this function unchanged, whatever the loop does with it.
    """
    stopped: list[Exception] = []

    def before(moved: set[int]) -> None:
        for change in changes:
            change.before_step(moved)
        mask_gradients([pair for pair in pruned if id(pair[0]) in moved])

    def after(optimizer: Optimizer, moved: set[int]) -> None:
        for change in changes:
            for group in optimizer.param_groups:
                change.after_step(float(group["lr"]), moved & set(map(id, group["params"])))
        force_zeros(pruned)
        try:
            on_step(batches.done or min(hooks.num_steps, len(batches)))
        except Exception as error:
            stopped.append(error)
            raise

    hooks = StepHooks(model, before, after, reads_gradients=bool(changes))
    with same_parameters(model, name), _masked_backward(pruned), hooks.installed():
        try:
            loss = fit(model, batches, settings)
        except Exception:
            if stopped:
                raise stopped[0] from None
            raise
        if stopped:
            raise stopped[0]
    check_stepped(hooks, name)
    force_zeros(pruned)
    mean_loss = _number(loss, name)
    if not math.isfinite(mean_loss):
        raise DivergedError(f"the loss of fit is {mean_loss}", batches.round_number)
    return mean_loss


def check_stepped(hooks: StepHooks, name: str) -> None:
    """Raise TaskError if no optimizer moved the model."""
    if not hooks.num_steps:
        raise TaskError(
            f"task {name}: fit took no step: it must call the step of a torch.optim optimizer that "
            "has the parameters of the model it was given"
        )


def _number(loss: Any, name: str) -> float:
    try:
        return float(loss.detach() if isinstance(loss, Tensor) else loss)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(
            f"task {name}: fit must return the mean training loss, one number, "
            f"not {type(loss).__name__}"
        ) from error


@contextmanager
def same_parameters(model: nn.Module, name: str) -> Iterator[None]:
    """Raise TaskError if the block replaced a parameter or changed its type.

    At its end, drop all gradients, and thaw what the block froze.
    """
    before = dict(model.named_parameters())
    kinds = {key: (p.dtype, p.shape, p.requires_grad) for key, p in before.items()}
    try:
        yield
    finally:
        for key, parameter in before.items():
            parameter.grad = None
            parameter.requires_grad_(kinds[key][2])
    after = dict(model.named_parameters())
    for key in sorted(before.keys() | after.keys()):
        is_same = before.get(key) is after.get(key)
        if not is_same or (before[key].dtype, before[key].shape) != kinds[key][:2]:
            raise TaskError(
                f"task {name}: fit replaced the parameter {key}: it must train the parameters of "
                "the model it was given, in their own type and shape"
            )


@contextmanager
def _masked_backward(pruned: Pruned) -> Iterator[None]:
    """Mask gradients when they are computed."""

    def masking(kept: Tensor) -> Callable[[Tensor], None]:
        def mask(parameter: Tensor) -> None:
            if parameter.grad is not None:
                parameter.grad.mul_(kept)

        return mask

    with ExitStack() as stack:
        for parameter, kept in pruned:
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    masking(kept)
                )
                stack.callback(handle.remove)
        yield

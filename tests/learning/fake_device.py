"""An accelerator that is not there: what must hold on a GPU, tested where none exists.

Inside `with FakeDevice("cuda"):` a tensor that was moved to the device computes on the CPU, bit
for bit, but says that it lives on the GPU, and misuse raises what a real GPU raises:

- an operation on tensors of both places (CPU scalars and CPU indices are allowed, as there)
- `.numpy()` or `np.asarray()` of a tensor that was not brought back with `.cpu()`
- on `mps`: any float64 tensor

Where a tensor lives is remembered for its storage, so views and in-place operations keep it.
What this cannot show: that a GPU has a kernel for it, repeats its bits, or has the memory.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")
_aten = torch.ops.aten
_COPIES = (_aten.copy_.default, _aten._to_copy.default)  # from anywhere to anywhere
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)


class FakeDevice:
    """The one device of its type, as long as the `with` lasts."""

    def __init__(self, kind: str = "cuda") -> None:
        self.device = torch.device(kind, 0)
        self._places = _Places(self.device)
        self._operations = _Operations(self._places)
        self._stack = ExitStack()

    @property
    def operations(self) -> int:
        """How many operations ran on the device: to show that a test did not stay on the CPU."""
        return self._operations.count

    def __enter__(self) -> "FakeDevice":
        self._stack.enter_context(self._operations)
        self._stack.enter_context(_Functions(self._places))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


class _Places:
    """Which storages live on the device; all others are the CPU's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # A weak reference frees the values but keeps the address from being used again.
        self._there: dict[int, StorageWeakRef] = {}

    def of(self, tensor: Tensor) -> torch.device:
        return self.device if self.storage(tensor) in self._there else CPU

    def put(self, tensor: Tensor, place: torch.device) -> None:
        if place == CPU:
            self._there.pop(self.storage(tensor), None)
            return
        if place.type == "mps" and tensor.dtype == torch.float64:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't "
                "support float64. Please use float32 instead."
            )
        storage = tensor.untyped_storage()
        self._there[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def named(self, device: torch.device) -> torch.device:
        """Return the place that a device names, which may lack its index."""
        if device.type == "cpu":
            return CPU
        if device.type != self.device.type or device.index not in (None, 0):
            raise RuntimeError(f"there is no {device}, only {self.device}")
        return self.device

    def move(self, tensor: Tensor, place: torch.device) -> Tensor:
        """Return the tensor at `place`, itself if it is there; gradients travel back."""
        if self.of(tensor) == place:
            return tensor
        moved: Tensor = _Move.apply(tensor, self, place)  # type: ignore[no-untyped-call]
        return moved

    @staticmethod
    def storage(tensor: Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, places: _Places, place: torch.device) -> Tensor:
        ctx.places, ctx.source = places, places.of(tensor)
        moved = tensor.clone()
        places.put(moved, place)
        return moved

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.places.move(gradient, ctx.source), None, None


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation, those of the backward pass too: refuses mixtures, places results."""

    def __init__(self, places: _Places) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self._places = places

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        inputs = _tensors((args, kwargs))
        place = self._place(func, args, inputs)
        known = {self._places.storage(tensor) for tensor in inputs}
        result = func(*args, **kwargs or {})
        if place != CPU:
            self.count += 1
            for tensor in _tensors(result):
                if self._places.storage(tensor) not in known:
                    self._places.put(tensor, place)
        return result

    def _place(self, func: Any, args: tuple[Any, ...], inputs: list[Tensor]) -> torch.device:
        """Return where the operation runs."""
        if func in _COPIES:
            return self._places.of(inputs[0])
        strangers = [tensor for tensor in inputs if self._places.of(tensor) == CPU]
        if len(strangers) == len(inputs):
            return CPU
        allowed = {id(tensor) for tensor in strangers if tensor.ndim == 0}
        if func._schema.is_mutable:
            allowed.discard(id(inputs[0]))  # a scalar may be read from there, not written to
        if func in _INDEXED and self._places.of(inputs[0]) != CPU:
            allowed |= {id(tensor) for tensor in _tensors(args[1])}
        if any(id(tensor) not in allowed for tensor in strangers):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{self._places.device} and cpu! ({func})"
            )
        return self._places.device


class _Functions(TorchFunctionMode):
    """What Python asks of a tensor, or for a new one, before any operation runs."""

    def __init__(self, places: _Places) -> None:
        super().__init__()
        self._places = places
        self._special: dict[Any, Callable[..., Any]] = {
            _getter("device"): places.of,
            _getter("is_cpu"): lambda tensor: places.of(tensor) == CPU,
            _getter("is_cuda"): lambda tensor: places.of(tensor).type == "cuda",
            _getter("is_mps"): lambda tensor: places.of(tensor).type == "mps",
            Tensor.to: self._to,
            Tensor.cpu: lambda tensor: places.move(tensor, CPU),
            Tensor.cuda: lambda tensor: places.move(tensor, places.named(torch.device("cuda"))),
            Tensor.numpy: self._numpy,
            Tensor.__array__: self._array,
        }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in self._special:
            return self._special[func](*args, **kwargs)
        if kwargs.get("device") is None or func is torch.device:
            return func(*args, **kwargs)
        place = self._places.named(torch.device(kwargs["device"]))
        made = func(*args, **{**kwargs, "device": CPU})
        with torch.no_grad():
            return self._places.move(made, place).requires_grad_(made.requires_grad)

    def _to(self, tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        other = args[0] if args else kwargs.get("other")
        if isinstance(other, Tensor):
            device, dtype = self._places.of(other), other.dtype
        else:
            device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        moved = tensor.to(dtype or tensor.dtype, copy=copy)
        return self._places.move(moved, self._places.named(device)) if device else moved

    def _numpy(self, tensor: Tensor, **kwargs: Any) -> Any:
        self._refuse_numpy(tensor)
        return tensor.numpy(**kwargs)

    def _array(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        self._refuse_numpy(tensor)
        return tensor.__array__(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _refuse_numpy(self, tensor: Tensor) -> None:
        if (place := self._places.of(tensor)) != CPU:
            raise TypeError(
                f"can't convert {place} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _getter(name: str) -> Any:
    """Return what a function mode is handed when that attribute of a tensor is read."""
    return getattr(Tensor, name).__get__

"""A fake accelerator, to test code for GPUs without a GPU.

Inside `with FakeDevice("cuda"):` a tensor that was moved to the device is computed on the CPU, bit
for bit, but reports the GPU as its device. Misuse raises the errors of a real GPU:

- an operation on tensors of both devices (CPU scalars and CPU indices are allowed)
- `.numpy()` or `np.asarray()` of a tensor that was not moved back with `.cpu()`
- on `mps`: any float64 tensor

The device is recorded per storage, so that views and in-place operations keep it. This cannot
show that a GPU has a kernel, is deterministic, or has enough memory.
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
_COPIES = (_aten.copy_.default, _aten._to_copy.default)  # between any devices
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)


class FakeDevice:
    """The only device of its type inside the `with` block."""

    def __init__(self, kind: str = "cuda") -> None:
        self.device = torch.device(kind, 0)
        self._places = _Places(self.device)
        self._operations = _Operations(self._places)
        self._stack = ExitStack()

    @property
    def operations(self) -> int:
        """Number of operations on the device, to prove that a test used it."""
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
    """Records the storages on the device; all others are on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # A weak reference frees the values but prevents reuse of the address.
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
        """Return the place of a device, whose index may be missing."""
        if device.type == "cpu":
            return CPU
        if device.type != self.device.type or device.index not in (None, 0):
            raise RuntimeError(f"there is no {device}, only {self.device}")
        return self.device

    def move(self, tensor: Tensor, place: torch.device) -> Tensor:
        """Return the tensor at `place`, itself if it is already there; gradients flow back."""
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
    """Refuses operations on tensors of both devices and places results, also in backward."""

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
        """Return the device of the operation."""
        if func in _COPIES:
            return self._places.of(inputs[0])
        strangers = [tensor for tensor in inputs if self._places.of(tensor) == CPU]
        if len(strangers) == len(inputs):
            return CPU
        allowed = {id(tensor) for tensor in strangers if tensor.ndim == 0}
        if func._schema.is_mutable:
            allowed.discard(id(inputs[0]))  # a CPU scalar may be read but not written
        if func in _INDEXED and self._places.of(inputs[0]) != CPU:
            allowed |= {id(tensor) for tensor in _tensors(args[1])}
        if any(id(tensor) not in allowed for tensor in strangers):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{self._places.device} and cpu! ({func})"
            )
        return self._places.device


class _Functions(TorchFunctionMode):
    """Handles Python-level attributes, moves and constructors of tensors."""

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
    """Return the function that a function mode receives when the attribute is read."""
    return getattr(Tensor, name).__get__

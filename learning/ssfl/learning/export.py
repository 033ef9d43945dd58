"""Export of a model: an ONNX file, or torch tensors in sparse CSR form."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ssfl.learning.errors import ModelError
from ssfl.learning.evaluate import eval_mode
from ssfl.method.image_settings import constant_tensors
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask

OPSET = 18  # native to torch's exporter, so that nothing is converted
INPUT, OUTPUT, BATCH = "x", "y", "batch"
MAX_ONNX_BYTES = 2_000_000_000  # a protobuf message has at most 2 GiB
_PRIVATE = ("metadata_props", "doc_string")  # may hold stack traces with local paths


def to_csr(manifest: Manifest, mask: Mask, vector: npt.NDArray[np.float32]) -> dict[str, Any]:
    """Return {"tensors": tensors by name, "shapes": shapes of the sparse tensors}.

    A masked weight becomes a CSR matrix (out, in x kernel) with 32-bit indices. It holds exactly
    the kept values, including zeros. All other tensors, and the constants of the network, are
    unchanged.
    """
    arrays = constant_tensors(manifest.model) | manifest.unflatten(vector)
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    kept, shapes = mask.bools(), {}
    for spec, place in manifest.masked():
        shapes[spec.name] = spec.shape
        matrix = tensors[spec.name].reshape(spec.shape[0], -1)
        tensors[spec.name] = _csr(matrix, torch.from_numpy(kept[place]).reshape(matrix.shape))
    return {"tensors": tensors, "shapes": shapes}


def _csr(matrix: Tensor, kept: Tensor) -> Tensor:
    ends = kept.sum(dim=1).cumsum(dim=0)
    rows = torch.cat([torch.zeros(1, dtype=ends.dtype), ends])
    columns = kept.nonzero()[:, 1]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            rows.to(torch.int32),
            columns.to(torch.int32),
            matrix[kept],
            matrix.shape,
            check_invariants=True,
        )


def to_onnx(model: nn.Module, x: Tensor, metadata: Mapping[str, str]) -> bytes:
    """Return the network as an ONNX file: input `x`, output `y`, batches of any size.

    `x` is a batch of at least two samples. Raise ModelError if the network cannot be exported.
    """
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    if size > MAX_ONNX_BYTES:
        raise ModelError(f"an ONNX file holds at most 2 GB, the weights are {size / 1e9:.1f} GB")
    with eval_mode(model), torch.no_grad():
        output = _called(model, x)
        proto = _exported(model, x, [OUTPUT] if isinstance(output, Tensor) else None)
    batch = proto.graph.input[0].type.tensor_type.shape.dim[0]
    if batch.dim_param != BATCH:
        raise ModelError(
            f"the network cannot be exported to ONNX: it fixes the batch size to {len(x)}; "
            "keep the first dimension of x, for example x.reshape(len(x), -1)"
        )
    _remove_private(proto)
    for name, value in metadata.items():
        proto.metadata_props.add(key=name, value=value)
    return bytes(proto.SerializeToString(deterministic=True))


def _called(model: nn.Module, x: Tensor) -> Any:
    try:
        return model(x)
    except Exception as error:
        raise ModelError(
            f"the network cannot be called as model(x), which is what an ONNX file does: "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error


def _exported(model: nn.Module, x: Tensor, output_names: list[str] | None) -> Any:
    try:
        with _quiet():
            program = torch.onnx.export(
                model,
                (x,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=output_names,
                dynamic_shapes=({0: torch.export.Dim(BATCH)},),
            )
            assert program is not None  # None only from the older exporter
            return program.model_proto
    except Exception as error:
        raise ModelError(f"the network cannot be exported to ONNX: {_reason(error)}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's output, warnings and log."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                yield
    finally:
        logging.disable(level)


def _reason(error: BaseException) -> str:
    """Return the missing ONNX operator, the line at fault, or the first cause, as one sentence."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    if found := re.search(r"No ONNX function found for <OpOverload\(op='([\w.:]+)'", text):
        return f"there is no ONNX operator for {found[1]}"
    if "data-dependent" in text:
        line = re.search(r'raised this error:\n\s+File "(.*?)", line (\d+)', text)
        where = f" ({line[1]}, line {line[2]})" if line else ""
        return f"its control flow depends on computed values{where}"
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def _remove_private(message: Any) -> None:
    """Remove fields that may describe this machine from a protobuf message, recursively."""
    for field, value in message.ListFields():
        if field.name in _PRIVATE:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                _remove_private(inner)

"""Explanations of errors inside a task: the batch, and the meaning of torch's message."""

import re

from torch import Tensor

from ssfl.method.manifest import format_shape

_MEANINGS = {
    r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)": (
        "a linear layer was built for {2} inputs and got {1} for each of {0} rows"
    ),
    r"Target (-?\d+) is out of bounds": (
        "label {0} is not below the number of the model's outputs: labels count from 0, and the "
        "last layer needs one output per class"
    ),
    r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)": (
        "the model returns {0} rows for {1} targets: it must keep the first dimension of x"
    ),
    r"Using a target size .*torch.Size\((.*?)\).* the input size .*torch.Size\((.*?)\)": (
        "the loss would broadcast outputs {1} and targets {0}: give both the same shape, for "
        "example model(x).squeeze(1)"
    ),
    (
        r"expected scalar type Long|expected target dtype|0D or 1D target tensor expected"
        r"|nll_loss\w*\"? not implemented for '\w+'"
        r"|expected floating point type for target with class probabilities"
    ): (
        "cross-entropy wants y as int64 class numbers, one per sample: y.astype(np.int64) in "
        "load_shard"
    ),
    r"Expected more than 1 value per channel": (
        "BatchNorm cannot normalise a batch of one sample: choose a --batch-size that leaves no "
        "single sample over, or use GroupNorm or LayerNorm"
    ),
    r"(?:same dtype|Input type|expected scalar type|should be the same)": (
        "inputs and weights have different types: make x float32 in load_shard, "
        "x.astype(np.float32)"
    ),
}


def explain(error: BaseException, x: Tensor, y: Tensor) -> str:
    """Return lines to append to an error that a task raised with this batch."""
    lines = [f"the batch: x {describe_tensor(x)}, y {describe_tensor(y)}"]
    for pattern, meaning in _MEANINGS.items():
        if found := re.search(pattern, str(error)):
            lines.append("that is: " + meaning.format(*found.groups()))
            break
    return "\n".join(lines)


def describe_tensor(tensor: Tensor) -> str:
    """Return a tensor's type, shape and range."""
    kind = str(tensor.dtype).removeprefix("torch.")
    shape = format_shape(tensor.shape)
    if not tensor.numel() or tensor.is_complex():
        return f"{kind} {shape}"
    low, high = tensor.min().item(), tensor.max().item()
    return f"{kind} {shape} from {low:g} to {high:g}"

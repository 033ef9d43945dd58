"""Initial weights from a seed, bit for bit the same on every machine.

Each tensor draws from its own stream, keyed by (seed, tensor name). Both ends of a federation
build the same weights, so nothing has to be sent. Normal deviates come from the inverse normal
distribution function (Wichura 1988, algorithm AS 241, relative error about 1e-16). It uses only
+, -, *, / and square root, which IEEE 754 rounds correctly, while a library's log or cos may
differ between machines.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest, TensorSpec
from ssfl.method.streams import Stream

Doubles = npt.NDArray[np.float64]

# AS 241 (PPND16): numerator and denominator of the three rational approximations, constant first.
_CENTRE = (
    (3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3,
     1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
     3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
     5.2264952788528545610e3),
)  # fmt: skip
_MIDDLE = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550,
     3.64784832476320460504, 1.27045825245236838258, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
     1.05075007164441684324e-9),
)  # fmt: skip
_TAIL = (
    (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580,
     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15),
)  # fmt: skip
_LN2 = 0.6931471805599453
_BLOCK = 1 << 16  # values at a time, so that temporaries stay in cache


def initial_vector(
    manifest: Manifest,
    seed: int,
    check: Callable[[], object] = lambda: None,
    sent: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """Return the flat initial vector; tensors with rule `sent` are zero, or those of `sent`.

    `check` is called before every block of values and may raise to abort.
    """
    vector = np.zeros(manifest.size, dtype=np.float32)
    for tensor in manifest.tensors:
        place = manifest.slices[tensor.name]
        if sent is not None and tensor.init.rule == "sent":
            vector[place] = sent[place]
        _fill(vector[place], tensor, seed, check)
    return vector


def _fill(
    out: npt.NDArray[np.float32], tensor: TensorSpec, seed: int, check: Callable[[], object]
) -> None:
    stream = Stream(seed, "initial", tensor.name)
    scale = np.float64(tensor.init.scale)
    for start in range(0, out.size, _BLOCK):
        check()
        block = out[start : start + _BLOCK]
        match tensor.init.rule:
            case "ones":
                block[:] = 1.0
            case "normal":
                block[:] = normal(stream.uniform(block.size)) * scale
            case "uniform":
                block[:] = (stream.uniform(block.size) * 2.0 - 1.0) * scale


def normal(probability: Doubles) -> Doubles:
    """Return the standard normal quantiles of probabilities inside (0, 1).

    >>> normal(np.array([0.5, 0.975])).round(6).tolist()
    [0.0, 1.959964]
    """
    q = probability - 0.5
    out = q * _ratio(_CENTRE, 0.180625 - q * q)
    outside = np.flatnonzero(np.abs(q) > 0.425)
    p, sign = probability[outside], np.where(q[outside] < 0, -1.0, 1.0)
    r = np.sqrt(-_log(np.where(sign < 0, p, 1.0 - p)))
    out[outside] = sign * np.where(r <= 5.0, _ratio(_MIDDLE, r - 1.6), _ratio(_TAIL, r - 5.0))
    return out


def _ratio(terms: tuple[tuple[float, ...], tuple[float, ...]], x: Doubles) -> Doubles:
    top, bottom = (np.full_like(x, coefficients[-1]) for coefficients in terms)
    for a, b in zip(terms[0][-2::-1], terms[1][-2::-1], strict=True):
        top *= x  # in place: a third faster than with new arrays, same bits
        top += a
        bottom *= x
        bottom += b
    top /= bottom
    return top


def _log(x: Doubles) -> Doubles:
    """Return the natural logarithm, by exact scaling and the series of 2 artanh((m-1)/(m+1))."""
    mantissa, exponent = np.frexp(x)  # x = mantissa * 2^exponent, mantissa in [0.5, 1)
    z = (mantissa - 0.75) / (mantissa + 0.75)  # |z| <= 0.2
    square, total = z * z, np.zeros_like(z)
    for k in range(25, 0, -2):
        total = total * square + 1.0 / k
    return 2.0 * z * total + exponent * _LN2 - 0.2876820724517809  # ln(4/3)

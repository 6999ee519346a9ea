"""Tools of a check: random numbers, and comparisons with predictions."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core.verdict import STANDARD_ERRORS, Comparison, Trend
from headscope.errors import NumericsError

_ROUNDING = 1e-9
Number = float | int


@dataclass(frozen=True)
class Lab:
    """Random numbers that depend on the seed and the claim's id alone.

    Other claims of the same run change nothing.
    """

    seed: int
    name: str = ""

    def generator(self, purpose: str = "") -> torch.Generator:
        """A generator for each purpose."""
        digest = hashlib.sha256(f"{self.seed}/{self.name}/{purpose}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

    def normal(self, *shape: int, purpose: str = "") -> Float[Tensor, "..."]:
        """Independent standard normal numbers, float64."""
        return torch.randn(*shape, generator=self.generator(f"normal {purpose}"), dtype=torch.float64)

    def uniform(self, *shape: int, purpose: str = "") -> Float[Tensor, "..."]:
        """Independent numbers uniform on [0, 1), float64."""
        return torch.rand(*shape, generator=self.generator(f"uniform {purpose}"), dtype=torch.float64)


def mean_of(quantity: str, predicted: float, samples: Float[Tensor, "..."]) -> Comparison:
    """Compares the mean of independent samples with its prediction.

    The error is the standard error of the mean.
    """
    flat = _flat(samples)
    return Comparison(quantity, float(predicted), float(flat.mean()), float(flat.std() / len(flat) ** 0.5))


def variance_of(quantity: str, predicted: float, samples: Float[Tensor, "..."]) -> Comparison:
    """Compares the variance of independent samples with its prediction.

    The error comes from the fourth moment.
    """
    flat = _flat(samples)
    centred = flat - flat.mean()
    second, fourth = float(centred.square().mean()), float(centred.pow(4).mean())
    n = len(flat)
    return Comparison(quantity, float(predicted), second * n / (n - 1), (max(fourth - second**2, 0.0) / n) ** 0.5)


def exact(quantity: str, predicted: float | Tensor, measured: float | Tensor, scale: float = 1.0) -> Comparison:
    """Compares two numbers, or the worst pair of two tensors, up to rounding.

    The tolerance is relative to their size.

    Of the pairs that are at least half as far apart as the farthest one, the worst is that with the largest gap
    relative to its own size.
    """
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (predicted, measured))
    a, b = a + torch.zeros_like(b), b + torch.zeros_like(a)
    size = max(float(a.abs().max()), float(b.abs().max()), 1e-300) * scale
    gap = (a - b).abs()
    relative = gap / torch.maximum(a.abs(), b.abs()).clamp_min(1e-300)
    worst = int(torch.where(gap >= gap.max() / 2, relative, -1.0).argmax())
    return Comparison(quantity, float(a.reshape(-1)[worst]), float(b.reshape(-1)[worst]), _ROUNDING * size)


def fact(statement: str, is_so: bool) -> Comparison:
    """A yes-or-no question: predicted 1 (yes), measured 1 or 0."""
    return Comparison(statement, 1.0, float(is_so), 0.0, "is")


def counted(quantity: str, predicted: Number, measured: Number) -> Comparison:
    """Compares two counts, which must be equal."""
    return Comparison(quantity, float(predicted), float(measured), 0.0)


def rounded(quantity: str, printed: str, measured: float) -> Comparison:
    """Compares a printed number with the full one.

    It may be off by half a unit of its last significant digit.

    Zeros at the end of a whole number are not significant: 340 means 335 to 345, 1.50 means 1.495 to 1.505.
    """
    is_integer = "." not in printed
    digits = printed.rstrip("0") if is_integer else printed
    unit = 10.0 ** (len(printed) - len(digits)) if is_integer else 10.0 ** -len(printed.split(".")[1])
    return Comparison(quantity, float(printed), float(measured), 0.0, tolerance=unit / 2)


def more_than(quantity: str, border: Number, measured: Number, error: Number) -> Comparison:
    """A number that must lie above the border by more than its error."""
    return Comparison(quantity, float(border), float(measured), float(error), ">")


def less_than(quantity: str, border: Number, measured: Number, error: Number) -> Comparison:
    """A number that must lie below the border by more than its error."""
    return Comparison(quantity, float(border), float(measured), float(error), "<")


def trend_of(
    quantity: str,
    parameter: str,
    values: Sequence[Number],
    errors: Sequence[Number],
    order: float,
    spreads: Sequence[Number] | None = None,
) -> Trend:
    """Compares the relative errors at these values with the stated order."""
    standard_errors = spreads or [0.0] * len(values)
    return Trend(quantity, parameter, _floats(values), _floats(errors), _floats(standard_errors), order)


def _floats(numbers: Sequence[Number]) -> tuple[float, ...]:
    return tuple(float(number) for number in numbers)


def order_of(
    quantity: str, parameter: str, stated: float, values: Sequence[Number], sizes: Sequence[Number]
) -> Comparison:
    """Compares the power of the parameter in computed sizes with the stated one.

    The steps between the sizes give the error.

    A fifth of the uncertainty of the last step's order is the error, so that the whole of it counts.
    """
    steps = trend_of(quantity, parameter, values, sizes, stated)
    return Comparison(quantity, float(stated), steps.fitted, max(steps.uncertainty, _ROUNDING) / STANDARD_ERRORS)


def _flat(samples: Tensor) -> Tensor:
    flat = samples.reshape(-1).to(torch.float64)
    if len(flat) < 2:
        raise NumericsError(f"a standard error needs at least 2 samples, got {len(flat)}")
    return flat

r"""Traces channels of q, k and v to the rows that produced them, by random codes.

Every linear module of the model returns random numbers instead of $x W^\top + b$; at the attention
call each channel of q, k and v is then a multiple of the code of exactly one row of one module. Codes are
$c_{sr} = m_s\,\epsilon_{sr}$ over samples s and rows r with $\epsilon$ Gaussian and a random magnitude $m_s$
per sample: a channel that is a fixed multiple of its code was scaled; one that follows only its signs was
normalised.

Nothing is multiplied, so this works on a model without weights (the meta device) as well as on a real one.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscope.model.tracing.linear_modules import is_linear, out_features

SMALL = 1 / 32  # size of codes: below every limit that families put on queries, keys and values
SIGNATURE_BITS = 62  # samples used to recognise a code: two of them agree by chance with probability 2^-61


@dataclass(frozen=True)
class CodedCall:
    """One call of a linear module: its input and its code, samples × channels."""

    module: str
    read: Float[Tensor, "samples in"]
    code: Float[Tensor, "samples out"]
    dtype: torch.dtype = torch.float32  # the dtype of the model; codes are kept in float32


@dataclass(frozen=True)
class Trace:
    """The row of `call` for each channel, the factor in each sample, and what is added afterwards."""

    call: CodedCall
    row: Int[Tensor, " channels"]
    ratio: Float[Tensor, "samples channels"]
    shift: Float[Tensor, " channels"] | None = None

    def gain(self) -> Float[Tensor, " channels"] | None:
        """The factor of each channel, where it is the same in every sample.

        None where a channel was not merely scaled. Magnitudes differ by up to a factor of four between samples, so a
        normalisation is far outside the tolerance, which only has to cover the rounding of the model's own dtype.
        """
        kind = torch.finfo(self.call.dtype)
        tolerance = max(1e-4, 8 * kind.eps)
        median = self.ratio.median(dim=0).values
        # The smallest numbers of a dtype lie on a grid, and are rounded to it.
        grid = 2 * kind.smallest_normal * kind.eps / self.call.code[:, self.row].abs()
        steady = (self.ratio - median).abs() <= tolerance * median.abs() + grid
        return median if bool(steady.all()) else None


@contextmanager
def coded(model: nn.Module, note: Callable[[CodedCall], None], *, seed: int = 0, size: float = SMALL) -> Iterator[None]:
    """Let every linear module return codes and report each call to `note`.

    The model is as before on exit. `size` is the standard deviation of a code, up to a factor between 1/2 and 2.
    """
    generator = torch.Generator().manual_seed(seed)
    with ExitStack() as undo:
        for name, module in model.named_modules():
            if is_linear(module):
                patch(module, _CodedForward(name, out_features(module), note, generator, size), undo)
        yield


def patch(module: nn.Module, forward: Callable[..., Any], undo: ExitStack) -> None:
    """Replace the forward of a module until `undo` closes."""
    undo.callback(_set_forward, module, module.__dict__.get("forward"))
    _set_forward(module, forward)


def _set_forward(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    """Give a module a forward of its own; None leaves it that of its class."""
    if forward is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = forward


def trace(call: CodedCall, channels: Float[Tensor, "samples channels"]) -> Trace | None:
    """The rows of `call` for these channels; None unless every channel has one."""
    if call.code.shape[0] != channels.shape[0]:
        return None
    order = signature(call.code).sort()
    signatures = signature(channels)
    place = torch.searchsorted(order.values, signatures).clamp_max(len(order.values) - 1)
    if not torch.equal(order.values[place], signatures):
        return None
    row = order.indices[place]
    return Trace(call, row, channels / call.code[:, row])


def trace_shifted(call: CodedCall, channels: Float[Tensor, "samples channels"]) -> Trace | None:
    """The rows of `call` for channels to which constants are added; None unless every channel has one.

    A family may keep a bias outside its projection. It is the same in every sample, so the difference between a
    channel and its mean over samples is a fixed multiple of that of its code. Signs of small differences are lost in
    rounding: rows are recognised by correlation.
    """
    if call.code.shape[0] != channels.shape[0]:
        return None
    code, moved = (values.double() - values.double().mean(dim=0) for values in (call.code, channels))
    row = _most_correlated(moved, code)
    if row is None:
        return None
    gain = (moved * code[:, row]).sum(dim=0) / code[:, row].square().sum(dim=0)
    shift = channels.double().mean(dim=0) - gain * call.code[:, row].double().mean(dim=0)
    left_over = (moved - gain * code[:, row]).abs()
    kind = torch.finfo(call.dtype)
    tolerance = max(1e-4, 8 * kind.eps) * gain.abs() * code[:, row].abs().amax(dim=0) + 4 * kind.eps * shift.abs()
    if not bool((left_over <= tolerance).all()):
        return None
    return Trace(call, row, gain.float().repeat(len(channels), 1), shift.float())


def _most_correlated(
    channels: Float[Tensor, "samples channels"], codes: Float[Tensor, "samples rows"]
) -> Int[Tensor, " channels"] | None:
    """The code of each channel; None where one has no code that it follows."""
    units = [values / values.norm(dim=0).clamp_min(torch.finfo(values.dtype).tiny) for values in (channels, codes)]
    rows = []
    for part in units[0].split(1024, dim=1):  # a whole table of correlations may be large
        best = (part.T @ units[1]).abs().max(dim=1)
        if not bool((best.values > 0.99).all()):
            return None
        rows.append(best.indices)
    return torch.cat(rows)


def signature(channels: Float[Tensor, "samples channels"]) -> Int[Tensor, " channels"]:
    """The signs of a channel over the first samples as an integer, up to one sign."""
    signs = channels[:SIGNATURE_BITS] > 0
    agree = (signs == signs[:1]).to(torch.int64)
    powers = (1 << torch.arange(agree.shape[0], dtype=torch.int64))[:, None]
    return (agree * powers).sum(dim=0)


def nonzero(code: Tensor) -> Tensor:
    """The code without zeros, so that it can be divided by.

    Zeros turn up among millions of random numbers.
    """
    return torch.where(code == 0, torch.ones((), dtype=code.dtype), code)


def channels_of(states: Float[Tensor, "batch heads positions width"]) -> Float[Tensor, "samples channels"]:
    """Queries, keys or values as samples × channels on the CPU.

    There is one sample per sequence and position.
    """
    batch, heads, positions, width = states.shape
    return states.float().cpu().transpose(1, 2).reshape(batch * positions, heads * width)


@dataclass(frozen=True)
class _CodedForward:
    """Returns codes in place of what a linear module computes."""

    name: str
    width: int
    note: Callable[[CodedCall], None]
    generator: torch.Generator
    size: float

    def __call__(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        samples = x.shape[:-1].numel()
        code = nonzero(torch.randn(samples, self.width, generator=self.generator))
        code *= self.size * (torch.rand(samples, 1, generator=self.generator) * 1.5 + 0.5)
        rounded_code = nonzero(code.to(x.dtype))
        # A copy is recorded: some families clip the output of a projection in place.
        self.note(CodedCall(self.name, x.reshape(samples, -1).float().cpu(), rounded_code.float().clone(), x.dtype))
        return rounded_code.reshape(*x.shape[:-1], self.width).to(x.device)

r"""Finds by probing how a site turns its queries and keys with the position.

Every linear module returns the same random numbers at all positions of a sequence. Queries at position p then differ
from those at position 0 by what the position does to them alone: $q_p = q_0 M_p$, solved by least squares over
sequences and heads. $M_p$ must turn planes of two channels by angles that grow with p, the same for queries and keys.
No table of families: pairing and angles are those of the model's own code, also where a norm of queries and keys
stands before the turn.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core.site import Site
from headscope.core.stream_reading import Rotary
from headscope.model.tracing.linear_modules import is_linear, out_features
from headscope.model.tracing.random_codes import patch
from headscope.model.transformers.attention_answers import answered
from headscope.model.transformers.attention_products import AttentionProducts
from headscope.model.transformers.probe_inputs import forward_options, read_by, vocabulary

POSITIONS = 17  # 0 to 16: doubled distances refine the angle
_SAMPLES = 2  # samples for each channel of the widest head
_TOLERANCE = 1e-3  # share of the queries that the turn may leave unexplained
_VISIBLE = 3e-6  # a smaller sine is rounding in float32


def find_rotary(
    model: Any, sites: tuple[Site, ...], products: AttentionProducts | None = None
) -> dict[Site, Rotary | str | None]:
    """For each site its planes, None where nothing turns, or the reason why that is not known."""
    if read_by(model) != ("input_ids",) or model.config.is_encoder_decoder:
        return dict.fromkeys(sites, "turns are probed in models with one stack that reads tokens")
    watch = _Watch()
    widest = max(site.d_head for site in sites)
    batch = -(-_SAMPLES * widest // min(site.n_kv_heads for site in sites))
    length = min(POSITIONS, getattr(model.config, "max_position_embeddings", None) or POSITIONS)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(min(vocabulary(model.config), 2000), (1, length), generator=generator).expand(batch, length)
    body = model.base_model
    with torch.no_grad(), ExitStack() as undo:
        for module in model.modules():
            if is_linear(module):
                patch(module, _SteadyForward(out_features(module), generator), undo)
        undo.enter_context(answered(model, sites, watch, products))
        body(input_ids=tokens.to(model.device), attention_mask=None, **forward_options(body))
    return {site: _planes(watch.states.get(site)) for site in sites}


class _Watch:
    """Keeps queries and keys of each call, and answers with zeros."""

    def __init__(self) -> None:
        self.states: dict[Site, tuple[Tensor, Tensor]] = {}

    def __call__(self, site: Site | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if site is not None:
            self.states[site] = (q.detach().cpu(), k.detach().cpu())
        return v.new_zeros(*q.shape[:3], v.shape[3])


@dataclass(frozen=True)
class _SteadyForward:
    """Returns the same random numbers at every position of a sequence."""

    width: int
    generator: torch.Generator

    def __call__(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        code = torch.randn(x.shape[0], *(1 for _ in x.shape[1:-1]), self.width, generator=self.generator)
        return code.expand(*x.shape[:-1], self.width).to(x.device, x.dtype).clone()


def _planes(states: tuple[Tensor, Tensor] | None) -> Rotary | str | None:
    if states is None:
        return "its queries and keys were not reached while positions were probed"
    turns = [_turns(part) for part in states]
    for turn in turns:
        if isinstance(turn, str):
            return turn
    queries, keys = (turn for turn in turns if not isinstance(turn, str))
    if float((queries - keys).abs().max()) > _TOLERANCE:
        return "positions change queries and keys in different ways"
    return _rotary((queries + keys) / 2)


def _turns(states: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "tokens width width"] | str:
    """M of each position: what takes the vectors at position 0 to those at position p."""
    samples = states.double().transpose(0, 2).flatten(1, 2)
    first = samples[0]
    solved: Tensor = torch.linalg.lstsq(first, samples.transpose(0, 1).flatten(1)).solution
    turns = solved.reshape(first.shape[1], len(samples), -1).transpose(0, 1)
    left_over = (first @ turns - samples).norm() / samples.norm()
    if not float(left_over) < _TOLERANCE:
        return "what positions do to its queries and keys is no linear map of each of them"
    return turns


def _rotary(turns: Float[Tensor, "tokens width width"]) -> Rotary | str | None:
    """The planes and angles of turns by position; checked against every position of the probe."""
    width, steps = turns.shape[1], len(turns) - 1
    sines = turns[1:] - turns[1:].mT
    strength = sines.abs().amax(0) / 2
    best = strength.max(dim=1)
    pairs = [
        (channel, int(best.indices[channel]))
        for channel in range(width)
        if float(best.values[channel]) > _VISIBLE and channel < int(best.indices[channel])
    ]
    if not pairs:
        return None if _is_still(turns) else "positions change its queries and keys, and turn no plane of two channels"
    first, second = (torch.tensor(side) for side in zip(*pairs, strict=True))
    if len(set(first.tolist()) | set(second.tolist())) != 2 * len(pairs):
        return "positions mix more than two channels of its queries and keys"
    angle = torch.zeros(len(pairs), dtype=torch.float64)
    step = 1
    while step <= steps:
        measured = torch.atan2(
            turns[step, first, second] - turns[step, second, first],
            turns[step, first, first] + turns[step, second, second],
        )
        full_turns = torch.round((step * angle - measured) / (2 * torch.pi)) if step > 1 else torch.zeros_like(angle)
        angle = (measured + 2 * torch.pi * full_turns) / step
        step *= 2
    rotary = Rotary(width, first, second, angle)
    expected = torch.stack([rotary.turn(distance) for distance in range(len(turns))])
    if float((expected - turns).abs().max()) > _TOLERANCE:
        return "positions do more to its queries and keys than to turn planes of two channels"
    return rotary


def _is_still(turns: Float[Tensor, "tokens width width"]) -> bool:
    return float((turns - torch.eye(turns.shape[1], dtype=turns.dtype)).abs().max()) <= _TOLERANCE

r"""Finds the limits at which a family cuts off q, k or v (`clip_qkv`).

A second coded forward (see `random_codes`) uses codes that are thousands in size: a channel that was a fixed multiple
of small codes, and is now less than half of that multiple, is limited. The largest number in it is the limit. No
configuration is read.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headscope.core.site import Site
from headscope.model.tracing.random_codes import SIGNATURE_BITS, CodedCall, channels_of, coded
from headscope.model.transformers.attention_answers import answered
from headscope.model.transformers.attention_products import AttentionProducts
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs

if TYPE_CHECKING:
    from headscope.model.tracing.projections import Rows

# Codes of up to nine times this fit into float16; limits in use are below 100.
LARGE = 4096.0

Limits = dict[str, float]  # by letter: q, k, v


class LimitProbe:
    """Compares queries, keys and values with their large codes.

    It handles the attention calls of a model on such codes.
    """

    def __init__(self, rows_by_site: Mapping[Site, Mapping[str, "Rows"]]) -> None:
        self._rows = rows_by_site
        self._codes: dict[str, CodedCall] = {}
        self.limits: dict[Site, Limits] = {}

    def note(self, call: CodedCall) -> None:
        """Keep the last code of every module."""
        self._codes[call.module] = call

    def __call__(self, site: Site | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compare q, k and v with their codes, and return zeros."""
        states = {"q": q, "k": k, "v": v}
        if site is not None:
            for letter, rows in self._rows.get(site, {}).items():
                limit = self._limit(states[letter], rows)
                if limit is not None:
                    self.limits.setdefault(site, {})[letter] = limit
        return v.new_zeros(*q.shape[:3], v.shape[3])

    def _limit(self, states: Tensor, rows: "Rows") -> float | None:
        channels, call = channels_of(states), self._codes[rows.module]
        limit = float(channels.abs().max())
        halves = (call.code[:, rows.row.flatten()] * rows.gain.flatten()).abs() / 2
        if rows.extra_bias is not None:
            # A bias that is added afterwards may be larger than a small code, and rounds it.
            shift = (rows.extra_bias * rows.gain).flatten()
            channels, halves = channels - shift, halves - 4 * torch.finfo(call.dtype).eps * shift.abs()
        return limit if bool((channels.abs() < halves).any()) else None


def find_limits(
    model: Any, rows_by_site: Mapping[Site, Mapping[str, "Rows"]], products: AttentionProducts | None = None
) -> dict[Site, Limits]:
    """The limits of the sites that have any.

    `rows_by_site` names the projections that were merely scaled.
    """
    probe = LimitProbe(rows_by_site)
    inputs = probe_inputs(model, batch=SIGNATURE_BITS, single_token=True)
    attending = answered(model, tuple(rows_by_site), probe, products)
    with torch.no_grad(), coded(model, probe.note, size=LARGE), attending:
        model(**inputs, **forward_options(model))
    return probe.limits


def limit_reason(limits: Limits) -> str:
    """The limits in words."""
    names = {"q": "queries", "k": "keys", "v": "values"}
    by_limit: dict[float, list[str]] = {}
    for letter, limit in limits.items():
        by_limit.setdefault(limit, []).append(names[letter])
    return "; ".join(
        f"{_enumeration(parts)} beyond ±{limit:g} are cut off after the projection" for limit, parts in by_limit.items()
    )


def _enumeration(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

r"""Finds the limits at which a family cuts off q, k or v (`clip_qkv`).

A second coded forward (see `random_codes`) uses codes that are thousands in size: a channel that was a fixed multiple
of small codes, and is now less than half of that multiple, is limited. The largest number in it is the limit. No
configuration is read.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headscope.core.site import Site
from headscope.model.tracing.random_codes import SIGNATURE_BITS, CodedCall, channels_of, coded
from headscope.model.transformers.attention_hook import as_transformers, tapped
from headscope.model.transformers.call_reader import RawCall
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

    def __init__(self, model: Any, rows_by_site: Mapping[Site, Mapping[str, "Rows"]]) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._rows = {(site.module, site.call): (site, rows) for site, rows in rows_by_site.items()}
        self._calls: Counter[str] = Counter()
        self._codes: dict[str, CodedCall] = {}
        self.limits: dict[Site, Limits] = {}

    def note(self, call: CodedCall) -> None:
        """Keep the last code of every module."""
        self._codes[call.module] = call

    def __call__(self, raw: RawCall) -> Tensor:
        """Compare q, k and v with their codes, and return zeros."""
        name = self._names[id(raw.module)]
        site, rows_by_letter = self._rows.get((name, self._calls[name]), (None, {}))
        self._calls[name] += 1
        states = {"q": raw.query, "k": raw.key, "v": raw.value}
        for letter, rows in rows_by_letter.items():
            limit = self._limit(states[letter], rows)
            if site is not None and limit is not None:
                self.limits.setdefault(site, {})[letter] = limit
        batch, heads, queries, _ = raw.query.shape
        return as_transformers(raw.query.new_zeros(batch, heads, queries, raw.value.shape[3]))

    def _limit(self, states: Tensor, rows: "Rows") -> float | None:
        channels = channels_of(states).abs()
        code = self._codes[rows.module].code[:, rows.row.flatten()] * rows.gain.flatten()
        return float(channels.max()) if bool((channels < code.abs() / 2).any()) else None


def find_limits(model: Any, rows_by_site: Mapping[Site, Mapping[str, "Rows"]]) -> dict[Site, Limits]:
    """The limits of the sites that have any.

    `rows_by_site` names the projections that were merely scaled.
    """
    probe = LimitProbe(model, rows_by_site)
    inputs = probe_inputs(model, batch=SIGNATURE_BITS, single_token=True)
    with torch.no_grad(), coded(model, probe.note, size=LARGE), tapped(model, probe):
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

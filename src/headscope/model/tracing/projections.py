"""Finds the rows of the matrices that form q, k, v and output of each site.

Traced once per model with codes (see `random_codes`); the result applies to a built model and to a file alike.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.core.site import Site
from headscope.core.weights import WeightStatus
from headscope.model.tracing.random_codes import (
    SIGNATURE_BITS,
    CodedCall,
    Trace,
    channels_of,
    coded,
    nonzero,
    trace,
    trace_shifted,
)
from headscope.model.tracing.value_limits import Limits, find_limits, limit_reason
from headscope.model.transformers.attention_answers import answered
from headscope.model.transformers.attention_products import AttentionProducts
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs

EXACT = WeightStatus("exact")
CONTENT_TERMS = "the scores also hold terms of content and relative position, which W_QK does not show"
NORMED = WeightStatus("normed", "queries and keys are normalised after the projection (QK-norm)")


@dataclass(frozen=True)
class Rows:
    """Channels of all heads as rows of one linear module.

    channel = gain · (x · weight[row] + bias[row] + extra_bias), the last where the family keeps a bias elsewhere.
    """

    module: str
    row: Int[Tensor, "some_heads width"]
    gain: Float[Tensor, "some_heads width"]
    extra_bias: Float[Tensor, "some_heads width"] | None = None


@dataclass(frozen=True)
class Projections:
    """The rows that give a site's q, k, v, and the columns that read its output."""

    q: Rows
    k: Rows
    v: Rows
    o: Rows


@dataclass(frozen=True)
class Plan:
    """What is known about the weights of one site.

    `output`: the columns that read its output, which may be known where the others are not. `limits` holds the sizes at
    which q, k or v are cut off after the projection.
    """

    status: WeightStatus
    projections: Projections | None = None
    output: Rows | None = None
    limits: Limits = field(default_factory=dict)


class _Refusal(Exception):
    """The reason why a site has no canonical form."""


class ProjectionTracer:
    """Handles the calls of a coded model: traces q, k, v and returns codes as output."""

    def __init__(self, sites: tuple[Site, ...]) -> None:
        self._sites = sites
        self._recent: list[CodedCall] = []
        self._awaiting: tuple[Site, tuple[Rows, Rows, Rows] | None, WeightStatus, Tensor] | None = None
        self._generator = torch.Generator().manual_seed(1)
        self.plans: dict[Site, Plan] = {}

    def note(self, call: CodedCall) -> None:
        """Check whether this linear module reads the output of the last site."""
        self._recent.append(call)
        if self._awaiting is None:
            return
        site, rows, status, z = self._awaiting
        traced = trace(CodedCall(call.module, call.read, z, call.dtype), call.read)
        if traced is None or len(traced.row) != z.shape[1]:
            return
        self._awaiting = None
        gain = traced.gain()
        if gain is None or not torch.allclose(gain, torch.ones_like(gain), rtol=1e-4):
            self._refuse(site, status, f"its output is gated, scaled or normalised before {call.module}")
            return
        # trace.row[c] is the channel of z that column c of the output module reads: invert it.
        column = torch.empty_like(traced.row)
        column[traced.row] = torch.arange(len(traced.row))
        o = Rows(call.module, column.reshape(site.n_heads, site.d_value), torch.ones(site.n_heads, site.d_value))
        self.plans[site] = Plan(status, None if rows is None else Projections(*rows, o), o)

    def __call__(self, site: Site | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Trace the inputs of a call and return codes."""
        self._give_up_waiting()
        out = self._output_codes(q, v)
        if site is not None:
            self._trace_inputs(site, (q, k, v), out)
        self._recent.clear()
        return out

    def close(self) -> None:
        """Note that the forward has ended."""
        self._give_up_waiting()
        for site in self._sites:
            self.plans.setdefault(site, Plan(WeightStatus("refused", "the site was not reached while tracing")))

    def _output_codes(self, q: Tensor, v: Tensor) -> Tensor:
        batch, heads, queries, _ = q.shape
        code = nonzero(torch.randn(batch, heads, queries, v.shape[3], generator=self._generator))
        magnitude = torch.rand(batch, 1, queries, 1, generator=self._generator) * 1.5 + 0.5
        return (code * magnitude).to(v.device, v.dtype)

    def _trace_inputs(self, site: Site, inputs: tuple[Tensor, Tensor, Tensor], out: Tensor) -> None:
        rows: tuple[Rows, Rows, Rows] | None = None
        try:
            rows, status = self._trace_projections(site, *inputs)
        except _Refusal as refusal:
            status = WeightStatus("refused", str(refusal))
        self._awaiting = (site, rows, status, channels_of(out))

    def _trace_projections(
        self, site: Site, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[tuple[Rows, Rows, Rows], WeightStatus]:
        q, q_from, q_scaled = self._rows(query, "queries")
        k, k_from, k_scaled = self._rows(key, "keys")
        v, v_from, v_scaled = self._rows(value, "values")
        if not v_scaled:
            raise _Refusal("the values are normalised after their projection")
        sources = [k_from, v_from] if site.kind == "cross" else [q_from, k_from, v_from]
        if any(not _same_input(sources[0], other) for other in sources[1:]):
            modules = ", ".join(dict.fromkeys(call.module for call in sources))
            raise _Refusal(f"its projections read different inputs ({modules}), as in latent attention")
        return (q, k, v), EXACT if q_scaled and k_scaled else NORMED

    def _rows(self, states: Tensor, states_name: str) -> tuple[Rows, CodedCall, bool]:
        channels = channels_of(states)
        if channels.shape[0] < SIGNATURE_BITS // 2:
            raise _Refusal(f"the probe gave only {channels.shape[0]} samples")
        traced = self._find(channels)
        if traced is None:
            raise _Refusal(
                f"no single linear module produces its {states_name} (they are summed, or normalised with a mean)"
            )
        gain = traced.gain()
        shape = (states.shape[1], states.shape[3])
        gains = torch.ones(shape) if gain is None else gain.reshape(shape)
        extra_bias = None if traced.shift is None else traced.shift.reshape(shape) / gains
        rows = Rows(traced.call.module, traced.row.reshape(shape), gains, extra_bias)
        return rows, traced.call, gain is not None

    def _find(self, channels: Tensor) -> Trace | None:
        for tracing in (trace, trace_shifted):
            for call in reversed(self._recent):
                traced = tracing(call, channels)
                if traced is not None:
                    return traced
        return None

    def _give_up_waiting(self) -> None:
        if self._awaiting is not None:
            site, _, status, _ = self._awaiting
            self._refuse(site, status, "no single linear module reads its output")
            self._awaiting = None

    def _refuse(self, site: Site, status: WeightStatus, reason: str) -> None:
        """Refuse a site for what is wrong with its output, unless its inputs were refused before."""
        self.plans[site] = Plan(status if status.status == "refused" else WeightStatus("refused", reason))


def make_blueprint(model: Any, sites: tuple[Site, ...], products: AttentionProducts | None = None) -> dict[Site, Plan]:
    """Trace every site of a model, real or on the meta device.

    This takes two coded forwards over single tokens. `products` are those of a family that computes its attention
    itself.
    """
    if products is not None and products.score_refusal:
        return {site: Plan(WeightStatus("refused", products.score_refusal)) for site in sites}
    tracer = ProjectionTracer(sites)
    inputs = probe_inputs(model, batch=SIGNATURE_BITS, single_token=True)
    with torch.no_grad(), coded(model, tracer.note), answered(model, sites, tracer, products):
        model(**inputs, **forward_options(model))
    tracer.close()
    plans = _with_limits(model, tracer.plans, products)
    by_content = products is not None and bool(products.change_refusal)
    return {site: _with_content_terms(plan) for site, plan in plans.items()} if by_content else plans


def _with_content_terms(plan: Plan) -> Plan:
    """A plan that says what W_QK does not show."""
    status = plan.status
    if status.status == "refused":
        return plan
    return replace(plan, status=replace(status, reason="; ".join(filter(None, (status.reason, CONTENT_TERMS)))))


def _with_limits(model: Any, plans: dict[Site, Plan], products: AttentionProducts | None) -> dict[Site, Plan]:
    """The plans, where a site that cuts off queries, keys or values is not exact."""
    rows_by_site = {site: _scaled_rows(plan) for site, plan in plans.items() if plan.projections is not None}
    limits = find_limits(model, rows_by_site, products) if rows_by_site else {}
    return {site: _with_limit(plan, limits.get(site, {})) for site, plan in plans.items()}


def _scaled_rows(plan: Plan) -> dict[str, Rows]:
    letters = "v" if plan.status.status == "normed" else "qkv"
    return {letter: getattr(plan.projections, letter) for letter in letters}


def _with_limit(plan: Plan, limits: Limits) -> Plan:
    if not limits:
        return plan
    if plan.status.status == "normed":
        status = WeightStatus("normed", f"{plan.status.reason}; {limit_reason(limits)}")
    else:
        status = WeightStatus("clipped", limit_reason(limits))
    return replace(plan, status=status, limits=limits)


def _same_input(a: CodedCall, b: CodedCall) -> bool:
    return a is b or (a.read.shape == b.read.shape and torch.equal(a.read, b.read))

"""Verify: the fast paths, their definitions and transformers itself, compared on one very checkpoint."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.maps import pattern
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.mechanisms.window import Window
from headscope.attention.statistics import Request, pattern_statistics
from headscope.core.site import Site
from headscope.errors import HeadscopeError, UsageError
from headscope.model.dispatch import as_transformers, implementation, own_attention, tapped
from headscope.model.feeding import forward_options, read_by, vocabulary
from headscope.model.opened import Model
from headscope.model.quiet import quiet
from headscope.model.reading import RawCall, Reader
from headscope.model.softmax import SoftmaxSession
from headscope.model.text import generate_tokens

TOKENS = 128
BANDS = (1, 8)

# Every tolerance is relative to the range of what is compared; one float32 rounding is 6e-8.
MAPS = 1e-6
OUTPUTS = 1e-4  # dozens of layers amplify roundings; transformers' own eager and sdpa differ as much
STATISTICS = 1e-5
WEIGHTS = 1e-5
DEFINITION = 2e-6


@dataclass(frozen=True)
class Check:
    """One comparison: the worst error over every site, against its tolerance."""

    check: str
    error: float | None
    tolerance: float
    ok: bool
    note: str = ""


def verify(model: Model, text: str | None = None) -> list[Check]:
    """Run every comparison that this model allows, on the first tokens of `text` (random tokens without one)."""
    if (reads := read_by(model.hf)) != ("input_ids",):
        raise UsageError(f"{model.spec.name} reads {' and '.join(reads)}, and verify runs on tokens alone")
    tokens = _tokens(model, text)
    with quiet(), torch.no_grad():
        return [_checked(name, tolerance, check, model, tokens) for name, tolerance, check in _checks(model)]


def _checks(model: Model) -> Iterator[tuple[str, float, Callable[[Model, Tensor], float]]]:
    yield "maps = transformers' eager attentions", MAPS, _maps
    yield "streaming statistics = float64 of the stored map", STATISTICS, _statistics
    if isinstance(model.session(), SoftmaxSession):
        return  # nothing below can be asked of a family outside the attention interface
    yield "output under our attention = transformers' own", OUTPUTS, _outputs
    yield "output under an infinite window = transformers' own", OUTPUTS, _infinite_window
    yield "dense mechanism = its float64 definition", DEFINITION, _definition
    if any(model.weight_status(site).status == "exact" for site in model.sites):
        yield "q = gain·(x w_q + b_q), and k, v", WEIGHTS, _projections
    if model.spec.kind != "encoder" and model.hf.can_generate():
        yield "tokens generated with a cache = without", 0.0, _cache


def _checked(
    name: str, tolerance: float, check: Callable[[Model, Tensor], float], model: Model, tokens: Tensor
) -> Check:
    try:
        error = check(model, tokens)
    except HeadscopeError as refusal:
        return Check(name, None, tolerance, False, refusal.message)
    return Check(name, error, tolerance, error <= tolerance)


def _tokens(model: Model, text: str | None) -> Int[Tensor, "1 tokens"]:
    limit = min(TOKENS, model.spec.context or TOKENS)
    if text is not None and model.reads_text:
        return model.encode(text)[None, :limit].to(model.hf.device)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, vocabulary(model.hf.config), (1, limit), generator=generator).to(model.hf.device)


def _inputs(model: Model, tokens: Tensor) -> dict[str, Any]:
    both = {"decoder_input_ids": tokens} if model.spec.kind == "encoder-decoder" else {}
    return {"input_ids": tokens, **both, **forward_options(model.hf)}


def _captured(model: Model, tokens: Tensor, what: str) -> dict[Site, Tensor]:
    with model.session() as session:
        captured = session.capture(what)
        model.hf(**_inputs(model, tokens))
        return captured.take()[what]


def _maps(model: Model, tokens: Tensor) -> float:
    with implementation(model.hf, "eager"):
        output = model.hf(**_inputs(model, tokens), output_attentions=True)
    theirs = {
        ("only", "self"): getattr(output, "attentions", None),
        ("enc", "self"): getattr(output, "encoder_attentions", None),
        ("dec", "self"): getattr(output, "decoder_attentions", None),
        ("dec", "cross"): getattr(output, "cross_attentions", None),
    }
    ours, errors = _captured(model, tokens, "pattern"), []
    for (stack, kind), maps in theirs.items():
        sites = [site for site in model.sites if (site.stack, site.kind) == (stack, kind)]
        errors += [_map_error(site, ours[site], each) for site, each in zip(sites, maps or (), strict=False)]
    if not errors:
        raise UsageError("transformers returns no attentions for this family")
    return max(errors)


def _map_error(site: Site, ours: Tensor, theirs: Tensor) -> float:
    if "sinks" in site.extras:
        # Some families return the map before the sink has taken its share: only what is left can be compared.
        ours, theirs = (each / each.sum(dim=-1, keepdim=True) for each in (ours, theirs))
    return float((ours - theirs).abs().max())


def _statistics(model: Model, tokens: Tensor) -> float:
    """Entropy over ln n, distance over n, masses as they are: the worst over every site and row."""
    request = Request(bands=BANDS)
    with model.session() as session:
        stream = session.stream(request)
        model.hf(**_inputs(model, tokens))
        measured, _ = stream.take()
    oracle = _Oracle(model, request, tokens)
    errors = [0.0]
    for site, want in oracle.statistics().items():
        got, n = measured[site], tokens.shape[1]
        ranges = {"entropy_nats": math.log(max(n, 2)), "participation": 1.0, "first": 1.0}
        if site.kind == "self":
            ranges |= {"distance": float(n), "distance_sd": float(n), "diagonal": 1.0}
        for name, scale in ranges.items():
            errors.append(_worst(getattr(got, name), getattr(want, name)) / scale)
    return max(errors)


def _worst(a: Tensor, b: Tensor) -> float:
    return float(torch.nan_to_num(a.cpu().double() - b.cpu().double(), nan=0.0).abs().max())


class _Oracle:
    """The same forward with every map stored in float64 and its statistics taken by the definition."""

    def __init__(self, model: Model, request: Request, tokens: Tensor) -> None:
        self._model, self._request, self._tokens = model, request, tokens
        self._reader = Reader()
        self._found: list[Any] = []

    def statistics(self) -> dict[Site, Any]:
        """By site, in the order of the calls."""
        if isinstance(self._model.session(), SoftmaxSession):
            return {}
        with tapped(self._model.hf, self):
            self._model.hf(**_inputs(self._model, self._tokens))
        return dict(zip(self._model.sites, self._found, strict=True))

    def __call__(self, raw: RawCall) -> Tensor:
        site = self._model.sites[len(self._found)]
        call = self._reader.call(raw, cross=site.kind == "cross")
        stored = _float64_map(call)
        there = call.to(stored.device)
        self._found.append(pattern_statistics(stored, there, self._request, positional=site.kind == "self"))
        # As a session computes it: the statistics then differ by their own rounding alone, not by the forward's.
        return as_transformers(own_attention(call))


def _float64_map(call: Call) -> Tensor:
    call = call.to(torch.device("cpu"))
    wide = {name: getattr(call, name).double() for name in ("q", "k", "v")}
    bias = None if call.bias is None else call.bias.double()
    sinks = None if call.sinks is None else call.sinks.double()
    return pattern(replace(call, **wide, bias=bias, sinks=sinks))


def _outputs(model: Model, tokens: Tensor) -> float:
    return _changed_by(model, tokens, replaced=False)


def _infinite_window(model: Model, tokens: Tensor) -> float:
    return _changed_by(model, tokens, replaced=True)


def _changed_by(model: Model, tokens: Tensor, *, replaced: bool) -> float:
    theirs = _hidden(model, tokens)
    with model.session() as session:
        if replaced:
            session.replace("all", Window())
        ours = _hidden(model, tokens)
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _hidden(model: Model, tokens: Tensor) -> Tensor:
    output = model.hf(**_inputs(model, tokens))
    return next(value for value in output.values() if isinstance(value, Tensor) and value.is_floating_point())


def _definition(model: Model, tokens: Tensor) -> float:
    """On the queries, keys and values that this model really computes, relative to the largest output."""
    errors: list[float] = []
    reader, dense = Reader(), Dense()

    def compare(raw: RawCall) -> Tensor:
        call = reader.call(raw, cross=model.sites[len(errors)].kind == "cross")
        out, exact = dense(call).out, dense.definition(call.to(torch.device("cpu"))).out
        errors.append(float((out.cpu().double() - exact).abs().max() / exact.abs().max()))
        return as_transformers(out)

    with tapped(model.hf, compare):
        model.hf(**_inputs(model, tokens))
    return max(errors)


def _projections(model: Model, tokens: Tensor) -> float:
    """On single tokens, where rotary positions are the identity."""
    singles = tokens.reshape(-1, 1)[:16]
    inputs: dict[str, list[Tensor]] = {}
    hooks = []
    for module in {rows.module for site in model.sites for rows in _inputs_of(model, site)}:

        def keep(_: Any, args: tuple[Any, ...], name: str = module) -> None:
            inputs.setdefault(name, []).append(args[0].reshape(len(singles), 1, -1))

        hooks.append(model.hf.get_submodule(module).register_forward_pre_hook(keep))
    try:
        with model.session() as session:
            states = session.capture("q", "k", "v")
            model.hf(**_inputs(model, singles))
            captured = states.take()
    finally:
        for hook in hooks:
            hook.remove()
    return max(_projection_error(model, site, inputs, captured) for site in model.sites if _inputs_of(model, site))


def _inputs_of(model: Model, site: Site) -> list[Any]:
    plan = model.plan(site)
    exact = plan.status.status == "exact" and plan.projections is not None
    return [plan.projections.q, plan.projections.k, plan.projections.v] if exact and plan.projections else []


def _projection_error(
    model: Model, site: Site, inputs: dict[str, list[Tensor]], captured: dict[str, dict[Site, Tensor]]
) -> float:
    weights, worst = model.weights(site), 0.0
    for what, rows in zip("qkv", _inputs_of(model, site), strict=True):
        w, b, gain = (getattr(weights, f"{part}_{what}") for part in ("w", "b", "gain"))
        x = inputs[rows.module][site.call].cpu().double()
        made = gain[None, :, None] * (torch.einsum("bnm,hmd->bhnd", x, w.double()) + b[None, :, None])
        seen = captured[what][site].cpu().double()
        worst = max(worst, float((made - seen).abs().max() / seen.abs().max()))
    return worst


def _cache(model: Model, tokens: Tensor) -> float:
    """How many of 16 greedy tokens differ."""
    prompt = tokens[0, : max(1, min(32, tokens.shape[1] - 16))]
    with model.session():
        runs = [
            generate_tokens(model.hf, prompt, max_new_tokens=16, temperature=0.0, cache=cache, seed=0)
            for cache in (True, False)
        ]
    n = min(len(run) for run in runs)
    return float((runs[0][:n] != runs[1][:n]).sum()) + abs(len(runs[0]) - len(runs[1]))

"""Verify: compares fast paths, definitions and transformers on one checkpoint.

The model is compared with a second one that transformers loads by itself (`fresh_copy`). A fast path is compared with
its definition on the same queries, keys and values.

Float64 is the judge. Where scores are sharp, float32 rounds far more than elsewhere, and two correct computations drift
apart. So each error is compared with the rounding of the plain float32 computation, measured against the same in
float64, and may be a few times as large. A model in float16 or bfloat16 is verified as a float32 copy, which holds its
weights exactly (see `rounding`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.head_mechanisms import HeadMechanisms, mechanisms_of
from headscope.attention.maps import pattern
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.mechanisms.window import Window
from headscope.attention.statistics import Request, RowStatistics, pattern_statistics
from headscope.core.selection import selection_text
from headscope.core.site import Site
from headscope.errors import CaptureError, HeadscopeError, ResourceError
from headscope.model.built_in_mechanisms import heads_by_built_in_mechanism
from headscope.model.formats.completeness import n_numbers
from headscope.model.formats.memory import physical_bytes
from headscope.model.language import generate_tokens, lacks_start
from headscope.model.model import Model, open_model
from headscope.model.rounding import is_narrow, widened
from headscope.model.transformers.attention_hook import as_transformers, tapped
from headscope.model.transformers.call_reader import RawCall, Reader
from headscope.model.transformers.fresh_copy import FreshCopy, differences, fresh_copy
from headscope.model.transformers.library_messages import quiet, reason
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs, read_by, vocabulary

BEGINNING = 2**16  # characters of a text that are tokenised for its first tokens
TOKENS = 128
SINGLES = 16
FEWEST = 8
BANDS = (1, 8)

# Every tolerance is relative to the range of the compared numbers; one float32 rounding is 6e-8.
MAPS = 1e-6
OUTPUTS = 1e-4  # dozens of layers amplify roundings; transformers' own eager and sdpa differ as much
STATISTICS = 1e-5
WEIGHTS = 1e-5
DEFINITION = 2e-6
# Beyond the tolerance, an error may be this many times the measured rounding of the plain float32 computation: sums in
# another order err by as much in another direction, and the comparison is between the largest of many errors.
ROUNDED = 4.0
# Where transformers' output differs by this much between float32 and float64, a comparison with it says nothing.
CHAOS = 1e-2


@dataclass(frozen=True)
class Check:
    """One comparison: the worst error over every site, against its tolerance."""

    check: str
    error: float | None
    tolerance: float
    ok: bool
    note: str = ""


@dataclass(frozen=True)
class Subject:
    """The verified model, a fresh copy of it, and inputs for both.

    `singles` are inputs of single tokens, where rotary positions are the identity; `tokens` is None where the model
    does not read tokens alone.
    """

    model: Model
    theirs: "Answer"
    inputs: dict[str, Any]
    singles: dict[str, Any]
    tokens: Int[Tensor, "1 tokens"] | None


@dataclass(frozen=True)
class Answer:
    """Maps by stack and kind, and the first output, of a fresh model.

    The fresh model uses eager attention. The roundings are the differences between float32 and float64.
    """

    maps: dict[tuple[str, str], list[Tensor]]
    hidden: Tensor
    rounding_of_maps: float = 0.0
    rounding_of_hidden: float = 0.0


@dataclass(frozen=True)
class Deviation:
    """An error, and the rounding of the plain float32 computation."""

    error: float
    rounding: float = 0.0


class _NotComparable(Exception):
    """Why a comparison is impossible, without a fault of the model or of headscope."""


Comparison = Callable[[Subject], list[Deviation]]


def verify(model: Model, text: str | None = None) -> list[Check]:
    """Run every comparison that this model allows, on the first tokens of `text`.

    Without a text the inputs are random. Models that read images or sound are verified on random ones.
    """
    with quiet(), torch.no_grad(), restored(model.hf):
        fresh = fresh_copy(model.hf, model.origin)
        state = _state(model, fresh)
        compared_model = _in_float32(model, fresh)
        subject = _run_subject(compared_model, fresh, text)
        return [
            state,
            *(_run_check(name, tolerance, check, subject) for name, tolerance, check in _checks(compared_model)),
        ]


def _in_float32(model: Model, fresh: FreshCopy) -> Model:
    """The model, as a float32 copy where its dtype is narrow.

    The fresh model is widened in place.
    """
    if not is_narrow(model.hf.dtype):
        return model
    wide = widened(model.hf)
    if wide is None:
        raise ResourceError(f"there is no memory to verify {model.spec.name} in float32", hint="use a larger machine")
    fresh.hf.float()
    return open_model(wide, tokenizer=model.tokenizer)


def _checks(model: Model) -> Iterator[tuple[str, float, Comparison]]:
    yield "maps = transformers' eager attentions", MAPS, _maps
    if model.dispatches:  # other families compute their own maps and outputs
        yield "streaming statistics = float64 of the same queries and keys", STATISTICS, _statistics
    yield "output under our attention = transformers' own", OUTPUTS, _outputs
    if _dense_heads(model) and _takes_mechanisms(model):
        yield "output under an infinite window = transformers' own", OUTPUTS, _infinite_window
    if model.dispatches:
        yield "dense mechanism = its float64 definition", DEFINITION, _definition
    if any(_has_projections(model, site) for site in model.sites):
        yield "q = gain·(x w_q + b_q), and k, v", WEIGHTS, _projections
    if read_by(model.hf) == ("input_ids",) and model.spec.kind != "encoder" and model.hf.can_generate():
        yield "tokens generated with a cache = without", 0.0, _cache


def _takes_mechanisms(model: Model) -> bool:
    """Whether heads of the model can attend through another mechanism."""
    with model.session() as session:
        try:
            session.replace(_dense_heads(model), Window())
        except CaptureError:
            return False
    return True


def _dense_heads(model: Model) -> str:
    """The heads that attend densely, as a selection; empty where a network was built with mechanisms in all of them."""
    return selection_text(heads_by_built_in_mechanism(model.hf, model.sites).get(None, {}))


def _mapped_heads(model: Model) -> str | None:
    """The sites whose heads all have a map, as a selection; None is all. Linear attention, for one, has no map.

    Raises:
        _NotComparable: No site has a map.
    """
    built = {site: mechanisms_of(model.hf.get_submodule(site.module)) for site in model.sites}
    mapped = [site for site, mechanisms in built.items() if mechanisms is None or mechanisms.has_maps]
    if not mapped:
        raise _NotComparable("this network was built with heads that have no map in every layer")
    all_of_them = len(mapped) == len(built)
    return None if all_of_them else selection_text({site: range(site.n_heads) for site in mapped})


def _run_check(name: str, tolerance: float, check: Comparison, subject: Subject) -> Check:
    try:
        deviations = check(subject)
    except _NotComparable as obstacle:
        return Check(name, None, tolerance, True, str(obstacle))
    except HeadscopeError as refusal:
        return Check(name, None, tolerance, False, refusal.message)
    worst = max(deviations, key=lambda deviation: _share(deviation, tolerance))
    allowed = _allowed_error(worst, tolerance)
    return Check(name, worst.error, allowed, worst.error <= allowed)


def _allowed_error(deviation: Deviation, tolerance: float) -> float:
    return tolerance + ROUNDED * deviation.rounding


def _share(deviation: Deviation, tolerance: float) -> float:
    """The error as a share of its limit.

    An error that is not a number is beyond every limit.
    """
    allowed = _allowed_error(deviation, tolerance)
    if math.isnan(deviation.error):
        return math.inf
    return deviation.error / allowed if allowed else deviation.error


def _state(model: Model, fresh: FreshCopy) -> Check:
    """Count the weights, buffers and attributes that differ from a fresh model."""
    name = "weights and state = a freshly loaded model's"
    weights, fresh_weights = (dict(hf.named_parameters()) for hf in (model.hf, fresh.hf))
    if weights.keys() != fresh_weights.keys():
        note = f"{fresh.method}; it has other parameters, so that only what it computes is compared"
        return Check(name, None, 0.0, True, note)
    names = differences(model.hf, fresh.hf)
    differing = f"; differing: {', '.join(sorted(names)[:3])}{' …' if len(names) > 3 else ''}" if names else ""
    return Check(name, float(len(names)), 0.0, not names, fresh.method + differing)


def _run_subject(model: Model, fresh: FreshCopy, text: str | None) -> Subject:
    """The model, a fresh copy, and inputs.

    Raises `CaptureError` where the model cannot run on the inputs that headscope makes.
    """
    try:
        return _subject(model, fresh, text)
    except HeadscopeError:
        raise
    except Exception as error:
        raise CaptureError(
            f"{model.spec.name} cannot be run on the inputs that headscope makes to verify it: {reason(error)}",
            hint="it was opened on other inputs of the same kind; its maps on yours may still be right",
        ) from error


def _subject(model: Model, fresh: FreshCopy, text: str | None) -> Subject:
    options = forward_options(model.hf)
    tokens = _readable(model, _tokens(model, text)) if read_by(model.hf) == ("input_ids",) else None
    if tokens is None:
        inputs = {**probe_inputs(model.hf, batch=1), **options}
        singles = {**probe_inputs(model.hf, batch=SINGLES, single_token=True), **options}
    else:
        inputs, singles = _token_inputs(model, tokens), _token_inputs(model, tokens.reshape(-1, 1)[:SINGLES])
    return Subject(model, _answer(fresh.hf, inputs), inputs, singles, tokens)


def _answer(fresh: Any, inputs: dict[str, Any]) -> Answer:
    """The maps and the output of a fresh model.

    The model is widened to float64 on the way, to measure its rounding.
    """
    answer = _computed_answer(fresh, inputs)
    memory = physical_bytes()
    if fresh.dtype == torch.float64 or (memory is not None and 8 * n_numbers(fresh) > memory):
        return answer
    try:
        exact = _computed_answer(fresh.double(), {key: _in_float64(value) for key, value in inputs.items()})
    except Exception:  # noqa: BLE001  some families fix a dtype in their code: then nothing is allowed for rounding
        return answer
    pairs = [pair for place, maps in answer.maps.items() for pair in zip(maps, exact.maps[place], strict=True)]
    maps = max((float((a.double() - b).abs().max()) for a, b in pairs), default=0.0)
    return replace(answer, rounding_of_maps=maps, rounding_of_hidden=_relative(answer.hidden, exact.hidden))


def _computed_answer(fresh: Any, inputs: dict[str, Any]) -> Answer:
    # Two forwards: a model that replaces its attention modules in the first one shows their maps in the second.
    hidden = _hidden(fresh(**inputs))
    return Answer(_attentions(fresh(**inputs, output_attentions=True)), hidden)


def _in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _relative(a: Tensor, b: Tensor) -> float:
    a, b = a.cpu().double(), b.cpu().double()
    return float((a - b).abs().max() / b.abs().max())


def _tokens(model: Model, text: str | None) -> Int[Tensor, "1 tokens"]:
    limit = min(TOKENS, model.spec.context or TOKENS)
    if text is not None and model.reads_text:
        return model.encode(text[:BEGINNING])[None, :limit].to(model.hf.device)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, vocabulary(model.hf.config), (1, limit), generator=generator).to(model.hf.device)


def _readable(model: Model, tokens: Int[Tensor, "1 tokens"]) -> Int[Tensor, "1 first_tokens"]:
    """The first tokens, as many as the model attends to with visible maps.

    BigBird reads a longer text in blocks.
    """
    while tokens.shape[1] > FEWEST:
        try:
            with model.session() as session:
                session.stream(at=_mapped_heads(model))
                session.run(tokens, head=False)
        except CaptureError:
            tokens = tokens[:, : tokens.shape[1] // 2]
        else:
            break
    return tokens


def _token_inputs(model: Model, tokens: Int[Tensor, "batch tokens"]) -> dict[str, Any]:
    decoder_inputs = {"decoder_input_ids": tokens} if model.spec.kind == "encoder-decoder" else {}
    return {"input_ids": tokens, **decoder_inputs, **forward_options(model.hf)}


def _maps(subject: Subject) -> list[Deviation]:
    if subject.theirs.rounding_of_maps > CHAOS:
        raise _chaos(subject.theirs.rounding_of_maps)
    with subject.model.session() as session:
        captured = session.capture("pattern", at=_mapped_heads(subject.model))
        subject.model.hf(**subject.inputs)
        ours = captured.take()["pattern"]
    deviations = []
    for (stack, kind), maps in subject.theirs.maps.items():
        sites = [site for site in ours if (site.stack, site.kind) == (stack, kind)]
        for site, their_map in zip(sites, maps, strict=False):
            deviations.append(Deviation(_map_error(site, ours[site], their_map), subject.theirs.rounding_of_maps))
    if not deviations:
        raise _NotComparable("transformers returns no attentions for this family; its output is compared")
    return deviations


def _chaos(rounding: float) -> _NotComparable:
    return _NotComparable(
        f"rounding alone moves transformers' own numbers by {rounding:.1g} between float32 and float64, so nothing "
        "can be compared with them"
    )


def _attentions(output: Any) -> dict[tuple[str, str], list[Tensor]]:
    """The attentions that transformers returns, by stack and kind."""
    text, image, sound = (getattr(output, f"{part}_model_output", None) for part in ("text", "vision", "audio"))
    maps_by_place = {
        ("only", "self"): getattr(output, "attentions", None),
        ("enc", "self"): getattr(output, "encoder_attentions", None),
        ("dec", "self"): getattr(output, "decoder_attentions", None),
        ("dec", "cross"): getattr(output, "cross_attentions", None),
        ("text", "self"): getattr(text, "attentions", None),
        ("image", "self"): getattr(image, "attentions", None),
        ("sound", "self"): getattr(sound, "attentions", None),
    }
    # Where a family returns no plain map for a layer (PEGASUS-X: maps by blocks), no map is compared.
    return {
        place: [attention_map for attention_map in maps or () if isinstance(attention_map, Tensor)]
        for place, maps in maps_by_place.items()
    }


def _map_error(site: Site, ours: Tensor, theirs: Tensor) -> float:
    if "sinks" in site.extras:
        # Some families return the map without the share of the sink: only the visible keys can be compared.
        ours, theirs = (attention_map / attention_map.sum(dim=-1, keepdim=True) for attention_map in (ours, theirs))
    return float((ours - theirs).abs().max())


def _statistics(subject: Subject) -> list[Deviation]:
    """Compare streamed row statistics with their definition, for every site.

    Entropy is relative to ln n, distance to n; masses are absolute. A session streams; the definition uses the queries
    and keys of the same calls.
    """
    model, request = subject.model, Request(bands=BANDS)
    with model.session() as session:
        stream = session.stream(request, at=_mapped_heads(model))
        reader = session.live.reader = _ReferenceReader(request)
        model.hf(**subject.inputs)
        measured, _ = stream.take()
    return [
        Deviation(_statistics_error(site, measured[site], exact, n), _statistics_error(site, plain, exact, n))
        for site, (plain, exact, n) in zip(model.sites, reader.statistics, strict=True)
        if site in measured
    ]


def _statistics_error(site: Site, measured: RowStatistics, exact: RowStatistics, n_keys: int) -> float:
    keys = max(2, int(exact.n_visible.max()))
    ranges = {"entropy_nats": math.log(keys), "participation": 1.0, "first": 1.0}
    if site.kind == "self":
        # The anchors of the standard deviation cover all keys, even where a window hides most of them: its
        # error is stated in units of their number (see `statistics.columns`).
        ranges |= {"distance": float(keys), "distance_sd": float(n_keys), "diagonal": 1.0}
    return max(_worst(getattr(measured, name), getattr(exact, name)) / size for name, size in ranges.items())


def _worst(a: Tensor, b: Tensor) -> float:
    return float(torch.nan_to_num(a.cpu().double() - b.cpu().double(), nan=0.0).abs().max())


class _ReferenceReader(Reader):
    """Reads calls, and computes their statistics from stored maps in two precisions.

    The precisions are float32 and float64.
    """

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request
        self.statistics: list[tuple[RowStatistics, RowStatistics, int]] = []

    def call(self, raw: RawCall, *, query_offset: int | None = None, cross: bool = False) -> Call:
        """Read the call, and keep its statistics by the definition."""
        call = super().call(raw, query_offset=query_offset, cross=cross)
        cpu_call = call.to(torch.device("cpu"))  # not every device has float64
        plain, exact = (
            _map_statistics(judged_call, mechanisms_of(raw.module), self._request, positional=not cross)
            for judged_call in (cpu_call, _call_in_float64(cpu_call))
        )
        self.statistics.append((plain, exact, call.k.shape[2]))
        return call


def _map_statistics(
    call: Call, mechanisms: HeadMechanisms | None, request: Request, *, positional: bool
) -> RowStatistics:
    """The statistics of the stored maps of a call, each head's that of the mechanism it was built with."""
    parts = None if mechanisms is None else mechanisms.softmax_calls(call)
    if parts is None:
        return pattern_statistics(pattern(call), call, request, positional=positional)
    rows = [pattern_statistics(pattern(part), part, request, positional=positional) for part in parts.values()]
    order = [head for heads in parts for head in heads]
    return RowStatistics.of_heads(rows, [order.index(head) for head in range(len(order))])


def _call_in_float64(call: Call) -> Call:
    """The same call in float64."""
    tensors = {name: _in_float64(getattr(call, name)) for name in ("q", "k", "v", "bias", "sinks")}
    return replace(call, **tensors)


def _outputs(subject: Subject) -> list[Deviation]:
    return _changed_by(subject, replaced=False)


def _infinite_window(subject: Subject) -> list[Deviation]:
    return _changed_by(subject, replaced=True)


def _changed_by(subject: Subject, *, replaced: bool) -> list[Deviation]:
    theirs = subject.theirs
    if theirs.rounding_of_hidden > CHAOS:
        raise _chaos(theirs.rounding_of_hidden)
    with subject.model.session() as session:
        if replaced:
            session.replace(_dense_heads(subject.model), Window())
        ours = _hidden(subject.model.hf(**subject.inputs))
    return [Deviation(_relative(ours, theirs.hidden), theirs.rounding_of_hidden)]


def _hidden(output: Any) -> Tensor:
    """The first tensor of numbers in the output of a model."""
    return next(value for value in output.values() if isinstance(value, Tensor) and value.is_floating_point())


def _definition(subject: Subject) -> list[Deviation]:
    """Compare the mechanism with its definition on the model's own q, k and v.

    The error is relative to the largest output.
    """
    deviations: list[Deviation] = []
    model, reader, dense = subject.model, Reader(), Dense()

    def compare(raw: RawCall) -> Tensor:
        call = reader.call(raw, cross=model.sites[len(deviations)].kind == "cross")
        out, exact = dense(call).out, dense.definition(call.to(torch.device("cpu"))).out
        plain = pattern(call).to(call.v.dtype) @ call.v.repeat_interleave(call.groups, dim=1)
        deviations.append(Deviation(_relative(out, exact), _relative(plain, exact)))
        return as_transformers(out)

    with tapped(model.hf, compare):
        model.hf(**subject.inputs)
    return deviations


def _has_projections(model: Model, site: Site) -> bool:
    """Whether the weights determine q, k and v, at least up to a limit."""
    return model.weight_status(site).status in ("exact", "clipped")


def _projections(subject: Subject) -> list[Deviation]:
    """Compare projections on single tokens, where rotary positions are the identity.

    Images and sounds have no rotary positions here.
    """
    model, inputs = subject.model, dict[str, list[Tensor]]()
    sites = [site for site in model.sites if _has_projections(model, site)]
    hooks = []
    for module in {rows.module for site in sites for rows in _rows(model, site).values()}:

        def keep(_: Any, args: tuple[Any, ...], name: str = module) -> None:
            inputs.setdefault(name, []).append(args[0])

        hooks.append(model.hf.get_submodule(module).register_forward_pre_hook(keep))
    try:
        with model.session() as session:
            states = session.capture("q", "k", "v")
            model.hf(**subject.singles)
            captured = states.take()
    finally:
        for hook in hooks:
            hook.remove()
    return [Deviation(_projection_error(model, site, inputs, captured)) for site in sites]


def _rows(model: Model, site: Site) -> dict[str, Any]:
    projections = model.plan(site).projections
    return {letter: getattr(projections, letter) for letter in "qkv"}


def _projection_error(
    model: Model, site: Site, inputs: dict[str, list[Tensor]], captured: dict[str, dict[Site, Tensor]]
) -> float:
    weights, limits, worst = model.weights(site), model.plan(site).limits, 0.0
    for letter, rows in _rows(model, site).items():
        w, b, gain = (getattr(weights, f"{part}_{letter}").double() for part in ("w", "b", "gain"))
        measured = captured[letter][site].cpu().double()
        batch, _, positions, _ = measured.shape
        x = inputs[rows.module][site.call].cpu().double().reshape(batch, positions, -1)
        computed = gain[None, :, None] * (torch.einsum("bnm,hmd->bhnd", x, w) + b[None, :, None])
        computed = computed.clamp(-limits[letter], limits[letter]) if letter in limits else computed
        worst = max(worst, float((computed - measured).abs().max() / measured.abs().max()))
    return worst


def _cache(subject: Subject) -> list[Deviation]:
    """Count the differences between 16 greedy tokens with and without a cache."""
    if subject.tokens is None:
        raise _NotComparable("the model does not read tokens alone")
    prompt = subject.tokens[0, : max(1, min(32, subject.tokens.shape[1] - 16))]
    hf = subject.model.hf
    # Where the configuration names no first token any token will do: both runs use the same.
    start = 0 if lacks_start(hf) else None
    with subject.model.session():
        runs = [
            generate_tokens(hf, prompt, max_new_tokens=16, temperature=0.0, cache=cache, seed=0, start=start)
            for cache in (True, False)
        ]
    n = min(len(run) for run in runs)
    return [Deviation(float((runs[0][:n] != runs[1][:n]).sum()) + abs(len(runs[0]) - len(runs[1])))]

"""Look: what is inside a checkpoint and what measuring it would take, before anything is run or loaded."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from headscope.core.model_spec import ModelSpec
from headscope.core.site import Site
from headscope.core.weights import FeedForward
from headscope.model.formats.adapter import read_adapter
from headscope.model.formats.format import StoredNumbers
from headscope.model.model import trace_skeleton
from headscope.model.sources.names import Source, resolve
from headscope.model.spec import describe
from headscope.model.tracing.feed_forward import find_feed_forward
from headscope.model.transformers.classes import model_class
from headscope.model.transformers.library_messages import quiet
from headscope.progress import Step, duration

# What a report of the default text runs: 32 windows of this length.
WINDOW = 512
TOKENS = 32 * WINDOW
FORMS = 6  # the model as it is and its changed forms
STREAMING = 3.0  # streaming statistics cost about three plain attention calls
ALIGNMENT = 200.0  # SVDs of w_q and w_k of a head cost about this times d_model · d_head², all told
# What is no matrix product: the lenses' own numbers for each head, and figures. Measured on reports of tiny, minilm and
# smollm2 on two cores, whatever their speed.
SECONDS_PER_HEAD, SECONDS_OF_DRAWING = 1.6, 22.0
# Samples that lenses keep of single tokens, what each may take, and the sample of all rows that `gaussian` keeps.
SAMPLES, SAMPLE_BYTES, SAMPLED_TOKENS, ROW_BYTES = 3, 2**29, 64, 5 * 2**28


@dataclass(frozen=True)
class Look:
    """The card of a checkpoint with estimates for a report on the default text.

    Time is arithmetic (multiply-adds over this machine's measured speed) and a fixed share for each head, so expect it
    within a factor of two.
    """

    spec: ModelSpec
    sites: tuple[Site, ...]
    weights: str
    memory_bytes: int
    time_s: float
    gigaflops: float

    def __str__(self) -> str:
        spec = self.spec
        shared = f" sharing {spec.n_kv_heads} key/value heads" if spec.n_kv_heads != spec.n_heads else ""
        heads = f"{spec.n_heads} heads{shared}"
        rows = {
            "model": f"{spec.name} ({spec.architecture}, {spec.family}, {spec.kind})",
            "size": f"{spec.n_parameters:,} parameters, stored as {spec.dtype}",
            "attention": f"{len(self.sites)} sites in {spec.n_layers} layers, {heads}; "
            f"d_model {spec.d_model}, d_head {spec.d_head}",
            "positions": f"{spec.positions}; context {spec.context or 'without limit'}",
            "weights": self.weights,
            "memory": f"about {self.memory_bytes / 2**30:.2f} GiB for a report, in float32",
            "time": f"about {duration(self.time_s)} for a report on the default text at {self.gigaflops:.0f} Gflop/s",
        }
        if spec.dequantised:
            rows["warning"] = spec.weight_warning
        notes = (("note", note) for note in spec.notes)
        return "\n".join(f"{name:<10} {value}" for name, value in (*rows.items(), *notes))


def look(what: str | Path, *, hub: bool = False, progress: Step | None = None) -> Look:
    """The card of a checkpoint, from its configuration alone; a carrier is fetched first, if need be."""
    source = resolve(what, hub=hub, progress=progress)
    adapter = [] if source.adapter is None else [_adapter_note(source.adapter)]
    stored = _stored(source)
    with quiet():
        config, where = source.checkpoint.config(), str(source.checkpoint.config_file)
        skeleton, sites, plans = trace_skeleton(model_class(config, where), config, where)
    statuses = [plan.status for plan in plans.values()]
    spec = describe(
        skeleton,
        sites,
        name=source.name,
        source=source.kind,
        dtype=stored.types,
        dequantised=stored.dequantised,
        licence=source.licence,
        tells_initialisation=source.tells_initialisation,
        notes=(*stored.notes, *adapter),
    )
    speed = measured_speed()
    return Look(
        spec=spec,
        sites=sites,
        weights=_weights_line([(status.status, status.reason) for status in statuses]),
        memory_bytes=_memory(spec, sites),
        time_s=_seconds(spec, sites, find_feed_forward(skeleton, plans).matrices, speed),
        gigaflops=speed,
    )


def lens_seconds(spec: ModelSpec, sites: tuple[Site, ...], gigaflops: float) -> float:
    """What all lenses together take on the default text, about; the drawing of a report is not counted."""
    return _seconds(spec, sites, (), gigaflops) - SECONDS_OF_DRAWING


def measured_speed(size: int = 768, seconds: float = 0.2) -> float:
    """Gflop/s of float32 matrix products here and now."""
    a = torch.ones(size, size)
    a @ a
    runs, passed, start = 0, 0.0, time.perf_counter()
    while passed < seconds:  # at least once, also where a busy machine lets the time pass before the first product
        a @ a
        runs += 1
        passed = time.perf_counter() - start
    return 2 * size**3 * runs / passed / 1e9


def _stored(source: Source) -> StoredNumbers:
    return StoredNumbers("nothing yet") if source.kind == "random" else source.checkpoint.stored()


def _adapter_note(folder: Path) -> str:
    return f"an adapter is merged into the weights: {read_adapter(folder).folder.name}"


def _weights_line(statuses: list[tuple[str, str]]) -> str:
    counts = {status: sum(s == status for s, _ in statuses) for status in ("exact", "clipped", "normed", "refused")}
    reasons = {reason for status, reason in statuses if status in ("clipped", "refused")}
    counts_text = ", ".join(f"{count} sites {status}" for status, count in counts.items() if count)
    return f"{counts_text} ({'; '.join(sorted(reasons))})" if reasons else counts_text


def _memory(spec: ModelSpec, sites: tuple[Site, ...]) -> int:
    """Weights in float32, twice while a fresh copy is drawn, one window's activations, and what lenses keep."""
    activations = 4 * WINDOW * (spec.d_model * 16 + sum(site.n_heads for site in sites) * 10)
    numbers_per_token = sum(spec.d_model + site.n_heads * (2 * site.d_head + SAMPLED_TOKENS) for site in sites)
    samples = SAMPLES * min(SAMPLE_BYTES, 4 * SAMPLED_TOKENS * numbers_per_token * (TOKENS // WINDOW))
    samples += min(ROW_BYTES, 4 * TOKENS * spec.d_model * (len(sites) + 1))
    moments = 8 * (len(sites) + 1) * spec.d_model**2
    return 2 * 4 * spec.n_parameters + activations + samples + moments + 500 * 2**20  # torch and transformers


def _seconds(
    spec: ModelSpec, sites: tuple[Site, ...], feed_forward: tuple[FeedForward, ...], gigaflops: float
) -> float:
    heads = sum(site.n_heads for site in sites)
    return _flops(spec, sites, feed_forward) / (gigaflops * 1e9) + SECONDS_PER_HEAD * heads + SECONDS_OF_DRAWING


def _flops(spec: ModelSpec, sites: tuple[Site, ...], feed_forward: tuple[FeedForward, ...]) -> float:
    body = 2.0 * TOKENS * spec.n_parameters * FORMS
    attention = sum(4.0 * TOKENS * WINDOW * site.n_heads * site.d_head for site in sites) * STREAMING
    matrices = [matrix.sizes for matrix in feed_forward]
    for site in sites:
        matrices += [(spec.d_model, site.n_heads * site.d_head), (spec.d_model, site.n_heads * site.d_value)]
        matrices += [(spec.d_model, site.n_kv_heads * site.d_head), (spec.d_model, site.n_kv_heads * site.d_value)]
    heads = sum(ALIGNMENT * site.n_heads * spec.d_model * site.d_head**2 for site in sites)
    return body + attention + sum(_spectrum(*sizes) for sizes in matrices) + heads


def _spectrum(rows: int, columns: int) -> float:
    """A Gram matrix of the smaller side and its eigenvalues, in float64, which runs at half the speed."""
    p, n = min(rows, columns), max(rows, columns)
    return 2.0 * n * p**2 + 6.0 * p**3

r"""Low rank: how many components does a pattern need as the text grows, and do they grow like log n?

A fold over windows that keeps numbers only: the singular values of the leading n × n blocks of every head's pattern, n
doubling up to a limit. For comparison: those of the same weights in random places, with and without the popularity of
the keys, and of uniform attention.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import ceil, log

import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.lenses.lens import (
    AS_IS,
    Batch,
    Measurement,
    Needs,
    NotApplicable,
    Tables,
    TextLens,
    TextSize,
)
from headscope.lenses.lowrank.definition import defined
from headscope.lenses.lowrank.figures import figures
from headscope.lenses.lowrank.sentences import sentences
from headscope.lenses.lowrank.settings import SMALLEST, Params
from headscope.lenses.lowrank.tables import FITS, head_quantities
from headscope.lenses.shared.head_threads import mapped
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row
from headscope.lenses.shared.window_sample import priority_of
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES, adjusted, left_out
from headscope.maths.attention.fixed_margins import TOLERANCE
from headscope.maths.attention.shuffled_map import gumbel, popular_placement
from headscope.maths.linear_algebra.spectrum import components_for, energy_beyond, singular_values, stable_rank
from headscope.maths.resampling.growth_laws import Growth, growth
from headscope.maths.resampling.jackknife import jackknife, jackknife_p

QUANTITIES = ("components_90", "components_99", "nuclear_90", "stable_rank", "beyond_log", "largest")
GROWING = ("components_90", "components_99", "stable_rank")
ROUNDING = 1e-12  # of means over windows, relative
NULL_WINDOWS = 8  # each null map costs several times what a pattern costs
TOGETHER = 2**18  # weights of the heads that are computed together: few calls, and parts that threads can share
_HEAD = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
_NULLS = (
    "value", "low", "high", "popular", "difference", "difference_low", "difference_high", "p", "adjusted", "shuffled",
    "uniform", "most",
)  # fmt: skip
_FITS = (
    "value", "low", "high", "popular", "shuffled", "uniform", "logarithm", "power_misfit", "log_misfit", "gain",
    "gain_low", "gain_high", "p", "adjusted",
)  # fmt: skip
SCHEMAS = {
    "growth": pl.Schema(
        _HEAD
        | {"quantity": pl.String}
        | dict.fromkeys(_FITS, pl.Float64)
        | {"law": pl.String, "sizes": pl.Int64, "windows": pl.Int64, "null_windows": pl.Int64}
    ),
    "components": pl.Schema(
        _HEAD
        | {"tokens": pl.Int64, "quantity": pl.String}
        | dict.fromkeys(_NULLS, pl.Float64)
        | {"windows": pl.Int64, "null_windows": pl.Int64}
    ),
}


@dataclass(frozen=True)
class Window:
    """One site in one window: each quantity at each n, and the singular values at the largest n.

    The nulls (popular, shuffled) are there in the first windows only; `uniform` is the same for all heads. `misplaced`
    is the largest share of weight that a popular null has in a wrong column.
    """

    sizes: tuple[int, ...]
    measured: Float[Tensor, "sizes quantities heads"]
    nulls: Float[Tensor, "two sizes quantities heads"] | None
    uniform: Float[Tensor, "sizes quantities"]
    sigma: Float[Tensor, "heads rank"]
    popular_sigma: Float[Tensor, "heads rank"] | None
    misplaced: float


@dataclass(frozen=True)
class State:
    """The numbers of the first windows of each site; their number is limited. `passed_by` counts the others."""

    params: Params
    sites: tuple[Site, ...]
    windows: Mapping[Site, tuple[Window, ...]] = field(default_factory=dict)
    passed_by: Mapping[Site, int] = field(default_factory=dict)


class LowRank(TextLens[Params, State]):
    """How many components does a pattern need as the text grows, and do they grow like log n?"""

    name = "lowrank"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """The leading block of every pattern, one site at a time."""
        params.check()
        return Needs(captures=frozenset({_block(params)}), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet."""
        return State(params, sites)

    def update(self, state: State, batch: Batch) -> State:
        """Measure the windows of this batch, as long as there is room."""
        windows, passed_by = dict(state.windows), dict(state.passed_by)
        for site, blocks in batch.captures.get(_block(state.params), {}).items():
            for block, tokens, real in zip(blocks, batch.tokens, batch.real, strict=True):
                before = windows.get(site, ())
                if len(before) < state.params.windows:
                    window = _window(site, block, tokens, real, before)
                    windows[site] = (*before, *((window,) if window is not None else ()))
                else:
                    passed_by[site] = passed_by.get(site, 0) + 1
        return replace(state, windows=windows, passed_by=passed_by)

    def merge(self, a: State, b: State) -> State:
        """The first windows of both, a's first."""
        windows, passed_by = dict(a.windows), dict(a.passed_by)
        for site, later in b.windows.items():
            joined = (*a.windows.get(site, ()), *later)
            windows[site] = joined[: a.params.windows]
            passed_by[site] = passed_by.get(site, 0) + b.passed_by.get(site, 0) + len(joined) - len(windows[site])
        return replace(a, windows=windows, passed_by=passed_by)

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Means over windows, and the two laws."""
        measured_sites = [site for site in state.sites if state.windows.get(site)]
        if not measured_sites:
            reason = f"no pattern of at least {SMALLEST} queries and {SMALLEST} keys was shown to the lens"
            raise NotApplicable(reason)
        rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
        for site in measured_sites:
            rows["components"] += _component_rows(site, state.windows[site])
            rows["growth"] += _growth_rows(site, longest(state.windows[site]))
        tables = _tables(rows)
        sigma = {site: _sigma(longest(state.windows[site])) for site in measured_sites}
        return Measurement(
            tables=tables,
            figures=figures(tables, {site: values.numpy() for site, values in sigma.items()}),
            method=_method(state, measured_sites),
            quantities=head_quantities(tables),
            warnings=_warnings(state, measured_sites),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, on the stored patterns, with numpy and scipy."""
        rows_by_table = defined([batch for batch in batches if batch.variant == AS_IS], params.tokens, params.windows)
        return {
            name: pl.DataFrame(rows_by_table[name], schema=schema)
            for name, schema in SCHEMAS.items()
            if rows_by_table[name]
        }

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def _block(params: Params) -> str:
    return f"corner:{params.tokens}"


def _window(
    site: Site,
    block: Float[Tensor, "heads rows keys"],
    tokens: Int[Tensor, "n"],
    real: Bool[Tensor, "n"],
    before: Sequence[Window],
) -> Window | None:
    """None where there are fewer than the smallest n of real queries or of keys that anyone sees."""
    first = real[: block.shape[1]]
    # A stream of other length than the text (a picture's) has no padding.
    rows = first.nonzero()[:, 0] if len(first) == block.shape[1] else torch.arange(block.shape[1])
    keys = rows if site.kind == "self" else (block > 0).any(0).any(0).nonzero()[:, 0]
    n = min(len(rows), len(keys))
    sizes = tuple(SMALLEST << step for step in range(64) if SMALLEST << step <= n)
    if not sizes:
        return None
    # The first windows that reach each size, also where shorter ones came first.
    with_nulls = sum(len(earlier.sizes) >= len(sizes) for earlier in before) < NULL_WINDOWS
    p = block[:, rows[:n]][:, :, keys[:n]].to("cpu", torch.float64)
    places = torch.rand(n, n, generator=_generator(tokens[real]), dtype=torch.float64)
    measured, nulls, uniform, misplaced = [], [], [], 0.0
    popular_sigma = None
    for size in sizes:
        part = _pattern(site, p[:, :size, :size])
        visible = (part > 0).any(0)
        sigma = _spectra(part)
        measured.append(_numbers(sigma, size))
        uniform.append(_uniform(visible.numpy().tobytes(), size))
        if with_nulls:
            noise = gumbel(places[:size, :size])
            placements = mapped(partial(popular_placement, visible=visible, noise=noise), _few_heads(part))
            misplaced = max(misplaced, *(float(heads.misplaced.max()) for heads in placements))
            popular_sigma = torch.cat(mapped(singular_values, [heads.matrix for heads in placements]))
            mixed = _spectra(_shuffled(part, visible, places[:size, :size]))
            nulls.append(torch.stack([_numbers(popular_sigma, size), _numbers(mixed, size)]))
    return Window(
        sizes,
        torch.stack(measured),
        torch.stack(nulls, 1) if with_nulls else None,
        torch.stack(uniform),
        sigma,
        popular_sigma,
        misplaced,
    )


@lru_cache(maxsize=32)
def _uniform(visible: bytes, size: int) -> Float[Tensor, " quantities"]:
    """The quantities of uniform attention; most windows and sites see the same keys."""
    keys = torch.frombuffer(bytearray(visible), dtype=torch.bool).reshape(size, size)
    return _numbers(singular_values(keys / keys.sum(-1, keepdim=True, dtype=torch.float64).clamp_min(1)), size)


def _generator(tokens: Int[Tensor, "n"]) -> torch.Generator:
    """Seeded by the text of the window: the same shuffle for all heads and sites, however the text is split."""
    return torch.Generator().manual_seed(priority_of(tokens) >> 8)


def _pattern(site: Site, block: Float[Tensor, "heads n n"]) -> Float[Tensor, "heads n n"]:
    """The block as a pattern of its own; a causal block already is one."""
    if site.causal and site.kind == "self":
        return block
    total = block.sum(-1, keepdim=True)
    return block / torch.where(total > 0, total, 1.0)


def _shuffled(
    pattern: Float[Tensor, "heads n n"], visible: Bool[Tensor, "n n"], places: Float[Tensor, "n n"]
) -> Float[Tensor, "heads n n"]:
    """The weights of each row in random places among the keys that it sees."""
    source = torch.where(visible, places, torch.inf).argsort(-1)
    target = (~visible).to(torch.int8).argsort(dim=-1, stable=True)
    mixed = pattern.gather(-1, source.expand_as(pattern))
    return torch.zeros_like(pattern).scatter(-1, target.expand_as(pattern), mixed)


def _spectra(pattern: Float[Tensor, "heads n n"]) -> Float[Tensor, "heads n"]:
    return torch.cat(mapped(singular_values, _few_heads(pattern)))


def _few_heads(pattern: Float[Tensor, "heads n n"]) -> list[Float[Tensor, "few n n"]]:
    """The heads in groups: many small blocks at once, large blocks one by one."""
    step = max(1, TOGETHER // pattern[0].numel())
    return [pattern[first : first + step] for first in range(0, len(pattern), step)]


def _numbers(sigma: Float[Tensor, "*batch n"], size: int) -> Float[Tensor, "quantities *batch"]:
    return torch.stack(
        (
            components_for(sigma, 0.9),
            components_for(sigma, 0.99),
            components_for(sigma, 0.9, power=1),
            stable_rank(sigma),
            energy_beyond(sigma, ceil(log(size))),
            sigma[..., 0],
        )
    )


def _sigma(windows: Sequence[Window]) -> Float[Tensor, "two heads rank"]:
    """Mean singular values at the largest n: measured, and popular keys alone."""
    popular = [window.popular_sigma for window in windows[:NULL_WINDOWS] if window.popular_sigma is not None]
    return torch.stack([torch.stack([window.sigma for window in windows]).mean(0), torch.stack(popular).mean(0)])


def _tables(rows: Mapping[str, list[Row]]) -> dict[str, pl.DataFrame]:
    """Without the table of growth where there are too few sizes for it."""
    tables = {name: pl.DataFrame(rows[name], schema=SCHEMAS[name]) for name in SCHEMAS if rows[name]}
    tables["components"] = adjusted(tables["components"], ["tokens", "quantity"])
    if "growth" in tables:
        tables["growth"] = _with_laws(adjusted(tables["growth"], ["quantity"]))
    return tables


def _with_laws(fits: pl.DataFrame) -> pl.DataFrame:
    """The table with the law that each row follows, where the test decides."""
    is_constant = (pl.col("power_misfit") < 1e-9) & (pl.col("value").abs() < 1e-9)
    sure = pl.col("adjusted") < FALSE_DISCOVERIES
    laws = (
        pl.when(is_constant)
        .then(pl.lit("none"))
        .when(pl.min_horizontal("power_misfit", "log_misfit") > FITS)
        .then(pl.lit("neither"))
        .when(sure & (pl.col("gain") > 0))
        .then(pl.lit("power"))
        .when(sure & (pl.col("gain") < 0))
        .then(pl.lit("logarithm"))
        .otherwise(pl.lit("undecided"))
    )
    return fits.with_columns(laws.alias("law"))


def _chances(estimates: Float[Tensor, "sets *batch"]) -> Float[Tensor, "*batch"]:
    """Two-sided p-values; windows that agree up to rounding show no error, and only their signs are tested."""
    windows = len(estimates) - 1
    same = (estimates[1:] - estimates[1]).abs().amax(0) <= ROUNDING * estimates[1].abs()
    by_sign = torch.where(estimates[0] == 0, 1.0, 2.0 ** (1 - windows)).double()
    return torch.where(same, by_sign, jackknife_p(estimates))


def longest(windows: Sequence[Window]) -> list[Window]:
    """The windows that reach the largest n: the laws are fitted to the same windows at every n."""
    most = max(len(window.sizes) for window in windows)
    return [window for window in windows if len(window.sizes) == most]


def _component_rows(site: Site, windows: Sequence[Window]) -> Iterator[Row]:
    for step, size in enumerate(longest(windows)[0].sizes):
        long = [window for window in windows if len(window.sizes) > step]
        measured = torch.stack([window.measured[step] for window in long])
        uniform = torch.stack([window.uniform[step] for window in long]).mean(0)
        value, half = jackknife(left_out(measured))
        nulls = _nulls(long, step)
        popular, shuffled = nulls.mean(0)
        differences = left_out(measured[: len(nulls)] - nulls[:, 0])
        difference, difference_half = jackknife(differences)
        p = _chances(differences)
        itself = _numbers(torch.ones(size, dtype=torch.float64), size)
        sure = len(long) > 1
        for head in range(site.n_heads):
            for index, name in enumerate(QUANTITIES):
                at = index, head
                yield {
                    **place(site, head),
                    "tokens": size,
                    "quantity": name,
                    "value": float(value[at]),
                    "low": max(float(value[at] - half[at]), 0.0) if sure else None,
                    "high": float(value[at] + half[at]) if sure else None,
                    "popular": float(popular[at]),
                    "difference": float(difference[at]),
                    "difference_low": float(difference[at] - difference_half[at]) if sure else None,
                    "difference_high": float(difference[at] + difference_half[at]) if sure else None,
                    "p": float(p[at]) if sure else None,
                    "shuffled": float(shuffled[at]),
                    "uniform": float(uniform[index]),
                    "most": float(itself[index]),
                    "windows": len(long),
                    "null_windows": len(nulls),
                }


def _nulls(windows: Sequence[Window], step: int) -> Float[Tensor, "windows two quantities heads"]:
    """The nulls of the first windows that reach a size; these always have them."""
    return torch.stack([window.nulls[:, step] for window in windows[:NULL_WINDOWS] if window.nulls is not None])


def _growth_rows(site: Site, windows: Sequence[Window]) -> Iterator[Row]:
    """The laws of each head, from three sizes on."""
    sizes = windows[0].sizes
    if len(sizes) < 3:
        return
    n = torch.tensor(sizes, dtype=torch.float64)
    growing = [QUANTITIES.index(name) for name in GROWING]
    measured = torch.stack([window.measured[:, growing] for window in windows])  # windows, sizes, quantities, heads
    flat = growth(n, torch.stack([window.uniform[:, growing] for window in windows]).mean(0).T).exponent
    fits: Growth = growth(n, left_out(measured).movedim(1, -1))
    nulls = torch.stack([_nulls(windows, step)[:, :, growing] for step in range(len(sizes))], -1)
    popular, shuffled = growth(n, nulls.mean(0)).exponent
    itself = float(growth(n, n.log()).exponent)
    value, half = jackknife(fits.exponent)
    gains = fits.log_misfit - fits.power_misfit
    gain, gain_half = jackknife(gains)
    p = _chances(gains)
    sure = len(windows) > 1
    for head in range(site.n_heads):
        for index, name in enumerate(GROWING):
            at = index, head
            yield {
                **place(site, head),
                "quantity": name,
                "value": float(value[at]),
                "low": float(value[at] - half[at]) if sure else None,
                "high": float(value[at] + half[at]) if sure else None,
                "popular": float(popular[at]),
                "shuffled": float(shuffled[at]),
                "uniform": float(flat[index]),
                "logarithm": itself,
                "power_misfit": float(fits.power_misfit[0][at]),
                "log_misfit": float(fits.log_misfit[0][at]),
                "gain": float(gain[at]),
                "gain_low": float(gain[at] - gain_half[at]) if sure else None,
                "gain_high": float(gain[at] + gain_half[at]) if sure else None,
                "p": float(p[at]) if sure else None,
                "sizes": len(sizes),
                "windows": len(windows),
                "null_windows": len(nulls),
            }


def _method(state: State, measured_sites: Sequence[Site]) -> str:
    counts = {len(state.windows[site]) for site in measured_sites}
    most = max(window.sizes[-1] for site in measured_sites for window in state.windows[site])
    passed_by = max(state.passed_by.values(), default=0)
    measured_windows = f"the first {max(counts)} windows" if passed_by else f"all {max(counts)} windows"
    unmeasured_note = (
        f" ({passed_by} more were not measured; the option windows says how many may be)" if passed_by else ""
    )
    misplaced = max(window.misplaced for site in measured_sites for window in state.windows[site])
    margin_note = (
        f"The popular null has the row sums of the pattern exactly, and at most {100 * max(misplaced, TOLERANCE):.2g} "
        "% of its weight in a column that should not have it."
    )
    other = [site for site in measured_sites if not (site.causal and site.kind == "self")]
    block_note = (
        " Blocks of sites that are not causal have their rows divided by their sums: scores of the whole window, keys "
        "behind the n-th hidden."
        if other
        else ""
    )
    return (
        f"Singular values (square roots of the eigenvalues of PᵀP, float64) of the leading blocks of up to {most} "
        f"tokens, in {measured_windows} of the text that have at least {SMALLEST} tokens{unmeasured_note}."
        f"{block_note} Intervals: jackknife over windows. Nulls: in the first {NULL_WINDOWS} windows at most, one draw "
        f"per window, the same for all heads. {margin_note}"
    )


def _warnings(state: State, measured_sites: Sequence[Site]) -> tuple[str, ...]:
    messages = []
    unseen = [site.label for site in state.sites if site not in measured_sites]
    if unseen:
        messages.append(f"No block of {SMALLEST} tokens of {', '.join(unseen)} was seen.")
    short = [site.label for site in measured_sites if len(longest(state.windows[site])[0].sizes) < 3]
    if short:
        messages.append(
            f"Growth is not fitted in {', '.join(short)}: it needs at least three sizes, so windows of at least "
            f"{4 * SMALLEST} tokens."
        )
    if min(len(longest(state.windows[site])) for site in measured_sites) < 2:
        messages.append("One window reaches the largest n: no interval there.")
    return tuple(messages)


LENS = LowRank()

r"""Low rank: how many components does a pattern need as the text grows, and do they grow like log n?

A fold over windows that keeps numbers only: of the first windows of the text, the singular values of the leading n × n
blocks of every head's pattern, n doubling up to a limit; beside them those of the same rows with their weights in
random places, and of uniform attention.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, log

import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import UsageError
from headscope.lenses.definitions.lowrank import defined
from headscope.lenses.dependent.jackknife import jackknife
from headscope.lenses.drawn import priority_of
from headscope.lenses.figures.layout import label_of, place
from headscope.lenses.figures.lowrank import figures
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.maths.growth import Growth, growth
from headscope.maths.spectrum import components_for, energy_beyond, singular_values, stable_rank

ORDER = 10

ABOUT = About(
    title="The rank of the pattern",
    question="How many singular components does a pattern need as the text grows, and do they grow like log n?",
    definition=(
        "Of each head's pattern P the leading block of n queries and n keys is taken, n = 8, 16, 32, … up to a limit, "
        "and its singular values σ₁ ≥ σ₂ ≥ …. In a causal model that block is the pattern of the first n tokens. "
        "Elsewhere (encoders, cross-attention) its rows are divided by their sums: the same scores, with the keys "
        "behind the n-th hidden; the tokens have still seen the whole window. Components for 90 % and 99 % are how "
        "many of the largest carry that share of the energy Σσ². To their means over windows two laws are fitted, each "
        "with two free numbers: a power c nᵖ and a logarithm a + b ln n. Nulls: the same rows with their weights in "
        "random places among the keys that they see (as sharp, but no two rows look at the same keys on purpose), "
        "uniform attention over those keys, and a pattern in which every token looks at itself, which needs all n."
    ),
    formulas=(
        r"r_s(n) = \min \left\{ k : \sum_{i \leq k} \sigma_i^2 \geq s \sum_i \sigma_i^2 \right\}, \qquad "
        r"\mathrm{stable\ rank} = \sum_i \sigma_i^2 / \sigma_1^2",
        r"r(n) \approx c\,n^p \quad \mathrm{or} \quad r(n) \approx a + b \ln n, \qquad "
        r"\mathrm{misfit} = \sqrt{\langle (\mathrm{fit}/r - 1)^2 \rangle_n}",
        r"\mathrm{beyond} = \sum_{i > \ln n} \sigma_i^2 / \sum_i \sigma_i^2",
    ),
    reading=(
        "If the pattern had a rank of order log n, its components would grow by the same number with every doubling of "
        "n, the power would fall towards 0 as n grows, and nothing would be left beyond the ln n largest singular "
        "values. A head that looks at one token (the first, a separator) is of rank nearly 1 whatever n is; a head "
        "that looks at neighbours needs a fixed share of n, so p is near 1. The theorem behind the conjecture speaks "
        "of the action on given values, not of the pattern: it neither needs low rank nor is refuted by high rank. But "
        "one matrix of rank k that serves all values misses what lies beyond the k largest singular values. Energy "
        "counts squares; of the nuclear norm, the sum of the σ, small values hold much more (`nuclear_90`)."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, section 7.2.1. Wang et al. (2020), Linformer: self-attention with linear complexity "
        "(the theorem, and cumulative singular values of trained patterns). Conti, section 2.1.3, Figure 10."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self- or cross-attention",
        "layer": "counted from 0",
        "head": "counted from 0",
        "tokens": "n: queries and keys of the block",
        "quantity": (
            "components_90, components_99: singular components that carry 90 % and 99 % of the energy; nuclear_90: "
            "that carry 90 % of the sum of singular values; stable_rank: energy over that of the largest; beyond_log: "
            "share of the energy beyond the ⌈ln n⌉ largest; largest: σ₁, from 1 (where rows sum to 1) to √n, where all "
            "look at one key"
        ),
        "value": "components: mean over windows. growth: the power p of n",
        "low": "lower end of the 95 % interval (jackknife over windows, Student t); empty with fewer than two windows",
        "high": "upper end",
        "shuffled": "the same with the weights of each row in random places among the keys that it sees",
        "uniform": "the same with attention uniform over the keys that are seen",
        "most": "the same for a pattern in which each token looks at itself alone",
        "logarithm": "the power that ln n itself shows over these sizes",
        "power_misfit": "what the best c nᵖ leaves over: root mean square of relative deviations",
        "log_misfit": "what the best a + b ln n leaves over",
        "gain": "log_misfit less power_misfit: above 0 the power fits better, below 0 the logarithm",
        "gain_low": "lower end of its 95 % interval (jackknife over windows)",
        "gain_high": "upper end",
        "sizes": "how many n the laws are fitted to",
        "windows": "windows of text in the mean",
    },
)

QUANTITIES = ("components_90", "components_99", "nuclear_90", "stable_rank", "beyond_log", "largest")
GROWING = ("components_90", "components_99", "stable_rank")
SMALLEST, LARGEST = 8, 1024

_HEAD = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
_NULLS = ("value", "low", "high", "shuffled", "uniform", "most")
_FITS = ("value", "low", "high", "shuffled", "uniform", "logarithm", "power_misfit", "log_misfit", "gain", "gain_low")
SCHEMAS = {
    "growth": pl.Schema(
        _HEAD
        | {"quantity": pl.String}
        | dict.fromkeys((*_FITS, "gain_high"), pl.Float64)
        | {"sizes": pl.Int64, "windows": pl.Int64}
    ),
    "components": pl.Schema(
        _HEAD | {"tokens": pl.Int64, "quantity": pl.String} | dict.fromkeys(_NULLS, pl.Float64) | {"windows": pl.Int64}
    ),
}
Row = dict[str, object]


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(
        default=256, metadata={"help": f"largest n, {SMALLEST} to {LARGEST}; the time grows with its cube"}
    )
    windows: int = field(default=6, metadata={"help": "windows of the text that are measured, the first ones"})


@dataclass(frozen=True)
class Window:
    """One site in one window: each quantity at each n, and the singular values at the largest n.

    The first axis of `found` and `sigma` is: measured, shuffled; `uniform` is the same for all heads.
    """

    sizes: tuple[int, ...]
    found: Float[Tensor, "two sizes quantities heads"]
    uniform: Float[Tensor, "sizes quantities"]
    sigma: Float[Tensor, "two heads rank"]


@dataclass(frozen=True)
class State:
    """The numbers of the first windows of each site; so many and no more."""

    params: Params
    sites: tuple[Site, ...]
    windows: Mapping[Site, tuple[Window, ...]] = field(default_factory=dict)


def needs(params: Params, spec: ModelSpec) -> Needs:
    """The leading block of every pattern, one site at a time."""
    if not SMALLEST <= params.tokens <= LARGEST or params.windows < 1:
        raise UsageError(
            f"tokens={params.tokens} and windows={params.windows}: between {SMALLEST} and {LARGEST} tokens of at least "
            "one window can be measured"
        )
    return Needs(captures=frozenset({_block(params)}), pieces=True)


def _block(params: Params) -> str:
    return f"corner:{params.tokens}"


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet."""
    return State(params, sites)


def update(state: State, batch: Batch) -> State:
    """Measure the windows of this batch, as long as there is room."""
    if batch.variant != AS_IS:
        return state
    windows = dict(state.windows)
    for site, blocks in batch.captures.get(_block(state.params), {}).items():
        for block, tokens, real in zip(blocks, batch.tokens, batch.real, strict=True):
            if len(windows.get(site, ())) < state.params.windows:
                one = _window(site, block, tokens, real)
                windows[site] = (*windows.get(site, ()), *((one,) if one is not None else ()))
    return replace(state, windows=windows)


def merge(a: State, b: State) -> State:
    """The first windows of both, a's first."""
    both = {site: (*a.windows.get(site, ()), *found)[: a.params.windows] for site, found in b.windows.items()}
    return replace(a, windows={**a.windows, **both})


def _window(
    site: Site, block: Float[Tensor, "heads rows keys"], tokens: Int[Tensor, "n"], real: Bool[Tensor, "n"]
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
    p = block[:, rows[:n]][:, :, keys[:n]].to(torch.float64)
    places = torch.rand(n, n, generator=_generator(tokens[real]), dtype=torch.float64)
    found, uniform = [], []
    for size in sizes:
        part = _pattern(site, p[:, :size, :size])
        seen = (part > 0).any(0)
        flat = seen.to(torch.float64) / seen.sum(-1, keepdim=True).clamp_min(1)
        sigma = torch.stack([_spectra(part), _spectra(_shuffled(part, seen, places[:size, :size]))])
        found.append(_numbers(sigma, size).transpose(0, 1))
        uniform.append(_numbers(singular_values(flat), size))
    return Window(sizes, torch.stack(found, 1), torch.stack(uniform), sigma)


def _generator(tokens: Int[Tensor, "n"]) -> torch.Generator:
    """Seeded by the text of the window: the same shuffle for all heads and sites, however the text is split."""
    return torch.Generator().manual_seed(priority_of(tokens) >> 8)


def _pattern(site: Site, block: Float[Tensor, "heads n n"]) -> Float[Tensor, "heads n n"]:
    """What the block is as a pattern of its own: it is one already where no query sees a key behind itself."""
    if site.causal and site.kind == "self":
        return block
    total = block.sum(-1, keepdim=True)
    return block / torch.where(total > 0, total, 1.0)


def _shuffled(
    pattern: Float[Tensor, "heads n n"], seen: Bool[Tensor, "n n"], places: Float[Tensor, "n n"]
) -> Float[Tensor, "heads n n"]:
    """The weights of each row in random places among the keys that it sees."""
    source = torch.where(seen, places, torch.inf).argsort(-1)
    target = (~seen).to(torch.int8).argsort(dim=-1, stable=True)
    mixed = pattern.gather(-1, source.expand_as(pattern))
    return torch.zeros_like(pattern).scatter(-1, target.expand_as(pattern), mixed)


def _spectra(pattern: Float[Tensor, "heads n n"]) -> Float[Tensor, "heads n"]:
    """One head at a time: the Gram matrices of all would be as large as the patterns."""
    return torch.stack([singular_values(one) for one in pattern])


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


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Means over windows, and the two laws."""
    params = asdict(state.params)
    seen = [site for site in state.sites if state.windows.get(site)]
    if not seen:
        reason = f"no pattern of at least {SMALLEST} queries and {SMALLEST} keys was shown to the lens"
        return Finding("lowrank", ABOUT, status="not applicable", reason=reason, params=params)
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for site in seen:
        rows["components"] += _component_rows(site, state.windows[site])
        rows["growth"] += _growth_rows(site, longest(state.windows[site]))
    tables = _tables(rows)
    sigma = {site: torch.stack([one.sigma for one in longest(state.windows[site])]).mean(0) for site in seen}
    finding = Finding(
        "lowrank",
        ABOUT,
        tables=tables,
        figures=figures(tables, {site: found.numpy() for site, found in sigma.items()}),
        method=_method(state, seen),
        warnings=_warnings(state, seen),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _tables(rows: Mapping[str, list[Row]]) -> dict[str, pl.DataFrame]:
    """Without the table of growth where there are too few sizes for it."""
    return {name: pl.DataFrame(rows[name], schema=schema) for name, schema in SCHEMAS.items() if rows[name]}


def longest(windows: Sequence[Window]) -> list[Window]:
    """Those that reach the largest n: the laws are fitted to the same windows at every n."""
    most = max(len(one.sizes) for one in windows)
    return [one for one in windows if len(one.sizes) == most]


def _left_out(values: Float[Tensor, "windows *rest"]) -> Float[Tensor, "sets *rest"]:
    """The mean over all windows, then over all but each; a single window stands for itself."""
    total, w = values.sum(0), len(values)
    return torch.cat((total[None] / w, (total - values) / (w - 1) if w > 1 else values))


def _component_rows(site: Site, windows: Sequence[Window]) -> Iterator[Row]:
    for step, size in enumerate(longest(windows)[0].sizes):
        long = [one for one in windows if len(one.sizes) > step]
        found = torch.stack([one.found[:, step] for one in long])
        uniform = torch.stack([one.uniform[step] for one in long]).mean(0)
        value, half = jackknife(_left_out(found[:, 0]))
        shuffled = found[:, 1].mean(0)
        itself = _numbers(torch.ones(size, dtype=torch.float64), size)
        for head in range(site.n_heads):
            for index, name in enumerate(QUANTITIES):
                mean, margin = float(value[index, head]), float(half[index, head])
                yield {
                    **place(site, head),
                    "tokens": size,
                    "quantity": name,
                    "value": mean,
                    "low": max(mean - margin, 0.0) if margin == margin else None,
                    "high": mean + margin if margin == margin else None,
                    "shuffled": float(shuffled[index, head]),
                    "uniform": float(uniform[index]),
                    "most": float(itself[index]),
                    "windows": len(long),
                }


def _growth_rows(site: Site, windows: Sequence[Window]) -> Iterator[Row]:
    """The laws of each head, from three sizes on."""
    sizes = windows[0].sizes
    if len(sizes) < 3:
        return
    n = torch.tensor(sizes, dtype=torch.float64)
    chosen = [QUANTITIES.index(name) for name in GROWING]
    found = torch.stack([one.found[:, :, chosen] for one in windows])  # windows, two, sizes, quantities, heads
    flat = growth(n, torch.stack([one.uniform[:, chosen] for one in windows]).mean(0).T).exponent
    own: Growth = growth(n, _left_out(found[:, 0]).movedim(1, -1))
    mixed = growth(n, found[:, 1].mean(0).movedim(0, -1)).exponent
    itself = float(growth(n, n.log()).exponent)
    value, half = jackknife(own.exponent)
    gain, gain_half = jackknife(own.log_misfit - own.power_misfit)
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
                "shuffled": float(mixed[at]),
                "uniform": float(flat[index]),
                "logarithm": itself,
                "power_misfit": float(own.power_misfit[0][at]),
                "log_misfit": float(own.log_misfit[0][at]),
                "gain": float(gain[at]),
                "gain_low": float(gain[at] - gain_half[at]) if sure else None,
                "gain_high": float(gain[at] + gain_half[at]) if sure else None,
                "sizes": len(sizes),
                "windows": len(windows),
            }


def _method(state: State, seen: Sequence[Site]) -> str:
    counts = {len(state.windows[site]) for site in seen}
    most = max(one.sizes[-1] for site in seen for one in state.windows[site])
    other = [site for site in seen if not (site.causal and site.kind == "self")]
    cut = (
        " Blocks of sites that are not causal have their rows divided by their sums: scores of the whole window, keys "
        "behind the n-th hidden."
        if other
        else ""
    )
    return (
        f"Singular values (square roots of the eigenvalues of PᵀP, float64) of the leading blocks of up to {most} "
        f"tokens, in the first {max(counts)} windows of the text that are long enough; none is left out or "
        f"approximated.{cut} Intervals: jackknife over windows. One shuffle per window, the same for all heads."
    )


def _warnings(state: State, seen: Sequence[Site]) -> tuple[str, ...]:
    found = []
    unseen = [site.label for site in state.sites if site not in seen]
    if unseen:
        found.append(f"No block of {SMALLEST} tokens of {', '.join(unseen)} was seen.")
    short = [site.label for site in seen if len(longest(state.windows[site])[0].sizes) < 3]
    if short:
        found.append(
            f"Growth is not fitted in {', '.join(short)}: it needs at least three sizes, so windows of at least "
            f"{4 * SMALLEST} tokens."
        )
    if min(len(longest(state.windows[site])) for site in seen) < 2:
        found.append("One window reaches the largest n: no interval there.")
    return tuple(found)


def headline(finding: Finding) -> tuple[str, ...]:
    """How many components, how they grow, and whether anything is left beyond log n."""
    if finding.status != "ok":
        return ()
    table, fits = finding.tables["components"], finding.tables.get("growth", pl.DataFrame())
    size = max(table["tokens"].to_list())
    last = table.filter(pl.col("tokens") == size)
    told = (_count_sentence(last, size), _growth_sentence(fits, table), _beyond_sentence(last, size))
    return tuple(sentence for sentence in told if sentence)


def _median(rows: pl.DataFrame, column: str = "value") -> float:
    return float(rows[column].to_torch().quantile(0.5)) if rows.height else 0.0


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity)


def _count_sentence(last: pl.DataFrame, size: int) -> str:
    ninety, more = _of(last, "components_90"), _of(last, "components_99")
    ordered = ninety.sort("value", maintain_order=True)
    least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
    return (
        f"At n = {size} the pattern of the median head has 90 % of its energy in {_median(ninety):.3g} singular "
        f"components and 99 % in {_median(more):.3g} (same rows, weights in random places: "
        f"{_median(ninety, 'shuffled'):.3g} and {_median(more, 'shuffled'):.3g}; uniform attention: "
        f"{_median(ninety, 'uniform'):.3g} and {_median(more, 'uniform'):.3g}; ln n = {log(size):.1f}); for 90 % "
        f"{label_of(least)} needs {least['value']:.3g} and {label_of(most)} {most['value']:.3g}."
    )


def kinds(fits: pl.DataFrame) -> dict[str, int]:
    """How many heads grow how, by the intervals over windows: always one component, like a power, like a logarithm."""
    always = fits.filter(pl.col("power_misfit") < 1e-9, pl.col("value").abs() < 1e-9)
    others = fits.filter(~((pl.col("power_misfit") < 1e-9) & (pl.col("value").abs() < 1e-9)))
    return {
        "one": always.height,
        "power": others.filter(pl.col("gain_low") > 0).height,
        "logarithm": others.filter(pl.col("gain_high") < 0).height,
    }


def _growth_sentence(fits: pl.DataFrame, table: pl.DataFrame) -> str:
    if fits.is_empty():
        return ""
    rows, more = _of(fits, "components_90"), _of(fits, "components_99")
    sizes = sorted(set(table["tokens"].to_list()))
    p = _median(rows)
    itself = rows["logarithm"][0]
    by = {name: kinds(_of(fits, name)) for name in ("components_90", "components_99")}
    verdict = {name: _verdict(count, rows.height) for name, count in by.items()}
    same = verdict["components_90"] == verdict["components_99"]
    said = (
        f"for 90 % and 99 % they grow {verdict['components_90']}"
        if same
        else f"for 90 % they grow {verdict['components_90']}, for 99 % {verdict['components_99']}"
    )

    def told(name: str) -> str:
        n = by[name]
        return f"{n['power']} a power, {n['logarithm']} a logarithm, {n['one']} no growth"

    return (
        f"From n = {sizes[0]} to {sizes[-1]} the components of the median head grow like n to the power {p:.2f} for "
        f"90 % and {_median(more):.2f} for 99 % (ln n itself: {itself:.2f}, weights in random places: "
        f"{_median(rows, 'shuffled'):.2f} and {_median(more, 'shuffled'):.2f}, each token on itself: 1): {said}. Of "
        f"{rows.height} heads, by 95 % intervals over windows: {told('components_90')} (90 %); "
        f"{told('components_99')} (99 %)."
    )


def _verdict(count: Mapping[str, int], heads: int) -> str:
    if count["one"] > heads / 2:
        return "not at all in most heads"
    if count["power"] > 2 * count["logarithm"]:
        return "like a power of n rather than log n"
    if count["logarithm"] > 2 * count["power"]:
        return "like log n rather than a power"
    return "like a power in some heads and like log n in others"


def _beyond_sentence(last: pl.DataFrame, size: int) -> str:
    rows = _of(last, "beyond_log")
    left, mixed, flat = (f"{100 * round(_median(rows, name), 5):.2g} %" for name in ("value", "shuffled", "uniform"))
    small = rows.filter(pl.col("value") < 0.01).height
    return (
        f"The singular values beyond the {ceil(log(size))} = ⌈ln n⌉ largest hold {left} of the energy in the median "
        f"head (weights in random places: {mixed}, uniform attention: {flat}) and less than 1 % in {small} of "
        f"{rows.height} heads: that they are close to zero "
        f"{'holds' if small > 0.9 * rows.height else 'holds in some heads only' if small else 'fails'}."
    )


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, on the stored patterns, with numpy and scipy."""
    found = defined([batch for batch in batches if batch.variant == AS_IS], params.tokens, params.windows)
    return {name: pl.DataFrame(found[name], schema=schema) for name, schema in SCHEMAS.items() if found[name]}


LENS = Lens(
    "lowrank", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)  # fmt: skip

r"""Angles: do the angles between tokens tell where attention goes, and what do softmaxes do along an arc?

A fold that keeps sums: for each of a bounded sample of windows, products within rows of cosines, scores and weights,
also with tokens shuffled; and divergences along arcs between the vectors of the window. Of the first window the maps
themselves are kept, to be drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import polars as pl
from torch import Tensor

from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import UsageError
from headscope.lenses.angles.definition import defined
from headscope.lenses.angles.figures import figures
from headscope.lenses.angles.map_pair import Picture, picture_of
from headscope.lenses.angles.sentences import method, sentences, warnings
from headscope.lenses.angles.tables import arc_curves, arc_rows, drawn_rows, frames, head_rows
from headscope.lenses.angles.window import KEYS, Window, window_of
from headscope.lenses.dependence.tables import Row
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.shared.left_out_windows import adjusted
from headscope.lenses.shared.token_pairs import part_of
from headscope.lenses.shared.window_sample import drawn, priority_of

ORDER = 11

ABOUT = About(
    title="Angles of tokens and attention",
    question="Do the angles between tokens tell where attention goes, and what do softmaxes do along an arc?",
    definition=(
        "The cosine of two tokens is taken of the vectors that enter the layer (input) and of those that enter the "
        "first layer (embedding). It is compared with the score scale·⟨q, k⟩, before any bias or cap, with the weight, "
        "and with the rank of the weight among the keys of the row (Spearman), over pairs of different tokens. All "
        "correlations are within rows: each row less its mean, as a softmax compares the keys of one query. Null: the "
        "same with the tokens of the window shuffled when the cosines are taken. Because near tokens have both more "
        "weight and larger cosines, the correlation given the distance stands beside it (ln |i − j|; for ranks the "
        "rank of the distance). Arcs: two inputs of a window, each less its mean entry (which no softmax sees) and "
        "brought to one length, are joined by an arc u(t) from v to w, and the divergence of Softmax(u(t)) from "
        "Softmax(w) is set beside the law for vectors that are random in every direction: at the length that the "
        "vectors have, at length 1, and for the attention row of a query whose input moves so and whose scores are "
        "mixed as the input is."
    ),
    formulas=(
        r"\rho = \frac{\sum_{ij} \dot a_{ij}\,\dot c_{ij}}{\sqrt{\sum_{ij} \dot a_{ij}^2 \sum_{ij} \dot c_{ij}^2}}, "
        r"\qquad c_{ij} = \frac{\langle x_i, x_j \rangle}{|x_i|\,|x_j|}, \qquad \dot y_{ij} = y_{ij} - \bar y_{i}",
        r"u(t) = \frac{\sin((1-t)\theta)}{\sin\theta}\,v + \frac{\sin(t\theta)}{\sin\theta}\,w, \qquad "
        r"s(t) = \frac{\sin((1-t)\theta)}{\sin\theta}\,s_v + \frac{\sin(t\theta)}{\sin\theta}\,s_w",
        r"E\,D_{KL}(\mathrm{Sm}(w) \| \mathrm{Sm}(u(t))) = B\,(1 - \cos((1-t)\theta)), \qquad "
        r"B = E \langle \mathrm{Sm}(w), w - \bar w \rangle",
    ),
    reading=(
        "A correlation of 0.1 explains one hundredth of the variance. What is left given the distance, and differs "
        "from the shuffled tokens, is angle that the form of queries and keys kept; a negative one means that a head "
        "looks away from tokens like its own. The slope says by how much score or weight changes from cosine 0 to 1. "
        "Along an arc, the thesis has the divergence as a sinusoid of each pair; corrected, that is true of the mean "
        "over random pairs, with an amplitude B that is not free. A ratio of 1 (measured over predicted at the start) "
        "says that real vectors behave so; above 1 they are further apart than random vectors of their length and "
        "angle, below 1 nearer, as where they share a few huge entries that decide every softmax. The best sinusoid "
        "has three free numbers and fits almost any smooth curve: `line` says what it would leave of a straight line, "
        "and only below that does a small `sinusoid` mean anything."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 5.2.4 (Figure 5.1), 6.3 and 8.3 (Figure 8.6). Shoemake (1985), Animating "
        "rotation with quaternion curves. Benjamini and Hochberg (1995), Journal of the Royal Statistical Society B "
        "57, 289."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self; cross-attention is left out: its keys come from vectors that are not shown",
        "layer": "counted from 0",
        "head": "counted from 0; empty where a row is about the stream that enters the layer or the average of heads",
        "quantity": (
            "heads: whose cosine (input, embedding) with what (score, weight, rank of the weight). arcs: input: "
            "between inputs at their length; unit: at length 1; row: attention rows of a head. drawn: whose cosine, "
            "with the weights averaged over heads, in the window that is drawn"
        ),
        "value": "heads, drawn: correlation within rows. arcs: mean divergence at the start of the arc, in nats",
        "low": "lower end of the 95 % interval (jackknife over windows, Student t); empty with fewer than two windows",
        "high": "upper end",
        "null": "the same with the tokens of each window shuffled, mean over shuffles",
        "null_sd": "standard deviation over shuffles",
        "given_distance": "partial correlation given the distance; empty where the distance determines it",
        "given_low": "lower end of its 95 % interval",
        "given_high": "upper end",
        "p": "whether the correlation given the distance is 0; two-sided, Student t over windows",
        "adjusted": "p for so many heads at once (Benjamini and Hochberg)",
        "slope": "change of score or weight for a change of the cosine by 1",
        "rank": "the same for ranks within rows",
        "predicted": "by the law, at the start of the arc",
        "ratio": "value over predicted",
        "ratio_low": "lower end of its 95 % interval (jackknife over windows)",
        "ratio_high": "upper end",
        "law_misfit": "largest distance of the mean curve from the law, over the law's start",
        "sinusoid": "what the best sinusoid leaves of a curve: largest deviation over its range, mean over arcs",
        "line": "what the best sinusoids of these frequencies would leave of a straight line",
        "angle": "mean angle of an arc, in degrees",
        "length": "mean length of its ends, the mean entry taken off (row: of the scores of the target)",
        "samples": "heads, drawn: pairs of tokens. arcs: arcs",
        "windows": "windows of text they came from",
    },
)

CAPTURES = ("resid", "q", "k", "pairs", "scale", "corner")
# Windows kept at most.
WINDOWS = 64


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})


@dataclass(frozen=True)
class State:
    """The windows of each site and what is drawn of it; of the batch at hand the embeddings, and what waits."""

    params: Params
    sites: tuple[Site, ...]
    crossed: tuple[Site, ...]
    windows: Mapping[Site, tuple[Window, ...]] = field(default_factory=dict)
    seen: Mapping[Site, int] = field(default_factory=dict)
    pictures: Mapping[Site, Picture] = field(default_factory=dict)
    embeddings: Mapping[str, Tensor] = field(default_factory=dict)
    waiting: Mapping[Site, Mapping[str, Tensor]] = field(default_factory=dict)


def needs(params: Params, spec: ModelSpec) -> Needs:
    """What enters each layer, queries and keys, and the pattern among the tokens that are kept and drawn."""
    if params.skip < 0:
        raise UsageError(f"skip={params.skip}: no fewer than 0 tokens can be left out")
    return Needs(captures=frozenset(CAPTURES), pieces=True, spelling=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet."""
    own = tuple(site for site in sites if site.kind == "self")
    return State(params, own, tuple(site for site in sites if site.kind != "self"))


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch, as far as this piece of it goes."""
    if batch.variant != AS_IS:
        return state
    waiting, embeddings = dict(state.waiting), dict(state.embeddings)
    first = {site.stack: site for site in reversed(state.sites)}
    for stack, site in first.items():
        if site in batch.captures.get("resid", {}):
            embeddings[stack] = batch.captures["resid"][site]
    found = state
    for site in state.sites:
        shown = {name: batch.captures[name][site] for name in CAPTURES if site in batch.captures.get(name, {})}
        known = {**waiting.pop(site, {}), **shown}
        if len(known) == len(CAPTURES) and site.stack in embeddings:
            found = _added(found, site, batch, known, embeddings[site.stack])
        elif known:
            waiting[site] = known
    return replace(found, waiting=waiting, embeddings=embeddings)


def _added(state: State, site: Site, batch: Batch, known: Mapping[str, Tensor], embedding: Tensor) -> State:
    """With the windows of a batch of which everything about a site is there."""
    windows, skip = state.windows.get(site, ()), state.params.skip
    pictures = dict(state.pictures)
    for index, (tokens, real) in enumerate(zip(batch.tokens, batch.real, strict=True)):
        one = {name: known[name] if name == "scale" else known[name][index] for name in CAPTURES}
        priority = priority_of(tokens[real])
        if len(windows) < WINDOWS or priority < max(window.priority for window in windows):
            part = part_of(priority, real, one)
            early = part_of(priority, real, {**one, "resid": embedding[index]}).x
            windows = drawn((*windows, window_of(site, part, early, float(known["scale"]), skip)), WINDOWS)
        if site not in pictures:
            spelling = batch.spelling[index] if batch.spelling else ()
            picture = picture_of(one, embedding[index], real, spelling, skip)
            pictures |= {} if picture is None else {site: picture}
    seen = {**state.seen, site: state.seen.get(site, 0) + len(batch.real)}
    return replace(state, windows={**state.windows, site: windows}, seen=seen, pictures=pictures)


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    windows = {site: drawn((*a.windows.get(site, ()), *some), WINDOWS) for site, some in b.windows.items()}
    seen = {site: a.seen.get(site, 0) + count for site, count in b.seen.items()}
    return replace(a, windows={**a.windows, **windows}, seen={**a.seen, **seen}, pictures={**b.pictures, **a.pictures})


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Correlations, arcs, and what is drawn."""
    params = asdict(state.params)
    kept = {site: [one for one in state.windows.get(site, ()) if one.pairs] for site in state.sites}
    seen = [site for site in state.sites if kept[site]]
    if not seen:
        reason = (
            f"no row of self-attention with {KEYS} visible keys, the token itself and the first {state.params.skip} "
            "left out, was shown to the lens"
        )
        return Finding("angles", ABOUT, status="not applicable", reason=reason, params=params)
    rows: dict[str, list[Row]] = {"heads": [], "arcs": [], "drawn": []}
    for site in seen:
        rows["heads"] += head_rows(site, kept[site])
        rows["arcs"] += arc_rows(site, kept[site])
        rows["drawn"] += drawn_rows(site, state.pictures[site]) if site in state.pictures else []
    tables = frames(rows)
    tables["heads"] = adjusted(tables["heads"])
    curves = {site: [arc_curves(kept[site], index) for index in (0, 1)] for site in seen}
    finding = Finding(
        "angles",
        ABOUT,
        tables=tables,
        figures=figures(tables, seen, state.pictures, curves),
        method=method({site: kept[site] for site in seen}, max(state.seen.values()), state.params.skip),
        warnings=warnings(kept, state.crossed),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def headline(finding: Finding) -> tuple[str, ...]:
    """Whether angles tell where attention goes, and whether the law of arcs holds, in numbers."""
    return sentences(finding.tables) if finding.status == "ok" else ()


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, pair by pair and arc by arc."""
    return frames(defined([batch for batch in batches if batch.variant == AS_IS], params.skip))


LENS = Lens(
    "angles", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)  # fmt: skip

r"""Scores: what law do the raw scores of a head follow, and does that law explain how sharply it attends?

A fold over text. Every window shows some rows of scores (equally spaced queries, all their keys) and the queries and
keys of every token. From the means and covariances of queries and keys follows what the scores of independent tokens
would be; from the variance of a row follows the entropy that Gaussian scores would have. Both stand beside what was
measured. What is computed from these stands in `score_law/`, one idea per file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import polars as pl
import torch
from torch import Tensor

from headscope.attention.maps import SAMPLED_ROWS
from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import LensError, UsageError
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.scores.bounds import bound_rows, largest, weight_norms
from headscope.lenses.scores.definition import defined
from headscope.lenses.scores.figures import figures
from headscope.lenses.scores.heads import head_rows
from headscope.lenses.scores.row_sums import summed
from headscope.lenses.scores.sentences import method, sentences, warnings
from headscope.lenses.scores.site_sums import Seen
from headscope.lenses.scores.tables import SCHEMAS, Row
from headscope.lenses.scores.terms import NOT_ADDED, grouped, term_rows
from headscope.lenses.scores.window import windows_of
from headscope.maths.gaussians.moments import Moments
from headscope.maths.gaussians.normality import FEWEST

ORDER = 6

ABOUT = About(
    title="Scores: the bilinear form and its softmax",
    question="What law do the raw scores of a head follow, and does that law explain how sharply the head attends?",
    definition=(
        "A score is scale · q·k, where q and k are linear images of the tokens (rotated, where positions are rotary). "
        "If tokens were independent draws, the mean and covariance of q and of k would give mean and variance of the "
        "scores exactly, and if they were Gaussian also the kurtosis; these are the same numbers that W_QK gives with "
        "the mean and covariance of the tokens. Within a row the query is fixed: there the scores of Gaussian keys are "
        "normal and the weights of the softmax log-normal, and the variance of the row alone gives its mean entropy. "
        f"Measured: at most {SAMPLED_ROWS} equally spaced rows of each window, with all the keys that they see; every "
        "row counts alike. The first token of each window is left out, as query and as key, where nothing else is "
        "said: many models give it a key unlike all others. Where positions are added to the tokens, the variance "
        "within rows of the first layer is split into what position and content of query and key contribute: the part "
        "of a vector that depends on its position is its mean over windows, without the noise of that mean."
    ),
    formulas=(
        r"E[s] = \alpha\,\mu_q^\top \mu_k, \qquad \mathrm{Var}(s) = \alpha^2 \left( \mathrm{Tr}(\Sigma_q \Sigma_k) + "
        r"\mu_k^\top \Sigma_q \mu_k + \mu_q^\top \Sigma_k \mu_q \right) \qquad (\alpha = \mathrm{scale})",
        r"\mathrm{row\ variance} = \alpha^2 \left( \mathrm{Tr}(\Sigma_q \Sigma_k) + \mu_q^\top \Sigma_k \mu_q \right), "
        r"\qquad \mathrm{pair\ kurtosis} = \kappa_4\,/\,\kappa_2^2",
        r"\ln \frac{1}{n} \sum_j e^{s_j} - \bar{s} \approx \frac{\sigma^2}{2}, \qquad "
        r"H \approx \ln n - \frac{\sigma^2}{2} \quad (\sigma < \sigma_c), \qquad \sigma_c = \sqrt{2 \ln n}",
        r"|s_{ij}| \leq \alpha\,\|q_i\|\,\|k_j\| \leq \alpha\,\|w_q\|\,\|w_k\|\,\|x_i\|\,\|x_j\|",
        r"J = \mathrm{diag}(p) - p\,p^\top, \qquad \|J\|_2 \leq \frac{1}{2}, \qquad \mathrm{uniform:}\ \frac{1}{n}",
        r"\Sigma = P + C, \qquad \mathrm{row\ variance} = \alpha^2 \sum \mathrm{Tr}(A_q B_k), \quad "
        r"A_q \in \{\mu_q \mu_q^\top, P_q, C_q\},\ B_k \in \{P_k, C_k\}",
    ),
    reading=(
        "Where the measured variance exceeds the predicted one, the head tells tokens of one text apart better than "
        "random tokens: scores depend on what the two tokens have to do with each other or on their distance. Where it "
        "falls short, the keys that one row sees are more alike than keys of the whole text. With rotary positions the "
        "prediction is that of tokens at random positions. An entropy below the predicted one "
        "means that a few keys stand out more than a normal law allows; above: that the large scores are fewer. The "
        "freezing number is the deviation within a row over √(2 ln n): below 1 many keys share the attention, above 1 "
        "it collapses onto a few. The norm of the Jacobian says how much a small change of scores can change the "
        "weights: near 0 the head learns nothing, be it because it is flat (1/n) or because it is saturated. Where "
        "the scale is 1/√d, as in most models, two of its three columns are the same number."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 5.1, 5.3, 6.2.1, 6.3.3 and 6.4. The column stated holds that text's own "
        "formula where it differs: the mean of e^X as e^((μ+σ²)/2), a score that is normal, and the bound with the "
        "cosine of the two tokens in it, which is none. Random energy model: Derrida (1981), Physical Review B 24, "
        "2613. Cumulants of the form: Mathai and Provost (1992), Quadratic Forms in Random Variables. D'Agostino and "
        "Pearson (1973), Biometrika 60, 613. Vaswani et al. (2017), Attention is all you need, section 3.2.1 (scale)."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self- or cross-attention",
        "layer": "counted from 0",
        "head": "counted from 0",
        "quantity": (
            "mean, variance, pair_kurtosis (excess): of the scores of all pairs; row_variance, row_skewness, "
            "row_kurtosis (excess): within a row; rejected_share: rows whose scores are not normal, or weights not "
            f"log-normal, at level 5 % (every fourth key, at least {FEWEST}); log_mean_exp: ln of the mean of e^s in a "
            "row, less the mean score; entropy_share: of the largest possible; entropy_share_all: with the first "
            "token; freezing; jacobian_trained, jacobian_root_d, jacobian_unscaled: norm of the softmax's derivative "
            "with the model's scale, with 1/√d and without scale, first token included, every fourth row. In the "
            "table of terms query_key: constant (the mean query), position, content"
        ),
        "value": "measured; in the table of bounds the largest |score|; in the table of terms the variance in a row",
        "low": "lower end of the 95 % interval; empty with fewer than two windows, in the table of terms than three",
        "high": (
            "upper end: jackknife over windows (Student t), since rows of one window depend on each other; in the "
            "table of terms over eight groups of windows"
        ),
        "predicted": (
            "mean, variances, pair_kurtosis, freezing: from mean and covariance of q and k, tokens independent; "
            "row_skewness, row_kurtosis: a normal sample; log_mean_exp, entropy: Gaussian scores with the measured "
            "variance of each row"
        ),
        "stated": "the formula of the reference, where it is another one",
        "null": (
            "rejected_share: the level; entropy and Jacobian: attention uniform over the same keys; terms: shares "
            "that the sizes of the parts alone would give, with random matrices"
        ),
        "share": "the part of the row variance; all six sum to 1",
        "share_low": "lower end of its 95 % interval: jackknife over eight groups of windows (Student t)",
        "share_high": "upper end",
        "bound": "scale · |q| |k| of the pair with the largest |score|",
        "weights_bound": (
            "scale · |w_q| |w_k| |x| |y| of that pair, operator norms, the bias counted as one more input; empty where "
            "the weights are not known, q and k are normalised, or the site is cross-attention"
        ),
        "beyond": "share of windows whose largest |score| is above the stated bound",
        "rows": "rows measured",
        "samples": "tokens behind the means and covariances",
        "dimensions": "of q and k",
        "windows": "windows of text they came from",
    },
)


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})


@dataclass(frozen=True)
class State:
    """What has been seen so far, per site; `added` are the sites whose positions are split off.

    `read` is what the projections of this batch read, of sites whose rows have not come yet.
    """

    params: Params
    sites: tuple[Site, ...]
    added: frozenset[Site]
    positions: str
    seen: Mapping[Site, Seen] = field(default_factory=dict)
    read: Mapping[Site, Tensor] = field(default_factory=dict)


def needs(params: Params, spec: ModelSpec) -> Needs:
    """Some rows of scores, all queries and keys, what the projections read, and the weights for their norms."""
    if params.skip < 0:
        raise UsageError(f"skip={params.skip}: no fewer than 0 tokens can be left out")
    return Needs(weights=True, captures=frozenset({"rows", "scale", "q", "k", "x"}), pieces=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet. Positions are added before the first layer of a stack, if they are added at all."""
    own = [site for site in sites if site.kind == "self"] if spec.positions not in NOT_ADDED else []
    first = {stack: min(site.layer for site in own if site.stack == stack) for stack in {site.stack for site in own}}
    added = frozenset(site for site in own if site.layer == first[site.stack])
    return State(params, sites, added, spec.positions)


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch, as far as this piece of it goes."""
    if batch.variant != AS_IS:
        return state
    seen, read = dict(state.seen), {**state.read, **batch.captures.get("x", {})}
    for site in state.sites:
        if site in batch.captures.get("rows", {}):
            new = _seen(state, site, replace(batch, captures={**batch.captures, "x": read}))
            seen[site] = seen[site].merge(new) if site in seen else new
            read.pop(site, None)
    return replace(state, seen=seen, read=read)


def _seen(state: State, site: Site, batch: Batch) -> Seen:
    skip = state.params.skip
    windows = windows_of(site, batch, skip)
    found = [summed(window) for window in windows]
    kept_q = [window.q[:, skip:][:, window.real[skip:]] for window in windows]
    kept_k = [window.k[:, skip:][:, window.seen_keys[skip:]] for window in windows]
    return Seen(
        windows[0].scale,
        (torch.stack([one.sums for one in found]),),
        (torch.stack([one.counts for one in found]),),
        (torch.stack([largest(window) for window in windows]),),
        Moments.of(torch.cat(kept_q, 1)),
        Moments.of(torch.cat(kept_k, 1)),
        torch.stack([one.histogram for one in found]).sum(0),
        grouped(kept_q, kept_k) if site in state.added else None,
    )


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    seen = dict(a.seen)
    for site, one in b.seen.items():
        seen[site] = seen[site].merge(one) if site in seen else one
    return replace(a, seen=seen)


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Estimates, predictions and intervals of every site."""
    if weights is None:
        raise LensError("the lens scores reads the model's weights, and was given none")
    params = asdict(state.params)
    seen = {site: state.seen[site] for site in state.sites if site in state.seen and state.seen[site].has_rows}
    if not seen:
        reason = f"no row that sees two keys beside the first {state.params.skip} was shown to the lens"
        return Finding("scores", ABOUT, status="not applicable", reason=reason, params=params)
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for site, one in seen.items():
        rows["heads"] += head_rows(site, one)
        rows["bounds"] += bound_rows(site, one, weight_norms(weights, site))
        rows["terms"] += term_rows(site, one)
    tables = {name: pl.DataFrame(found, schema=SCHEMAS[name]) for name, found in rows.items()}
    histogram = torch.stack([one.histogram for one in seen.values()]).sum(0).numpy().astype(np.float64)
    finding = Finding(
        "scores",
        ABOUT,
        tables=tables,
        figures=figures(tables, list(seen), histogram),
        method=method(state.positions),
        warnings=warnings(state.positions, state.sites, seen, weights),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def headline(finding: Finding) -> tuple[str, ...]:
    """Whether independent Gaussian tokens explain the variance, and whether the variance explains the entropy."""
    return sentences(finding.tables) if finding.status == "ok" else ()


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, row by row and key by key, in float64."""
    return defined(weights, [batch for batch in batches if batch.variant == AS_IS], params.skip)


LENS = Lens(
    "scores", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk:heads", "rotated qk", "vo", "heads"}),
)  # fmt: skip

r"""Dependence: do the keys that get attention also depend on the query?

A fold over text that keeps a bounded sample of pairs of tokens. Per head: do the keys that rank high in a row of the
attention pattern also rank high by their dependence on the query, beyond what their distance tells, and more than they
would with another text's query in its place? And what does dependence add to the scores of a head: the shift
Tr(C Σ_ji) of their mean, and their variance, beside the Gaussian formula. What is computed from the sample stands in
`dependent/`, one idea per file.

Held are 64 windows at most, and of each up to 56 tokens or, where it is longer, a run of 8 for each octave of distance
from its end: their vectors, and what they pay to each other. A whole pattern is never held, and the vectors of all
tokens only for the layer that is running, so that memory grows with the length of a window and not with its square.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import polars as pl
from torch import Tensor

from headscope.attention.maps import SHORT
from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import UsageError
from headscope.lenses.dependence.definition import defined
from headscope.lenses.dependence.figures import figures
from headscope.lenses.dependence.joint_test import joint_rows
from headscope.lenses.dependence.moments import pair_rows
from headscope.lenses.dependence.pooled import pooled_pairs
from headscope.lenses.dependence.profile import profile_rows
from headscope.lenses.dependence.ranks import head_rows
from headscope.lenses.dependence.sentences import method, sentences, unseen, warnings
from headscope.lenses.dependence.tables import SCHEMAS, Row
from headscope.lenses.dependence.windows import KEYS, Sampled, Shown
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.shared.left_out_windows import adjusted
from headscope.lenses.shared.token_pairs import CAPTURES, PairSample
from headscope.lenses.shared.window_sample import SAMPLE_BYTES, sample_warning

ORDER = 7

ABOUT = About(
    title="Attention and statistical dependence",
    question="Do the keys that get attention also depend on the query, beyond what distance explains?",
    definition=(
        "Within each row of a head's attention pattern the visible keys are ranked by the attention they get, and by "
        "how strongly they depend on the query; the number is the correlation of the two ranks, over all rows. "
        "Dependence is measured in the residual stream that enters the layer. Pointwise: how much more likely the two "
        "vectors are together than apart under a joint Gaussian of two tokens at that distance, in a few principal "
        "components; its mean is the mutual information. The Gaussian that judges a window is fitted to the other "
        "windows. The mutual information I(X_i; X_j) and the trace Tr(C Σ_ji) are properties of positions and in "
        "a stationary text of their distance: given the distance nothing is left of them. Pointwise information "
        "and cosine differ from text to text at the same positions, so that one can ask what is left beyond distance: "
        "from each rank the mean over windows at the same two positions is taken away, and the mean that the key has "
        "with all queries of its window. What remains belongs to the pair. The null puts the query of another "
        "window, at the same position, in the place of the query: keys, positions and distances stay, the dependence "
        "goes. A head's excess is its correlation less that null; its test asks whether the excess is 0. All heads "
        "are also tested together: the mean excess over heads, with windows and not heads as the units of its error. "
        "The token itself and the first token of each window are no keys here. Scores are ⟨q, k⟩ before any "
        "scale, with the positions that the model turns into them. Means and variances of the scores of a token with "
        "itself, with its neighbours (1 to 8 tokens away), and of those neighbours with the query of another window "
        "stand beside the formulas."
    ),
    formulas=(
        r"i(x_i; x_j) = \ln \frac{p(x_i, x_j)}{p(x_i)\,p(x_j)}, \qquad I(X_i; X_j) = E\,[i(x_i; x_j)] = "
        r"\frac{1}{2} \ln \frac{|\Sigma_{ii}|\,|\Sigma_{jj}|}{|\Sigma|}",
        r"\rho = \mathrm{corr}(z^A, z^i), \qquad z_{wij} = \mathrm{rank\ of\ key\ } j \mathrm{\ for\ query\ } i "
        r"\mathrm{\ in\ window\ } w",
        r"\rho_{\mathrm{beyond}} = \mathrm{corr}(r^A, r^i), \qquad r_{wij} = z_{wij} - \bar{z}_{ij} - \bar{z}_{wj} + "
        r"\bar{z}_{j}",
        r"E\langle q_i, k_j \rangle = \mu_i^\top C \mu_j + \mathrm{Tr}(C\,\Sigma_{ji}), \qquad C = W_Q W_K^\top",
        r"\mathrm{Var}\langle q_i, k_j \rangle = \mathrm{Tr}(\Sigma_i C \Sigma_j C^\top) + a^\top \Sigma_i a + "
        r"b^\top \Sigma_j b + \mathrm{Tr}(C \Sigma_{ji} C \Sigma_{ji}) + 2 a^\top \Sigma_{ij} b",
        r"a = C \mu_j, \qquad b = C^\top \mu_i",
    ),
    reading=(
        "Look at the joint table first: whether keys that depend on the query get more attention over all heads. Then "
        "at excess: above 0 a head attends more to keys that depend on this very query, below 0 less, and the adjusted "
        "p says whether that could be chance among so many heads. A head that is not counted may still have an effect: "
        "detectable says how large it had to be. The stream already holds what earlier layers copied from one token to "
        "another, so dependence is in part made by attention: none of this shows a cause. A large value with nothing "
        "beyond is a head that looks at near tokens, which are also the dependent ones. Only linear dependence in the "
        "largest directions of the stream is seen. The mean of scores is an identity for any law: predicted and "
        "measured must agree, and what can be learnt from it is the sign and size of the shift; the variance of self "
        "and dependent pairs is predicted only if vectors are Gaussian. The thesis has Σ_XY where it must be Σ_YX, and "
        "says that dependence raises scores; that is so only in heads whose form is aligned with it."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, summary and sections 6.2.1 and 6.2.4. Fano (1961), Transmission of Information "
        "(pointwise information). Kendall (1942), Biometrika 32, 277 (partial rank correlation). Benjamini and "
        "Hochberg (1995), Journal of the Royal Statistical Society B 57, 289."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self; cross-attention is left out: its keys come from vectors that are not shown",
        "layer": "counted from 0; empty where a row is about all layers of the stack",
        "head": "counted from 0; empty where a row is about all heads, or about the stream that enters the layer",
        "distance": "|i − j| in tokens from which on pairs are pooled",
        "upto": "and the last distance that is pooled with it",
        "quantity": (
            "heads: the measure whose ranks are compared with those of the pattern. pointwise: i(x_i; x_j); cosine: of "
            "the inputs; nearness: −|i − j|; information: I at that distance; trace: Tr(C Σ_ji) of the head at that "
            "distance. pairs: self, a token with itself; dependent, with the tokens 1 to 8 away that it sees; "
            "independent, the same with the query of another window"
        ),
        "value": (
            "heads: rank correlation, −1 to 1. joint: mean excess over heads. pairs: mean score ⟨q, k⟩. profile: "
            "mutual information in nats, raw less null. Empty where it cannot be estimated"
        ),
        "low": "lower end of the 95 % interval (jackknife over windows, Student t); empty with fewer than two windows",
        "high": (
            "upper end. profile: dependent tokens can have less bias than shuffled ones; the interval reaches up by "
            "the difference between the null and the bias of independent pairs, k² / 2n"
        ),
        "null": (
            "joint: 0. heads: the same with queries of other windows (nearness: 0; information, trace: as estimated "
            "from queries and keys of different windows). profile: tokens of different windows, bias included"
        ),
        "raw": "mutual information with its bias; to be compared with the null",
        "given_distance": (
            "partial rank correlation given the distance, in Kendall's way: takes off what is linear in the rank of "
            "the distance, and no more; empty where the distance determines the measure"
        ),
        "beyond": "rank correlation at fixed positions, with the key's own mean taken off; needs two windows",
        "beyond_low": "lower end of its 95 % interval; empty with fewer than three windows",
        "beyond_high": "upper end",
        "beyond_null": "the same with queries of other windows",
        "excess": "beyond − beyond_null",
        "excess_low": "lower end of its 95 % interval; empty with fewer than three windows",
        "excess_high": "upper end",
        "detectable": "the smallest effect that one test at the 5 % level finds in four of five texts this long",
        "positive": "heads with an excess above 0",
        "heads": "heads in the mean",
        "p": (
            "whether it is 0; two-sided, Student t over windows. heads: excess (nearness: value); joint: value; pairs: "
            "shift"
        ),
        "adjusted": "p for so many heads at once (Benjamini and Hochberg); below 0.05: counted in the sentences",
        "predicted": "mean by the formula, from means and covariances over windows",
        "shift": "what dependence adds to the mean: Tr(C Σ_ji)",
        "shift_low": "lower end of its 95 % interval",
        "shift_high": "upper end",
        "variance": "of scores over windows at fixed positions, mean over pairs",
        "predicted_variance": "by the formula for Gaussian vectors; empty with fewer than four windows",
        "attention": "mean share of a row that such a key gets",
        "uniform": "the same with attention uniform over the visible keys",
        "covariance": "Tr Cov(X_i, X_j) in the principal components: the trace for C = 1",
        "dimensions": "principal components of the stream, each token",
        "samples": "pairs of tokens, all windows together",
        "windows": "windows of text they came from",
    },
)

# Windows kept at most, and at least, and what they may take with SHORT tokens each; beyond it not every layer. Of
# longer windows a few more tokens are kept (64 of 512, 96 of 8,192), which makes them at most three times as large.
WINDOWS, FEWEST_WINDOWS = 64, 16


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components of the stream, per token"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})


@dataclass(frozen=True)
class State:
    """The sample of each site, and of the batch at hand what has come of sites that are not complete yet."""

    params: Params
    sites: tuple[Site, ...]
    crossed: tuple[Site, ...]
    step: int
    room: int
    samples: Mapping[Site, PairSample] = field(default_factory=dict)
    waiting: Mapping[Site, Mapping[str, Tensor]] = field(default_factory=dict)


def needs(params: Params, spec: ModelSpec) -> Needs:
    """What enters each layer, the queries and keys made of it, and the pattern among the tokens that are kept."""
    if params.components < 1 or params.skip < 0:
        raise UsageError(
            f"components={params.components} and skip={params.skip}: at least one component is needed, and no fewer "
            "than 0 tokens can be left out"
        )
    return Needs(captures=frozenset(CAPTURES), pieces=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet; so many windows, and where those are too few so many layers, as fit."""
    own = [site for site in sites if site.kind == "self"]
    sizes = [
        4 * SHORT * (spec.d_model + (site.n_heads + site.n_kv_heads) * site.d_head + site.n_heads * SHORT)
        for site in own
    ]
    step = max(1, -(-sum(sizes) * FEWEST_WINDOWS // SAMPLE_BYTES))
    chosen = tuple(own[::step])
    room = min(WINDOWS, max(FEWEST_WINDOWS, SAMPLE_BYTES // max(1, sum(sizes[::step]))))
    return State(params, chosen, tuple(site for site in sites if site.kind != "self"), step, room)


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch, as far as this piece of it goes."""
    if batch.variant != AS_IS:
        return state
    samples, waiting = dict(state.samples), dict(state.waiting)
    for site in state.sites:
        shown = {name: batch.captures[name][site] for name in CAPTURES if site in batch.captures.get(name, {})}
        known = {**waiting.pop(site, {}), **shown}
        if len(known) == len(CAPTURES):
            samples[site] = samples.get(site, PairSample(state.room)).add(batch.tokens, batch.real, known)
        elif known:
            waiting[site] = known
    return replace(state, samples=samples, waiting=waiting)


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    both = {site: a.samples[site].merge(one) if site in a.samples else one for site, one in b.samples.items()}
    return replace(a, samples={**a.samples, **both})


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Everything from the sample."""
    params, components = asdict(state.params), state.params.components
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    seen: dict[Site, Shown] = {}
    excess: dict[Site, dict[str, Tensor]] = {}
    for site in (site for site in state.sites if site in state.samples):
        # One site at a time: in float64 all of them would take several times the sample.
        sampled = Sampled.of(state.samples[site], site, state.params.skip)
        if sampled is None:
            continue
        seen[site] = Shown(len(sampled.positions), sampled.windows, sampled.length)
        pooled = pooled_pairs(sampled, components)
        of_heads, excess[site] = head_rows(sampled, pooled)
        rows["heads"] += of_heads
        rows["pairs"] += pair_rows(sampled)
        rows["profile"] += profile_rows(sampled, pooled) if pooled else []
    if not seen:
        reason = (
            f"no row of attention with {KEYS} visible keys, the token itself and the first {state.params.skip} left "
            "out, was shown to the lens"
        )
        return Finding("dependence", ABOUT, status="not applicable", reason=reason, params=params)
    rows["joint"] = list(joint_rows(excess))
    tables = {name: pl.DataFrame(rows[name], schema=schema) for name, schema in SCHEMAS.items()}
    tables["heads"], tables["pairs"] = adjusted(tables["heads"]), adjusted(tables["pairs"])
    first, drawn = next(iter(seen)), max(len(one.windows) for one in state.samples.values())
    missing = [site for site in state.sites if site not in seen]
    held = sample_warning(drawn, max(sample.seen for sample in state.samples.values()), "windows")
    finding = Finding(
        "dependence",
        ABOUT,
        tables=tables,
        figures=figures(tables, list(seen)),
        method=method(state.samples[first], seen[first], state.params.skip, state.step),
        warnings=(*unseen(state.crossed, missing), *warnings(tables, seen, drawn, components), *held),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def headline(finding: Finding) -> tuple[str, ...]:
    """What attention and dependence have in common, in numbers."""
    return sentences(finding.tables) if finding.status == "ok" else ()


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, pair by pair, on the windows of one length."""
    return defined([batch for batch in batches if batch.variant == AS_IS], params.components, params.skip)


LENS = Lens(
    "dependence", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)  # fmt: skip

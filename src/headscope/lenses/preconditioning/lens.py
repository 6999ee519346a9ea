r"""Preconditioning: how much does the last token tell about the next, in the text and in the vectors?

Counts of neighbouring tokens in the text: how many continuations carry 90 %, and the entropy that is left, beside draws
of as many tokens from the whole text. The Gaussian of a token's vector given the token before it: entropy, effective
dimension and rank, beside groups of the same size drawn at random.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.preconditioning.conditional_gaussians import Stream, measured_streams
from headscope.lenses.preconditioning.definition import defined
from headscope.lenses.preconditioning.figures import figures
from headscope.lenses.preconditioning.followers import Followers, TextWindow, spelling
from headscope.lenses.preconditioning.pairs import Pairs
from headscope.lenses.preconditioning.sentences import method, sentences, warnings
from headscope.lenses.shared.row_sample import Plan, Sample
from headscope.lenses.shared.window_sample import SAMPLE_BYTES, drawn, priority_of, sample_warning

ORDER = 5.5

ABOUT = About(
    title="What the last token tells",
    question="Does the last token narrow down the next one, to few continuations and to a narrow Gaussian?",
    definition=(
        "In the text, where nothing of the model enters: for each previous token that is frequent enough, the "
        "continuations are counted. The fewest that carry 90 % of them and their entropy are set beside the same "
        "numbers for as many tokens drawn from the whole text, which know nothing of the previous one. Few occurrences "
        "show few continuations and little entropy whatever the truth is. The entropy is therefore corrected for "
        "continuations that were not seen, as Chao and Shen say, and the draws have the bias that is left. What the "
        "previous token tells is the entropy of the draws less that of the continuations. Rare previous tokens say "
        "nothing: what share of all pairs is counted is told, and the frequent ones (articles, commas) have the most "
        "varied continuations. Whether five continuations can carry 90 % is tested for each previous token: the "
        "likeliest five of a sample carry no less of it than the true five, so too small a share excludes it. In the "
        "vectors: the covariance of the vectors of all tokens that follow the same "
        "token, at the embeddings and at some layers. Its entropy is taken in the first principal components of all "
        "rows, shrunk, with at least ten rows for each; its effective dimension, its rank and the number of components "
        "that hold 90 % of its variance in all dimensions. Each beside the same for random groups of the same sizes "
        "(previous tokens exchanged) and beside all rows together."
    ),
    formulas=(
        r"k_{90}(p) = \min \{\,k : \sum_{i \leq k} P_{(i)}(x\,|\,p) \geq 0.9\,\}, \qquad "
        r"H(X\,|\,p) = -\sum_x \frac{\tilde{P}_x \ln \tilde{P}_x}{1 - (1 - \tilde{P}_x)^{n_p}}, \qquad "
        r"\tilde{P}_x = \left(1 - \frac{f_1}{n_p}\right) P(x\,|\,p)",
        r"H(X\,|\,P) = \sum_p \frac{n_p}{n} H(X\,|\,p), \qquad I(P; X) = H_{\mathrm{drawn}}(X\,|\,P) - H(X\,|\,P)",
        r"\Sigma_p = \sum_x P(x\,|\,p)\,(v_x - \mu_p)(v_x - \mu_p)^{\top}, \qquad "
        r"\mathrm{effective\ dimension} = (\mathrm{Tr}\,\Sigma_p)^2\,/\,\mathrm{Tr}\,\Sigma_p^2",
        r"H_{\mathrm{Gauss}}(p) = \frac{1}{2} \sum_{i \leq k} \ln (2 \pi e\,\lambda_i)",
    ),
    reading=(
        "The thesis expects a few continuations, five say, to carry more than 0.9 and so to make the Gaussian of the "
        "next token one of few directions. A text can exclude the first for frequent previous tokens only: "
        "five_excluded_90 is a lower bound of the share of pairs for which it is false, and for the rest the text is "
        "too short. The number of continuations grows with the text and is no property of the language. The second "
        "holds where the intervals of effective dimension and entropy lie below those of random groups; it need not "
        "follow, since a few "
        "dozen continuations can point anywhere. At the embeddings of a model without added positions a group of k "
        "different continuations has rank k − 1 at most. Deeper layers have mixed in the previous token itself, so "
        "that groups differ there because the vectors know what came before. A short text shows frequent tokens only; "
        "take a longer one (`--text`) for others."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 4.2.3 (Bayesian preconditioning; what it calls a 1-gram model conditions on "
        "one token, a bigram) and 4.3.1 (the Gaussian of a few likely tokens). Chao and Shen (2003), Environmental "
        "and Ecological Statistics 10, 429. Ledoit and Wolf (2004), Journal of Multivariate Analysis 88, 365."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; empty where a row is about the text",
        "kind": "self: the stream is that which enters the layer",
        "layer": "counted from 0; layer 0 is given the embeddings; one behind the last layer: what that one gives",
        "head": "empty: the stream belongs to the layer",
        "previous": "the token before; … where it goes on with a word; its number where there is no tokenizer",
        "quantity": (
            "entropy_nats: in the table text of all tokens that follow another one (null: all equally likely), else "
            "that of the Gaussian; conditional_entropy_nats: given the previous token; information_nats: what the "
            "previous token tells, null − value of conditional_entropy_nats; continuations_90: the fewest that carry "
            "90 %, in a text of this length; five_carry_90: share of the counted pairs after whose previous token five "
            "of the continuations that were seen do; five_carry_90_types: share of previous tokens; five_excluded_90: "
            "share of all pairs after whose previous token five continuations cannot carry 90 % (binomial test, false "
            "discoveries held at 5 %); counted_share: share of all pairs whose previous token is frequent enough; "
            "effective_dimension; components_90: principal components of the group that hold 90 % of its variance; "
            "rank: directions with any variance; variance_share: Tr Σ_p over that of all rows"
        ),
        "value": "measured; in the table tokens the fewest continuations that carry 90 %",
        "low": (
            "lower end of the 95 % interval. Text: jackknife over windows. Gaussians: over previous tokens (Student "
            "t), of the distance from the null: that larger groups have larger numbers is in both and cancels"
        ),
        "high": (
            "upper end. The bias of conditional_entropy_nats lies between 0 and that of the drawn tokens: its interval "
            "and that of information_nats reach up by entropy_nats less the null"
        ),
        "null": (
            "in the text: as many tokens drawn from the whole text, 20 times; of a Gaussian: random groups of the same "
            "sizes, 10 times"
        ),
        "unconditional": "of all rows together",
        "entropy_nats": "entropy of the continuations, corrected for those not seen as Chao and Shen say",
        "entropy_null": "the same of the drawn tokens",
        "likeliest": "the three most frequent continuations",
        "continuations": "different continuations",
        "dimensions": "principal components of the entropy, dimensions of the stream otherwise",
        "samples": "pairs of tokens, or rows",
        "groups": "previous tokens",
        "windows": "windows of text",
    },
)

_Types = dict[str, type[pl.DataType]]
_PLACE: _Types = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
_ESTIMATE: _Types = {"value": pl.Float64, "low": pl.Float64, "high": pl.Float64, "null": pl.Float64}
_SIZES: _Types = {"samples": pl.Int64, "groups": pl.Int64, "windows": pl.Int64}
SCHEMAS = {
    "text": pl.Schema(_PLACE | {"quantity": pl.String} | _ESTIMATE | _SIZES),
    "layers": pl.Schema(
        _PLACE | {"quantity": pl.String} | _ESTIMATE | {"unconditional": pl.Float64, "dimensions": pl.Int64} | _SIZES
    ),
    "tokens": pl.Schema(
        _PLACE
        | {"previous": pl.String, "value": pl.Float64, "null": pl.Float64}
        | {"entropy_nats": pl.Float64, "entropy_null": pl.Float64, "likeliest": pl.String}
        | {"continuations": pl.Int64, "samples": pl.Int64}
    ),
    "gaussians": pl.Schema(
        _PLACE
        | {"previous": pl.String, "quantity": pl.String, "value": pl.Float64, "null": pl.Float64}
        | {"continuations": pl.Int64, "dimensions": pl.Int64, "samples": pl.Int64}
    ),
}
_NOWHERE: dict[str, object] = {"stack": None, "kind": None, "layer": None, "head": None}

# Streams of a stack that are looked at, the first and the last among them.
DEPTHS = 5
# Windows that the sample keeps at most, rows per stream, rows of one window.
WINDOWS, ROWS, PER_WINDOW = 64, 16384, 1024


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    least: int = field(default=10, metadata={"help": "occurrences that a previous token needs to be looked at"})
    components: int = field(default=8, metadata={"help": "principal components for the entropy of the Gaussian"})
    skip: int = field(default=1, metadata={"help": "tokens at the start of each window that are no previous tokens"})


@dataclass(frozen=True)
class State:
    """Counts of pairs, and a sample of rows of each stream; neither grows with the text beyond a bound.

    `behind` names the stream that leaves the last layer of a stack by the site of that layer; `words` holds for each
    sampled row its token and the one before it, `texts` the tokens of the windows that are left out in turn.
    """

    params: Params
    streams: tuple[Site, ...]
    behind: Mapping[Site, Site]
    plan: Plan
    pairs: Pairs
    words: Sample
    texts: tuple[TextWindow, ...] = ()
    samples: Mapping[Site, Sample] = field(default_factory=dict)


def needs(params: Params, spec: ModelSpec) -> Needs:
    """The residual stream that enters each layer, the one that leaves the last; of the weights, what tokens spell."""
    if params.least < 2 or params.components < 1 or params.skip < 0:
        raise UsageError(
            f"least={params.least}, components={params.components} and skip={params.skip}: at least two occurrences "
            "and one component are needed, and no fewer than 0 tokens can be left out"
        )
    return Needs(weights=True, captures=frozenset({"resid", "final"}), pieces=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet. Cross-attention is left out: it reads the stream of the same layer."""
    entering = [site for site in sites if site.kind == "self"]
    behind = {site: replace(site, layer=site.layer + 1) for site in {one.stack: one for one in entering}.values()}
    chosen: list[Site] = []
    for stack in dict.fromkeys(site.stack for site in entering):
        own = [site for site in entering if site.stack == stack]
        own.append(behind[own[-1]])
        steps = torch.linspace(0, len(own) - 1, min(DEPTHS, len(own)), dtype=torch.float64)
        chosen += [own[at] for at in sorted({round(at) for at in steps.tolist()})]
    rows = min(ROWS, SAMPLE_BYTES // (4 * max(1, spec.d_model) * max(1, len(chosen))))
    plan = Plan(rows, WINDOWS, (), params.skip + 1, PER_WINDOW)
    return State(params, tuple(chosen), behind, plan, Pairs.empty(), Sample(plan))


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch, as far as this piece of it goes; pairs are counted with the first stream."""
    if batch.variant != AS_IS:
        return state
    found = dict(batch.captures.get("resid", {}))
    found |= {state.behind[site]: x for site, x in batch.captures.get("final", {}).items() if site in state.behind}
    shown = {site: found[site] for site in state.streams if site in found and _in_step(found[site], batch)}
    if state.streams and state.streams[0] in shown:
        state = _counted(state, batch)
    samples = {site: _sampled(state, site, x, batch) for site, x in shown.items()}
    return replace(state, samples={**state.samples, **samples})


def _in_step(x: Float[Tensor, "batch n d"], batch: Batch) -> bool:
    """Whether a stream has a row for each token; a picture's has not."""
    return tuple(x.shape[:2]) == tuple(batch.tokens.shape)


def _counted(state: State, batch: Batch) -> State:
    skip, pairs, words, texts = state.params.skip, state.pairs, state.words, state.texts
    for tokens, real in zip(batch.tokens, batch.real, strict=True):
        window = tokens[real]
        if len(window) > skip + 1:
            pairs = pairs.add(window[skip:-1], window[skip + 1 :])
            before = torch.cat((window.new_full((1,), -1), window[:-1]))
            both = torch.stack((window, before), 1).to(torch.float64)
            words = words.add(window, {state.streams[0]: both})
            texts = drawn((*texts, TextWindow(priority_of(window), window.clone())), WINDOWS)
    return replace(state, pairs=pairs, words=words, texts=texts)


def _sampled(state: State, site: Site, x: Float[Tensor, "batch n d"], batch: Batch) -> Sample:
    sample = state.samples.get(site, Sample(state.plan))
    for tokens, real, rows in zip(batch.tokens, batch.real, x, strict=True):
        if int(real.sum()) > state.params.skip + 1:
            sample = sample.add(tokens[real], {site: rows[real]})
    return sample


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    both = {site: a.samples[site].merge(one) if site in a.samples else one for site, one in b.samples.items()}
    return replace(
        a,
        pairs=a.pairs.merge(b.pairs),
        words=a.words.merge(b.words),
        texts=drawn((*a.texts, *b.texts), WINDOWS),
        samples={**a.samples, **both},
    )


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Everything from the counts and the sample."""
    params = asdict(state.params)
    followers = Followers.of(state.pairs, state.params.least, state.texts, state.params.skip, state.words.seen)
    if followers is None:
        reason = (
            f"no token of the text is followed by another one {state.params.least} times "
            f"({state.pairs.following.total} pairs of neighbours were seen): take a longer text"
        )
        return Finding("preconditioning", ABOUT, status="not applicable", reason=reason, params=params)
    streams = measured_streams(_streams(state))
    names = spelling(None if weights is None else weights.vocabulary)
    rows = {
        "text": [_NOWHERE | row for row in followers.text_rows()],
        "layers": [row for one in streams for row in one.layer_rows()],
        "tokens": [_NOWHERE | row for row in followers.token_rows(names)],
        "gaussians": [row for one in streams for row in one.token_rows(names)],
    }
    tables = {name: pl.DataFrame(rows[name], schema=SCHEMAS[name]) for name in SCHEMAS if rows[name]}
    finding = Finding(
        "preconditioning",
        ABOUT,
        tables=tables,
        figures=figures(followers, tables),
        method=method(state.pairs, followers, streams, state.params.skip),
        warnings=(
            *warnings(state.pairs, followers, streams, state.params.components, tables),
            *sample_warning(*state.words.counts(), "rows of each stream for the Gaussians"),
        ),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _streams(state: State) -> list[Stream]:
    kept = [window.streams[state.streams[0]].rows for window in state.words.windows]
    if not kept:
        return []
    words = torch.cat(kept).to(torch.int64)
    found = []
    for site in state.streams:
        if site in state.samples:
            rows = torch.cat([window.streams[site].rows for window in state.samples[site].windows])
            if len(rows) == len(words):
                windows = len(state.words.windows)
                found.append(Stream(site, rows, words[:, 1], words[:, 0], state.params.components, windows))
    return found


def headline(finding: Finding) -> tuple[str, ...]:
    """What stands out, in numbers."""
    return sentences(finding.tables) if finding.status == "ok" else ()


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, on all windows, in float64; the fold samples where rows are many."""
    kept = [batch for batch in batches if batch.variant == AS_IS]
    vocabulary = None if weights is None else weights.vocabulary
    rows = defined(kept, vocabulary, params.least, params.components, params.skip)
    return {name: pl.DataFrame(rows[name], schema=SCHEMAS[name]) for name in SCHEMAS if rows[name]}


LENS = Lens(
    "preconditioning", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)  # fmt: skip

r"""Wertich, section 7.2.3: do all tokens become one?"""

import math
from dataclasses import replace

import numpy as np
import torch

from headscope.core import Finding
from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.attention.token_collapse import (
    Norm,
    attention,
    critical_diameter,
    diameter,
    diameter_bound,
    difference_ratio,
    layer_norm,
    orthogonal_factor,
    random_stack,
    relative_residual,
    residual,
    residual_norm,
    skip_rate,
)
from headscope.theory.checks import Lab, exact, fact, mean_of, more_than
from headscope.theory.finding_reader import errors, numbers, rows_of
from headscope.theory.works import wertich

CHAPTER = wertich()


@CHAPTER.claim(
    "W-7.3a",
    section="7.2.3",
    statement="For random Xavier matrices without skip connections all tokens converge to one and the same "
    "distribution as layers are added.",
    formula=r"p_i^{(l)} \rightarrow p \quad \mathrm{for\ all}\ i, \quad W^{(l)}_{ij} \sim \mathcal{N}(0, 1/n)",
    lesson="Each layer replaces every token by nearly the same average, so what is left of their differences shrinks "
    "faster than geometrically: once tokens are alike, scores are alike, attention is uniform, and the difference is "
    "cubed in each layer. It holds for tokens of length 1 and for LayerNormed tokens of length √n, whose attention is "
    "far from flat at first.",
)
def random_stacks(lab: Lab) -> Evidence:
    d, n, stacks, depth = 32, 16, 12, 14
    normed = layer_norm(lab.normal(stacks, n, d, purpose="tokens"))
    comparisons = []
    cases: tuple[tuple[str, torch.Tensor, Norm], ...] = (
        ("tokens of length 1", normed / math.sqrt(d), "none"),
        ("tokens of length √d", normed, "none"),
        ("tokens of length √d, LayerNorm after each layer", normed, "post"),
    )
    for name, tokens, norm in cases:
        layers = random_stack(tokens, depth, lab.generator(name), norm=norm)
        start, end = (float(relative_residual(layers[at]).max()) for at in (0, depth))
        comparisons.append(Comparison(f"{name}: share that distinguishes them after {depth} layers, worst of {stacks}",
                                      0.0, end, 1e-9))  # fmt: skip
        comparisons.append(fact(f"{name}: it was above 0.9 at the start", start > 0.9))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-7.3b",
    section="7.2.3",
    statement="Hypothesis: for any query, key and value matrices with operator norms of at most 2, without skip "
    "connections, the distributions of all tokens converge to a common one.",
    formula=r"|W_q|, |W_k|, |W_v| \leq 2 \ \Rightarrow\ p_i^{(l)} \rightarrow p \quad \mathrm{for\ all}\ i",
    correction="False for every bound on W_v above 1: with W_q = W_k = W_v = 2·1 tokens that start far enough apart "
    "drift apart for ever. Tokens do converge to one another if |W_v| ≤ 1, or if they start closer than a diameter D "
    "with D² < 4 √d artanh(1/|W_v|)/|W_qᵀW_k|, and that constant cannot be improved. (A common limit p also needs the "
    "products of the W_v to converge: W_v = −1 flips the common token for ever.)",
    corrected=r"D^{(l+1)} \leq |W_v| \tanh\left(\frac{|W_q^T W_k|\, (D^{(l)})^2}{4 \sqrt{d}}\right) D^{(l)}, \quad "
    r"D = \max_{i,j} |X_i - X_j|",
    lesson="Averaging can shrink differences, the value matrix can stretch them, and attention that has become sharp "
    "hardly averages. If tokens are far apart, each attends mainly to itself and is doubled in every layer, which "
    "makes attention sharper still. If they are close, attention is nearly uniform and their differences are cubed. In "
    "between lies a threshold that can be computed.",
)
def bounded_norms(lab: Lab) -> Evidence:
    n, depth = 2, 12
    critical = critical_diameter(4.0, 2.0, n)
    eye = torch.eye(n, dtype=torch.float64)
    stated, corrected = [], []
    for share, name in ((1.5, "above"), (0.75, "below")):
        # Gaussian tokens around orthogonal means, as the hypothesis asks.
        tokens = share * critical / math.sqrt(2) * eye + 0.01 * lab.normal(50, n, n, purpose=name)
        first = diameter(tokens)
        for _ in range(depth):
            tokens = attention(tokens, 2 * eye, 2 * eye, 2 * eye)
        factor = diameter(tokens) / first
        quantity = f"two tokens {name} the threshold, {depth} layers with W = 2·1"
        if name == "above":
            stated.append(fact(f"{quantity}: they end closer than they began", bool((factor < 1).all())))
            corrected.append(fact(f"{quantity}: more than a hundred times farther apart", bool((factor > 100).all())))
        else:
            corrected.append(Comparison(f"{quantity}: distance left", 0.0, float(factor.max()), 1e-9))
    length = torch.tensor(1.2, dtype=torch.float64)
    tokens = 1.2 * torch.eye(5, dtype=torch.float64)
    double_identity = 2 * torch.eye(5, dtype=torch.float64)
    for layer in (1, 2, 3):
        before = residual_norm(tokens)
        tokens = attention(tokens, double_identity, double_identity, double_identity)
        factor = orthogonal_factor(length, 5, 4.0, 2.0, 5)
        corrected.append(exact(f"five orthogonal tokens, layer {layer}: factor of their differences", factor,
                               residual_norm(tokens) / before))  # fmt: skip
        length = length * factor
    corrected.append(fact("the bound holds in 200 random layers", _bound_holds(lab, 200)))
    corrected.append(fact("|W_v| = 1, tokens far apart: each of 400 layers brings them closer", _unit_values(lab)))
    return Evidence(tuple(stated), tuple(corrected))


def _bound_holds(lab: Lab, draws: int) -> bool:
    d = 6
    sizes = 3 * lab.uniform(draws, 1, 1, purpose="sizes")
    x = sizes * lab.normal(draws, 4, d, purpose="bound tokens")
    w_q, w_k, w_v = lab.normal(3, draws, d, d, purpose="bound weights") / math.sqrt(d)
    form, value = (torch.linalg.matrix_norm(w, 2) for w in (w_q @ w_k.mT, w_v))
    before, after = diameter(x), diameter(attention(x, w_q, w_k, w_v))
    bound = torch.stack([diameter_bound(b, float(f), float(v), d) for b, f, v in zip(before, form, value, strict=True)])
    return bool((after <= bound * (1 + 1e-12)).all())


def _unit_values(lab: Lab) -> bool:
    d = 6
    x = 2.0 * lab.normal(20, 5, d, purpose="unit tokens")
    shrinks = True
    for layer in range(20):
        w_q, w_k, w_v = lab.normal(3, 20, d, d, purpose=f"unit {layer}") / math.sqrt(d)
        w_v = w_v / torch.linalg.matrix_norm(w_v, 2, keepdim=True)
        before, x = diameter(x), attention(x, w_q, w_k, w_v)
        shrinks = shrinks and bool((diameter(x) < before).all())
        # Spread out again about their mean, so that every layer is a trial.
        x = x.mean(1, keepdim=True) + residual(x) / diameter(x).reshape(-1, 1, 1) * 3
    return shrinks


@CHAPTER.claim(
    "W-7.3d",
    section="7.2.3",
    statement="With a skip connection of weight 1 − β added to the hypothesis, under the same bounds: do all tokens "
    "still converge to one distribution?",
    formula=r"X^{(l)} = \beta\, \mathrm{Attn}(X^{(l-1)}) + (1 - \beta)\, X^{(l)}: \quad p_i^{(l)} \rightarrow p\ ?",
    correction="Not for all matrices within the bounds; for random ones yes. (The skip must carry the layer before, "
    "index l − 1; as printed the equation is solved by plain attention.) The bound becomes a factor 1 − β(1 − f) "
    "with f the one without skip, so the threshold is the same, and norms up to 2 still allow tokens to part. For "
    "random matrices they converge, but only geometrically: by (1 − β)/√((1 − β)² + β²) per layer.",
    corrected=r"D^{(l)} \leq \left(1 - \beta + \beta\, |W_v| \tanh\frac{|W_q^T W_k| D^2}{4 \sqrt{d}}\right) D, \quad "
    r"\mathrm{random:}\ \frac{1 - \beta}{\sqrt{(1 - \beta)^2 + \beta^2}}\ \mathrm{per\ layer}",
    lesson="Flat attention adds the same vector to all tokens. The skip keeps a share 1 − β of what distinguishes "
    "them, while the common part is kept and grows by a random vector at a right angle, so the distinguishing share "
    "falls by a fixed factor. With β = 1/2 that is 0.71 per layer: half a percent is left after 15 layers. Models that "
    "only add to the stream, behind a LayerNorm, lose it far more slowly.",
)
def skip_connections(lab: Lab) -> Evidence:
    eye = torch.eye(2, dtype=torch.float64)
    tokens = 1.5 * critical_diameter(4.0, 2.0, 2) / math.sqrt(2) * eye
    first = float(diameter(tokens))
    for _ in range(30):
        tokens = 0.5 * attention(tokens, 2 * eye, 2 * eye, 2 * eye) + 0.5 * tokens
    parted = float(diameter(tokens)) / first
    d, n, stacks, depth = 64, 8, 24, 8
    small = 1e-4 * layer_norm(lab.normal(stacks, n, d, purpose="tokens"))
    answer = [more_than("W = 2·1, β = ½, above the threshold: distance of two tokens after 30 layers, over the first",
                        100.0, parted, 0.0)]  # fmt: skip
    for beta in (0.2, 0.5):
        layers = random_stack(small, depth, lab.generator(f"{beta}"), beta=beta)
        mean = [x.mean(-2).square().sum(-1) for x in (layers[0], layers[-1])]
        left = residual_norm(layers[-1]) / residual_norm(small)
        name = f"random matrices, β = {beta}, {depth} layers"
        # Attention is flat up to the scores of these small tokens, about 1e-8, and so are the differences left.
        answer.append(exact(f"{name}: share of the differences left", (1 - beta) ** depth, float(left.mean()),
                            scale=1e3))  # fmt: skip
        growth = ((1 - beta) ** 2 + beta**2) ** depth
        answer.append(mean_of(f"{name}: squared length of the mean token over the first", growth, mean[1] / mean[0]))
        # The rate itself, measured on stacks: differences over the mean token, per layer.
        rates = (difference_ratio(layers[-1]) / difference_ratio(small)).log() / depth
        odds = mean_of(f"{name}: logarithm of the rate per layer", math.log(skip_rate(beta)), rates)
        # The mean of a logarithm lies below the logarithm of the mean: by half the relative variance of the squares.
        bias = float((mean[1] / mean[0]).var() / (mean[1] / mean[0]).mean() ** 2) / 4 / depth
        answer.append(replace(odds, predicted=odds.predicted + bias))
    return Evidence(answer=tuple(answer), figures=(_curves(lab),))


def _curves(lab: Lab) -> Curves:
    d, n, stacks, depth = 64, 16, 4, 40
    tokens = layer_norm(lab.normal(stacks, n, d, purpose="figure"))
    x = np.arange(depth + 1, dtype=float)
    series = []
    cases: tuple[tuple[float, Norm, str], ...] = (
        (1.0, "none", "no skip"),
        (1.0, "post", "no skip, LayerNorm after"),
        (0.5, "none", "β = ½"),
        (0.5, "post", "β = ½, LayerNorm after"),
        (0.3, "none", "β = 0.3"),
        (1.0, "pre", "added to the stream, LayerNorm before"),
    )
    for beta, norm, label in cases:
        layers = random_stack(tokens, depth, lab.generator(label), beta=beta, norm=norm)
        share = torch.stack([relative_residual(layer).log().mean() for layer in layers]).exp().clamp_min(1e-16)
        series.append(Series(label, x, share.numpy()))
    for beta in (0.5, 0.3):
        odds = math.sqrt(n - 1) * skip_rate(beta) ** x  # differences over mean, tokens at right angles at the start
        series.append(Series(f"flat attention, β = {beta:g}", x, odds / np.sqrt(1 + odds**2), role="theory"))
    return Curves(
        "collapse",
        "How much of the tokens still distinguishes them",
        "Random stacks of 16 tokens of width 64 (geometric mean of four). Without a skip tokens are equal after a few "
        "layers, up to rounding (10⁻¹⁶); with one their differences fall by a fixed factor per layer.",
        "layers",
        "share that distinguishes tokens",
        tuple(series),
        log_y=True,
    )


def _flat(finding: Finding) -> Evidence | None:
    """Effective keys (e to the entropy) against all visible keys.

    Flat weights leave out fewer than half of them.
    """
    rows = rows_of(finding, "heads", ("value", "low", "high", "uniform"), quantity="effective_keys")
    if rows is None:
        return None
    visible = numbers(rows, "uniform")
    share, error = float((numbers(rows) / visible).mean()), float((errors(rows) / visible).mean())
    quantity = f"effective keys over those of uniform attention, mean over {rows.height} heads"
    return Evidence((more_than(f"{quantity}: more than one half", 0.5, share, error),))


CHAPTER.of_a_model(
    "W-7.3e",
    section="7.2.3",
    statement="Sparse spectra of queries and keys together with random alignment make trained attention quite flat: "
    "all weights are about 1/n.",
    formula=r"\lambda_1, \ldots, \lambda_n \approx \frac{1}{n}",
    lesson="Small mean singular values make the scores of random vectors small. Trained tokens are not random vectors: "
    "they have large parts along the few strong directions of queries and keys, and a few such directions are enough "
    "to make attention sharp. So flatness has to be measured: if all weights are about 1/n, the effective number of "
    "keys, e to the entropy, is close to n, and surely more than n/2.",
    lens="focus",
    reason="the effective number of keys in the attention of a trained model, beside that of uniform attention",
    judge=_flat,
)

"""Conti, sections 1.2.4 and 1.2.5: norms, residuals, masks, cross-attention."""

import math
from collections.abc import Callable

import torch
from torch import nn

from headscope.attention.call import Call
from headscope.attention.mechanisms.dense import Dense
from headscope.core.verdict import Evidence
from headscope.theory.checks import Lab, exact, fact
from headscope.theory.works import conti

CHAPTER = conti()


@CHAPTER.claim(
    "C-4a",
    section="1.2.4",
    statement="Layer normalisation subtracts the mean of a row, divides by its standard deviation plus a small number, "
    "and adds a bias.",
    formula=r"X \to \frac{X - \mu}{\sigma + \mathrm{eps}} + \mathrm{bias}",
    correction="A learned gain multiplies the normalised row before the bias is added (both are vectors of length d), "
    "and the small number is added to the variance under the root.",
    corrected=r"X \to \gamma \odot \frac{X - \mu}{\sqrt{\sigma^2 + \mathrm{eps}}} + \beta",
    lesson="Without the gain every row would leave with the same length, and no entry could count more than another. "
    "Where eps stands matters only for rows that hardly vary: at σ = 0.001 and eps = 0.00001 the stated form gives "
    "values three times too large.",
    slip=True,
)
def layer_norm(lab: Lab) -> Evidence:
    d, eps = 16, 1e-5
    x = lab.normal(5, d, purpose="x")
    gain, bias = 1 + 0.5 * lab.normal(d, purpose="gain"), lab.normal(d, purpose="bias")
    layer = nn.LayerNorm(d, eps=eps, dtype=torch.float64)
    plain = nn.LayerNorm(d, eps=eps, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(gain)
        layer.bias.copy_(bias)
    flat = 1e-3 * x

    def centred(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rows - rows.mean(-1, keepdim=True), rows.std(-1, correction=0, keepdim=True)

    stated, corrected = [], []
    for name, rows, weight, shift, module in (
        ("rows of spread 1, learned gain", x, gain, bias, layer),
        ("rows of spread 0.001, gain 1, bias 0", flat, torch.ones(d).double(), torch.zeros(d).double(), plain),
    ):
        away, sigma = centred(rows)
        measured = module(rows).detach()
        stated.append(exact(name, away / (sigma + eps) + shift, measured))
        corrected.append(exact(name, weight * away / (sigma.square() + eps).sqrt() + shift, measured))
    return Evidence(tuple(stated), tuple(corrected))


@CHAPTER.claim(
    "C-4b",
    section="1.2.4",
    statement="The residual connection adds the first embedding to the normalised output of the attention.",
    formula=r"(X W^E + P) + \mathrm{LayerNorm}(\mathrm{MultiHead}(X))",
    correction="The input of the layer (only in the first layer the embedding) is added to the attention output first, "
    "and the sum is normalised: add, then norm.",
    corrected=r"\mathrm{LayerNorm}(X + \mathrm{MultiHead}(X))",
    lesson="The block is called add and norm, in this order: the paper's layers normalise the sum, so that what is "
    "passed on has a fixed size. Adding after the normalisation lets the stream grow with every layer. Later models "
    "normalise the input of the attention, which is a third order.",
)
def add_and_norm(lab: Lab) -> Evidence:
    d, n, heads = 12, 5, 3
    x = lab.normal(1, n, d, purpose="x")
    with torch.random.fork_rng(devices=[]):  # its first weights are replaced: leave the caller's numbers alone
        layer = nn.TransformerEncoderLayer(
            d, heads, dim_feedforward=8, dropout=0.0, batch_first=True, norm_first=False, dtype=torch.float64
        )
    with torch.no_grad():
        for index, weight in enumerate(layer.parameters()):
            weight.copy_(0.5 * lab.normal(*weight.shape, purpose=f"w{index}"))
        # Only the attention block: the feed-forward adds nothing, and normalising twice is undone by unit gains.
        for weight in (*layer.linear1.parameters(), *layer.linear2.parameters()):
            weight.zero_()
        for norm in (layer.norm1, layer.norm2):
            norm.weight.fill_(1.0)
            norm.bias.zero_()
            norm.eps = 0.0
        measured = layer(x)
        mixed = layer.self_attn(x, x, x, need_weights=False)[0]
        normed = nn.functional.layer_norm
        stated = normed(x + normed(mixed, (d,), eps=0.0), (d,), eps=0.0)
        unnormed = x + normed(mixed, (d,), eps=0.0)
        corrected = normed(x + mixed, (d,), eps=0.0)
    name = "output of the first block of torch's encoder layer"
    return Evidence(
        stated=(exact(name, unnormed, measured),),
        corrected=(
            exact(name, corrected, measured),
            fact(
                "normalising the stated sum once more does not repair it", float((stated - measured).abs().max()) > 0.01
            ),
        ),
    )


@CHAPTER.claim(
    "C-4c",
    section="1.2.4",
    statement="The feed-forward layer is two linear maps with a ReLU between, and its biases are two real numbers.",
    formula=r"\mathrm{FFN}(X) = \max(0, X W_1 + b_1) W_2 + b_2, \quad b_1, b_2 \in \mathbb{R}",
    correction="The biases are vectors: one number for each inner unit and one for each output.",
    corrected=r"b_1 \in \mathbb{R}^{2048}, \quad b_2 \in \mathbb{R}^{d}",
    lesson="A bias moves the point at which a unit switches on, and each of the 2048 units needs its own. With one "
    "number for all of them the layer would have 2,097,154 parameters; the layer of the paper has 2,099,712.",
    slip=True,
)
def feed_forward_biases(lab: Lab) -> Evidence:
    d, inner = 512, 2048
    layers = nn.Linear(d, inner, device="meta"), nn.Linear(inner, d, device="meta")
    counted = sum(weight.numel() for layer in layers for weight in layer.parameters())
    x, w_1, b_1 = lab.normal(5, 3, purpose="x"), lab.normal(4, 3, purpose="w1"), lab.normal(4, purpose="b1")
    w_2, b_2 = lab.normal(3, 4, purpose="w2"), lab.normal(3, purpose="b2")
    linear = nn.functional.linear
    by_torch = linear(torch.relu(linear(x, w_1, b_1)), w_2, b_2)
    by_hand = (x @ w_1.T + b_1).clamp_min(0) @ w_2.T + b_2
    biases = [layer.bias.numel() for layer in layers]
    return Evidence(
        stated=(
            exact("numbers in b₁ of the layer of width 512 and 2048", 1.0, float(biases[0])),
            exact("numbers in b₂", 1.0, float(biases[1])),
        ),
        corrected=(
            exact("numbers in b₁ of the layer of width 512 and 2048", float(inner), float(biases[0])),
            exact("numbers in b₂", float(d), float(biases[1])),
            exact("parameters of the layer", 2.0 * d * inner + inner + d, float(counted)),
            exact("the formula with vector biases", by_hand, by_torch),
        ),
    )


def _masked_weights(scores: torch.Tensor) -> torch.Tensor:
    n = scores.shape[-1]
    mask = torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)
    return torch.softmax(scores + mask, -1)


@CHAPTER.claim(
    "C-5a",
    section="1.2.5",
    statement="Adding a mask of 0 on and below the diagonal and −∞ above it before the softmax gives a lower "
    "triangular matrix of weights whose rows sum to 1.",
    formula=r"\mathrm{softmax}(M + S)_{ij} = 0 \ (j > i), \quad \sum_{j \leq i} s'_{ij} = 1",
    lesson="e to the power of −∞ is 0, so what is masked gets no weight, and the rest is normalised over what is left. "
    "Setting weights to 0 after the softmax would not do: the rows would no longer sum to 1.",
)
def causal_mask(lab: Lab) -> Evidence:
    scores = 2 * lab.normal(7, 7)
    weights = _masked_weights(scores)
    after = torch.softmax(scores, -1).tril()
    prefix_weights = [torch.softmax(scores[i, : i + 1], -1) for i in range(7)]
    return Evidence(
        (
            exact("largest weight above the diagonal", 0.0, float(weights.triu(1).abs().max())),
            exact("sums of the rows", 1.0, weights.sum(-1)),
            exact("last row: the softmax of what is left", prefix_weights[6], weights[6]),
            exact("third row: the softmax of what is left", prefix_weights[2], weights[2, :3]),
            fact("masking after the softmax would lose mass", float(after.sum(-1).min()) < 0.99),
        )
    )


@CHAPTER.claim(
    "C-5b",
    section="1.2.5",
    statement="With the mask, row j of the output depends on positions up to j only.",
    formula=r"(s'_{j,1}, \ldots, s'_{j,j}, 0, \ldots, 0) \cdot V",
    lesson="Row j is a weighted mean of the first j values, with weights made of the first j scores. Changing any "
    "later token leaves it untouched, which is what lets a decoder be trained on all positions at once. Preceding "
    "includes the position itself.",
)
def later_tokens_do_not_matter(lab: Lab) -> Evidence:
    n, d, j = 9, 6, 4
    x = lab.normal(n, d, purpose="x")
    w_q, w_k, w_v = (lab.normal(d, d, purpose=name) for name in "qkv")

    def attended(tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = ((tokens @ w)[None, None] for w in (w_q, w_k, w_v))
        at = torch.arange(n)[None]
        return Dense()(Call(q, k, v, d**-0.5, at, at, right=0)).out[0, 0]

    other = x.clone()
    other[j + 1 :] = lab.normal(n - j - 1, d, purpose="other")
    by_hand = _masked_weights((x @ w_q) @ (x @ w_k).mT / math.sqrt(d)) @ (x @ w_v)
    differentiate: Callable[..., torch.Tensor] = torch.autograd.functional.jacobian
    jacobian = differentiate(lambda tokens: _attended_plainly(tokens, w_q, w_k, w_v), x)
    reach = jacobian.abs().amax((1, 3))
    return Evidence(
        (
            exact("rows up to 4 after all later tokens are changed", attended(x)[: j + 1], attended(other)[: j + 1]),
            exact("largest derivative of a row by a later token", 0.0, float(reach.triu(1).max())),
            fact(
                "rows do depend on themselves and earlier ones",
                bool((reach.tril() + torch.ones(n, n).triu(1) > 0).all()),
            ),
            exact("masked attention written out", by_hand, attended(x)),
        )
    )


def _attended_plainly(x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    return _masked_weights((x @ w_q) @ (x @ w_k).mT / math.sqrt(x.shape[-1])) @ (x @ w_v)


@CHAPTER.claim(
    "C-5c",
    section="1.2.5",
    statement="Cross-attention applies the attention formula to the decoder's input X and the encoder's output Y "
    "directly, with Y as keys and as values.",
    formula=r"\mathrm{softmax}\left(\frac{X Y^{\top}}{\sqrt{d_k}}\right) Y",
    correction="Queries, keys and values are projected first: the scores compare X W^Q with Y W^K, and what is mixed "
    "is Y W^V.",
    corrected=r"\mathrm{softmax}\left(\frac{X W^Q (Y W^K)^{\top}}{\sqrt{d_k}}\right) Y W^V",
    lesson="Without projections nothing could be learned about how the two languages relate: the two streams would "
    "have to share one geometry, and all heads would be the same. The stated form is the special case in which all "
    "three matrices are the identity and d_k = d.",
    slip=True,
)
def cross_attention(lab: Lab) -> Evidence:
    d, n, m = 6, 4, 7
    x, y = lab.normal(1, n, d, purpose="x"), lab.normal(1, m, d, purpose="y")
    with torch.random.fork_rng(devices=[]):  # its first weights are replaced
        layer = nn.MultiheadAttention(d, 1, bias=False, batch_first=True, dtype=torch.float64)
    eye = torch.eye(d, dtype=torch.float64)
    weights = [lab.normal(d, d, purpose=name) for name in "qkv"]
    with torch.no_grad():
        layer.out_proj.weight.copy_(eye)
        layer.in_proj_weight.copy_(torch.cat([w.T for w in weights]))
        measured = layer(x, y, y, need_weights=False)[0][0]
        layer.in_proj_weight.copy_(torch.cat([eye] * 3))
        unprojected = layer(x, y, y, need_weights=False)[0][0]
    w_q, w_k, w_v = weights
    direct = torch.softmax(x[0] @ y[0].mT / math.sqrt(d), -1) @ y[0]
    projected = torch.softmax((x[0] @ w_q) @ (y[0] @ w_k).mT / math.sqrt(d), -1) @ (y[0] @ w_v)
    name = "torch's attention of 4 decoder on 7 encoder positions"
    return Evidence(
        stated=(exact(name, direct, measured),),
        corrected=(
            exact(name, projected, measured),
            exact("with identity projections the stated form is right", direct, unprojected),
        ),
    )


@CHAPTER.claim(
    "C-5d",
    section="1.2.5",
    statement="A softmax over the vocabulary gives scores between 0 and 1, and the index of the highest one is the "
    "predicted word.",
    formula=r"\hat{y} = \mathrm{argmax}_i\, \mathrm{softmax}(Y \cdot PR)_i",
    lesson="The softmax keeps the order of its inputs, so the most probable word is the one with the largest logit and "
    "the softmax is not even needed to choose it. This is greedy decoding: the best next word, not the best sentence.",
)
def most_probable_word(lab: Lab) -> Evidence:
    y, projection = lab.normal(50, 8, purpose="y"), lab.normal(8, 100, purpose="pr")
    logits = y @ projection
    p = torch.softmax(logits, -1)
    return Evidence(
        (
            exact("sums of 50 rows over 100 words", 1.0, p.sum(-1)),
            fact("all scores between 0 and 1", bool(((p > 0) & (p < 1)).all())),
            exact(
                "index of the highest score, of the highest logit", logits.argmax(-1).double(), p.argmax(-1).double()
            ),
        )
    )

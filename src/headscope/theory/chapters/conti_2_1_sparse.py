"""Conti, sections 2 and 2.1.1: model sizes, cost of attention, sparse graphs."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from headscope.attention.call import Call
from headscope.attention.mechanisms.window import Window
from headscope.core.figure import Curves, Mosaic, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.theory.checks import Lab, exact, fact, mean_of, more_than, rounded, trend_of
from headscope.theory.works import conti

CHAPTER = conti()


def _decoder_only(layers: int, d: int, words: int, context: int) -> float:
    """Number of parameters of a GPT with tied embeddings.

    A layer has two norms, attention and a feed-forward part of four widths.
    """
    per_layer = 4 * d * d + 4 * d + 8 * d * d + 5 * d + 4 * d
    return float(layers * per_layer + words * d + context * d + 2 * d)


def _bert(layers: int, d: int, words: int, context: int) -> float:
    """Number of parameters of a BERT.

    Its norm comes after the embeddings instead of at the end; it has two segments and a pooler.
    """
    return _decoder_only(layers, d, words, context) + 2 * d + d * d + d


@CHAPTER.claim(
    "C-6a",
    section="2",
    statement="GPT-1 has 117 million parameters, BERT 340 million, GPT-2 1.5 billion and GPT-3 175 billion.",
    formula=r"12\, L\, d^2 + |V|\, d + n\, d",
    lesson="A transformer layer of width d holds 4 d² weights in its attention and 8 d² in its feed-forward layer, "
    "so depth and width give the count almost alone. The published shapes give 116.5 M, 335.1 M, 1.56 B and 174.6 B. "
    "Three of the four figures are these, rounded. The 1.5 billion of GPT-2 are the paper's own figure (1542 million), "
    "which its shape does not give.",
    correction="GPT-2 has 1.56 billion parameters, which does not round to 1.5; the other three are right.",
    corrected=r"117\ \mathrm{M}, \quad 340\ \mathrm{M}, \quad 1.56\ \mathrm{B}, \quad 175\ \mathrm{B}",
    slip=True,
)
def table_of_sizes(lab: Lab) -> Evidence:
    del lab
    counted = {
        "GPT-1: 12 layers of width 768, millions": ("117", _decoder_only(12, 768, 40_478, 512) / 1e6),
        "BERT: 24 layers of width 1024, millions": ("340", _bert(24, 1024, 30_522, 512) / 1e6),
        "GPT-2: 48 layers of width 1600, billions": ("1.5", _decoder_only(48, 1600, 50_257, 1024) / 1e9),
        "GPT-3: 96 layers of width 12288, billions": ("175", _decoder_only(96, 12_288, 50_257, 2048) / 1e9),
    }
    right = {name: ("1.56" if "GPT-2" in name else printed, count) for name, (printed, count) in counted.items()}
    return Evidence(
        tuple(rounded(name, printed, count) for name, (printed, count) in counted.items()),
        tuple(rounded(name, printed, count) for name, (printed, count) in right.items()),
    )


@CHAPTER.claim(
    "C-6c",
    section="2",
    statement="LaMDA has 137 and Minerva 540 billion parameters. (Also named are the context windows of three closed "
    "products, GPT-4, GPT-3.5 and GPT-3, which nothing here can measure.)",
    formula=r"64\,(4 \cdot 8192 \cdot 16384 + 3 \cdot 8192 \cdot 65536), \quad "
    r"118\,(2 d \cdot 12288 + 2 d \cdot 256 + 12 d^2) + 256000\, d, \ d = 18432",
    lesson="Both counts follow from the shapes that the papers give. LaMDA: 64 layers of width 8192, 128 heads of "
    "width 128, a gated feed-forward layer of 65536, counted without embeddings as its paper does: 137.4 billion. "
    "Minerva is PaLM trained further: 118 layers of width 18432, 48 query heads of width 256 on one shared key head, a "
    "gated feed-forward layer of four widths, 256,000 words: 540.4 billion. The windows (32000, 4000 to 16000, 2000) "
    "are announcements, rounded from powers of two, and they age fast.",
)
def larger_sizes(lab: Lab) -> Evidence:
    del lab
    lamda = 64 * (4 * 8192 * 128 * 128 + 3 * 8192 * 65_536)
    d, heads, d_head = 18_432, 48, 256
    attention = 2 * d * heads * d_head + 2 * d * d_head
    palm = 118 * (attention + 3 * d * 4 * d) + 256_000 * d
    return Evidence(
        (
            rounded("LaMDA: parameters without embeddings, billions", "137", lamda / 1e9),
            rounded("PaLM and Minerva: parameters, billions", "540", palm / 1e9),
        )
    )


@CHAPTER.claim(
    "C-6b",
    section="2.1",
    statement="Each token is related to every other token, so full attention costs O(n²).",
    formula=r"O(n^2)",
    lesson="n queries meet n keys: n² scores, each a product of d numbers, and n² weights to apply, 4 d n² "
    "operations in all. The projections and the feed-forward layer cost about 24 d² n, so attention is the larger "
    "part only once the text is longer than about six widths.",
)
def full_attention_is_quadratic(lab: Lab) -> Evidence:
    d = 16
    comparisons = []
    for n in (64, 128, 256):
        q, k, v = (lab.normal(n, d, purpose=f"{name}{n}") for name in "qkv")
        with FlopCounterMode(display=False) as counter:
            torch.softmax(q @ k.mT / math.sqrt(d), -1) @ v
        comparisons.append(
            exact(f"operations in the two products, n = {n}", 4.0 * d * n * n, float(counter.get_total_flops()))
        )
    return Evidence(tuple(comparisons))


def _bigbird(n: int, window: int, random: int, first: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The mask of a window, global tokens and random keys.

    `window` tokens lie around each token, `first` tokens are global, each row has `random` others.
    """
    at = torch.arange(n)
    near = (at[:, None] - at[None, :]).abs() <= window // 2
    everywhere = (at[:, None] < first) | (at[None, :] < first)
    order = torch.rand(n, n, generator=generator).masked_fill(near | everywhere, -1.0)
    chance = torch.zeros(n, n, dtype=torch.bool).scatter(1, order.topk(random).indices, True)
    return {"window": near, "global": everywhere, "random": chance & ~near & ~everywhere}


def _grows_linearly(name: str, count: dict[int, int]) -> Comparison:
    """Compares the last of three counts with the line through the first two."""
    (a, x), (b, y), (c, z) = sorted(count.items())
    return exact(name, x + (y - x) * (c - a) / (b - a), float(z))


@CHAPTER.claim(
    "C-7a",
    section="2.1.1",
    statement="BigBird, which joins a window, random and global tokens, needs O(n) inner products.",
    formula=r"|E| \leq n\,(w + r + 2 g) = O(n)",
    lesson="Each token looks at w neighbours, r random tokens and g global ones, and the g global tokens look at "
    "all: about n(w + r + 2g) pairs, a straight line in n as long as w, r and g stay fixed. If one of them must grow "
    "with n to keep the quality, the cost grows with it.",
)
def bigbird_is_linear(lab: Lab) -> Evidence:
    window, random, first = 6, 3, 2
    parts = {n: _bigbird(n, window, random, first, lab.generator(f"{n}")) for n in (128, 256, 512)}
    count = {n: int((p["window"] | p["global"] | p["random"]).sum()) for n, p in parts.items()}
    bound = all(pairs <= n * (window + 1 + random + 2 * first) for n, pairs in count.items())
    small = _bigbird(40, window, random, first, lab.generator("picture"))
    values = torch.where(small["global"], 2, torch.where(small["window"], 1, torch.where(small["random"], 3, 0)))
    figure = Mosaic(
        "bigbird", "Who attends to whom in BigBird",
        "40 tokens, a window of 3 on each side, 2 global tokens, 3 random ones per row.",
        values.double().numpy(), ("window", "global", "random"),
    )  # fmt: skip
    return Evidence(
        (
            _grows_linearly("pairs at n = 512 from those at 128 and 256", count),
            fact("at most n(w + 1 + r + 2g) pairs", bound),
        ),
        figures=(figure,),
    )


@CHAPTER.claim(
    "C-7b",
    section="2.1.1",
    statement="The generalised attention (10) on a graph reduces to the attention (3) when every neighbourhood is "
    "full.",
    formula=r"x_i + \sum_{h=1}^{H} \sigma(Q_h(x_i) K_h(X)^{\top}) V_h(X) = "
    r"\left[\mathrm{softmax}\left(\frac{Q K^{\top}}{\sqrt{d_k}}\right) V\right]_i",
    correction="The sums over keys become full, but (10) also holds the residual x, a sum over heads with V_h = "
    "W_h^V W_h^O, and no factor 1/√d_k. It reduces to x plus multi-head attention (5), with the factor taken into "
    "Q_h; to (3) only for one head, without the residual.",
    corrected=r"x_i + \left[\mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_H) W^O\right]_i, \quad "
    r"Q_h(x) = x W_h^Q / \sqrt{d_k},\ V_h(x) = x W_h^V W_h^O",
    lesson="What the graph does is what the statement says: with all edges present every query sees every key, and "
    "attention on a graph is dense attention. But (10) describes a whole layer, with the residual path and all heads "
    "already summed, while (3) is a single head.",
    slip=True,
)
def full_graph(lab: Lab) -> Evidence:
    n, d, m, heads = 6, 8, 4, 2
    x = lab.normal(n, d, purpose="x")
    w_q, w_k, w_v = (lab.normal(heads, d, m, purpose=name) for name in "qkv")
    w_o = lab.normal(heads, m, d, purpose="o")

    def on_graph(heads_used: int, scale: float) -> Tensor:
        """Equation (10), node by node and head by head, with full neighbourhoods."""
        rows = []
        for i in range(n):
            neighbours = list(range(n))
            row = x[i].clone()
            for h in range(heads_used):
                keys = x[neighbours] @ w_k[h]
                row = row + torch.softmax(keys @ (x[i] @ w_q[h]) * scale, -1) @ (x[neighbours] @ w_v[h] @ w_o[h])
            rows.append(row)
        return torch.stack(rows)

    def one_head(h: int) -> Tensor:
        return torch.softmax((x @ w_q[h]) @ (x @ w_k[h]).mT / math.sqrt(m), -1) @ (x @ w_v[h])

    joined = torch.cat([one_head(h) for h in range(heads)], -1) @ w_o.flatten(0, 1)
    return Evidence(
        stated=(exact("(10) with full neighbourhoods, one head, beside (3)", one_head(0) @ w_o[0], on_graph(1, 1.0)),),
        corrected=(
            exact("(10) with the factor in Q, two heads", x + joined, on_graph(heads, m**-0.5)),
            exact("one head, residual taken off, beside (3)", one_head(0) @ w_o[0], on_graph(1, m**-0.5) - x),
        ),
    )


@CHAPTER.claim(
    "C-7c",
    section="2.1.1",
    statement="Every complete graph can be approximated by random graphs.",
    formula=r"A_{G(n,p)}\,/\,p \approx A_{K_n}",
    correction="In the spectral norm the relative error is 2√((1 − p)/(np)): for a fixed share p of the edges it falls "
    "like n^(−1/2). It does not fall with n when the number np of random neighbours per token is fixed.",
    corrected=r"\| A_G / p - A_{K_n} \| \,/\, n \approx 2 \sqrt{\frac{1 - p}{n p}}",
    lesson="A random graph spreads information almost like the complete one, because all eigenvalues but the first "
    "stay small. How small depends on the number of neighbours, not on the share of edges: 16 random neighbours "
    "give an error of a half among 256 tokens and among 512, while half of all edges give an eleventh. With the 2 or "
    "3 random tokens of BigBird there is no such approximation, which is one reason why it also has a window and "
    "global tokens.",
)
def random_graphs(lab: Lab) -> Evidence:
    sizes, draws = (128, 256, 512), 6
    half = {n: _spectral_gaps(lab, n, n / 2, draws) for n in sizes}
    sparse = {n: _spectral_gaps(lab, n, 16.0, draws) for n in (256, 512)}
    means = {n: float(gaps.mean()) for n, gaps in half.items()}
    x = np.array(sizes, dtype=np.float64)
    theory = 2 / np.sqrt(x)
    figure = Curves(
        "random_graphs", "Random graphs come near the complete one",
        "Spectral norm of the difference of adjacency matrices over n, half of all edges drawn; mean of six graphs.",
        "tokens n", "relative error",
        (Series("measured", x, np.array(list(means.values()))), Series("2√((1−p)/(np))", x, theory, role="theory")),
        log_x=True, log_y=True,
    )  # fmt: skip
    spreads = [float(half[n].std()) / draws**0.5 for n in sizes]
    few = 2 * math.sqrt((1 - 16 / 512) / 16)
    return Evidence(
        stated=(mean_of("relative error in the spectral norm, half of the edges, n = 128", 0.0, half[128]),),
        corrected=(
            mean_of("relative error in the spectral norm, half of the edges, n = 512: 2√((1−p)/(np))", 2 / 512**0.5,
                    half[512]),
            *(
                more_than(f"16 neighbours: error at n = 512, beside nine tenths of {name}", 0.9 * other,
                          float(sparse[512].mean()), float(sparse[512].std()) / draws**0.5)
                for name, other in (("that at n = 256", float(sparse[256].mean())), ("2√((1−p)/(np))", few))
            ),
        ),
        trend=trend_of("relative error in the spectral norm, half of the edges", "n", sizes,
                       list(means.values()), -0.5, spreads),
        figures=(figure,),
    )  # fmt: skip


def _spectral_gaps(lab: Lab, n: int, degree: float, draws: int) -> Tensor:
    """‖A_G/p − A_K‖/n of random graphs with this mean number of neighbours."""
    p, gaps = degree / n, []
    complete = torch.ones(n, n, dtype=torch.float64).fill_diagonal_(0.0)
    for draw in range(draws):
        upper = (lab.uniform(n, n, purpose=f"{n} {degree} {draw}") < p).triu(1).double()
        gaps.append(torch.linalg.eigvalsh((upper + upper.mT) / p - complete).abs().max() / n)
    return torch.stack(gaps)


def _reached(n: int, layers: int, dilation: int, window: int) -> Tensor:
    """The tokens that reach the middle one through layers of dilated windows."""
    at, empty = torch.arange(n)[None], torch.zeros(1, 1, n, 1)
    reach = dilation * window // 2
    call = Call(empty, empty, empty, 1.0, at, at)
    step = Window(left=reach, right=reach, dilation=dilation).seen(call).visible()[0, 0].double()
    reached = torch.nn.functional.one_hot(torch.tensor(n // 2), n).double()
    for _ in range(layers):
        reached = ((reached @ step) > 0).double()
    return reached.nonzero()[:, 0]


@CHAPTER.claim(
    "C-7d",
    section="2.1.1",
    statement="A window of w tokens costs O(n w), and after l layers of windows with dilation d the receptive field is "
    "l · d · w.",
    formula=r"\mathrm{cost} = O(n\, w), \quad \mathrm{receptive\ field} = l \times d \times w",
    correction="With w/2 tokens on each side and the token itself the field spans l·d·w + 1 positions, so the stated "
    "width is right up to one token. With the same dilation in every layer only l·w + 1 of these positions are "
    "reached.",
    corrected=r"\mathrm{span} = l\, d\, w + 1, \quad \mathrm{reached} = l\, w + 1",
    lesson="Every layer moves information at most d·w/2 places to either side, so the span grows by d·w per layer. A "
    "dilated window skips tokens, and layers with one common dilation skip the same ones: the gaps close only if some "
    "layers or heads use other dilations.",
)
def receptive_field(lab: Lab) -> Evidence:
    del lab
    n, window = 301, 4
    cases = ((1, 1), (2, 1), (2, 2), (4, 2), (6, 4))
    errors, sizes, corrected = [], [], []
    for layers, dilation in cases:
        reached = _reached(n, layers, dilation, window)
        span = int(reached[-1] - reached[0]) + 1
        stated = layers * dilation * window
        sizes.append(float(stated))
        errors.append(abs(stated - span) / span)
        name = f"l = {layers}, d = {dilation}, w = {window}"
        corrected.append(exact(f"span, {name}", float(stated + 1), float(span)))
        corrected.append(exact(f"positions reached, {name}", float(layers * window + 1), float(len(reached))))
    pairs = {
        size: int(((torch.arange(size)[:, None] - torch.arange(size)).abs() <= window // 2).sum())
        for size in (64, 128, 256)
    }
    widest = _reached(n, 6, 4, window)
    depth = np.arange(1, 7, dtype=np.float64)
    spans = [_reached(n, int(layers), 4, window) for layers in depth]
    figure = Curves(
        "receptive_field", "How far a token hears",
        "Windows of 4 tokens with dilation 4: the span between the outermost positions that are reached, with the "
        "formula l·d·w over it, and how many positions are reached at all. Most of the span is gaps.",
        "layers", "positions",
        (
            Series("span", depth, np.array([float(s[-1] - s[0] + 1) for s in spans])),
            Series("positions reached", depth, np.array([float(len(s)) for s in spans])),
            Series("l·d·w", depth, depth * 4 * window, role="theory"),
        ),
    )  # fmt: skip
    return Evidence(
        stated=(
            _grows_linearly("pairs in a window of 4 at n = 256, from n = 64 and 128", pairs),
            exact("span after 6 layers, d = 4, w = 4", 96.0, float(widest[-1] - widest[0] + 1)),
        ),
        corrected=tuple(corrected),
        trend=trend_of("relative error of l·d·w as the span", "l·d·w", sizes, errors, -1.0),
        figures=(figure,),
    )


@CHAPTER.claim(
    "C-7e",
    section="2.1.1",
    statement="Since the number of global tokens is small and does not depend on n, local and global attention "
    "together still cost O(n).",
    formula=r"n\, w + 2 g n = O(n)",
    lesson="A global token adds one full row and one full column, about 2n pairs. A constant number of them changes "
    "the slope of the cost and not its order. With g growing like n it would be quadratic again.",
)
def global_tokens_are_cheap(lab: Lab) -> Evidence:
    del lab
    window, tokens = 6, 4
    count, added = {}, {}
    for n in (64, 128, 256):
        at = torch.arange(n)
        near = (at[:, None] - at[None, :]).abs() <= window // 2
        is_global = torch.zeros(n, dtype=torch.bool)
        is_global[torch.arange(tokens) * 10 + 5] = True
        allowed = near | is_global[:, None] | is_global[None, :]
        count[n] = int(allowed.sum())
        added[n] = int(allowed.sum()) - int(near.sum())
    # A row and a column each, less the crossings and what the window has already.
    predicted = 2 * tokens * 256 - tokens**2 - tokens * (2 * (window + 1) - 1)
    return Evidence(
        (
            _grows_linearly("pairs at n = 256, from n = 64 and 128", count),
            exact("pairs that 4 global tokens add at n = 256", float(predicted), float(added[256])),
        )
    )


CHAPTER.untestable(
    "C-7f",
    section="2.1.1",
    statement="BigBird handles sequences up to eight times longer on similar hardware and improves question answering "
    "and summarisation; different dilations per head improve Longformer.",
    lesson="These are results of the cited papers, measured on their hardware, data and training runs. What can be "
    "checked without them is the cost: it is linear in the length, so memory allows much longer texts.",
    reason="results of other authors' training runs, which would have to be repeated at their scale",
)

"""Conti, sections 2 and 2.1.1: sizes of models, the cost of attention, and attention on sparse graphs."""

import math

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from headscope.attention.call import Call
from headscope.attention.mechanisms.window import Window
from headscope.claims.lab import Lab, exact, fact
from headscope.claims.works import conti
from headscope.core.figure import Curves, Mosaic, Series
from headscope.core.verdict import Comparison, Evidence, Trend

CHAPTER = conti()


def _decoder_only(layers: int, d: int, words: int, context: int) -> float:
    """Parameters of a GPT: two norms, attention and a feed-forward of four widths per layer, tied embeddings."""
    per_layer = 4 * d * d + 4 * d + 8 * d * d + 5 * d + 4 * d
    return float(layers * per_layer + words * d + context * d + 2 * d)


def _bert(layers: int, d: int, words: int, context: int) -> float:
    """The same with a norm after the embeddings instead of at the end, two segments and the pooler."""
    return _decoder_only(layers, d, words, context) + 2 * d + d * d + d


@CHAPTER.claim(
    "C-6a",
    section="2",
    statement="GPT-1 has 117 million parameters, BERT 340 million, GPT-2 1.5 billion and GPT-3 175 billion.",
    formula=r"12\, L\, d^2 + |V|\, d + n\, d",
    lesson="A transformer layer of width d holds 4 d² weights in its attention and 8 d² in its feed-forward layer, "
    "so depth and width give the count almost alone. The published shapes give 116.5 M, 335.1 M, 1.56 B and 174.6 B: "
    "the table's figures, which are the ones usually quoted, to within 4 %.",
)
def table_of_sizes(lab: Lab) -> Evidence:
    del lab
    # Quoted, and counted from the published shape.
    table = {
        "GPT-1: 12 layers of width 768, millions": (117.0, _decoder_only(12, 768, 40_478, 512) / 1e6),
        "BERT: 24 layers of width 1024, millions": (340.0, _bert(24, 1024, 30_522, 512) / 1e6),
        "GPT-2: 48 layers of width 1600, billions": (1.5, _decoder_only(48, 1600, 50_257, 1024) / 1e9),
        "GPT-3: 96 layers of width 12288, billions": (175.0, _decoder_only(96, 12_288, 50_257, 2048) / 1e9),
    }
    # Figures that are quoted to two or three digits: an error of 1 %.
    return Evidence(
        tuple(Comparison(name, quoted, counted, 0.01 * quoted) for name, (quoted, counted) in table.items())
    )


CHAPTER.untestable(
    "C-6c",
    section="2",
    statement="The context window of GPT-4 reaches 32000 tokens, that of GPT-3.5 4000 to 16000 and that of GPT-3 2000; "
    "LaMDA has 137 and Minerva 540 billion parameters.",
    lesson="Context sizes of products are announcements, rounded from 32768, 16384, 4096 and 2048, and they age fast. "
    "The two parameter counts agree with the shapes that their papers give: 64 layers of width 8192 with a gated "
    "feed-forward of 65536, and 118 layers of width 18432 with one shared key head.",
    reason="these are figures that vendors announced about models that are not open; nothing here can measure them",
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
    """Who sees whom: `window` tokens about each, `first` global tokens, `random` others for each row."""
    at = torch.arange(n)
    near = (at[:, None] - at[None, :]).abs() <= window // 2
    everywhere = (at[:, None] < first) | (at[None, :] < first)
    order = torch.rand(n, n, generator=generator).masked_fill(near | everywhere, -1.0)
    chance = torch.zeros(n, n, dtype=torch.bool).scatter(1, order.topk(random).indices, True)
    return {"window": near, "global": everywhere, "random": chance & ~near & ~everywhere}


def _grows_linearly(name: str, count: dict[int, int]) -> Comparison:
    """The last of three counts beside the straight line through the first two."""
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
        """(10), node by node and head by head, with every neighbourhood full."""
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
    correction="In the spectral norm the relative error is 2√((1 − p)/(np)): it falls with the mean number of "
    "neighbours np like its power −1/2. It does not fall with n when the number of random neighbours per token is "
    "fixed.",
    corrected=r"\| A_G / p - A_{K_n} \| \,/\, n \approx 2 \sqrt{\frac{1 - p}{n p}}",
    lesson="A random graph spreads information almost like the complete one, because all eigenvalues but the first "
    "stay small. How small depends on the number of neighbours, not on the share of edges: 16 random neighbours "
    "among 1024 give an error of a half, 512 one of a sixteenth. With the 2 or 3 random tokens of BigBird there is "
    "no such approximation, which is one reason why it also has a window and global tokens.",
)
def random_graphs(lab: Lab) -> Evidence:
    n = 1024
    degrees = (16.0, 64.0, 256.0, 512.0)
    errors, theory = [], []
    complete = np.ones((n, n)) - np.eye(n)
    for degree in degrees:
        p = degree / n
        upper = (lab.uniform(n, n, purpose=f"{degree}") < p).triu(1).double().numpy()
        gap = (upper + upper.T) / p - complete
        start = lab.normal(n, purpose=f"start{degree}").numpy()
        top = eigsh(gap, k=1, which="LM", v0=start, tol=1e-3, return_eigenvectors=False)
        errors.append(float(abs(top[0])) / n)
        theory.append(2 * math.sqrt((1 - p) / degree))
    x = np.array(degrees)
    figure = Curves(
        "random_graphs", "Random graphs come near the complete one",
        "Spectral norm of the difference of adjacency matrices over n = 1024, by mean number of neighbours.",
        "mean number of neighbours", "relative error",
        (Series("measured", x, np.array(errors)), Series("2√((1−p)/(np))", x, np.array(theory), role="theory")),
        log_x=True, log_y=True,
    )  # fmt: skip
    return Evidence(
        stated=(Comparison("relative error in the spectral norm, 16 neighbours", 0.0, errors[0], 1e-9),),
        corrected=tuple(
            Comparison(
                f"relative error in the spectral norm, {degree:g} neighbours", predicted, error, 0.02 * predicted
            )
            for degree, error, predicted in zip(degrees, errors, theory, strict=True)
        ),
        trend=Trend("relative error in the spectral norm", "mean number of neighbours", degrees, tuple(errors)),
        figures=(figure,),
    )


def _reached(n: int, layers: int, dilation: int, window: int) -> Tensor:
    """The tokens from which the middle one has heard after some layers of dilated windows."""
    at, empty = torch.arange(n)[None], torch.zeros(1, 1, n, 1)
    reach = dilation * window // 2
    call = Call(empty, empty, empty, 1.0, at, at)
    step = Window(left=reach, right=reach, dilation=dilation).seen(call).visible()[0, 0].double()
    seen = torch.nn.functional.one_hot(torch.tensor(n // 2), n).double()
    for _ in range(layers):
        seen = ((seen @ step) > 0).double()
    return seen.nonzero()[:, 0]


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
        found = _reached(n, layers, dilation, window)
        span = int(found[-1] - found[0]) + 1
        stated = layers * dilation * window
        sizes.append(float(stated))
        errors.append(abs(stated - span) / span)
        name = f"l = {layers}, d = {dilation}, w = {window}"
        corrected.append(exact(f"span, {name}", float(stated + 1), float(span)))
        corrected.append(exact(f"positions reached, {name}", float(layers * window + 1), float(len(found))))
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
        trend=Trend("relative error of l·d·w as the span", "l·d·w", tuple(sizes), tuple(errors)),
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
        chosen = torch.zeros(n, dtype=torch.bool)
        chosen[torch.arange(tokens) * 10 + 5] = True
        both = near | chosen[:, None] | chosen[None, :]
        count[n] = int(both.sum())
        added[n] = int(both.sum()) - int(near.sum())
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

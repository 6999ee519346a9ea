r"""Bukatin, technical part: text as a matrix, residual stream, heads as maps."""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscope.core.figure import HeatMap
from headscope.core.verdict import Evidence
from headscope.maths.attention.induction import Induction
from headscope.maths.linear_algebra.factored import Factored, composition, composition_null, kronecker, moved
from headscope.theory.checks import Lab, counted, exact, fact, mean_of
from headscope.theory.works import bukatin

CHAPTER = bukatin()
_PART = "technical part"


@CHAPTER.claim(
    "B-1",
    section=_PART,
    statement="The vocabulary of GPT-2 has 50257 tokens.",
    formula=r"256 + 50000 + 1 = 50257",
    lesson="Byte-level pair encoding starts from the 256 bytes, learns 50,000 merges, and adds one token for the end "
    "of a text. The number can also be read off the 124,439,808 parameters of the small model: what its blocks, "
    "positions and norms leave is a table of 50257 rows.",
)
def vocabulary(lab: Lab) -> Evidence:
    d, positions, blocks, published = 768, 1024, 12, 124_439_808
    attention = d * 3 * d + 3 * d + d * d + d
    feed_forward = d * 4 * d + 4 * d + 4 * d * d + d
    other_parameters = positions * d + blocks * (attention + feed_forward + 4 * d) + 2 * d
    return Evidence(
        (
            counted(
                "rows that the published number of parameters leaves to the table of tokens",
                50257,
                (published - other_parameters) / d,
            ),
            counted(
                "of these, rows beyond the 256 bytes and the end of text: a round number of merges",
                0,
                (published - other_parameters) / d % 1000 - 257,
            ),
        )
    )


@dataclass(frozen=True)
class _Model:
    """A tiny causal transformer with random weights and two layers of attention."""

    embedding: Tensor
    positions: Tensor
    layers: Tensor  # [layer, (q, k, v), d, d]

    def __call__(self, tokens: Tensor) -> Tensor:
        """Probabilities of the next token at every position."""
        x = self.embedding[tokens] + self.positions[: len(tokens)]
        future = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
        for w_q, w_k, w_v in self.layers:
            scores = (x @ w_q) @ (x @ w_k).mT / math.sqrt(x.shape[-1])
            x = x + torch.softmax(scores.masked_fill(future, -torch.inf), -1) @ x @ w_v
        return torch.softmax(x @ self.embedding.mT, -1)


def _model(lab: Lab, symbols: int, d: int = 8) -> _Model:
    return _Model(
        lab.normal(symbols, d, purpose="embedding"),
        lab.normal(16, d, purpose="positions"),
        lab.normal(2, 3, d, d, purpose="layers") / math.sqrt(d),
    )


@CHAPTER.claim(
    "B-2",
    section=_PART,
    statement="One causal pass over a text gives the predictions after every prefix; in training the loss is the sum "
    "of −log of the probability given to each correct next token.",
    formula=r"t_1, \ldots, t_i \Rightarrow \rho_{i+1}, \quad "
    r"\mathrm{loss} = \sum_{i=1}^n -\log \rho_{i+1}(t_{i+1}^{correct})",
    lesson="With a causal mask position i sees nothing after i, so its prediction is the one that the prefix alone "
    "would give: n training examples for the price of one pass. The loss is minus the log of the probability of the "
    "whole continuation, because probabilities of successive tokens multiply.",
)
def one_pass(lab: Lab) -> Evidence:
    model = _model(lab, 3)
    tokens = torch.tensor([0, 2, 1, 1, 0, 2, 0])
    predictions = model(tokens)
    prefixes = torch.stack([model(tokens[: i + 1])[-1] for i in range(len(tokens))])
    total = 0.0
    for continuation in itertools.product(range(3), repeat=3):
        text = torch.tensor([1, *continuation])
        rho = model(text[:-1])
        loss = -sum(float(rho[i, text[i + 1]].log()) for i in range(3))
        total += math.exp(-loss)
    return Evidence(
        (
            exact("predictions of one pass against one pass per prefix", prefixes, predictions),
            exact("e^(−loss), summed over all 27 continuations of three tokens", 1.0, total),
        )
    )


@CHAPTER.claim(
    "B-3",
    section=_PART,
    statement="Autoregressive inference is a recurrent machine: the sampled token is fed back as input.",
    formula=r"(\mathrm{state}_{n+1},\ \rho_{n+2}) = f(\mathrm{state}_n,\ t_{n+1})",
    lesson="The state is the list of keys and values seen so far; one step appends to it and reads all of it, and "
    "gives the same as a pass over the whole text. Unlike the state of a classical recurrent network it grows with "
    "every token. Without softmax the same step needs a state of fixed size.",
)
def recurrent(lab: Lab) -> Evidence:
    d, n = 6, 9
    x = lab.normal(n, d, purpose="tokens")
    w_q, w_k, w_v = lab.normal(3, d, d, purpose="weights")
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    full_pass = torch.softmax((q @ k.mT).masked_fill(future, -torch.inf), -1) @ v
    linear = (q @ k.mT).masked_fill(future, 0.0) @ v
    seen_k, seen_v = torch.zeros(0, d, dtype=torch.float64), torch.zeros(0, d, dtype=torch.float64)
    memory = torch.zeros(d, d, dtype=torch.float64)
    steps, linear_steps = [], []
    for t in range(n):
        seen_k, seen_v = torch.cat((seen_k, k[t : t + 1])), torch.cat((seen_v, v[t : t + 1]))
        steps.append(torch.softmax(q[t] @ seen_k.mT, -1) @ seen_v)
        memory = memory + torch.outer(k[t], v[t])
        linear_steps.append(q[t] @ memory)
    return Evidence(
        (
            exact("steps with a growing state against the whole pass", full_pass, torch.stack(steps)),
            exact("linear attention: steps with a d × d state against the whole pass", linear,
                  torch.stack(linear_steps)),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "B-4",
    section=_PART,
    statement="Layers update the matrix of the text by adding to it: attention of the normalised stream, then the "
    "feed-forward layer of the normalised stream.",
    formula=r"x \leftarrow x + \mathrm{attn}(\mathrm{ln}_1(x)), \quad x \leftarrow x + \mathrm{mlp}(\mathrm{ln}_2(x))",
    lesson="Every layer reads the stream and adds to it, so the final stream is the embedding plus the sum of what all "
    "layers wrote. This is the pre-norm block of GPT-2; the original transformer normalises after the sum instead.",
)
def residual_stream(lab: Lab) -> Evidence:
    d = 16
    x = start = lab.normal(1, 5, d, purpose="tokens")
    written = torch.zeros_like(x)
    truth = x
    with torch.no_grad():
        for number in range(2):
            layer = nn.TransformerEncoderLayer(
                d, 2, 32, dropout=0.0, batch_first=True, norm_first=True, device="meta", dtype=torch.float64
            )
            layer = layer.to_empty(device="cpu").eval()
            for name, parameter in layer.named_parameters():
                parameter.copy_(0.3 * lab.normal(*parameter.shape, purpose=f"{number} {name}"))
            truth = layer(truth)
            normed = layer.norm1(x)
            attended = layer.self_attn(normed, normed, normed, need_weights=False)[0]
            after_attention = x + attended
            thought = layer.linear2(torch.relu(layer.linear1(layer.norm2(after_attention))))
            x = after_attention + thought
            written = written + attended + thought
    return Evidence(
        (
            exact("the two updates, twice, against torch's pre-norm layers", truth, x),
            exact("embedding plus all that was written against the final stream", start + written, truth),
        )
    )


@CHAPTER.claim(
    "B-5",
    section=_PART,
    statement="Heads are independent of each other: joining their outputs and multiplying by W_O is the same as adding "
    "what each head writes on its own.",
    formula=r"\mathrm{concat}(\mathrm{head}_1, \ldots) W_O = \sum_h A_h X W_{OV}^h",
    lesson="W_O falls into one slice of rows per head. Multiplying the joined outputs by it adds up the heads, each "
    "through its own slice, so each head has its own map W_OV from stream to stream.",
)
def heads_add(lab: Lab) -> Evidence:
    heads, n, d, d_head = 4, 6, 12, 3
    x = lab.normal(n, d, purpose="tokens")
    w_v, w_o = lab.normal(heads, d, d_head, purpose="v"), lab.normal(heads * d_head, d, purpose="o")
    a = torch.softmax(lab.normal(heads, n, n, purpose="scores"), -1)
    joined = torch.cat([a[h] @ (x @ w_v[h]) for h in range(heads)], -1) @ w_o
    head_sum = torch.zeros_like(x)
    for h in range(heads):
        head_sum = head_sum + moved(a[h], x, Factored(w_v[h], w_o[h * d_head : (h + 1) * d_head]))
    return Evidence((exact("sum over heads against the joined form", head_sum, joined),))


@CHAPTER.claim(
    "B-6",
    section=_PART,
    statement="Low-rank bottlenecks are ubiquitous in transformers.",
    formula=r"\mathrm{rank}(W_{OV}), \mathrm{rank}(W_{QK}) \leq d_{head} < d_{model}",
    lesson="Everything that a head reads or writes passes through d_head numbers, so its maps of the d_model-wide "
    "stream have that rank. The unembedding is another one: logits over a large vocabulary have at most the rank of "
    "the width. It is a property of the architecture, whatever the weights.",
)
def bottlenecks(lab: Lab) -> Evidence:
    d, d_head, symbols, n = 48, 6, 200, 120
    w_q, w_k, w_v, w_o = lab.normal(4, d, d_head, purpose="weights")
    logits = lab.normal(n, d, purpose="stream") @ lab.normal(d, symbols, purpose="unembedding")
    return Evidence(
        (
            exact("rank of W_QK, 48 × 48, head width 6", float(d_head), float(torch.linalg.matrix_rank(w_q @ w_k.mT))),
            exact("rank of W_OV, 48 × 48, head width 6", float(d_head), float(torch.linalg.matrix_rank(w_v @ w_o.mT))),
            exact("rank of the logits of 120 tokens over 200 symbols, width 48", float(d),
                  float(torch.linalg.matrix_rank(logits))),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "B-7",
    section=_PART,
    statement="The text X is an M × N matrix; the pattern A (M × M) acts on it from the left and W_OV from the right, "
    "and together they are a tensor product of two matrices.",
    formula=r"X \mapsto A X W_{OV}, \quad A \otimes W_{OV}",
    lesson="One factor mixes positions, the other maps coordinates. Written as one large matrix on the entries of X, "
    "row after row, it is A ⊗ W_OVᵀ: the transpose is there because W_OV acts on rows from the right. In the "
    "convention in which maps act on columns from the left, the same head is A ⊗ W_OV.",
)
def tensor_product(lab: Lab) -> Evidence:
    m, d = 5, 4
    a, x, w = lab.normal(m, m, purpose="a"), lab.normal(m, d, purpose="x"), lab.normal(d, d, purpose="w")
    by_rows = (kronecker(a, w) @ x.reshape(-1)).reshape(m, d)
    # The same by indices, without any convention about order.
    by_hand = torch.zeros(m, d, dtype=torch.float64)
    for i, j, p, q in itertools.product(range(m), range(m), range(d), range(d)):
        by_hand[i, q] += a[i, j] * x[j, p] * w[p, q]
    columns = (torch.kron(a, w) @ x.reshape(-1)).reshape(m, d)
    return Evidence(
        (
            exact("A X W_OV against the sum over all indices", by_hand, a @ x @ w),
            exact("A ⊗ W_OVᵀ on the rows of X written one after another", by_hand, by_rows),
            exact("A ⊗ W_OV where W_OV acts on columns from the left (A X W_OVᵀ)", a @ x @ w.mT, columns),
        )
    )


@CHAPTER.claim(
    "B-8",
    section=_PART,
    statement="Heads of different layers can be composed.",
    formula=r"A_2 (A_1 X W_1) W_2 = (A_2 A_1)\, X\, (W_1 W_2)",
    lesson="With the patterns fixed, what a second head makes of the first one's output is again a head: its pattern "
    "is the product of the patterns, its map the product of the maps. How much of it there is can be measured: the "
    "size of the product of two maps, beside what unrelated directions give.",
)
def virtual_heads(lab: Lab) -> Evidence:
    n, d, r = 6, 10, 3
    x = lab.normal(n, d, purpose="tokens")
    a_1, a_2 = torch.softmax(lab.normal(2, n, n, purpose="scores"), -1)
    first, second = _map(lab, d, r, "first"), _map(lab, d, r, "second")
    two_steps = moved(a_2, moved(a_1, x, first), second)
    squares = torch.stack(
        [composition(_map(lab, d, r, f"a{i}"), _map(lab, d, r, f"b{i}")) for i in range(300)]
    ).square()
    return Evidence(
        (
            exact("two heads in turn against one virtual head", moved(a_2 @ a_1, x, first @ second), two_steps),
            mean_of("squared composition score of unrelated maps, width 10", composition_null(d) ** 2, squares),
        )
    )  # fmt: skip


def _map(lab: Lab, d: int, r: int, name: str) -> Factored:
    return Factored(lab.normal(d, r, purpose=f"{name} left"), lab.normal(r, d, purpose=f"{name} right"))


@CHAPTER.claim(
    "B-9",
    section=_PART,
    statement="(After Nanda) The notation with tensor products is optional.",
    formula=r"(A \otimes W)\, \mathrm{vec}(X) \equiv A X W",
    lesson="Whatever is said with tensor products can be said with two matrix products, also for sums and compositions "
    "of heads. The tensor product is a way of thinking; computing with it would cost M²N² multiplications instead of "
    "M²N + MN².",
)
def optional_notation(lab: Lab) -> Evidence:
    n, d = 5, 4
    x = lab.normal(n, d, purpose="tokens")
    a, b = lab.normal(2, 2, n, n, purpose="patterns")
    v, w = lab.normal(2, 2, d, d, purpose="maps")
    # Two layers of two heads each, with skips: (1 + Σ_h K_h)(1 + Σ_h K_h) on vec(X).
    identity = torch.eye(n * d, dtype=torch.float64)
    first = identity + kronecker(a[0], v[0]) + kronecker(a[1], v[1])
    second = identity + kronecker(b[0], w[0]) + kronecker(b[1], w[1])
    y = x + a[0] @ x @ v[0] + a[1] @ x @ v[1]
    z = y + b[0] @ y @ w[0] + b[1] @ y @ w[1]
    return Evidence(
        (exact("two layers of two heads, both notations", (second @ first @ x.reshape(-1)).reshape(n, d), z),)
    )


@CHAPTER.claim(
    "B-10",
    section="technical part, linked",
    statement="(In the linked work) Two layers of attention alone can hold an induction circuit that continues "
    "[A][B] … [A] with [B].",
    formula=r"[A][B] \ldots [A] \rightarrow [B]",
    lesson="The first head writes onto each token what stood before it. The second looks for tokens before which the "
    "present one stood, and copies them. One layer cannot do it: the key of B would have to know about A. The weights "
    "can be written down by hand, and then the circuit works on any text.",
)
def induction(lab: Lab) -> Evidence:
    symbols, half, texts = 20, 12, 40
    circuit = Induction(symbols, 2 * half + 1)
    right = wrong_without = 0.0
    for text in range(texts):
        tokens = _repeated(lab, symbols, half, text)
        target = tokens[half + 2 :]
        right += float((circuit.run(tokens).prediction[half + 1 : -1].argmax(-1) == target).double().mean())
        alone = circuit.run(tokens, first_layer=False).prediction[half + 1 : -1]
        wrong_without += float((alone.amax(-1) < 0.5).double().mean())
    return Evidence(
        (
            exact("share of tokens of the repetition that are predicted, 40 random texts", 1.0, right / texts),
            exact("share that is left open without the first layer", 1.0, wrong_without / texts),
            fact("the heads compose through the keys, above unrelated maps",
                 float(composition(circuit.previous_ov, circuit.induction_qk.mT)) > composition_null(circuit.d_model)),
        ),
        figures=(_induction_map(lab),),
    )  # fmt: skip


def _repeated(lab: Lab, symbols: int, half: int, text: int) -> Tensor:
    order = torch.randperm(symbols - 1, generator=lab.generator(f"text {text}"))[:half] + 1
    return torch.cat((torch.zeros(1, dtype=torch.int64), order, order))


def _induction_map(lab: Lab) -> HeatMap:
    half = 7
    tokens = _repeated(lab, 9, half, 0)
    trace = Induction(9, 2 * half + 1).run(tokens)
    names = tuple(f"{'·ABCDEFGH'[int(t)]}{'' if i <= half else '′'}" for i, t in enumerate(tokens))
    return HeatMap(
        "induction_map",
        "The second head of the induction circuit",
        "A text of seven symbols and its repetition (with a prime). In the repetition each symbol looks at the one "
        "that followed its first occurrence; a symbol that has not occurred before looks everywhere.",
        trace.induction.numpy(),
        names,
        names,
        row_axis="query",
        column_axis="key",
        limits=(0.0, 1.0),
    )

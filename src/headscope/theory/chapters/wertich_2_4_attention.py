r"""Wertich, section 2.4: the attention mechanism."""

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headscope.core import Finding
from headscope.core.verdict import STANDARD_ERRORS, Comparison, Evidence
from headscope.maths.attention.softmax import softmax
from headscope.theory.checks import Lab, exact, fact, mean_of, more_than, variance_of
from headscope.theory.finding_reader import errors, mean_and_error, numbers, rows_of
from headscope.theory.works import wertich

CHAPTER = wertich()

_TOKENS, _WIDTH = 12, 16


def _queries_keys_values(lab: Lab) -> tuple[Tensor, Tensor, Tensor]:
    # Queries twice as long as standard normal ones: some rows are then clearly peaked.
    q, k, v = (lab.normal(_TOKENS, _WIDTH, purpose=name) for name in "qkv")
    return 2 * q, k, v


@CHAPTER.claim(
    "W-2.4a",
    section="2.4",
    statement="After the softmax the attention matrix A is row-stochastic, and the output Z = AV mixes the value "
    "vectors: row i of Z is the sum of the V_j with the weights a_ij.",
    formula=r"\sum_j a_{ij} = 1, \quad Z_i = \sum_j a_{ij} V_j",
    lesson="Each token's output is a weighted average of the values of all tokens, and the weights are its row of the "
    "attention matrix. Because they are non-negative and sum to one, the output lies between the values (in their "
    "convex hull). Both statements hold exactly.",
)
def output_is_an_average(lab: Lab) -> Evidence:
    q, k, v = _queries_keys_values(lab)
    output = scaled_dot_product_attention(q[None], k[None], v[None])[0]
    weights = softmax(q @ k.mT / math.sqrt(_WIDTH))
    mixed = torch.stack([sum((a * value for a, value in zip(row, v, strict=True)), 0 * v[0]) for row in weights])
    # With all values 1 the output is the sum of a row, in every implementation.
    rows = scaled_dot_product_attention(q[None], k[None], torch.ones_like(v)[None])[0, :, 0]
    return Evidence(
        (
            exact("sum of a row of A (the worst of 12)", 1.0, rows),
            exact("output of the attention layer against the sum of weighted values (worst entry)", mixed, output),
        )
    )


@CHAPTER.claim(
    "W-2.4b",
    section="2.4",
    statement="The raw attention scores are defined as Softmax(QKᵀ/√d_k), and the attention matrix as the softmax of "
    "these raw scores: a softmax of a softmax.",
    formula=r"\hat{A} = \mathrm{Softmax}(Q K^{\top}/\sqrt{d_k}), \quad A = \mathrm{Softmax}(\hat{A})",
    correction="The raw scores are the scaled products themselves; the softmax is applied once.",
    corrected=r"\hat{A} = Q K^{\top}/\sqrt{d_k}, \quad A = \mathrm{Softmax}(\hat{A})",
    lesson="A first softmax already makes every entry lie between 0 and 1. A second one would then divide numbers "
    "between e^0 and e^1, so no key could ever get more than e times the weight of another, and every head would be "
    "almost uniform. The section's own short formula, Softmax(QKᵀ/√d_k)V, has one softmax and is right.",
    slip=True,
)
def one_softmax(lab: Lab) -> Evidence:
    q, k, v = _queries_keys_values(lab)
    output = scaled_dot_product_attention(q[None], k[None], v[None])[0]
    scores = q @ k.mT / math.sqrt(_WIDTH)
    once, twice = softmax(scores), softmax(softmax(scores))
    name = "output of the attention layer (worst entry)"

    def widest(weights: Tensor) -> float:
        return float((weights.amax(-1) / weights.amin(-1)).max())

    return Evidence(
        stated=(exact(name, twice @ v, output),),
        corrected=(
            exact(name, once @ v, output),
            fact("after a second softmax no weight of a row exceeds e times another", widest(twice) <= math.e),
            fact("after one, some weight exceeds 10 times another", widest(once) > 10),
        ),
    )


@CHAPTER.claim(
    "W-2.4c",
    section="2.4",
    statement="The normalisation √d_k is the square root of the expected length of a vector with d_k independent "
    "standard normal entries.",
    formula=r"\sqrt{d_k} = \sqrt{E\|v\|_2}, \quad v \sim N(0, I_{d_k})",
    correction="The expected length is itself close to √d_k; what is exactly d_k is the expected squared length. So "
    "√d_k is the root of the expected squared length, and it is the standard deviation of the product of a random "
    "query with a random key, which is why one divides by it.",
    corrected=r"\sqrt{d_k} = \sqrt{E\|v\|_2^2} = \mathrm{sd}\langle q, k \rangle, \quad "
    r"E\|v\|_2 = \sqrt{2}\,\Gamma((d_k+1)/2)\,/\,\Gamma(d_k/2)",
    lesson="Squares of independent entries add up, so the squared length of a random vector is about d_k and its "
    "length about √d_k. Taking the root once more would give the fourth root of d_k. Dividing scores by √d_k brings "
    "their variance to one.",
    slip=True,
)
def why_the_root(lab: Lab) -> Evidence:
    d, count = 64, 20_000
    q, k = lab.normal(count, d, purpose="q"), lab.normal(count, d, purpose="k")
    length = torch.linalg.vector_norm(q, dim=-1)
    root = float(length.mean()) ** 0.5
    error = float(length.std()) / count**0.5 / (2 * root)
    expected = math.sqrt(2) * math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2))
    return Evidence(
        stated=(Comparison(f"square root of the mean length, d = {d}, {count:,} vectors", math.sqrt(d), root, error),),
        corrected=(
            mean_of(f"mean squared length, d = {d}", float(d), length.square()),
            mean_of(f"mean length, d = {d}", expected, length),
            variance_of(f"variance of the product of a query and a key, d = {d}", float(d), (q * k).sum(-1)),
        ),
    )


def _mostly_itself(finding: Finding) -> Evidence | None:
    rows = rows_of(finding, "heads", ("value", "low", "high", "uniform"), quantity="diagonal")
    if rows is None:
        return None
    mean, error = mean_and_error(rows)
    below = float((numbers(rows) + STANDARD_ERRORS * errors(rows) < 0.5).mean())
    quantity = f"mean share of the token itself over {rows.height} heads"
    return Evidence(
        (more_than(f"{quantity}: more than all others together", 0.5, mean, error),),
        (
            more_than(
                f"{quantity}, beside that of uniform attention", float(numbers(rows, "uniform").mean()), mean, error
            ),
            more_than("share of the heads that clearly give less than one half to the token itself", 0.5, below, 0.0),
        ),
    )


CHAPTER.of_a_model(
    "W-2.4d",
    section="2.4",
    statement="Tokens naturally attend mostly to themselves.",
    formula=r"a_{ii} > \sum_{j \neq i} a_{ij}",
    correction="The token itself gets more than an equal share, and most heads give it less than one half.",
    corrected=r"\frac{1}{n}\sum_i a_{ii} > \frac{1}{n}\sum_i \frac{1}{n_i}, \quad n_i\ \mathrm{visible\ keys}",
    lesson="Nothing in the mechanism favours the token itself: with random and independent W_Q and W_K and tokens of "
    "equal length, the mean weight on the diagonal is exactly 1/n, as for any other key. Whether training creates "
    "such heads is a question to the model, and the focus lens measures it. What the thesis adds, that the own value "
    "then dominates the output, also depends on the lengths of the values and is not judged here.",
    lens="focus",
    reason="the mass that each head puts on the token itself must be measured on a trained model",
    judge=_mostly_itself,
)

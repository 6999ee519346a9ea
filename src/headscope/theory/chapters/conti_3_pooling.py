"""Conti, section 3: attention as pooling, and what the softmax does to structure."""

import torch

from headscope.core.verdict import Evidence
from headscope.maths.linear_algebra.supports import stripes
from headscope.theory.checks import Lab, exact, fact
from headscope.theory.works import conti

CHAPTER = conti()


@CHAPTER.claim(
    "C-10a",
    section="3.1",
    statement="Bahdanau's score with two matrices for query and key is the same as the one of section 1.1.1 with one "
    "matrix for both joined.",
    formula=r"w^{\top} \tanh(W_q q + W_k k) = v_a^{\top} \tanh(W_a [h; s]), \quad W_a = [W_q\ W_k]",
    lesson="A matrix times two stacked vectors is the sum of its left half times the first and its right half times "
    "the second. So both scores are one, written in two ways; the split form lets the keys' part be computed once "
    "for all queries.",
)
def additive_score(lab: Lab) -> Evidence:
    h, d_q, d_k = 6, 4, 5
    q, k = lab.normal(30, d_q, purpose="q"), lab.normal(30, d_k, purpose="k")
    w_q, w_k, v = lab.normal(h, d_q, purpose="wq"), lab.normal(h, d_k, purpose="wk"), lab.normal(h, purpose="v")
    split = torch.tanh(q @ w_q.mT + k @ w_k.mT) @ v
    joined = torch.tanh(torch.cat([q, k], -1) @ torch.cat([w_q, w_k], -1).mT) @ v
    return Evidence((exact("30 scores in both forms", split, joined),))


@CHAPTER.claim(
    "C-10b",
    section="3",
    statement="The weights are made a convex combination by the softmax of the weights themselves.",
    formula=r"\alpha(q, k_i) = \frac{\exp(\alpha(q, k_i))}{\sum_j \exp(\alpha(q, k_j))}",
    correction="The two sides mean different things: on the right stands a score, any real number, on the left the "
    "weight made of it. Read as an equation for one quantity it has a single solution, equal weights 1/n.",
    corrected=r"\alpha(q, k_i) = \frac{\exp(a(q, k_i))}{\sum_j \exp(a(q, k_j))}, \quad a = \mathrm{score}",
    lesson="A symbol that is input and output at once makes an equation out of a definition. The softmax never "
    "stretches distances by more than a half, so applying it again and again to its own result leads from anywhere "
    "to the one point that it leaves fixed: uniform attention.",
    slip=True,
)
def weights_and_scores(lab: Lab) -> Evidence:
    scores = lab.normal(5)
    alpha = torch.softmax(scores, -1)
    point = scores.clone()
    for _ in range(60):
        point = torch.softmax(point, -1)
    return Evidence(
        stated=(exact("weights beside the softmax of the same weights", alpha, torch.softmax(alpha, -1)),),
        corrected=(
            exact("sum of the weights made of a score", 1.0, float(alpha.sum())),
            fact("all of them at least 0", bool((alpha >= 0).all())),
            exact("the only solution of the equation as written: 1/5 each", 0.2, point),
        ),
    )


@CHAPTER.claim(
    "C-10c",
    section="3.1",
    statement="The softmax destroys structure: where a score is 0 the numerator becomes e⁰.",
    formula=r"s_{ij} = 0 \Rightarrow p_{ij} = e^0 / \sum_k e^{s_{ik}} > 0",
    lesson="A score of 0 is a score like any other, and gets a positive weight. So a sparse matrix of scores becomes "
    "a full matrix of weights: zeros must be put there by a mask of −∞ before the softmax, or by a normalisation "
    "that can reach 0.",
)
def zeros_are_lost(lab: Lab) -> Evidence:
    n = 12
    scores = lab.normal(n, n, purpose="scores") * (lab.uniform(n, n, purpose="kept") < 0.2)
    p = torch.softmax(scores, -1)
    empty = scores == 0
    predicted = (1 / scores.exp().sum(-1, keepdim=True)).expand(n, n)
    masked = torch.softmax(scores.masked_fill(empty & ~torch.eye(n, dtype=torch.bool), -torch.inf), -1)
    return Evidence(
        (
            fact("most scores are 0", int(empty.sum()) > n * n / 2),
            exact("zeros left among the weights", 0.0, float((p == 0).sum())),
            exact("weight of a score 0: e⁰ over the sum", predicted[empty], p[empty]),
            fact("a mask of −∞ keeps them", int((masked == 0).sum()) >= int(empty.sum()) - n),
        )
    )


@CHAPTER.claim(
    "C-10d",
    section="3.1",
    statement="The matrices whose entries vanish outside the first column form a left ideal.",
    formula=r"X \in I,\ A \in \mathcal{M}_n \Rightarrow A X \in I",
    lesson="Column j of A X is A times column j of X, so a column of zeros stays zero: products from the left do not "
    "leave the set, and neither do sums. From the right columns are mixed, and X A fills other columns: it is no "
    "right ideal. For attention this says that no mixing of rows afterwards can make such a head look at another key.",
)
def first_column_ideal(lab: Lab) -> Evidence:
    n = 6
    place = stripes(n, [0])
    x, y = (lab.normal(n, n, purpose=name) * place for name in "xy")
    a = lab.normal(n, n, purpose="a")
    return Evidence(
        (
            exact("largest entry of A X outside the first column", 0.0, float((a @ x)[~place].abs().max())),
            exact("largest entry of X − Y outside the first column", 0.0, float((x - y)[~place].abs().max())),
            fact("X A leaves the set: it is no right ideal", float((x @ a)[~place].abs().max()) > 0.01),
        )
    )


CHAPTER.of_a_model(
    "C-10e",
    section="3",
    statement="In a trained translation model few encoder heads matter, these have roles that can be read, and most of "
    "the others can be pruned without much loss.",
    lesson="Pruning after training asks how much worse the model becomes when heads are switched off one after "
    "another. Heads that carry the same information hide each other, so a head that can be spared alone may not be "
    "spared together with another.",
    reason="a trained translation model, which headscope does not have yet; `headscope prune` switches the heads of a "
    "model that predicts the next token off one by one and together, and measures the loss each time",
)

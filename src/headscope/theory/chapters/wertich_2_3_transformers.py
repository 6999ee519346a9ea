r"""Wertich, section 2.3: embeddings, positions, layer normalisation, heads."""

import math

import numpy as np
import torch
from torch import Tensor

from headscope.core import Finding
from headscope.core.figure import Curves, Histogram, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.theory.checks import Lab, exact, less_than, mean_of, more_than, trend_of
from headscope.theory.finding_reader import errors, rows_of
from headscope.theory.works import wertich

CHAPTER = wertich()


def _meaning(finding: Finding) -> Evidence | None:
    """Related words against other pairings of them; analogies against their nulls.

    The nulls are chance and the third word alone.
    """
    related = rows_of(finding, "related", ("value", "null", "z"), word="all")
    columns = ("value", "low", "high", "null", "gain", "gain_low", "gain_high")
    added = rows_of(finding, "analogies", columns, relation="all")
    if related is None or added is None or related["pairs"][0] < 10:
        return None  # too few of the words are single tokens of this model
    pairs, analogies = related.row(0, named=True), added.row(0, named=True)
    closer = pairs["value"] - pairs["null"]
    return Evidence(
        (
            more_than(f"mean cosine of {pairs['pairs']} related pairs ({pairs['value']:.3f}) less that of the same "
                      "words paired otherwise", 0.0, closer, abs(closer / pairs["z"])),
            more_than(f"share of {analogies['analogies']} analogies whose right answer is nearest of all tokens, "
                      "beside chance", analogies["null"], analogies["value"], float(errors(added)[0])),
            more_than("that share less the one that is nearest to the third word alone", 0.0, analogies["gain"],
                      float(errors(added, "gain")[0])),
        )
    )  # fmt: skip


def _lengths(finding: Finding) -> Evidence | None:
    """The spread of the lengths against a cloud of the same covariance.

    Such a cloud prefers no sphere.
    """
    spreads = rows_of(finding, "tables", ("value", "null", "gaussian", "rows"), table="token", quantity="length_spread")
    if spreads is None:
        return None
    row = spreads.row(0, named=True)
    quantity = f"spread of the lengths of {row['rows']} token vectors over their mean"
    error = row["value"] / (2 * row["rows"]) ** 0.5  # of the standard deviation of this number of values
    return Evidence(
        (less_than(f"{quantity}, beside that of Gaussian vectors with the same covariance", row["gaussian"],
                   row["value"], error),),
        (more_than(f"{quantity}, beside twice that of random vectors of this width", 2 * row["null"], row["value"],
                   error),),
    )  # fmt: skip


CHAPTER.of_a_model(
    "W-2.3a",
    section="2.3",
    statement="Embeddings of words with related meaning have a high cosine similarity, and analogies are additive: "
    "Paris minus France plus Italy lies near Rome.",
    formula=r"\mathrm{emb}(\mathrm{Paris}) - \mathrm{emb}(\mathrm{France}) + \mathrm{emb}(\mathrm{Italy}) \approx "
    r"\mathrm{emb}(\mathrm{Rome})",
    lens="embeddings",
    judge=_meaning,
    reason="needs trained embeddings: cosines of related and of unrelated words, and the rank of the right answer "
    "among all words for each analogy",
    lesson="Whether directions carry meaning is a property of trained vectors, not a theorem. It has to be measured "
    "against a null: the cosine of random pairs, and the rank of Rome when the three given words are allowed as "
    "answers (then the nearest vector is often Italy itself).",
)

CHAPTER.of_a_model(
    "W-2.3b",
    section="2.3",
    statement="The embedding vectors of a model have nearly the same length, so that they lie close to a sphere.",
    formula=r"\|\mathrm{emb}(w)\|_2 \approx l",
    correction="The lengths spread more than twice as much as those of random vectors of the same width.",
    corrected=r"\frac{\mathrm{sd}\,\|\mathrm{emb}(w)\|}{\mathrm{mean}\,\|\mathrm{emb}(w)\|} > 2 \cdot "
    r"\frac{1}{\sqrt{2 d}}",
    lens="embeddings",
    judge=_lengths,
    reason="needs trained embeddings: the spread of the lengths over the vocabulary, beside the 1/√(2d) of random "
    "vectors",
    lesson="Random vectors in d dimensions have lengths that agree up to a relative 1/√(2d), about 2.6 % for d = 768. "
    "Training can widen this, since frequent and rare tokens are moved by different amounts. Whether lengths gather "
    "about a sphere is asked beside a Gaussian cloud with the covariance of the embeddings, which does not.",
)


def positions(count: int, d: int) -> Tensor:
    """Sinusoidal encodings: sines and cosines of the position at d/2 frequencies."""
    frequency = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.arange(count, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def kernel(distance: Tensor, d: int) -> Tensor:
    """Cosine of two encodings as a function of their distance.

    It is the mean of cos(ω·distance) over the frequencies.
    """
    frequency = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    return (distance[:, None] * frequency).cos().mean(1)


@CHAPTER.claim(
    "W-2.3c",
    section="2.3",
    statement="Sinusoidal encodings of the position, added to the embeddings, raise the cosine similarity of "
    "neighbouring tokens and are themselves nearly orthogonal to the embeddings.",
    formula=r"\cos(e_i + p_i, e_j + p_j) > \cos(e_i, e_j) \ (|i-j|\ \mathrm{small}), \qquad \cos(p_i, e_j) \approx 0",
    lesson="The scalar product of two encodings depends only on their distance, because cos a cos b + sin a sin b = "
    "cos(a − b). It is largest for neighbours and falls slowly, since most of the frequencies are low. In many "
    "dimensions two unrelated directions are almost perpendicular: the root mean square cosine is 1/√d, 0.04 at d = "
    "512; for trained embeddings that must be measured. The similarity of two tokens of equal length becomes an "
    "average of their own cosine and of k(i − j), so it rises where theirs is below k: 0.97 for neighbours at d = "
    "512, still 0.5 at distance 50. Distant tokens are raised as well; only neighbours that are nearly equal already "
    "are lowered.",
)
def sinusoidal_positions(lab: Lab) -> Evidence:
    d, pairs = 512, 2000
    p = positions(2, d)
    e = lab.normal(pairs, 2, d)  # length about √d, as in the original model
    # Same directions before and after: the rise of the scalar product, and of the cosine.
    plain = (e[:, 0] * e[:, 1]).sum(1)
    shifted = ((e[:, 0] + p[0]) * (e[:, 1] + p[1])).sum(1)
    cosine = torch.nn.functional.cosine_similarity
    rise = cosine(e[:, 0] + p[0], e[:, 1] + p[1], dim=1) - cosine(e[:, 0], e[:, 1], dim=1)
    near = float(kernel(torch.ones(1).double(), d))
    # Embeddings of length √d, perpendicular to both encodings, with a given cosine c between them.
    basis = torch.linalg.qr(torch.cat([p, e[0]]).mT).Q[:, 2:].mT
    tilted = []
    for c in (0.9, 0.99):
        first_embedding, second_embedding = (
            math.sqrt(d) * basis[0],
            math.sqrt(d) * (c * basis[0] + math.sqrt(1 - c**2) * basis[1]),
        )
        tilted.append(
            (
                c,
                (c * d + near * d / 2) / (1.5 * d),
                float(cosine(first_embedding + p[0], second_embedding + p[1], dim=0)),
            )
        )
    distances = torch.arange(0, 101, dtype=torch.float64)
    table = positions(101, d)
    measured = (table @ table[0] / (d / 2)).numpy()
    figure = Curves(
        "w23c_positions", "Similarity of sinusoidal encodings",
        "Cosine of the encodings of two positions at d = 512, over their distance. It falls, but slowly: the encodings "
        "make all near and far tokens more alike.",
        "distance in tokens", "cosine",
        (
            Series("encodings", distances.numpy(), measured),
            Series("k(δ), mean of cos ωδ", distances.numpy(), kernel(distances, d).numpy(), role="theory"),
        ),
    )  # fmt: skip
    at_512 = cosine(e[:, 0], p[1].expand(pairs, d), dim=1)
    size = at_512.square().mean().sqrt()
    error = at_512.square().std() / (2 * size * pairs**0.5)
    return Evidence(
        (
            mean_of("rise of the scalar product of neighbours, d = 512", d / 2 * near, shifted - plain),
            more_than("rise of the cosine of 2000 pairs of unrelated neighbours", 0.0, float(rise.mean()),
                      float(rise.std() / pairs**0.5)),
            mean_of("mean squared cosine of an encoding and an embedding, d = 512: 1/d as of unrelated directions",
                    1 / d, at_512.square()),
            less_than("its root, beside the cosine of neighbouring encodings", near / 10, float(size), float(error)),
            exact("cosine of encodings over their distance", kernel(distances, d), torch.as_tensor(measured)),
            *(
                exact(f"cosine of neighbours whose embeddings have cosine {c}", raised, cosine_after)
                for c, raised, cosine_after in tilted
            ),
        ),
        figures=(figure,),
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.3d",
    section="2.3",
    statement="Layer normalisation gives each column, that is each feature, of the n × d matrix of embeddings mean 0 "
    "and variance 1.",
    formula=r"\frac{1}{n}\sum_i \hat X_{ij} = 0, \quad \frac{1}{n}\sum_i \hat X_{ij}^2 = 1 \quad "
    r"(j = 1 \ldots d)",
    correction="Layer normalisation works on each row, that is on each token over its d features, before a learned "
    "gain and bias. Normalising features over a set of examples is batch normalisation.",
    corrected=r"\frac{1}{d}\sum_j \hat X_{ij} = 0, \quad \frac{1}{d}\sum_j \hat X_{ij}^2 = 1 \quad "
    r"(i = 1 \ldots n)",
    lesson="A token must be normalised without looking at other tokens, or a decoder would see the future and the "
    "result would depend on the length of the text. So every token lands on a sphere of radius √d, in the plane where "
    "its features sum to zero. The columns keep whatever mean and variance they then have.",
)
def layer_norm(lab: Lab) -> Evidence:
    n, d = 12, 32
    x = lab.normal(n, d) * (1 + lab.uniform(n, 1)) + 2 * lab.normal(1, d, purpose="features")
    y = torch.nn.functional.layer_norm(x, (d,), eps=0.0)
    column = int(y.mean(0).abs().argmax())
    return Evidence(
        stated=(
            Comparison("mean of a feature over the tokens", 0.0, float(y.mean(0)[column]), 1e-9),
            exact(
                "variance of the features over the tokens (the worst)", torch.ones(d).double(), y.var(0, correction=0)
            ),
        ),
        corrected=(
            Comparison("largest mean of a token over its features", 0.0, float(y.mean(1).abs().max()), 1e-9),
            exact("variance of a token over its features (the worst)", torch.ones(n).double(), y.var(1, correction=0)),
            exact("length of every token (the worst), from √d", math.sqrt(d) * torch.ones(n).double(), y.norm(dim=1)),
            exact("a token normalised alone is the same", y[0], torch.nn.functional.layer_norm(x[0], (d,), eps=0.0)),
        ),
    )


@CHAPTER.claim(
    "W-2.3e",
    section="2.3",
    statement="By the central limit theorem the distribution of the normalised tokens converges to the standard normal "
    "one as the sequence gets longer.",
    formula=r"\hat X_i \rightarrow N(0, 1) \quad (n \rightarrow \infty)",
    correction="Subtracting a mean and dividing by a standard deviation never changes the shape of a distribution, "
    "however long the sequence. The central limit theorem is about sums: the mean over tokens becomes normal. One "
    "coordinate of a layer-normalised token is nearly normal for large d if its features were.",
    corrected=r"\mathrm{skew}(\hat X) = \mathrm{skew}(X), \qquad \mathrm{skew}\left(\sum_{i \leq n} X_i\right) = "
    r"\frac{\mathrm{skew}(X)}{\sqrt{n}}, \qquad E\,\hat X_{ij}^4 = 3\,\frac{d-1}{d+1}\ (X\ \mathrm{Gaussian})",
    lesson="Take features that are exponentially distributed: one long tail, skewness 2. After standardising, the tail "
    "is still there, with mean 0 and variance 1. More tokens only show the same shape more clearly; what they make "
    "normal is their average.",
)
def central_limit(lab: Lab) -> Evidence:
    n, features, d = 20_000, 24, 64
    x = -torch.log1p(-lab.uniform(n, features))
    y = (x - x.mean(0)) / x.std(0)
    skewness = y.pow(3).mean(0)  # one number per feature: independent
    summed = -torch.log1p(-lab.uniform(20_000, 100, purpose="sums")).sum(1)
    token = torch.nn.functional.layer_norm(lab.normal(20_000, d, purpose="tokens"), (d,), eps=0.0)
    edges = np.linspace(-1.5, 5.0, 53)
    density, _ = np.histogram(y.numpy(), bins=edges, density=True)
    centre = (edges[1:] + edges[:-1]) / 2
    figure = Histogram(
        "w23e_standardised", "Standardised features of a long sequence",
        "Exponentially distributed features after standardisation over 20,000 tokens, beside the standard normal law "
        "and the law they keep.",
        "value", edges, density,
        (
            Series("exponential, standardised", centre, np.where(centre > -1, np.exp(-1 - centre), 0.0), role="theory"),
            Series("as stated: normal", centre, np.exp(-(centre**2) / 2) / math.sqrt(2 * math.pi), role="null"),
        ),
    )  # fmt: skip
    name = "skewness of standardised exponential features, 20,000 tokens"
    sizes, shapes, spreads = (500, 2000, 8000), [], []
    for size in sizes:
        several = -torch.log1p(-lab.uniform(size, 200, purpose=f"{size}"))
        skews = ((several - several.mean(0)) / several.std(0)).pow(3).mean(0)
        shapes.append(float(skews.mean()))
        spreads.append(float(skews.std()) / len(skews) ** 0.5)
    return Evidence(
        stated=(mean_of(name, 0.0, skewness),),
        corrected=(
            mean_of(name, 2.0, skewness),
            mean_of("skewness of sums of 100 of them, from 2/√100", 0.2, ((summed - 100) / 10).pow(3)),
            mean_of("fourth moment of one coordinate of layer-normalised Gaussian tokens, d = 64",
                    3 * (d - 1) / (d + 1), token[:, 0].pow(4)),
        ),
        trend=trend_of("skewness of standardised features, 0 for a normal law", "n", sizes, shapes, 0.0, spreads),
        figures=(figure,),
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.3f",
    section="2.3",
    statement="With h heads the embedding is divided into portions of d/h coordinates, and each head processes only "
    "its part of the embedding.",
    formula=r"\mathrm{head}_a = \mathrm{head}_a\left(X_{\cdot,\, (a-1)d/h+1 \ldots a d/h}\right)",
    correction="Each head reads all d coordinates through its own d × d/h matrices. What has d/h entries are its "
    "queries, keys and values, which live in subspaces that the weights choose.",
    corrected=r"\mathrm{head}_a = \mathrm{Attention}(X W_q^{(a)}, X W_k^{(a)}, X W_v^{(a)}), \quad "
    r"W^{(a)} \in R^{d \times d/h}",
    lesson="Cutting the embedding into slices would tie each head to fixed coordinates. Multiplying by W first lets it "
    "look along any d/h directions of the whole space; the cut is made in the output of the projection. The section's "
    "own formula for a head, with X times W, says so.",
)
def heads_read_everything(lab: Lab) -> Evidence:
    n, d, h = 5, 16, 4
    x = lab.normal(n, d).requires_grad_()
    w_q, w_k, w_v = (lab.normal(d, d // h, purpose=name) / math.sqrt(d) for name in "qkv")

    def head(x: Tensor) -> Tensor:
        scores = (x @ w_q) @ (x @ w_k).mT / math.sqrt(d // h)
        return torch.softmax(scores, -1) @ (x @ w_v)

    weight = lab.normal(n, d // h, purpose="readout")
    (gradient,) = torch.autograd.grad((head(x) * weight).sum(), x)
    energy = gradient.square().sum(0)
    outside = float(energy[d // h :].sum() / energy.sum())
    with torch.no_grad():
        wiped = x.clone()
        wiped[:, d // h :] = 0
        change = float((head(wiped) - head(x)).abs().max())
        turn = torch.linalg.qr(lab.normal(d, d, purpose="turn")).Q
        plain = head(x)
        w_q, w_k, w_v = (turn.mT @ w for w in (w_q, w_k, w_v))
        turned = head(x @ turn)
    return Evidence(
        stated=(
            Comparison("share of the first head's sensitivity to coordinates that are not its own", 0.0, outside, 1e-9),
            Comparison("change of its output when those coordinates are wiped out", 0.0, change, 1e-9),
        ),
        corrected=(
            Comparison("coordinates of 16 to which its output is sensitive", float(d), float((energy > 0).sum()), 0.0),
            Comparison("dimensions of what it moves (rank of W_v)", d / h, float(torch.linalg.matrix_rank(w_v)), 0.0),
            exact("output after turning the embedding space and the weights together", plain, turned),
        ),
    )

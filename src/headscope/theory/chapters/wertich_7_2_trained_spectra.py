r"""Wertich, section 7.2.2: spectra of trained weights, and what follows from them."""

import math

import torch

from headscope.core import Finding
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.random_matrices.marchenko_pastur import MarchenkoPastur
from headscope.theory.checks import Lab, exact, fact, less_than, mean_of, more_than, rounded, trend_of
from headscope.theory.finding_reader import numbers, rows_of
from headscope.theory.works import wertich

CHAPTER = wertich()
_MISTRAL = "Mistral-7B-Instruct-v0.2"

# Published with the checkpoint: the size of its weight files is 14,483,464,192 bytes, two for each parameter.
_PARAMETERS = 7_241_732_096


def _norms_of_layers(finding: Finding) -> Evidence | None:
    """Mean and largest squared singular values by matrix against the stated ranges.

    Both are means over the layers.
    """
    ranges = {"Q": (1 / 20, 1 / 10, 3, 4), "K": (1 / 20, 1 / 10, 3, 4), "V": (9 / 10, 12 / 10, 2, 3)}
    stated, squares = [], {}
    for matrix, (low, high, least, most) in ranges.items():
        sizes = rows_of(finding, "layers", matrix=matrix, quantity="mean_square")
        tops = rows_of(finding, "layers", ("value", "null"), matrix=matrix, quantity="largest")
        if sizes is None or tops is None:
            return None
        squares[matrix], largest = (float(numbers(rows).mean()) for rows in (sizes, tops))
        # Weights are exact: the numbers have no error.
        stated += [
            more_than(f"{matrix}: mean squared singular value", low, squares[matrix], 0.0),
            less_than(f"{matrix}: mean squared singular value", high, squares[matrix], 0.0),
            more_than(f"{matrix}: largest singular value", least, largest, 0.0),
            less_than(f"{matrix}: largest singular value", most, largest, 0.0),
            more_than(f"{matrix}: largest singular value, beside the edge of a random matrix",
                      float(numbers(tops, "null").mean()), largest, 0.0),
        ]  # fmt: skip
    plotted = (
        more_than("V: mean squared singular value, beside the lower end of the plots", 0.016, squares["V"], 0.0),
        less_than("V: mean squared singular value, beside the upper end of the plots", 0.092, squares["V"], 0.0),
    )
    return Evidence(tuple(stated), plotted)


CHAPTER.of_a_model(
    "W-7.2e",
    section="7.2.2",
    statement="In Mistral the squared singular values of W_q and W_k sum to n/20 to n/10 (largest singular value 3 to "
    "4), those of W_v to 0.9 n to 1.2 n (largest 2 to 3); the largest tenth exceeds that of a random matrix.",
    formula=r"\sum_i \hat\sigma_i^2 \approx \frac{n}{20} \ldots \frac{n}{10} \ (W_q, W_k), \quad "
    r"\frac{9 n}{10} \ldots \frac{12 n}{10} \ (W_v)",
    correction="The plots of the same thesis put the mean square of W_v at 0.016 to 0.092, a tenth of that.",
    lesson="The sum of the squared singular values is the sum of the squared entries, so it measures the size of a "
    "matrix; the largest one measures its strongest direction. Both are read off the weights of the checkpoint and set "
    "beside a random matrix of the same shape and size.",
    lens="spectra",
    reason="the weights of this checkpoint: mean_square, largest and its random edge of Q, K and V by layer",
    checkpoint=_MISTRAL,
    judge=_norms_of_layers,
)


@CHAPTER.claim(
    "W-7.2f",
    section="7.2.2",
    statement="With squared singular values that sum to n/20 to n/10, a random vector is scaled to about a tenth of "
    "its length.",
    formula=r"\sum_i \hat\sigma_i^2 \approx \frac{n}{20} \ldots \frac{n}{10} \ \Rightarrow\ "
    r"\frac{|W x|}{|x|} \approx \frac{1}{10}",
    correction="It is the squared length that falls to a tenth or a twentieth; the length falls to the square root, "
    "0.22 to 0.32.",
    corrected=r"\frac{|W x|}{|x|} \approx \sqrt{\frac{1}{n} \sum_i \hat\sigma_i^2} = 0.22 \ldots 0.32",
    lesson="A random unit vector has a share 1/n of its squared length along each singular direction, so on average "
    "its squared length is multiplied by the mean of the squared singular values. The length is the square root of "
    "that. (For matrices that are four times as wide as tall the sum is shared by four times as many directions, and "
    "the length falls to 0.11 to 0.16.)",
    slip=True,
)
def random_vector_length(lab: Lab) -> Evidence:
    n, draws = 64, 800
    stated, corrected = [], []
    for share in (10, 20):
        w = lab.normal(draws, n, n, purpose=f"{share}")
        w *= math.sqrt(n / share) / w.norm(dim=(1, 2), keepdim=True)  # squared singular values sum to n / share
        x = lab.normal(draws, n, 1, purpose=f"vectors {share}")
        ratio = (w @ x).norm(dim=(1, 2)) / x.norm(dim=(1, 2))
        name = f"squared singular values sum to n/{share}"
        stated.append(mean_of(f"{name}: length of W x over that of x", 1 / 10, ratio))
        corrected.append(mean_of(f"{name}: its mean square", 1 / share, ratio.square()))
        corrected.append(rounded(f"{name}: root of its mean square", {10: "0.32", 20: "0.22"}[share],
                                 float(ratio.square().mean().sqrt())))  # fmt: skip
    wide = lab.normal(draws, 16, n, purpose="wide")
    wide *= math.sqrt(16 / 10) / wide.norm(dim=(1, 2), keepdim=True)
    x = lab.normal(draws, n, 1, purpose="vectors wide")
    squares = (wide @ x).square().sum((1, 2)) / x.square().sum((1, 2))
    corrected.append(
        mean_of("16 × 64, squared singular values sum to 16/10: mean square of the factor", 1 / 40, squares)
    )
    sizes, errors, spreads = (16, 32, 64), [], []
    for size in sizes:
        turned = lab.normal(400, size, size, purpose=f"{size}") @ lab.normal(400, size, 1, purpose=f"x {size}")
        lengths = turned.norm(dim=(1, 2)) / math.sqrt(10) / size  # a vector of length √n, entries of variance 1/(10n)
        errors.append(abs(0.1 - float(lengths.mean())) / float(lengths.mean()))
        spreads.append(0.1 * float(lengths.std()) / 400**0.5 / float(lengths.mean()) ** 2)
    trend = trend_of("relative error of a tenth, squared singular values sum to n/10", "n", sizes, errors, 0.0, spreads)
    return Evidence(tuple(stated), tuple(corrected), trend)


@CHAPTER.claim(
    "W-7.2g",
    section="7.2.2",
    statement="A vector that is mostly orthogonal to the largest principal components is scaled up substantially, "
    "compared with one of random direction.",
    formula=r"x \perp v_1, \ldots, v_k \ \Rightarrow\ |W x| \gg |W y|, \quad y\ \mathrm{random}",
    correction="Mostly parallel to them. A vector orthogonal to the largest components keeps only the small singular "
    "values and comes out shorter than a random one.",
    corrected=r"x \in \mathrm{span}(v_1, \ldots, v_k) \ \Rightarrow\ \frac{|W x|^2}{|W y|^2} \approx "
    r"\frac{\frac{1}{k}\sum_{i \leq k} \sigma_i^2}{\frac{1}{n}\sum_i \sigma_i^2} > 1",
    lesson="A matrix stretches most along its first right singular vectors. A vector without any part along them "
    "misses that stretching; one inside their span gets all of it. A random vector has a little of everything and lies "
    "between.",
    slip=True,
)
def orthogonal_vectors(lab: Lab) -> Evidence:
    n, top, draws = 120, 12, 4_000
    sigma = torch.linspace(3.5, 0.02, n, dtype=torch.float64).div(3.5).pow(6).mul(3.5)
    turn = torch.linalg.qr(lab.normal(n, n, purpose="basis")).Q
    w = torch.diag(sigma) @ turn.mT
    parts = {"along": turn[:, :top], "orthogonal": turn[:, top:], "random": turn}
    squares = {}
    for name, basis in parts.items():
        x = lab.normal(draws, basis.shape[1], purpose=name) @ basis.mT
        squares[name] = (x @ w.mT).square().sum(-1) / x.square().sum(-1)
    means = {name: float(value.mean()) for name, value in squares.items()}
    return Evidence(
        (fact("a vector orthogonal to the first tenth comes out longer than a random one",
              means["orthogonal"] > means["random"]),),
        (
            mean_of("squared stretch within the first tenth", float(sigma[:top].square().mean()), squares["along"]),
            mean_of("squared stretch of random vectors", float(sigma.square().mean()), squares["random"]),
            mean_of("squared stretch orthogonal to the first tenth", float(sigma[top:].square().mean()),
                    squares["orthogonal"]),
            fact("along > random > orthogonal", means["along"] > means["random"] > means["orthogonal"]),
        ),
    )  # fmt: skip


def _trace_of_layers(finding: Finding) -> Evidence | None:
    """Mean squared traces of the layers, plain and in units of the null.

    The null is an unrelated pair of matrices of the same norms.
    """
    rows = rows_of(finding, "layers", ("value", "sd"), quantity="trace")
    if rows is None:
        return None
    traces, unrelated = numbers(rows), numbers(rows, "sd")
    spread = math.sqrt(2 / len(traces))  # of a mean of squares of standard normal numbers
    return Evidence(
        (Comparison(f"mean squared trace over {len(traces)} layers", 1.0, float((traces**2).mean()), spread),),
        (Comparison("the same, each in units of its spread for unrelated matrices of these norms", 1.0,
                    float(((traces / unrelated) ** 2).mean()), spread),),
    )  # fmt: skip


CHAPTER.of_a_model(
    "W-7.2h",
    section="7.2.2",
    statement="In trained Mistral the trace of W_qᵀW_k behaves, layer by layer, like a standard normal variable, as "
    "for independent random matrices.",
    formula=r"\mathrm{Tr}(W_q^T W_k) \sim \mathcal{N}(0, 1)",
    correction="Unrelated matrices have a trace of variance |W_q|² |W_k|²/(m n), which is 1 only for matrices of "
    "Xavier size. With the norms reported in the same section (squared singular values that sum to n/20 to n/10) a "
    "standard deviation of 1 would be ten to twenty times what unrelated matrices show.",
    corrected=r"\mathrm{Tr}(W_q^T W_k) \sqrt{m n} / (|W_q|_F |W_k|_F) \sim (0, 1)\ \mathrm{if\ unrelated}",
    lesson="A trace says nothing until it is divided by its size for unrelated matrices of the same norms. Shrink both "
    "matrices and the unrelated trace shrinks with them; a trace that stays of order 1 is then a sign of alignment, "
    "not of randomness. With grouped queries each query head must be paired with the key head that it reads.",
    lens="alignment",
    reason="the weights of this checkpoint: the trace of each head's W_QK in units of its spread for unrelated "
    "matrices",
    checkpoint=_MISTRAL,
    judge=_trace_of_layers,
)


@CHAPTER.claim(
    "W-7.2i",
    section="A.5",
    statement="In Mistral-7B W_q, W_k and W_v are 1024 × 4096 matrices, W_up is 14096 × 4096 and W_down 4096 × 14096.",
    formula=r"W_q, W_k, W_v \in R^{1024 \times 4096}, \quad W_{up} \in R^{14096 \times 4096}",
    correction="W_q is 4096 × 4096 (32 query heads of width 128); only W_k and W_v are 1024 × 4096 (8 shared heads). "
    "The feed-forward width is 14336.",
    corrected=r"W_q \in R^{4096 \times 4096}, \quad W_k, W_v \in R^{1024 \times 4096}, \quad "
    r"W_{up} \in R^{14336 \times 4096}",
    lesson="The shapes can be checked without the weights: added up they must give the published number of parameters, "
    "7,241,732,096. Only one of the two sets of shapes does. Grouped-query attention makes keys and values narrower "
    "than queries: four query heads read one key head.",
    slip=True,
)
def mistral_shapes(lab: Lab) -> Evidence:
    name = "parameters of Mistral-7B in all"
    return Evidence(
        (exact(name, float(mistral_parameters(1024, 1024, 14096)), float(_PARAMETERS)),),
        (exact(name, float(mistral_parameters(4096, 1024, 14336)), float(_PARAMETERS)),),
    )


def mistral_parameters(
    query_width: int, key_width: int, hidden: int, blocks: int = 32, vocabulary: int = 32_000
) -> int:
    """Parameters of a Llama-like model of width 4096.

    They are the embeddings in and out, the blocks, and the norms.
    """
    d = 4096
    attention = 2 * d * query_width + 2 * d * key_width  # queries and outputs, keys and values
    return 2 * vocabulary * d + blocks * (attention + 3 * d * hidden + 2 * d) + d


@CHAPTER.claim(
    "W-7.2j",
    section="7.2.2",
    statement="The random reference for these matrices has squared singular values that sum to n and a largest "
    "singular value of 2.",
    formula=r"E\left[\sum_i \sigma_i^2\right] = n, \quad E[\max_i \sigma_i] = 2 \quad (1024 \times 4096)",
    correction="That is the square case. An m × n matrix with Xavier entries of variance 2/(m + n) has the sum "
    "2 m n/(m + n) and the largest value √(2/(m + n)) (√m + √n): 1638 and 1.90 for 1024 × 4096.",
    corrected=r"E\left[\sum_i \sigma_i^2\right] = \frac{2 m n}{m + n} = 1638.4, \quad "
    r"\max_i \sigma_i \rightarrow \sqrt{\frac{2}{m+n}}\,(\sqrt{m} + \sqrt{n}) = 1.90",
    lesson="The sum of the squared singular values is the sum of all squared entries, so it counts m times n entries. "
    "The largest singular value of a wide matrix follows the edge of the Marchenko-Pastur law. Setting m = n gives "
    "back n and 2.",
)
def random_reference(lab: Lab) -> Evidence:
    m, n = 1024, 4096
    entries = lab.normal(m, n, purpose="full size").square() * 2 / (m + n)
    rows = entries.sum(1)  # independent; the sum of squared singular values is the sum of all of them
    total, error = float(rows.sum()), float(rows.std()) * math.sqrt(m)
    small, wide, draws = 128, 512, 24
    law = MarchenkoPastur(small, wide, 2 / (small + wide))
    largest = torch.linalg.eigvalsh(_grams(lab, small, wide, draws))[:, -1]
    name = "largest singular value squared, 128 × 512 (the same ratio of sides)"
    return Evidence(
        (Comparison("sum of the squared singular values, 1024 × 4096", float(m), total, error),
         mean_of(name, 4.0, largest)),
        (Comparison("sum of the squared singular values, 1024 × 4096", 2 * m * n / (m + n), total, error),
         mean_of(name + ", with the Tracy-Widom shift", law.largest[0], largest),
         exact("edge of the law at 1024 × 4096", math.sqrt(2 / (m + n)) * (math.sqrt(m) + math.sqrt(n)),
               math.sqrt(MarchenkoPastur(m, n, 2 / (m + n)).edges[1]))),
    )  # fmt: skip


def _grams(lab: Lab, rows: int, columns: int, draws: int) -> torch.Tensor:
    w = lab.normal(draws, rows, columns, purpose="small") * math.sqrt(2 / (rows + columns))
    return w @ w.mT

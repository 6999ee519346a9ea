r"""Wertich, section 6.4: is the score normally distributed?"""

import torch

from headscope.core.figure import Histogram, Series
from headscope.core.verdict import Evidence
from headscope.maths.linear_algebra.spectrum import participation_ratio, singular_values
from headscope.theory.checks import Lab, exact, mean_of, trend_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()


@CHAPTER.claim(
    "W-6.4a",
    section="6.4",
    statement="The product x_i y_i of two normal variables is chi-squared, and so is the product of two independent "
    "chi-squared variables.",
    formula=r"x_i y_i \sim \chi^2, \quad \chi^2 \cdot \chi^2 \sim \chi^2",
    correction="Only a square x_i² is chi-squared. The product of two independent standard normal variables is half "
    "the difference of two independent chi-squared variables: symmetric about 0, with density K₀(|t|)/π. A product "
    "of independent chi-squared variables is not chi-squared either.",
    corrected=r"f_{xy}(t) = \frac{1}{\pi} K_0(|t|), \quad E[xy] = 0, \ E[(xy)^2] = 1, \ E[(xy)^4] = 9",
    lesson="A chi-squared variable is a sum of squares and never negative, while a product of two centred variables "
    "has both signs. Products of chi-squared variables have heavier tails: with one degree of freedom each, mean 1 "
    "and variance 8, where a chi-squared variable of mean 1 has variance 2. Sums of independent chi-squared "
    "variables of one scale are chi-squared, as the text says.",
)
def products(lab: Lab) -> Evidence:
    x, y = lab.normal(2, 200_000)
    product, squares = x * y, x.square() * y.square()
    half = (lab.normal(100_000, purpose="u").square() - lab.normal(100_000, purpose="v").square()) / 2
    edges = torch.linspace(-3, 3, 61, dtype=torch.float64)
    counts, _ = torch.histogram(product, edges)
    t = torch.cat((torch.linspace(-3, -0.02, 150), torch.linspace(0.02, 3, 150))).double()
    picture = Histogram(
        "product_of_normals",
        "The product of two independent standard normal variables",
        "200,000 draws. The dashed curve is K₀(|t|)/π. A chi-squared variable would have nothing left of 0.",
        "x y",
        edges.numpy(),
        (counts / (len(product) * 0.1)).numpy(),
        (
            Series(
                "K₀(|t|)/π", t.numpy(), (torch.special.modified_bessel_k0(t.abs()) / torch.pi).numpy(), role="theory"
            ),
        ),
    )
    return Evidence(
        (
            mean_of("share of products xy below 0 (chi-squared: none)", 0.0, (product < 0).double()),
            variance_of("variance of a product of two χ²(1), if it were χ²(1)", 2.0, squares),
        ),
        (
            mean_of("share of products xy below 0", 0.5, (product < 0).double()),
            mean_of("second moment of xy", 1.0, product.square()),
            mean_of("fourth moment of xy", 9.0, product.pow(4)),
            mean_of("fourth moment of half the difference of two χ²(1)", 9.0, half.pow(4)),
            mean_of("second moment of a product of two χ²(1)", 9.0, squares.square()),
        ),
        figures=(picture,),
    )


@CHAPTER.claim(
    "W-6.4b",
    section="6.4",
    statement="The score is not normally distributed, but by the central limit theorem it is approximately so for "
    "large n.",
    formula=r"x^T C y \to N \quad (n \to \infty)",
    correction="For standard independent x and y the excess kurtosis is 6 over the participation ratio of the "
    "singular values of C. It falls as 18/n when C is a product of two random n × n matrices; a C with few dominant "
    "directions stays far from normal however large n is.",
    corrected=r"\frac{\kappa_4}{\kappa_2^2} = 6\,\frac{\sum_i \sigma_i(C)^4}{(\sum_i \sigma_i(C)^2)^2}, \quad C = "
    r"A^T B \ \mathrm{random:} \ \approx \frac{18}{n}",
    lesson="In the singular bases of C the score is a sum of independent products σ_i ξ_i η_i, so what counts is how "
    "many σ_i share the weight, not n. A random form has many. For a learned head the participation ratio of its "
    "W_QK says how good the normal approximation is.",
)
def nearly_normal(lab: Lab) -> Evidence:
    stated, corrected = [], []
    for n, draws in ((4, 200_000), (16, 100_000)):
        a, b = lab.normal(2, n, n, purpose=f"weights {n}") / n**0.5
        x, y = lab.normal(2, draws, n, purpose=f"tokens {n}")
        score = ((x @ a.mT) * (y @ b.mT)).sum(-1)
        form = a.mT @ b
        second, excess = float(form.square().sum()), float(_excess_kurtosis(form))
        fourth = score.pow(4) / second**2
        stated.append(mean_of(f"fourth moment over squared second, n = {n} (3 for a normal variable)", 3.0, fourth))
        corrected.append(mean_of(f"the same from the singular values of C, n = {n}", 3 + excess, fourth))
        corrected.append(mean_of(f"second moment over Tr CᵀC, n = {n}", 1.0, score.square() / second))
    sizes, excesses, spreads = (8, 32, 128), [], []
    for n, draws in zip(sizes, (2000, 300, 40), strict=True):
        forms = lab.normal(2, draws, n, n, purpose=f"forms {n}")
        values = _excess_kurtosis(forms[0].mT @ forms[1]) / 3
        excesses.append(float(values.mean()))
        spreads.append(float(values.std()) / draws**0.5)
    return Evidence(
        (stated[0],),
        tuple(corrected),
        trend=trend_of(
            "fourth moment against that of a normal variable, random C", "n", sizes, excesses, -1.0, spreads
        ),
    )


def _excess_kurtosis(form: torch.Tensor) -> torch.Tensor:
    """The excess kurtosis of xᵀCy for standard independent x and y."""
    return 6 / participation_ratio(singular_values(form))


@CHAPTER.claim(
    "W-6.4d",
    section="6.4",
    statement="The score is the sum of C_ij x_i y_i over i and j, with C_ij the sum of A_ik B_ki over k.",
    formula=r"x^T C y = \sum_{i,j} C_{ij}\, x_i\, y_i, \quad C_{ij} = \sum_k A_{ik} B_{ki}",
    correction="The second coordinate is y_j, and C = AᵀB has the entries ΣA_ki B_kj.",
    corrected=r"x^T C y = \sum_{i,j} C_{ij}\, x_i\, y_j, \quad C_{ij} = \sum_k A_{ki} B_{kj}",
    lesson="Indices that are summed appear twice, free ones once on each side: in the stated sum for C_ij the index "
    "j does not occur on the right, so it cannot be meant. Such a check takes seconds and finds most mistakes of "
    "this kind.",
    slip=True,
)
def indices(lab: Lab) -> Evidence:
    a, b = lab.normal(2, 4, 4, purpose="weights")
    x, y = lab.normal(2, 4, purpose="tokens")
    score = float((a @ x) @ (b @ y))
    c = a.mT @ b
    diagonal = (a @ b).diagonal()
    return Evidence(
        (
            exact("Σ C_ij x_i y_i, C = AᵀB, against the score", float((c.sum(1) * x * y).sum()), score),
            exact("the entry C_12 as ΣA_1k B_k1", float(diagonal[0]), float(c[0, 1])),
        ),
        (
            exact("Σ C_ij x_i y_j against the score", float(torch.einsum("ij,i,j->", c, x, y)), score),
            exact("all C_ij as ΣA_ki B_kj (the worst one)", torch.einsum("ki,kj->ij", a, b), c),
        ),
    )

r"""Wertich, sections 6.2.2, 6.2.3, 6.2.5: traces of random matrices.

The spectra and the bases decide them.
"""

import math

import torch
from torch import Tensor

from headscope.core.verdict import Comparison, Evidence
from headscope.maths.linear_algebra.alignment import (
    alignment,
    haar_trace_variance,
    independent_trace_variance,
    largest_alignment,
    largest_alignment_of_left_bases,
)
from headscope.maths.linear_algebra.spectrum import singular_values
from headscope.maths.random_matrices.haar import haar_frames
from headscope.maths.random_matrices.marchenko_pastur import TRACY_WIDOM_MEAN
from headscope.maths.random_matrices.quarter_circle import QuarterCircle
from headscope.maths.random_matrices.tracy_widom import centre_and_scale
from headscope.maths.random_matrices.wishart import energy_variance, trace_moment
from headscope.theory.checks import Lab, exact, fact, mean_of, trend_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()


@CHAPTER.claim(
    "W-6.12",
    section="6.2.2, (6.12)",
    statement="The largest squared singular value of a large n × n random matrix is about 4nσ².",
    formula=r"E[\max_i \sigma_i^2] \approx 4 n \sigma^2",
    correction="Right in the limit; a finite matrix stays below it by a share of about 0.76 n^(−2/3), which is the "
    "mean of the Tracy–Widom law.",
    corrected=r"E[\sigma_1^2] = 4n\sigma^2 \left(1 - 0.760\,n^{-2/3} + \ldots\right)",
    lesson="The spectrum ends at a sharp edge, 4nσ², and the largest value sits near it: a little inside in the "
    "mean, by a few local gaps, which are of the order n^(1/3)σ² there. At n = 1000 the difference is below one "
    "percent. It is the yardstick for calling a learned singular value exceptional.",
)
def largest_value(lab: Lab) -> Evidence:
    sigma, sizes, samples = 0.5, (4, 16, 64), []
    for n, draws in zip(sizes, (20_000, 10_000, 1_500), strict=True):
        a = sigma * lab.normal(draws, n, n, purpose=f"{n}")
        samples.append(torch.linalg.eigvalsh(a @ a.mT)[:, -1] / (4 * n * sigma**2))
    centre, scale = centre_and_scale(64, 64, sigma**2)
    return Evidence(
        (mean_of("mean largest squared singular value over 4nσ², n = 4, σ = 0.5", 1.0, samples[0]),),
        (mean_of("the same at n = 64, from the mean of the Tracy–Widom law",
                 (centre + scale * TRACY_WIDOM_MEAN) / (4 * 64 * sigma**2), samples[2]),),
        trend=trend_of("mean largest squared singular value against 4nσ²", "n", sizes,
                       [1 - float(x.mean()) for x in samples], -2 / 3,
                       [float(x.std() / len(x) ** 0.5) for x in samples]),
    )  # fmt: skip


@CHAPTER.claim(
    "W-6.13",
    section="6.2.2, (6.13)",
    statement="The squared singular values of an n × n random matrix sum to n²σ² in the mean, with the variance 2n²σ⁴.",
    formula=r"E \sum_i \sigma_i^2 = n^2 \sigma^2, \quad \mathrm{Var} \sum_i \sigma_i^2 = 2 n^2 \sigma^4",
    lesson="The sum of squared singular values is the sum of all n² squared entries, a scaled chi-squared variable "
    "with n² degrees of freedom. Both formulas are exact at every n. Relative to its mean the sum scatters by only "
    "√2/n: the energy of a random matrix is nearly fixed.",
)
def energy(lab: Lab) -> Evidence:
    n, sigma = 5, 0.7
    total = torch.linalg.svdvals(sigma * lab.normal(40_000, n, n)).square().sum(-1)
    return Evidence(
        (
            mean_of("mean of Σσ², n = 5, σ = 0.7", trace_moment(n, n, 1, sigma**2), total),
            variance_of("variance of Σσ²", energy_variance(n, n, sigma**2), total),
            exact("the same as n²σ²", n**2 * sigma**2, trace_moment(n, n, 1, sigma**2)),
            exact("the same as 2n²σ⁴", 2 * n**2 * sigma**4, energy_variance(n, n, sigma**2)),
        )
    )


@CHAPTER.claim(
    "W-6.15",
    section="6.2.2, (6.15) and (6.16)",
    statement="An element of AᵀA follows the chi-squared law of a squared normal variable, with mean σ² and variance "
    "2σ⁴; the trace adds up n² of them.",
    formula=r"(A^T A)_{ij} \sim \chi^2(n), \quad E = \sigma^2, \quad \mathrm{Var} = 2\sigma^4",
    correction="That is the law of a squared entry A_ij² of A, with one degree of freedom, and n² of those add up to "
    "the trace. A diagonal element of AᵀA is σ²χ²(n) with mean nσ² and variance 2nσ⁴; an element off the diagonal "
    "has mean 0 and variance nσ⁴ and both signs, so it is not chi-squared at all.",
    corrected=r"A_{ij}^2 \sim \sigma^2\chi^2(1), \quad (A^T A)_{ii} \sim \sigma^2\chi^2(n), \quad E[(A^T A)_{ij}] = "
    r"0, \ \mathrm{Var}(A^T A)_{ij} = n\sigma^4 \ (i \neq j)",
    lesson="The trace of AᵀA has n terms, each a sum of n squares. The derivation calls the squares elements of AᵀA; "
    "with the squares of the entries of A in their place it is correct and gives the right totals.",
    slip=True,
)
def gram_elements(lab: Lab) -> Evidence:
    n, sigma = 6, 1.3
    a = sigma * lab.normal(40_000, n, n)
    gram = a.mT @ a
    diagonal, other, square = gram[:, 0, 0], gram[:, 0, 1], a[:, 0, 0].square()
    return Evidence(
        (
            mean_of("mean of a diagonal element, n = 6, σ = 1.3", sigma**2, diagonal),
            variance_of("its variance", 2 * sigma**4, diagonal),
            mean_of("mean of an element off the diagonal", sigma**2, other),
        ),
        (
            mean_of("mean of a squared entry of A", sigma**2, square),
            variance_of("its variance", 2 * sigma**4, square),
            mean_of("mean of a diagonal element", n * sigma**2, diagonal),
            variance_of("its variance", 2 * n * sigma**4, diagonal),
            mean_of("mean of an element off the diagonal", 0.0, other),
            variance_of("its variance", n * sigma**4, other),
        ),
    )


@CHAPTER.claim(
    "W-6.17",
    section="6.2.3, (6.17) to (6.23)",
    statement="For two independent random n × n matrices the trace of AᵀB has mean 0 and variance n²σ⁴, which is 1 "
    "for entries of variance 1/n.",
    formula=r"E\,\mathrm{Tr}(A^T B) = 0, \quad \mathrm{Var}\,\mathrm{Tr}(A^T B) = n^2 \sigma^4",
    lesson="The trace is a sum of n² products of independent entries, each with mean 0 and variance σ⁴, and "
    "different products are uncorrelated. With σ² = 1/n the trace stays of size 1 however large the matrices are, "
    "while for aligned matrices it would be of size n. That contrast is the null model for alignment.",
)
def independent_traces(lab: Lab) -> Evidence:
    comparisons = []
    for n, sigma in ((4, 0.8), (7, 7**-0.5)):
        a, b = sigma * lab.normal(2, 20_000, n, n, purpose=f"{n}")
        trace = (a.mT @ b).diagonal(dim1=-2, dim2=-1).sum(-1)
        variance = independent_trace_variance(n, n, sigma**2, sigma**2)
        comparisons += [
            mean_of(f"mean of the trace, n = {n}, σ = {sigma:.3f}", 0.0, trace),
            variance_of(f"variance of the trace, n = {n}, σ = {sigma:.3f}", variance, trace),
            exact(f"n²σ⁴ for n = {n}", n**2 * sigma**4, variance),
        ]
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-6.17b",
    section="6.2.3",
    statement="For entries of variance 1/n the trace of AᵀB resembles a standard normal variable.",
    formula=r"A_{ij}, B_{ij} \sim N(0, 1/n): \quad \mathrm{Tr}(A^T B) \approx N(0, 1)",
    correction="It has mean 0 and variance 1 exactly; its law is normal only in the limit, with an excess kurtosis "
    "of 6/n².",
    corrected=r"E[e^{it\,\mathrm{Tr}(A^T B)}] = \left(1 + \frac{t^2}{n^2}\right)^{-n^2/2} \to e^{-t^2/2}, \quad "
    r"\frac{E[\mathrm{Tr}^4]}{3} - 1 = \frac{2}{n^2}",
    lesson="A sum of n² independent terms is nearly normal already for small matrices. One must not turn the "
    "conclusion around: a trace of size 1 is what unrelated matrices give, but related ones can give it too when "
    "contributions of both signs cancel.",
)
def normal_trace(lab: Lab) -> Evidence:
    n = 2
    a, b = lab.normal(2, 100_000, n * n, purpose="direct") / n**0.5
    fourth = (a * b).sum(-1).pow(4)
    sizes, excess, spreads = (2, 4, 8), [], []
    for size in sizes:
        # Given A the trace is normal with variance s = ‖A‖²/n, so its fourth moment over 3 is the mean of s². Twice
        # s − 1, whose mean is 0, is taken off: the mean stays, most of the noise goes.
        s = (lab.normal(20_000, size * size, purpose=f"{size}") / size).square().sum(-1)
        steady = s.square() - 2 * (s - 1) - 1
        excess.append(float(steady.mean()))
        spreads.append(float(steady.std() / len(steady) ** 0.5))
    return Evidence(
        (mean_of("fourth moment of the trace, n = 2 (3 for a standard normal)", 3.0, fourth),),
        (
            mean_of("fourth moment of the trace, n = 2, from 3 + 6/n²", 4.5, fourth),
            mean_of("mean of the trace, n = 2", 0.0, (a * b).sum(-1)),
            variance_of("variance of the trace, n = 2", 1.0, (a * b).sum(-1)),
        ),
        trend=trend_of("fourth moment against that of a normal variable", "n", sizes, excess, -2.0, spreads),
    )


@CHAPTER.claim(
    "W-6.25",
    section="6.2.5, (6.25)",
    statement="With the singular value decompositions of A and B the trace of AᵀB is the trace of D_A U_AᵀU_B D_B "
    "V_BᵀV_A.",
    formula=r"\mathrm{Tr}(A^T B) = \mathrm{Tr}(D_A U_A^T U_B D_B V_B^T V_A)",
    lesson="Insert both decompositions and move V_A from the front to the back, which a trace allows. The two "
    "rotations, between the left and between the right singular vectors, enter together and cannot be judged one by "
    "one.",
)
def trace_by_svd(lab: Lab) -> Evidence:
    a, b = lab.normal(2, 6, 6)
    (u_a, d_a, v_a), (u_b, d_b, v_b) = torch.linalg.svd(a), torch.linalg.svd(b)
    parts = torch.diag(d_a) @ u_a.mT @ u_b @ torch.diag(d_b) @ v_b @ v_a.mT
    return Evidence(
        (exact("trace by the decompositions, 6 × 6", float(torch.trace(parts)), float(torch.trace(a.mT @ b))),)
    )


@CHAPTER.claim(
    "W-6.27",
    section="6.2.5, (6.27) and (6.28)",
    statement="With w_i the columns of W, D_A Wᵀ D_B W is the product of [σ_ai w_i]ᵀ and [σ_bi w_i], so its trace is "
    "the sum of σ_ai σ_bi.",
    formula=r"D_A W^T D_B W = [\sigma_{ai} w_i]^T [\sigma_{bi} w_i], \quad \mathrm{Tr} = \sum_i "
    r"\sigma_{ai}\sigma_{bi}",
    correction="[σ_bi w_i] is W D_B, not D_B W, so the stated product is D_A WᵀW D_B = D_A D_B. In the true product "
    "every σ_a meets every σ_b, weighted by a squared entry of W.",
    corrected=r"\mathrm{Tr}(D_A W^T D_B W) = \sum_{i,j} \sigma_{ai}\,\sigma_{bj}\,W_{ji}^2, \quad W \ "
    r"\mathrm{uniform:} \ E = \frac{1}{n} \sum_i \sigma_{ai} \sum_j \sigma_{bj}",
    lesson="Multiplying by a diagonal matrix on the right scales columns, on the left it scales rows. The two are "
    "confused here, and the orthogonality of W is then used where W does not meet its own transpose. Since the "
    "squared entries of each row and column of W sum to 1, the true trace is a weighted mean over pairings of the "
    "two spectra, largest for W = 1.",
)
def diagonal_in_the_middle(lab: Lab) -> Evidence:
    n = 5
    d_a = torch.tensor([3.0, 1.0, 0.5, 0.2, 0.1], dtype=torch.float64) + 0.1 * lab.uniform(n, purpose="a")
    d_b = torch.tensor([2.0, 1.5, 0.4, 0.3, 0.1], dtype=torch.float64) + 0.1 * lab.uniform(n, purpose="b")
    w = haar_frames(20_000, n, generator=lab.generator("W"))
    traces = (d_a[:, None] * w.mT @ (d_b[:, None] * w)).diagonal(dim1=-2, dim2=-1).sum(-1)
    weighted = (w.square() * d_b[:, None] * d_a).sum((-2, -1))
    return Evidence(
        (
            mean_of(
                "mean trace of D_A WᵀD_B W over uniform W, against Σσ_aσ_b, n = 5", float((d_a * d_b).sum()), traces
            ),
        ),
        (
            exact("traces against the weighted sums, 20,000 W (the worst one)", weighted, traces),
            mean_of("mean over uniform W", float(d_a.sum() * d_b.sum()) / n, traces),
            fact(
                "none exceeds Σσ_aσ_b of the sorted spectra", float(traces.max()) <= float(largest_alignment(d_a, d_b))
            ),
        ),
    )


def decomposed(lab: Lab, draws: int, n: int, purpose: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The singular values of two random matrices and their right singular bases."""
    a, b = lab.normal(2, draws, n, n, purpose=purpose)
    (_, d_a, v_a), (_, d_b, v_b) = torch.linalg.svd(a), torch.linalg.svd(b)
    return d_a, d_b, v_a.mT, v_b.mT


@CHAPTER.claim(
    "W-6.29",
    section="6.2.5, (6.24) to (6.29)",
    statement="Whatever the right singular bases of two random matrices are, there are left ones (those with U_AᵀU_B "
    "= V_AᵀV_B) for which the trace of AᵀB has the mean n²σ².",
    formula=r"U_A^T U_B = V_A^T V_B \ \Rightarrow \ E\,\mathrm{Tr}(A^T B) = n^2 \sigma^2",
    correction="The choice gives (1/n)ΣσₐΣσ_b in the mean, 64/(9π²) = 0.72 of n²σ² for large n. No choice of the "
    "left bases reaches more than the nuclear norm of BAᵀ, 3/4 of n²σ² for large n and less than n²σ² for every n. "
    "The full n²σ² needs the right bases to agree as well.",
    corrected=r"E\,\mathrm{Tr} = \frac{1}{n} E\sum_i \sigma_{ai}\,E\sum_j \sigma_{bj} \to "
    r"\frac{64}{9\pi^2}\,n^2\sigma^2, \quad \max_{U_A, U_B} \mathrm{Tr} = \|B A^T\|_* \to \frac{3}{4}\,n^2\sigma^2",
    lesson="Turning the left bases can undo a rotation between the right ones only in part, because the two "
    "rotations are separated by the singular values. The best left bases turn the product D_B V_BᵀV_A D_A into a "
    "positive matrix, and its trace is the sum of the singular values of a product of two random matrices, whose "
    "mean is 3/4 of nσ². The thesis reaches n²σ² by two errors: the product in (6.27) and the mean of σ.",
)
def best_left_bases(lab: Lab) -> Evidence:
    n, draws = 12, 3000
    d_a, d_b, v_a, v_b = decomposed(lab, draws, n, "small")
    q = v_a.mT @ v_b
    traces = (q.square() * d_a[..., :, None] * d_b[..., None, :]).sum((-2, -1))
    # The definition, for the first pair: bases with U_A = 1 and U_B = Q.
    first = torch.trace(torch.diag(d_a[0]) @ q[0] @ torch.diag(d_b[0]) @ v_b[0].mT @ v_a[0])
    best = torch.linalg.svdvals(d_b[..., :, None] * (v_b.mT @ v_a) * d_a[..., None, :]).sum(-1)
    large = 256
    a, b = lab.normal(2, large, large, purpose="large")
    s_a, s_b = singular_values(a), singular_values(b)
    stated_trace, top, aligned = (
        float(value) / large**2
        for value in (s_a.sum() * s_b.sum() / large, largest_alignment_of_left_bases(a, b), largest_alignment(s_a, s_b))
    )
    return Evidence(
        (mean_of("mean trace with the chosen left bases, n = 12, σ = 1", float(n**2), traces),),
        (
            exact("the trace of one pair by definition", float(first), float(traces[0])),
            mean_of("trace relative to (1/n)ΣσₐΣσ_b, mean", 1.0, traces / (d_a.sum(-1) * d_b.sum(-1) / n)),
            fact(
                f"the best left bases reach {float(best.mean()) / n**2:.3f} of n²σ² in the mean, less than 1",
                float(best.mean() + 5 * best.std() / draws**0.5) < n**2,
            ),
            fact(
                f"n = 256: the chosen left bases reach {stated_trace:.3f}, within 0.01 of 64/(9π²)",
                abs(stated_trace - 64 / (9 * math.pi**2)) < 0.01,
            ),
            fact(f"n = 256: the best left bases reach {top:.3f}, within 0.01 of 3/4", abs(top - 0.75) < 0.01),
            fact(f"n = 256: all bases aligned reach {aligned:.3f}, within 0.02 of 1", abs(aligned - 1) < 0.02),
        ),
    )


@CHAPTER.claim(
    "W-6.29a",
    section="6.2.5, before (6.29)",
    statement="From E[σ_i²] = nσ² it follows that a singular value drawn at random has the mean √n σ.",
    formula=r"E[\sigma_i^2] = n\sigma^2 \ \Rightarrow \ E[\sigma_i] = \sqrt{n}\,\sigma",
    correction="The mean of a root is not the root of the mean. The singular values follow the quarter circle, whose "
    "mean is 8/(3π) = 0.849 of √n σ.",
    corrected=r"E[\sigma_i] \to \frac{8}{3\pi} \sqrt{n}\,\sigma, \quad n = 2: \ E[\sigma_i] = \left(\sqrt{\pi} - "
    r"\sqrt{\pi/8}\right)\sigma",
    lesson="Mean square minus squared mean is the variance, so the root of the mean square exceeds the mean unless "
    "all values agree. Singular values of a random matrix are spread from 0 to 2√n σ, which costs 15 percent. The "
    "product of two such means costs 28 percent in (6.29).",
)
def mean_singular_value(lab: Lab) -> Evidence:
    draws = torch.linalg.svdvals(lab.normal(100, 50, 50)).mean(-1)
    two_by_two = torch.linalg.svdvals(lab.normal(50_000, 2, 2, purpose="two")).mean(-1)
    n = 512
    sigma = singular_values(lab.normal(n, n, purpose="large"))
    ratio, law = float(sigma.mean()) / n**0.5, QuarterCircle.of_square_matrix(n, 1 / n)
    return Evidence(
        (mean_of("mean singular value, n = 50, σ = 1", 50**0.5, draws),),
        (
            mean_of("mean singular value, n = 2", math.sqrt(math.pi) - math.sqrt(math.pi / 8), two_by_two),
            fact(
                f"n = 512: the mean is {ratio:.4f} √n σ, within 0.005 of 8/(3π) = {law.mean:.4f}",
                abs(ratio - law.mean) < 0.005,
            ),
        ),
    )


@CHAPTER.claim(
    "W-6.29b",
    section="6.2.5, after (6.29)",
    statement="With the left bases so chosen the mean trace of AᵀB does not depend on the rotation V_BᵀV_A between "
    "the right singular bases.",
    formula=r"E\,\mathrm{Tr}(A^T B) \ \mathrm{independent\ of} \ V_B^T V_A",
    correction="It depends on the squared entries of W = V_BᵀV_A: from Σσₐσ_b for equal bases (n²σ²) over 0.72 n²σ² "
    "for a uniformly random rotation down to the two spectra paired in opposite order (0.44 n²σ²).",
    corrected=r"\mathrm{Tr}(A^T B) = \sum_{i,j} \sigma_{ai}\,\sigma_{bj}\,W_{ji}^2, \quad W = V_B^T V_A",
    lesson="The left rotation undoes the right one around the singular values, not through them. How much large "
    "singular values of A meet large ones of B still depends on W. What is true: both rotations must be looked at "
    "together.",
)
def rotation_matters(lab: Lab) -> Evidence:
    n = 100
    d_a, d_b = (torch.linalg.svdvals(lab.normal(n, n, purpose=name)) for name in "ab")
    eye = torch.eye(n, dtype=torch.float64)
    rotations = {
        "equal": eye,
        "uniform": haar_frames(1, n, generator=lab.generator("W"))[0],
        "reversed": eye.flip(0),
    }
    traces = {
        name: float(torch.trace(torch.diag(d_a) @ w.mT @ torch.diag(d_b) @ w)) / n**2 for name, w in rotations.items()
    }
    weighted = {name: float((w.square() * d_b[:, None] * d_a).sum()) / n**2 for name, w in rotations.items()}
    return Evidence(
        (
            exact(
                "trace over n²σ², right bases in reversed order against equal ones, n = 100",
                traces["equal"],
                traces["reversed"],
            ),
        ),
        (
            *(
                exact(f"trace over n²σ², {name} bases, weighted sum", weighted[name], traces[name])
                for name in rotations
            ),
            fact(
                f"equal {traces['equal']:.2f} > uniform {traces['uniform']:.2f} > reversed {traces['reversed']:.2f}",
                traces["equal"] > traces["uniform"] + 0.1 > traces["reversed"] + 0.2,
            ),
        ),
    )


def with_spectra(lab: Lab, sigma_a: Tensor, sigma_b: Tensor, draws: int, purpose: str) -> Tensor:
    """Traces of ÂᵀB̂ for random singular vectors and prescribed singular values."""
    n = len(sigma_a)
    matrices = []
    for name, sigma in (("A", sigma_a), ("B", sigma_b)):
        u, _, v_t = torch.linalg.svd(lab.normal(draws, n, n, purpose=f"{purpose} {name}"))
        matrices.append(u * sigma @ v_t)
    return alignment(matrices[0], matrices[1])


@CHAPTER.claim(
    "W-6.32",
    section="6.2.5, (6.32)",
    statement="If the singular values of two random matrices are replaced by any others, the trace of ÂᵀB̂ still has "
    "the mean 0.",
    formula=r"E\,\mathrm{Tr}(\hat{A}^T \hat{B}) = 0",
    lesson="The singular vectors of a random matrix have no preferred direction, so Â and −Â are equally likely, and "
    "the mean is 0 for any spectrum. The intermediate step of the thesis inherits the confusion of (6.27), but the "
    "conclusion stands.",
)
def mean_with_spectra(lab: Lab) -> Evidence:
    comparisons = []
    for name, a, b in (("steep", (4.0, 1.0, 0.5, 0.1), (3.0, 2.0, 0.3, 0.0)), ("flat", (1.0,) * 4, (1.0,) * 4)):
        traces = with_spectra(lab, torch.tensor(a).double(), torch.tensor(b).double(), 20_000, name)
        comparisons.append(
            mean_of(f"mean trace, {name} spectra, n = 4, in standard deviations", 0.0, traces / traces.std())
        )
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-6.34",
    section="6.2.5, (6.33) and (6.34)",
    statement="For prescribed spectra and random singular vectors the variance of the trace is the mean of the "
    "products σ̂_ai²σ̂_bi².",
    formula=r"\mathrm{Var}\,\mathrm{Tr}(\hat{A}^T \hat{B}) = \frac{1}{n} \sum_i \hat{\sigma}_{ai}^2 "
    r"\hat{\sigma}_{bi}^2",
    correction="Every σ̂_a meets every σ̂_b: the variance is the product of the two mean squared singular values. "
    "The stated form is right only where one of the spectra is flat.",
    corrected=r"\mathrm{Var}\,\mathrm{Tr}(\hat{A}^T \hat{B}) = \frac{1}{n^2} \sum_i \hat{\sigma}_{ai}^2 \sum_j "
    r"\hat{\sigma}_{bj}^2",
    lesson="The trace is a sum over i and j of σ_ai σ_bj Q_ij W_ji with two independent uniform rotations, whose "
    "entries are uncorrelated with variance 1/n each. So n² terms contribute σ_ai²σ_bj²/n². A check that the thesis "
    "could have made: for ordinary random matrices (6.17) says n²σ⁴, while (6.34) would give twice that.",
)
def variance_with_spectra(lab: Lab) -> Evidence:
    n = 4
    a, b = torch.tensor([4.0, 1.0, 0.5, 0.1]).double(), torch.tensor([3.0, 2.0, 0.3, 0.0]).double()
    traces = with_spectra(lab, a, b, 20_000, "steep")
    flat = torch.full((n,), 1.5, dtype=torch.float64)
    half = with_spectra(lab, a, flat, 20_000, "flat")
    return Evidence(
        (variance_of("variance of the trace, two steep spectra, n = 4", float((a * b).square().sum()) / n, traces),),
        (
            variance_of("variance of the trace, two steep spectra", float(haar_trace_variance(a, b, n, n)), traces),
            variance_of("variance of the trace, one flat spectrum", float(haar_trace_variance(a, flat, n, n)), half),
            exact(
                "both formulas for a flat spectrum",
                float((a * flat).square().sum()) / n,
                float(haar_trace_variance(a, flat, n, n)),
            ),
        ),
    )


@CHAPTER.claim(
    "W-6.34b",
    section="6.2.5, after (6.34)",
    statement="The variance of the trace is an inner product of the two squared spectra, so the angle between the "
    "spectra describes how the matrices interact in the trace.",
    formula=r"\mathrm{Var}\,\mathrm{Tr}(\hat{A}^T \hat{B}) = \frac{1}{n} |\hat{D}_A^2|\,|\hat{D}_B^2| "
    r"\cos\angle(\hat{D}_A^2, \hat{D}_B^2)",
    correction="With random bases only the total energies count: the variance is ‖Â‖²‖B̂‖²/n², the same for parallel "
    "and for orthogonal spectra.",
    corrected=r"\mathrm{Var}\,\mathrm{Tr}(\hat{A}^T \hat{B}) = \frac{1}{n^2} \|\hat{A}\|_F^2 \|\hat{B}\|_F^2",
    lesson="A random rotation forgets which singular value comes first, so no comparison by index can matter. The "
    "angle between spectra decides something else: the largest trace that aligned bases can reach, which is the "
    "inner product of the spectra themselves.",
)
def angle_of_spectra(lab: Lab) -> Evidence:
    n = 4
    a = torch.tensor([3.0, 0.0, 0.0, 0.0]).double()
    spectra = {
        "parallel": torch.tensor([2.0, 0.0, 0.0, 0.0]).double(),
        "orthogonal": torch.tensor([0.0, 0.0, 2.0, 0.0]).double(),
    }
    traces = {name: with_spectra(lab, a, b, 20_000, name) for name, b in spectra.items()}
    stated = {name: float((a * b).square().sum()) / n for name, b in spectra.items()}
    return Evidence(
        tuple(
            variance_of(f"variance of the trace, {name} spectra, n = 4", stated[name], traces[name]) for name in traces
        ),
        tuple(
            variance_of(f"variance of the trace, {name} spectra", float(haar_trace_variance(a, b, n, n)), traces[name])
            for name, b in spectra.items()
        ),
    )


@CHAPTER.claim(
    "W-6.dof",
    section="6.2.5",
    statement="The singular value decomposition divides the n² degrees of freedom of a matrix into n for the "
    "singular values and n(n−1)/2 for each of the two bases.",
    formula=r"n^2 = n + \frac{n(n-1)}{2} + \frac{n(n-1)}{2}",
    lesson="An orthogonal matrix is turned by an antisymmetric one, which has n(n−1)/2 free entries. Moving the "
    "three factors independently moves A in all n² directions, as the rank of the derivative shows. Where two "
    "singular values agree it does not: the common rotation of their vectors on both sides is lost.",
)
def degrees_of_freedom(lab: Lab) -> Evidence:
    def directions(n: int, d: Tensor) -> tuple[Tensor, int, int]:
        u, v = haar_frames(2, n, generator=lab.generator(f"{n}"))
        turns = [(i, j) for i in range(n) for j in range(i)]
        moves = []
        for i, j in turns:
            omega = torch.zeros(n, n, dtype=torch.float64)
            omega[i, j], omega[j, i] = 1.0, -1.0
            moves += [u @ omega @ torch.diag(d) @ v.mT, u @ torch.diag(d) @ omega @ v.mT]
        stretches = [u[:, i, None] * v[None, :, i] for i in range(n)]
        return torch.stack([m.reshape(-1) for m in (*moves, *stretches)]), len(turns), len(stretches)

    comparisons = []
    for n in (2, 3, 5):
        moves, turns, stretches = directions(n, torch.linalg.svdvals(lab.normal(n, n, purpose=f"d {n}")))
        comparisons += [
            Comparison(f"rank of the derivative, n = {n}", float(n**2), float(torch.linalg.matrix_rank(moves)), 0.0),
            Comparison(f"stretches plus turns on both sides, n = {n}", float(n**2), float(stretches + 2 * turns), 0.0),
        ]
    equal, _, _ = directions(3, torch.tensor([2.0, 2.0, 1.0]).double())
    comparisons.append(fact("rank 8 of 9 where two singular values agree", int(torch.linalg.matrix_rank(equal)) == 8))
    return Evidence(tuple(comparisons))

r"""Wertich, section 2.5: spectra of matrices with independent normal entries."""

import math

import torch
from torch import Tensor

from headscope.core.figure import Curves, Histogram, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.linear_algebra.spectrum import singular_values
from headscope.maths.random_matrices.marchenko_pastur import TRACY_WIDOM_MEAN, Law, MarchenkoPastur
from headscope.maths.random_matrices.quarter_circle import QuarterCircle
from headscope.maths.random_matrices.singular_gaps import rotation_bound, smallest_gap, smallest_gap_mean
from headscope.maths.random_matrices.tracy_widom import centre_and_scale
from headscope.maths.random_matrices.wishart import mean_length
from headscope.theory.checks import Lab, exact, fact, less_than, mean_of, trend_of
from headscope.theory.works import wertich

CHAPTER = wertich()


def distance(law: Law | QuarterCircle, values: Tensor) -> float:
    """The largest distance of the distribution functions of a law and of values.

    It is the Kolmogorov distance.
    """
    x = values.flatten().sort().values
    steps = torch.arange(1, len(x) + 1, dtype=torch.float64) / len(x)
    return float((law.cdf(x) - steps).abs().max())


@CHAPTER.claim(
    "W-2.5a",
    section="2.5",
    statement="The eigenvalues of a random square matrix are distinct, so it can be diagonalised as UΛUᵀ, possibly "
    "with complex eigenvalues.",
    formula=r"A = U \Lambda U^T",
    correction="Distinct eigenvalues give A = SΛS⁻¹ with an invertible, in general complex and not orthogonal S. The "
    "form UΛUᵀ is symmetric whatever U is, so a matrix that is not symmetric never has it.",
    corrected=r"A = S \Lambda S^{-1}",
    lesson="Diagonalising needs a basis of eigenvectors, and distinct eigenvalues provide one. That basis is "
    "orthogonal only for symmetric (more generally normal) matrices, so its inverse is not its transpose. Where one "
    "wants orthogonal factors, one takes two of them: the singular value decomposition UDVᵀ.",
    slip=True,
)
def diagonalisation(lab: Lab) -> Evidence:
    n = 8
    a = lab.normal(n, n)
    eigenvalues, s = torch.linalg.eig(a)
    rebuilt = (s * eigenvalues) @ torch.linalg.inv(s)
    gaps = (eigenvalues[:, None] - eigenvalues[None, :]).abs() + torch.eye(n) * 10
    asymmetry = float((a - a.mT).norm() / a.norm())
    return Evidence(
        (Comparison("size of A − Aᵀ relative to A, which is 0 for every UΛUᵀ", 0.0, asymmetry, 1e-9),),
        (
            exact("entries of SΛS⁻¹ against those of A, 8 × 8 (the worst one)", a, rebuilt.real),
            fact("no two eigenvalues coincide", float(gaps.min()) > 1e-6),
        ),
    )


@CHAPTER.claim(
    "W-2.5b",
    section="2.5",
    statement="A random matrix, square or not, almost surely has full rank, and its singular values are distinct and "
    "not zero.",
    formula=r"P(\sigma_1 > \sigma_2 > \ldots > \sigma_n > 0) = 1",
    lesson="Matrices with a zero or a repeated singular value form a surface of lower dimension, which a continuous "
    "distribution misses. The laws show it: for 2 × 2 matrices with standard normal entries the gap σ₁ − σ₂ has the "
    "chance 1 − exp(−t²/2) to be below t, which goes to 0 with t, quadratically because singular values repel one "
    "another. Full rank alone would give only 'not zero'; distinctness is a second fact.",
)
def full_rank(lab: Lab) -> Evidence:
    sigma = torch.linalg.svdvals(lab.normal(100_000, 2, 2))
    wide = torch.linalg.svdvals(lab.normal(2000, 6, 9, purpose="wide"))
    t = 0.1
    above = math.exp(-(t**2)) - t * math.sqrt(math.pi / 2) * math.exp(-(t**2) / 2) * math.erfc(t / math.sqrt(2))
    gap, last = sigma[:, 0] - sigma[:, 1], sigma[:, 1]
    return Evidence(
        (
            mean_of("share of 2 × 2 matrices with a gap below 0.1", -math.expm1(-(t**2) / 2), (gap < t).double()),
            mean_of("mean gap of 2 × 2 matrices, √(π/2)", math.sqrt(math.pi / 2), gap),
            mean_of("share with a smallest singular value below 0.1", 1 - above, (last < t).double()),
            fact(
                "none of 100,000 2 × 2 and 2,000 6 × 9 matrices has a zero or repeated singular value",
                all(float(s[:, -1].min()) > 0 and float(smallest_gap(s).min()) > 0 for s in (sigma, wide)),
            ),
        )
    )


@CHAPTER.claim(
    "W-2.5c",
    section="2.5",
    statement="A random matrix stretches a unit vector to the expected length nσ².",
    formula=r"E\|Dv\|_2 = n \sigma^2",
    correction="nσ² is the expected squared length. The expected length is about √n σ.",
    corrected=r"E\|Av\|^2 = n\sigma^2, \quad E\|Av\| = \sqrt{2}\,\sigma\,\frac{\Gamma((n+1)/2)}{\Gamma(n/2)} \approx "
    r"\sqrt{n}\,\sigma",
    lesson="Each of the n coordinates of Av is normal with variance σ², so the squares add up to nσ² in the mean. "
    "The length is the root of that sum. The two agree only where nσ² = 1, the usual initialisation, which is why "
    "the missing square goes unnoticed.",
    slip=True,
)
def vector_length(lab: Lab) -> Evidence:
    n, sigma = 16, 0.5
    v = torch.full((n,), n**-0.5, dtype=torch.float64)
    length = (sigma * lab.normal(10_000, n, n) @ v).norm(dim=-1)
    return Evidence(
        (mean_of("mean length of Av, n = 16, σ = 0.5, unit v", n * sigma**2, length),),
        (
            mean_of("mean squared length", n * sigma**2, length.square()),
            mean_of("mean length", mean_length(n, sigma**2), length),
        ),
    )


@CHAPTER.claim(
    "W-2.5d",
    section="2.5",
    statement="With entries of variance 1/n a unit vector is expected to become a unit vector again, every direction "
    "being equally likely.",
    formula=r"A_{ij} \sim N(0, 1/n): \quad E\|Av\| = 1, \quad Av/\|Av\| \ \mathrm{uniform}",
    correction="The direction is exactly uniform and the mean squared length exactly 1. The mean length is smaller "
    "by about 1/(4n), and one vector's length scatters by about 1/√(2n).",
    corrected=r"E\|Av\|^2 = 1, \quad E\|Av\| = 1 - \frac{1}{4n} + O(n^{-2})",
    lesson="Rotating the output of a Gaussian matrix does not change its law, so no direction is preferred. Lengths "
    "concentrate: the squared length is a mean of n independent terms. A root is concave, so the mean of the roots "
    "lies a little below the root of the mean; the difference dies as 1/(4n).",
)
def unit_vectors_stay(lab: Lab) -> Evidence:
    n, draws = 8, 20_000
    v = torch.zeros(n, dtype=torch.float64)
    v[0] = 1.0
    image = lab.normal(draws, n, n) @ v / n**0.5
    lengths = image.norm(dim=-1)
    first = image[:, 0] / lengths
    sizes, errors, spreads = (2, 8, 32), [], []
    for size in sizes:
        # The image of a basis vector is a column. Half of its squared length less 1, whose mean is 0, is taken off:
        # the mean stays, most of the noise goes.
        column = (lab.normal(40_000, size, purpose=f"{size}") / size**0.5).norm(dim=-1)
        steady = column - (column.square() - 1) / 2
        errors.append(1 - float(steady.mean()))
        spreads.append(float(steady.std() / len(steady) ** 0.5))
    return Evidence(
        (
            mean_of("mean length, n = 8", 1.0, lengths),
            mean_of("mean squared length, n = 8", 1.0, lengths.square()),
            mean_of("mean square of a coordinate of the direction, n = 8", 1 / 8, first.square()),
            mean_of("its fourth moment, 3/(n(n+2)) for a uniform direction", 3 / 80, first.pow(4)),
        ),
        (
            mean_of("mean length, n = 8, √2 Γ((n+1)/2)/(√n Γ(n/2))", mean_length(n, 1 / n), lengths),
            mean_of("mean squared length, n = 8", 1.0, lengths.square()),
        ),
        trend=trend_of("mean length against 1", "n", sizes, errors, -1.0, spreads),
    )


@CHAPTER.claim(
    "W-2.5e",
    section="2.5",
    statement="The squared singular values of an n × n matrix with entries of variance σ² follow the "
    "Marchenko–Pastur density on [0, 4σ²].",
    formula=r"f(x) = \frac{1}{2\pi\sigma^2 x} \sqrt{4\sigma^2 x - x^2}, \quad 0 \leq x \leq 4\sigma^2",
    correction="This is the density for AAᵀ/n. For A as it stands σ² must be replaced by nσ².",
    corrected=r"f(x) = \frac{1}{2\pi n\sigma^2 x} \sqrt{4 n\sigma^2 x - x^2}, \quad 0 \leq x \leq 4 n\sigma^2",
    lesson="The squared singular values add up to the sum of all n² squared entries, so their mean is nσ² and cannot "
    "be σ². Textbooks state the law for AAᵀ divided by the number of columns; leaving out the division changes the "
    "scale by n. The thesis's own (6.12), a largest value of 4nσ², needs the corrected form.",
    slip=True,
)
def marchenko_pastur(lab: Lab) -> Evidence:
    n, sigma = 300, 0.5
    a = sigma * lab.normal(n, n)
    squares = singular_values(a).square()
    law = MarchenkoPastur(n, n, sigma**2)
    far = distance(law, squares)
    # The mean squared singular value is n times the mean squared entry, whose standard error is known.
    return Evidence(
        (mean_of("mean squared singular value, n = 300, σ = 0.5 (the density's is σ²)", sigma**2, n * a.square()),),
        (
            mean_of("mean squared singular value (the corrected density's is nσ²)", law.mean, n * a.square()),
            fact(f"the distribution functions differ by at most {far:.3f}, below 0.02", far < 0.02),
        ),
    )


@CHAPTER.claim(
    "W-2.5f",
    section="2.5",
    statement="For entries of variance 1/n the density of the squared singular values lives on [0, 4/n].",
    formula=r"f(x) = \frac{n}{2\pi x} \sqrt{\frac{4x}{n} - x^2}, \quad 0 \leq x \leq \frac{4}{n}",
    correction="The squared singular values of such a matrix fill [0, 4] for every n, and the singular values fill "
    "[0, 2].",
    corrected=r"f(x) = \frac{1}{2\pi x} \sqrt{4x - x^2}, \quad 0 \leq x \leq 4",
    lesson="The variance 1/n is chosen so that a typical vector keeps its length, and so the mean squared singular "
    "value is 1. The largest one is 4 times the mean, not 4/n. The error is the missing factor n of the general "
    "density, carried on.",
    slip=True,
)
def xavier_spectrum(lab: Lab) -> Evidence:
    n = 1024
    a = lab.normal(n, n) / n**0.5
    sigma = singular_values(a)
    law = QuarterCircle.of_square_matrix(n, 1 / n)
    far = distance(law, sigma)
    density, edges = torch.histogram(sigma, bins=40, range=(0.0, 2.1), density=True)
    s = torch.linspace(0, 2, 200, dtype=torch.float64)
    picture = Histogram(
        "xavier_spectrum",
        "Singular values of one 1024 × 1024 random matrix",
        "Entries of variance 1/n. The dashed curve is the quarter circle, the Marchenko–Pastur law read for the "
        "singular values. As stated, none would exceed 2/√n = 0.0625.",
        "singular value",
        edges.numpy(),
        density.numpy(),
        (Series("quarter circle", s.numpy(), law.density(s).numpy(), role="theory"),),
        (("edge as stated", 2 / n**0.5), ("edge", 2.0)),
    )
    return Evidence(
        (
            mean_of("mean squared singular value, n = 1024 (the density's is 1/n)", 1 / n, n * a.square()),
            fact("no squared singular value exceeds 4/n", float(sigma[0]) ** 2 <= 4 / n),
        ),
        (
            mean_of("mean squared singular value (the corrected density's is 1)", 1.0, n * a.square()),
            fact(f"the distribution functions differ by at most {far:.4f}, below 0.01", far < 0.01),
        ),
        figures=(picture,),
    )


@CHAPTER.claim(
    "W-2.5g",
    section="2.5",
    statement="The squared singular values of A are its absolute eigenvalues.",
    formula=r"\sigma_i(A)^2 = |\lambda_i(A)|",
    correction="The squared singular values are the eigenvalues of AᵀA. Of A itself, only for symmetric matrices, "
    "the singular values (not squared) are the absolute eigenvalues; in general just their products agree.",
    corrected=r"\sigma_i(A)^2 = \lambda_i(A^T A), \quad A = A^T \Rightarrow \sigma_i = |\lambda_i|, \quad \prod_i "
    r"\sigma_i = \prod_i |\lambda_i| = |\det A|",
    lesson="Eigenvalues say how a matrix scales the vectors that it does not turn; singular values say how it scales "
    "orthogonal directions that it may turn. For a random matrix with entries of variance 1/n the eigenvalues fill a "
    "disc of radius 1 while the singular values reach 2.",
    slip=True,
)
def absolute_eigenvalues(lab: Lab) -> Evidence:
    n = 60
    a = lab.normal(n, n) / n**0.5
    symmetric = (a + a.mT) / 2
    sigma, moduli = torch.linalg.svdvals(a), torch.linalg.eigvals(a).abs().sort(descending=True).values
    of_symmetric = torch.linalg.eigvalsh(symmetric).abs().sort(descending=True).values
    return Evidence(
        (exact("squared singular values against absolute eigenvalues, 60 × 60 (the worst pair)", sigma**2, moduli),),
        (
            exact(
                "squared singular values against eigenvalues of AᵀA", sigma**2, torch.linalg.eigvalsh(a.mT @ a).flip(0)
            ),
            exact(
                "symmetric: singular values against absolute eigenvalues", torch.linalg.svdvals(symmetric), of_symmetric
            ),
            exact("logarithm of the product", float(sigma.log().sum()), float(moduli.log().sum())),
        ),
    )


@CHAPTER.claim(
    "W-2.5h",
    section="2.5",
    statement="The singular values of a symmetric random matrix follow Wigner's semicircle; those of square matrices "
    "that are not symmetric often look similar.",
    formula=r"A = A^T: \quad f(s) = \frac{1}{2\pi n\sigma^2} \sqrt{4n\sigma^2 - s^2}, \quad |s| \leq "
    r"2\sqrt{n}\,\sigma",
    correction="The eigenvalues follow the semicircle. The singular values are their absolute values and follow its "
    "folded half, the quarter circle; those of a square matrix without symmetry follow the very same quarter circle.",
    corrected=r"f(s) = \frac{1}{\pi n\sigma^2} \sqrt{4n\sigma^2 - s^2}, \quad 0 \leq s \leq 2\sqrt{n}\,\sigma",
    lesson="A semicircle is centred at 0, half of it negative, and singular values are never negative. Folding it at "
    "0 gives the quarter circle. That a matrix with and one without symmetry share it is not a resemblance but the "
    "same limit law.",
    slip=True,
)
def semicircle(lab: Lab) -> Evidence:
    n = 400
    a = lab.normal(n, n)
    symmetric = torch.triu(a) + torch.triu(a, 1).mT
    eigenvalues, sigma = torch.linalg.eigvalsh(symmetric), torch.linalg.svdvals(symmetric)
    law = QuarterCircle.of_square_matrix(n, 1.0)
    positive = eigenvalues[eigenvalues > 0]
    law_distances = {
        "the positive eigenvalues, symmetric": distance(law, positive),
        "the negative eigenvalues, sign dropped": distance(law, -eigenvalues[eigenvalues < 0]),
        "the singular values, symmetric": distance(law, sigma),
        "the singular values, not symmetric": distance(law, singular_values(a)),
    }
    below = float((sigma < 0).double().mean())
    return Evidence(
        (Comparison("share of singular values below 0 (half of a semicircle), n = 400", 0.5, below, 0.0),),
        tuple(
            fact(f"{name}: distribution function within {far:.3f} of the quarter circle, below 0.03", far < 0.03)
            for name, far in law_distances.items()
        ),
    )


@CHAPTER.claim(
    "W-2.5i",
    section="2.5",
    statement="For n × m matrices the mean and the largest singular value depend on the aspect ratio; Xavier "
    "initialisation uses the variance 2/(n+m), which is 1/n for a square matrix.",
    formula=r"A_{ij} \sim N(0, \frac{2}{n+m})",
    lesson="With r the shorter over the longer side, Xavier's variance gives squared singular values with the mean "
    "2/(1+r) and the largest 2(1+√r)²/(1+r). So it keeps both between fixed bounds, 1 to 2 and 2 to 4, but it does "
    "not remove the dependence on the shape.",
)
def aspect_ratio(lab: Lab) -> Evidence:
    comparisons = []
    for n, m in ((96, 96), (48, 144), (16, 176)):
        v = 2 / (n + m)
        a = v**0.5 * lab.normal(30, n, m, purpose=f"{n}")
        largest = torch.linalg.matrix_norm(a, ord=2).square()
        centre, scale = centre_and_scale(n, m, v)
        r = n / m
        comparisons += [
            mean_of(f"mean squared singular value, {n} × {m}", 2 / (1 + r), m * a.square()),
            mean_of(f"mean largest squared singular value, {n} × {m}", centre + scale * TRACY_WIDOM_MEAN, largest),
        ]
    comparisons.append(exact("the variance for n = m = 96 is 1/n", 1 / 96, 2 / (96 + 96)))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-2.5j",
    section="2.5",
    statement="The smallest gap between two singular values of an n × n random matrix is in the mean of order σ/n: "
    "proportional to σ and to 1/n.",
    formula=r"E[\min_i (\sigma_i - \sigma_{i+1})] \approx c\,\frac{\sigma}{n}",
    lesson="The n singular values share an interval of length 2√n σ, so a typical gap is about σ/√n. Repulsion makes "
    "a gap that is ε times its typical size have a chance of order ε², so among n gaps the smallest is about 1/√n of "
    "a typical one: together σ/n. Without repulsion it would be σ/n^(3/2). The constant is √π, the mean of a Rayleigh "
    "law, from n = 8 on up to about one percent; for 2 × 2 matrices the mean gap is 41 percent larger.",
)
def smallest_gaps(lab: Lab) -> Evidence:
    sigma, sizes, draws = 0.7, (2, 4, 8, 16, 32, 64), (20_000, 20_000, 8000, 4000, 1500, 400)
    samples = [
        smallest_gap(sigma * torch.linalg.svdvals(lab.normal(count, n, n, purpose=f"{n}")))
        for n, count in zip(sizes, draws, strict=True)
    ]
    means = torch.stack([x.mean() for x in samples])
    errors = torch.stack([x.std() / len(x) ** 0.5 for x in samples])
    n = torch.tensor(sizes, dtype=torch.float64)
    theory = torch.tensor([smallest_gap_mean(k, k, sigma**2) for k in sizes], dtype=torch.float64)
    picture = Curves(
        "smallest_gap",
        "The smallest gap between singular values",
        "Mean over random n × n matrices with entries of standard deviation 0.7, with two standard errors, "
        "beside √π σ/n.",
        "n",
        "mean smallest gap",
        (
            Series("measured", n.numpy(), means.numpy(), (means - 2 * errors).numpy(), (means + 2 * errors).numpy()),
            Series("√π σ/n", n.numpy(), theory.numpy(), role="theory"),
        ),
        log_x=True,
        log_y=True,
    )
    # The power between n = 8 and n = 64, with the errors of both means.
    power = float((means[5] / means[2]).log()) / math.log(8)
    noise = math.hypot(*(float(errors[at] / means[at]) for at in (2, 5))) / math.log(8)
    small = smallest_gap(torch.linalg.svdvals(lab.normal(4000, 16, 16, purpose="other σ")))
    unit = samples[3] / sigma
    return Evidence(
        (
            Comparison("power of n in the mean smallest gap, n = 8 to 64", -1.0, power, noise),
            Comparison("mean gap over σ at σ = 1, beside that at σ = 0.7, n = 16", float(unit.mean()),
                       float(small.mean()), float((small.var() / len(small) + unit.var() / len(unit)).sqrt())),
        ),
        figures=(picture,),
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.5k",
    section="2.5",
    statement="The ordered singular values of a random matrix are almost fixed, the more so the larger it is, so "
    "that the spectra of two matrices of one kind can be interchanged.",
    formula=r"\sigma_i \approx q(1 - \frac{i - 1/2}{n}), \quad q \ \mathrm{the\ quantile\ function\ of\ the\ law}",
    correction="It is so in the limit: the distance between the spectra of two independent matrices falls as 1/n "
    "relative to their size, up to a factor √log n. Independent draws from the same law would fall as 1/√n only.",
    corrected=r"\left(\frac{1}{n} \sum_i (\sigma_i - \sigma_i')^2\right)^{1/2} = O\left(\frac{\sqrt{\log "
    r"n}}{n}\right) \sqrt{n}\,\sigma",
    lesson="Singular values repel one another, so each sits close to its place in the law: it strays by about one "
    "gap, not by the much larger amount of independent draws, which would fall only as 1/√n. What tells two random "
    "matrices apart is their singular vectors.",
)
def fixed_spectrum(lab: Lab) -> Evidence:
    sizes, spectrum_distances = (8, 32, 128), []
    for n, pairs in zip(sizes, (3000, 800, 120), strict=True):
        sigma = torch.linalg.svdvals(lab.normal(2, pairs, n, n, purpose=f"{n}")) / n**0.5
        spectrum_distances.append((sigma[0] - sigma[1]).square().mean(-1).sqrt())
    n = 1024
    sigma = singular_values(lab.normal(n, n, purpose="picture") / n**0.5)
    law = QuarterCircle.of_square_matrix(n, 1 / n)
    place = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    predicted = law.quantile(1 - place)
    index = torch.arange(1, n + 1).double().numpy()
    picture = Curves(
        "ordered_spectrum",
        "The ordered singular values of one 1024 × 1024 random matrix",
        "Entries of variance 1/n. The dashed curve is fixed in advance: the quantiles of the quarter circle. The "
        f"largest distance between both is {float((sigma - predicted).abs().max()):.4f}.",
        "index i",
        "singular value",
        (
            Series("one matrix", index, sigma.numpy()),
            Series("quantiles of the quarter circle", index, predicted.numpy(), role="theory"),
        ),
    )
    # Sorted independent draws from the quarter circle: what the spectra are not.
    loose = [law.quantile(lab.uniform(200, 64, purpose=name)).sort(-1).values for name in ("one", "other")]
    far = (loose[0] - loose[1]).square().mean(-1).sqrt()
    stiff = torch.linalg.svdvals(lab.normal(2, 200, 64, 64, purpose="stiff")) / 8
    near = (stiff[0] - stiff[1]).square().mean(-1).sqrt()
    # The correction states √(log n)/n: the logarithm is divided out, and the power is left.
    means, errors = ([float(value) / math.log(size) ** 0.5 for value, size in zip(values, sizes, strict=True)]
                     for values in ([x.mean() for x in spectrum_distances],
                                    [x.std() / len(x) ** 0.5 for x in spectrum_distances]))  # fmt: skip
    return Evidence(
        (mean_of("root mean square distance of two spectra, n = 8, in units of √n σ", 0.0, spectrum_distances[0]),),
        (
            less_than("distance of two spectra, n = 64, beside half of that of independent draws from the law",
                      float(far.mean()) / 2, float(near.mean()),
                      math.hypot(float(near.std()), float(far.std()) / 2) / 200**0.5),
        ),
        trend=trend_of("distance of two spectra over √log n, in units of √n σ", "n", sizes, means, -1.0, errors),
        figures=(picture,),
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.5l",
    section="2.5",
    statement="The gap between singular values bounds how far singular vectors turn under a small perturbation.",
    formula=r"\sin\theta_i \leq \frac{2 \|E\|}{\min_{j \neq i} |\sigma_i - \sigma_j|}",
    lesson="A perturbation can mix two singular vectors easily when their singular values nearly agree: in the plane "
    "a perturbation ε across a gap δ turns them by half the arc tangent of 2ε/δ. Wedin's theorem makes that a bound "
    "for every matrix. For the smallest singular value the distance to −σᵢ (to 0 when the matrix is not square) "
    "counts as a gap too.",
)
def gaps_protect(lab: Lab) -> Evidence:
    n, size = 6, 0.02
    a, e = lab.normal(2, 3000, n, n)
    e = size * e / torch.linalg.matrix_norm(e, ord=2)[:, None, None]
    (u, d, v), (u_2, _, v_2) = torch.linalg.svd(a), torch.linalg.svd(a + e)
    cosine = ((u * u_2).sum(-2) + (v * v_2).sum(-1)).abs() / 2
    sine = (1 - cosine.square()).clamp_min(0.0).sqrt()
    bound = rotation_bound(d, size, square=True)
    exceeded = int((sine > bound + 1e-7).sum())
    turned = []
    for delta, epsilon in ((0.5, 0.05), (0.05, 0.05)):
        plane = torch.tensor([[1 + delta, epsilon], [epsilon, 1.0]], dtype=torch.float64)
        vector = torch.linalg.svd(plane).U[:, 0]
        angle = math.atan(abs(float(vector[1] / vector[0])))
        name = f"angle turned in the plane, gap {delta}, perturbation {epsilon}"
        turned.append(exact(name, math.atan(2 * epsilon / delta) / 2, angle))
    largest = float((sine / bound)[bound < 1].max())
    return Evidence(
        (
            fact(f"of 18,000 pairs of singular vectors {exceeded} turn beyond the bound", exceeded == 0),
            fact(
                f"the bound is of the right size: where it is below 1, some come to {largest:.2f} of it", largest > 0.2
            ),
            *turned,
        )
    )


@CHAPTER.claim(
    "W-2.5m",
    section="2.5",
    statement="An n × m matrix with n < m has n nonzero eigenvalues, so an m × m part of its n × m right singular "
    "matrix V is ignored.",
    formula=r"V \in R^{n \times m}, \quad \mathrm{ignored:} \ m \times m",
    correction="A matrix that is not square has no eigenvalues; it has n nonzero singular values. V is m × m, the n "
    "right singular vectors that belong to them form its m × n part, and the m × (m − n) part is ignored.",
    corrected=r"V \in R^{m \times m}, \quad \mathrm{used:} \ m \times n, \quad \mathrm{ignored:} \ m \times (m - n)",
    lesson="In A = UDVᵀ the matrix D is n × m with n entries on its diagonal and zeros beside them. The zeros meet m "
    "− n columns of V, the directions that A sends to 0, so any orthonormal basis of them gives the same A.",
    slip=True,
)
def rectangular(lab: Lab) -> Evidence:
    n, m = 3, 5
    a = lab.normal(n, m)
    u, d, v_t = torch.linalg.svd(a, full_matrices=True)
    v = v_t.mT
    other = torch.cat((v[:, :n], v[:, n:] @ torch.linalg.qr(lab.normal(m - n, m - n, purpose="turn")).Q), 1)
    ignored = int((torch.linalg.matrix_norm((a @ v)[:, None, :], dim=(0, 1)) < 1e-9).sum())
    full = torch.zeros(n, m, dtype=torch.float64)
    full[:, :n] = torch.diag(d)
    return Evidence(
        (
            Comparison("rows of V for a 3 × 5 matrix", float(n), float(v.shape[0]), 0.0),
            Comparison("columns of V that are ignored", float(m), float(ignored), 0.0),
        ),
        (
            Comparison("rows of V", float(m), float(v.shape[0]), 0.0),
            Comparison("columns of V that are ignored", float(m - n), float(ignored), 0.0),
            Comparison("nonzero singular values", float(n), float((d > 1e-9).sum()), 0.0),
            exact("A rebuilt with other ignored columns (the worst entry)", a, u @ full @ other.mT),
        ),
    )

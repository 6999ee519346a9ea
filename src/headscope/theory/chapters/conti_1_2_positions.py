"""Conti, sections 1.2 and 1.2.1: scale of embeddings, and sinusoidal positions."""

import math

import numpy as np
import torch

from headscope.attention.call import Call
from headscope.attention.mechanisms.dense import Dense
from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.attention.sinusoidal_positions import frequencies, nearest_pair, shift, similarity, sinusoidal
from headscope.theory.checks import Lab, exact, fact, mean_of
from headscope.theory.works import conti

CHAPTER = conti()


@CHAPTER.claim(
    "C-2i",
    section="1.2",
    statement="The embedded tokens are multiplied by the square root of the width, √512, to keep them in a stable "
    "range.",
    formula=r"\sqrt{d}\; X W^E, \quad d = 512",
    lesson="Rows of an embedding that is drawn with variance 1/d per entry have length 1 whatever the width, and so "
    "entries that shrink as the width grows. The factor √d brings each entry back to mean square 1, the size of the "
    "position code (mean square 1/2) that is added next. It is a matter of balance between word and place, and depends "
    "on that initialisation: with entries of variance 1 the factor would drown the positions.",
)
def embedding_scale(lab: Lab) -> Evidence:
    comparisons = []
    for d in (64, 512):
        rows = lab.normal(40_000 // d * 16, d, purpose=f"{d}") / math.sqrt(d)
        scaled = math.sqrt(d) * rows
        comparisons.append(mean_of(f"mean square of an entry after the factor, d = {d}", 1.0, scaled.square()))
    position = sinusoidal(torch.arange(100, dtype=torch.float64), 512)
    comparisons.append(exact("mean square of an entry of the position code", 0.5, float(position.square().mean())))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "C-2a",
    section="1.2.1",
    statement="Without positional encoding all tokens are presented at once and the order of the sequence is lost.",
    formula=r"\mathrm{Attention}(\Pi X) = \Pi\, \mathrm{Attention}(X)",
    lesson="Attention is a weighted mean over a set: if the tokens are permuted the outputs are permuted in the same "
    "way and nothing else changes, so a token cannot know where it stands. This holds for attention without a mask; a "
    "causal mask treats earlier and later tokens differently and so lets some order in.",
)
def order_is_lost(lab: Lab) -> Evidence:
    n, d = 9, 8
    x = lab.normal(n, d, purpose="x")
    w_q, w_k, w_v = (lab.normal(d, d, purpose=name) for name in "qkv")
    order = torch.randperm(n, generator=lab.generator())

    def attended(tokens: torch.Tensor, right: int | None = None) -> torch.Tensor:
        q, k, v = ((tokens @ w)[None, None] for w in (w_q, w_k, w_v))
        at = torch.arange(n)[None]
        return Dense()(Call(q, k, v, d**-0.5, at, at, right=right)).out[0, 0]

    coded = x + sinusoidal(torch.arange(n, dtype=torch.float64), d)
    moved = x[order] + sinusoidal(torch.arange(n, dtype=torch.float64), d)
    return Evidence(
        (
            exact("output of the permuted text, the permuted output", attended(x)[order], attended(x[order])),
            fact(
                "with positions the permuted text gives other outputs",
                float((attended(coded)[order] - attended(moved)).abs().max()) > 0.01,
            ),
        )
    )


@CHAPTER.claim(
    "C-2b",
    section="1.2.1",
    statement="The sine and cosine of a position can be written as one complex exponential with the angle t/ω.",
    formula=r"f(t)^{(i)} = e^{i t / \omega_k}",
    correction="The angle is ω t, as in the definition with sines and cosines, not t/ω. (The letter i also stands for "
    "two things there.)",
    corrected=r"f(t)^{(k)} = e^{\mathrm{i}\, \omega_k t} = \cos(\omega_k t) + \mathrm{i} \sin(\omega_k t)",
    lesson="ω is a frequency: it multiplies time. Dividing by it turns the slowest circle into the fastest. Only for "
    "the first pair, where ω = 1, do both forms agree.",
    slip=True,
)
def complex_form(lab: Lab) -> Evidence:
    del lab
    d, t = 8, torch.tensor([1.0, 5.0, 40.0], dtype=torch.float64)
    omega = frequencies(d)
    code = sinusoidal(t, d)
    stated, corrected = (torch.exp(1j * angle) for angle in (t[:, None] / omega[None, :], t[:, None] * omega[None, :]))
    name = "real and imaginary part beside cosine and sine, d = 8"
    measured = torch.stack([code[:, 1::2], code[:, 0::2]])
    return Evidence(
        stated=(exact(name, torch.stack([stated.real, stated.imag]), measured),),
        corrected=(exact(name, torch.stack([corrected.real, corrected.imag]), measured),),
    )


@CHAPTER.claim(
    "C-2c",
    section="1.2.1",
    statement="For a fixed offset s each entry of position t+s is a constant times the same entry of position t plus "
    "another constant.",
    formula=r"\sin(\omega_k (t+s)) = a \sin(\omega_k t) + b, \quad \cos(\omega_k (t+s)) = a' \cos(\omega_k t) + b'",
    correction="What stands in b is not a constant: it is sin(ωs) times the cosine of t, the partner entry. Sine and "
    "cosine mix.",
    corrected=r"\sin(\omega_k (t+s)) = a \sin(\omega_k t) + b \cos(\omega_k t), \quad a = \cos \omega_k s,\ "
    r"b = \sin \omega_k s",
    lesson="A shift in time turns the point (sin, cos) on its circle, and a rotation needs both coordinates. No "
    "constants a and b do it with the sine alone: the best straight line leaves a residual. This is the reason for "
    "having sines and cosines in pairs.",
    slip=True,
)
def one_entry_is_not_enough(lab: Lab) -> Evidence:
    del lab
    omega, s = float(frequencies(8)[1]), 3.0
    t = torch.arange(200, dtype=torch.float64)
    shifted = torch.sin(omega * (t + s))
    line = torch.stack([torch.sin(omega * t), torch.ones_like(t)], -1)
    pair = torch.stack([torch.sin(omega * t), torch.cos(omega * t)], -1)

    def residual(basis: torch.Tensor) -> float:
        fitted = basis @ torch.linalg.lstsq(basis, shifted[:, None]).solution.round(decimals=12)
        return float((fitted[:, 0] - shifted).abs().max())

    a, b = torch.linalg.lstsq(pair, shifted[:, None]).solution[:, 0].round(decimals=12).tolist()
    name = "largest residual of the best constants a, b over 200 positions"
    return Evidence(
        stated=(Comparison(name, 0.0, residual(line), 1e-9),),
        corrected=(
            Comparison(f"{name}, with the cosine", 0.0, residual(pair), 1e-9),
            exact("a = cos ωs", math.cos(omega * s), a),
            exact("b = sin ωs", math.sin(omega * s), b),
        ),
    )


@CHAPTER.claim(
    "C-2d",
    section="1.2.1",
    statement="For a fixed offset s the encoding of position t+s is a linear function of the encoding of position t.",
    formula=r"f(t+s) = M_s\, f(t)",
    lesson="The matrix turns each pair (sin, cos) by the angle ω s. It depends on the offset and not on the position, "
    "so one linear map finds the token s places away wherever it is applied; it even preserves lengths.",
)
def shift_is_linear(lab: Lab) -> Evidence:
    d, s, base = 16, 7.0, 100.0
    t = 1000 * lab.uniform(100)
    # The map is fitted on some positions, not assumed, and tried on others.
    encodings, shifted_encodings = sinusoidal(t, d, base), sinusoidal(t + s, d, base)
    fitted = torch.linalg.lstsq(encodings[:60], shifted_encodings[:60]).solution.round(decimals=9)
    return Evidence(
        (
            exact(
                "f(t+7) at 40 new positions, by a map fitted elsewhere",
                shifted_encodings[60:],
                encodings[60:] @ fitted,
                scale=100.0,
            ),
            exact("f(t+7) by the block rotation", shifted_encodings, encodings @ shift(s, d, base)),
        )
    )


@CHAPTER.claim(
    "C-2e",
    section="1.2.1",
    statement="The encoding of a fixed position t is the vector of d sines with d frequencies.",
    formula=r"(\sin(\omega_1 t), \ldots, \sin(\omega_d t))",
    correction="There are d/2 frequencies, numbered from 0, and each gives a sine and a cosine.",
    corrected=r"(\sin(\omega_0 t), \cos(\omega_0 t), \ldots, \sin(\omega_{d/2-1} t), \cos(\omega_{d/2-1} t))",
    lesson="The definition (1) of the text has pairs: entries 2k and 2k+1 share the frequency ω of index k. With sines "
    "alone a shift would not be linear, and all codes would not have the same length: position 0 would be the zero "
    "vector.",
    slip=True,
)
def pairs_not_sines(lab: Lab) -> Evidence:
    del lab
    d, t = 8, 5.0
    defined = [
        math.sin(t * 10_000 ** (-i / d)) if i % 2 == 0 else math.cos(t * 10_000 ** (-(i - 1) / d)) for i in range(d)
    ]
    code = torch.tensor(defined, dtype=torch.float64)
    sines = torch.sin(t * 10_000.0 ** (-2 * torch.arange(1, d + 1, dtype=torch.float64) / d))
    zero = torch.zeros(1, dtype=torch.float64)
    return Evidence(
        stated=(exact("the encoding of t = 5 after definition (1), d = 8", sines, code),),
        corrected=(
            exact("the encoding of t = 5 after definition (1), d = 8", sinusoidal(torch.tensor(t), d), code),
            exact("its squared length at t = 0", d / 2, float(sinusoidal(zero, d).square().sum())),
        ),
    )


@CHAPTER.claim(
    "C-2f",
    section="1.2.1",
    statement="Different positions are given different vectors.",
    formula=r"t \neq t' \Rightarrow f(t) \neq f(t')",
    lesson="The first frequency is 1, so the first pair repeats only after 2π positions, and no difference of "
    "integers is a multiple of the irrational 2π. So all integer positions differ, for every width and every base. "
    "How much they differ is another matter: with one pair alone, positions 0 and 710 are 0.00006 apart; many "
    "frequencies keep them well apart.",
)
def positions_differ(lab: Lab) -> Evidence:
    del lab
    comparisons = []
    for d, base in ((512, 10_000.0), (16, 100.0), (2, 10_000.0)):
        _, gap = nearest_pair(4096, d, base)
        comparisons.append(fact(f"least distance of 4096 positions, d = {d}, N = {base:g}: {gap:.2g} > 0", gap > 1e-9))
    offset, gap = nearest_pair(4096, 2)
    comparisons.append(exact("d = 2: the nearest pair is 710 apart", 710.0, float(offset)))
    angle = 710 - 113 * 2 * math.pi
    comparisons.append(exact("and its distance is 2 sin((710 − 226π)/2)", 2 * math.sin(angle / 2), gap, scale=1e3))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "C-2g",
    section="1.2.1",
    statement="The base N is free, but should be significantly larger than the biggest index k, which is d/2 − 1.",
    formula=r"N \gg d/2 - 1",
    correction="N and k are not comparable: k counts frequencies. What N fixes is the longest wavelength, which must "
    "exceed twice the length n of the text if the slowest pair is to order the positions. Positions are distinct for "
    "every N.",
    corrected=r"2 \pi N^{1 - 2/d} \geq 2 n",
    lesson="N larger than k is neither needed nor enough. Width 512 with N = 16 keeps 4096 positions well apart, "
    "though k reaches 255; width 16 with N = 1000, far above k = 7, has its slowest wave repeat within the same "
    "text, and width 2 has positions that nearly coincide for any N.",
)
def base_and_length(lab: Lab) -> Evidence:
    del lab
    n = 4096
    positions = torch.arange(n, dtype=torch.float64)

    def orders(d: int, base: float) -> bool:
        slowest = sinusoidal(positions, d, base)[:, -1]
        return bool((slowest.diff() < 0).all())

    wide, narrow = nearest_pair(n, 512, 16.0)[1], nearest_pair(n, 2, 10_000.0)[1]
    cases = ((16, 1000.0), (16, 3000.0), (512, 1000.0), (512, 1400.0), (64, 10_000.0))
    predicted = [2 * math.pi * base ** (1 - 2 / d) >= 2 * n for d, base in cases]
    s = np.arange(0, n, 8, dtype=np.float64)
    curves = tuple(
        Series(f"d = {d}, N = {base:g}", s, (similarity(torch.from_numpy(s), d, base) / (d / 2)).numpy())
        for d, base in ((512, 10_000.0), (512, 16.0), (16, 1000.0))
    )
    return Evidence(
        stated=(
            fact(f"N = 10000, d = 2 (gap {narrow:.2g}) keeps positions farther apart than N = 16, d = 512 ({wide:.2g})",
                 narrow > wide),
            fact("N = 1000 > k = 7: the slowest wave orders 4096 positions", orders(16, 1000.0)),
        ),
        corrected=tuple(
            fact(f"d = {d}, N = {base:g}: ordered by the slowest wave exactly if the rule says so",
                 orders(d, base) == rule)
            for (d, base), rule in zip(cases, predicted, strict=True)
        ),
        figures=(
            Curves(
                "similarity", "How alike two positions look",
                "Inner product of two encodings over its value at offset 0. With a width of 512 even N = 16, far below "
                "k = 255, lets no far position look alike; a width of 16 does not help with N = 1000.",
                "offset in tokens", "similarity", curves,
            ),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "C-2h",
    section="1.2.1",
    statement="The encoding carries the relative position of tokens: shifts act on it as linear maps.",
    formula=r"f(t) \cdot f(t+s) = \sum_k \cos(\omega_k s)",
    lesson="The inner product of two encodings depends on their offset alone, since a common shift is a rotation of "
    "both. Two cautions: the cosine is even, so this product does not tell before from after, and attention compares "
    "positions through learned matrices, after which the absolute position counts again.",
)
def relative_position(lab: Lab) -> Evidence:
    d = 64
    t = torch.floor(2000 * lab.uniform(30))
    comparisons = []
    for s in (1, 10, 300):
        inner = (sinusoidal(t, d) * sinusoidal(t + s, d)).sum(-1)
        predicted = sum(math.cos(s * 10_000 ** (-2 * k / d)) for k in range(d // 2))
        comparisons.append(exact(f"inner product at offset {s}, 30 places", predicted, inner))
    far = torch.arange(0, 200, dtype=torch.float64)
    at = [(sinusoidal(far + start, d) @ sinusoidal(torch.tensor(float(start)), d)).numpy() for start in (0, 500)]
    figure = Curves(
        "offset", "Position codes see the offset",
        "Inner product of the codes of two positions, from two starting points, and the sum of cosines.",
        "offset in tokens", "inner product",
        (
            Series("from position 0", far.numpy(), at[0]),
            Series("from position 500", far.numpy(), at[1]),
            Series("sum of cosines", far.numpy(), similarity(far, d).numpy(), role="theory"),
        ),
    )  # fmt: skip
    return Evidence(tuple(comparisons), figures=(figure,))

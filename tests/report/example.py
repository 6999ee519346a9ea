"""A Run as a real one looks: 30 layers × 9 heads, two good findings, one failed, one not applicable, and a
model, a text and a token whose names attack the page."""

import numpy as np
import polars as pl

from headscope.core import (
    About,
    Curves,
    Finding,
    HeadCurve,
    Headline,
    HeadPatterns,
    HeadQuantity,
    HeatMap,
    Histogram,
    ModelSpec,
    Run,
    Series,
    Site,
    SitePatterns,
    TextSpec,
)

LAYERS, HEADS, D_MODEL = 30, 9, 576
HOSTILE = "</script><img src=x onerror=alert(1)>"
LABELS = tuple(f"L{i}" for i in range(LAYERS)), tuple(f"H{i}" for i in range(HEADS))


def example_run() -> Run:
    """The whole run."""
    findings = (_spectra(), _focus(), _not_applicable(), _failed())
    return Run(
        model=_model(),
        sites=tuple(Site("only", "self", i, HEADS, 3, 64, 64, causal=True) for i in range(LAYERS)),
        findings={finding.lens: finding for finding in findings},
        text=TextSpec(f"plain-english {HOSTILE}", "b7" * 32, 18_233, 4_096, 8, 512),
        versions={"headscope": "0.1.0", "numpy": "2.1.0", "polars": "1.2.0", "torch": "2.13.0+cpu"},
        seed=0,
    )


def _model() -> ModelSpec:
    return ModelSpec(
        name=f"SmolLM2-135M {HOSTILE}", source="carrier:smollm2", family="llama",
        architecture="LlamaForCausalLM", kind="decoder-only", n_layers=LAYERS, n_heads=HEADS, n_kv_heads=3,
        d_model=D_MODEL, d_head=64, vocabulary=49_152, context=8192, n_parameters=134_515_008,
        dtype="float32", positions="rotary", dequantised="Q8_0", sha256="3f" * 32, licence="Apache-2.0",
        notes=("The word embedding is tied.",),
    )  # fmt: skip


def marchenko_pastur(x: np.ndarray, ratio: float) -> np.ndarray:
    """Density of the singular values of a Gaussian n × m matrix, entries of variance 1/m, ratio n/m ≤ 1."""
    low, high = 1 - np.sqrt(ratio), 1 + np.sqrt(ratio)
    inside = np.clip((high**2 - x**2) * (x**2 - low**2), 0, None)
    return np.sqrt(inside) / (np.pi * ratio * np.maximum(x, 1e-9))


def _spectra() -> Finding:
    rng = np.random.default_rng(1)
    ranks = 20 + 25 * rng.random((LAYERS, HEADS)) + np.linspace(0, 12, LAYERS)[:, None]
    sigma = np.sort(rng.lognormal(0, 0.45, (LAYERS, D_MODEL)), axis=1)[:, ::-1] * np.linspace(1, 1.6, LAYERS)[:, None]
    grid = np.linspace(0.4, 1.62, 160)
    index = np.arange(1.0, D_MODEL + 1)
    gaussian = np.sort(np.linalg.svd(rng.normal(size=(576, 192)) / 24, compute_uv=False))[::-1]
    density, edges = np.histogram(np.append(sigma[3] * 0.8, [3.6, 4.1]), bins=60, range=(0, 4.5), density=True)
    figures = (
        HeatMap("stable-rank", "Stable rank of W_QK by head", "Bright heads use many directions.",
                ranks, *LABELS, unit="stable rank"),
        HeatMap("top-share", "Share of the largest singular value, against the Gaussian null",
                "Red: more concentrated than a Gaussian matrix of the same shape.",
                rng.gamma(2, 0.05, (LAYERS, HEADS)), *LABELS, unit="share", reference=0.048),
        Curves("by-layer", "Singular values of W_Q, by layer",
               "One curve per layer; dotted: a Gaussian matrix of the same shape and variance.",
               "index", "σ",
               (*(Series(f"L{i}", index, sigma[i]) for i in range(LAYERS)),
                Series("Gaussian null", np.arange(1.0, 193), gaussian, role="null")), log_y=True),
        Histogram("law", "Singular values of W_Q in layer 3, with the Marchenko–Pastur law",
                  "Mass beyond σ₊ is structure that chance does not explain.", "σ / (s·√m)", edges, density,
                  laws=(Series("Marchenko–Pastur", grid, marchenko_pastur(grid, 1 / 3), role="theory"),),
                  marks=(("σ₋", 0.423), ("σ₊", 1.577), ("largest σ", 4.1))),
    )  # fmt: skip
    return Finding(
        "spectra", _about_spectra(), tables={"heads": _spectra_table(ranks, rng), "layers": _layers(sigma)},
        figures=figures,
        headlines=(Headline("41 of 270 heads have a W_QK of stable rank below 10; the Gaussian null has none.",
                            "41 of 270 heads have a stable rank below 10.", 0.15),
                   Headline("In layer 29 the largest singular value of W_Q is 4.1 times the Marchenko–Pastur edge.",
                            "W_Q of layer 29 reaches 4.1 times the edge.", 0.76)),
        method="Exact: singular values from the eigenvalues of the smaller Gram matrix, in float64.",
        warnings=("Rotary positions: W_QK is the form at distance 0.",
                  _model().weight_warning),
        params={"projections": "qkvo", "bins": 60},
        quantities=(HeadQuantity("stable_rank", "W_QK: stable rank", "heads", "stable_rank",
                                 null="stable_rank_null", unit="directions", notable="low"),),
        curves=(HeadCurve("spectrum", "singular values of W_QK", "index", "σ", _labels(), index[:4],
                          np.tile(sigma[:, :4], (HEADS, 1)), gaussian[None, :4], "random matrices"),),
    )  # fmt: skip


def _labels() -> tuple[str, ...]:
    return tuple(f"L{layer}.H{head}" for layer in range(LAYERS) for head in range(HEADS))


def _patterns() -> HeadPatterns:
    """Maps on 80 tokens, some of whose spellings attack the page; layer 29 has none."""
    rng = np.random.default_rng(3)
    tokens = (f" {HOSTILE}", "\n", " the", "", " \u202emirrored", "</span>", *(f" word{i}" for i in range(74)))
    levels = np.tril(rng.integers(0, 256, (HEADS, 80, 80), dtype=np.uint8))
    return HeadPatterns(
        (tokens,),
        tuple(SitePatterns("only", "self", layer, True, levels, np.full(HEADS, 0.9)) for layer in range(LAYERS - 1)),
    )


def _spectra_table(ranks: np.ndarray, rng: np.random.Generator) -> pl.DataFrame:
    n = LAYERS * HEADS
    return pl.DataFrame(
        {
            **_places(),
            "stable_rank": ranks.ravel(),
            "stable_rank_null": np.full(n, 24.71),
            "largest": rng.gamma(9, 0.5, n),
            "p_value": 10 ** -rng.uniform(0, 12, n),
            "status": ["exact"] * n,
        }
    )


def _layers(sigma: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "stack": ["only"] * LAYERS, "kind": ["self"] * LAYERS, "layer": np.arange(LAYERS),
            "head": pl.Series([None] * LAYERS, dtype=pl.Int64), "matrix": ["W_Q"] * LAYERS,
            "mean_square": (sigma**2).mean(axis=1), "edge": np.full(LAYERS, 1.577),
        }
    )  # fmt: skip


def _focus() -> Finding:
    rng = np.random.default_rng(2)
    entropy = np.clip(5.5 - rng.gamma(2, 0.9, (LAYERS, HEADS)), 0.05, None)
    entropy[4, 2] = np.nan
    sink = np.clip(rng.beta(0.6, 0.8, (LAYERS, HEADS)), 0, 1)
    layers = np.arange(LAYERS, dtype=float)
    mean = np.nanmean(entropy, axis=1)
    figures = (
        HeatMap("entropy", "Row entropy by head", "Dark heads look at few tokens; empty: not measured.",
                entropy, *LABELS, unit="nats"),
        HeatMap("first-token", "Mass on the first token", "Grey is what uniform attention would give.",
                sink, *LABELS, unit="mass", reference=0.0132, limits=(0.0, 1.0)),
        Curves("entropy-over-layers", "Row entropy over layers",
               "Mean over heads; the band is the 95 % interval.", "layer", "entropy (nats)",
               (Series("measured", layers, mean, mean - 0.3, mean + 0.3),
                Series("uniform attention", layers, np.full(LAYERS, 5.24), role="null"))),
        HeatMap("broken", "A figure that cannot be drawn", "Its shapes disagree.",
                np.zeros((2, 3)), ("L0",), ("H0",)),
    )  # fmt: skip
    table = pl.DataFrame(
        {
            **_places(), "entropy_nats": entropy.ravel(), "entropy_uniform": np.full(entropy.size, 5.24),
            "first_token": sink.ravel(), "distance": rng.gamma(2, 20, entropy.size),
            "top_token": [HOSTILE, "=1+1", 'a "quoted", one', "の"] + [" the"] * (entropy.size - 4),
        }
    )  # fmt: skip
    return Finding(
        "focus", _about_focus(), tables={"heads": table}, figures=figures,
        headlines=(Headline("141 of 270 heads put more than half of their mass on the first token; uniform attention "
                            "would put 0.013 there.", "141 of 270 heads look at the first token.", 0.52),
                   Headline(f"The token most attended to by L0.H0 is `{HOSTILE}`.", f"L0.H0 attends to `{HOSTILE}`.")),
        method="Sampled: 4096 tokens in 8 windows of 512; intervals by bootstrap over windows.",
        quantities=(
            HeadQuantity("entropy", f"row entropy {HOSTILE}", "heads", "entropy_nats", null="entropy_uniform",
                         unit="nats", notable="both", lowest="sharpest", highest="flattest"),
            HeadQuantity("first", "mass on the first token", "heads", "first_token", unit="share",
                         highest=f"most {HOSTILE}", habit="look mostly at the first token"),
            HeadQuantity("gone", "a column that is not there", "heads", "gone"),
        ),
        patterns=_patterns(),
    )  # fmt: skip


def _places() -> dict[str, object]:
    n = LAYERS * HEADS
    return {"stack": ["only"] * n, "kind": ["self"] * n, "layer": np.repeat(np.arange(LAYERS), HEADS),
            "head": np.tile(np.arange(HEADS), LAYERS)}  # fmt: skip


def _not_applicable() -> Finding:
    about = About("Alignment", "Which source word does a target word read?", "The cross-attention map.", (), "", "")
    return Finding("alignment", about, status="not applicable", reason="a decoder-only model has no cross-attention")


def _failed() -> Finding:
    about = About("Induction", "Which heads copy what followed last time?", r"The mass $A_{q,k+1}$.",
                  (r"\frac{1}{n}\sum_q A_{q,\,k(q)+1}", r"\notatexcommand{x}"), "",
                  "Olsson et al. (2022)")  # fmt: skip
    return Finding("induction", about, status="failed", reason=f"NumericsError: layer 3: token {HOSTILE}: entropy −0.2")


def _about_spectra() -> About:
    return About(
        title="Spectra",
        question="Do the projections of attention look like random matrices, and where do they not?",
        definition=(
            r"The singular values $\sigma_1 \geq \sigma_2 \geq \dots$ of each projection, and of the two "
            r"bilinear forms of each head, $W_{QK} = w_q w_k^T$ and $W_{OV} = w_v w_o$, beside those of a "
            "Gaussian matrix of the same shape and variance.\n\n"
            "Stable rank counts the directions that carry the energy."
        ),
        formulas=(
            r"r_{\mathrm{stable}} = \frac{\sum_i \sigma_i^2}{\sigma_1^2}",
            r"\rho(\sigma) = \frac{\sqrt{(\sigma_+^2 - \sigma^2)(\sigma^2 - \sigma_-^2)}}"
            r"{\pi\,\gamma\,\sigma}, \qquad \sigma_\pm = 1 \pm \sqrt{\gamma}",
        ),
        reading="A value far above the null edge is structure that training put there. `L3.H7` is head 7.",
        reference="Marchenko and Pastur (1967), Math. USSR Sb. 1, 457. https://doi.org/10.1070/SM1967v001n04",
        columns={
            "stable_rank": "sum of squared singular values over the largest one squared",
            "stable_rank_null": "the same for a Gaussian matrix of that shape",
            "largest": "largest singular value, in units of the null edge",
            "p_value": "chance that the null reaches this value",
        },
    )


def _about_focus() -> About:
    return About(
        title="Focus",
        question="How many tokens does a head look at, and how far away are they?",
        definition=r"The entropy of the rows, $0 \leq H_q \leq \ln n$, and the mass on the first token.",
        formulas=(r"H_q = -\sum_k A_{qk} \ln A_{qk}",),
        reading="Low entropy: the head picks. Entropy near the dotted line: it averages.",
        reference="Wertich, thesis, section 4.2.",
        columns={"entropy_nats": "mean row entropy", "entropy_uniform": "the same for uniform attention"},
    )

"""Wertich's thesis: figures, tables, theorems, questions, and its web page."""

from headscope.theory.index.item import Item, Step, numbered, steps
from headscope.theory.index.published import (
    INITIAL_SPECTRUM,
    PLOT,
    TRACES,
    TRAINED_SPECTRUM,
    traces_comparison,
    trained_spectrum_comparison,
)

_NAME = "wertich"
_ANT = ("Ant", 3)
_WORDS = ("Ant", "Bee", "Fox", "Raven", "Tarantula")


def _study(word: str, shots: int, more: str = "") -> str:
    return f"study fewshot MODEL --category animals --word {word} --shots {shots}{more}"


def _clues(words: int) -> str:
    return f"study fewshot MODEL --category animals --clues {words} --table clues"


def _maps(number: int, section: str, title: str, word: str, shots: int) -> tuple[str, ...]:
    return f"A.{number}", section, title, _study(word, shots), "lens maps MODEL"


_ALL_LAYERS = [
    _maps(first + 1, "A.2", f"Attention maps for “Ant”, 3 shots, layers {4 * first + 1} to {4 * first + 4}", *_ANT)
    for first in range(8)
]
_OTHER_WORDS = [
    _maps(9 + 5 * later + i, section, f"Attention maps for “{word}”, {shots} shots", word, shots)
    for later, (section, shots) in enumerate((("A.3", 3), ("A.4", 5)))
    for i, word in enumerate(_WORDS)
]

FIGURES = (
    Item(
        _NAME, "fig.2.1", "figure", "2.3", "The original transformer",
        reason="a drawing taken from another work; it shows no data",
    ),
    *numbered(
        _NAME,
        "figure",
        "fig",
        [
            ("2.2", "2.3", "Block of a LLaMA or Mistral model", "look MODEL", "W-7.1g"),
            ("2.3", "2.4", "Attention layer, from tokens to outputs", "mechanisms dense", "W-2.4a W-2.4b"),
            ("2.4", "2.5", "Singular values of a square matrix with entries of variance 1/n", "W-2.5f W-2.5e W-2.5h"),
            ("5.1", "5.2.4", "Divergence along the arc between orthogonal unit vectors", "W-5.2n", "lens angles MODEL"),
            ("8.1", "8.1", "Grouped queries", "look MODEL", "W-8.1b"),
            ("8.2", "8.1", "Block of Mistral 7B", "look MODEL", "W-8.1a W-7.1g"),
            ("8.3", "8.1", "A clue from three examples", _study(*_ANT)),
            ("8.4", "8.2", "Attention maps for “Ant”, 3 shots, between tokens", _study(*_ANT), "lens maps MODEL",
             "W-8.2a W-8.2c"),
            ("8.5", "8.2", "Attention maps for “Ant”, 3 shots, between words", _study(*_ANT), "lens maps MODEL",
             "W-8.2b W-8.2d"),
            ("8.6", "8.3", "Cosines of embeddings beside attention maps, layers 1 to 3", "lens angles MODEL", "W-8.3"),
            ("8.7", "8.4", "Attention maps of a randomly initialised model", _study(*_ANT),
             "intervene MODEL --randomise init", "W-8.4"),
            ("8.8", "8.5", "Attention maps with the spectra of W_q and W_k doubled", _study(*_ANT, " --alpha 2"),
             "intervene MODEL --scale 2", "W-8.5a W-8.5b W-8.5c"),
            ("8.9", "8.5", "Attention maps with the spectra of W_q and W_k halved", _study(*_ANT, " --alpha 0.5"),
             "intervene MODEL --scale 0.5", "W-8.5a W-8.5b W-8.5c"),
            *_ALL_LAYERS,
            *_OTHER_WORDS,
        ],
    ),
    Item(
        _NAME, "fig.A.19", "figure", "A.5", "Squared singular values of weights as initialised",
        steps("lens spectra random:MODEL", "claims W-7.2j"),
        figures=("histogram_q_l0", "spectrum_k", "largest_square", "largest"), published=INITIAL_SPECTRUM, read=PLOT,
    ),
    Item(
        _NAME, "fig.A.20", "figure", "A.5", "Squared singular values of the trained W_q, W_k and W_v",
        steps("lens spectra MODEL", "claims W-7.2e"),
        figures=("mean_square", "largest_square", "largest", "spectrum_q", "spectrum_k", "spectrum_v"),
        published=TRAINED_SPECTRUM, read=PLOT, comparison=trained_spectrum_comparison,
    ),
    Item(
        _NAME, "fig.A.21", "figure", "A.5", "Squared singular values of the trained feed-forward matrices",
        (Step.of("lens spectra MODEL", mentions="feed-forward"), Step.of("claims W-7.2i")),
        figures=("feed_forward_mean_square", "feed_forward_largest_square"),
    ),
    Item(
        _NAME, "fig.A.22", "figure", "A.5", "Base alignment: the trace of W_q and W_k by layer",
        steps("lens alignment MODEL", "claims W-7.2h"),
        figures=("trace_by_layer", "trace_share"), published=TRACES, read=PLOT, comparison=traces_comparison,
    ),
    Item(
        _NAME, "fig.page", "figure", "page", "The picture on the page that presents the thesis",
        reason="the page holds a link to a picture and does not say what it shows",
    ),
)  # fmt: skip

TABLES = (
    *numbered(
        _NAME,
        "table",
        "tab",
        (
            ("8.1", "8.1", "Generated clues for ten animals, 3 shots", _clues(10), "W-8.1c"),
            ("A.1", "A.1", "Generated clues for thirty animals, 3 shots", _clues(30), "W-8.1c"),
            ("A.2", "A.1", "Generated clues for thirty animals, 5 shots", _clues(30), "W-8.1c"),
            ("A.3", "A.1", "Generated clues for thirty animals, 8 shots", _clues(30), "W-8.1c"),
        ),
    ),
    Item(
        _NAME, "tab.C.1", "table", "C.2", "Programs with which the thesis was written",
        reason="it tells how the text was written; there is nothing to measure",
    ),
)  # fmt: skip

THEOREMS = numbered(
    _NAME,
    "theorem",
    "statement",
    (
        ("conjecture", "5.2.4", "Conjecture: the cross-entropy along the arc is a cosine", "W-5.2m",
         "lens angles MODEL"),
        ("corollary", "5.2.4", "Corollary: so is the divergence", "W-5.2n W-5.2n2 W-5.2o W-5.2p", "lens angles MODEL"),
        ("theorem", "7.2.1", "Theorem (after Wang et al.): attention acts like a matrix of rank log n",
         "W-7.2a W-7.2c W-7.2d", "lens lowrank MODEL"),
        ("hypothesis", "7.2.3", "Hypothesis: without skips all tokens come to have one distribution",
         "W-7.3b W-7.3a W-7.3d", "lens uniformity MODEL"),
    ),
)  # fmt: skip

QUESTIONS = (
    *numbered(
        _NAME,
        "question",
        "q",
        (
            ("1.1.components", "1.1", "Do the statistics of data and weights together explain patterns of attention?",
             "lens dependence MODEL", "lens scores MODEL", "report MODEL"),
            ("1.1.softmax", "1.1", "How are angles of vectors and distances of their softmaxes related?",
             "W-5.2f W-5.2m W-5.2q", "lens angles MODEL"),
            ("1.1.random", "1.1", "Why does what was learned look random from outside?", "lens spectra MODEL",
             "lens alignment MODEL"),
            ("1.1.mixture", "1.1", "What does a model make of linear combinations of distributions?",
             "lens transport MODEL", "W-7.1d W-7.1e"),
            ("4.1.2", "4.1.2", "How is the distribution of a sequence of tokens best modelled?", "lens gaussian MODEL",
             "W-4.1"),
            ("4.2.2", "4.2.2", "What becomes of entropy, divergence and information under linear maps?",
             "W-4.2d W-4.2e W-4.2g"),
            ("5.3.2", "5.3.2", "How far from linear is exponentiation for scores of this size?",
             "W-5.3g W-5.3h W-5.3m", "lens scores MODEL"),
            ("6.2.1", "6.2.1", "What does the trace of the form say about the two bases?", "W-6.10 W-6.10b",
             "lens alignment MODEL"),
            ("6.2.3", "6.2.3", "How do random matrices change mean and variance of a score?", "W-6.17 W-6.47",
             "lens scores random:MODEL"),
            ("6.2.4", "6.2.4", "Do tokens score higher with themselves and with tokens that they depend on?",
             "W-6.24a W-6.24b W-6.24c", "lens dependence MODEL"),
            ("6.3.2", "6.3.2", "Does the angle between two tokens survive in their score?", "W-6.48 W-6.48b",
             "lens angles MODEL"),
            ("6.4", "6.4", "Are the scores normally distributed?", "W-6.4a W-6.4b", "lens scores MODEL"),
            ("7.2", "7.2", "How can a transformer tell tokens apart after flat mixing?", "lens uniformity MODEL",
             "lens focus MODEL", "W-7.3e"),
            ("7.2.3.spectra", "7.2.3", "How do the largest singular values decide whether tokens grow alike?",
             "lens uniformity MODEL", "W-7.3b"),
            ("7.2.3.skip", "7.2.3", "Do tokens still grow alike with skip connections?", "W-7.3d",
             "lens uniformity MODEL"),
            ("8.shots", "8.1", "Do more examples make better clues?", _study(*_ANT), "W-8.1c"),
            ("8.patterns", "8.2", "How do the maps change with depth, and do they follow language?", _study(*_ANT),
             "lens maps MODEL", "lens focus MODEL"),
            ("8.angles", "8.3", "Do cosines of embeddings tell where attention goes?", "lens angles MODEL", "W-8.3"),
            ("8.random", "8.4", "Is attention of a random model uniform?", "W-8.4", "lens focus random:MODEL"),
            ("8.scale", "8.5", "What do attention and text become when the spectra are scaled?",
             "intervene MODEL --scale 0.25 --scale 0.5 --scale 2 --scale 4", "W-8.5a W-8.5b W-8.5c"),
            ("9.2.output", "8.1", "Do maps change when heads are weighted by W_o instead of averaged?",
             "lens maps MODEL"),
            ("9.2.gaussian", "9.2", "How far are the streams of a real model from Gaussian?", "lens gaussian MODEL"),
            ("9.3.lognormal", "9.3", "How do statistics of the form and log-normal weights meet?", "lens scores MODEL"),
            ("9.3.geometry", "9.3", "How are entropy, Jensen distance and information related to angles?", "W-5.2o",
             "lens angles MODEL"),
            ("9.3.attention", "9.3", "What becomes of divergence and information after an attention pass?",
             "lens transport MODEL", "W-7.1f"),
            ("9.3.exchange", "9.3", "How does a model organise mixed components, and what do they exchange?",
             "lens transport MODEL"),
            ("9.3.uniform", "9.3", "Does the mixture become uniform, and does low rank decide it?",
             "lens uniformity MODEL", "lens lowrank MODEL"),
            ("page", "page", "Is attention a combiner of distributions that follows their dependence?", "P-1",
             "lens dependence MODEL"),
        ),
    ),
    Item(
        _NAME, "q.9.3.spectra", "question", "9.3", "What geometric meaning has the distribution of singular values?",
        reason="the thesis names no quantity that would answer it",
    ),
)  # fmt: skip

SECTIONS = {
    "2.1": ("Principal components, ellipsoids and singular values", ()),
    "2.2": ("Entropy, divergence and information of Gaussians", ()),
    "2.3": ("Embeddings, positions, normalisation and heads", ("lens embeddings MODEL",)),
    "2.4": ("Scores, softmax and the mixing of values", ("lens focus MODEL",)),
    "2.5": ("Spectra of random matrices", ("lens spectra MODEL",)),
    "3.3": ("Kernels, Linformer and the collapse of tokens in earlier work", ("lens uniformity MODEL",)),
    "4.2": ("Marginals, and information against distance", ("lens gaussian MODEL",)),
    "4.2.2": ("Information theory of mapped Gaussians", ()),
    "4.2.3": ("Conditioning on the last token", ("lens preconditioning MODEL",)),
    "4.3.1": ("Spectrum of the Gaussian of a few possible tokens", ("lens preconditioning MODEL",)),
    "4.3.2": ("Angles between tokens and diverging singular values", ("lens embeddings MODEL",)),
    "5.1": ("Moments of log-normal variables", ()),
    "5.1.2": ("Exponentiation of scores", ()),
    "5.1.3": ("Normalisation of the exponentials", ("lens scores MODEL",)),
    "5.2.1": ("Gradient of softmax with cross-entropy", ()),
    "5.2.2": ("Spheres, sums of vectors and distributions", ()),
    "5.2.3": ("Interpolation on spheres, and scaling of scores", ()),
    "5.3.1": ("Ratios of attention weights on a sphere of radius l", ()),
    "5.3.2": ("Exponentials of sums", ()),
    "6.2.5": ("Degrees of freedom of a singular value decomposition", ()),
    "6.3.3": ("Upper bounds of a score, and positions added to embeddings", ("lens scores MODEL",)),
    "6.4": ("Normality of the score", ("lens scores MODEL",)),
    "7.1.1": ("Attention as a mixture of tokens", ("lens transport MODEL",)),
    "7.1.3": ("Mixtures through a whole block", ("lens transport MODEL",)),
    "7.2.2": ("Trained spectra against random ones", ("lens spectra MODEL", "lens alignment MODEL")),
    "9.1": ("Conclusions on spheres and traces", ()),
}

"""Conti's notes and the readme of his repository: the items of both."""

from headscope.theory.index.item import Item, numbered, steps
from headscope.theory.index.published import BAND_DISTANCES, BAND_READ

_NAME = "conti"
_DIAGRAM = "a drawing of an architecture; it shows no data"

FIGURES = (
    Item(
        _NAME, "fig.1", "figure", "1.1.1", "Attention between the states of an encoder and a decoder",
        steps("claims C-1g"),
    ),
    Item(_NAME, "fig.2", "figure", "1.2", "The transformer", reason=f"{_DIAGRAM}, and is taken from another work"),
    *numbered(
        _NAME,
        "figure",
        "fig",
        (
            ("3", "1.2.2", "Embeddings, queries and keys", "C-3a C-3b", "mechanisms dense"),
            ("4", "1.2.2", "Heads side by side", "C-3c", "look MODEL"),
            ("5", "1.2.4", "A stack of six encoders", "look MODEL", "C-4b"),
            ("6", "1.2.5", "How attention weights are computed, with a mask", "C-5a C-5b",
             "mechanisms --draw dense --causal"),
            ("7", "2.1.1", "Random, window and global attention, and BigBird", "mechanisms --draw bigbird"),
            ("8", "2.1.1", "The same as graphs", "mechanisms --draw bigbird", "C-7a C-7c"),
            ("9", "2.1.1", "Patterns of Longformer", "mechanisms --draw longformer", "C-7d"),
            ("10", "2.1.3", "Spectrum of attention maps on two tasks", "lens lowrank MODEL", "C-9f"),
        ),
    ),
    Item(
        _NAME, "fig.chapter3", "figure", "3", "Two spaces that pull an ambiguous word apart (without a number)",
        reason="an illustration with invented points; it shows no data",
    ),
)  # fmt: skip

TABLES = numbered(_NAME, "table", "tab", (("1", "2", "Sizes of six language models", "C-6a", "C-6c"),))

FORMULAS = (
    *numbered(
        _NAME,
        "formula",
        "eq",
        (
            ("1", "1.2.1", "Sines and cosines of the position", "C-2b C-2c C-2d C-2e C-2f C-2g C-2h"),
            ("2", "1.2.2", "Queries, keys and values cut into heads", "C-3a C-3b"),
            ("3", "1.2.2", "Attention", "mechanisms dense", "C-7b"),
            ("4", "1.2.2", "Attention weights", "lens focus MODEL", "C-3i"),
            ("5", "1.2.2", "Heads side by side times W^O", "C-3c"),
            ("6", "1.2.3", "Softmax", "C-3d C-3e C-3g"),
            ("7", "1.2.3", "Points at which the Jacobian of the softmax vanishes", "C-3f"),
            ("8", "1.2.3", "Attention, to be understood", "C-3h C-3i", "lens scores MODEL"),
            ("9", "1.2.5", "Attention with a mask", "C-5a C-5b", "mechanisms --draw dense --causal"),
            ("10", "2.1.1", "Attention on a graph", "mechanisms graph", "C-7b"),
            ("11", "2.1.2", "One row of softmax attention", "C-8a"),
            ("12", "2.1.2", "One row with any similarity", "C-8a"),
            ("13", "2.1.2", "A kernel as an inner product of features", "C-8f"),
            ("14", "2.1.2", "Attention with features", "C-8b C-8c", "mechanisms linear"),
            ("15", "2.1.3", "A matrix of low rank acts like the attention map", "C-9c", "lens lowrank MODEL"),
            ("16", "2.1.3", "A head with projected keys and values", "C-9e", "mechanisms linformer"),
            ("17", "3", "Attention as pooling", "C-10b", "mechanisms pooling"),
        ),
    ),
    *numbered(
        _NAME,
        "formula",
        "readme",
        (
            ("1", "readme, Contents", "Attention weights", "lens focus MODEL"),
            ("2", "readme, Contents", "Attention as a structured matrix plus an error", "R-1", "R-6",
             "mechanisms band_sparse", "lens structure MODEL"),
            ("3", "readme, Contents", "The set of band plus sparse matrices", "R-2", "mechanisms band_sparse"),
            ("4", "readme, Contents", "The sum of absolute entries as a norm", "R-3 R-4"),
        ),
    ),
)  # fmt: skip

THEOREMS = numbered(
    _NAME,
    "theorem",
    "statement",
    (
        ("definition.1", "2.1.2", "Definition 1: Hilbert spaces with continuous evaluation", "C-8d"),
        ("definition.2", "2.1.2", "Definition 2: reproducing kernels", "C-8e"),
        ("theorem.2.1", "2.1.2", "Theorem 2.1: kernels and such spaces correspond", "C-8f"),
        ("lemma.2.1", "2.1.3", "Lemma 2.1: Johnson and Lindenstrauss", "C-9d"),
    ),
)

QUESTIONS = (
    *numbered(
        _NAME,
        "question",
        "q",
        (
            ("1", "3.1", "Can a good pooling function be designed?", "mechanisms pooling", "C-10a C-10b C-10c"),
            ("2", "3.1", "Can a more expressive pooling function make up for fewer heads?", "study translation",
             "prune MODEL", "C-10e"),
            ("3", "3.1", "What does it cost to give the matrices a shape, e.g. low rank?", "intervene MODEL --rank 8",
             "intervene MODEL --keep diagonal,25% --tie qk --matrices qkv", "swap MODEL"),
            ("4", "3.1", "Why do cheaper mechanisms not improve quality?", "bench attention", "swap MODEL"),
            ("5", "3.1", "Can left ideals of matrices keep the structure that the softmax loses?", "C-10c C-10d"),
            ("readme.roles", "readme, Contents", "Do the parameters w and num-pos tell about the language?",
             "study translation", "R-8", "lens structure MODEL"),
        ),
    ),
    Item(
        _NAME, "q.readme.validation", "question", "readme, Contents",
        "How well does the new formula approximate attention maps?",
        steps("study translation", "claims R-8", "mechanisms band_sparse", "lens structure MODEL"),
        published=BAND_DISTANCES, read=BAND_READ,
    ),
)  # fmt: skip

SECTIONS = {
    "1": ("Words as vectors", ()),
    "1.1": ("Probabilities of sequences, loss and search", ()),
    "1.2": ("Scaled embeddings", ()),
    "1.2.1": ("Why positions are needed", ()),
    "1.2.4": ("Normalisation, skip connection and feed-forward layer", ()),
    "1.2.5": ("Cross-attention and the choice of the next word", ()),
    "2.1": ("Cost of full attention", ("bench attention",)),
    "2.1.1": ("Costs of sparse attention", ("bench attention",)),
    "2.1.2": ("The exponential to first order", ()),
    "2.1.3": ("Cost and rank of the softmax", ()),
    "Contents": ("Linear cost of three kinds of attention (readme)", ("bench attention",)),
}

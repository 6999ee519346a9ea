"""Bukatin's talk: the slides with a formula or a statement that can be judged.

Slides are numbered from the title on.
"""

from headscope.theory.index.item import Item, numbered

_NAME = "bukatin"

SLIDES = (
    *numbered(
        _NAME,
        "formula",
        "slide",
        (
            ("4", "Tokenization", "Size of the vocabulary of GPT-2", "B-1"),
            ("5", "Autoregressive decoder-only model", "Predictions after every prefix, their loss, and sampling",
             "B-2 B-3"),
            ("6", "Text as a matrix", "Layers add to the residual stream", "B-4", "lens gaussian MODEL"),
            ("8", "Main ideas", "Heads as independent products from both sides", "B-5 B-6 B-7 B-8 B-9",
             "lens spectra MODEL", "lens circuits MODEL", "lens composition MODEL"),
            ("16", "in-context learning 2", "Linear attention and associativity", "B-16 B-17 B-18",
             "mechanisms linear"),
            ("17", "in-context learning 3", "Attention as regularised least squares", "B-19 B-20 B-21 B-22",
             "mechanisms intention"),
        ),
    ),
    *numbered(
        _NAME,
        "statement",
        "slide",
        (
            ("10", "more on induction heads", "Two layers that continue a repeated pattern", "B-10", "lens roles MODEL",
             "why MODEL"),
            ("11", "more on low-rank motifs", "Fine-tuning with matrices of low rank", "B-11 B-12"),
            ("12", "interplay of Transformers and autoencoders 1", "Features as combinations of neurons", "B-13"),
            ("14", "grokking and phase transitions", "Grokking is solved", "B-27"),
            ("15", "in-context learning 1", "Attention as a large step of gradient descent", "B-14 B-15"),
            ("18", "in-context learning 4", "Early layers set up a task that later ones solve", "study linear-systems",
             "B-23"),
            ("19", "in-context learning 5", "Learning in context in small models", "B-24"),
            ("20", "autoregressive models as simulators 1", "Models as simulators", "B-27"),
            ("21", "autoregressive models as simulators 2", "Runs as simulations", "B-27"),
            ("22", "Mixture-of-Experts and Transformers", "Experts as a sparse mask, computed on each run", "B-25"),
            ("23", "Impressions from base-GPT-4", "What a base model is like", "B-27"),
            ("24", "state of advanced fine-tuning", "Large models are harder to fine-tune", "B-27"),
            ("25", "misc", "Blocks without skip connections, and white-box transformers", "B-27"),
        ),
    ),
    *numbered(
        _NAME,
        "question",
        "q",
        (
            ("heads", "more on low-rank motifs", "What do very many very narrow heads do?", "B-26"),
            ("attention", "in-context learning 5", "Can a least-squares solver stand in for an attention layer?",
             "swap MODEL", "mechanisms intention", "B-23"),
        ),
    ),
    Item(
        _NAME, "q.tokens", "question", "Tokenization", "Is a tokenisation wanted that is friendlier to linguists?",
        reason="a matter of choice: the talk names nothing by which it could be decided",
    ),
)  # fmt: skip

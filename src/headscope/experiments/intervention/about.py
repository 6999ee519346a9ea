"""What an intervention asks, how its numbers are defined, and how to read them."""

from headscope.core import About

ABOUT = About(
    title="Interventions",
    question="What becomes of the model when its attention weights are changed?",
    definition=(
        "A matrix is the projection W_Q, W_K, W_V or W_O of the chosen heads of a layer, heads side by side, with $W "
        "= U D V^\\top$ (V on the side of the input). scale α multiplies every singular value by α. rank R keeps the "
        "R largest. remove spikes sets those to 0 that lie above the edge of the Marchenko–Pastur law fitted to the "
        "bulk by its median; remove bulk sets all others to 0. randomise init draws the matrix from the model's own "
        "initialisation, v and u replace V or U by a Haar-random one, permute puts all entries in a random order. "
        "Biases are not touched.\n\n"
        "The control of scale and randomise is W plus a matrix with exactly the singular values of the change, and so "
        "with its Frobenius norm, along Haar-random directions on both sides. The control of rank and remove sets as "
        "many singular values to 0, of directions drawn at random among those of W. Each change has several controls "
        "of its own, which share no directions with each other or with those of other changes. The table has their "
        "mean (of perplexities the geometric one), the least and the most.\n\n"
        "Perplexity is that of non-overlapping windows; KL is that of the next-token distribution from the "
        "original's. A map has moved by half the sum of the absolute differences of a row: the share of its mass that "
        "lies elsewhere.\n\n"
        "A text is judged when it has as many tokens as the column needed says: so many that its mean surprise is "
        "known to half the gap between ordinary and shuffled text (95 %, from the spread of both per token), and at "
        "least eight. It counts as noise when its surprise to the original model is nearer to that of shuffled than of "
        "ordinary text, as a loop when more than half of its tokens repeat a run of four that stood in it before, as "
        "broken language when it surprises more than ordinary text, and else as language; it repeats the prompt when "
        "more than a quarter of its tokens, and more than in the original's text, lie in a run of four from the "
        "prompt."
    ),
    formulas=(
        r"\mathrm{ratio} = \exp \left( \frac{1}{N} \sum_t \left[ \ln p(x_t) - \ln p'(x_t) \right] \right), \qquad "
        r"\mathrm{KL} = \frac{1}{N} \sum_t \sum_x p_t(x) \ln \frac{p_t(x)}{p'_t(x)}",
        r"\mathrm{moved} = \frac{1}{2} \sum_j |p_{ij} - p'_{ij}|, \qquad "
        r"(\alpha W_Q)(\alpha W_K)^\top = \alpha^2\, W_Q W_K^\top",
    ),
    reading=(
        "Read a change beside its control: where both cost the same, the model minds the size of the change and not "
        "its direction. A ratio whose interval holds 1 is no measurable loss on this text. Scaling W_Q and W_K by α "
        "multiplies every score by α² and acts as an inverse temperature: it cannot change which key comes first in "
        "the layer where it is applied, only in later ones, which read other inputs. Maps of deep layers differ for "
        "both reasons."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 8.4 and 8.5 (randomised weights, spectra scaled by α). Spikes: Gavish and "
        "Donoho (2014), IEEE Trans. Inf. Theory 60, 5040."
    ),
    columns={
        "change": "what was done to the matrices",
        "which": "original, change, or control (see the definition)",
        "perplexity": "of the text in windows; perplexity_low and perplexity_high are its 95 % interval over windows",
        "ratio, ratio_low, ratio_high": "perplexity over the original's, paired token by token, with its 95 % interval",
        "kl": "KL of the next-token distribution from the original's, nats per token; kl_low, kl_high its interval",
        "cosine, cosine_low, cosine_high": "cosine of a sentence's embedding (mean of the last states) with the "
        "original's, and its 95 % interval over sentences",
        "found": "share of sentences whose nearest original embedding is their own",
        "moved": "share of the mass of a row of attention that moved; in effects: mean over the changed heads",
        "entropy_share": "entropy of a row over that of uniform attention; in effects: mean over the changed heads",
        "keys": "keys that effectively share a row, 1/Σp²",
        "self": "mass on the token itself; self_uniform: for uniform attention",
        "first": "mass on the first token; first_uniform: for uniform attention",
        "distance": "mean |i − j| in tokens",
        "size": "Frobenius norm of the change over that of the changed matrices",
        "is_changed": "whether the head reads a changed matrix",
        "matrix, heads": "which projection, and of which heads (W_K, W_V: key/value heads)",
        "norm, change_norm": "Frobenius norm of the matrix before, and of the change",
        "kept": "singular directions of the matrix that stayed; 0 where a random matrix was added",
        "draws": "controls that were drawn",
        "ratio_least, ratio_most": "of the draws of a control; so for perplexity, kl and cosine",
        "low, high": "in the table of heads: ends of the 95 % interval of each quantity, over windows",
        "needed": "tokens that the texts from all prompts together need to be judged",
        "text, tokens": "what was written from the prompt, greedily (↵ is a new line), and how long it is",
        "surprise": "nats per token of this text to the original model, given the prompt",
        "ordinary, shuffled": "nats per token of the measured text to the original model, as it is and with its "
        "tokens shuffled: what language and noise look like",
        "copied, repeated": "share of the tokens in a run of four that stands in the prompt, or stood in the text "
        "before",
        "stack, kind, layer, head": "where the head is",
    },
)

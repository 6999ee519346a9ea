r"""The next token of one row: the most probable one, or a random one.

Definition:
    Sampling with temperature T gives token v the weight $e^{z_v / T}$. Tokens in the order of their weight, ties in
    the order of their numbers, are $v_1, v_2, …$. Those after the first k have no chance. Of those left, with
    probabilities $p_1 \ge p_2 \ge …$ that sum to 1, $v_i$ has a chance if $p_1 + … + p_{i-1} < P$. The chances of the
    rest are $p_i$ over their sum.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.decoding.searches import Greedy, Sampling

Logits = Float[Tensor, "rows vocabulary"]


def definition(logits: Float[Tensor, " vocabulary"], sampling: Sampling) -> list[float]:
    """The chances of all tokens of one row, in float64."""
    weights = torch.exp(logits.double() / sampling.temperature - (logits.double() / sampling.temperature).max())
    order = sorted(range(len(weights)), key=lambda token: (-float(weights[token]), token))[: sampling.top_k]
    total = sum(float(weights[token]) for token in order)
    chances, before = [0.0] * len(weights), 0.0
    for token in order:
        probability = float(weights[token]) / total
        chances[token] = probability if before < sampling.top_p else 0.0
        before += probability
    return [chance / sum(chances) for chance in chances]


def chances(logits: Logits, sampling: Sampling) -> tuple[Float[Tensor, "rows tokens"], Int[Tensor, "rows tokens"]]:
    """The tokens that may be drawn, the most probable first, and their chances.

    Properties:
        - they are those of the definition  (tested: test_chances_are_those_of_the_definition)
    """
    scaled = logits.double() / sampling.temperature
    if sampling.top_k is None:
        ordered, tokens = scaled.sort(dim=-1, descending=True, stable=True)
    else:
        ordered, tokens = scaled.topk(min(sampling.top_k, scaled.shape[-1]), dim=-1)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.where(before < sampling.top_p, 0.0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens


def next_tokens(logits: Logits, search: Greedy | Sampling, lots: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The next token of every row; `lots` are random numbers between 0 and 1.

    Properties:
        - a lot draws each token as often as its chance says  (tested: test_lots_draw_by_chance)
    """
    if isinstance(search, Greedy):
        return logits.argmax(dim=-1)
    probabilities, tokens = chances(logits, search)
    reached = probabilities.cumsum(dim=-1)
    # The sum may miss 1 by a rounding: the last token with a chance is the last that can be drawn.
    last = (probabilities > 0).sum(dim=-1) - 1
    place = torch.minimum((reached <= lots[:, None]).sum(dim=-1), last).clamp(min=0)  # −1 where nothing is finite
    return tokens.gather(1, place[:, None])[:, 0]

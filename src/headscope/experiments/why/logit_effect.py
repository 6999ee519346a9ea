r"""What a head gives to the logit of the token that it attends to, directly and through all that follows.

Direct: what the head writes at the query, through the final norm at the scale of the text and the output matrix,
$\left(g_f \odot w_i / \sigma_i\right) \cdot (U_t - \bar U)$; the mean over all tokens is taken away, since a softmax
ignores it. Total: the same logit of the model minus that of the model without the head.
"""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from headscope.errors import CaptureError
from headscope.experiments.why.causal_checks import copied_logit
from headscope.experiments.why.score_terms import ScoreTerms
from headscope.experiments.why.target_pairs import TargetPairs
from headscope.model.model import Model
from headscope.model.session.written_stream import WrittenStream


@dataclass(frozen=True)
class LogitEffect:
    """Means over the queries, in logits.

    `direct` is on the token at the key, `on_other_tokens` on those at the other keys; `logit` is what the model gives
    to the token at the key, `ablated` the same without the head.
    """

    direct: float
    on_other_tokens: float
    logit: float
    ablated: float


def logit_effect(
    model: Model, tokens: Int[Tensor, " tokens"], terms: ScoreTerms, pairs: TargetPairs, stream: WrittenStream
) -> LogitEffect | None:
    """The effect of the head on the logit of the token at the key; None for a model without logits."""
    try:
        reader = stream.reader("logits")
    except CaptureError:
        return None
    if reader.matrix is None or terms.label not in stream.writers:
        return None
    written = stream[terms.label][0, pairs.queries].double()
    if reader.sight is not None:
        written = reader.sight.norm.linear(written, reader.sight.scale[0, pairs.queries].double())
    directions = reader.matrix[:, tokens] - reader.matrix.mean(-1, keepdim=True)
    effects = (written @ directions.double()).cpu()
    model_logit = copied_logit(_answer(model, tokens, None), tokens, pairs)
    ablated = copied_logit(_answer(model, tokens, terms.label), tokens, pairs)
    if model_logit is None or ablated is None:
        return None
    return LogitEffect(float(pairs.at_keys(effects).mean()), pairs.mean_of_others(effects), model_logit, ablated)


def _answer(model: Model, tokens: Int[Tensor, " tokens"], without: str | None) -> object:
    with model.session() as session:
        if without is not None:
            session.ablate(without)
        answer: object = session.run(tokens)
    return answer

r"""Predicts how important each head is from gradients, without switching anything off.

gradient   $|\sum_i z_i \cdot \partial L / \partial z_i|$ with z_i what the head gives at position i and L the nats per
           token of the text: to first order what the loss would change if the head gave zero. The first order averages
           to almost nothing, so the absolute value of each window is taken.
curvature  the divergence to second order, as a search of cheaper mechanisms predicts it (`swap/head_damage.py`), for a
           change from z to zero.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.experiments.swap.yardstick import drawn_log_likelihood, predicted_divergence
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.progress import Step

TASK = "following gradients, window"


def gradient_scores(
    model: Model, windows: Sequence[Tokens], seed: int, step: Step
) -> dict[str, Float[Tensor, "windows heads"]]:
    """Both predictions of every head on every window, in nats per token.

    Properties:
        - the first order is that of a difference quotient  (tested: test_the_gradient_is_a_difference_quotient)
        - the second orders heads as measured KL does  (tested: test_gradients_predict_the_divergence)
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for index, tokens in enumerate(windows):
        step(TASK, index, len(windows))
        rows.append(_of_window(model, tokens, generator))
    step(TASK, len(windows), len(windows))
    gradient, curvature = torch.stack(rows, 1)
    return {"gradient": gradient, "curvature": curvature}


def _of_window(model: Model, tokens: Tokens, generator: torch.Generator) -> Float[Tensor, "2 heads"]:
    with model.session() as session:
        outputs = session.capture("z", gradient=True)
        log_p = torch.log_softmax(session.run(tokens[None]).logits[0].float(), -1)
        loss = -log_p[:-1].gather(1, tokens[1:, None].to(log_p.device)).mean()
        of_loss = outputs.gradients(loss)["z"]
        of_draw = outputs.gradients(drawn_log_likelihood(log_p, generator))["z"]
        z_by_site = outputs.take()["z"]
    sites = model.sites
    with torch.no_grad():
        gradient = [_first_order(z_by_site[site], of_loss[site]) for site in sites]
        curvature = [predicted_divergence(z_by_site[site], of_draw[site]).cpu() for site in sites]
        return torch.stack([torch.cat(gradient), torch.cat(curvature)])


def _first_order(z: Tensor, gradient: Tensor) -> Float[Tensor, " heads"]:
    return (z.cpu().double() * gradient.cpu().double()).sum((-2, -1))[0].abs()

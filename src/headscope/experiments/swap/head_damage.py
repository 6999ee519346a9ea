r"""Predicts what a mechanism costs on one head: the nats that the model's predictions would move.

Definition:
    Let z_i be what the head gives at position i, Δz_i its change, and g_i the gradient of $\sum_t \ln p(y_t)$ by z_i,
    where each y_t is drawn from the model's own prediction. To second order the predictions move by
    $\mathrm{KL} \approx \frac{1}{2n} E_y (\sum_i g_i \cdot \Delta z_i)^2$ per token. Positions are taken as
    independent:
    $$\text{damage} = \frac{1}{2|L|} \sum_{i \in L} (g_i \cdot \Delta z_i)^2 ,$$ L the last quarter of the positions: in
    a longer text most queries have as much behind them as these, and a window hides as much from them.
    It is the local error of the head's output, weighted by how much the model minds it.
How:
    One backward per window gives g for every head; Δz comes from the head's own queries, keys and values. Heads are
    changed one at a time, so damages of several heads need not add up: the search measures.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanisms.dense import Dense
from headscope.core import Site
from headscope.experiments.swap.candidates import Candidate
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.progress import Step

TASK = "predicting the damage of each head, window"
LATE = 4  # the last of so many parts of a window says what a mechanism costs
_DENSE = Dense()
Damages = dict[Site, Float[Tensor, "candidates heads"]]


def head_damages(
    model: Model, windows: Sequence[Tokens], candidates: dict[Site, tuple[Candidate, ...]], seed: int, step: Step
) -> Damages:
    """The predicted damage of every candidate on every head, in nats per token, as a mean over windows."""
    generator = torch.Generator().manual_seed(seed)
    sums: Damages = {}
    for index, tokens in enumerate(windows):
        step(TASK, index, len(windows))
        for site, damages in _of_window(model, tokens, candidates, generator).items():
            sums[site] = sums.get(site, torch.zeros_like(damages)) + damages / len(windows)
    step(TASK, len(windows), len(windows))
    return sums


def _of_window(
    model: Model, tokens: Tokens, candidates: dict[Site, tuple[Candidate, ...]], generator: torch.Generator
) -> Damages:
    with model.session() as session:
        inputs = session.capture("q", "k", "v", "scale")
        outputs = session.capture("z", gradient=True)
        logits = session.run(tokens[None]).logits[0]
        log_p = torch.log_softmax(logits.float(), -1)
        gradients = outputs.gradients(drawn_log_likelihood(log_p, generator))["z"]
        captured = inputs.take()
    with torch.no_grad():
        return {
            site: torch.stack(
                [damage(call_of(site, captured), candidate.mechanism, gradients[site]) for candidate in site_candidates]
            ).cpu()
            for site, site_candidates in candidates.items()
            if site_candidates
        }


def drawn_log_likelihood(log_p: Float[Tensor, "tokens vocabulary"], generator: torch.Generator) -> Tensor:
    """The sum of ln p(y_t), each y_t drawn from the prediction itself."""
    labels = torch.multinomial(log_p.detach().exp().cpu(), 1, generator=generator).to(log_p.device)
    return log_p.gather(1, labels).sum()


def call_of(site: Site, captured: dict[str, dict[Site, Tensor]]) -> Call:
    """The attention call of a site without padding, from what was captured of it."""
    q, k, v = (captured[letter][site] for letter in "qkv")
    positions = torch.arange(q.shape[2], device=q.device)[None]
    right = 0 if site.causal else None
    return Call(q, k, v, float(captured["scale"][site]), positions, positions, right=right)


def damage(
    call: Call, mechanism: Mechanism, gradient: Float[Tensor, "1 heads queries d_value"]
) -> Float[Tensor, " heads"]:
    """The damage of one mechanism on every head of a call.

    Properties:
        - zero for a mechanism that sees every key  (tested: test_no_damage_without_change)
        - near the measured KL of swapping one head  (tested: test_damage_predicts_the_divergence)
    """
    change = mechanism(call).out - _DENSE(call).out
    n: int = call.q.shape[2]
    late = slice(n - n // LATE, n)
    return predicted_divergence(change[:, :, late], gradient[:, :, late])


def predicted_divergence(
    change: Float[Tensor, "1 heads positions d_value"], gradient: Float[Tensor, "1 heads positions d_value"]
) -> Float[Tensor, " heads"]:
    """The nats per token that a change of what each head gives moves the predictions, positions independent.

    Properties:
        - near the measured KL of switching one head off  (tested: test_gradients_predict_the_divergence)
    """
    per_position = (change.double() * gradient.double()).sum(-1)
    return per_position.square().mean(-1)[0] / 2

r"""Predicts what a mechanism costs on one head: how far the model would move.

Definition:
    Let z_i be what the head gives at position i, Δz_i its change, and g_i the gradient by z_i of a random number that
    the yardstick takes from the model's answer. The damage is a mean of squares of $g_i \cdot \Delta z_i$, to second
    order what the yardstick loses: `yardstick` has the formulas. It is the local error of the head's output, weighted
    by how much the model minds it.
How:
    One backward per window and probe gives g for every head; Δz comes from the head's own queries, keys and values.
    Heads are changed one at a time, so damages of several heads need not add up: the search measures.
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
from headscope.experiments.swap.yardstick import HeadOutputs, Yardstick
from headscope.experiments.text_sample import Tokens
from headscope.model.freed_memory import return_freed_memory
from headscope.model.model import Model
from headscope.progress import Step

TASK = "predicting the damage of each head, window"
_DENSE = Dense()
Candidates = dict[Site, tuple[Candidate, ...]]
Damages = dict[Site, Float[Tensor, "candidates heads"]]
Gradients = list[dict[Site, Tensor]]


def head_damages(
    model: Model, windows: Sequence[Tokens], candidates: Candidates, yardstick: Yardstick, seed: int, step: Step
) -> Damages:
    """The predicted damage of every candidate on every head, as a mean over windows."""
    generator = torch.Generator().manual_seed(seed)
    sums: Damages = {}
    for index, tokens in enumerate(windows):
        step(TASK, index, len(windows))
        captured, gradients = _calls_and_gradients(model, tokens, yardstick, generator)
        with torch.no_grad():
            for site, site_candidates in candidates.items():
                if site_candidates:
                    call = call_of(site, captured)
                    of_probes = [probe[site] for probe in gradients]
                    rows = [damage(call, candidate.mechanism, of_probes, yardstick) for candidate in site_candidates]
                    sums[site] = sums.get(site, 0.0) + torch.stack(rows).cpu() / len(windows)
    step(TASK, len(windows), len(windows))
    return_freed_memory()
    return sums


def _calls_and_gradients(
    model: Model, tokens: Tokens, yardstick: Yardstick, generator: torch.Generator
) -> tuple[dict[str, dict[Site, Tensor]], Gradients]:
    """Queries, keys and values of a window, and the gradients of each probe by what every head gives."""
    gradients: Gradients = []
    for _ in range(yardstick.probes):
        with model.session() as session:
            inputs = session.capture("q", "k", "v", "scale")
            outputs = session.capture("z", gradient=True)
            answer = session.run(tokens[None], head=yardstick.has_head)
            gradients.append(outputs.gradients(yardstick.scalar(answer, generator))["z"])
            captured = inputs.take()
    return captured, gradients


def call_of(site: Site, captured: dict[str, dict[Site, Tensor]]) -> Call:
    """The attention call of a site without padding, from what was captured of it."""
    q, k, v = (captured[letter][site] for letter in "qkv")
    positions = torch.arange(q.shape[2], device=q.device)[None]
    right = 0 if site.causal else None
    return Call(q, k, v, float(captured["scale"][site]), positions, positions, right=right)


def damage(
    call: Call, mechanism: Mechanism, gradients: Sequence[HeadOutputs], yardstick: Yardstick
) -> Float[Tensor, " heads"]:
    """The damage of one mechanism on every head of a call, as a mean over probes.

    Properties:
        - zero for a mechanism that sees every key  (tested: test_no_damage_without_change)
        - near the measured KL of swapping one head  (tested: test_damage_predicts_the_divergence)
    """
    change = mechanism(call).out - _DENSE(call).out
    return torch.stack([yardstick.damage(change, gradient) for gradient in gradients]).mean(0)

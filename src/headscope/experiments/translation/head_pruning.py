"""Which heads a translator can do without: each head alone, then more and more of them together.

A head that is off gives zero. Its importance is what the loss on pairs of the split `valid` rises by when it alone is
off. The curve switches heads off on judged pairs, the least important first, and random heads for comparison.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.corpora.parallel.pairs import PairPart
from headscope.experiments.prune.ablation import Outputs, switched_off
from headscope.experiments.prune.curve import RANDOM, Curves, Pruner, original_nats
from headscope.experiments.translation.pair_material import Material, drawn_part
from headscope.experiments.translation.pair_text import PairText
from headscope.maths.resampling.clustered_mean import Estimate, clustered_mean
from headscope.model.model import Model
from headscope.progress import Step

TASK = "switching off single heads"
IMPORTANCE = "importance"
VALIDATED, JUDGED = 128, 256  # pairs at most
DRAWS = 3
Head = tuple[Site, int]


@dataclass(frozen=True)
class HeadPruning:
    """The importance of every head, and the quality with more and more heads off."""

    heads: Sequence[Head]
    importance: Sequence[Estimate]
    curves: Curves


def head_pruning(model: Model, material: Material, seed: int, step: Step) -> HeadPruning:
    """Switch heads off alone and together.

    Properties:
        - a head that gives zero anyway has no importance  (tested: test_a_dead_head_of_a_translator)
        - with all heads off every order ends alike  (tested: test_pruning_curves_of_a_translator)
    """
    parts = (drawn_part(material.valid, VALIDATED, seed), drawn_part(material.judged, JUDGED, seed))
    valid, judged = (_text(part, material) for part in parts)
    heads = [(site, head) for site in model.sites for head in range(site.n_heads)]
    zeros = _zeros(model)
    importance = _importance(model, valid, heads, zeros, step)
    order = sorted(range(len(heads)), key=lambda number: importance[number].mean)
    pruner = Pruner(model, judged, heads, zeros, original_nats(model, judged, step), step)
    curves = {IMPORTANCE: pruner.curve(IMPORTANCE, order), RANDOM: pruner.random(DRAWS, seed)}
    return HeadPruning(heads, importance, curves)


def _text(part: PairPart, material: Material) -> PairText:
    sources, targets = (
        [encoding.ids for encoding in material.tokenizer.encode_batch(list(side))]
        for side in (part.sources, part.targets)
    )
    return PairText(sources, targets, part.groups)


def _zeros(model: Model) -> Outputs:
    return {site: torch.zeros(site.n_heads, site.d_value, dtype=torch.float64) for site in model.sites}


def _importance(model: Model, text: PairText, heads: Sequence[Head], zeros: Outputs, step: Step) -> list[Estimate]:
    original: Float[Tensor, " groups"] = text.nats(model)
    estimates = []
    for number, (site, head) in enumerate(heads):
        step(TASK, number, len(heads))
        with switched_off(model, {site: [head]}, zeros):
            estimates.append(clustered_mean(text.nats(model) - original, text.tokens))
    step(TASK, len(heads), len(heads))
    return estimates

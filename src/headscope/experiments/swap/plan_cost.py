"""What a plan should cost: pairs of queries and keys, and operations of a whole forward."""

from collections.abc import Sequence

import torch

from headscope.attention.mechanism_spelling import spelled
from headscope.core import Site
from headscope.experiments.swap.candidates import computed_pairs, full_pairs
from headscope.model.model import Model
from headscope.model.plans.plan import Plan


def plan_pairs(plan: Plan, sites: Sequence[Site], n: int) -> float:
    """The pairs of queries and keys that all heads compute at n tokens."""
    return sum(pairs for _, pairs in _site_pairs(plan, sites, n))


def forward_flops(model: Model, plan: Plan, n: int) -> float:
    """The operations of a forward of n tokens: two for each weight of a matrix and token, 4 d_head for each pair.

    Matrices are the weights with two axes, without tables that are looked up and without the output head, which
    generation asks for one token. Of a mixture of experts all experts count.

    Properties:
        - those that torch counts for a dense model  (tested: test_flops_are_those_that_torch_counts)
    """
    tables = {id(module.weight) for module in model.hf.modules() if isinstance(module, torch.nn.Embedding)}
    weights: int = sum(w.numel() for w in model.hf.base_model.parameters() if w.ndim == 2 and id(w) not in tables)
    return 2.0 * n * weights + sum(4.0 * site.d_head * pairs for site, pairs in _site_pairs(plan, model.sites, n))


def _site_pairs(plan: Plan, sites: Sequence[Site], n: int) -> list[tuple[Site, float]]:
    replaced = dict.fromkeys(sites, 0)
    pairs = dict.fromkeys(sites, 0.0)
    known: dict[tuple[str, bool, int], float] = {}
    for spelling, heads_by_site in plan.heads(tuple(sites)).items():
        for site, heads in heads_by_site.items():
            alike = (spelling, site.causal, site.d_head)
            if alike not in known:
                known[alike] = computed_pairs(spelled(spelling), site, n)
            replaced[site] += len(heads)
            pairs[site] += known[alike] * len(heads)
    return [(site, pairs[site] + full_pairs(site, n) * (site.n_heads - replaced[site])) for site in sites]

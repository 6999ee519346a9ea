"""What a plan should cost: pairs of queries and keys, operations of a whole forward, and keys in the cache."""

from collections.abc import Sequence

import torch

from headscope.attention.kept_keys import stored_keys
from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanism_spelling import spelled
from headscope.core import Site
from headscope.experiments.swap.candidates import cached_numbers, computed_pairs, full_pairs
from headscope.model.model import Model
from headscope.model.plans.plan import Plan
from headscope.model.session.key_dropping import group_readers


def plan_pairs(plan: Plan, sites: Sequence[Site], n: int) -> float:
    """The pairs of queries and keys that all heads compute at n tokens."""
    return sum(pairs for _, pairs in _site_pairs(plan, sites, n))


def kept_keys(plan: Plan, sites: Sequence[Site], n: int) -> dict[Site, tuple[int, ...]]:
    """The keys of each kv head that a cache of n tokens keeps, for the sites of causal self-attention.

    Sites that limit their keys themselves keep what they do without a plan, counted as all.

    Properties:
        - as many as the cache really holds  (tested: test_the_numbers_of_a_cache_are_those_that_it_holds)
    """
    mechanisms: dict[Site, dict[int, Mechanism]] = {
        site: {} for site in sites if site.kind == "self" and site.causal and site.window is None
    }
    for spelling, heads_by_site in plan.heads(tuple(sites)).items():
        for site in heads_by_site.keys() & mechanisms.keys():
            mechanisms[site] |= dict.fromkeys(heads_by_site[site], spelled(spelling))
    return {
        site: tuple(len(stored_keys(readers, n, n)) for readers in group_readers(site, of_site))
        for site, of_site in mechanisms.items()
    }


def cached_share(plan: Plan, sites: Sequence[Site], n: int) -> float:
    """The numbers that the caches of these sites hold after n tokens, over those without a plan."""
    keys_by_site = kept_keys(plan, sites, n)
    full = sum(cached_numbers(site, n * site.n_kv_heads) for site in keys_by_site)
    return sum(cached_numbers(site, sum(keys)) for site, keys in keys_by_site.items()) / full if full else 1.0


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
    pairs_per_head: dict[tuple[str, bool, int], float] = {}
    for spelling, heads_by_site in plan.heads(tuple(sites)).items():
        for site, heads in heads_by_site.items():
            alike = (spelling, site.causal, site.d_head)
            if alike not in pairs_per_head:
                pairs_per_head[alike] = computed_pairs(spelled(spelling), site, n)
            replaced[site] += len(heads)
            pairs[site] += pairs_per_head[alike] * len(heads)
    return [(site, pairs[site] + full_pairs(site, n) * (site.n_heads - replaced[site])) for site in sites]

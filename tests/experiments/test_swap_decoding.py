"""Swap: the cache and the speed of generation, and a search that makes the cache small."""

import itertools
from collections.abc import Mapping

import polars as pl
import pytest
import torch
from transformers import DynamicCache

import headscope as hs
from headscope.attention.mechanisms.window import Window
from headscope.core import Site
from headscope.core.selection import Selection
from headscope.errors import UsageError
from headscope.experiments.swap.aims import AIMS
from headscope.experiments.swap.candidates import Candidate, cached_numbers
from headscope.experiments.swap.decoding import cache_warnings, decoding_speed
from headscope.experiments.swap.experiment import EXPERIMENT
from headscope.experiments.swap.ladder import Ladder, ladder
from headscope.experiments.swap.plan_cost import cached_share, kept_keys
from headscope.experiments.swap.sentences import _decoding
from headscope.experiments.swap.settings import Goal, Params
from headscope.experiments.swap.tables import decoding_table
from headscope.model.model import Model, open_model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.model.transformers.dropping_layer import DroppingLayer, cache_bytes
from headscope.progress import silent
from tests.model.families import DECODERS, OUTSIDE

NEAR = "band_sparse(left=8, right=0, columns=(0,))"
WIDE = "band_sparse(left=20, right=0, columns=(0, 3))"
FLOAT = 4


@pytest.fixture(scope="module")
def tiny() -> Model:
    return hs.open("tiny")


@pytest.fixture(scope="module")
def grouped() -> Model:
    return open_model(next(family for family in DECODERS if family.name == "llama_gqa").build())


def tokens(n: int) -> torch.Tensor:
    return torch.randint(3, 99, (n,), generator=torch.Generator().manual_seed(2))


def per_key(site: Site) -> int:
    return FLOAT * (site.d_head + site.d_value)


def test_the_bytes_of_a_cache(grouped: Model) -> None:
    """All keys of both layers, and the plan's: the last step's own key waits for the next one to trim."""
    decoding = decoding_speed(grouped, Plan({NEAR: "L0,L1.H0-1"}), tokens(60), 3, silent)
    assert decoding is not None
    site = grouped.sites[0]
    assert decoding.steps == 7
    assert len(decoding.speeds) == len(decoding.original_speeds) == 3
    assert decoding.original_bytes == per_key(site) * 4 * 60
    assert decoding.bytes == per_key(site) * (3 * (8 + 1 + 1) + 60)
    assert decoding.undropped == {}
    row = decoding_table([decoding]).filter(pl.col("which") == "plan").to_dicts()[0]
    assert row["cache_share"] == pytest.approx((3 * 10 + 60) / 240)
    assert row["faster_least"] <= row["faster"] <= row["faster_most"]
    assert "MB" in _decoding(decoding_table([decoding]))[0].full


def test_a_plan_that_needs_all_queries_is_timed(grouped: Model) -> None:
    """Such heads keep all keys, and lose their queries whenever the original takes its turn."""
    plan = Plan({"top_blocks(block=8, blocks=1)": "L0.H0-1", NEAR: "L0.H2-3"})
    decoding = decoding_speed(grouped, plan, tokens(60), 3, silent)
    assert decoding is not None
    assert len(decoding.speeds) == 3
    site = grouped.sites[0]
    assert decoding.original_bytes == per_key(site) * 4 * 60
    assert per_key(site) * 3 * 60 < decoding.bytes < decoding.original_bytes


def test_a_cache_that_keeps_its_keys_is_named() -> None:
    """A family that computes its attention itself keeps its own cache, and the table says so."""
    model = open_model(next(family for family in OUTSIDE if family.name == "bloom").build())
    decoding = decoding_speed(model, Plan({"window(left=4)": "all"}), tokens(40), 1, silent)
    assert decoding is not None
    assert decoding.bytes == decoding.original_bytes
    warning = cache_warnings(model, [decoding])
    assert warning == ("The cache of L0, L1 keeps keys that no head reads: this family computes its attention itself.",)
    assert "no table of decoding" in cache_warnings(model, [None])[0]


RULES = (
    {NEAR: "all"},
    {NEAR: "L0", WIDE: "L1.H0-1"},
    {NEAR: "L0.H0,L1.H1", WIDE: "L0.H1-3,L1.H0"},
    {"window(left=5)": "L1"},
    {},
)


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_the_numbers_of_a_cache_are_those_that_it_holds(grouped: Model, rules: Mapping[str, str]) -> None:
    plan, n = Plan(dict(rules)), 50
    with apply(plan, grouped), torch.no_grad():
        cache = DynamicCache(config=grouped.hf.config)
        grouped.hf(tokens(n)[None], past_key_values=cache, use_cache=True)
    held = {}
    for site, layer in zip(grouped.sites, cache.layers, strict=True):
        by_head = dict.fromkeys(range(site.n_kv_heads), layer.keys.shape[2])
        for store in layer.stores if isinstance(layer, DroppingLayer) else ():
            by_head |= dict.fromkeys(store.of.kv_heads, store.keys.shape[2])
        held[site] = tuple(by_head.values())
    assert kept_keys(plan, grouped.sites, n) == held
    full = sum(per_key(site) * site.n_kv_heads * n for site in grouped.sites)
    assert cache_bytes(cache) == pytest.approx(cached_share(plan, grouped.sites, n) * full, abs=64)


def test_candidates_for_a_cache_are_bands(grouped: Model) -> None:
    site = grouped.sites[0]
    aim = AIMS[Goal.CACHE]
    listed = aim.candidates(site, 2048, 8192)
    assert [candidate.spelling for candidate in listed] == [
        f"band_sparse(left={width}, right=0, columns=(0,))" for width in (64, 256, 1024)
    ]
    assert [candidate.spent for candidate in listed] == [cached_numbers(site, width + 1) for width in (64, 256, 1024)]
    assert aim.full(site, 8192) == cached_numbers(site, 8192)
    assert aim.units(site) == ((0, 1), (2, 3))
    two_sided = Site("only", "self", 0, 4, 2, 8, 8, causal=False)
    assert aim.candidates(two_sided, 2048, 8192) == ()


def planted(units: int) -> tuple[dict[Site, tuple[Candidate, ...]], dict[Site, torch.Tensor], dict[Site, float]]:
    """Two layers with four heads each and random damages."""
    generator = torch.Generator().manual_seed(3)
    options = tuple(Candidate(f"window(left={spent})", Window(spent), float(spent)) for spent in (10, 30, 60))
    sites = [Site("only", "self", layer, 4, units, 8, 8, causal=True) for layer in range(2)]
    damages = {site: torch.rand(3, 4, generator=generator).sort(0, descending=True).values for site in sites}
    return dict.fromkeys(sites, options), damages, dict.fromkeys(sites, 100.0)


def units_of(sites: Mapping[Site, object]) -> dict[Site, tuple[tuple[int, ...], ...]]:
    return {site: AIMS[Goal.CACHE].units(site) for site in sites}


def test_the_heads_of_a_group_move_together() -> None:
    by_site, damages, full = planted(2)
    planned = ladder(by_site, damages, full, units_of(by_site))
    assert len(planned.steps) >= 4
    for count in range(len(planned.steps) + 1):
        for selection in planned.rules(count).values():
            for heads in Selection.parse(selection).resolve(tuple(by_site)).values():
                assert all((head ^ 1) in heads for head in heads)


def test_a_ladder_of_groups_by_brute_force() -> None:
    """Of all choices for all groups, none with as small a cache as a plan of the ladder has less damage."""
    by_site, damages, full = planted(2)
    planned = ladder(by_site, damages, full, units_of(by_site))
    points = [
        [(100.0, 0.0), *((c.spent, float(damages[site][i, list(heads)].sum())) for i, c in enumerate(by_site[site]))]
        for site, groups in units_of(by_site).items()
        for heads in groups
    ]
    choices = [
        (sum(spent for spent, _ in choice), sum(harm for _, harm in choice)) for choice in itertools.product(*points)
    ]
    for count in range(1, len(planned.steps) + 1):
        harm = sum(step.damage for step in planned.steps[:count])
        assert harm == pytest.approx(min(other for spent, other in choices if spent <= 400.0 - planned.saved(count)))


def test_one_head_per_group_is_the_ladder_of_heads() -> None:
    by_site, damages, full = planted(4)
    assert ladder(by_site, damages, full, units_of(by_site)) == ladder(by_site, damages, full)
    assert isinstance(ladder(by_site, damages, full), Ladder)


def test_a_search_for_a_small_cache(tiny: Model) -> None:
    """The plan agrees within each kv group, and its cache is smaller."""
    params = Params(budget="5%", goal=Goal.CACHE, tokens=192, windows=6, lengths=(192,), repeats=1, new_tokens=4)
    finding = EXPERIMENT.run(tiny, params, silent)[0]
    heads = finding.tables["heads"]
    size = tiny.sites[0].n_heads // tiny.sites[0].n_kv_heads
    groups = heads.with_columns((pl.col("head") // size).alias("group")).group_by("layer", "group")
    assert groups.agg(pl.col("mechanism").n_unique())["mechanism"].to_list() == [1] * len(tiny.sites) * (
        tiny.sites[0].n_kv_heads
    )
    share = finding.tables["decoding"]["cache_share"].drop_nulls().to_list()
    assert 0 < share[0] < 1
    assert finding.params["for"] == "cache"
    assert (finding.tables["frontier"]["cached"] <= 1.0).all()


def test_a_goal_needs_a_search() -> None:
    with pytest.raises(UsageError, match="--for cache says what a search makes cheap"):
        Params(replace=("L0=window(left=4)",), goal=Goal.CACHE).check()

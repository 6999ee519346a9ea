r"""Finds the products of queries and keys and of pattern and values, and checks them.

Nothing is known of the family. A few forwards on the same random tokens (`product_probe`) show which product is which:

1. The product that has the pattern of a site as operand mixes its values; its result must be pattern times values, head
   by head.
2. Other numbers are put in place of this result, those of one head 0: the next matrix that reads them must read 0
   exactly there.
3. The queries of a product before the softmax are set to 0. What reaches the softmax is then the bias alone; what it
   has lost must be $s\,q k^\top$ with one factor s. A bias that is not the same in two texts is made of their content.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headscope.core.site import Site
from headscope.model.rounding import agreement, widened
from headscope.model.transformers.attention_products import (
    Addition,
    AttentionProducts,
    ScoreProduct,
    SiteProducts,
    ValueProduct,
    is_same_map,
)
from headscope.model.transformers.head_layout import layout
from headscope.model.transformers.library_messages import reason
from headscope.model.transformers.product_probe import OtherOutputs, ProbeForward, SilencedScores, Unclear
from headscope.model.transformers.unmasked_scores import HIDING

CONTENT = (
    "its scores also hold terms of content and relative position, which read queries and keys a second time, so that "
    "a change where they are multiplied would be half a change"
)

# By the number of the softmax.
Sites = Mapping[int, Site]
Scores = Mapping[int, ScoreProduct]
Values = Mapping[int, ValueProduct]


def find_products(model: Any, sites: Sites) -> AttentionProducts:
    """The products of the sites, or why they are not known."""
    wide = widened(model)
    hf = model if wide is None else wide
    plain = ProbeForward()
    try:
        plain.run(hf)
        values = {number: _value_product(plain, number, site) for number, site in sites.items()}
        _check_readers(hf, values, sites)
    except Exception as error:  # noqa: BLE001  a family may do anything; its maps can still be read
        why = _why(error)
        return AttentionProducts(sites, plain.counts, refusal=why, score_refusal=why)
    try:
        scores = _score_products(hf, plain, sites)
        return _joined(plain, sites, values, scores)
    except Exception as error:  # noqa: BLE001  its values are known all the same
        return replace(_joined(plain, sites, values, {}), score_refusal=_why(error))


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, Unclear) else f"it could not be run with other numbers ({reason(error)})"


def _value_product(plain: ProbeForward, number: int, site: Site) -> ValueProduct:
    """The one product of a pattern and its values."""
    pattern = plain.softmaxes[number].result
    places = [
        (index, is_left)
        for index, step in enumerate(plain.products[number + 1])
        for is_left, operand in ((True, step.product.left), (False, step.product.right))
        if is_same_map(operand, pattern)
    ]
    if len(places) != 1:
        raise Unclear(f"{len(places) or 'no'} products of its pattern and its values can be found, expected one")
    index, is_left = places[0]
    step = plain.products[number + 1][index]
    left, right, result = step.product.letters
    attention, values, operand = (left, right, step.product.right) if is_left else (right, left, step.product.left)
    stack, query, key = attention[:-2], attention[-2], attention[-1]
    if key not in values or query in values:
        raise Unclear("its pattern is transposed before it mixes the values")
    channel = next(letter for letter in values if letter not in attention)
    v, z = layout(values, stack + key + channel, site.n_heads), layout(result, stack + query + channel, site.n_heads)
    v = v.with_copies(_copies(v.read(operand), site))
    by_head = _exact(pattern.reshape(-1, site.n_heads, *pattern.shape[-2:]))
    if not _agree(by_head @ _for_queries(v.read(operand), site), _exact(z.read(step.result)), step.result.dtype):
        raise Unclear("its outputs are not its pattern times its values")
    return ValueProduct(index, is_left, v, z)


def _copies(states: Tensor, site: Site) -> int:
    """How often each key or value head is repeated for the queries that read it."""
    if states.shape[1] != site.n_heads:
        return 1
    sizes = [size for size in range(site.n_heads, 1, -1) if site.n_heads % size == 0]
    return next((size for size in sizes if torch.equal(_repeated(states[:, ::size], size), states)), 1)


def _repeated(states: Tensor, copies: int) -> Tensor:
    return states.repeat_interleave(copies, dim=1)


def _for_queries(states: Tensor, site: Site) -> Tensor:
    """Key or value heads in float64, each for every query head that reads it."""
    if site.n_heads % states.shape[1]:
        raise Unclear(f"{site.n_heads} heads of queries cannot share {states.shape[1]} heads of keys or values")
    return _repeated(_exact(states), site.n_heads // states.shape[1])


def _exact(values: Tensor) -> Tensor:
    """The numbers in float64, on the CPU: not every device has it."""
    return values.cpu().double()


def _agree(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> bool:
    if ours.shape != theirs.shape:
        return False
    return bool((ours - theirs).abs().max() <= agreement(dtype, 1) * theirs.abs().max())


def _check_readers(hf: Any, values: Values, sites: Sites) -> None:
    """Check that each head keeps channels of its own up to the next matrix."""
    forward = OtherOutputs(values, sites)
    forward.run(hf)
    if unread := [sites[number].label for number in values if number not in forward.read]:
        raise Unclear(f"no matrix reads the outputs of {', '.join(unread[:4])} head by head")


def _score_products(hf: Any, plain: ProbeForward, sites: Sites) -> dict[int, ScoreProduct]:
    """The product of queries and keys of each site, with its factor and what is added to it."""
    candidates = {number: _score_candidates(plain, number, site) for number, site in sites.items()}
    products: dict[int, ScoreProduct] = {}
    for attempt in range(max(len(places) for places in candidates.values())):
        tried = {
            number: places[attempt]
            for number, places in candidates.items()
            if number not in products and attempt < len(places)
        }
        silenced = SilencedScores(plain, tried)
        silenced.run(hf)
        for number, place in tried.items():
            if (scaled := _scaled(plain, silenced, number, place, sites[number])) is not None:
                products[number] = scaled
    if missing := [site.label for number, site in sites.items() if number not in products]:
        raise Unclear(f"the scores of {', '.join(missing[:4])} are no multiple of a product of queries and keys")
    return products


def _score_candidates(plain: ProbeForward, number: int, site: Site) -> list[ScoreProduct]:
    """The products before a softmax whose results have its shape."""
    reached = plain.softmaxes[number].reached
    places = []
    for index, step in enumerate(plain.products[number]):
        if step.result.numel() != reached.numel() or step.result.shape[-2:] != reached.shape[-2:]:
            continue
        left, right, result = step.product.letters
        stack, query, key = result[:-2], result[-2], result[-1]
        q_is_left = query in left
        queries, keys, operand = (left, right, step.product.right) if q_is_left else (right, left, step.product.left)
        if any(letter not in queries or letter not in keys for letter in stack):
            continue
        channel = next(letter for letter in queries if letter not in result)
        q, k = layout(queries, stack + query + channel, site.n_heads), layout(keys, stack + key + channel, site.n_heads)
        places.append(ScoreProduct(index, q_is_left, q, k.with_copies(_copies(k.read(operand), site))))
    return places


def _scaled(
    plain: ProbeForward, silenced: ProbeForward, number: int, place: ScoreProduct, site: Site
) -> ScoreProduct | None:
    """The place with its factor and what is added; None where the scores are no multiple of its product."""
    step = plain.products[number][place.number]
    left, right = step.product.left, step.product.right
    q_operand, k_operand = (left, right) if place.q_is_left else (right, left)
    q = _exact(place.q.read(q_operand))
    products = q @ _for_queries(place.k.read(k_operand), site).mT
    reached, bias = (_exact(forward.softmaxes[number].reached).reshape(products.shape) for forward in (plain, silenced))
    visible = (reached > HIDING) & (bias > HIDING)
    reached, bias, products = (torch.where(visible, values, 0.0) for values in (reached, bias, products))
    if not bool(products.any()):
        return None
    scale = float(((reached - bias) * products).sum() / products.square().sum())
    if scale == 0.0 or not _agree(scale * products, reached - bias, step.result.dtype):
        return None
    smallest = agreement(step.result.dtype, 1) * float(reached.abs().max())
    differs = (bias - bias[:1]).abs()[visible & visible[:1]].max() > smallest
    is_biased = float(bias.abs().max()) > smallest
    adds: Addition = "content" if bool(differs) else "positions" if is_biased else "nothing"
    return replace(place, scale=_tidy(scale, q.shape[-1]), adds=adds)


def _tidy(scale: float, d_head: int) -> float:
    """The usual factor that a measured one is, up to the rounding of float32."""
    usual = (1.0, 1.0 / math.sqrt(d_head))
    return next((value for value in usual if abs(scale - value) <= 1e-5 * value), scale)


def _joined(plain: ProbeForward, sites: Sites, values: Values, scores: Scores) -> AttentionProducts:
    """All products, with the sites as they show them."""
    products: dict[int, SiteProducts] = {}
    new_sites: dict[int, Site] = {}
    for number, site in sites.items():
        value_place, score_place = values[number], scores.get(number)
        if score_place is not None:
            # Heads that are repeated four times are repeated twice as well.
            copies = math.gcd(value_place.v.copies, score_place.k.copies)
            value_place = replace(value_place, v=value_place.v.with_copies(copies))
            score_place = replace(score_place, k=score_place.k.with_copies(copies))
        products[number] = SiteProducts(value_place, score_place)
        new_sites[number] = _described(plain, number, site, products[number])
    by_content = any(place.adds == "content" for place in scores.values())
    return AttentionProducts(new_sites, plain.counts, products, change_refusal=CONTENT if by_content else "")


def _described(plain: ProbeForward, number: int, site: Site, products: SiteProducts) -> Site:
    """The site with the sizes of its tensors."""
    value_product = plain.products[number + 1][products.values.number].product
    v = products.values.v.read(value_product.right if products.values.pattern_is_left else value_product.left)
    described = replace(site, n_kv_heads=v.shape[1], d_head=v.shape[3], d_value=v.shape[3])
    place = products.scores
    if place is None:
        return described
    score_product = plain.products[number][place.number].product
    k = place.k.read(score_product.right if place.q_is_left else score_product.left)
    if k.shape[1] != v.shape[1]:
        raise Unclear(f"it has {k.shape[1]} heads of keys and {v.shape[1]} of values")
    return replace(described, d_head=k.shape[3], extras=() if place.adds == "nothing" else ("bias",))

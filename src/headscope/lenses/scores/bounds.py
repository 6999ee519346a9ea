"""The largest score and what bounds it: the lengths of query and key, and the norms of the weights."""

from collections.abc import Iterator
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import HeadWeights, Site, WeightSource
from headscope.lenses.scores.site_sums import SiteSums
from headscope.lenses.scores.window import Window
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number


def largest(window: Window) -> Float[Tensor, "4 heads"]:
    """|s|, |q||k|, |x·y| and |x||y| (with a 1 behind x and y) of the pair with the largest |s|; NaN without one.

    Among the counted rows, first token included; s is the product before any bias or cap.
    """
    counted = window.counted()
    size = window.products().double().abs().masked_fill(~torch.isfinite(window.rows), -1.0)
    size = size.masked_fill(~counted[..., None], -1.0)
    top, where = size.flatten(1).max(-1)
    keys = window.rows.shape[-1]
    query, key, heads = window.index[where // keys], where % keys, torch.arange(len(where))
    groups = window.site.n_heads // window.site.n_kv_heads
    lengths = window.q[heads, query].double().norm(dim=-1) * window.k[heads // groups, key].double().norm(dim=-1)
    inner = torch.full_like(lengths, nan)
    outer = inner
    if window.x is not None:
        x, y = window.x[query].double(), window.x[key].double()
        inner = ((x * y).sum(-1) + 1).abs()
        outer = ((x.square().sum(-1) + 1) * (y.square().sum(-1) + 1)).sqrt()
    return torch.stack((top, lengths, inner, outer)).masked_fill(top < 0, nan)


def bound_rows(site: Site, site_sums: SiteSums, norms: Float[Tensor, " heads"] | None) -> Iterator[Row]:
    """One row per head: its largest score, its bounds, how often the stated one fails."""
    pairs = torch.cat(site_sums.largest)
    for head in range(site.n_heads):
        of_head = pairs[:, :, head]
        of_head = of_head[~of_head[:, 0].isnan()]
        if not len(of_head):
            continue
        size, lengths, inner, outer = of_head[int(of_head[:, 0].argmax())].tolist()
        norm = nan if norms is None else float(norms[head])
        allowed = abs(site_sums.scale) * norm * of_head[:, 2]
        beyond = float((of_head[:, 0] > allowed).double().mean()) if bool(torch.isfinite(allowed).all()) else nan
        yield {
            **place(site, head),
            "value": size,
            "bound": abs(site_sums.scale) * lengths,
            "weights_bound": number(abs(site_sums.scale) * norm * outer),
            "stated": number(abs(site_sums.scale) * norm * inner),
            "beyond": number(beyond),
            "windows": len(of_head),
        }


def weight_norms(weights: WeightSource, site: Site) -> Float[Tensor, " heads"] | None:
    """Product of the operator norms of w_q and w_k, gains and biases included; None where they do not bound.

    Clipping only shortens q and k, so that the bound holds there too.
    """
    if weights.status(site).status not in ("exact", "clipped"):
        return None
    w = weights.weights(site)
    of_q: Tensor = torch.linalg.matrix_norm(_with_bias(w, "q"), ord=2)
    of_k: Tensor = torch.linalg.matrix_norm(_with_bias(w, "k"), ord=2)
    return of_q * of_k.repeat_interleave(site.n_heads // site.n_kv_heads)


def _with_bias(w: HeadWeights, part: str) -> Float[Tensor, "some_heads inputs d"]:
    matrix, bias, gain = (w.w_q, w.b_q, w.gain_q) if part == "q" else (w.w_k, w.b_k, w.gain_k)
    matrix, bias, gain = matrix.double(), bias.double(), gain.double()
    return torch.cat((matrix, bias[:, None]), 1) * gain[:, None]

"""The singular values of every head as curves, with those of a random product of the same shape."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from headscope.core import HeadCurve, Site
from headscope.maths.random_matrices.null_spectrum import Comparison, unit_law

Array = NDArray[np.float64]
_MOST_POINTS = 64


def head_spectra(heads: Mapping[Site, Mapping[str, list[Comparison]]]) -> tuple[HeadCurve, ...]:
    """One set of curves for each form, W_QK and W_OV."""
    forms = dict.fromkeys(form for by_form in heads.values() for form in by_form)
    return tuple(_form_spectra(form, heads) for form in forms)


def _form_spectra(form: str, heads: Mapping[Site, Mapping[str, list[Comparison]]]) -> HeadCurve:
    labelled = dict(_labelled(form, heads))
    longest = max(len(comparison.sigma) for comparison in labelled.values())
    indices = np.unique(np.linspace(0, longest - 1, min(longest, _MOST_POINTS)).round().astype(np.int64))
    laws = [_law(comparison.sizes, longest)[indices] for comparison in labelled.values()]
    same_shape = len({comparison.sizes for comparison in labelled.values()}) == 1
    return HeadCurve(
        key=f"{form.lower()}_spectrum",
        label=f"singular values of W_{form}",
        x_axis="index",
        y_axis="σ / root mean square",
        heads=tuple(labelled),
        x=indices.astype(np.float64) + 1,
        values=np.stack([_padded(_scaled(comparison), longest)[indices] for comparison in labelled.values()]),
        law=np.stack(laws[:1] if same_shape else laws),
        law_label="random matrices of the same shape",
    )


def _labelled(form: str, heads: Mapping[Site, Mapping[str, list[Comparison]]]) -> Iterator[tuple[str, Comparison]]:
    for site, by_form in heads.items():
        for head, comparison in enumerate(by_form.get(form, ())):
            yield site.head_label(head), comparison


def _scaled(comparison: Comparison) -> Array:
    """σ over its root mean square; a zero matrix stays zero."""
    sigma: Array = comparison.sigma.to(torch.float64).numpy()
    return sigma / (comparison.mean_square**0.5 or 1.0)


@lru_cache(maxsize=64)
def _law(sizes: tuple[int, ...], longest: int) -> Array:
    r"""The quantile of the law at the middle of each step: $\sqrt{F^{-1}(1 - (i - 1/2)/p)}$."""
    rank = min(sizes)
    levels = 1 - (torch.arange(rank, dtype=torch.float64) + 0.5) / rank
    law: Array = unit_law(sizes).quantile(levels).sqrt().numpy()
    return _padded(law, longest)


def _padded(values: Array, size: int) -> Array:
    padded: Array = np.full(size, np.nan)
    padded[: len(values)] = values
    return padded

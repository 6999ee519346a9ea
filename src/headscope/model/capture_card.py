"""The cards of a capture and of a cache: which places they hold, of what shapes, and what to do next."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from headscope.core.card import Card, listed
from headscope.core.numbers import counted
from headscope.core.site import Site


def capture_card(
    axes: Mapping[str, Sequence[str]],
    at: Mapping[Site, Sequence[int]],
    forwards: Sequence[Mapping[str, Mapping[Site, Tensor]]],
) -> Card:
    """The card of a capture.

    Args:
        axes: The names of the captured quantities, each with the names of its axes.
        at: The selected sites with their selected heads.
        forwards: What each forward since the last `take` showed: quantity → site → tensor.
    """
    return _card("capture", axes, at, forwards, _next_step(len(forwards)))


def cache_card(
    axes: Mapping[str, Sequence[str]], at: Mapping[Site, Sequence[int]], tensors: Mapping[str, Mapping[Site, Tensor]]
) -> Card:
    """The card of the tensors of one forward, by quantity and site; the arguments are those of `capture_card`."""
    size = sum(tensor.nbytes for by_site in tensors.values() for tensor in by_site.values())
    keys = [(site.label, name) for name, by_site in tensors.items() for site in by_site]
    example = f'; `cache["{keys[0][0]}", "{keys[0][1]}"]` is one of them' if keys else ""
    return _card("cache", axes, at, [tensors], f"{size / 2**20:.1f} MiB{example}.")


def _card(
    noun: str,
    axes: Mapping[str, Sequence[str]],
    at: Mapping[Site, Sequence[int]],
    forwards: Sequence[Mapping[str, Mapping[Site, Tensor]]],
    end: str,
) -> Card:
    n_heads = sum(map(len, at.values()))
    title = f"{noun} of {listed(list(axes))}: {counted(n_heads, 'head')} at {counted(len(at), 'site')}"
    facts = [(name, "; ".join([" × ".join(axes[name]), *_shapes(name, forwards)])) for name in axes]
    return Card(title, lead=(_span(list(at)),), facts=tuple(facts), end=(end,))


def _shapes(name: str, forwards: Sequence[Mapping[str, Mapping[Site, Tensor]]]) -> Iterator[str]:
    """The shapes that a quantity has, each with its number of tensors."""
    shapes = [tuple(tensor.shape) for frame in forwards for tensor in frame.get(name, {}).values()]
    for shape in dict.fromkeys(shapes):
        yield f"{' × '.join(map(str, shape))} ({counted(shapes.count(shape), 'tensor')})"


def _span(sites: Sequence[Site]) -> str:
    """The sites from the first to the last: `L0 … L29`."""
    labels = [site.label for site in sites]
    return listed(labels) if len(labels) <= 3 else f"{labels[0]} … {labels[-1]}"


def _next_step(n_forwards: int) -> str:
    if not n_forwards:
        return "Nothing has run since the last take: run the model inside the session."
    if n_forwards == 1:
        return "One forward has run: `take()` hands its tensors over."
    return f"{n_forwards} forwards have run: `take_all()` hands their tensors over."

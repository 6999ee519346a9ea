"""Whole sites out of the pieces of a forward: who waits for what, and what becomes of what never comes."""

from dataclasses import replace

import torch

from headscope.core import Site
from headscope.lenses.lens import AS_IS, Batch
from headscope.pipeline.site_assembly import STATISTICS, SiteAssembly, expected_parts

SITES = tuple(Site("only", "self", layer, 2, 2, 4, 4, causal=True) for layer in range(3))
FIRST, MIDDLE, LAST = SITES
BLANK = Batch(AS_IS, torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.bool))


def piece(**sites_by_name: tuple[Site, ...]) -> Batch:
    captures = {name: {site: torch.zeros(1) for site in sites} for name, sites in sites_by_name.items()}
    return replace(BLANK, captures=captures)


def parts(batch: Batch | None) -> dict[str, tuple[Site, ...]] | None:
    return None if batch is None else {name: tuple(by_site) for name, by_site in batch.captures.items()}


def assembly(*names: str, piecewise: bool = True) -> SiteAssembly:
    return SiteAssembly(expected_parts(SITES, names, {"final": (LAST,)}), piecewise=piecewise)


def test_what_a_site_never_shows_is_not_expected():
    encoder = (replace(FIRST, stack="enc"), replace(MIDDLE, stack="enc"))
    decoder = (replace(FIRST, stack="dec"), replace(FIRST, stack="dec", kind="cross"))
    names = {"q", "x", "final", STATISTICS}
    places = {"x": (encoder[0], decoder[1]), "final": (encoder[1], decoder[0])}
    expected = expected_parts((*encoder, *decoder), names, places)
    assert expected == {
        encoder[0]: {"q", "x", STATISTICS},
        encoder[1]: {"q", "final", STATISTICS},
        decoder[0]: {"q", "final", STATISTICS},
        decoder[1]: {"q", "x", STATISTICS},
    }
    assert expected_parts(SITES, {"final"}, {"final": (LAST,)}) == {LAST: {"final"}}


def test_a_site_is_handed_over_when_it_is_complete():
    forward = assembly("q", "resid", "final")
    assert parts(forward.add(piece(resid=(FIRST,)), over=False)) is None
    assert parts(forward.add(piece(q=(FIRST,), resid=(MIDDLE,)), over=False)) == {"resid": (FIRST,), "q": (FIRST,)}
    assert parts(forward.add(piece(q=(MIDDLE, LAST), resid=(LAST,)), over=False)) == {
        "resid": (MIDDLE,),
        "q": (MIDDLE,),
    }
    ended = forward.add(piece(final=(LAST,)), over=True)
    assert parts(ended) == {"q": (LAST,), "resid": (LAST,), "final": (LAST,)}


def test_the_first_site_of_a_stack_comes_first():
    forward = assembly("q")
    assert forward.add(piece(q=(MIDDLE,)), over=False) is None
    assert parts(forward.add(piece(q=(FIRST,)), over=False)) == {"q": (FIRST, MIDDLE)}
    assert parts(forward.add(piece(q=(LAST,)), over=False)) == {"q": (LAST,)}


def test_incomplete_sites_are_handed_over_at_the_end():
    forward = assembly("q", "resid")
    assert parts(forward.add(piece(q=(FIRST, LAST), resid=(FIRST,)), over=False)) == {"q": (FIRST,), "resid": (FIRST,)}
    assert forward.add(piece(), over=False) is None
    assert parts(forward.add(piece(resid=(MIDDLE,)), over=True)) == {"resid": (MIDDLE,), "q": (LAST,)}


def test_a_forward_ends_with_an_empty_batch_only_if_it_showed_nothing():
    assert parts(assembly("q").add(piece(), over=True)) == {}
    forward = assembly("q")
    forward.add(piece(q=SITES), over=False)
    assert forward.add(piece(), over=True) is None


def test_a_lens_that_takes_no_pieces_waits_for_the_end():
    forward = assembly("q", piecewise=False)
    assert forward.add(piece(q=(FIRST, MIDDLE)), over=False) is None
    assert parts(forward.add(piece(q=(LAST,)), over=True)) == {"q": SITES}

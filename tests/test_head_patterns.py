"""Patterns and curves of every head in a run: the definition, what they cost, and what a stranger may put there."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headscope.core import HeadCurve, HeadPatterns, Site, SitePatterns
from headscope.core.head_patterns import LARGEST_LEVEL
from headscope.errors import UsageError
from headscope.lenses.lens import Needs
from headscope.lenses.maps.opening_maps import opening_map
from headscope.model.model import Model
from headscope.pipeline import measure
from headscope.pipeline.text_pass import union
from headscope.shapes import OPENING
from headscope.store import load
from tests.model.test_token_maps import CHECKED, TEXT, reading

# A level is the nearest of 255 roots; the forwards of a text alone and of a window differ by float32 rounding.
HALF_A_LEVEL = 0.5 + 1e-3


def roots(weights: np.ndarray) -> np.ndarray:
    """The levels before they are rounded, by their formula."""
    return LARGEST_LEVEL * np.sqrt(weights.astype(np.float64) / weights.max())


@pytest.mark.parametrize("name", CHECKED)
def test_the_patterns_of_a_run_are_those_of_the_model(name: str) -> None:
    model = reading(name)
    patterns = measure(model, text=TEXT, lenses=["maps"], window=len(model.tokens(TEXT)))["maps"].patterns
    assert len(patterns.sites) == len(model.sites)
    for site in model.sites:
        kept = patterns.at(site)
        assert patterns.texts[kept.query_text] == patterns.texts[kept.key_text]
        assert [token.strip() for token in patterns.texts[kept.key_text]] == [
            token.strip() for token in model.tokens(TEXT)
        ]
        for head in range(site.n_heads):
            expected = model.pattern(TEXT, site.head_label(head)).values
            assert np.abs(kept.levels[head] - roots(expected)).max() <= HALF_A_LEVEL
            assert kept.largest[head] == pytest.approx(expected.max(), abs=1e-6)
            # Half a level is the error of the root; squared, no weight is off by more than 1/255 of the largest.
            assert np.abs(kept.weights(head) - expected).max() <= kept.largest[head] / LARGEST_LEVEL


def test_a_long_text_gives_the_first_tokens_of_its_first_window(tiny: Model) -> None:
    run = measure(tiny, lenses=["maps"], first_tokens=1024)
    patterns = run["maps"].patterns
    assert patterns.sites[0].levels.shape == (8, OPENING, OPENING)
    assert all(len(text) == OPENING for text in patterns.texts)
    above = np.triu(np.ones((OPENING, OPENING), dtype=bool), 1)
    assert not patterns.sites[3].levels[:, above].any()  # causal
    rows = patterns.sites[3].weights(5).sum(1)
    assert np.abs(rows - 1).max() < 0.2  # rounded weights of a row add up to about 1
    assert measure(tiny, lenses=["maps", "lowrank"], first_tokens=1024)["maps"].patterns.sites[3].levels.tobytes() == (
        patterns.sites[3].levels.tobytes()
    )


def test_they_are_kept_in_the_run_folder(tiny: Model, tmp_path) -> None:
    run = measure(tiny, text="In the beginning there was a word.", lenses=["maps"], window=8, out=tmp_path / "run")
    kept, stored = run["maps"].patterns, load(tmp_path / "run")["maps"].patterns
    assert stored.texts == kept.texts
    for one, other in zip(kept.sites, stored.sites, strict=True):
        assert other.levels.dtype == np.uint8
        assert (one.levels == other.levels).all()
        assert (one.largest == other.largest).all()
        assert replace(one, levels=other.levels, largest=other.largest).layer == other.layer


def test_what_is_for_the_opening_is_recorded_in_the_first_batch_alone() -> None:
    needs = Needs(captures=frozenset({"corner"}), opening=frozenset({"corner:256"}))
    assert needs.of_batch(0).welcome == {"corner:256"}
    assert needs.of_batch(1).welcome == frozenset()
    assert union([needs, Needs(opening=frozenset({"z"}))]).opening == {"corner:256", "z"}


def test_a_map_without_mass_and_tokens_without_a_spelling() -> None:
    opening = opening_map(torch.zeros(2, 3, 4), (), 9)
    assert not opening.levels.any()
    assert (opening.queries, opening.keys) == ((" 0", " 1", " 2"), (" 0", " 1", " 2", " 3"))


def test_padding_is_left_out() -> None:
    opening = opening_map(torch.ones(2, 5, 5), ("a", "b", "c", "d", "e"), 3)
    assert opening.levels.shape == (2, 3, 3)
    assert opening.keys == ("a", "b", "c")


LEVELS, LARGEST = np.zeros((2, 3, 3), dtype=np.uint8), np.ones(2)


@pytest.mark.parametrize(
    ("levels", "largest", "message"),
    [
        (LEVELS[0], LARGEST, "expected heads × queries × keys"),
        (LEVELS.astype(np.float64), LARGEST, "uint8"),
        (LEVELS, np.ones(3), "for each of 2 heads"),
        (LEVELS, np.array([1.0, np.nan]), "finite"),
        (LEVELS, np.array([1.0, -1.0]), "at least 0"),
    ],
)
def test_maps_of_another_form_are_refused(levels, largest, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SitePatterns("only", "self", 0, True, levels, largest)


@pytest.mark.parametrize("text", [-1, 1, 2])
def test_maps_without_their_tokens_are_refused(text: int) -> None:
    patterns = SitePatterns("only", "self", 0, True, LEVELS, LARGEST, key_text=text)
    with pytest.raises(UsageError, match="does not name a token for each"):
        HeadPatterns((("a", "b", "c"), ("a", "b")), (patterns,))


@pytest.mark.parametrize(("values", "law"), [((2, 2), None), ((1, 3), None), ((2, 3), (2, 2)), ((2, 3), (3, 3))])
def test_curves_of_another_form_are_refused(values, law) -> None:
    with pytest.raises(UsageError, match="the curves 'k'"):
        HeadCurve(
            "k", "", "", "", ("L0.H0", "L0.H1"), np.ones(3), np.ones(values), None if law is None else np.ones(law)
        )


def test_a_site_without_maps_has_none() -> None:
    patterns = HeadPatterns((("a", "b", "c"),), (SitePatterns("only", "self", 0, True, LEVELS, LARGEST),))
    assert patterns.at(Site("only", "self", 0, 2, 2, 4, 4, True)) is patterns.sites[0]
    assert patterns.at(Site("dec", "self", 0, 2, 2, 4, 4, True)) is None

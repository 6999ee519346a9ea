"""Planted cases of the maps lens: heads that are equal, heads that share no key, heads that write nothing."""

from dataclasses import replace
from math import log

import numpy as np
import polars as pl
import pytest
import torch

from headscope.core import WeightStatus
from headscope.core.token_words import word_numbers, words
from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.maps.lens import LENS
from headscope.lenses.maps.settings import Params
from headscope.model.token_spelling import spelled_tokens
from headscope.shapes import CORNER
from tests.lenses.asking import begin, finish, update
from tests.lenses.planted import Planted, gaussian_weights, planted, site

OF = site(n_kv_heads=4)


def batch_of(pattern: torch.Tensor, spelling=None, z: torch.Tensor | None = None) -> Batch:
    batch, heads, n, _ = pattern.shape
    real = torch.ones(batch, n, dtype=torch.bool)
    z = torch.ones(batch, heads, n, OF.d_value, dtype=torch.float64) if z is None else z
    spelling = spelling or tuple(tuple(f" {i}" for i in range(n)) for _ in range(batch))
    captures = {"corner": {OF: pattern}, "corner_z": {OF: z}, "pattern": {OF: pattern}, "z": {OF: z}}
    return Batch(AS_IS, real.long(), real, captures=captures, spelling=spelling)


def finding_of(batch: Batch, model: Planted | None = None, **params):
    model = model or planted(OF)
    fold = update(LENS, begin(LENS, Params(**params), model.spec, (OF,)), batch)
    return finish(LENS, fold, model)


def value(finding, quantity: str, table: str = "layers", head: int | None = None) -> float:
    rows = finding.tables[table].filter(pl.col("quantity") == quantity)
    return (rows if head is None else rows.filter(pl.col("head") == head))["value"][0]


def on_key(keys, n: int = 6) -> torch.Tensor:
    """Head h puts everything on key keys[h], where it can see it."""
    pattern = torch.zeros(1, len(keys), n, n, dtype=torch.float64)
    for head, key in enumerate(keys):
        for i in range(n):
            pattern[0, head, i, min(key, i)] = 1.0
    return pattern


def test_equal_heads_hide_nothing():
    finding = finding_of(batch_of(on_key([0, 0, 0, 0])), leave_out="")
    for quantity in ("hidden", "divergence_nats", "weighting"):
        assert value(finding, quantity) == pytest.approx(0.0, abs=1e-12)
    assert value(finding, "largest_average") == 1.0


def test_heads_that_share_no_key_hide_all_but_one_part():
    pattern = on_key([0, 1, 2, 3])[:, :, 3:, :]
    whole = torch.cat([on_key([0, 0, 0, 0])[:, :, :3], pattern], dim=2)
    finding = finding_of(
        batch_of(whole), leave_out="0 1 2"
    )  # rows that see all four keys; keys 0 to 2 are then elsewhere
    assert value(finding, "shown") == pytest.approx(0.25)
    assert value(finding, "apart", "heads", 3) == pytest.approx(0.75)
    everything = finding_of(batch_of(whole), leave_out="")
    # Three of six rows: disjoint heads, divergence ln 4; the other three: equal heads.
    assert value(everything, "hidden") == pytest.approx(0.75 / 2)
    assert value(everything, "divergence_nats") == pytest.approx(log(4) / 2)
    assert value(everything, "largest_average") == 1.0


def test_a_head_that_writes_nothing_has_no_weight():
    z = torch.ones(1, 4, 6, OF.d_value, dtype=torch.float64)
    z[:, 1:] = 0.0
    finding = finding_of(batch_of(on_key([0, 1, 2, 3]), z=z), leave_out="")
    assert value(finding, "weight", "heads", 0) == 1.0
    assert value(finding, "weight", "heads", 2) == 0.0
    assert value(finding, "effective_heads") == pytest.approx(1.0)
    # The weighted average is head 0 alone: it is apart from the plain one as that head is.
    assert value(finding, "weighting") == pytest.approx(value(finding, "apart", "heads", 0))


def test_words_are_sums_of_tokens():
    """Two tokens per word; each token looks at its neighbour in the word, so that the word map is its diagonal."""
    n = 6
    pattern = torch.zeros(1, 4, n, n, dtype=torch.float64)
    for i in range(n):
        pattern[:, :, i, i - i % 2] = 1.0
    spelling = (tuple((" ab", "c")[i % 2] for i in range(n)),)
    finding = finding_of(batch_of(pattern, spelling), leave_out="")
    assert value(finding, "diagonal_words") == 1.0
    drawn = {figure.name: figure for figure in finding.figures}
    assert drawn["words"].row_labels == ("1 abc", "2 abc", "3 abc")
    assert drawn["words"].values[0, 0] == 2.0
    assert drawn["tokens"].values.shape == (6, 6)


def test_only_the_first_windows_and_tokens_are_kept():
    many = on_key([0, 0, 0, 0]).repeat(5, 1, 1, 1)
    finding = finding_of(batch_of(many), tokens=4, windows=3)
    assert finding.tables["layers"]["windows"].unique().to_list() == [3]
    assert {figure.name: figure for figure in finding.figures}["tokens"].values.shape == (3, 3)


def test_refused_weights_leave_the_weighting_out():
    model = replace(planted(OF), statuses={OF: WeightStatus("refused", "no such form")})
    finding = finding_of(batch_of(on_key([0, 1, 2, 3])), model)
    assert finding.status == "ok"
    assert "weighting" not in finding.tables["layers"]["quantity"].to_list()
    assert any("not known in L0" in warning for warning in finding.warnings)
    assert "weighted" not in {figure.name for figure in finding.figures}


@pytest.mark.parametrize(("count", "named"), [(4, "L0, L1, L2, L3:"), (5, "L0, L1, L2, L3 …:")])
def test_a_warning_names_four_sites_and_says_when_there_are_more(count, named):
    sites = [replace(OF, layer=layer) for layer in range(count)]
    model = replace(planted(*sites), statuses=dict.fromkeys(sites, WeightStatus("refused", "no such form")))
    batch = batch_of(on_key([0, 1, 2, 3]))
    captures = {name: dict.fromkeys(sites, by_site[OF]) for name, by_site in batch.captures.items()}
    fold = update(LENS, begin(LENS, Params(), model.spec, tuple(sites)), replace(batch, captures=captures))
    (warning,) = finish(LENS, fold, model).warnings
    assert f"not known in {named}" in warning


def test_a_layer_is_drawn_large_on_request():
    other = replace(OF, layer=1)
    model = planted(OF, other)
    batch = batch_of(on_key([0, 1, 2, 3]))
    captures = {name: {**found, other: found[OF]} for name, found in batch.captures.items()}
    for at in ("L0", "L1"):
        fold = begin(LENS, Params(at=at), model.spec, (OF, other))
        drawn = finish(LENS, update(LENS, fold, replace(batch, captures=captures)), model).figures
        assert any(figure.title.startswith(f"Map of {at}") for figure in drawn)
    with pytest.raises(UsageError, match="matches no head"):
        begin(LENS, Params(at="L7"), model.spec, (OF, other))
    with pytest.raises(UsageError, match="cannot read"):
        LENS.needs(Params(at="x"))


def test_a_head_is_drawn_large_on_request():
    # Head h of four looks at key h: the map of a head has its column, the average all of them.
    pattern = on_key([0, 1, 2, 3])
    finding = finding_of(batch_of(pattern), leave_out="", at="L0.H2")
    tokens, words = ({figure.name: figure for figure in finding.figures}[name] for name in ("tokens", "words"))
    assert tokens.title == "Map of L0.H2, token level"
    assert words.title == "Map of L0.H2, word level"
    assert tokens.caption.startswith("This head alone.")
    np.testing.assert_array_equal(np.nan_to_num(tokens.values), pattern[0, 2].numpy())
    pair = {figure.name: figure for figure in finding_of(batch_of(pattern), at="L0.H1-2").figures}["tokens"]
    assert pair.title == "Map of L0.H1-2, token level"
    assert pair.caption.startswith("Averaged over the selected heads.")


def test_nothing_left_to_show():
    finding = finding_of(batch_of(on_key([0, 0, 0, 0], n=1)))
    assert (finding.status, finding.tables) == ("not applicable", {})
    with pytest.raises(UsageError, match=f"between 1 and {CORNER} tokens"):
        LENS.needs(Params(tokens=CORNER + 1))


def test_the_real_weights_decide_the_lengths():
    weights = gaussian_weights(OF)
    z = torch.randn(1, 4, 6, OF.d_value, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    finding = finding_of(batch_of(on_key([0, 1, 2, 3]), z=z), Planted({OF: weights}), leave_out="")
    by_hand = (z[0, 2] @ weights.w_o[2]).norm(dim=-1).mean()
    assert value(finding, "written", "heads", 2) == pytest.approx(float(by_hand))


def test_word_numbers():
    assert word_numbers([" the", " mark", "et", ".", " ", "x", "y "]) == [0, 1, 1, 1, 2, 2, 2]
    assert word_numbers(["", "", " a", "", "b ", "c"]) == [0, 0, 0, 0, 0, 1]
    assert words([" the", " mark", "et", "."]) == ["the", "market."]
    assert word_numbers([]) == []


def test_tokens_are_spelled_as_the_text(tiny):
    text = "The marketplace at Harrow Bridge – naïve, isn't it?"
    tokens = tiny.encode(text).tolist()
    spelling = spelled_tokens(tiny.tokenizer, tokens)
    assert len(spelling) == len(tokens)
    assert words(spelling)[1:] == text.split()
    assert word_numbers(spelling)[:2] == [0, 1], "a special token is a word of its own"


def test_the_short_form_states_what_the_average_hides():
    """Half of the rows have heads that share no key: three eighths of the mass, half of what is possible."""
    whole = torch.cat([on_key([0, 0, 0, 0])[:, :, :3], on_key([0, 1, 2, 3])[:, :, 3:]], dim=2).repeat(3, 1, 1, 1)
    hidden, _, largest = finding_of(batch_of(whole), leave_out="").headlines
    assert hidden.short == "An average over heads hides 38 % of the median layer's attention; equal heads: 0 %."
    assert hidden.effect == pytest.approx(0.5)
    assert largest.short.endswith(
        "the largest averaged weight is 1.00; in a single head it is 1.00 (intervals overlap)."
    )
    assert largest.effect == 0
    # The first head alone writes: the weighted average is then that head.
    z = torch.ones(3, 4, 6, OF.d_value, dtype=torch.float64)
    z[:, 1:] = 0.0
    alone = finding_of(batch_of(whole, z=z), leave_out="").headlines[1]
    assert "moves 38 % of the averaged attention" in alone.short
    assert alone.effect == pytest.approx(0.5)


def test_equal_heads_have_no_effect():
    headlines = finding_of(batch_of(on_key([0, 0, 0, 0]).repeat(3, 1, 1, 1)), leave_out="").headlines
    assert headlines[0].effect == 0
    assert "hides 0 % of the median layer's attention" in headlines[0].short
    # One window has no interval: nothing is ranked.
    alone = finding_of(batch_of(on_key([0, 1, 2, 3])), leave_out="").headlines
    assert [headline.effect for headline in alone] == [None, None, None]

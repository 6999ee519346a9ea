"""Known answers and planted cases of the lens `composition`."""

from dataclasses import replace
from math import sqrt

import numpy as np
import polars as pl
import pytest
import torch

from headscope.core import Rotary, StreamNorm, StreamReading, WeightStatus
from headscope.errors import UsageError
from headscope.lenses.composition.grams import distance_mean
from headscope.lenses.composition.lens import LENS
from headscope.lenses.composition.settings import Params
from tests.lenses.asking import begin, defined, finish
from tests.lenses.planted import MODELS, SPEC, Planted, gaussian_weights, planted, site

D, WIDTH = 48, 4


def finding_of(model: Planted, **settings):
    return finish(LENS, begin(LENS, Params(**settings), model.spec, model.sites), model)


def deep(layers=4, heads=6, **changes) -> Planted:
    """Random layers, with norms of gain 1."""
    sites = [
        site(n_heads=heads, n_kv_heads=heads, d_head=WIDTH, d_value=WIDTH, layer=n, **changes) for n in range(layers)
    ]
    weights = {of: gaussian_weights(of, d_model=D, seed=number) for number, of in enumerate(sites)}
    norm = StreamNorm(centred=False, gain=torch.ones(D), bias=torch.zeros(D))
    return Planted(weights, replace(SPEC, d_model=D), stream=StreamReading(dict.fromkeys(sites, norm)))


def wired(model: Planted, letter: str) -> Planted:
    """The first head of layer 0 writes exactly what the queries, keys or values of L2.H3 read, evenly."""
    first, last = model.sites[0], model.sites[2]
    directions = torch.eye(D, dtype=torch.float64)[:, :WIDTH]
    w_o, w_v = model.weights_of[first].w_o.clone(), model.weights_of[first].w_v.clone()
    w_o[0] = directions.T
    w_v[0] = torch.eye(D, dtype=torch.float64)[:, WIDTH : 2 * WIDTH]
    read = getattr(model.weights_of[last], f"w_{letter}").clone()
    read[3] = directions
    weights = dict(model.weights_of)
    weights[first] = replace(weights[first], w_o=w_o, w_v=w_v)
    weights[last] = replace(weights[last], **{f"w_{letter}": read})
    return replace(model, weights_of=weights)


@pytest.mark.parametrize("letter", ["q", "k", "v"])
def test_a_head_that_reads_what_another_writes(letter):
    """A flat writer into exactly what is read: |W₁W₂|² = |W₂|² and |W₁|² = d_head, so the score is 1/√d_head."""
    found = finding_of(wired(deep(), letter))
    quantity = "v" if letter == "v" else f"{letter} at 0"
    pair = found.tables["pairs"].filter(pl.col("quantity") == quantity).row(0, named=True)
    assert (pair["writer"], pair["layer"], pair["head"]) == ("L0.H0", 2, 3)
    assert pair["value"] == pytest.approx(1 / sqrt(WIDTH))
    assert pair["z"] > 8
    graph = next(figure for figure in found.figures if figure.name == "graph")
    assert "L0.H0" in graph.nodes


def test_a_turned_writer_is_at_the_null():
    model = wired(deep(), "k")
    first = model.sites[0]
    turn = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    w_o = model.weights_of[first].w_o @ turn
    turned = replace(model, weights_of={**model.weights_of, first: replace(model.weights_of[first], w_o=w_o)})
    rows = finding_of(turned).tables["heads"].filter(pl.col("quantity") == "k at 0", pl.col("layer") == 2)
    assert rows["z"].max() < 5
    assert rows["value"].max() < 0.35


def test_random_heads_have_the_score_of_random_directions():
    found = finding_of(deep(layers=6))
    rows = found.tables["heads"].filter(pl.col("quantity") == "k at 0")
    assert rows["random"].to_list() == pytest.approx([1 / sqrt(D)] * rows.height)
    assert float(np.median(rows["null"])) == pytest.approx(1 / sqrt(D), rel=0.05)


def rotary() -> Rotary:
    """Three planes of six channels; two channels are not turned."""
    angles = torch.tensor([1.0, 0.37, 0.021], dtype=torch.float64)
    return Rotary(8, torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5]), angles)


def test_the_mean_over_distances_is_that_of_many_distances():
    generator = torch.Generator().manual_seed(2)
    factor = torch.randn(2, 8, 8, generator=generator, dtype=torch.float64)
    grams, turn = factor @ factor.mT, rotary()
    turns = torch.stack([turn.turn(distance) for distance in range(20000)])
    long_run = torch.einsum("nab,hbc,ndc->had", turns, grams, turns) / len(turns)
    assert torch.allclose(distance_mean(grams, turn), long_run, atol=0.02 * float(grams.abs().max()))


def test_distances_agree_with_the_definition():
    sites = [site(n_heads=4, n_kv_heads=2, d_head=8, d_value=8, layer=layer) for layer in range(3)]
    model = planted(*sites)
    turned = replace(model, turns=dict.fromkeys(sites, rotary()))
    found, expected = finding_of(turned), defined(LENS, Params(), turned, [])
    assert {"k at 1", "k average", "q at 1", "q average"} <= set(found.tables["heads"]["quantity"])
    for name, column in (("heads", "value"), ("heads", "null"), ("heads", "size"), ("pairs", "value")):
        ours, theirs = (tables[name][column].to_numpy().astype(float) for tables in (found.tables, expected))
        assert ours == pytest.approx(theirs, nan_ok=True)
    assert found.tables["pairs"]["writer"].equals(expected["pairs"]["writer"])


def test_a_turn_that_commutes_with_the_rotation_changes_nothing():
    """The gauge of rotary heads: any turn within the planes, the same for queries and keys."""
    sites = [site(n_heads=4, n_kv_heads=4, d_head=8, d_value=8, layer=layer) for layer in range(3)]
    model = replace(planted(*sites), turns=dict.fromkeys(sites, rotary()))
    gauge = Rotary(8, rotary().first, rotary().second, torch.tensor([0.3, 2.0, 1.1], dtype=torch.float64)).turn(1)
    changed = {of: replace(w, w_q=w.w_q @ gauge, w_k=w.w_k @ gauge) for of, w in model.weights_of.items()}
    before, after = (finding_of(one).tables["heads"] for one in (model, replace(model, weights_of=changed)))
    assert before["value"].to_numpy().astype(float) == pytest.approx(
        after["value"].to_numpy().astype(float), rel=1e-9, nan_ok=True
    )


def test_groups_of_keys_and_values_are_listed_once():
    found = finding_of(MODELS["grouped queries"], top=1000)
    for quantity, readers in (("k at 0", 2), ("v", 2), ("q at 0", 4)):
        assert found.tables["pairs"].filter(pl.col("quantity") == quantity).height == readers * 4


def test_chosen_readers_are_listed():
    pairs = finding_of(deep(), at="L3.H1", top=2).tables["pairs"]
    assert set(zip(pairs["layer"], pairs["head"], strict=True)) == {(3, 1)}
    assert pairs.filter(pl.col("quantity") == "k at 0").height == 2


def test_only_values_where_queries_and_keys_are_normalised():
    model = deep()
    status = WeightStatus("normed", "QK-norm")
    weights = {of: replace(w, status=status) for of, w in model.weights_of.items()}
    found = finding_of(replace(model, weights_of=weights, statuses=dict.fromkeys(model.sites, status)))
    assert set(found.tables["heads"]["quantity"]) == {"v"}


def test_a_stream_that_is_no_sum_is_refused_with_the_reason():
    model = deep()
    stream = replace(model.stream_reading(), not_a_sum={"only": "it norms the stream"})
    found = finding_of(replace(model, stream=stream))
    assert found.status == "not applicable"
    assert "it norms the stream" in found.reason


def test_few_impossible_writers_are_pooled():
    rows = finding_of(deep(layers=5)).tables["heads"].filter(pl.col("quantity") == "v")
    by_layer = {layer: rows.filter(pl.col("layer") == layer)["impossible"][0] for layer in range(5)}
    assert by_layer == {0: 29, 1: 23, 2: 6 * 17, 3: 6 * 11, 4: 6 * 5}


def test_a_head_that_writes_nothing_feeds_nothing():
    model = deep()
    first = model.sites[0]
    weights = {**model.weights_of, first: replace(model.weights_of[first], w_o=0 * model.weights_of[first].w_o)}
    rows = finding_of(replace(model, weights_of=weights)).tables["heads"].filter(pl.col("layer") == 1)
    assert rows["value"].null_count() == rows.height


def test_senseless_settings_are_refused():
    with pytest.raises(UsageError):
        LENS.needs(Params(top=0))
    with pytest.raises(UsageError, match="matches no head"):
        finding_of(deep(), at="L9")

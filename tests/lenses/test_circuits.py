"""Known answers and planted cases of the lens `circuits`."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from headscope.core import Embedding, Rotary, StreamNorm, StreamReading, WeightStatus
from headscope.errors import UsageError, WeightsRefused
from headscope.lenses.circuits.lens import LENS
from headscope.lenses.circuits.ordinal_lists import LISTS
from headscope.lenses.circuits.sentences import _copying, _outside
from headscope.lenses.circuits.settings import Params
from headscope.lenses.circuits.token_pairs import PairScores, skip_trigrams, strongest_pairs, turned_factor
from tests.lenses.asking import begin, defined, finish
from tests.lenses.planted import (
    MODELS,
    SPEC,
    WORDS,
    Planted,
    feed_forward,
    gaussian_weights,
    head_weights,
    planted,
    site,
)

D, WIDTH = 24, 5


def finding_of(model: Planted, **settings):
    params = Params(**settings)
    return finish(LENS, begin(LENS, params, model.spec, model.sites), model)


def value(finding, quantity, head=0, column="value"):
    rows = finding.tables["heads"].filter(pl.col("quantity") == quantity, pl.col("head") == head)
    return rows[column][0]


def frame(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(D, WIDTH, generator=generator, dtype=torch.float64)).Q


def with_outputs(w_v: list[torch.Tensor], w_o: list[torch.Tensor], **changes) -> Planted:
    """A model of one site whose heads have these matrices; norms with gain 1, tied orthonormal tokens."""
    of = site(n_heads=len(w_v), n_kv_heads=len(w_v))
    base = gaussian_weights(of)
    weights = head_weights(of, base.w_q, base.w_k, torch.stack(w_v), torch.stack(w_o))
    norm = StreamNorm(centred=False, gain=torch.ones(D), bias=torch.zeros(D))
    tokens = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).Q
    table = Embedding("token", None, "token", (D, D))
    stream = StreamReading({of: norm}, final=norm, output="token")
    words = replace(WORDS, words=WORDS.words[:D])
    return replace(Planted({of: weights}, SPEC, vectors={table: tokens}, vocabulary=words, stream=stream), **changes)


def test_a_head_that_writes_what_it_reads_copies():
    """w_v w_o = ± c on a subspace: copying is exactly ±1, in the stream and through orthonormal tokens."""
    basis = frame(0)
    found = finding_of(with_outputs([basis, 2 * basis], [3 * basis.T, -basis.T]))
    for quantity in ("stream", "vocabulary"):
        assert value(found, quantity, 0) == pytest.approx(1, abs=1e-9)
        assert value(found, quantity, 1) == pytest.approx(-1, abs=1e-9)
    assert value(found, "centred", 0) == pytest.approx(1, abs=1e-6)
    copied = found.tables["tokens"].filter(pl.col("circuit") == "OV")
    assert (copied["source"] == copied["target"]).all()


@pytest.mark.parametrize(("tokens", "count"), [(3, 3), (0, D), (1000, D)])
def test_lists_hold_the_tokens_with_the_lowest_ids(tokens, count):
    basis = frame(0)
    found = finding_of(with_outputs([basis], [3 * basis.T]), tokens=tokens, top=1000)
    copied = found.tables["tokens"].filter(pl.col("circuit") == "OV")
    assert {word.strip() for word in copied["source"]} == set(WORDS.words[:count])


def test_eigenvalues_of_a_rotation_by_a_right_angle_do_not_copy():
    basis = frame(1)[:, :4]
    turn = torch.zeros(4, 4, dtype=torch.float64)
    turn[0, 1], turn[1, 0], turn[2, 3], turn[3, 2] = 1, -1, 1, -1
    w_v = torch.cat((basis, torch.zeros(D, 1, dtype=torch.float64)), 1)
    w_o = torch.cat((turn @ basis.T, torch.zeros(1, D, dtype=torch.float64)))
    found = finding_of(with_outputs([w_v], [w_o]))
    assert value(found, "stream") == pytest.approx(0, abs=1e-9)
    assert value(found, "stream", column="size") == pytest.approx(4)


def test_a_turned_copying_head_is_at_the_null():
    """What reads other directions than it writes is not told from the heads that the null turns."""
    found = finding_of(with_outputs([frame(seed) for seed in range(8)], [frame(50 + seed).T for seed in range(8)]))
    rows = found.tables["heads"].filter(pl.col("quantity") == "stream")
    assert rows["z"].abs().max() < 3.5
    assert rows["null"].abs().max() < 3 * rows["null_sd"][0] / 40**0.5 + 0.02


def test_a_shared_mean_widens_the_null_through_the_vocabulary():
    """Tokens that share one large direction: chance alone gives large scores, unless the mean is removed."""
    model = planted(site(), site(layer=1))
    shared = 20 * frame(7)[:, 0]
    shifted = {table: vectors + shared for table, vectors in model.vectors.items()}
    found = finding_of(replace(model, vectors=shifted), rotations=100, rows="stored")
    spread = {name: value(found, name, column="null_sd") for name in ("stream", "vocabulary", "centred")}
    assert spread["vocabulary"] > 1.5 * spread["centred"]


def test_stored_rows_and_normed_rows_differ_and_both_are_defined():
    model = MODELS["grouped queries"]
    assert value(finding_of(model, rows="stored"), "centred") != value(finding_of(model), "centred")
    params = Params(rows="stored", distance=2, top=4)
    ours, theirs = finding_of(model, rows="stored", distance=2, top=4).tables, defined(LENS, params, model, [])
    assert ours["tokens"].drop("score", "null").equals(theirs["tokens"].drop("score", "null"))


def test_pairs_of_queries_and_keys_depend_on_the_distance():
    model = MODELS["multi-head"]
    of = model.sites[0]
    rotary = Rotary(5, torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([1.3, 0.4], dtype=torch.float64))
    turned = replace(model, turns=dict.fromkeys(model.sites, rotary))
    assert of in turned.turns
    lists = [
        finding_of(turned, at="L0.H1", distance=distance).tables["tokens"].filter(pl.col("circuit") == "QK")
        for distance in (0, 3)
    ]
    assert not lists[0]["score"].equals(lists[1]["score"])
    theirs = defined(LENS, Params(at="L0.H1", distance=3), turned, [])["tokens"].filter(pl.col("circuit") == "QK")
    assert lists[1]["score"].to_numpy() == pytest.approx(theirs["score"].to_numpy())
    assert lists[1]["query"].equals(theirs["query"])


def test_lists_are_those_of_the_whole_matrix():
    generator = torch.Generator().manual_seed(5)
    moved, attended = (
        PairScores(*(torch.randn(40, 6, generator=generator, dtype=torch.float64) for _ in range(2))) for _ in range(2)
    )
    whole = moved.left @ moved.right.T
    standard = (whole - whole.mean()) / whole.std(correction=0)
    expected = standard.flatten().sort(descending=True).values[:7]
    assert [score for score, _, _ in strongest_pairs(moved, 7)] == pytest.approx(expected.tolist())
    other = attended.left @ attended.right.T
    other = (other - other.mean()) / other.std(correction=0)
    sums = (other[:, :, None] + standard[:, None, :]).flatten().sort(descending=True).values[:7]
    assert [pair.score for pair in skip_trigrams(attended, moved, 7)] == pytest.approx(sums.tolist())


DAYS, MONTHS = (next(part.words for part in LISTS if part.name == name) for name in ("days", "months"))
ORDINAL = replace(WORDS, words=(*DAYS, *MONTHS, "seven", "thirteen", "king", "queen", "river"))


def shifted(words: tuple[str, ...], steps: int) -> torch.Tensor:
    """The map of each word's token to that of the word so many steps later, in a cycle."""
    places = [ORDINAL.words.index(word) for word in words]
    matrix = torch.zeros(D, D, dtype=torch.float64)
    matrix[places, places[steps:] + places[:steps]] = 1.0
    return matrix


def writer_of(*maps: torch.Tensor) -> Planted:
    """One head for each map of tokens to tokens, which are orthonormal; heads of a later layer read the same ones."""
    model = with_outputs([frame(0)], [frame(0).T], vocabulary=ORDINAL)
    tokens = next(iter(model.vectors.values()))
    of = site(n_heads=len(maps), n_kv_heads=len(maps), d_head=WIDTH, d_value=D)
    base = gaussian_weights(of)
    w_v, w_o = torch.stack([tokens.T @ part for part in maps]), tokens.expand(len(maps), -1, -1)
    stream = replace(model.stream_reading(), before={of: StreamNorm(False, torch.ones(D), torch.zeros(D))})
    planted_weights = {of: head_weights(of, base.w_q, base.w_k, w_v, w_o)}
    return replace(model, weights_of=planted_weights, stream=stream, feeds=feed_forward(of))


def successors(finding, head: int, name: str = "all lists"):
    rows = finding.tables["successors"].filter(pl.col("head") == head, pl.col("list") == name)
    return rows.row(0, named=True)


def test_a_head_that_writes_successors():
    """One head writes the next day and month, one the next but one, one copies, one knows the days alone."""
    both = [shifted(DAYS, steps) + shifted(MONTHS, steps) for steps in (1, 2, 0)]
    found = finding_of(writer_of(*both, shifted(DAYS, 1)))
    assert [successors(found, head)["value"] for head in range(3)] == [1.0, 0.0, 0.0]
    assert [successors(found, 3, name)["value"] for name in ("days", "months")] == [
        1.0,
        pytest.approx(1 / 12, abs=1 / 12),
    ]
    row = successors(found, 0)
    assert row["pairs"] == len(DAYS) + len(MONTHS)
    # A random order hits one word of each list in the mean.
    assert row["null"] == pytest.approx(2 / 19, abs=0.02)
    assert row["null_high"] <= row["null_largest"] < 0.5
    assert found.headlines[1].full.startswith("2 of 4 heads are successor heads. L0.H0 raises the next word")
    assert found.headlines[1].effect > 0.5
    assert "successor" in {quantity.key for quantity in found.quantities}


def test_a_list_with_a_word_of_several_tokens_is_left_out_and_the_method_says_so():
    words = tuple(word for word in ORDINAL.words if word != "May")
    model = writer_of(shifted(DAYS, 1), shifted(DAYS, 0))
    found = finding_of(replace(model, vocabulary=replace(ORDINAL, words=(*words, "lake"))))
    assert set(found.tables["successors"]["list"]) == {"all lists", "days"}
    assert "Lists for successors: days. Left out, as a word takes several tokens: months (“May”)" in found.method
    without = finding_of(replace(model, vocabulary=None))
    assert without.tables["successors"].is_empty()
    assert "Successors are not looked for: without a tokenizer" in without.method


def test_random_heads_are_no_successor_heads():
    generator = torch.Generator().manual_seed(4)
    maps = [torch.randn(D, D, generator=generator, dtype=torch.float64) for _ in range(8)]
    found = finding_of(writer_of(*maps))
    rows = found.tables["successors"].filter(pl.col("list") == "all lists")
    assert (rows["value"] <= rows["null_largest"]).all()
    assert found.headlines[1].full.startswith("No successor head was detected among 8")
    assert found.headlines[1].effect == 0


def test_later_layers_read_the_stream_behind_the_first():
    """The same head in the second layer: the first one turned Monday into Tuesday, so it writes Wednesday."""
    first, second = (site(n_heads=1, n_kv_heads=1, d_value=D, layer=layer) for layer in range(2))
    model = writer_of(shifted(DAYS, 1))
    w = next(iter(model.weights_of.values()))
    weights = {first: replace(w, site=first, w_o=50 * w.w_o), second: replace(w, site=second)}
    norm = next(iter(model.stream_reading().before.values()))
    stream = replace(model.stream_reading(), before={first: norm, second: norm})
    found = finding_of(replace(model, weights_of=weights, stream=stream, feeds=quiet(feed_forward(first, second))))
    days = found.tables["successors"].filter(pl.col("list") == "days")
    assert days["value"].to_list() == [1.0, 0.0]


def quiet(feeds: dict) -> dict:
    """Feed-forward parts that give 0."""
    return {name: 0 * matrix for name, matrix in feeds.items()}


def test_the_null_of_a_list_is_that_of_turned_heads():
    """A head that writes to random directions of the stream scores what its null says; a copying one scores more."""
    generator = torch.Generator().manual_seed(6)
    tokens = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q
    chance = tokens[:, :WIDTH]
    found = finding_of(with_outputs([frame(0), frame(0)], [frame(0).T, chance.T]), at="L0", top=3)
    lists = found.tables["tokens"].filter(pl.col("circuit") == "OV", pl.col("rank") == 1)
    copying, random = lists.to_dicts()
    assert copying["score"] > 1.2 * copying["null"]
    assert random["score"] == pytest.approx(random["null"], rel=0.25)


def test_a_turned_factor_keeps_its_singular_values_and_does_not_know_the_inner_basis():
    near, far = (torch.randn(D, WIDTH, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (1, 2))
    inner = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    turned = turned_factor(near, far, frame(9))
    sizes = [torch.linalg.svdvals(near @ part.T)[:WIDTH] for part in (far, turned)]
    assert torch.allclose(*sizes)
    assert torch.allclose(frame(9) @ (frame(9).T @ turned), turned)
    other = turned_factor(near @ inner, far @ torch.linalg.inv(inner).T, frame(9))
    assert torch.allclose(near @ turned.T, near @ inner @ other.T)


def test_a_model_without_logits_has_scores_within_the_stream_only():
    model = MODELS["encoder"]
    reading = replace(model.stream_reading(), output="", final=None)
    found = finding_of(replace(model, stream=reading))
    assert set(found.tables["heads"]["quantity"]) == {"stream"}
    assert found.tables["tokens"].is_empty()
    assert any("Only scores within the stream" in warning for warning in found.warnings)


def test_weights_in_a_file_give_scores_within_the_stream():
    class FromFile(Planted):
        def stream_reading(self):
            raise WeightsRefused("the weights come from a file")

    model = MODELS["grouped queries"]
    found = finding_of(FromFile(model.weights_of, model.spec, vectors=model.vectors))
    assert found.status == "ok"
    assert set(found.tables["heads"]["quantity"]) == {"stream"}


def test_normalised_queries_and_keys_have_no_list():
    model = MODELS["grouped queries"]
    normed = replace(model, statuses=dict.fromkeys(model.sites, WeightStatus("normed", "QK-norm")))
    found = finding_of(normed)
    assert set(found.tables["tokens"]["circuit"]) == {"OV"}
    assert any("normalises queries and keys" in warning for warning in found.warnings)


def test_effective_tokens_are_those_after_the_first_layer():
    model = MODELS["grouped queries"]
    plain, later = finding_of(model), finding_of(model, effective=True)
    rows = [found.tables["heads"].filter(pl.col("quantity") == "centred") for found in (plain, later)]
    assert rows[0].filter(pl.col("layer") == 0).equals(rows[1].filter(pl.col("layer") == 0))
    assert not rows[0].filter(pl.col("layer") == 1).equals(rows[1].filter(pl.col("layer") == 1))


def test_effective_tokens_are_refused_with_the_reason():
    model = MODELS["grouped queries"]
    reading = replace(model.stream_reading(), embedding="the first layer receives positions too")
    found = finding_of(replace(model, stream=reading), effective=True)
    assert found.status == "not applicable"
    assert "positions too" in found.reason


@pytest.mark.parametrize(
    "settings", [{"top": 0}, {"rotations": 1}, {"tokens": -1}, {"distance": -1}, {"rows": "other"}, {"at": "X9"}]
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UsageError):
        LENS.needs(Params(**settings))


def test_a_head_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="matches no head"):
        finding_of(MODELS["grouped queries"], at="L9.H0")


def test_a_score_at_the_end_of_chance_is_not_beyond_it():
    """Eigenvalues of one sign give 1, and so may all draws of the null."""
    ends = {"null_low": [-1.0, -1.0, -0.2], "null_high": [1.0, 1.0, 0.2]}
    assert _outside(pl.DataFrame({"value": [1.0, -1.0, 0.3]} | ends)) == (1, 0)
    assert _outside(pl.DataFrame({"value": [1.0, -1.0, -0.3]} | ends)) == (0, 1)
    heads = pl.DataFrame(
        {"stack": "only", "kind": "self", "layer": 0, "head": [0, 1, 2], "quantity": "stream", "rotations": 64}
        | {"value": [-0.2, 0.2, 0.5], "null": 0.0, "null_low": -0.2, "null_high": 0.2}
    )
    assert _copying(heads, "stream").effect == pytest.approx(0.5 / 3)

"""Kept parts of projections: diagonals, entries, ties, what they cost, their controls, bad input."""

import math

import polars as pl
import pytest
import torch

import headscope
from headscope.core import Site
from headscope.corpora import shipped_text
from headscope.errors import UsageError
from headscope.experiments.intervene.change_spelling import Change, place_of
from headscope.experiments.intervene.changes import changed, controlled
from headscope.experiments.intervene.kept_parts import largest_entries, main_diagonal, random_entries
from headscope.experiments.intervene.matrix_cost import dense_cost, entries_cost, factored_cost, tied_cost
from headscope.model.edit import HeadMatrix
from headscope.model.tracing.projections import Rows

WORDS = "\n\n".join(shipped_text().documents)[:600]
SMALL = {"text": WORDS, "window": 40, "windows": 3, "new_tokens": 4, "prompts": []}
SITE = Site("only", "self", 0, 3, 1, 4, 4, causal=True)


def named(letter: str, *heads: int) -> HeadMatrix:
    rows = Rows("m", torch.zeros(len(heads), 4).long(), torch.ones(len(heads), 4))
    return HeadMatrix(SITE, letter, heads, rows)  # type: ignore[arg-type]


def weights_under(model, change: str, matrices: str, at: str = "all"):
    """The weights of layer 1 while a change is in place, and what it touched."""
    with changed(model, Change.of(change), place_of(matrices, at), 0) as touched:
        return model.weights(model.sites[1]), touched


def test_the_diagonal_of_a_head_is_its_part_of_the_whole() -> None:
    whole = main_diagonal(named("q", 0, 1, 2), torch.zeros(12, 12))
    assert torch.equal(whole, torch.eye(12, dtype=torch.bool))
    assert torch.equal(main_diagonal(named("q", 0, 2), torch.zeros(12, 8)), whole[:, [*range(4), *range(8, 12)]])
    assert torch.equal(main_diagonal(named("o", 1), torch.zeros(4, 12)), whole[4:8])
    grouped = main_diagonal(named("k", 0), torch.zeros(12, 4))
    assert torch.equal(grouped, whole[:, :4]), "one key head of three reads the first coordinates"
    beyond = main_diagonal(named("q", 0, 1, 2), torch.zeros(10, 12))
    assert int(beyond.sum()) == 10


def test_the_largest_entries_are_the_nearest() -> None:
    w = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    stays = largest_entries(w, 0.4)
    assert int(stays.sum()) == 14
    assert float(w[stays].abs().min()) >= float(w[~stays].abs().max())
    for seed in range(20):
        other = random_entries(w, 14, torch.Generator().manual_seed(seed))
        assert int(other.sum()) == 14
        assert float(w[~stays].norm()) < float(w[~other].norm())
    assert bool(largest_entries(w, 1.0).all())
    assert largest_entries(torch.ones(2, 2), 0.5).tolist() == [[True, True], [False, False]]


def test_costs_are_counts() -> None:
    rows, columns = 12, 8
    u, v = torch.zeros(rows, 3), torch.zeros(3, columns)
    assert factored_cost(rows, columns, 3).numbers == u.numel() + v.numel()
    assert factored_cost(rows, columns, 3).flops == 2 * (u.numel() + v.numel())
    assert factored_cost(rows, columns, 8) == dense_cost(rows, columns), "two factors would cost more than the matrix"
    assert entries_cost(torch.eye(5, dtype=torch.bool)) == entries_cost(torch.tensor([[True] * 5]))
    assert entries_cost(torch.eye(5, dtype=torch.bool)).flops == 10
    assert (tied_cost(8, 1).numbers, tied_cost(8, 1).flops) == (0, 0)
    assert tied_cost(8, 3).flops == 24  # two additions and a product by 1/3 for each output


def test_what_is_kept_is_what_is_counted(tiny) -> None:
    for change in ("keep diagonal", "keep 25%"):
        weights, touched = weights_under(tiny, change, "qk", "L1")
        counted = {matrix.letter: matrix.cost.numbers for matrix in touched}
        assert int(weights.w_q.count_nonzero()) == counted["q"]
        assert int(weights.w_k.count_nonzero()) == counted["k"]
    before = tiny.weights(tiny.sites[1])
    assert int(before.w_q.count_nonzero()) == before.w_q.numel()
    d_model = before.w_q.shape[1]
    diagonal, _ = weights_under(tiny, "keep diagonal", "q", "L1")
    side_by_side = diagonal.w_q.permute(1, 0, 2).flatten(1)
    assert torch.equal(side_by_side, torch.diag(before.w_q.permute(1, 0, 2).flatten(1).diagonal()))
    assert side_by_side.shape == (d_model, d_model)


def test_tied_scores_are_symmetric(tiny) -> None:
    """W_QK of a tied head is W Wᵀ: token a minds b as b minds a, and itself most."""
    tied, _ = weights_under(tiny, "tie qk", "qk")
    form = tied.w_q[5] @ tied.w_k[tied.kv_of_head(5)].T
    assert torch.allclose(form, form.T, atol=1e-6)
    assert float(torch.linalg.eigvalsh(form.double()).min()) > -1e-5
    before = tiny.weights(tiny.sites[1])
    original = before.w_q[5] @ before.w_k[before.kv_of_head(5)].T
    assert not torch.allclose(original, original.T, atol=1e-3)


def test_tied_groups(tiny) -> None:
    before = tiny.weights(tiny.sites[1])
    queries, of_queries = weights_under(tiny, "tie qk", "qk")
    assert all(torch.equal(queries.w_q[head], before.w_k[before.kv_of_head(head)]) for head in range(8))
    assert torch.equal(queries.w_k, before.w_k)
    keys, of_keys = weights_under(tiny, "tie kq", "qk")
    assert torch.allclose(keys.w_k[2], (before.w_q[4] + before.w_q[5]) / 2)
    assert torch.equal(keys.w_q, before.w_q)
    assert [(m.letter, m.cost.numbers, m.cost.flops) for m in of_queries[:2]] == [
        ("q", 0, 0), ("k", before.w_k.numel(), 2 * before.w_k.numel())
    ]  # fmt: skip
    assert (of_keys[1].cost.numbers, of_keys[1].cost.flops) == (0, 2 * 64)  # means of two heads, 64 outputs
    values, _ = weights_under(tiny, "tie vk", "kv")
    assert torch.equal(values.w_v, before.w_k)
    alone, touched = weights_under(tiny, "tie kq", "qk", "L1.H4")
    assert torch.equal(alone.w_k[2], keys.w_k[2])
    assert torch.equal(alone.w_k[0], before.w_k[0])
    assert [matrix.heads for matrix in touched] == [(4,), (2,)]


def test_the_control_keeps_as_many_entries(tiny) -> None:
    change, place = Change.of("keep 25%"), place_of("q", "L1")
    with changed(tiny, change, place, 0) as touched:
        largest = tiny.weights(tiny.sites[1]).w_q
    with controlled(tiny, change, place, touched, 0, 0) as drawn:
        random = tiny.weights(tiny.sites[1]).w_q
    with controlled(tiny, change, place, touched, 0, 1):
        other = tiny.weights(tiny.sites[1]).w_q
    assert drawn[0].cost == touched[0].cost
    assert int(random.count_nonzero()) == int(largest.count_nonzero())
    assert float(random.norm()) < 0.8 * float(largest.norm())
    assert not torch.equal(random != 0, other != 0)
    with changed(tiny, Change.of("tie qk"), place_of("qk", "L1"), 0) as touched:
        pass
    keys = tiny.weights(tiny.sites[1]).w_k
    with controlled(tiny, Change.of("tie qk"), place_of("qk", "L1"), touched, 0) as drawn:
        assert torch.equal(tiny.weights(tiny.sites[1]).w_k, keys)
    assert drawn[0].change_norm == pytest.approx(touched[0].change_norm)
    assert (drawn[1].change_norm, drawn[1].n_kept) == (0.0, min(drawn[1].shape))


def test_quality_and_cost_are_in_one_table(tiny) -> None:
    before = [parameter.detach().clone() for parameter in tiny.hf.parameters()]
    options = {"keep": ("diagonal", "25%", "100 %"), "tie": "qk", "rank": "8", "matrices": "qk", "draws": 2}
    finding = headscope.intervene(tiny, **options, **SMALL)["intervene"]
    rows = {(row["change"], row["which"]): row for row in finding.tables["effects"].iter_rows(named=True)}
    sizes = {letter: tiny.weights(tiny.sites[0]).__dict__[f"w_{letter}"].numel() for letter in "qk"}
    whole = sum(sizes.values())
    d_model = tiny.spec.d_model
    assert rows["original", "original"]["numbers"] == 1.0
    assert rows["keep 25%", "change"]["numbers"] == rows["keep 25%", "control"]["flops"] == 0.25
    assert rows["keep diagonal", "change"]["numbers"] == pytest.approx((d_model + sizes["k"] // d_model) / whole)
    assert rows["tie qk", "change"]["numbers"] == pytest.approx(sizes["k"] / whole)
    assert rows["tie qk", "control"]["numbers"] == 1.0
    factors = 8 * (d_model + sizes["q"] // d_model) + 8 * (d_model + sizes["k"] // d_model)
    assert rows["rank 8", "change"]["flops"] == pytest.approx(factors / whole)
    everything = rows["keep 100%", "change"]
    assert everything["ratio"] == 1.0
    assert everything["numbers"] == 1.0
    assert rows["keep 25%", "change"]["ratio"] < rows["keep 25%", "control"]["ratio_least"]
    assert all(torch.equal(a, b) for a, b in zip(tiny.hf.parameters(), before, strict=True))
    assert "with 25 % of the numbers" in finding.headlines[0].full
    assert "in random directions or at random places (mean of 2 draws" in finding.headlines[0].full
    assert any("W_K has fewer outputs than inputs (64 of 128 in L0)" in warning for warning in finding.warnings)
    matrices = finding.tables["matrices"].filter(pl.col("change") == "keep 25%", pl.col("which") == "change")
    assert matrices["numbers"].to_list() == [sizes[letter] // 4 for _ in tiny.sites for letter in "qk"]
    kept = next(figure for figure in finding.figures if figure.name == "kept")
    assert {series.label for series in kept.series} == {
        "rank 8", "keep diagonal", "keep 25%", "tie qk", "controls", "original"
    }  # fmt: skip


def test_changes_that_save_nothing_have_no_column_of_costs(tiny) -> None:
    finding = headscope.intervene(tiny, "scale 2", draws=1, **SMALL)["intervene"]
    assert not {"numbers", "flops"} & set(finding.tables["effects"].columns)
    assert finding.headlines[0].full.count("at random places") == 0


def test_planted_entries_carry_everything(tiny) -> None:
    """W_Q has entries on its diagonal only: keeping these is no change, and keeping others is one."""
    with tiny.edit() as edit:
        edit.map_matrix("L1", "q", lambda _, w: torch.diag(w.diagonal()))
        planted = tiny.weights(tiny.sites[1]).w_q.permute(1, 0, 2).flatten(1).double()
    mask = main_diagonal(HeadMatrix(tiny.sites[1], "q", tuple(range(8)), Rows("q", torch.zeros(8, 16).long(),
                                                                            torch.ones(8, 16))), planted)  # fmt: skip
    assert torch.equal(torch.where(mask, planted, 0.0), planted)
    share = float(mask.sum()) / mask.numel()
    assert torch.equal(largest_entries(planted, share), mask)
    random = random_entries(planted, int(mask.sum()), torch.Generator().manual_seed(0))
    assert float(torch.where(random, planted, 0.0).norm()) < 0.5 * float(planted.norm())


@pytest.mark.parametrize(
    ("spelling", "label"), [("keep 25 %", "keep 25%"), ("keep=diagonal", "keep diagonal"), ("tie kq", "tie kq")]
)
def test_spellings(spelling: str, label: str) -> None:
    assert Change.of(spelling).label == label


def test_the_share_of_a_spelling() -> None:
    assert Change.of("keep 12.5%").share == 0.125
    assert math.isclose(Change.of("keep 0.1%").share, 0.001)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "0%"}, "above 0 % and at most 100 %"),
        ({"keep": "101%"}, "above 0 % and at most 100 %"),
        ({"keep": "nan%"}, "above 0 %"),
        ({"keep": "half"}, "cannot read what to keep: 'half'"),
        ({"keep": "25"}, "cannot read what to keep: '25'"),
        ({"keep": "10%%"}, "cannot read what to keep"),
        ({"tie": "qk", "matrices": "q"}, "tie qk is about W_K, which --matrices q does not name"),
        ({"tie": "vk"}, "is about W_V"),
        ({"tie": "qo"}, "there is no 'qo'"),
    ],
)
def test_what_cannot_be_kept_is_refused(tiny, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        headscope.intervene(tiny, **options, **SMALL)
    assert not tiny.edited

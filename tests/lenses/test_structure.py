"""Planted cases of the lens `structure`: maps of known families, and outputs of which a known part is missed."""

from math import sqrt

import polars as pl
import pytest
import torch

from headscope.attention.statistics import Request
from headscope.core import HeatMap, Mosaic
from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.structure.lens import LENS
from headscope.lenses.structure.settings import Params
from headscope.lenses.structure.structures import PAIR_STRUCTURES, Structure, mask_of
from headscope.lenses.structure.tables import USUAL_BOUND
from headscope.maths.linear_algebra.structured_maps import (
    positional_head,
    rare_token_head,
    syntactic_head,
    with_sparse_error,
)
from tests.contract.test_lenses import differences, finding_on, with_ends
from tests.lenses.asking import begin, defined, finish, merge, update
from tests.lenses.planted import MODELS, batches, planted, site

N = 48
OF = site(n_heads=1, n_kv_heads=1, causal=False)
CAUSAL = site(n_heads=1, n_kv_heads=1)


def batch_of(maps: torch.Tensor, of=OF, *, seed: int = 0, v: torch.Tensor | None = None, gram=None) -> Batch:
    """Windows of one head each, with random values and a random W_O where no others are given."""
    generator = torch.Generator().manual_seed(seed)
    windows, _, n, keys = maps.shape
    real = torch.ones(windows, n, dtype=torch.bool)
    tokens = torch.randint(50, (windows, n), generator=generator)
    v = torch.randn(windows, 1, keys, 5, generator=generator, dtype=torch.float64) if v is None else v
    w_o = torch.randn(1, 5, 24, generator=generator, dtype=torch.float64)
    gram = (w_o @ w_o.mT) if gram is None else gram
    captures = {"query_runs": {of: maps}, "v": {of: v}, "output_gram": {of: gram.expand(windows, -1, -1, -1)}}
    return Batch(AS_IS, tokens, real, captures={name: dict(parts) for name, parts in captures.items()})


def finding_of(*parts: Batch, of=OF, params: Params | None = None):
    model = planted(of)
    fold = begin(LENS, params or Params(), model.spec, (of,))
    for part in parts:
        fold = update(LENS, fold, part)
    return finish(LENS, fold, model)


def family_of(maps: torch.Tensor, of=OF) -> dict[str, object]:
    return finding_of(batch_of(maps[:, None], of), of=of).tables["families"].row(0, named=True)


def noisy(maps: list[torch.Tensor], size: float = 0.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(99)
    return torch.stack([with_sparse_error(p, len(p), size, generator) for p in maps])


def test_a_positional_head_is_positional():
    for size in (0.0, 0.1, 0.4):
        row = family_of(noisy([positional_head(N)] * 6, size))
        assert row["family"] == "positional"
        assert row["value"] > 0.7
        assert row["null"] < 0.1
        assert row["offset"] == 0


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dropped", [0.0, 0.3])
def test_a_syntactic_head_gives_back_its_width(width, dropped):
    generator = torch.Generator().manual_seed(width)
    row = family_of(noisy([syntactic_head(N, width, dropped, generator) for _ in range(12)], 0.1))
    assert row["family"] == "syntactic"
    # The outermost distance holds a small part of the mass, so that single windows may miss it.
    assert width - 0.5 <= row["width"] <= width + 0.5
    assert row["width_low"] <= row["width"] <= row["width_high"]
    assert row["near"] > row["near_null"] + 0.3


@pytest.mark.parametrize(("width", "positions"), [(4, 2), (6, 3), (8, 2)])
def test_a_rare_token_head_gives_back_its_blocks(width, positions):
    maps: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(width)
    while len(maps) < 12:
        p = rare_token_head(N, width, positions, generator)
        target = p.argmax(-1)
        runs = [len(list(target[target == token])) for token in target.unique() if int((target == token).sum()) > 1]
        # Blocks that overlap or that hold the first token are drawn again: they are no longer what was asked for.
        if len(runs) == positions and set(runs) == {width} and not bool((target[1:] == 0).any()):
            maps.append(p)
    row = family_of(noisy(maps, 0.1))
    assert row["family"] == "rare token"
    assert row["positions"] == pytest.approx(16 * positions / N, rel=0.05)
    assert row["block_width"] == pytest.approx(width, rel=0.05)
    assert row["rare_token"] > 0.8
    assert row["rare_token_null"] < 0.3


def test_a_fixed_offset_is_not_positional():
    """The token before, in a causal model: a band of half-width 1, and the column `offset` says which distance."""
    before = torch.eye(N, dtype=torch.float64).roll(-1, 1).tril()
    before[0, 0] = 1.0
    row = family_of(before.expand(4, N, N), CAUSAL)
    assert (row["family"], row["width"], row["offset"]) == ("syntactic", 1.0, 1)
    assert row["offset_mass"] == pytest.approx(1.0)
    assert row["positional"] < 0.05


def test_uniform_attention_has_no_family():
    even = torch.ones(N, N, dtype=torch.float64).tril()
    row = family_of((even / even.sum(-1, keepdim=True)).expand(4, N, N), CAUSAL)
    assert row["family"] == "none"


def test_a_head_at_rest_on_the_first_token_has_no_family_of_conti():
    rest = 0.2 * torch.eye(N, dtype=torch.float64)
    rest[:, 0] += 0.8
    row = family_of(rest.expand(4, N, N), CAUSAL)
    assert row["family"] == "first token"
    assert row["positional"] == pytest.approx(1.0)


def test_permuted_keys_belong_to_no_family():
    generator = torch.Generator().manual_seed(3)
    maps = [syntactic_head(N, 3, 0.0, generator)[:, torch.randperm(N, generator=generator)] for _ in range(6)]
    assert family_of(torch.stack(maps))["family"] == "none"


def structure_row(finding, name: str, size: int | None = None, entries: int | None = None) -> dict[str, object]:
    rows = finding.tables["structures"].filter(
        pl.col("form") == name, pl.col("size").eq_missing(size), pl.col("entries").eq_missing(entries)
    )
    assert rows.height == 1
    return rows.row(0, named=True)


def test_errors_of_a_map_that_a_band_holds():
    """A band of 2 carries it whole; the diagonal alone misses what lies off it."""
    generator = torch.Generator().manual_seed(5)
    maps = torch.stack([syntactic_head(N, 2, 0.0, generator) for _ in range(5)])
    finding = finding_of(batch_of(maps[:, None]))
    assert structure_row(finding, "band", 2)["value"] == pytest.approx(0.0, abs=1e-7)
    diagonal = structure_row(finding, "band", 0)
    assert diagonal["map_error"] == pytest.approx(1 - float(maps.diagonal(dim1=1, dim2=2).mean()))
    assert diagonal["kept"] == 1.0
    smallest = finding.tables["smallest"].filter(pl.col("within") == 1).row(0, named=True)
    assert smallest["kept"] <= structure_row(finding, "band", 2)["kept"]
    assert smallest["value"] <= 0.01
    assert structure_row(finding, "zero")["value"] == pytest.approx(1.0)
    assert structure_row(finding, "zero")["map_error"] == pytest.approx(0.5)


def test_what_is_written_counts_and_not_the_map():
    """Keys whose values W_O does not write may be left out: the map is wrong, the output is not."""
    p = torch.zeros(N, N, dtype=torch.float64)
    p[:, 0], p[:, 1] = 0.5, 0.5
    v = torch.zeros(1, 1, N, 5, dtype=torch.float64)
    v[..., 0] = 1.0
    v[:, :, 1, 3] = 7.0  # another value on the second key, in a direction that W_O does not read
    gram = torch.zeros(1, 5, 5, dtype=torch.float64)
    gram[0, 0, 0] = 4.0
    finding = finding_of(batch_of(p[None, None], v=v, gram=gram))
    first = structure_row(finding, "first tokens", 1)
    assert first["value"] == pytest.approx(0.0, abs=1e-7)
    assert first["map_error"] == pytest.approx(0.5)


def test_the_written_error_is_a_ratio_of_norms():
    """Two keys with orthogonal values of equal length: to keep one of them costs a known share."""
    p = torch.zeros(N, N, dtype=torch.float64)
    p[:, 0], p[:, 1] = 0.5, 0.5
    v = torch.zeros(1, 1, N, 5, dtype=torch.float64)
    v[0, 0, 0, 0] = v[0, 0, 1, 1] = 1.0
    finding = finding_of(batch_of(p[None, None], v=v, gram=torch.eye(5, dtype=torch.float64)[None]))
    # (½, ½) becomes (1, 0): a change of √½ against a length of √½.
    assert structure_row(finding, "first tokens", 1)["value"] == pytest.approx(1.0)
    assert structure_row(finding, "columns", 2)["value"] == pytest.approx(0.0, abs=1e-7)
    assert structure_row(finding, "low rank", 1)["value"] == pytest.approx(0.0, abs=1e-6)
    assert structure_row(finding, "linear kernel", 16)["map_error"] < 1e-3
    uniform = sqrt(0.5 * 0.0 + (0.5 - 1 / N) ** 2 * 2) / sqrt(0.5)
    assert structure_row(finding, "uniform")["value"] == pytest.approx(uniform)


def test_offsets_columns_blocks_and_entries_find_what_is_planted():
    offset = torch.eye(N, dtype=torch.float64).roll(-5, 1).tril()
    offset[:5, 0] = 1.0
    column = torch.zeros(N, N, dtype=torch.float64)
    column[:, [7, 30]] = 0.5
    block = torch.block_diag(*[torch.full((8, 8), 1 / 8, dtype=torch.float64)] * 6)
    spread = torch.zeros(N, N, dtype=torch.float64)
    for i in range(N):
        spread[i, [(7 * i + 3 * k) % N for k in range(4)]] = 0.25
    cases = {"columns": (column, 2, None), "blocks": (block, 8, None), "band and entries": (spread, 1, 4)}
    for name, (p, size, entries) in cases.items():
        finding = finding_of(batch_of(p[None, None]))
        assert structure_row(finding, name, size, entries)["value"] == pytest.approx(0.0, abs=1e-7), name
    finding = finding_of(batch_of(offset[None, None], CAUSAL), of=CAUSAL)
    # Five rows of the first queries look elsewhere.
    assert structure_row(finding, "offsets", 1)["map_error"] < 5 / N
    with_first = structure_row(finding, "band and first token", 0)
    assert with_first["kept"] == pytest.approx(structure_row(finding, "band", 0)["kept"] + 1.0)


def test_masks_that_are_drawn_keep_what_the_fold_keeps():
    """As many pairs as the fold counts, for every structure, on a map without ties."""
    scores = torch.randn(N, N, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    for of in (OF, CAUSAL):
        visible = torch.ones(N, N, dtype=torch.bool).tril() if of.causal else torch.ones(N, N, dtype=torch.bool)
        p = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        finding = finding_of(batch_of(p[None, None], of), of=of)
        rows = [i for i in range(N) if int(visible[i].sum()) > 1]
        for structure in PAIR_STRUCTURES:
            mask = mask_of(structure, p[rows], visible[rows], torch.tensor(rows))
            if not bool((mask == visible[rows]).all()):
                kept = structure_row(finding, structure.form, structure.size, structure.entries)["kept"]
                assert kept == pytest.approx(int(mask.sum()) / len(rows)), structure


def test_only_so_many_windows_are_measured():
    parts = batches(MODELS["multi-head"], Request())
    of = MODELS["multi-head"].sites

    def folded(some):
        fold = begin(LENS, Params(windows=3), MODELS["multi-head"].spec, of)
        for part in some:
            fold = update(LENS, fold, part)
        return fold

    whole = finish(LENS, folded(parts), None)
    joined = finish(LENS, merge(LENS, folded(parts[:1]), folded(parts[1:])), None)
    assert set(whole.tables["families"]["windows"]) == {3}
    assert "3 more were not measured" in whole.method
    assert joined.method == whole.method
    for name, table in whole.tables.items():
        assert table.equals(joined.tables[name]), name


def test_cross_attention_alone_does_not_apply():
    of = site(kind="cross", stack="dec", causal=False)
    model = planted(of)
    fold = begin(LENS, Params(), model.spec, (of,))
    for part in batches(model, Request()):
        fold = update(LENS, fold, part)
    finding = finish(LENS, fold, model)
    assert finding.status == "not applicable"
    assert "self-attention" in finding.reason


def test_figures_name_the_families_and_draw_a_fitted_map():
    generator = torch.Generator().manual_seed(4)
    maps = torch.stack([syntactic_head(N, 2, 0.0, generator) for _ in range(3)])
    figures = {figure.name: figure for figure in finding_of(batch_of(maps[:, None])).figures}
    families, fitted = figures["families"], figures["map_syntactic"]
    assert isinstance(families, Mosaic)
    assert families.values.tolist() == [[1.0 + families.kinds.index("syntactic")]]
    assert isinstance(fitted, Mosaic)
    assert "L0.H0 (syntactic), carried by: " in fitted.title
    assert isinstance(figures["smallest"], HeatMap)


@pytest.mark.parametrize("params", [Params(windows=0), Params(reach=0)])
def test_settings_without_a_window_or_a_neighbour_are_refused(params):
    with pytest.raises(UsageError, match=f"windows={params.windows} and reach={params.reach}"):
        LENS.needs(params)


def test_a_structure_says_whether_it_keeps_pairs():
    assert Structure("band", 3).keeps_pairs
    assert not Structure("low rank", 3).keeps_pairs


@pytest.mark.parametrize("causal", [True, False])
def test_long_windows_agree_with_the_definition(causal):
    """Several stretches of rows, wide bands and large blocks, which the small models of the contract do not have."""
    model = planted(site(n_heads=2, n_kv_heads=1, causal=causal))
    parts = batches(model, Request(), shapes=((140, 133), (70,)))
    fold = begin(LENS, Params(), model.spec, model.sites)
    for part in parts:
        fold = update(LENS, fold, part)
    finding = finish(LENS, fold, model)
    assert {"32", "64"} <= {str(size) for size in finding.tables["structures"]["size"].to_list()}
    expected = with_ends(defined(LENS, Params(), None, parts), finding.tables)
    assert not differences(finding.tables, expected)


def test_heads_at_the_ends_of_few_quantities_are_named():
    """Of bands those with the first token, of bounds the usual one."""
    quantities = {quantity.key: quantity for quantity in finding_on("structure", "grouped queries").quantities}
    assert quantities["band_and_first_token"].lowest == "best carried by a band"
    assert quantities["band_and_first_token"].highest == "worst carried by a band"
    assert quantities["band"].lowest == quantities["band"].highest == ""
    named = {key for key, quantity in quantities.items() if "keys" in quantity.highest + quantity.lowest}
    assert named == {f"pairs_{USUAL_BOUND}"}
    assert next(key for key in quantities if key.startswith("pairs_")) == f"pairs_{USUAL_BOUND}"

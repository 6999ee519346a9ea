"""What lenses draw are the numbers of their tables: each map and each curve beside its definition on the tables."""

import math
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
import torch

from headscope.core import Curves, HeatMap, Histogram, Mosaic, Network, Series, Site
from headscope.lenses.angles.arcs import TIMES
from headscope.lenses.angles.figures import _arcs
from headscope.lenses.circuits.tables import ALL_LISTS
from headscope.lenses.embeddings.figures import _ranks
from headscope.lenses.embeddings.meaning import Analogies
from headscope.lenses.focus.figures import _span, tokens
from headscope.lenses.maps.figures import ACROSS, _grid
from headscope.lenses.roles.tables import REPEATED, TEXT
from headscope.lenses.shared.plots import label_of
from headscope.lenses.structure.example import Example
from headscope.lenses.structure.figures import _DRAWN_KEYS, FAMILIES, _fitted_map
from headscope.lenses.structure.structures import BAND, Structure
from headscope.lenses.structure.tables import NONE, SYNTACTIC
from headscope.maths.random_matrices.null_spectrum import random_distance
from tests.contract.test_lenses import finding_on

SHAPES = ("grouped queries", "encoder-decoder")
value, null = pl.col("value"), pl.col("null")


def figure_of(lens: str, name: str, shape: str = "grouped queries"):
    return next((figure for figure in finding_on(lens, shape).figures if figure.name == name), None)


def rows_of(lens: str, table: str, shape: str = "grouped queries", **where: object) -> pl.DataFrame:
    rows = finding_on(lens, shape).tables[table]
    return rows.filter(*(pl.col(column) == wanted for column, wanted in where.items()))


def by_site(rows: pl.DataFrame, expression: pl.Expr) -> dict[str, np.ndarray]:
    """The numbers of the heads of each site, by its label."""
    numbers: dict[str, list[float]] = {}
    for row in rows.with_columns(drawn=expression.cast(pl.Float64)).to_dicts():
        label = label_of(row).rpartition(".H")[0]
        numbers.setdefault(label, []).append(math.nan if row["drawn"] is None else row["drawn"])
    return {label: np.array(heads) for label, heads in numbers.items()}


MAPS: list[tuple[str, str, str, dict[str, object], pl.Expr]] = [
    ("alignment", "trace_share", "heads", {"quantity": "trace_share"}, value),
    ("alignment", "symmetric_share", "heads", {"quantity": "symmetric_share"}, value),
    ("alignment", "subspace_overlap", "heads", {"quantity": "subspace_overlap"}, value / null),
    ("angles", "given_distance", "heads", {"quantity": "input_rank"}, pl.col("given_distance")),
    ("circuits", "copying_centred", "heads", {"quantity": "centred"}, value),
    ("circuits", "copying_vocabulary", "heads", {"quantity": "vocabulary"}, value),
    ("circuits", "copying_stream", "heads", {"quantity": "stream"}, value),
    ("circuits", "successors", "successors", {"list": ALL_LISTS}, value),
    ("composition", "composition_q", "heads", {"quantity": "q at 0"}, value),
    ("composition", "composition_k", "heads", {"quantity": "k at 0"}, value),
    ("composition", "composition_v", "heads", {"quantity": "v"}, value),
    ("composition", "size", "heads", {"quantity": "v"}, pl.col("size")),
    ("dependence", "pointwise_excess", "heads", {"quantity": "pointwise"}, pl.col("excess")),
    ("dependence", "nearness_value", "heads", {"quantity": "nearness"}, value),
    ("dependence", "trace_value", "heads", {"quantity": "trace"}, value),
    ("dependence", "dependent_size", "pairs", {"quantity": "dependent"}, pl.col("shift") / pl.col("variance").sqrt()),
    ("focus", "entropy_share", "heads", {"quantity": "entropy_share"}, value),
    ("focus", "distance", "heads", {"quantity": "distance"}, value),
    ("focus", "first", "heads", {"quantity": "first"}, value),
    ("focus", "band_8", "heads", {"quantity": "band_8"}, value),
    ("likeness", "itself", "heads", {"distance": 0}, pl.col("effect")),
    ("lowrank", "components_90", "components", {"quantity": "components_90"}, value),
    ("roles", "induction", "heads", {"role": "induction", "source": REPEATED}, value),
    ("roles", "prefix_matching", "heads", {"role": "prefix matching", "source": TEXT}, value),
    ("roles", "previous_token", "heads", {"role": "previous token", "source": REPEATED}, value),
    ("scores", "row_variance", "heads", {"quantity": "row_variance"}, (value / pl.col("predicted")).log(2)),
    ("scores", "entropy_gap", "heads", {"quantity": "entropy_share"}, value - pl.col("predicted")),
    ("scores", "freezing", "heads", {"quantity": "freezing"}, value),
    ("scores", "bound_reached", "bounds", {}, value / pl.col("bound")),
    ("spectra", "qk_effective_rank", "heads", {"matrix": "QK", "quantity": "effective_rank"}, value / null),
    ("spectra", "ov_effective_rank", "heads", {"matrix": "OV", "quantity": "effective_rank"}, value / null),
    ("spectra", "qk_norm", "heads", {"matrix": "QK", "quantity": "sum_squares"}, value.sqrt().log10()),
    ("spectra", "ov_norm", "heads", {"matrix": "OV", "quantity": "sum_squares"}, value.sqrt().log10()),
    ("structure", "smallest", "smallest", {"within": 5}, pl.col("share")),
    ("transport", "vector_missed", "heads", {"quantity": "vector"}, value**2),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("lens", "name", "table", "where", "expression"), MAPS)
def test_a_map_holds_a_column_of_its_table(
    lens: str, name: str, table: str, where: dict[str, object], expression: pl.Expr, shape: str
) -> None:
    figure, rows = figure_of(lens, name, shape), rows_of(lens, table, shape, **where)
    numbers = {label: heads for label, heads in by_site(rows, expression).items() if np.isfinite(heads).any()}
    if figure is None:
        assert not numbers
        return
    assert isinstance(figure, HeatMap)
    drawn = dict(zip(figure.row_labels, figure.values, strict=True))
    assert drawn.keys() >= numbers.keys()
    for label, heads in drawn.items():
        wanted = numbers.get(label, np.full(len(heads), np.nan))
        assert np.allclose(heads, wanted, rtol=1e-9, atol=1e-12, equal_nan=True), label


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("lens", "name", "least"),
    [
        ("alignment", "trace_share", 0.0),
        ("alignment", "symmetric_share", 0.0),
        ("angles", "given_distance", 0.3),
        ("dependence", "pointwise_excess", 0.1),
        ("dependence", "nearness_value", 0.1),
        ("dependence", "dependent_size", 0.1),
        ("likeness", "itself", 0.0),
        ("scores", "row_variance", 1.0),
        ("scores", "entropy_gap", 0.05),
        ("circuits", "copying_centred", 1.0),
    ],
)
def test_colours_reach_as_far_on_both_sides_of_the_reference(lens: str, name: str, least: float, shape: str) -> None:
    """As far as the values, and not so near that next to nothing looks like a finding."""
    figure = figure_of(lens, name, shape)
    if figure is None:
        return
    width = max(least, float(np.nanmax(np.abs(figure.values - figure.reference))))
    assert figure.limits == (pytest.approx(figure.reference - width), pytest.approx(figure.reference + width))


def test_a_reference_is_the_median_of_the_null() -> None:
    rows = rows_of("alignment", "heads", quantity="symmetric_share")
    assert figure_of("alignment", "symmetric_share").reference == pytest.approx(rows["null"].median())
    assert f"± {rows['sd'].median():.2g} (one" in figure_of("alignment", "symmetric_share").caption


Reduced = Callable[[np.ndarray], float]
MEDIAN, LEAST, MOST, MEAN = np.nanmedian, np.nanmin, np.nanmax, np.nanmean
BAND_OF_HEADS = (MEDIAN, LEAST, MOST)
# Lens, figure, curve, table, rows, column, and what is taken of the heads of a layer: value, and ends of a band.
HEAD_CURVES: list[tuple[str, str, str, str, dict[str, object], pl.Expr, tuple[Reduced, ...]]] = [
    ("angles", "by_layer", "inputs", "heads", {"quantity": "input_rank"}, value, BAND_OF_HEADS),
    ("angles", "by_layer", "tokens shuffled", "heads", {"quantity": "input_rank"}, null, (MEDIAN,)),
    ("angles", "by_layer", "embeddings", "heads", {"quantity": "embedding_rank"}, value, (MEDIAN,)),
    ("focus", "distance_by_layer", "median head", "heads", {"quantity": "distance"}, value, BAND_OF_HEADS),
    ("focus", "first_by_layer", "uniform attention", "heads", {"quantity": "first"}, pl.col("uniform"), (MEAN,)),
    ("focus", "band_8_by_layer", "median head", "heads", {"quantity": "band_8"}, value, BAND_OF_HEADS),
    ("scores", "entropy_by_layer", "median head", "heads", {"quantity": "entropy_share"}, value, BAND_OF_HEADS),
    ("scores", "entropy_by_layer", "with the first token", "heads", {"quantity": "entropy_share_all"}, value,
     (MEDIAN,)),
    ("scores", "entropy_by_layer", "Gaussian scores", "heads", {"quantity": "entropy_share"}, pl.col("predicted"),
     (MEDIAN,)),
    ("scores", "jacobian_by_layer", "as trained (scale 1/√d)", "heads", {"quantity": "jacobian_trained"}, value,
     (MEDIAN,)),
    ("scores", "jacobian_by_layer", "no scale", "heads", {"quantity": "jacobian_unscaled"}, value, (MEDIAN,)),
    ("scores", "jacobian_by_layer", "uniform attention", "heads", {"quantity": "jacobian_trained"}, null, (MEAN,)),
]  # fmt: skip


def series_of(lens: str, name: str, label: str, shape: str = "grouped queries") -> Series:
    return next(series for series in figure_of(lens, name, shape).series if series.label == label)


def assert_drawn(series: Series, x, y, low=None, high=None) -> None:
    assert np.allclose(series.x, x)
    assert np.allclose(series.y, y, rtol=1e-9, equal_nan=True)
    for end, wanted in ((series.low, low), (series.high, high)):
        assert (end is None) == (wanted is None)
        assert wanted is None or np.allclose(end, wanted, rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize(("lens", "name", "label", "table", "where", "column", "taken"), HEAD_CURVES)
def test_a_curve_over_layers_is_taken_over_heads(lens, name, label, table, where, column, taken) -> None:
    sites = by_site(rows_of(lens, table, **where), column)
    layers = [float(site[1:]) for site in sites]
    numbers = [np.array([take(heads) for heads in sites.values()]) for take in taken]
    assert_drawn(series_of(lens, name, label), layers, *numbers)


# Lens, figure, curve, table, rows, columns of value and ends, and what they are divided by.
ROW_CURVES: list[tuple[str, str, str, str, dict[str, object], tuple[str, ...], str]] = [
    ("dependence", "beyond_by_layer", "pointwise", "joint", {"quantity": "pointwise"}, ("value", "low", "high"), ""),
    ("dependence", "beyond_by_layer", "cosine", "joint", {"quantity": "cosine"}, ("value", "low", "high"), ""),
    ("gaussian", "effective_dimension", "measured", "layers", {"quantity": "effective_dimension"},
     ("value", "low", "high"), ""),
    ("gaussian", "effective_dimension", "isotropic samples", "layers", {"quantity": "effective_dimension"}, ("null",),
     ""),
    ("gaussian", "entropy", "measured", "layers", {"quantity": "entropy_nats"}, ("value", "low", "high"),
     "dimensions"),
    ("gaussian", "entropy", "isotropic", "layers", {"quantity": "entropy_nats"}, ("null",), "dimensions"),
    ("gaussian", "divergence", "next layer", "layers", {"quantity": "kl_next_nats"}, ("value", "low", "high"), ""),
    ("gaussian", "divergence", "early against late", "layers", {"quantity": "kl_late_nats"}, ("value", "low", "high"),
     ""),
    ("gaussian", "divergence", "early and late, exchanged", "layers", {"quantity": "kl_late_nats"}, ("null",), ""),
    ("gaussian", "tails", "3 components", "components", {"quantity": "relative_kurtosis", "dimensions": 3},
     ("value", "low", "high"), ""),
    ("preconditioning", "effective_dimension", "given the last token", "layers", {"quantity": "effective_dimension"},
     ("value", "low", "high"), ""),
    ("preconditioning", "entropy_nats", "random groups", "layers", {"quantity": "entropy_nats"}, ("null",), ""),
    ("uniformity", "cosine", "initialised", "streams", {"quantity": "mean_cosine", "variant": "initialised"},
     ("value",), ""),
    ("uniformity", "differences", "initialised", "streams", {"quantity": "residual_share", "variant": "initialised"},
     ("value",), ""),
    ("uniformity", "rank", "initialised", "streams", {"quantity": "effective_rank", "variant": "initialised"},
     ("value",), ""),
    ("uniformity", "rates", "as is", "rates", {"quantity": "factor", "variant": "as is"}, ("value",), ""),
    ("uniformity", "rates", "as is, predicted", "rates", {"quantity": "factor", "variant": "as is"}, ("predicted",),
     ""),
    ("uniformity", "rates", "attention alone", "rates", {"quantity": "factor", "variant": "attention alone"},
     ("value",), ""),
    ("maps", "hidden_by_layer", "hidden", "layers", {"quantity": "hidden"}, ("value", "low", "high"), ""),
    ("maps", "hidden_by_layer", "heads that share no key", "layers", {"quantity": "hidden"}, ("most",), ""),
    ("maps", "hidden_by_layer", "moved by weighting", "layers", {"quantity": "weighting"}, ("value", "low", "high"),
     ""),
    ("alignment", "trace_by_layer", "measured", "layers", {"quantity": "trace"}, ("value",), ""),
    ("spectra", "mean_square", "W_Q", "layers", {"matrix": "Q", "quantity": "mean_square"}, ("value",), ""),
    ("spectra", "mean_square", "W_O", "layers", {"matrix": "O", "quantity": "mean_square"}, ("value",), ""),
    ("spectra", "stable_rank", "W_K", "layers", {"matrix": "K", "quantity": "stable_rank"}, ("value",), ""),
    ("spectra", "feed_forward_stable_rank", "mlp.up", "feed_forward", {"matrix": "mlp.up", "quantity": "stable_rank"},
     ("value",), ""),
]  # fmt: skip


@pytest.mark.parametrize(("lens", "name", "label", "table", "where", "columns", "over"), ROW_CURVES)
def test_a_curve_over_layers_holds_columns_of_its_table(lens, name, label, table, where, columns, over) -> None:
    rows = rows_of(lens, table, **where).filter(pl.col("layer").is_not_null(), value.is_not_null())
    rows = rows.filter(pl.col("predicted").is_not_null()) if lens == "uniformity" and table == "rates" else rows
    divisor = rows[over].cast(pl.Float64).to_numpy() if over else 1.0
    numbers = [rows[column].cast(pl.Float64).fill_null(np.nan).to_numpy() / divisor for column in columns]
    if len(numbers) > 1 and not np.isfinite(numbers[1]).any():
        numbers = numbers[:1]
    assert_drawn(series_of(lens, name, label), rows["layer"].to_list(), *numbers)


@pytest.mark.parametrize(("lens", "figure"), [(entry[0], entry[1]) for entry in ROW_CURVES + HEAD_CURVES])
def test_curves_of_two_stacks_are_told_apart(lens: str, figure: str) -> None:
    drawn = figure_of(lens, figure, "encoder-decoder")
    assert drawn is None or len({series.label for series in drawn.series}) == len(drawn.series)


def test_squares_and_units_of_curves() -> None:
    largest = rows_of("spectra", "layers", matrix="V", quantity="largest")
    assert_drawn(series_of("spectra", "largest_square", "W_V"), [0, 1], largest["value"].to_numpy() ** 2)
    rows = rows_of("spectra", "layers", matrix="Q", quantity="bulk_distance")
    singular = len(series_of("spectra", "spectrum_q", "L0").x) + 1  # without the smallest twentieth of twenty
    assert_drawn(
        series_of("spectra", "bulk_distance", "W_Q"), [0, 1], rows["value"].to_numpy() / random_distance(singular)
    )
    trace = rows_of("alignment", "layers", quantity="trace")
    deviation = trace["sd"].to_numpy()
    name = "turned at random, ± 2 sd"
    assert_drawn(series_of("alignment", "trace_by_layer", name), [0, 1], [0, 0], -2 * deviation, 2 * deviation)


@pytest.mark.parametrize("quantity", ["cosine", "differences", "rank"])
def test_bands_of_streams_are_cut_where_the_axis_ends(quantity: str) -> None:
    name = {"cosine": "mean_cosine", "differences": "residual_share", "rank": "effective_rank"}[quantity]
    rows = rows_of("uniformity", "streams", quantity=name, variant="as is").filter(value.is_not_null())
    measured, low, high = (
        rows[column].cast(pl.Float64).fill_null(np.nan).to_numpy() for column in ("value", "low", "high")
    )
    ends = (low, np.fmin(high, 1.0)) if quantity == "cosine" else (np.fmax(low, 0.2 * measured), high)
    assert_drawn(series_of("uniformity", quantity, "as is"), rows["layer"].to_list(), measured, *ends)


def test_the_plane_of_layers() -> None:
    """Points are the layers; on a line of a factor f the common part's share s has s / (1 − s) √(1/f² − 1)."""
    skip, stretch = (rows_of("uniformity", "layers", quantity=name) for name in ("skip_share", "stretch"))
    points = series_of("uniformity", "phases", "layers")
    order = np.argsort(skip["value"].to_numpy(), kind="stable")
    assert_drawn(points, skip["value"].to_numpy()[order], stretch["value"].to_numpy()[order])
    assert np.allclose(series_of("uniformity", "phases", "random value maps").y, stretch["null"].median())
    lines = [line for line in figure_of("uniformity", "phases").series if line.role == "theory"]
    factors = [1 / np.sqrt(1 + (line.y * (1 - line.x) / line.x) ** 2) for line in lines]
    assert all(np.allclose(factor, factor[0]) for factor in factors)
    assert {round(float(factor[0]), 6) for factor in factors} <= {0.9, 0.7, 0.5, 0.3, 0.1}
    top = 2 * stretch["value"].max()
    assert all(float(line.y.min()) >= 0.5 and float(line.y.max()) <= top for line in lines)
    assert max(float(line.y.max()) for line in lines) > 0.9 * top


def test_information_is_drawn_with_its_bias() -> None:
    """The interval moves up with the value, and is cut off where a logarithmic axis ends."""
    rows = rows_of("gaussian", "information", layer=0)
    raw, kept, low, high, shuffled = (rows[name].to_numpy() for name in ("raw", "value", "low", "high", "null"))
    floor = 0.2 * min(raw.min(), shuffled.min())
    ends = np.fmax(low + raw - kept, floor), high + raw - kept
    assert_drawn(series_of("gaussian", "information", "L0"), rows["distance"].to_list(), raw, *ends)
    rows = rows_of("gaussian", "positions", layer=0, quantity="kl_next_nats")
    measured, exchanged = rows["value"].to_numpy(), rows["null"].to_numpy()
    drawn = series_of("gaussian", "positions", "L0")
    assert np.allclose(drawn.y, measured[: len(drawn.y)])
    assert np.allclose(drawn.x, np.fmax(rows["position"].to_numpy()[: len(drawn.x)], 1))
    assert drawn.low is None or (drawn.low >= 0.2 * np.fmin(measured, exchanged).min() - 1e-12).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_distances_of_likeness_are_quantiles_of_heads(shape: str) -> None:
    rows = rows_of("likeness", "heads", shape).filter(pl.col("effect").is_not_null())
    drawn = [series for series in figure_of("likeness", "distances", shape).series if series.role != "null"]
    assert drawn
    for series in drawn:
        stack, _, layer = series.label.rpartition(".")
        of_site = rows.filter(pl.col("stack") == (stack or "only"), pl.col("layer") == int(layer[1:]))
        heads = [of_site.filter(pl.col("distance") == int(x))["effect"].to_numpy() for x in series.x]
        low, median, high = (np.array([np.quantile(row, q) for row in heads]) for q in (0.1, 0.5, 0.9))
        assert_drawn(series, sorted(set(of_site["distance"].to_list())), median, low, high)
    unrelated = figure_of("likeness", "distances", shape).series[-1]
    assert unrelated.x.tolist() == [min(s.x[0] for s in drawn), max(s.x[-1] for s in drawn)]


def test_growth_is_drawn_in_quantiles_of_heads() -> None:
    for label, quantity in (("90 %, median head", "components_90"), ("99 %, median head", "components_99")):
        rows = rows_of("lowrank", "components", quantity=quantity)
        sizes = sorted(set(rows["tokens"].to_list()))
        heads = [rows.filter(pl.col("tokens") == size)["value"].to_numpy() for size in sizes]
        low, median, high = (np.array([np.quantile(row, q) for row in heads]) for q in (0.1, 0.5, 0.9))
        assert_drawn(series_of("lowrank", "growth", label), sizes, median, low, high)
    popular = [rows.filter(pl.col("tokens") == size)["popular"].median() for size in sizes]
    assert_drawn(series_of("lowrank", "growth", "99 %, popular keys alone"), sizes, popular)
    spectra = figure_of("lowrank", "spectra")
    assert [s.label for s in spectra.series] == ["L0", "L1", "L1, popular keys alone", "ln n"]
    assert all(series.y[0] == 1.0 and (np.diff(series.y) <= 0).all() for series in spectra.series[:3])


def test_copying_scores_are_drawn_in_order() -> None:
    scores = np.sort(rows_of("circuits", "heads", quantity="centred")["value"].to_numpy())
    drawn = figure_of("circuits", "sorted_scores").series
    assert_drawn(drawn[0], (np.arange(len(scores)) + 0.5) / len(scores), scores)
    rows = rows_of("circuits", "heads", quantity="centred")
    assert [float(series.y[0]) for series in drawn[-2:]] == [rows["null_low"].median(), rows["null_high"].median()]
    assert all(series.points for series in drawn[:3])


def test_the_graph_of_compositions_leads_from_writer_to_reader() -> None:
    graph = figure_of("composition", "graph")
    assert isinstance(graph, Network)
    named = [(graph.nodes[int(a)], graph.nodes[int(b)], int(kind)) for a, b, kind in graph.edges]
    kinds = {1: "q at 0", 2: "k at 0", 3: "v"}
    for kind, quantity in kinds.items():
        rows = rows_of("composition", "pairs", quantity=quantity).to_dicts()[:12]
        assert [(row["writer"], label_of(row), kind) for row in rows] == [edge for edge in named if edge[2] == kind]


def test_structures_are_drawn_in_medians_of_heads() -> None:
    rows = rows_of("structure", "structures").filter(pl.col("kept") > 0, value.is_not_null())
    forms = {"band": ("errors", {"form": "band"}), "low rank": ("errors_chosen", {"form": "low rank"}),
             "columns": ("errors_chosen", {"form": "columns"}),
             "band of 1 and entries": ("errors_chosen", {"form": "band and entries", "size": 1})}  # fmt: skip
    for label, (name, where) in forms.items():
        of_form = rows.filter(*(pl.col(column) == wanted for column, wanted in where.items()))
        medians = of_form.group_by("size", "entries").agg(pl.col("kept", "value").median()).sort("kept", "size")
        drawn = series_of("structure", name, label)
        assert_drawn(drawn, medians["kept"].to_numpy(), medians["value"].to_numpy())
        assert drawn.points == (medians.height == 1)
    kept = rows["kept"].to_numpy()
    for form in ("zero", "uniform"):
        every = rows_of("structure", "structures", form=form)["value"].drop_nulls().median()
        assert_drawn(series_of("structure", "errors", form), [kept.min(), kept.max()], [every, every])


@pytest.mark.parametrize("shape", SHAPES)
def test_bands_and_families_are_those_of_their_tables(shape: str) -> None:
    for name, form in (("band_first", "band and first token"), ("band", "band")):
        figure = figure_of("structure", name, shape)
        size = int(figure.title.partition("half-width ")[2].split()[0])
        rows = rows_of("structure", "structures", shape, form=form, size=size)
        assert np.allclose(figure.values, np.stack([*by_site(rows, value).values()]))
        assert figure.reference == pytest.approx(rows["visible_uniform"].median())
        assert figure.title.endswith("with the first token") == (name == "band_first")
    for mosaic in finding_on("structure", shape).figures:
        if isinstance(mosaic, Mosaic) and mosaic.name.startswith("families"):
            group = mosaic.name.removeprefix("families").strip("_").split("_")
            rows = rows_of("structure", "families", shape)
            rows = rows.filter(pl.col("stack") == group[0], pl.col("kind") == group[-1]) if group[0] else rows
            numbers = [FAMILIES.index(family) + 1 for family in rows.sort("layer", "head")["family"].to_list()]
            assert mosaic.values.flatten().tolist() == numbers


@pytest.mark.parametrize(("rows", "keys"), [(5, 5), (6, 90)])
def test_a_fitted_map_tells_large_weights_and_kept_pairs_apart(rows: int, keys: int) -> None:
    generator = torch.Generator().manual_seed(3)
    positions = torch.arange(keys - rows, keys)
    visible = torch.arange(keys) <= positions[:, None]
    pattern = torch.rand(2, rows, keys, generator=generator).square() * visible
    pattern = pattern / pattern.sum(-1, keepdim=True)
    mosaic = _fitted_map("L0.H1", SYNTACTIC, Structure(BAND, 2), Example(pattern, visible, positions), 1)
    for i in range(rows):
        for j in range(max(0, keys - _DRAWN_KEYS), keys):
            is_kept = 0 <= int(positions[i]) - j <= 2
            is_large = float(pattern[1, i, j]) > 1 / int(visible[i].sum())
            code = (1 if is_large else 2) if is_kept else 3 if is_large and bool(visible[i, j]) else 0
            assert mosaic.values[i, j - max(0, keys - _DRAWN_KEYS)] == code
    assert mosaic.values.shape == (rows, min(keys, _DRAWN_KEYS))
    assert "L0.H1 (syntactic)" in mosaic.title
    nothing = _fitted_map("L0.H1", NONE, Structure(BAND, 2), Example(pattern, visible, positions), 1)
    assert "L0.H1 (no family)" in nothing.title


def test_the_first_head_of_a_family_is_drawn() -> None:
    families = rows_of("structure", "families")
    drawn = [figure for figure in finding_on("structure", "grouped queries").figures if figure.name.startswith("map_")]
    assert drawn
    for figure in drawn:
        of_family = families.filter(pl.col("family") == figure.name.removeprefix("map_").replace("_", " "))
        top = of_family.sort("value", descending=True).row(0, named=True)
        smallest = rows_of("structure", "smallest", within=10, layer=top["layer"], head=top["head"])
        assert figure.title.startswith(label_of(top))
        assert figure.title.endswith(smallest["structure"][0])


def is_density(histogram: Histogram, least: float) -> None:
    """What is drawn of a sample has the share of the sample that is inside the picture."""
    share = float((histogram.density * np.diff(histogram.edges)).sum())
    assert least <= share <= 1 + 1e-12
    for law in histogram.laws:
        inside = float(np.trapezoid(law.y, law.x))
        assert 0.9 <= inside <= 1.01, (histogram.name, law.label)


def test_histograms_and_their_laws_are_densities() -> None:
    for figure in finding_on("spectra", "grouped queries").figures:
        if isinstance(figure, Histogram):
            is_density(figure, 0.9)
            (_, low), (_, high) = figure.marks
            largest = rows_of("spectra", "layers", matrix="Q", quantity="largest", layer=int(figure.name[-1]))["value"][
                0
            ]
            assert figure.edges[0] == 0.0
            assert figure.edges[-1] == pytest.approx(min(1.02 * max(largest, high), 2 * high))
            assert figure.laws[0].x[[0, -1]].tolist() == pytest.approx([low, high])
    for figure in finding_on("embeddings", "grouped queries").figures:
        if isinstance(figure, Histogram):
            is_density(figure, 0.99 if figure.name.startswith("cosines") else 0.9)
            assert len(figure.density) == 60
            around = [law for law in figure.laws if law.role == "measured"]
            middle = (figure.edges[1:] + figure.edges[:-1]) / 2
            assert all(np.allclose(law.x, middle) for law in around)


def test_lengths_and_cosines_show_four_deviations_of_chance() -> None:
    """Of lengths in d dimensions 1/√(2d), of cosines 1/√d."""
    for figure in finding_on("embeddings", "grouped queries").figures:
        table = figure.name.rpartition("_")[2]
        rows = (
            finding_on("embeddings", SHAPES[0]).tables["tables"].filter(pl.col("table") == table)
            if isinstance(figure, Histogram)
            else None
        )
        if rows is not None and rows.height:
            d = rows["dimensions"][0]
            middle, reach = (
                (1.0, 4 / math.sqrt(2 * d)) if figure.name.startswith("lengths") else (0.0, 4 / math.sqrt(d))
            )
            assert figure.edges[0] <= middle - reach + 1e-9
            assert figure.edges[-1] >= middle + reach - 1e-9
            # Nothing is longer than three times the mean here, and no cosine leaves −1 … 1.
            ends = (0.0, 3.0) if figure.name.startswith("lengths") else (-1.0, 1.0)
            assert min(ends[0], middle - reach) <= figure.edges[0] < figure.edges[-1] <= max(ends[1], middle + reach)
            law = figure.laws[-1]
            assert law.x[0] == pytest.approx(
                max(middle - reach if middle else max(-1, figure.edges[0]), 1e-6 if middle else -1)
            )
            assert law.x[-1] == pytest.approx(middle + reach if middle else min(1, figure.edges[-1]))
            assert abs(float(law.x[law.y.argmax()]) - middle) < 0.1


@pytest.mark.parametrize("lens", ["embeddings", "spectra"])
def test_spectra_are_drawn_over_their_root_mean_square(lens: str) -> None:
    """In order, at the middle of each value's share; laws fall, with a mean square of 1 as far as they are drawn."""
    curves = [
        f
        for f in finding_on(lens, "grouped queries").figures
        if isinstance(f, Curves) and f.name.startswith("spectrum")
    ]
    assert curves
    for figure in curves:
        for series in figure.series:
            assert (np.diff(series.y) <= 1e-12).all(), series.label
            if series.role == "null":
                assert 0.8 < float(np.trapezoid(series.y**2, series.x)) < 1.02
                assert 0 < series.x[0] < 0.01
            else:
                n = round(0.5 / float(series.x[0]))
                places = np.round(series.x * n - 0.5)
                assert np.allclose(series.x, (places + 0.5) / n)
                assert len(places) >= min(n - 1, 12) * 0.9
                energy = float((series.y**2).sum()) / n
                assert 0.8 < energy <= 1 + 1e-9 or len(places) < 0.9 * n


def test_positions_are_drawn_beside_the_sinusoidal_formula() -> None:
    rows = rows_of("embeddings", "positions")
    drawn = figure_of("embeddings", "positions").series
    assert_drawn(drawn[0], rows["distance"].to_list(), rows["value"].to_numpy())
    assert_drawn(drawn[1], rows["distance"].to_list(), rows["centred"].to_numpy())
    d = rows["dimensions"][0]
    frequencies = 10000.0 ** (-2 * np.arange(d // 2) / d)
    assert np.allclose(drawn[2].y, np.cos(drawn[2].x[:, None] * frequencies).mean(1))
    assert not drawn[3].y.any()


def test_ranks_are_drawn_as_shares_of_analogies() -> None:
    ranks, baseline = torch.tensor([1, 1, 3, 8]), torch.tensor([2, 4, 5, 8])
    words = (("a", "b", "c", "d"),) * 4
    figure = _ranks(Analogies(("x",) * 4, words, ranks, baseline, torch.zeros(4, dtype=torch.long), 8))
    ours, alone, random = figure.series
    assert ours.x.tolist() == [*range(1, 9)]
    assert ours.y.tolist() == [0.5, 0.5, 0.75, 0.75, 0.75, 0.75, 0.75, 1.0]
    assert alone.y.tolist() == [0.0, 0.25, 0.25, 0.5, 0.75, 0.75, 0.75, 1.0]
    assert random.y.tolist() == [r / 8 for r in range(1, 9)]


def test_arcs_are_drawn_over_the_start_of_their_law() -> None:
    sites = [Site("only", "self", layer, 1, 1, 4, 4, causal=True) for layer in range(5)]
    law = torch.linspace(4.0, 1.0, len(TIMES), dtype=torch.float64)
    curves = {site: [((site.layer + 1) * law, law), (7 * law, 2 * law)] for site in sites}
    drawn = {series.label: series.y for series in _arcs(curves).series}
    assert [*drawn] == ["L0, own length", "L2, own length", "L4, own length", "L0, length 1", "law"]
    for label, factor in (("L0, own length", 1), ("L2, own length", 3), ("L4, own length", 5), ("L0, length 1", 3.5)):
        assert np.allclose(drawn[label], factor * law.numpy() / 4)
    assert np.allclose(drawn["law"], law.numpy() / 4)


def test_tokens_of_maps_are_numbered_from_one() -> None:
    for lens, name in (("angles", "cosines_0"), ("angles", "weights_1"), ("maps", "words"), ("maps", "tokens")):
        figure = figure_of(lens, name)
        for labels in (figure.row_labels, figure.column_labels):
            assert [label.split()[0] for label in labels] == [str(i + 1) for i in range(len(labels))]
    assert np.isnan(np.diagonal(figure_of("angles", "cosines_0").values)).all()
    assert "the first layer" in figure_of("angles", "cosines_0").caption
    assert "the later layer" in figure_of("angles", "cosines_1").caption
    ranks = rows_of("angles", "drawn", quantity="input")
    for number, layer in ((0, 0), (1, 1)):
        rank = ranks.filter(pl.col("layer") == layer)["rank"][0]
        assert f"within rows: {rank:.2f} in" in figure_of("angles", f"weights_{number}").caption


@pytest.mark.parametrize(("count", "lines"), [(1, 1), (ACROSS, 1), (ACROSS + 1, 2)])
def test_maps_lie_line_by_line(count: int, lines: int) -> None:
    maps = [(f"L{i}", np.full((2, 3), i + 1.0)) for i in range(count)]
    figure = _grid(maps, "layers", "title", "caption.")
    wide = min(count, ACROSS)
    assert figure.values.shape == (3 * lines - 1, 4 * wide - 1)
    for index, (_, cells) in enumerate(maps):
        down, across = 3 * (index // ACROSS), 4 * (index % ACROSS)
        assert np.array_equal(figure.values[down : down + 2, across : across + 3], cells)
    assert int(np.isfinite(figure.values).sum()) == 6 * count
    assert figure.row_labels == ("1", "2", "")[:2] if lines == 1 else ("1", "2", "", "1", "2")
    assert figure.column_labels == tuple((["1", "2", "3", ""] * wide)[:-1])
    if lines == 1:
        assert figure.panels == (("",), tuple(label for label, _ in maps))
        assert "Line by line" not in figure.caption
    else:
        assert figure.panels == (("L0 …", f"L{ACROSS} …"), ("first", *(f"+{i}" for i in range(1, wide))))
        assert "Line by line" in figure.caption


def test_the_strongest_heads_of_each_role_are_drawn() -> None:
    rows = rows_of("roles", "heads").filter((pl.col("source") == REPEATED) | (pl.col("role") == "prefix matching"))
    figure = figure_of("roles", "strongest")
    for row in rows.to_dicts():
        if label_of(row) in figure.row_labels:
            place = figure.row_labels.index(label_of(row)), figure.column_labels.index(row["role"])
            assert figure.values[place] == row["value"]
    for role in figure.column_labels:
        top = rows.filter(pl.col("role") == role).sort("value", descending=True, maintain_order=True).head(3)
        assert {label_of(row) for row in top.to_dicts()} <= {*figure.row_labels}


def test_words_about_numbers_of_focus() -> None:
    assert [tokens(width) for width in (1, 2)] == ["1 token", "2 tokens"]
    assert _span(np.array([100.0, 100.5])) == "100"
    assert _span(np.array([100.0, 101.0])) == "100 to 101"
    assert _span(np.array([-3.0, 2.0])) == "-3 to 2"
    assert "Mass within 8 tokens" in {figure.title for figure in finding_on("focus", "grouped queries").figures}


def test_what_continuations_carry_grows_to_the_share_of_the_text() -> None:
    ours, drawn, text, line = figure_of("preconditioning", "carried").series
    for series in (ours, drawn, text):
        assert (np.diff(series.y) >= -1e-12).all()
        assert 0 < series.y[0] <= series.y[-1] <= 1 + 1e-12
    assert ours.x[0] == 1.0
    assert (line.y == 0.9).all()


def test_shares_of_terms_are_those_of_the_first_layer() -> None:
    figure = figure_of("scores", "terms_only")
    for label, cells in zip(figure.row_labels, figure.values, strict=True):
        rows = rows_of("scores", "terms", quantity=label.replace(" · ", "_"), layer=0).sort("head")
        assert np.allclose(cells, rows["share"].to_numpy())
    assert "scores of layer 0" in figure.title
    assert "scores of enc layer 0" in figure_of("scores", "terms_enc", "encoder-decoder").title

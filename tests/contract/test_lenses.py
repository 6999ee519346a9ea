"""What every lens promises, checked for each lens that the folder holds: add a file, inherit the checks."""

import copy
import itertools
import math
import random
import re
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from matplotlib.mathtext import MathTextParser

from headscope.attention.statistics import Request
from headscope.core import Curves, Embedding, HeatMap, Histogram, WeightStatus
from headscope.lenses import lenses
from headscope.lenses.lens import AS_IS, Batch, Needs
from headscope.pipeline.fold import is_shown
from headscope.pipeline.made_windows import make_windows
from headscope.pipeline.site_assembly import joined
from headscope.pipeline.subject import Subject
from tests.lenses.asking import assembled, begin, defined, finish, merge, update
from tests.lenses.planted import (
    MODELS,
    TRANSFORMS,
    Planted,
    batches,
    gaussian_weights,
    permutation,
    planted,
    site,
    transformed,
)
from tests.prefix_matching import LENS as PREFIXES
from tests.prefix_matching import NAME as MADE_NAME

EXAMPLES = Path(__file__).parents[1] / "packages" / "colour_members"


def example_lens():
    """The lens of the package that CONTRIBUTING.md gives as an example to copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return import_module("colour_members.colour.lens").LENS


LENSES = {**lenses(), "colour": example_lens()}
KEYS = {"stack", "kind", "layer", "head"}

# Fold against definition, relative to the largest value of a quantity. Both are float64; what differs is the
# order of sums, and √ of the Gram matrix's eigenvalues, which loses half the digits below 1e-8·σ₁.
AGREEMENT = 1e-6
# Any split, any batching: float64 sums in another order. A principal axis multiplies that by the inverse of the gap
# between its variance and the next (measured with 24 dimensions and 33 rows: 3.5e-14 in the z of `gaussian`).
REORDERED = 1e-12
# A perturbation of 1 % must be seen through the loosest tolerance with room to spare.
PERTURBATION = 1.01

# Tables that planted models do not give: they lack learned positions, a feed-forward part, and long windows.
NOT_PLANTED = {"positions", "feed_forward", "growth"}

every_lens = pytest.mark.parametrize("name", LENSES)
every_model = pytest.mark.parametrize("shape", MODELS)


@pytest.fixture(autouse=True)
def one_thread():
    """Waking a second thread takes longer than work on matrices this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def shown_to(lens, model: Planted, params, **options) -> list[Batch]:
    """What the pipeline would hand over: one pass per variant of the model."""
    needs = lens.needs(params)
    if not needs.text:
        return []
    fresh = Planted({of: gaussian_weights(of, seed=50) for of in model.sites}, model.spec)
    shown = {AS_IS: read_by(needs, model, **options)}
    other = read_by(needs, fresh, **options) if len(needs.variants) > 1 else []
    parts = [replace(batch, variant=variant) for variant in needs.variants for batch in shown.get(variant, other)]
    return [part for part in parts if is_shown(part, needs)]


def read_by(needs: Needs, model: Planted, **options) -> list[Batch]:
    """The text, and the windows that the lens makes, in three batches each."""
    statistics = needs.statistics or Request()
    shown = batches(model, statistics, **options) if needs.reads_text else []
    subject = Subject(model.spec, model.sites, model, SimpleNamespace(tokenizer=None))
    for request in needs.made:
        parts = make_windows(request, subject, seed=0).full.tensor_split(3)
        shapes = [[tokens.shape[1]] * len(tokens) for tokens in parts]
        made = zip(batches(model, statistics, shapes=shapes), parts, strict=True)
        shown += [replace(batch, tokens=tokens, made=request.name) for batch, tokens in made]
    absent = (needs.captures | needs.welcome | needs.opening) - shown[0].captures.keys() if shown else set()
    assert not absent, f"planted models do not show {sorted(absent)}: add it to `batches` of tests/lenses/planted.py"
    return shown


def folded(lens, params, model: Planted, parts):
    fold = begin(lens, params, model.spec, model.sites)
    for batch in parts:
        fold = update(lens, fold, batch)
    return fold


def finding_of(name: str, model: Planted, parts=None):
    lens, params = LENSES[name], LENSES[name].params()
    parts = shown_to(lens, model, params) if parts is None else parts
    return finish(lens, folded(lens, params, model, parts), model)


@cache
def parts_on(name: str, shape: str) -> tuple[Batch, ...]:
    """What a lens is shown of a planted model, computed once: lenses leave it as it is, by a test below."""
    lens = LENSES[name]
    return tuple(shown_to(lens, MODELS[shape], lens.params()))


@cache
def finding_on(name: str, shape: str):
    """Of a planted model by its name, computed once: for tests that only look at it or compare with it."""
    return finding_of(name, MODELS[shape], parts_on(name, shape))


def differences(tables, expected, tolerance=AGREEMENT) -> list[str]:
    """Where two sets of tables differ: shape, words, empty cells, or numbers beyond the tolerance."""
    found = [] if tables.keys() == expected.keys() else [f"tables {set(tables)} and {set(expected)}"]
    for name in tables.keys() & expected.keys():
        ours, theirs = tables[name], expected[name]
        if ours.schema != theirs.schema or ours.height != theirs.height:
            found.append(f"{name}: {ours.schema} × {ours.height} and {theirs.schema} × {theirs.height}")
            continue
        numeric = [column for column, kind in ours.schema.items() if kind == pl.Float64]
        words = ours.drop(numeric)
        if not words.equals(theirs.drop(numeric)):
            found.append(f"{name}: other words, counts or order")
        found += [f"{name}.{column}" for column in numeric if not agree(ours, theirs, column, tolerance)]
    return found


def agree(ours: pl.DataFrame, theirs: pl.DataFrame, column: str, tolerance: float) -> bool:
    """Equal within the tolerance, as a share of the largest value of the same quantity (at least 1e-6)."""
    for quantity in ours["quantity"].unique() if "quantity" in ours.columns else [None]:
        rows = (ours["quantity"] == quantity) if quantity is not None else pl.repeat(True, ours.height, eager=True)
        a, b = (table.filter(rows)[column].to_numpy().astype(float) for table in (ours, theirs))
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return False
        scale = np.nanmax(np.abs(b), initial=0.0)
        if np.nanmax(np.abs(a - b), initial=0.0) > tolerance * max(scale, 1e-6):
            return False
    return True


def test_a_lens_that_makes_windows_is_shown_these():
    shown = shown_to(PREFIXES, MODELS["multi-head"], PREFIXES.params(count=3, length=100))
    assert [(batch.made, batch.tokens.shape) for batch in shown] == [(MADE_NAME, (1, 64))] * 3
    assert finish(PREFIXES, folded(PREFIXES, PREFIXES.params(), MODELS["multi-head"], shown), None).status == "ok"


def test_scan_finds_the_lenses():
    assert {"spectra", "focus"} <= LENSES.keys()
    assert [*lenses(), "colour"] == list(LENSES)


@every_lens
def test_settings_name_all_tables_the_main_one_first(name: str) -> None:
    settings = import_module(LENSES[name].params.__module__)
    tables_by_model = [list(finding_on(name, shape).tables) for shape in MODELS]
    for tables in filter(None, tables_by_model):
        assert tables == [table for table in settings.TABLES if table in tables]
    unmade = set(settings.TABLES).difference(*tables_by_model)
    assert not unmade - NOT_PLANTED, "the settings name a table that the lens does not make"


@every_lens
@every_model
def test_fold_equals_definition(name, shape):
    lens, model, params = LENSES[name], MODELS[shape], LENSES[name].params()
    finding = finding_on(name, shape)
    assert finding.status == "ok", finding.reason
    defined_tables = with_ends(defined(lens, params, model, parts_on(name, shape)), finding.tables)
    assert not differences(finding.tables, defined_tables), "these columns of lens.py and definition.py differ"


def with_ends(defined_tables, tables):
    """The tables of a definition, with the ends of intervals of the fold in columns that it leaves empty.

    A definition states the estimate. An interval of `maths/resampling` has a definition and tests of its own.
    """
    return {name: filled(table, tables.get(name)) for name, table in defined_tables.items()}


def filled(table: pl.DataFrame, folded_table: pl.DataFrame | None) -> pl.DataFrame:
    if folded_table is None or table.schema != folded_table.schema or table.height != folded_table.height:
        return table
    ends = [name for name in table.columns if re.fullmatch(r"(.+_)?(low|high)", name)]
    empty = [name for name in ends if table[name].null_count() == table.height]
    return table.with_columns(folded_table.select(empty))


def test_only_the_ends_of_intervals_may_be_left_to_the_fold():
    folded_table = pl.DataFrame({"value": [1.0, 2.0], "low": [0.5, 1.5], "high": [1.5, None]})
    empty = {"t": folded_table.clear(2)}
    assert differences({"t": folded_table}, with_ends(empty, {"t": folded_table})) == ["t.value"]
    wrong = {"t": folded_table.with_columns(low=pl.Series([0.4, None]))}
    assert differences({"t": folded_table}, with_ends(wrong, {"t": folded_table})) == ["t.low"]


def perturbed_weights(model: Planted, tensor: str) -> Planted:
    changed = {of: replace(w, **{tensor: getattr(w, tensor) * PERTURBATION}) for of, w in model.weights_of.items()}
    return replace(model, weights_of=changed)


def perturbed_vectors(model: Planted, one: Embedding) -> Planted:
    return replace(model, vectors={**model.vectors, one: model.vectors[one] * PERTURBATION})


STATISTICS = ("entropy_nats", "participation", "distance", "distance_sd", "diagonal", "first", "bands")


def perturbed_statistics(parts, column: str):
    def changed(rows):
        value = getattr(rows, column)
        scaled = {w: x * PERTURBATION for w, x in value.items()} if column == "bands" else value * PERTURBATION
        return replace(rows, **{column: scaled})

    return [replace(part, statistics={of: changed(rows) for of, rows in part.statistics.items()}) for part in parts]


def unevenly(x: torch.Tensor) -> torch.Tensor:
    """Every second number changed, so that a ratio, a cosine or an order of numbers changes too."""
    factors = torch.where(torch.arange(x.numel()) % 2 == 0, PERTURBATION, 1.0)
    return x * factors.reshape(x.shape).to(x.dtype)


@every_lens
def test_weights_are_read_where_needs_says_so(name):
    lens, model, params = LENSES[name], MODELS["grouped queries"], LENSES[name].params()
    parts, tables = parts_on(name, "grouped queries"), finding_on(name, "grouped queries").tables
    defined_tables = defined(lens, params, model, parts)
    if not lens.needs(params).weights:
        assert not differences(defined(lens, params, None, parts), defined_tables), "`needs` asks for no weights"
        assert not differences(finish(lens, folded(lens, params, model, parts), None).tables, tables)
        return
    others = {tensor: perturbed_weights(model, tensor) for tensor in ("w_q", "w_k", "w_v", "w_o")}
    others |= {one.label: perturbed_vectors(model, one) for one in model.embeddings}
    others["vocabulary"] = replace(model, vocabulary=None)
    read = [
        (tensor, off)
        for tensor, off in others.items()
        if differences(defined(lens, params, off, parts), defined_tables)
    ]
    assert read, "`needs` asks for weights, and one percent of none of them changes the definition"
    for tensor, off in read:
        assert differences(finish(lens, folded(lens, params, off, parts), off).tables, tables), tensor


@every_lens
def test_one_percent_of_a_statistic_turns_it_red(name):
    lens, model, params = LENSES[name], MODELS["grouped queries"], LENSES[name].params()
    if lens.needs(params).statistics is None:
        return  # such a lens is shown none
    parts, tables = parts_on(name, "grouped queries"), finding_on(name, "grouped queries").tables
    read_statistics = {
        column
        for column in STATISTICS
        if differences(
            finish(lens, folded(lens, params, model, perturbed_statistics(parts, column)), model).tables, tables
        )
    }
    assert read_statistics, "no table changes with any statistic of the rows: leave `statistics` out of `needs`"
    assert name != "focus" or read_statistics == {*STATISTICS}, "focus shows all of them"


@every_lens
def test_one_percent_of_a_capture_turns_it_red(name):
    lens, model, params = LENSES[name], MODELS["grouped queries"], LENSES[name].params()
    parts, tables = parts_on(name, "grouped queries"), finding_on(name, "grouped queries").tables
    needs = lens.needs(params)
    for captured in sorted(needs.captures | needs.welcome):
        off = [
            replace(
                part,
                captures={**part.captures, captured: {of: unevenly(x) for of, x in part.captures[captured].items()}},
            )
            for part in parts
        ]
        changed = differences(finish(lens, folded(lens, params, model, off), model).tables, tables)
        assert changed, f"no table changes with the capture {captured!r}: leave it out of `needs`"


@every_lens
@pytest.mark.parametrize("shape", ["grouped queries", "encoder-decoder"])
def test_any_split_gives_the_same_answer(name, shape):
    lens, model, params = LENSES[name], MODELS[shape], LENSES[name].params()
    parts, whole = parts_on(name, shape), finding_on(name, shape)
    # With many variants not every cut, but some within each.
    for cut in range(0, len(parts) + 1, max(1, len(parts) // 4)):
        a, b = folded(lens, params, model, parts[:cut]), folded(lens, params, model, parts[cut:])
        again = finish(lens, merge(lens, a, b), model)
        assert not differences(again.tables, whole.tables, tolerance=REORDERED)
    three = [folded(lens, params, model, [part]) for part in parts] or [folded(lens, params, model, [])] * 3
    left = merge(lens, merge(lens, three[0], three[1]), three[2])
    right = merge(lens, three[0], merge(lens, three[1], three[2]))
    assert not differences(finish(lens, left, model).tables, finish(lens, right, model).tables, tolerance=REORDERED)


@every_lens
def test_batching_does_not_matter(name):
    """Windows one by one, unpadded, against padded together."""
    lens, model, params = LENSES[name], MODELS["grouped queries"], LENSES[name].params()
    parts = shown_to(lens, model, params, shapes=((9, 6), (7, 5)))
    single = [window(part, index) for part in parts for index in range(len(part.real))]
    together, alone = (finish(lens, folded(lens, params, model, some), model) for some in (parts, single))
    assert not differences(alone.tables, together.tables, tolerance=REORDERED)


@every_lens
@pytest.mark.parametrize("shape", ["grouped queries", "encoder-decoder"])
def test_pieces_give_the_same_answer(name, shape):
    """Each batch in pieces, in the order in which a forward shows them."""
    lens, model, params = LENSES[name], MODELS[shape], LENSES[name].params()
    if not lens.needs(params).pieces:
        return  # such a lens is only ever handed wholes
    handed = [piece for part in parts_on(name, shape) for piece in handed_over(lens, model, pieces(part, model.sites))]
    piecewise = finish(lens, folded(lens, params, model, handed), model)
    assert not differences(piecewise.tables, finding_on(name, shape).tables, tolerance=REORDERED)


@every_lens
@pytest.mark.parametrize("shape", ["grouped queries", "encoder-decoder"])
def test_pieces_in_any_order_and_any_cut_give_the_same_state(name, shape):
    """A forward may show the quantities of its sites in whatever order: a lens is handed whole sites all the same."""
    lens, model, params = LENSES[name], MODELS[shape], LENSES[name].params()
    parts = shown_to(lens, model, params)
    whole = frozen(folded(lens, params, model, parts), ordered=False)
    for seed in range(2):
        mixed = [piece for part in parts for piece in handed_over(lens, model, shuffled(part, random.Random(seed)))]
        assert frozen(folded(lens, params, model, mixed), ordered=False) == whole


def handed_over(lens, model: Planted, cut_pieces) -> list[Batch]:
    return list(assembled(lens, lens.params(), model.sites, cut_pieces))


def shuffled(batch: Batch, dice: random.Random) -> list[Batch]:
    """Every quantity of every site on its own, in any order, in pieces of up to five."""
    bare = replace(batch, statistics={}, uniform={}, captures={})
    parts = [
        replace(bare, captures={name: {of: x}}) for name, found in batch.captures.items() for of, x in found.items()
    ]
    parts += [
        replace(bare, statistics={of: rows}, uniform={of: batch.uniform[of]}) for of, rows in batch.statistics.items()
    ]
    dice.shuffle(parts)
    cuts = [0]
    while cuts[-1] < len(parts):
        cuts.append(cuts[-1] + dice.randint(1, 5))
    return [joined(parts[start:end]) for start, end in itertools.pairwise(cuts)]


def pieces(batch: Batch, sites) -> list[Batch]:
    """What enters a layer, then what its attention shows, layer by layer; what leaves the last one comes last."""

    def only(of, names):
        captures = {name: {of: found[of]} for name, found in batch.captures.items() if name in names and of in found}
        attends = "pattern" in names and of in batch.statistics
        shown = {of: batch.statistics[of]} if attends else {}
        return replace(batch, statistics=shown, uniform={of: batch.uniform[of]} if attends else {}, captures=captures)

    before, after = {"resid", "x"}, {"final"}
    return [only(of, names) for of in sites for names in (before, batch.captures.keys() - before - after)] + [
        only(of, after) for of in sites
    ]


def window(batch: Batch, index: int) -> Batch:
    n = int(batch.real[index].sum())

    def rows(statistics):
        one = {f.name: getattr(statistics, f.name) for f in fields(statistics)}
        cut = {key: value[index : index + 1, :, :n] for key, value in one.items() if isinstance(value, torch.Tensor)}
        return replace(statistics, **cut, bands={w: x[index : index + 1, :, :n] for w, x in one["bands"].items()})

    return replace(
        batch,
        tokens=batch.tokens[index : index + 1, :n],
        real=batch.real[index : index + 1, :n],
        statistics={of: rows(statistics) for of, statistics in batch.statistics.items()},
        uniform={of: rows(statistics) for of, statistics in batch.uniform.items()},
        captures={
            name: {of: cut(name, x, index, n) for of, x in parts.items()} for name, parts in batch.captures.items()
        },
        spelling=tuple(spelling[:n] for spelling in batch.spelling[index : index + 1]),
    )


def cut(name: str, x: torch.Tensor, index: int, n: int) -> torch.Tensor:
    """One window of a capture of self-attention, without its padding."""
    match name:
        case "scale":
            return x
        case "output_gram":
            return x[index : index + 1]
        case "resid" | "x" | "final":
            return x[index : index + 1, :n]
        case "pattern" | "pairs" | "query_runs" | "scores" | "rows" | "corner" | "corner:256" | "early":
            return x[index : index + 1, :, :n, :n]
        case _:
            return x[index : index + 1, :, :n]


@every_lens
@pytest.mark.parametrize("shape", ["grouped queries", "encoder-decoder"])
def test_at_most_one_headline_answers_the_question_in_a_few_words(name, shape):
    answers = [headline for headline in finding_on(name, shape).headlines if headline.answer]
    assert len(answers) <= 1
    for headline in answers:
        assert len(headline.answer.split()) <= 10
        assert headline.value
        assert headline.null


@every_lens
@pytest.mark.parametrize("shape", ["grouped queries", "encoder-decoder"])
def test_headlines_name_figures_that_there_are(name, shape):
    finding = finding_on(name, shape)
    names = {figure.name for figure in finding.figures}
    named = [headline.figure for headline in finding.headlines if headline.figure]
    assert not named or set(named) & names


@every_lens
def test_same_input_same_answer(name):
    a, b = finding_of(name, MODELS["grouped queries"]), finding_of(name, MODELS["grouped queries"])
    assert all(a.tables[key].equals(b.tables[key]) for key in a.tables)
    assert a.headlines == b.headlines
    assert all(np.array_equal(a.arrays[key], b.arrays[key]) for key in a.arrays)


@every_lens
def test_the_global_generator_is_left_alone(name):
    """Lenses work on several threads at the same time, which share it."""
    before = torch.get_rng_state()
    finding_of(name, MODELS["grouped queries"])
    assert torch.equal(torch.get_rng_state(), before)


def frozen(what, ordered=True):
    """Everything a lens is handed, as plain comparable data; with or without the order of dictionaries."""
    if isinstance(what, torch.Tensor):
        return ("tensor", what.dtype, what.tolist() if not what.isnan().any() else what.nan_to_num(-9e9).tolist())
    if is_dataclass(what) and not isinstance(what, type):
        return tuple((f.name, frozen(getattr(what, f.name), ordered)) for f in fields(what))
    if isinstance(what, dict):
        items = [(str(key), frozen(value, ordered)) for key, value in what.items()]
        return tuple(items if ordered else sorted(items, key=lambda item: item[0]))
    return tuple(frozen(one, ordered) for one in what) if isinstance(what, (list, tuple)) else what


@every_lens
def test_inputs_are_left_as_they_were(name):
    lens, model, params = LENSES[name], MODELS["sinks"], LENSES[name].params()
    parts = shown_to(lens, model, params)
    before = frozen(parts), frozen(model)
    first = folded(lens, params, model, parts[:1])
    kept = copy.deepcopy(first)
    merge(lens, update(lens, first, parts[1]) if parts else first, first)
    finish(lens, first, model)
    defined(lens, params, model, parts)
    assert (frozen(parts), frozen(model)) == before
    assert frozen(first) == frozen(kept), "update, merge and finish return new states"


@every_lens
@pytest.mark.parametrize("shape", ["multi-head", "grouped queries", "encoder-decoder"])
def test_declared_symmetries_hold(name, shape):
    lens, model = LENSES[name], MODELS[shape]
    original = finding_on(name, shape)
    assert lens.invariant, "a lens declares under which symmetries its numbers do not change"
    for declared in sorted(lens.invariant):
        symmetry, _, only = declared.partition(":")
        assert symmetry in TRANSFORMS, f"unknown symmetry {symmetry!r}"
        changed = finding_of(name, transformed(model, symmetry))
        tables = {key: value for key, value in changed.tables.items() if only in ("", key)}
        expected = {key: original.tables[key] for key in tables}
        if symmetry == "heads":
            tables = {key: permuted(table, expected[key], model) for key, table in tables.items()}
        assert not differences(tables, expected, tolerance=1e-9), f"not invariant under {declared!r}"


def permuted(table: pl.DataFrame, original: pl.DataFrame, model: Planted) -> pl.DataFrame:
    """The rows of each head under the number that it had before the permutation, in the order of the original."""
    order = permutation(model.sites[0])[0]
    old = pl.col("head").replace_strict({new: old for new, old in enumerate(order)}, return_dtype=pl.Int64)
    # Words and counts must be equal in any case, so that they may tell the rows apart.
    keys = [key for key, kind in original.schema.items() if not kind.is_float()]
    assert not original.select(keys).is_duplicated().any(), f"{keys} do not tell the rows of a table apart"
    reference = original.select(keys)
    return reference.join(table.with_columns(old), on=keys, how="left", nulls_equal=True).select(original.columns)


@every_lens
@every_model
def test_headlines_are_sentences_with_numbers(name, shape):
    sentences = [headline.full for headline in finding_on(name, shape).headlines]
    assert 1 <= len(sentences) <= 3
    for sentence in sentences:
        assert re.search(r"\d", sentence), sentence
        assert sentence.endswith(".")
        assert "nan" not in sentence.lower()


WORDS_OF_A_SHORT_HEADLINE = 20
# A value and what it is compared with; "3 of 12" is one number, a head's label or a token's place is none.
NUMBERS_OF_A_SHORT_HEADLINE = 2
NO_NUMBER = re.compile(
    r"\b(?:(?:enc|dec)\.)?L\d+(?:\.cross)?(?:\.H\d+)?\b|W_\w+|σ.|\d+ of (?=\d)|"
    r"(?:within|at) \d+ tokens?|\d+ tokens? apart"
)


@every_lens
@every_model
def test_a_short_headline_has_few_words_and_one_comparison(name, shape):
    for headline in finding_on(name, shape).headlines:
        assert len(headline.short.split()) <= WORDS_OF_A_SHORT_HEADLINE, headline.short
        assert headline.short.endswith(".")
        assert "nan" not in headline.short.lower().split()
        numbers = re.findall(r"(?<![\w.])[-−]?\d+(?:[.,]\d+)*(?:e-?\d+)?", NO_NUMBER.sub("", headline.short))
        assert 1 <= len(numbers) <= NUMBERS_OF_A_SHORT_HEADLINE, headline.short


@every_lens
@every_model
def test_the_effect_of_a_headline_is_bounded(name, shape):
    effects = [headline.effect for headline in finding_on(name, shape).headlines]
    assert all(effect is None or 0 <= effect <= 1 for effect in effects), effects


@every_lens
def test_headlines_can_be_ranked(name):
    """Some headline of a lens compares what it measured with a null or a prediction."""
    assert any(headline.effect is not None for headline in finding_on(name, "grouped queries").headlines)


@every_lens
@every_model
def test_quantities_hold_one_number_per_head(name, shape):
    finding = finding_on(name, shape)
    keys = [quantity.key for quantity in finding.quantities]
    assert len(keys) == len(set(keys))
    for quantity in finding.quantities:
        table = finding.tables[quantity.table]
        rows = table.filter(*(pl.col(column) == value for column, value in quantity.where.items()))
        assert rows.height > 0, quantity
        assert rows["head"].null_count() == 0, quantity
        assert not rows.select(sorted(KEYS)).is_duplicated().any(), quantity
        for column in (quantity.column, *([quantity.null] if quantity.null else [])):
            assert rows.schema[column] in (pl.Float64, pl.Int64), (quantity, column)
        assert quantity.label
        assert len(quantity.label) <= 48, quantity.label


@every_lens
def test_a_lens_about_heads_offers_its_quantities(name):
    """What has one value per head can be shown in a grid of heads without knowing the lens."""
    finding = finding_on(name, "grouped queries")
    by_head = [
        table
        for table in finding.tables.values()
        if table.height and "head" in table.columns and table["head"].null_count() == 0
    ]
    assert bool(finding.quantities) == bool(by_head), (
        f"tables with one row or more for each head: {len(by_head)}; quantities (`Measurement.quantities`): "
        f"{len(finding.quantities)}; offer them if there are such tables, and only then"
    )


@every_lens
def test_a_headline_says_how_many_windows_it_rests_on(name):
    lens, params = LENSES[name], LENSES[name].params()
    if not lens.needs(params).text:
        return  # weights are no sample
    finding = finding_on(name, "grouped queries")
    stated = {
        int(number)
        for number in re.findall(r"(\d+) windows?\b", " ".join(headline.full for headline in finding.headlines))
    }
    tables = [table for table in finding.tables.values() if "windows" in table.columns]
    counted = {number for table in tables for number in table["windows"].to_list()}
    assert stated & counted, f"a full headline says one of {counted} windows, the column `windows` of its tables"


@every_lens
@every_model
def test_no_headline_speaks_in_standard_deviations(name, shape):
    """Effects are given in their own unit with an interval; a distance from chance in its deviations ranks nothing."""
    for sentence in map(str, finding_on(name, shape).headlines):
        assert not re.search(r"\bz = |standard (errors|deviations) (apart|beyond|below|from|above)", sentence), sentence


@every_lens
@every_model
def test_what_was_not_detected_is_said_with_what_would_have_been(name, shape):
    for sentence in map(str, finding_on(name, shape).headlines):
        if re.search(r"\b[Nn]o [^.;]* (was|were) detected\b", sentence):
            assert re.search(r"would have been|detects|interval", sentence), sentence


@every_lens
@every_model
def test_tables_name_the_head_and_stand_in_the_glossary(name, shape):
    finding = finding_on(name, shape)
    for table in finding.tables.values():
        assert set(table.columns) >= KEYS, "every table has these columns; `head` is empty where a row is about a site"
        unexplained = sorted(set(table.columns) - set(finding.about.columns))
        assert not unexplained, f"about.md does not explain the columns {unexplained}"
        values = table["value"].drop_nulls().to_numpy() if "value" in table.columns else np.zeros(0)
        assert np.isfinite(values).all()


@every_lens
def test_about_is_complete_and_typesets(name):
    about = LENSES[name].about
    for text in (about.title, about.question, about.definition, about.reading, about.reference):
        assert len(text) > 10
    assert about.question.endswith("?")
    assert about.formulas, "about.md of a lens has at least one formula"
    for formula in about.formulas:
        MathTextParser("agg").parse(f"${formula}$")


@every_lens
def test_params_have_defaults_and_help(name):
    params = LENSES[name].params
    assert all(field.metadata.get("help") for field in fields(params)), "every field has help in its metadata"
    stated = finding_on(name, "one head").params
    assert stated == {field.name: getattr(params(), field.name) for field in fields(params)}


@every_lens
@every_model
def test_figures_are_drawable_data(name, shape):
    figures = finding_on(name, shape).figures
    assert figures, "a lens has at least one figure"
    assert len({figure.name for figure in figures}) == len(figures), "names of figures are unique"
    for figure in figures:
        assert figure.title
        assert figure.caption
        match figure:
            case HeatMap():
                assert figure.values.shape == (len(figure.row_labels), len(figure.column_labels))
                assert np.isfinite(figure.values).any()
            case Curves():
                assert all(len(one.x) == len(one.y) > 0 for one in figure.series)
            case Histogram():
                widths = np.diff(figure.edges)
                assert len(figure.density) == len(widths)
                assert (figure.density * widths).sum() <= 1 + 1e-12


@every_lens
def test_finding_survives_when_nothing_can_be_seen(name):
    """Every site refused, no table of vectors, and no batch shown: not applicable, with the reason, and no headline."""
    model = planted(site())
    statuses = {of: WeightStatus("refused", "MLA has no such form") for of in model.sites}
    refused = replace(model, statuses=statuses, vectors={})
    finding = finding_of(name, refused, parts=[])
    assert finding.status == "not applicable"
    assert finding.reason
    assert not finding.tables
    assert finding.headlines == ()


@every_lens
def test_float32_agrees_with_float64(name):
    """The same weights rounded to float32 give the same numbers to float32's precision."""
    model = MODELS["grouped queries"]
    names = ("w_q", "w_k", "w_v", "w_o")
    single = {of: replace(w, **{key: getattr(w, key).float() for key in names}) for of, w in model.weights_of.items()}
    rounded = finding_of(name, replace(model, weights_of=single))
    assert not differences(rounded.tables, finding_on(name, "grouped queries").tables, tolerance=1e-5)


@every_lens
def test_one_token_is_no_reason_to_fail(name):
    lens, model, params = LENSES[name], MODELS["grouped queries"], LENSES[name].params()
    parts = shown_to(lens, model, params, shapes=((1,),))
    finding = finish(lens, folded(lens, params, model, parts), model)
    assert finding.status in ("ok", "not applicable")
    tables = [table for table in finding.tables.values() if "value" in table.columns]
    assert all(math.isfinite(x) for table in tables for x in table["value"].drop_nulls())

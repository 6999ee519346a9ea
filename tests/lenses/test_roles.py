"""Planted cases of the lens `roles`: hand-built heads whose roles are known, and the embedded model."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.token_repeats import repeat_masses
from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.roles.lens import LENS
from headscope.lenses.roles.sentences import sentences
from headscope.lenses.roles.settings import Params
from headscope.lenses.roles.tables import FEW_REPEATED, FRESH, REPEATED, TEXT, main_rows
from headscope.lenses.roles.token_windows import INITIALISED, RandomTokens, made_windows
from headscope.model.model import Model, open_model
from headscope.pipeline import measure
from headscope.pipeline.made_windows import make_windows
from headscope.pipeline.subject import Subject
from tests.contract.test_lenses import differences
from tests.lenses.asking import begin, defined, finish, update
from tests.lenses.planted import SPEC, site, softmax
from tests.lenses.sentence_checks import assert_well_formed
from tests.model.families import DISPATCHING, OUTSIDE
from tests.model.test_fidelity import eager_maps

PARAMS = Params(tokens=12, sequences=4)
VOCABULARY, LENGTH = 40, 25
OF = site(n_kv_heads=4, d_head=VOCABULARY + LENGTH, d_value=1)
PREVIOUS, INDUCTION, DUPLICATE, UNIFORM = range(4)


def induction_call(tokens: Tensor, strength: float) -> Call:
    """Four heads by hand: a shift head, one that compares with the token before, one with the token, and none.

    The first VOCABULARY numbers of a query or key are a code of a token, the others a code of a position.
    """
    code = torch.nn.functional.one_hot
    token, position = code(tokens, VOCABULARY).double(), code(torch.arange(LENGTH), LENGTH).double()
    q = torch.zeros(len(tokens), 4, LENGTH, OF.d_head, dtype=torch.float64)
    k = torch.zeros_like(q)
    q[:, PREVIOUS, 1:, VOCABULARY:], k[:, PREVIOUS, :, VOCABULARY:] = position[:-1], position
    # What the shift head of the layer before would have written: the code of the token before.
    q[:, INDUCTION, :, :VOCABULARY], k[:, INDUCTION, 1:, :VOCABULARY] = token, token[:, :-1]
    q[:, DUPLICATE, :, :VOCABULARY], k[:, DUPLICATE, :, :VOCABULARY] = token, token
    places = torch.arange(LENGTH)[None]
    return Call(strength * q, k, k[..., :1], 1.0, places, places, right=0)


def planted_batch(tokens: Tensor, made: str, variant: str, strength: float) -> Batch:
    call = induction_call(tokens, strength if variant == AS_IS else 0.0)
    masses = repeat_masses(call, PARAMS.tokens, tokens)
    return Batch(
        variant,
        tokens,
        torch.ones_like(tokens, dtype=torch.bool),
        {},
        {},
        {"pattern": {OF: softmax(call)}, f"repeats:{PARAMS.tokens}": {OF: masses}},
        made=made,
    )


def text_tokens() -> Tensor:
    """Random tokens of few kinds, of which no two neighbours are equal."""
    generator = torch.Generator().manual_seed(5)
    steps = torch.randint(1, 9, (3, LENGTH), generator=generator)
    return steps.cumsum(1) % 10


def planted_batches(variants: tuple[str, ...] = (AS_IS, INITIALISED), strength: float = 60.0) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.arange(VOCABULARY)
    made = {
        windows.name: windows.make(ids, generator, windows.count, windows.length) for windows in made_windows(PARAMS)
    }
    return [
        planted_batch(tokens, name, variant, strength)
        for variant in variants
        for name, tokens in {**made, "": text_tokens()}.items()
        if not name or (name == FEW_REPEATED) == (variant == INITIALISED)
    ]


def finding_of(batches: list[Batch], params: Params = PARAMS):
    fold = begin(LENS, params, SPEC, (OF,))
    for batch in batches:
        fold = update(LENS, fold, batch)
    return finish(LENS, fold, None)


def score(finding, head: int, role: str, source: str = REPEATED, **place: int):
    rows = finding.tables["heads"].filter(pl.col("head") == head, pl.col("role") == role, pl.col("source") == source)
    for name, number in place.items():
        rows = rows.filter(pl.col(name) == number)
    return rows.row(0, named=True)


def test_hand_built_heads_have_their_roles():
    finding = finding_of(planted_batches())
    assert finding.tables["roles"]["role"].to_list() == ["previous token", "induction", "self", None]
    for head, role in ((PREVIOUS, "previous token"), (INDUCTION, "induction")):
        row = score(finding, head, role)
        assert row["value"] == pytest.approx(1.0)
        assert row["has_role"]
    # The copy and the token itself have the same code.
    assert score(finding, DUPLICATE, "duplicate token")["value"] == pytest.approx(0.5)
    assert score(finding, DUPLICATE, "self")["value"] == pytest.approx(0.5)
    assert finding.tables["roles"]["further_roles"].to_list()[DUPLICATE] == "duplicate token"
    assert score(finding, INDUCTION, "prefix matching", TEXT)["value"] == pytest.approx(1.0)
    assert score(finding, PREVIOUS, "previous token", TEXT)["value"] == pytest.approx(1.0)


def test_nulls_are_those_of_the_same_keys_without_repetition():
    finding = finding_of(planted_batches())
    shares = [1 / (i + 1) for i in range(PARAMS.tokens + 1, LENGTH)]
    for head in (INDUCTION, UNIFORM):
        assert score(finding, head, "induction")["null"] == pytest.approx(np.mean(shares))
    assert score(finding, UNIFORM, "previous token")["null"] == pytest.approx(np.mean(shares))
    assert score(finding, INDUCTION, "induction")["initialised"] == pytest.approx(np.mean(shares))
    assert score(finding, INDUCTION, "induction")["threshold"] == pytest.approx(0.1 + np.mean(shares))
    # A head that follows copies puts nothing where it does not, but for queries whose token is new.
    uniform = score(finding, UNIFORM, "prefix matching", TEXT)
    assert uniform["null"] == pytest.approx(uniform["value"], rel=0.1)


def test_no_head_has_a_role_where_nothing_repeats_and_nothing_was_learned():
    finding = finding_of(planted_batches(strength=0.0))
    assert finding.tables["roles"]["role"].null_count() == 4
    assert not finding.tables["heads"]["has_role"].any()
    assert "No induction head was detected" in finding.headlines[0].full
    assert {headline.effect for headline in finding.headlines} == {0.0}
    for headline in finding.headlines:
        assert_well_formed(headline)


def test_the_definition_says_the_same():
    batches = planted_batches()
    assert not differences(finding_of(batches).tables, defined(LENS, PARAMS, None, batches))


def test_a_larger_margin_takes_roles_away():
    finding = finding_of(planted_batches(), replace(PARAMS, margin=0.6))
    assert finding.tables["roles"]["role"].to_list() == ["previous token", "induction", None, None]


def test_a_refused_form_is_said_and_does_not_count():
    empty = torch.zeros(0, 0, dtype=torch.int64)
    refusal = Batch(INITIALISED, empty, empty.bool(), refused="it cannot be initialised")
    finding = finding_of([*planted_batches((AS_IS,)), refusal])
    assert finding.tables["heads"]["initialised"].null_count() == finding.tables["heads"].height
    assert "it cannot be initialised" in finding.warnings[0]
    assert score(finding, INDUCTION, "induction")["has_role"]


def test_sentences_say_effect_interval_null_and_windows():
    finding = finding_of(planted_batches())
    for headline in finding.headlines:
        assert_well_formed(headline)
    induction = finding.headlines[0].full
    assert induction.startswith("1 of 4 heads is an induction head")
    assert "L0.H1 puts the most on the token that followed the earlier copy: 100 %" in induction
    assert "4 windows" in induction
    assert sentences(finding.tables) == tuple(replace(headline) for headline in finding.headlines)


# --- the windows


def test_random_tokens_repeat_after_the_first_token():
    ids = torch.arange(100, 200)
    tokens = RandomTokens(12, True, None)(ids, torch.Generator().manual_seed(0), 3, 25)
    assert torch.equal(tokens[:, 1:13], tokens[:, 13:])
    assert all(len(set(window)) == 13 for window in tokens.tolist()), "all differ"
    short = RandomTokens(12, True, None)(ids, torch.Generator().manual_seed(0), 3, 20)
    assert torch.equal(short[:, 1:8], short[:, 13:])


def test_fresh_tokens_never_repeat_where_there_are_enough():
    tokens = RandomTokens(12, False, None)(torch.arange(100, 200), torch.Generator().manual_seed(0), 3, 25)
    assert all(len(set(window)) == 25 for window in tokens.tolist())
    few = RandomTokens(12, False, None)(torch.arange(5), torch.Generator().manual_seed(0), 3, 25)
    assert few.shape == (3, 25)


def test_ids_can_be_limited():
    tokens = RandomTokens(12, False, (110, 150))(torch.arange(100, 200), torch.Generator().manual_seed(0), 9, 25)
    assert 110 <= int(tokens.min()) <= int(tokens.max()) <= 150


@pytest.mark.parametrize(
    "wrong", [{"tokens": 5}, {"sequences": 1}, {"margin": 1.0}, {"margin": -0.1}, {"ids": "5"}, {"ids": "9-3"}]
)
def test_settings_that_cannot_be_measured_are_refused(wrong: dict[str, object]):
    with pytest.raises(UsageError):
        LENS.needs(Params(**wrong))


def test_ids_of_special_tokens_alone_fail_with_the_reason(tiny: Model):
    run = measure(tiny, text="a b c " * 40, lenses=["roles"], params={"roles": {"ids": "0-1"}})
    assert run["roles"].status == "failed"
    assert "no ordinary token has an id from 0 to 1" in run["roles"].reason


# --- the embedded model


@pytest.fixture(scope="module")
def tiny_finding(tiny: Model):
    return measure(tiny, text="In the beginning was the word. " * 30, lenses=["roles"], window=64)["roles"]


def test_the_embedded_model_has_the_textbook_circuit(tiny_finding):
    rows = tiny_finding.tables["heads"].filter(pl.col("source") == REPEATED)
    induction = rows.filter(pl.col("role") == "induction")
    heads = induction.filter("has_role").select("layer", "head").rows()
    assert heads == [(1, 0), (1, 3), (1, 6)]
    assert induction.filter("has_role")["value"].min() > 0.6
    assert induction.filter(~pl.col("has_role"))["value"].max() < 0.06
    previous = rows.filter(pl.col("role") == "previous token", pl.col("has_role"))
    assert previous.select("layer", "head").rows() == [(0, 0)]
    assert previous["value"][0] == pytest.approx(0.985, abs=0.01)
    assert score(tiny_finding, 1, "first token", layer=0)["value"] == pytest.approx(0.91, abs=0.02)
    assert not rows.filter(pl.col("role") == "duplicate token")["has_role"].any()


def test_no_mass_of_the_initialised_model_is_a_role(tiny_finding):
    rows = tiny_finding.tables["heads"]
    largest = rows.group_by("source", "role").agg(pl.col("null").max(), pl.col("initialised").max())
    assert (largest["initialised"] < largest["null"] + Params().margin).all()


def test_scores_are_those_of_transformers_maps(tiny: Model, tiny_finding):
    """Means of entries of the eager maps, in plain numpy."""
    windows = {request.name: request for request in made_windows(Params())}
    subject = Subject(tiny.spec, tiny.sites, tiny.weight_source(), tiny)
    tokens, fresh = (make_windows(windows[name], subject, seed=0).full for name in (REPEATED, FRESH))
    assert tokens.shape == (24, 81)
    assert set(tokens[:, 0].tolist()) == {tiny.tokenizer.bos_token_id}
    assert torch.equal(tokens[:, 1:41], tokens[:, 41:])
    maps, nulls = (eager_maps(tiny, {"input_ids": ids}) for ids in (tokens, fresh))
    queries = np.arange(41, 81)
    for of, weights in maps.items():
        for role, keys in {
            "induction": queries - 39,
            "duplicate token": queries - 40,
            "previous token": queries - 1,
            "3 back": queries - 3,
            "first token": 0 * queries,
            "self": queries,
        }.items():
            means = weights.double().numpy()[:, :, queries, keys].mean((0, 2))
            for head, mean in enumerate(means):
                assert score(tiny_finding, head, role, layer=of.layer)["value"] == pytest.approx(mean, abs=1e-5)
        means = nulls[of].double().numpy()[:, :, queries, queries - 39].mean((0, 2))
        for head, mean in enumerate(means):
            assert score(tiny_finding, head, "induction", layer=of.layer)["null"] == pytest.approx(mean, abs=1e-5)


FAMILIES = [family for family in (*DISPATCHING, *OUTSIDE) if family.name in ("llama_gqa", "bert", "t5", "bloom")]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_head_of_a_random_model_has_a_role(family):
    """Without a tokenizer; also encoders, two stacks, and a family that is watched at its softmax."""
    model = open_model(family.build())
    finding = measure(model, lenses=["roles"], params={"roles": {"with_text": False, "sequences": 6}})["roles"]
    assert finding.status == "ok", finding.reason
    assert finding.tables["roles"]["role"].null_count() == finding.tables["roles"].height > 0
    assert finding.tables["heads"]["kind"].unique().to_list() == ["self"]
    assert ("Cross-attention is left out" in finding.method) == (family.name == "t5")


def test_ids_that_the_model_does_not_embed_are_refused(tiny):
    with pytest.raises(UsageError, match=r"begins at 5000; tiny embeds tokens with ids from 0 to 1535"):
        measure(tiny, lenses=["roles"], params={"roles": {"ids": "5000-6000"}})


def test_the_main_row_of_a_role_is_on_its_own_source():
    """Prefix matching is about text; every other role is measured on repeated tokens, also where text shows it."""
    rows = [(source, role) for source in (TEXT, REPEATED) for role in ("prefix matching", "previous", "first token")]
    heads = pl.DataFrame(rows, schema=["source", "role"], orient="row")
    expected = {(TEXT, "prefix matching"), (REPEATED, "previous"), (REPEATED, "first token")}
    assert set(main_rows(heads).iter_rows()) == expected

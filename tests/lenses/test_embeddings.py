"""Known answers and planted cases of the lens `embeddings`."""

import re
from dataclasses import replace

import polars as pl
import pytest
import torch

from headscope.core import Embedding
from headscope.errors import UsageError
from headscope.lenses.embeddings.lens import LENS
from headscope.lenses.embeddings.settings import Params
from headscope.maths.attention.sinusoidal_positions import sinusoidal
from headscope.theory import claims, judged
from tests.lenses.asking import begin, finish
from tests.lenses.planted import SPEC, Planted, Words

TOKEN = Embedding("token", "only", "tokens", (0, 0))
POSITION = Embedding("position", "only", "positions", (0, 0))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def finding_of(vectors, vocabulary=None, params=None):
    model = Planted({}, SPEC, vectors=vectors, vocabulary=vocabulary)
    return finish(LENS, begin(LENS, params or Params(), SPEC, ()), model)


def number(finding, quantity, column="value", table="token"):
    rows = finding.tables["tables"].filter(pl.col("table") == table, pl.col("quantity") == quantity)
    return rows[column].item()


def test_random_vectors_are_their_own_null():
    finding = finding_of({TOKEN: normal(3000, 64)})
    for quantity in ("length_spread", "mean_share", "cosine_mean", "cosine_square"):
        assert abs(number(finding, quantity, "z")) < 4, quantity
    assert number(finding, "participation") == pytest.approx(number(finding, "participation", "null"), rel=0.01)
    assert "as thin as that of random vectors" in finding.headlines[0].full
    assert "they have almost no preferred direction" in finding.headlines[1].full
    assert judged_as(finding)["W-2.3b"] == "needs a model"  # a Gaussian cloud spreads as one does: nothing is decided
    lengths_alike = torch.nn.functional.normalize(normal(3000, 64), dim=-1)
    assert judged_as(finding_of({TOKEN: lengths_alike}))["W-2.3b"] == "holds"


def test_a_sphere_and_a_common_direction():
    """Unit vectors of which a share s of the squared length is common: every mean cosine is s."""
    s, d = 0.3, 200
    own = torch.nn.functional.normalize(normal(2000, d - 1), dim=1)
    x = 5 * torch.cat((torch.full((2000, 1), s**0.5, dtype=torch.float64), (1 - s) ** 0.5 * own), 1)
    finding = finding_of({TOKEN: x})
    assert number(finding, "length_mean") == pytest.approx(5)
    assert number(finding, "length_spread") < 1e-12
    assert number(finding, "cosine_mean") == pytest.approx(s, abs=1e-3)
    assert number(finding, "mean_share") == pytest.approx(s, abs=1e-3)
    assert abs(number(finding, "centred_cosine_square", "z")) < 15  # one direction of 200 is gone
    assert number(finding, "centred_cosine_square") == pytest.approx(1 / d, rel=0.02)
    assert judged_as(finding)["W-2.3b"] == "holds"


def test_unequal_lengths_are_no_sphere():
    finding = finding_of({TOKEN: normal(500, 32) * torch.linspace(0.2, 3, 500, dtype=torch.float64)[:, None]})
    assert "no thin sphere" in finding.headlines[0].full
    assert judged_as(finding)["W-2.3b"] == "refuted"


FEMALE = (("king", "queen"), ("man", "woman"), ("boy", "girl"), ("father", "mother"), ("son", "daughter"))
ALIKE = (
    *(("warm", "sunny"), ("river", "water"), ("dog", "cat"), ("ship", "sea"), ("tree", "forest"), ("war", "army")),
    *(("money", "bank"), ("night", "dark"), ("fire", "smoke"), ("winter", "snow")),
)


def speaking(offset: float, alike: float):
    """A vocabulary in which one offset makes the female word of the male one, and related words share a part."""
    words = [word for pair in (*FEMALE, *ALIKE) for word in pair] + [f"word{n}" for n in range(400)]
    # One neighbour nearer to each male word than the female one: the third word alone finds it, not the answer.
    words += [f"near {male}" for male, _ in FEMALE]
    x = dict(zip(words, normal(len(words), 48), strict=True))
    turn = offset * normal(48, seed=9)
    for at, (male, female) in enumerate(FEMALE):
        x[female] = x[male] + turn + 0.1 * normal(48, seed=20 + at)
        x[f"near {male}"] = x[male] + 0.1 * normal(48, seed=40 + at)
    for a, b in ALIKE:
        x[b] = alike * x[a] + (1 - alike**2) ** 0.5 * x[b]
    return {TOKEN: torch.stack(list(x.values()))}, Words(tuple(words))


def judged_as(finding):
    chosen = claims(["W-2.3a", "W-2.3b"])
    return {one.ids[0]: judged(one, findings={"embeddings": finding}, model="planted").verdict for one in chosen}


def test_planted_analogies_are_found():
    finding = finding_of(*speaking(1.0, 0.8), Params(words="king,nobody", nearest=2))
    row = finding.tables["analogies"].row(0, named=True)
    assert (row["analogies"], row["value"], row["baseline"], row["rank"]) == (20, 1.0, 0.0, 1.0)
    assert row["null_rank"] == pytest.approx((435 - 3 + 1) / 2)
    related = finding.tables["related"].row(0, named=True)
    assert related["pairs"] == 12  # father and mother, king and queen are on that list too
    assert related["value"] > 0.6
    assert related["null"] == pytest.approx(0, abs=0.1)
    near = finding.tables["neighbours"]
    assert near["neighbour"][0] == "near king"
    assert near["null"][0] == pytest.approx(0.42, abs=0.1)  # the largest of 434 random cosines in 48 dimensions
    assert "): directions add up." in finding.headlines[2].full
    assert 0 < row["low"] < 1, "five pairs that all agree still leave the share uncertain"
    assert row["gain_low"] > 0
    assert any("nobody" in one for one in finding.warnings)
    assert judged_as(finding)["W-2.3a"] == "holds"


def test_words_without_relation_show_none():
    vectors, words = speaking(1.0, 0.8)
    finding = finding_of({TOKEN: normal(*vectors[TOKEN].shape, seed=3)}, words)
    assert finding.tables["analogies"].row(0, named=True)["value"] == 0
    assert abs(finding.tables["related"].row(0, named=True)["z"]) < 4
    # Twelve pairs and twenty analogies show nothing, and are too few to show that there is nothing.
    assert judged_as(finding)["W-2.3a"] == "needs a model"


def test_without_a_tokenizer_the_rest_is_said():
    finding = finding_of({TOKEN: normal(50, 8)})
    assert not {"neighbours", "related", "analogies"} & finding.tables.keys()
    assert any("no tokenizer" in one for one in finding.warnings)
    assert judged_as(finding)["W-2.3a"] == "needs a model"


def test_empty_and_unreached_rows_do_not_count():
    x = normal(60, 8)
    x[5] = 0
    finding = finding_of({TOKEN: x, replace(POSITION, first=2): torch.cat((1e6 * normal(2, 8), normal(20, 8, seed=1)))})
    assert number(finding, "length_mean", "rows") == 59
    assert any(one == "Zero, and not counted: 1 row of the table of token vectors." for one in finding.warnings)
    assert number(finding, "length_mean", "rows", "position") == 20
    assert number(finding, "length_mean", table="position") < 10


def test_sinusoidal_positions_follow_their_formula():
    table = sinusoidal(torch.arange(64, dtype=torch.float64), 16)
    finding = finding_of({TOKEN: normal(40, 16), POSITION: table})
    rows = finding.tables["positions"]
    assert rows["distance"].to_list() == [1, 2, 4, 8, 16, 32]
    assert rows["value"].to_list() == pytest.approx(rows["sinusoid"].to_list())
    assert any(figure.name == "positions" for figure in finding.figures)


def test_too_small_a_table_and_senseless_arguments():
    assert finding_of({TOKEN: normal(2, 8)}).status == "not applicable"
    assert finding_of({TOKEN: torch.zeros(9, 8, dtype=torch.float64)}).status == "not applicable"
    with pytest.raises(UsageError, match="nearest=0"):
        LENS.needs(Params(nearest=0))


def test_the_short_form_states_the_planted_numbers():
    """Vectors of one length that share a third of its square, and analogies that hold."""
    units = torch.nn.functional.normalize(normal(2000, 199), dim=1)
    sphere, directions = finding_of({TOKEN: torch.cat((torch.full_like(units[:, :1], 0.5**0.5), units), 1)}).headlines
    assert sphere.short == "Lengths of token vectors spread by 0.0 % of their mean; those of random vectors by 5.0 %."
    assert sphere.effect == pytest.approx(1)
    # The root mean square: a common third, and random rest.
    cosine = (1 / 9 + (2 / 3) ** 2 / 199) ** 0.5
    assert f"typically {cosine:.3f};" in directions.short
    assert directions.effect == pytest.approx(cosine - 200**-0.5, abs=0.001)
    meaning = finding_of(*speaking(1.0, 0.8)).headlines[2]
    assert meaning.short == "Adding word vectors solves 100 % of the analogies; the third word alone solves 0 %."
    assert meaning.effect == 1


def test_random_vectors_have_no_effect():
    vectors, words = speaking(1.0, 0.8)
    for headline in finding_of({TOKEN: normal(*vectors[TOKEN].shape, seed=3)}, words).headlines:
        assert re.match(r"No .* was detected; .*[\d.]+( points| %)? would have been\.", headline.short)
        assert headline.effect == 0

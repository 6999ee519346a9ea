"""Scores of translations: sacrebleu's values, intervals over groups, bands."""

import random

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF
from scipy import stats

from headscope.corpora.parallel.nearest_sentences import BANDS
from headscope.errors import UsageError
from headscope.experiments.translation.translation_scores import SCHEMA, Translations, score_difference, score_table

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "birds", "in", "old", "trees", "near", "us")


def noisy(count, seed=0, share=0.3):
    """References, and hypotheses in which some words are others."""
    generator = random.Random(seed)
    references = [" ".join(generator.choices(WORDS, k=generator.randint(4, 12))) for _ in range(count)]
    hypotheses = [
        " ".join(generator.choice(WORDS) if generator.random() < share else word for word in reference.split())
        for reference in references
    ]
    return hypotheses, references


def translations(count=60, seed=0):
    hypotheses, references = noisy(count, seed)
    return Translations(hypotheses, references, [n // 2 for n in range(count)], [BANDS[n % 3] for n in range(count)])


def test_scores_equal_sacrebleu():
    scored = translations()
    table = score_table(scored, draws=20)
    assert dict(table.schema) == SCHEMA
    assert table.height == 2 * 4
    for row in table.iter_rows(named=True):
        chosen = [n for n, band in enumerate(scored.bands) if row["band"] in ("all", band)]
        metric = {"BLEU": BLEU, "chrF": CHRF}[row["metric"]]()
        expected = metric.corpus_score([scored.hypotheses[n] for n in chosen], [[scored.references[n] for n in chosen]])
        assert row["value"] == pytest.approx(expected.score, abs=1e-9)
        assert row["signature"] == str(metric.get_signature())
        assert (row["sentences"], row["groups"]) == (len(chosen), len({scored.groups[n] for n in chosen}))
        assert row["low"] < row["value"] < row["high"]


@pytest.mark.parametrize("metric", ["BLEU", "chrF"])
def test_the_difference_of_equal_translations(metric):
    better, worse = translations(), translations()
    worse = Translations(["the cat"] * 60, worse.references, worse.groups, worse.bands)
    assert score_difference(better, better, metric, draws=20) == (0.0, 0.0, 0.0)
    value, low, high = score_difference(better, worse, metric, draws=50)
    table = [score_table(side, draws=1).filter(band="all", metric=metric)["value"].item() for side in (better, worse)]
    assert value == pytest.approx(table[0] - table[1])
    assert 0 < low < value < high
    assert score_difference(worse, better, metric, draws=50) == pytest.approx((-value, -high, -low))


def test_intervals_stay_on_the_scale():
    """With a few groups the ends of the bootstrap leave the scale of 0 to 100."""
    good, poor = (
        ("the cat sat on a mat and saw us", "the cat sat on a mat and saw us"),
        ("two birds", "in old trees near us"),
    )
    pairs = [good, good, poor]
    scored = Translations(*zip(*pairs, strict=True), [0, 1, 2], [BANDS[0]] * 3)
    table = score_table(scored, draws=200)
    assert table["low"].min() >= 0.0
    assert table["high"].max() == 100.0


def test_perfect_translations():
    _, references = noisy(20)
    table = score_table(Translations(references, references, range(20), [BANDS[0]] * 20), draws=10)
    assert table["value"].to_list() == pytest.approx([100.0] * 4)
    assert table["low"].to_list() == pytest.approx([100.0] * 4)


def test_a_group_is_one_observation():
    """Every sentence four times: the interval is that of single sentences, not half as wide."""
    hypotheses, references = noisy(50)
    once = score_table(Translations(hypotheses, references, range(50), [BANDS[0]] * 50))
    groups = [n % 50 for n in range(200)]
    often = score_table(Translations(hypotheses * 4, references * 4, groups, [BANDS[0]] * 200))
    for name in ("value", "low", "high"):
        torch.testing.assert_close(often[name].to_torch(), once[name].to_torch())


def test_intervals_of_scores_cover():
    """A hundred and twenty samples of fifty sentences; the truth is the score of all of them."""
    hypotheses, references = noisy(6_000)
    truth = {
        "BLEU": BLEU().corpus_score(hypotheses, [references]).score,
        "chrF": CHRF().corpus_score(hypotheses, [references]).score,
    }
    hits = dict.fromkeys(truth, 0)
    for first in range(0, 6_000, 50):
        part = slice(first, first + 50)
        sample = Translations(hypotheses[part], references[part], range(50), ["none"] * 50)
        for row in score_table(sample, draws=100).iter_rows(named=True):
            hits[row["metric"]] += row["low"] <= truth[row["metric"]] <= row["high"]
    least, most = (int(stats.binom.ppf(tail, 120, 0.95)) for tail in (0.0005, 0.9995))
    assert all(least <= count <= most for count in hits.values()), hits


def test_the_seed_decides():
    tables = [score_table(translations(), draws=50, seed=seed) for seed in (0, 0, 1)]
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


def test_one_group_has_no_interval():
    table = score_table(Translations(["a cat"], ["a cat"], [7], [BANDS[3]]), draws=5)
    assert table["low"].is_nan().all()
    assert set(table["band"]) == {"all", BANDS[3]}


@pytest.mark.parametrize("lists", [(["a"], ["a", "b"], [0], ["x"]), ([], [], [], [])])
def test_lists_of_other_lengths(lists):
    with pytest.raises(UsageError, match="scored sentence by sentence"):
        Translations(*lists)

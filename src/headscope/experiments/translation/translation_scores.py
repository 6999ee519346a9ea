"""BLEU and chrF of translations, overall and by distance to the training text, with intervals.

Definition:
    BLEU and chrF are those of sacrebleu, named by its signature. An interval is a bootstrap over groups of
    near-duplicate sentences, not over sentences: two variants of a sentence are no two observations.
Properties:
    - the value is that of sacrebleu's own corpus score  (tested: test_scores_equal_sacrebleu)
    - an interval covers the score of all sentences in 95 of 100 samples  (tested: test_intervals_of_scores_cover)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.corpora.parallel.nearest_sentences import BANDS
from headscope.errors import UsageError
from headscope.maths.resampling.bootstrap import bootstrap_of_sums

ALL = "all"
METRICS = ("BLEU", "chrF")
_BEST = 100.0  # of both
SCHEMA = {
    "band": pl.String,
    "metric": pl.String,
    "sentences": pl.Int64,
    "groups": pl.Int64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "signature": pl.String,
}


@dataclass(frozen=True)
class Translations:
    """Translations of test sentences, with what is known about each sentence."""

    hypotheses: Sequence[str]
    references: Sequence[str]
    groups: Sequence[int]
    bands: Sequence[str]

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in ("hypotheses", "references", "groups", "bands")}
        if len(set(lengths.values())) != 1 or not self.references:
            counts = ", ".join(f"{length} {name}" for name, length in lengths.items())
            raise UsageError(f"translations are scored sentence by sentence: {counts}", hint="give as many of each")


def score_table(translations: Translations, *, draws: int = 1000, seed: int = 0) -> pl.DataFrame:
    """A row for each metric of all sentences, and of those in each band that has sentences."""
    rows = [row for metric in METRICS for row in _rows(metric, translations, draws, seed)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def score_difference(
    translations: Translations, baseline: Translations, name: str, *, draws: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """By how much a score is above that of a baseline, other translations of the same sentences, and its interval.

    The same groups are drawn for both.

    Properties:
        - a set of translations differs from itself by 0  (tested: test_the_difference_of_equal_translations)
    """
    metric, everything = _metric(name), torch.ones(len(translations.references), dtype=torch.bool)
    sums = torch.cat([_group_sums(metric, side, everything) for side in (translations, baseline)], dim=1)
    half = sums.shape[1] // 2

    def difference(rows: Float[Tensor, "draws statistics"]) -> Float[Tensor, "draws"]:
        return _scores(metric, rows[:, :half]) - _scores(metric, rows[:, half:])

    value = float(difference(sums.sum(0, keepdim=True)))
    return value, *bootstrap_of_sums(sums, difference, draws=draws, seed=seed)


def _rows(name: str, translations: Translations, draws: int, seed: int) -> Iterator[tuple[Any, ...]]:
    metric = _metric(name)
    for band in (ALL, *BANDS):
        members = torch.tensor([band in (ALL, sentence_band) for sentence_band in translations.bands])
        if not members.any():
            continue
        sums = _group_sums(metric, translations, members)
        value = float(_scores(metric, sums.sum(0, keepdim=True)))
        ends = bootstrap_of_sums(sums, partial(_scores, metric), draws=draws, seed=seed)
        low, high = (min(max(end, 0.0), _BEST) for end in ends)  # with few groups they may leave the scale; NaN stays
        yield band, name, int(members.sum()), len(sums), value, low, high, str(metric.get_signature())


def _group_sums(
    metric: Any, translations: Translations, members: Bool[Tensor, " sentences"]
) -> Float[Tensor, "groups statistics"]:
    """The counts of a metric, summed over the sentences of each group that are members."""
    # These methods are not public, but what sacrebleu's own bootstrap is made of; a test compares the values.
    statistics = torch.tensor(
        metric._extract_corpus_statistics(list(translations.hypotheses), [list(translations.references)]),
        dtype=torch.float64,
    )
    groups = torch.unique(torch.tensor(translations.groups)[members], return_inverse=True)[1]
    sums = torch.zeros(int(groups.max()) + 1, statistics.shape[1], dtype=torch.float64)
    return sums.index_add_(0, groups, statistics[members])


def _scores(metric: Any, sums: Float[Tensor, "draws statistics"]) -> Float[Tensor, "draws"]:
    values = [metric._compute_score_from_stats(row).score for row in sums.tolist()]
    return torch.tensor(values, dtype=torch.float64)


def _metric(name: str) -> Any:
    from sacrebleu.metrics import BLEU, CHRF

    return {"BLEU": BLEU, "chrF": CHRF}[name]()

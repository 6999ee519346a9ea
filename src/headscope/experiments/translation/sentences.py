"""What a translation study says: the score next to the copy's, far from the training text, and the best variant."""

from collections.abc import Mapping
from math import isnan
from typing import Any

import polars as pl

from headscope.core import Headline
from headscope.corpora.parallel.nearest_sentences import BANDS
from headscope.experiments.prune.settings import BUDGETS
from headscope.experiments.translation.head_pruning import IMPORTANCE
from headscope.experiments.translation.judged_translations import BEAM, COPY, GREEDY
from headscope.experiments.translation.translation_scores import ALL
from headscope.experiments.translation.variants import MAIN
from headscope.lenses.shared.effects import share_effect
from headscope.lenses.shared.plots import label_of

_BEST = 100.0  # of BLEU and chrF


def headlines(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """Quality overall, quality far from the training text, and the variants where there are some."""
    scores = tables["scores"]
    statements = [_overall(scores)]
    if not scores.filter(band=BANDS[0]).is_empty():
        statements.append(_far(scores))
    if tables["variants"].height > 1:
        statements.append(_variants(tables["variants"]))
    if "spared" in tables:
        statements.append(_spared(tables["spared"], tables["heads"], tables["pruning"]))
    return tuple(statements)


def _overall(scores: pl.DataFrame) -> Headline:
    beam, greedy, copy = (_row(scores, system, ALL) for system in (BEAM, GREEDY, COPY))
    chrf = _row(scores, BEAM, ALL, "chrF")
    return Headline(
        f"Beam search reaches BLEU {_interval(beam)} and chrF {_interval(chrf)} on {beam['sentences']} held-out "
        f"sentences in {beam['groups']} groups of near-duplicates; greedy decoding BLEU {_interval(greedy)}; the "
        f"translation of the nearest training sentence {_interval(copy)}.",
        f"BLEU {beam['value']:.1f} on held-out sentences; copying the nearest training sentence gives "
        f"{copy['value']:.1f}.",
        _effect(beam["value"], copy["value"]),
        answer="BLEU with beam search",
        value=f"{beam['value']:.1f}",
        null=f"copy {copy['value']:.1f}",
        figure="bleu_by_distance",
    )


def _far(scores: pl.DataFrame) -> Headline:
    beam, copy = _row(scores, BEAM, BANDS[0]), _row(scores, COPY, BANDS[0])
    return Headline(
        f"Of {beam['sentences']} sentences that share less than half of their words with any training sentence, beam "
        f"search reaches BLEU {_interval(beam)}, the copy {_interval(copy)}.",
        f"BLEU {beam['value']:.1f} far from the training text; copying gives {copy['value']:.1f}.",
        _effect(beam["value"], copy["value"]),
        answer="BLEU far from the training text",
        value=f"{beam['value']:.1f}",
        null=f"copy {copy['value']:.1f}",
        figure="bleu_by_distance",
    )


def _variants(variants: pl.DataFrame) -> Headline:
    main = variants.filter(variant=MAIN).row(0, named=True)
    ranking = variants.filter(pl.col("variant") != MAIN).sort("BLEU", descending=True)
    best, worst = ranking.row(0, named=True), ranking.row(-1, named=True)
    return Headline(
        f"With the same budget and greedy decoding, {main['network']} has BLEU {main['BLEU']:.1f}; of "
        f"{ranking.height} others the best is {best['network']} ({_change(best)}), the last {worst['network']} "
        f"({_change(worst)}); paired differences with 95 % intervals over groups.",
        f"BLEU {main['BLEU']:.1f}, and {best['BLEU']:.1f} for the best of {ranking.height} other networks.",
        abs(best["BLEU"] - main["BLEU"]) / _BEST,
        answer="best other network",
        value=f"{best['BLEU']:.1f}",
        null=f"main {main['BLEU']:.1f}",
        figure="variant_losses",
    )


def _spared(spared: pl.DataFrame, heads: pl.DataFrame, pruning: pl.DataFrame) -> Headline:
    row = spared.filter(budget=BUDGETS[-1], by="estimate").row(0, named=True)
    surely = spared.filter(budget=BUDGETS[-1], by="upper end")["spared"].item()
    first = heads.sort(IMPORTANCE, descending=True).row(0, named=True)
    budget, count = f"{100 * BUDGETS[-1]:g} %", f"{row['spared']} of {row['heads']} heads"
    return Headline(
        f"{count} can give zero together within {budget} of the perplexity on {pruning['groups'][0]} groups of test "
        f"pairs, {surely} by the upper end of the 95 % interval; at random {row['random']}. The most important head is "
        f"{label_of(first)}: without it a token costs {first[IMPORTANCE]:.3f} [{first['low']:.3f}, "
        f"{first['high']:.3f}] nats more.",
        f"{count} can go within {budget} of the perplexity, at random {row['random']}.",
        share_effect(row["spared"] / row["heads"], row["random"] / row["heads"]),
        answer=f"heads that can go within {budget}",
        value=f"{row['spared']} of {row['heads']}",
        null=f"{row['random']} at random",
        figure="curve",
    )


def _row(scores: pl.DataFrame, system: str, band: str, metric: str = "BLEU") -> dict[str, Any]:
    return scores.filter(system=system, band=band, metric=metric).row(0, named=True)


def _interval(row: Mapping[str, Any]) -> str:
    ends = "" if isnan(row["low"]) else f" [{row['low']:.1f}, {row['high']:.1f}]"
    return f"{row['value']:.1f}{ends}"


def _change(row: Mapping[str, Any]) -> str:
    return f"{row['BLEU_change']:+.1f} [{row['BLEU_change_low']:+.1f}, {row['BLEU_change_high']:+.1f}]"


def _effect(value: float, null: float) -> float:
    """How far the score is from the copy's, of what is possible."""
    return min(max((value - null) / (_BEST - null), 0.0), 1.0) if null < _BEST else 0.0

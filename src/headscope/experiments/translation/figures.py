"""Figures of a translation study: scores by distance, losses, attention maps of sentences."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.experiments.prune.figures import perplexity_curve
from headscope.experiments.translation.head_pruning import IMPORTANCE
from headscope.experiments.translation.judged_translations import COPY
from headscope.experiments.translation.sentence_maps import SentenceMaps, last_sites
from headscope.experiments.translation.translation_scores import ALL
from headscope.experiments.translation.variants import MAIN
from headscope.lenses.shared.plots import head_map

_SIDES = {("enc", "self"): "encoder", ("dec", "self"): "decoder", ("dec", "cross"): "cross-attention"}


def figures(
    tables: Mapping[str, pl.DataFrame], sites: Sequence[Site], maps: Sequence[SentenceMaps]
) -> tuple[Figure, ...]:
    """Scores by distance, losses, what heads are worth, and the maps of every drawn sentence."""
    pictures: list[Figure] = [_by_distance(tables["scores"], tables["translations"]), _losses(tables["losses"])]
    if tables["losses"]["variant"].n_unique() > 1:
        pictures.append(_variant_losses(tables["losses"]))
    if "pruning" in tables:
        pictures.append(perplexity_curve(tables["pruning"], "gives zero", "groups of near-duplicates"))
        pictures.append(_importance(tables["heads"], sites))
    return (*pictures, *(picture for number, sentence in enumerate(maps, 1) for picture in _maps(number, sentence)))


def _by_distance(scores: pl.DataFrame, translations: pl.DataFrame) -> Curves:
    """BLEU of each system against the mean overlap in a band."""
    overlaps = translations.group_by("band").agg(pl.col("overlap").mean())
    bands = scores.filter(pl.col("metric") == "BLEU", pl.col("band") != ALL).join(overlaps, on="band").sort("overlap")
    series = tuple(_system(str(system), rows) for (system,), rows in bands.group_by("system", maintain_order=True))
    return Curves(
        "bleu_by_distance",
        "BLEU by distance to the training text",
        "Test sentences in four bands of overlap with the nearest training sentence, at the mean overlap of the band, "
        "with 95 % intervals over groups of near-duplicates. The copy is the translation of that sentence.",
        "overlap with the nearest training sentence",
        "BLEU",
        series,
    )


def _system(system: str, rows: pl.DataFrame) -> Series:
    x, value, low, high = (_numbers(rows, name) for name in ("overlap", "value", "low", "high"))
    if system == COPY:
        return Series("nearest-neighbour copy", x, value, low, high, role="null")
    return Series(system, x, value, low, high)


def _losses(losses: pl.DataFrame) -> Curves:
    main = losses.filter(pl.col("variant") == MAIN)
    trained, validated = (main.filter(pl.col(name).is_not_null()) for name in ("nats", "validation_nats"))
    return Curves(
        "losses",
        "Loss by steps",
        "Negative log-likelihood of a token of the target: of training batches, with dropout, and of the split valid.",
        "step",
        "nats per token",
        (
            Series("training", _numbers(trained, "step"), _numbers(trained, "nats"), role="null"),
            Series("valid", _numbers(validated, "step"), _numbers(validated, "validation_nats")),
        ),
    )


def _variant_losses(losses: pl.DataFrame) -> Curves:
    rows = losses.filter(pl.col("validation_nats").is_not_null()).with_columns(pl.col("seconds") / 60)
    return Curves(
        "variant_losses",
        "Loss of every network by minutes of training",
        "Negative log-likelihood of a token of the target, on the split valid.",
        "minutes",
        "nats per token",
        tuple(
            Series(str(variant), _numbers(course, "seconds"), _numbers(course, "validation_nats"))
            for (variant,), course in rows.group_by("variant", maintain_order=True)
        ),
    )


def _importance(heads: pl.DataFrame, sites: Sequence[Site]) -> HeatMap:
    values = iter(heads[IMPORTANCE].to_list())
    return head_map(
        {site: [next(values) for _ in range(site.n_heads)] for site in sites},
        name=IMPORTANCE,
        title="What each head is worth",
        caption="By how much the loss on pairs of the split valid rises when this head alone gives zero.",
        unit="nats per token",
        reference=0.0,
    )


def _maps(number: int, sentence: SentenceMaps) -> list[HeatMap]:
    return [_heads(number, sentence, site) for site in last_sites(list(sentence.maps))]


def _heads(number: int, sentence: SentenceMaps, site: Site) -> HeatMap:
    """The maps of all heads of a site from left to right, with an empty column between two."""
    side = _SIDES[site.stack, site.kind]
    queries = sentence.source if site.stack == "enc" else sentence.written
    keys = sentence.written if (site.stack, site.kind) == ("dec", "self") else sentence.source
    maps = sentence.maps[site].double().cpu().numpy()
    gap = np.full((len(queries), 1), np.nan)
    columns = [column for head in maps for column in (head, gap)][:-1]
    labels = [label for _ in maps for label in (*keys, "")][:-1]
    return HeatMap(
        f"sentence_{number}_{side.replace('-', '_')}",
        f"Sentence {number}: {side}, {site.label}",
        f"Rows are queries, columns keys; heads 0 to {len(maps) - 1} from left to right. No dropout. "
        f"The encoder reads: {''.join(sentence.source)}",
        np.concatenate(columns, axis=1),
        queries,
        tuple(labels),
        "query",
        "key",
        limits=(0.0, 1.0),
    )


def _numbers(frame: pl.DataFrame, column: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return frame[column].cast(pl.Float64).to_numpy()

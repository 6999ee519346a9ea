"""The tables of a translation study: scores, losses, translations, sizes, variants, heads, pruning."""

from collections.abc import Mapping

import polars as pl

from headscope.core import HeadQuantity
from headscope.corpora.parallel.nearest_sentences import band_of
from headscope.experiments.prune.tables import curve_table
from headscope.experiments.translation.head_pruning import IMPORTANCE, HeadPruning
from headscope.experiments.translation.judged_translations import BEAM, COPY, GREEDY, material_translations
from headscope.experiments.translation.judgement import Judged
from headscope.experiments.translation.pair_material import Material
from headscope.experiments.translation.translation_scores import METRICS, score_difference, score_table
from headscope.experiments.translation.variants import MAIN, description
from headscope.lenses.shared.plots import place

LOSSES = ("step", "epoch", "tokens", "seconds", "rate", "loss", "nats", "validation_nats", "tokens_per_second")
_FLOAT, _WORD, _COUNT = pl.Float64, pl.String, pl.Int64
TRANSLATIONS = {
    "source": _WORD,
    "reference": _WORD,
    GREEDY: _WORD,
    BEAM: _WORD,
    COPY: _WORD,
    "overlap": _FLOAT,
    "band": _WORD,
    "group": _COUNT,
}
VARIANTS = {
    "variant": _WORD,
    "network": _WORD,
    "parameters": _COUNT,
    "steps": _COUNT,
    "tokens": _COUNT,
    "minutes": _FLOAT,
    "validation_nats": _FLOAT,
    **{
        f"{metric}{end}": _FLOAT
        for metric in METRICS
        for end in ("", "_low", "_high", "_change", "_change_low", "_change_high")
    },
}


def scores_table(main: Judged, material: Material, seed: int) -> pl.DataFrame:
    """The scores of both ways to decode and of the nearest-neighbour copy, overall and by band."""
    systems = {**main.translations, COPY: material_translations(material, material.copies)}
    frames = [
        score_table(translations, seed=seed).select(pl.lit(system).alias("system"), pl.all())
        for system, translations in systems.items()
    ]
    return pl.concat(frames)


def losses_table(judged_by_variant: Mapping[str, Judged]) -> pl.DataFrame:
    """The course of each training."""
    frames = [
        judged.trained.outcome.metrics.select(pl.lit(variant).alias("variant"), *LOSSES)
        for variant, judged in judged_by_variant.items()
    ]
    return pl.concat(frames)


def translations_table(main: Judged, material: Material) -> pl.DataFrame:
    """Every judged pair with its translations."""
    judged, nearest = material.judged, material.nearest
    columns = {
        "source": judged.sources,
        "reference": judged.targets,
        GREEDY: main.translations[GREEDY].hypotheses,
        BEAM: main.translations[BEAM].hypotheses,
        COPY: material.copies,
        "overlap": nearest.overlaps,
        "band": [band_of(overlap) for overlap in nearest.overlaps],
        "group": judged.groups,
    }
    return pl.DataFrame(columns, schema=TRANSLATIONS)


def sizes_table(main: Judged, material: Material) -> pl.DataFrame:
    """How much there was to learn from, and how much of it was read."""
    parts = (("train", material.train), ("valid", material.valid), ("judged", material.judged))
    sizes = {f"{name} pairs": len(part.pairs) for name, part in parts}
    sizes |= {f"{name} groups": len(set(part.groups)) for name, part in parts}
    state = main.trained.outcome.state
    sizes |= {"vocabulary": material.tokenizer.get_vocab_size(), "parameters": main.n_parameters}
    sizes |= {"steps": state.step, "tokens read": state.tokens, "seconds": round(state.seconds)}
    return pl.DataFrame({"size": list(sizes), "value": list(sizes.values())}, schema={"size": _WORD, "value": _COUNT})


def variants_table(judged_by_variant: Mapping[str, Judged], seed: int) -> pl.DataFrame:
    """A row for each network, decoded greedily, with the paired difference from the main one."""
    main = judged_by_variant[MAIN]
    return pl.DataFrame(
        [_variant_row(variant, judged, main, seed) for variant, judged in judged_by_variant.items()], schema=VARIANTS
    )


def heads_table(pruning: HeadPruning) -> pl.DataFrame:
    """A row per head: what the loss rises by without it."""
    rows = [
        {**place(site, head), IMPORTANCE: estimate.mean, "low": estimate.low, "high": estimate.high, "null": 0.0}
        for (site, head), estimate in zip(pruning.heads, pruning.importance, strict=True)
    ]
    schema = {"stack": _WORD, "kind": _WORD, "layer": _COUNT, "head": _COUNT}
    return pl.DataFrame(rows, schema={**schema, **dict.fromkeys((IMPORTANCE, "low", "high", "null"), _FLOAT)})


def pruning_table(pruning: HeadPruning) -> pl.DataFrame:
    """A row for each order and number of heads that are off."""
    return curve_table(pruning.curves, len(pruning.heads)).rename({"windows": "groups"})


def head_quantities() -> tuple[HeadQuantity, ...]:
    """What a grid of heads can show."""
    return (
        HeadQuantity(
            key=IMPORTANCE, label="rise of the loss without this head", table="heads", column=IMPORTANCE, null="null",
            unit="nats", highest="most important", lowest="least important",
        ),
    )  # fmt: skip


def _variant_row(variant: str, judged: Judged, main: Judged, seed: int) -> dict[str, object]:
    translations, state = judged.translations[GREEDY], judged.trained.outcome.state
    row: dict[str, object] = {
        "variant": variant,
        "network": description(judged.params),
        "parameters": judged.n_parameters,
        "steps": state.step,
        "tokens": state.tokens,
        "minutes": state.seconds / 60,
        "validation_nats": state.best_nats,
    }
    overall = score_table(translations, seed=seed).filter(band="all")
    for metric in METRICS:
        value, low, high = overall.filter(metric=metric).select("value", "low", "high").row(0)
        row |= {metric: value, f"{metric}_low": low, f"{metric}_high": high}
        if variant != MAIN:
            change = score_difference(translations, main.translations[GREEDY], metric, seed=seed)
            row |= dict(zip((f"{metric}_change{end}" for end in ("", "_low", "_high")), change, strict=True))
    return row

"""The differences of all heads as JSON (`frontend/src/comparison/comparison_data.ts` has the same contract)."""

from typing import Any

from headscope.comparison.circumstances import letter
from headscope.comparison.comparison import Comparison, Pair
from headscope.comparison.difference_table import display_factor, display_unit
from headscope.comparison.head_differences import HeadDifferences, QuantityDifference
from headscope.core import Run
from headscope.report.head_grid import HeadGrid
from headscope.report.page_data import head_patterns, heads_json, numbers_json, panels_json, patterns_json


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The models by letter and label, the heads that all compared models share, and the differences by pair."""
    pairs = [(index, pair, pair.heads) for index, pair in enumerate(comparison.pairs)]
    compared = [(index, pair, heads) for index, pair, heads in pairs if heads is not None]
    grid = compared[0][2].grid
    members = [0, *(index + 1 for index, _, _ in compared)]
    return {
        "models": [f"{letter(index)}: {label}" for index, label in enumerate(comparison.labels)],
        "panels": panels_json(grid),
        "heads": heads_json(grid),
        "pairs": [_pair_json(index, pair, heads) for index, pair, heads in compared],
        "patterns": [
            _patterns_json(run, grid) if index in members else None for index, run in enumerate(comparison.runs)
        ],
    }


def _pair_json(index: int, pair: Pair, heads: HeadDifferences) -> dict[str, Any]:
    return {
        "pair": index,
        "model": index + 1,
        "title": f"{pair.other_label} minus {pair.base_label}",
        "movement": numbers_json(heads.movement.tolist()),
        "quantities": [_quantity_json(part) for part in heads.quantities],
    }


def _quantity_json(part: QuantityDifference) -> dict[str, Any]:
    factor, quantity = display_factor(part), part.quantity
    has_ends = part.certainty == "interval"
    return {
        "key": part.key,
        "lens": part.lens,
        "lens_title": part.lens_title,
        "label": quantity.label,
        "unit": display_unit(part),
        "value_unit": "%" if quantity.unit == "share" else quantity.unit,
        "meaning": part.question,
        "base": numbers_json((factor * part.base).tolist()),
        "other": numbers_json((factor * part.other).tolist()),
        "values": numbers_json((factor * part.beyond_rounding).tolist()),
        "low": numbers_json((factor * part.low).tolist()) if has_ends else None,
        "high": numbers_json((factor * part.high).tolist()) if has_ends else None,
        "effect": numbers_json(part.effect.tolist()),
        "moved": "".join("1" if moved else "0" for moved in part.moved.tolist()),
        "certainty": part.certainty,
    }


def _patterns_json(run: Run, grid: HeadGrid) -> dict[str, Any] | None:
    patterns = head_patterns(run)
    return None if patterns is None else patterns_json(patterns, grid, ())

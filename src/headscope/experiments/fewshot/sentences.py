"""What the few-shot study showed, in sentences made of its numbers; and whether the thesis' section 8 describes it."""

from statistics import fmean, median
from typing import Any

import polars as pl
import torch

from headscope.core import Headline
from headscope.experiments.fewshot.states import INITIALISED, ORIGINAL, Seen
from headscope.lenses.shared.effects import clear_effect, nats_effect, share_effect
from headscope.lenses.shared.phrases import undetected
from headscope.maths.resampling.jackknife import detectable

Row = dict[str, Any]
DOMINANT = 0.5
CROSSING = 0.1  # below this share of the mass between words, attention does not cross the borders to speak of


def headlines(tables: dict[str, pl.DataFrame], original: Seen, shots: int) -> tuple[Headline, ...]:
    """Up to seven sentences."""
    headlines = [
        _gain(tables["shots"]),
        _borders(tables["layers"]),
        _target(tables["layers"]),
        _hidden(tables["layers"]),
    ]
    headlines.append(_diagonal(tables["layers"]))
    if "quality" in tables:
        headlines.append(_quality(tables["quality"]))
    headlines.append(_states(tables["states"]))
    return tuple(headline for headline in headlines if headline is not None)


def _gain(shots: pl.DataFrame) -> Headline:
    none, most = shots.row(0, named=True), shots.row(-1, named=True)
    if shots.height < 2:
        full = f"Without shots a token of the reference clue has {none['log_probability']:.2f} nats."
        return Headline(full, full)
    exchanged = most["exchanged"] - none["exchanged"]
    if most["gain_low"] > 0:
        verdict = f"the shots help by {most['gain']:.2f} nats per token (95 % interval {_range(most, 'gain')})"
    elif most["gain_high"] < 0:
        verdict = f"the shots harm by {-most['gain']:.2f} nats per token (95 % interval {_range(most, 'gain')})"
    else:
        verdict = (
            f"the shots make no difference that {most['words']} words could show (95 % interval {_range(most, 'gain')})"
        )
    worth = (
        f"knowing the word is worth {most['word_worth']:.2f} (95 % interval {_range(most, 'word_worth')}) after "
        f"{most['shots']} shots and {none['word_worth']:.2f} without"
    )
    full = (
        f"A token of the reference clue has a log-probability of {none['log_probability']:.2f} nats without shots and "
        f"{most['log_probability']:.2f} after {most['shots']}, over {most['words']} words: {verdict}. With every "
        f"clue behind a wrong word "
        f"the change is {exchanged:+.2f}: form and style alone; {worth}."
    )
    effect = clear_effect(nats_effect(most["gain"]), most["gain_low"], most["gain_high"])
    return Headline(full, _gain_short(most, exchanged, effect), effect)


def _gain_short(most: Row, exchanged: float, effect: float | None) -> str:
    if effect == 0.0:
        half = torch.tensor((most["gain_high"] - most["gain_low"]) / 2, dtype=torch.float64)
        size = f"{float(detectable(half, most['words'])):.2g} nats per token"
        return undetected(f"effect of {most['shots']} shots on the clue", size)
    return (
        f"{most['shots']} shots change a clue's log-probability by {most['gain']:+.2f} nats per token; with wrong "
        f"words by {exchanged:+.2f}."
    )


def _borders(layers: pl.DataFrame) -> Headline | None:
    rows = _of(layers, "inside_share")
    if not rows:
        return None
    value, near, uniform = (_mean(rows, name) for name in ("value", "nearness", "uniform"))
    across = _mean(_of(layers, "across"), "value")
    inside = _mean(_of(layers, "inside"), "value")
    beyond = [row for row in rows if row["beyond_low"] is not None and row["beyond_low"] > 0]
    is_unit = len(beyond) > len(rows) / 2
    stays_apart = value > 1 - CROSSING
    equal = _at_equal_distance(_of(layers, "equal_distance"))
    crossing = "Hardly any crosses" if stays_apart else "But words do attend across shots, other than the thesis says"
    verdict = (
        "shots are units to it in most layers"
        if is_unit
        else f"in most layers no more than nearness was detected{_detectable_share(rows)}"
    )
    median = sorted(rows, key=lambda row: row["value"])[len(rows) // 2]
    full = (
        f"Of the mass between different words and clues {_percent(value)} stays in the own shot (over "
        f"{rows[0]['words']} "
        f"words; {_percent(median['value'])}{_ends(median)} in L{median['layer']}, the median layer; uniform attention "
        f"{_percent(uniform)}, nearness alone {_percent(near)}), more than nearness explains in {len(beyond)} of "
        f"{len(rows)} layers (by chance: one in forty): {verdict}.{equal} {crossing}: {_percent(across)} of all "
        f"mass, beside "
        f"{_percent(inside)} inside."
    )
    if not is_unit and _beyond_size(rows) is not None:
        size = _percent(_beyond_size(rows) or 0.0)
        return Headline(full, undetected("attention to the own shot beyond nearness in most layers", size), 0.0)
    short = (
        f"{_percent(value)} of the attention between words stays in its own shot; nearness alone would keep "
        f"{_percent(near)}."
    )
    return Headline(full, short, share_effect(value, near) if is_unit else None)


def _detectable_share(rows: list[Row]) -> str:
    """The share beyond nearness that would have been detected in the median layer."""
    size = _beyond_size(rows)
    return "" if size is None else f" ({_percent(size)} would have been, four times in five)"


def _beyond_size(rows: list[Row]) -> float | None:
    """The same as a number; None where there is no interval."""
    halves = [(row["beyond_high"] - row["beyond_low"]) / 2 for row in rows if row["beyond_low"] is not None]
    if not halves:
        return None
    return float(detectable(torch.tensor(median(halves), dtype=torch.float64), rows[0]["words"]))


def _ends(row: Row) -> str:
    """The 95 % interval of a share."""
    return "" if row["low"] is None else f", 95 % interval {_percent(row['low'])} to {_percent(row['high'])}"


def _at_equal_distance(rows: list[Row]) -> str:
    if not rows:
        return ""
    more = [row for row in rows if row["low"] is not None and row["low"] > 1]
    less = [row for row in rows if row["high"] is not None and row["high"] < 1]
    top = max(rows, key=lambda row: row["value"])
    return (
        f" At equal distance a token of the own shot gets {median(row['value'] for row in rows):.1f} times the weight "
        f"of one in an earlier shot (median layer; more in {len(more)} layers, less in {len(less)}, by chance one in "
        f"forty each; {top['value']:.2g} "
        f"times in L{top['layer']})."
    )


def _target(layers: pl.DataFrame) -> Headline | None:
    rows = _of(layers, "target")
    if not rows:
        return None
    value, near, uniform = (_mean(rows, name) for name in ("value", "nearness", "uniform"))
    beyond = [row for row in rows if row["beyond_low"] is not None and row["beyond_low"] > 0]
    below = [row for row in rows if row["beyond_high"] is not None and row["beyond_high"] < 0]
    top = max(rows, key=lambda row: row["value"])
    full = (
        f"Clues give {_percent(value)} of their mass to their word (uniform attention {_percent(uniform)}; other words "
        f"at the same distance {_percent(near)}): more than at that distance in {len(beyond)} of {len(rows)} layers, "
        f"less in {len(below)} (by chance: one in forty each; {top['words']} words); most in L{top['layer']}, "
        f"{_percent(top['value'])}{_ends(top)}."
    )
    is_clear = max(len(beyond), len(below)) > len(rows) / 2
    if not is_clear and _beyond_size(rows) is not None:
        subject = "preference of clues for their own word in most layers"
        return Headline(full, undetected(subject, _percent(_beyond_size(rows) or 0.0)), 0.0)
    short = (
        f"Clues pay {_percent(value)} of their attention to their word; other words at that distance get "
        f"{_percent(near)}."
    )
    return Headline(full, short, share_effect(value, near) if is_clear else None)


def _hidden(layers: pl.DataFrame) -> Headline:
    parts = {name: _mean(_of(layers, name), "value") for name in ("separators", "context", "first")}
    largest = max((row["value"] for row in _of(layers, "largest")), default=0.0)
    full = (
        f"The maps show {_percent(1 - sum(parts.values()))} of the mass: {_percent(parts['separators'])} lies on "
        f"separators, {_percent(parts['context'])} on the context and {_percent(parts['first'])} on the first token, "
        f"which they leave out. The largest weight in an averaged map is {largest:.2f} (the thesis sees up to 0.1 in a "
        "larger model)."
    )
    short = (
        f"The maps show {_percent(1 - sum(parts.values()))} of the attention; the rest lies on separators, context and "
        "first token."
    )
    return Headline(full, short)


def _diagonal(layers: pl.DataFrame) -> Headline | None:
    rows = sorted(_of(layers, "diagonal_words"), key=lambda row: row["layer"])
    if not rows:
        return None
    third = max(1, len(rows) // 3)
    parts = {"first": rows[:third], "middle": rows[third:-third] or rows, "last": rows[-third:]}
    means = {name: _mean(group, "value") for name, group in parts.items()}
    dominant = [f"L{row['layer']}" for row in rows if row["value"] >= DOMINANT]
    fresh = f", {_percent(_mean(rows, 'initialised'))} initialised" if rows[0]["initialised"] is not None else ""
    counted = f"{', '.join(dominant)} of {len(rows)} layers" if dominant else f"none of {len(rows)} layers"
    fits = [f"the {name} layers lie {_compared(parts[name], parts['middle'])}" for name in ("first", "last")]
    full = (
        f"On the diagonal of the word map lie {_percent(means['first'])} of a row in the first third of the layers, "
        f"{_percent(means['middle'])} in the middle and {_percent(means['last'])} in the last ({rows[0]['words']} "
        f"words; uniform "
        f"{_percent(_mean(rows, 'uniform'))}{fresh}); diagonal-dominant, with more than half of it, are {counted}. Of "
        f"the course that the thesis describes: {fits[0]}, and {fits[1]}."
    )
    return _diagonal_headline(full, rows)


def _diagonal_headline(full: str, rows: list[Row]) -> Headline:
    """What words pay to themselves, all layers together."""
    value, uniform = _mean(rows, "value"), _mean(rows, "uniform")
    tested = [row for row in rows if row["low"] is not None and row["high"] is not None]
    low, high = (fmean(row[end] for row in tested) if tested else None for end in ("low", "high"))
    effect = clear_effect(share_effect(value, uniform), low, high, uniform)
    unsure = " (no interval)" if effect is None else " (not told apart)" if effect == 0.0 else ""
    short = (
        f"{_percent(value)} of a word map's row lies on the word itself; uniform attention: "
        f"{_percent(uniform)}{unsure}."
    )
    return Headline(full, short, effect)


def _compared(some: list[Row], middle: list[Row]) -> str:
    """Whether the means of two parts of the layers differ: the means of their intervals are apart."""
    rows = [row for row in (*some, *middle) if row["low"] is None or row["high"] is None]
    if rows:
        return "where one word gives no interval"
    low, high = (_mean(some, end) for end in ("low", "high"))
    if low > _mean(middle, "high"):
        return "more on it than the middle"
    if high < _mean(middle, "low"):
        return "less on it than the middle"
    widths = (high - low + _mean(middle, "high") - _mean(middle, "low")) / 2
    return f"not detectably otherwise on it than the middle (by {_percent(widths)} they would)"


def _quality(quality: pl.DataFrame) -> Headline | None:
    rows = [row for row in quality.to_dicts() if row["which"] != "reference"]
    if not rows:
        return None
    reference = quality.to_dicts()[-1]
    ended = ", ".join(f"{_percent(row['ended'])} after {row['which']}" for row in rows)
    clues = sum(row["clues"] for row in rows)
    named, copied = (sum(row[name] * row["clues"] for row in rows) / clues for name in ("names_word", "copied"))
    lengths = sum(row["length"] * row["clues"] for row in rows) / clues
    full = (
        f"Of its {clues} clues these end as asked: {ended}; {_percent(named)} name their word, {_percent(copied)} copy "
        f"from a shot, and they have {lengths:.1f} words (the reference clues {reference['length']:.1f}). Counting "
        "does not tell whether a clue fits its word: read them."
    )
    complete = sum(row["ended"] * row["clues"] for row in rows)
    return Headline(full, f"{complete:.0f} of {clues} written clues end as asked; all reference clues do.")


def _states(states: pl.DataFrame) -> Headline | None:
    rows = states.to_dicts()
    if len(rows) < 2:
        return None
    last = [name for name in states.columns if name.startswith("after_") and name[6:].isdecimal()][-1]
    original = next(row for row in rows if row["state"] == ORIGINAL)
    parts = [
        f"{row[last]:.2f} {'when initialised' if row['state'] == INITIALISED else 'under ' + row['state']} (own shot "
        f"{_percent(row['inside_share'])})"
        for row in rows
        if row is not original
    ]
    full = (
        f"Over {original['words']} words the log-probability after {last[6:]} shots is {original[last]:.2f} as trained "
        f"(own shot {_percent(original['inside_share'])}), {_listed(parts)}."
    )
    other = max((row for row in rows if row is not original), key=lambda row: abs(row[last] - original[last]))
    state = "freshly initialised" if other["state"] == INITIALISED else f"under {other['state']}"
    is_apart = other[f"{last}_high"] < original[f"{last}_low"] or original[f"{last}_high"] < other[f"{last}_low"]
    short = (
        f"As trained, a clue's token has {original[last]:.2f} nats after {last[6:]} shots; {state} {other[last]:.2f}"
        f"{'' if is_apart else ' (not told apart)'}."
    )
    return Headline(full, short, nats_effect(other[last] - original[last]) if is_apart else 0.0)


def _of(layers: pl.DataFrame, quantity: str) -> list[Row]:
    return layers.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null()).to_dicts()


def _mean(rows: list[Row], name: str) -> float:
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) / len(values) if values else 0.0


def _range(row: Row, name: str) -> str:
    return f"{row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f}"


def _percent(x: float) -> str:
    return f"{100 * x:.0f} %" if x >= 0.0995 or x < 1e-12 else f"{100 * x:.2g} %"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"

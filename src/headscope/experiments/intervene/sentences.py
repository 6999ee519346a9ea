"""What an intervention showed, in sentences made of its numbers; and whether the thesis' section 8.5 describes it.

Wertich's section 8.5, on the spectra of W_Q and W_K scaled by α: (1) scaling up makes the weights converge to a single
key, scaling down flattens them; (2) scaled up, tokens predominantly attend to themselves; (3) scaled up, the text is
still English but repeats the prompt; (4) scaled down, it is noise. Each becomes a comparison of measured numbers.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from headscope.core import Headline
from headscope.experiments.intervene.change_spelling import Change
from headscope.lenses.shared.effects import clear_effect, correlation_effect, ratio_effect, share_effect

Row = dict[str, Any]
PREDOMINANT = 0.5
COPIES = 0.25  # a text repeats the prompt when more of it is copied, and more than of the original's
LOOPS = 0.5  # a text is a loop when more of it has stood before
LANGUAGE, BROKEN, LOOP, NOISE = "language", "broken language", "a loop", "noise"
_LIKENESS = ("surprise", "copied", "repeated")
CITED = "Section 8.5 of Wertich's thesis"


def headlines(tables: dict[str, pl.DataFrame], matrices: str, windows: int) -> tuple[Headline, ...]:
    """One to five sentences."""
    effects = tables["effects"].to_dicts()
    headlines = [*_costs(effects, windows)]
    scaled = sorted((row for row in effects if _alpha(row) not in (None, 1.0) and row["which"] == "change"), key=_alpha)
    if scaled and set(matrices) & set("qk"):
        headlines += [*_sharpness(effects[0], scaled), *_self(effects[0], scaled)]
        if "texts" in tables and "ordinary" in tables["texts"].columns:
            headlines += _texts(tables["texts"])
    else:
        scaled = []
    unscaled = [row for row in effects if row["which"] == "change" and row not in scaled]
    return (*headlines, *_rows(effects[0], unscaled, _controls(effects)))


def _controls(effects: Sequence[Row]) -> dict[str, Row]:
    """The control of each change."""
    return {row["change"]: row for row in effects if row["which"] == "control"}


def _alpha(row: Row) -> Any:
    return Change.of(row["change"]).alpha if row["change"].startswith("scale ") else None


def _costs(effects: Sequence[Row], windows: int) -> list[Headline]:
    changes = [row for row in effects if row["which"] == "change"]
    controls = _controls(effects)
    if not changes:
        return []
    if "perplexity" in effects[0]:
        changed = [
            f"{number(row['perplexity'])} ({number(row['ratio'])} times, {_interval(row, 'ratio')}) under "
            f"{row['change']}{_numbers(row)}"
            for row in changes
        ]
        control_texts = [_beside(controls[row["change"]], "perplexity") for row in changes]
        full = (
            f"Over {windows} window{'' if windows == 1 else 's'}, perplexity goes from "
            f"{number(effects[0]['perplexity'])} to {_listed(changed)}. Under the controls, {_at_random(changes)}"
            f"{_drawn(controls)}, it goes to {_listed(control_texts)}."
        )
        row, effect = _strongest(changes, controls, "ratio", ratio_effect)
        short = (
            f"Perplexity becomes {number(row['ratio'])} times as large under {row['change']}; {_at_random([row])} "
            f"{number(controls[row['change']]['ratio'])} times{_unsure(effect)}."
        )
        return [Headline(full, short, effect)]
    changed = [f"{row['cosine']:.3f} ({_interval(row, 'cosine')}) under {row['change']}" for row in changes]
    control_texts = [_beside(controls[row["change"]], "cosine") for row in changes]
    nearest = _listed([f"{100 * row['found']:.0f} %" for row in changes])
    full = (
        f"The sentence embeddings keep a cosine with the original of {_listed(changed)}; under the controls, "
        f"{_at_random(changes)}{_drawn(controls)}, of {_listed(control_texts)}. {nearest} of the sentences are "
        "still nearest to their own original."
    )
    row, effect = _strongest(changes, controls, "cosine", correlation_effect)
    short = (
        f"Embeddings keep a cosine of {row['cosine']:.3f} with the original under {row['change']}; "
        f"{_at_random([row])} {controls[row['change']]['cosine']:.3f}{_unsure(effect)}."
    )
    return [Headline(full, short, effect)]


def _numbers(row: Row) -> str:
    """How many of the numbers of the chosen matrices a change needs, where it needs fewer."""
    share = row.get("numbers")
    return "" if share is None or share >= 1 else f" with {_share(share)} of the numbers"


def _at_random(changes: Sequence[Row]) -> str:
    """What the controls of these changes draw at random."""
    places = [row["change"].startswith("keep ") for row in changes]
    return "at random places" if all(places) else "in random directions or at random places" if any(places) else (
        "in random directions"
    )  # fmt: skip


def _strongest(
    changes: Sequence[Row], controls: dict[str, Row], name: str, size: Callable[[float, float], float | None]
) -> tuple[Row, float | None]:
    """The change that lies farthest from its control, and how far.

    That is 0 where the interval holds one of the control's draws, None without an interval.
    """
    effects = []
    for row in changes:
        control = controls[row["change"]]
        nearest = control.get(f"{name}_{'most' if row[name] > control[name] else 'least'}")
        draw = float(control[name] if nearest is None else nearest)
        ends = (row.get(f"{name}_low"), row.get(f"{name}_high"))
        effects.append(clear_effect(size(row[name], control[name]), *ends, draw))
    top = max(range(len(changes)), key=lambda index: (effects[index] is not None, effects[index] or 0.0))
    return changes[top], effects[top]


def _drawn(controls: dict[str, Row]) -> str:
    """How many controls were drawn, and what stands in brackets behind their mean."""
    draws = max((int(row.get("draws") or 1) for row in controls.values()), default=1)
    return f" (mean of {draws} draws, and their range)" if draws > 1 else " (one draw)"


def _beside(row: Row, name: str) -> str:
    """A control's number, with the range of its draws."""
    least, most = row.get(f"{name}_least"), row.get(f"{name}_most")
    value = number(row[name])
    return value if least is None or most is None else f"{value} ({number(least)} to {number(most)})"


def _interval(row: Row, name: str) -> str:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if low is None or high is None:
        return "one window, no interval"
    return f"95 % interval {number(low)} to {number(high)}"


def _rows(first: Row, rows: Sequence[Row], controls: dict[str, Row]) -> list[Headline]:
    """For changes other than scaling: how the rows of attention change."""
    parts = [
        f"{100 * row['moved']:.0f} %, {100 * row['entropy_share']:.0f} % and {_share(row['first'])} under "
        f"{row['change']}"
        for row in rows
        if row.get("first") is not None
    ]
    if not parts:
        return []
    full = (
        "Mass of the changed heads' maps that moves, their entropy of the largest possible, and their mass on the "
        f"first token: {_listed(parts)}; in the original the last two are {100 * first['entropy_share']:.0f} % and "
        f"{_share(first['first'])}."
    )
    row, effect = _strongest([row for row in rows if row.get("first") is not None], controls, "moved", share_effect)
    short = (
        f"{_share(row['moved'])} of the changed heads' attention moves under {row['change']}; {_at_random([row])} "
        f"{_share(controls[row['change']]['moved'])}{_unsure(effect)}."
    )
    return [Headline(full, short, effect)]


def _sharpness(original: Row, scaled: Sequence[Row]) -> list[Headline]:
    """(1): does entropy fall with α all the way?"""
    line = _line(original, scaled)
    values = _listed([f"{_with_ends(row, 'entropy_share')} at {_name(row)}" for row in line])
    keys = _listed([f"{number(row['keys'])}" for row in line])
    steps = {_step(a, b) for a, b in pairwise(line)}
    verdict = (
        f"It does not fall all the way. {CITED} says that it does."
        if "rises" in steps
        else f"Whether it falls all the way, as {CITED} says, these intervals do not tell."
        if "unclear" in steps
        else f"It falls all the way: scaling down flattens and scaling up sharpens. {CITED} says so."
    )
    full = f"Entropy of attention, of the largest possible: {values} ({keys} effective keys). {verdict}"
    first, last = line[0], line[-1]
    start, end = (_share(row["entropy_share"]) for row in (first, last))
    least, most = (_name(row).removeprefix("α = ") for row in (first, last))
    effect = _apart(first, last, "entropy_share")
    course = f"Scaled by {least} to {most}, attention's entropy goes from {start} to {end} of the largest"
    return [Headline(full, f"{course}{_unsure(effect)}.", effect)]


def _apart(before: Row, after: Row, name: str) -> float | None:
    """How far two shares lie apart; 0 where intervals meet, None without them."""
    low, high = before.get(f"{name}_low"), before.get(f"{name}_high")
    if low is None or high is None or after.get(f"{name}_low") is None:
        return None
    is_apart = bool(high < after[f"{name}_low"] or after[f"{name}_high"] < low)
    return share_effect(after[name], before[name]) if is_apart else 0.0


def _unsure(effect: float | None) -> str:
    return " (no interval)" if effect is None else " (not told apart)" if effect == 0.0 else ""


def _step(before: Row, after: Row) -> str:
    """Whether the entropy falls or rises from one α to the next, by intervals that are apart."""
    ends = [row.get(f"entropy_share_{end}") for row in (before, after) for end in ("low", "high")]
    if any(end is None for end in ends):
        return "unclear"
    least_before, most_before, least_after, most_after = (float(end) for end in ends if end is not None)
    return "falls" if least_before > most_after else "rises" if least_after > most_before else "unclear"


def _with_ends(row: Row, name: str) -> str:
    """A share with its 95 % interval."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    ends = "" if low is None or high is None else f" (95 % interval {_share(low)} to {_share(high)})"
    return f"{_share(row[name])}{ends}"


def _self(original: Row, scaled: Sequence[Row]) -> list[Headline]:
    """(2): do tokens predominantly attend to themselves when the spectra are scaled up?"""
    up = [row for row in scaled if _alpha(row) > 1 and row.get("self") is not None]
    if not up or original.get("self") is None:
        return []
    values = _listed([f"{_with_ends(row, 'self')} at {_name(row)}" for row in up])
    top = max(up, key=lambda row: float(row["self"]))
    most = float(top["self"])
    # The thesis' maps leave the context out, and with it the first token.
    elsewhere = most / max(1 - float(top["first"]), 1e-9)
    least, largest = (most if top.get(f"self_{end}") is None else top[f"self_{end}"] for end in ("low", "high"))
    if least <= PREDOMINANT <= largest:
        verdict = "this interval does not tell"
    elif most > PREDOMINANT:
        verdict = "that holds here"
    elif elsewhere > PREDOMINANT:
        verdict = "that holds here only of what is not on the first token, which the maps of the thesis leave out"
    else:
        verdict = "that does not happen here, also without the first token, which the maps of the thesis leave out"
    full = (
        f"Mass on the token itself: {_share(original['self'])} in the original (uniform attention: "
        f"{_share(original['self_uniform'])}), {values}; of what is not on the first token {_share(elsewhere)} at "
        f"{_name(top)}. The first token has {_share(original['first'])} in the original and {_share(top['first'])} "
        f"at {_name(top)}. "
        f"{CITED} says that tokens then predominantly attend to themselves: {verdict}."
    )
    effect = _apart(original, top, "self")
    short = (
        f"At {_name(top)} tokens pay {_share(most)} of attention to themselves; in the original "
        f"{_share(original['self'])}{_unsure(effect)}."
    )
    return [Headline(full, short, effect)]


def _texts(texts: pl.DataFrame) -> list[Headline]:
    """(3) and (4): is the text still language, and does it repeat the prompt?"""
    # Token by token: a prompt that is answered with one token counts as one token.
    said_something = texts.filter(pl.col("which") != "control")
    if "needed" not in said_something.columns:
        said_something = said_something.with_columns(pl.lit(8.0).alias("needed"))
    weight = pl.col("tokens")
    means = said_something.group_by("change", maintain_order=True).agg(
        *((pl.col(name) * weight).sum() / weight.filter(pl.col(name).is_not_null()).sum() for name in _LIKENESS),
        pl.col("ordinary", "shuffled", "needed").first(), weight.sum(),
    ).with_columns(pl.col(name).fill_nan(None) for name in _LIKENESS)  # fmt: skip
    rows = means.to_dicts()
    headlines = []
    for up in (True, False):
        scaled = [row for row in rows if _alpha(row) is not None and (_alpha(row) > 1) == up and _alpha(row) != 1]
        if scaled:
            headlines.append(_text_headline(rows[0], sorted(scaled, key=_alpha), up))
    return headlines


def _text_headline(original: Row, scaled: Sequence[Row], up: bool) -> Headline:
    kinds = {_name(row): _kind(row) for row in scaled}
    texts = _listed([f"{kinds[_name(row)]} at {_name(row)} ({_likeness(row)})" for row in scaled])
    if up:
        more = max(original["copied"] or 0.0, COPIES)
        spoken = [row for row in scaled if kinds[_name(row)] in (LANGUAGE, BROKEN)]
        expected = [_name(row) for row in spoken if (row["copied"] or 0.0) > more]
    else:
        expected = [name for name, kind in kinds.items() if kind == NOISE]
    claim = "language that repeats the prompt" if up else "noise"
    verdict = f"that is what comes at {_listed(expected)}" if expected else "that does not happen here"
    if expected and len(expected) < len(scaled):
        verdict += " alone"
    full = (
        f"The text with the spectra scaled {'up' if up else 'down'} is {texts}; the original's is {_kind(original)} "
        f"({_likeness(original)}). Ordinary text has {original['ordinary']:.1f} nats, shuffled text "
        f"{original['shuffled']:.1f}. {CITED} describes {claim}: {verdict}."
    )
    # A few prompts are no sample with an interval: the sentence ranks nowhere.
    return Headline(full, _text_short(scaled[-1] if up else scaled[0]))


def _text_short(row: Row) -> str:
    """The text of the strongest change, by how much it surprises the original model."""
    if row["surprise"] is None or row["tokens"] < row["needed"]:
        return f"At {_name(row)} the text has {row['tokens']} tokens; {row['needed']:.0f} are needed to judge it."
    return (
        f"At {_name(row)} the text is {_kind(row)}: {row['surprise']:.1f} nats per token to the original; ordinary "
        f"text has {row['ordinary']:.1f}."
    )


def _kind(row: Row) -> str:
    """Nearer to shuffled than to ordinary text is noise; what mostly repeats itself is a loop.

    Greedy text surprises less than ordinary text: one that surprises more is broken.
    """
    if row["surprise"] is None:
        return "nothing"
    if row["tokens"] < row["needed"]:
        return f"too short to judge, {row['tokens']} of {row['needed']:.0f} tokens,"
    if row["surprise"] > (row["ordinary"] + row["shuffled"]) / 2:
        return NOISE
    if (row["repeated"] or 0.0) > LOOPS:
        return LOOP
    return LANGUAGE if row["surprise"] <= row["ordinary"] else BROKEN


def _likeness(row: Row) -> str:
    if row["surprise"] is None:
        return "no token was written"
    shares = [f"{_share(row[name])} {name}" for name in ("copied", "repeated") if row[name] is not None]
    return ", ".join([f"{row['surprise']:.1f} nats per token to the original model", *shares])


def _line(original: Row, scaled: Sequence[Row]) -> list[Row]:
    """The original among the scaled ones, by α."""
    down = [row for row in scaled if _alpha(row) < 1]
    return [*down, original, *(row for row in scaled if _alpha(row) > 1)]


def _name(row: Row) -> str:
    return "α = 1" if row["change"] == "original" else f"α = {row['change'].split()[1]}"


def _share(x: float) -> str:
    return f"{100 * x:.3g} %" if x >= 0.01 else f"{100 * x:.2g} %"


def number(x: float) -> str:
    """Three digits, without an exponent where that is readable."""
    return f"{x:.3g}" if 0.001 <= abs(x) < 1000 else f"{x:,.0f}" if 1000 <= abs(x) < 1e6 else f"{x:.2g}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"

"""What an intervention showed, in sentences made of its numbers; and whether the thesis' section 8.5 describes it.

Wertich's section 8.5, on the spectra of W_Q and W_K scaled by α: (1) scaling up makes the weights converge to a single
key, scaling down flattens them; (2) scaled up, tokens predominantly attend to themselves; (3) scaled up, the text is
still English but repeats the prompt; (4) scaled down, it is noise. Each becomes a comparison of measured numbers.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from headscope.experiments.intervention.changes import Change

Row = dict[str, Any]
PREDOMINANT = 0.5
CITED = "Wertich, section 8.5"


def headlines(tables: dict[str, pl.DataFrame], matrices: str) -> tuple[str, ...]:
    """One to five sentences."""
    effects = tables["effects"].to_dicts()
    said = [*_costs(effects)]
    scaled = sorted((row for row in effects if _alpha(row) not in (None, 1.0) and row["which"] == "change"), key=_alpha)
    if scaled and set(matrices) & set("qk"):
        said += [*_sharpness(effects[0], scaled), *_self(effects[0], scaled)]
        if "texts" in tables and "ordinary" in tables["texts"].columns:
            said += _texts(tables["texts"])
    elif len(effects) > 1:
        said += _rows(effects)
    return tuple(said)


def _alpha(row: Row) -> Any:
    return Change.of(row["change"]).alpha if row["change"].startswith("scale ") else None


def _costs(effects: Sequence[Row]) -> list[str]:
    changes = [row for row in effects if row["which"] == "change"]
    controls = {row["change"]: row for row in effects if row["which"] == "control"}
    if not changes:
        return []
    if "perplexity" in effects[0]:
        each = [
            f"{number(row['perplexity'])} ({number(row['ratio'])} times, {_interval(row, 'ratio')}) under {row['change']}"
            for row in changes
        ]
        beside = [f"{number(controls[row['change']]['perplexity'])}" for row in changes]
        return [
            f"Perplexity goes from {number(effects[0]['perplexity'])} to {_listed(each)}; under the controls, in random "
            f"directions, to {_listed(beside)}."
        ]
    each = [f"{row['cosine']:.3f} ({_interval(row, 'cosine')}) under {row['change']}" for row in changes]
    beside = [f"{controls[row['change']]['cosine']:.3f}" for row in changes]
    found = _listed([f"{100 * row['found']:.0f} %" for row in changes])
    return [
        f"The sentence embeddings keep a cosine with the original of {_listed(each)}; under the controls, in random "
        f"directions, of {_listed(beside)}. {found} of the sentences are still nearest to their own original."
    ]


def _interval(row: Row, name: str) -> str:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if low is None or high is None:
        return "one window, no interval"
    return f"95 % interval {number(low)} to {number(high)}"


def _rows(effects: Sequence[Row]) -> list[str]:
    """For changes other than scaling: how the rows of attention change."""
    first = effects[0]
    parts = [
        f"under {row['change']} {100 * row['moved']:.0f} % of the mass of the changed heads' maps moves, entropy goes from "
        f"{100 * first['entropy_share']:.0f} % to {100 * row['entropy_share']:.0f} % of the largest possible"
        + (f" and mass on the first token from {_share(first['first'])} to {_share(row['first'])}")
        for row in effects
        if row["which"] == "change" and row.get("moved") is not None and row.get("first") is not None
    ]
    return [_sentence(_listed(parts))] if parts else []


def _sharpness(original: Row, scaled: Sequence[Row]) -> list[str]:
    """(1): does entropy fall with α all the way?"""
    line = _line(original, scaled)
    values = _listed([f"{100 * row['entropy_share']:.0f} % at {_name(row)}" for row in line])
    order = [row["entropy_share"] for row in line]
    keys = _listed([f"{number(row['keys'])}" for row in line])
    falls = all(a > b for a, b in zip(order, order[1:], strict=False))
    verdict = (
        f"It falls all the way: scaling down flattens, scaling up sharpens, as {CITED} says."
        if falls
        else f"It does not fall all the way, other than {CITED} says."
    )
    return [f"Entropy of attention, of the largest possible: {values} ({keys} effective keys). {verdict}"]


def _self(original: Row, scaled: Sequence[Row]) -> list[str]:
    """(2): do tokens predominantly attend to themselves when the spectra are scaled up?"""
    up = [row for row in scaled if _alpha(row) > 1 and row.get("self") is not None]
    if not up or original.get("self") is None:
        return []
    values = _listed([f"{_share(row['self'])} at {_name(row)}" for row in up])
    top = max(up, key=lambda row: float(row["self"]))
    most = float(top["self"])
    # The thesis' maps leave the context out, and with it the first token.
    rest = most / max(1 - float(top["first"]), 1e-9)
    to_first = f"{_share(up[-1]['first'])} of it then goes to the first token"
    if most > PREDOMINANT:
        verdict = f"Tokens predominantly attend to themselves, as {CITED} says"
    elif rest > PREDOMINANT:
        verdict = (
            f"Tokens do not predominantly attend to themselves, but without the first token, which the maps of {CITED} "
            f"leave out, {_share(rest)} would lie there"
        )
    else:
        verdict = (
            f"Tokens do not predominantly attend to themselves, other than {CITED} says ({_share(rest)} of what is not on "
            "the first token)"
        )
    return [
        f"Mass on the token itself: {_share(original['self'])} in the original (uniform attention: "
        f"{_share(original['self_uniform'])}), {values}. {verdict}; {to_first}, {_share(original['first'])} in the "
        "original."
    ]


def _texts(texts: pl.DataFrame) -> list[str]:
    """(3) and (4): is the text still language, and does it repeat the prompt?"""
    means = texts.filter(pl.col("which") != "control").group_by("change", maintain_order=True).agg(
        pl.col("surprise", "copied", "repeated", "ordinary", "shuffled").mean(), pl.col("tokens").sum(),
        pl.col("text").first()
    )  # fmt: skip
    rows = means.to_dicts()
    said = []
    for up in (True, False):
        some = [row for row in rows if _alpha(row) is not None and (_alpha(row) > 1) == up and _alpha(row) != 1]
        if some:
            said.append(_text_sentence(rows[0], sorted(some, key=_alpha), up))
    return said


def _text_sentence(original: Row, some: Sequence[Row], up: bool) -> str:
    border = (original["ordinary"] + original["shuffled"]) / 2
    told, kinds = [], []
    for row in some:
        if row["surprise"] is None:
            told.append(f"at {_name(row)} nothing is written")
            kinds.append("nothing")
            continue
        kinds.append("language" if row["surprise"] < border else "noise")
        copied, repeated = (_share(row[name]) if row[name] is not None else "none" for name in ("copied", "repeated"))
        told.append(
            f"at {_name(row)} {row['surprise']:.1f} nats per token to the original model, {copied} copied from the prompt, "
            f"{repeated} repeating itself"
        )
    expected = "language" if up else "noise"
    agrees = [_name(row) for row, kind in zip(some, kinds, strict=True) if kind == expected]
    others = [f"{_name(row)} ({kind})" for row, kind in zip(some, kinds, strict=True) if kind != expected]
    claim = "still language, repeating the prompt," if up else "noise"
    fits = f"{expected} at {_listed(agrees)}" if agrees else f"{expected} nowhere"
    but = f", but not at {_listed(others)}" if others else ""
    copies = [row for row in some if (row["copied"] or 0) > max(original["copied"] or 0, 0.25)]
    repeats = ""
    if up:
        repeats = f"; {_listed([_name(row) for row in copies])} repeats the prompt" if copies else (
            "; none repeats the prompt more than the original does"
        )  # fmt: skip
    return (
        f"The text scaled {'up' if up else 'down'}: {_listed(told)} (original: {original['surprise'] or 0:.1f} nats; "
        f"ordinary text {original['ordinary']:.1f}, shuffled {original['shuffled']:.1f}). {CITED} has {claim} here: the text "
        f"is {fits}{but}{repeats}."
    )


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


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."

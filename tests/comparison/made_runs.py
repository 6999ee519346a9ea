"""Runs of two layers with two heads each, whose numbers a test chooses."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from headscope.core import (
    About,
    Finding,
    Headline,
    HeadPatterns,
    HeadQuantity,
    ModelSpec,
    Run,
    Site,
    SitePatterns,
    TextSpec,
)

HOSTILE = "</script><img src=x onerror=alert(1)>"
LAYERS = HEADS = 2
SPEC = ModelSpec(
    "first", "folder", "llama", "LlamaForCausalLM", "decoder-only", LAYERS, HEADS, HEADS, 8, 4, 9, 64, 100, "float32",
    sha256="a" * 64,
)  # fmt: skip
TEXT = TextSpec("plain English", "b" * 64, 9_000, 4_096, 8, 512)
PLACES = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def text_finding(values: Sequence[float], half: float = 0.02, lens: str = "focus", **changes: Any) -> Finding:
    """A share of each head with an interval over 8 windows."""
    table = pl.DataFrame(
        [
            ("only", "self", layer, head, "first", value, value - half, value + half, 0.1, 8)
            for (layer, head), value in zip(PLACES, values, strict=True)
        ],
        schema=["stack", "kind", "layer", "head", "quantity", "value", "low", "high", "null", "windows"],
        orient="row",
    )
    quantity = HeadQuantity("first", "mass on the first token", "heads", where={"quantity": "first"}, unit="share")
    headline = Headline(
        f"The median head has {np.median(values):.2f} (95 % interval 0.1 to 0.2, 8 windows).", "Some mass.",
        answer="more than uniform", value=f"{np.median(values):.2f}", null="0.10",
    )  # fmt: skip
    about = About("Focus", f"Where does a head look? {HOSTILE}", "D.", (), "R.", "nobody")
    finding = Finding(lens, about, tables={"heads": table}, quantities=(quantity,), headlines=(headline,))
    return replace(finding, **{"patterns": patterns(), **changes})


def weight_finding(values: Sequence[float]) -> Finding:
    """A number of each head that comes from weights alone."""
    table = pl.DataFrame(
        [("only", "self", layer, head, value) for (layer, head), value in zip(PLACES, values, strict=True)],
        schema=["stack", "kind", "layer", "head", "value"],
        orient="row",
    )
    about = About("Spectra", "On how many directions?", "D.", (), "R.", "nobody")
    quantity = HeadQuantity("rank", "effective rank", "heads", unit="directions", scale="log")
    return Finding("spectra", about, tables={"heads": table}, quantities=(quantity,))


def unknown_finding(values: Sequence[float]) -> Finding:
    """A number of each head that was read on text, of which no error is stored."""
    finding = text_finding(values, lens="likeness", patterns=None)
    return replace(finding, tables={"heads": finding.table.drop("low", "high")})


def patterns() -> HeadPatterns:
    levels = np.tril(np.arange(HEADS * 9, dtype=np.uint8).reshape(HEADS, 3, 3))
    sites = tuple(SitePatterns("only", "self", layer, True, levels, np.ones(HEADS)) for layer in range(LAYERS))
    return HeadPatterns((("a", " b", HOSTILE),), sites)


def made_run(*findings: Finding, name: str = "first", heads: int = HEADS, **changes: Any) -> Run:
    sites = tuple(Site("only", "self", layer, heads, heads, 4, 4, causal=True) for layer in range(LAYERS))
    spec = replace(SPEC, name=name, sha256=name[0] * 64)
    run = Run(spec, sites, {finding.lens: finding for finding in findings}, TEXT, {"headscope": "0.1.0"})
    return replace(run, **changes)

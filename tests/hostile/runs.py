"""A run with every kind of figure, table and number that a run folder can hold."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from headscope.core import (
    About,
    Curves,
    Finding,
    Flow,
    HeatMap,
    Histogram,
    ModelSpec,
    Mosaic,
    Network,
    Run,
    Series,
    Site,
    TextSpec,
)

LENS = "focus"
FINDING, TABLE, ARRAYS = f"findings/{LENS}.json", f"tables/{LENS}.heads.parquet", f"arrays/{LENS}.safetensors"


def a_run() -> Run:
    """A small run; `figures` draws all of it."""
    spec = ModelSpec("m", "folder", "llama", "L", "decoder-only", 2, 4, 2, 64, 16, 100, None, 1234, "float32")
    site = Site("only", "self", 0, 4, 2, 16, 16, True, None, ("bias",), "layers.0.attn")
    text = TextSpec("t", "cd", 10, 5, 1, 5)
    return Run(spec, (site,), {LENS: a_finding()}, text, {"torch": "2"}, seed=3)


def a_finding() -> Finding:
    """A finding with all kinds of figures."""
    about = About("Title", "Why?", "Because.", (r"\frac{a}{b}",), "Slowly.", "Nobody (1900)", {"value": "the value"})
    curve = Series("measured", np.arange(3.0), np.array([1.0, np.nan, 2.0]), low=np.zeros(3), high=np.ones(3))
    figures = (
        Curves("curves", "T", "C", "x", "y", (curve,)),
        HeatMap("map", "T", "C", np.eye(2), ("L0", "L1"), ("H0", "H1"), reference=0.5, limits=(0.0, 1.0)),
        Histogram("law", "T", "C", "x", np.arange(4.0), np.ones(3), laws=(curve,), marks=(("edge", 2.5),)),
        Mosaic("parts", "T", "C", np.eye(3), ("near",)),
        Network("graph", "T", "C", ("a", "b"), np.array([[0.0, 1.0, 1.0]]), ("near",)),
        Flow(
            "flow",
            "T",
            "C",
            ("a", "b"),
            (("note",), ()),
            np.array([0.0, 1]),
            ("from", "to"),
            np.array([[0.0, 1, 1, 2.5]]),
            ("near",),
            ("score",),
        ),
    )
    heads = pl.DataFrame({"stack": ["only"] * 2, "layer": [0, 1], "head": [0, None], "value": [0.5, float("nan")]})
    params = {"bins": 48, "on": True, "x": 0.5, "none": None, "nan": float("nan")}
    return Finding(LENS, about, tables={"heads": heads}, arrays={"s": np.ones(3)}, figures=figures, params=params)


def change_finding(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the JSON of the finding; the hashes are made to match."""
    data = json.loads((run / FINDING).read_text())
    change(data)
    put(run, FINDING, json.dumps(data).encode())


def change_manifest(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, which nothing vouches for."""
    data = json.loads((run / "manifest.json").read_text())
    change(data)
    (run / "manifest.json").write_text(json.dumps(data))


def change_journal(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the journal."""
    data = json.loads((run / "run.json").read_text())
    change(data)
    (run / "run.json").write_text(json.dumps(data))


def put(run: Path, name: str, content: bytes) -> None:
    """Replace a file of the run, in its manifest and journal too."""
    (run / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    change_manifest(run, lambda data: data["files"].update({name: digest}))
    change_journal(run, lambda data: data["findings"][LENS]["files"].update({name: digest}))

"""Plain data that every other part uses.

Nothing in this package computes. Names are fetched when they are used: some of their modules load torch.
"""

from typing import TYPE_CHECKING

from headscope.about import About, read_about
from headscope.lazy_names import lazy_names

if TYPE_CHECKING:
    from headscope.core.figure import Curves, Figure, Flow, HeatMap, Histogram, Mosaic, Network, Series
    from headscope.core.finding import Finding, Headline, HeadQuantity
    from headscope.core.head_curve import HeadCurve
    from headscope.core.head_patterns import HeadPatterns, SitePatterns
    from headscope.core.head_view import HeadNumber, HeadView, HeadViews
    from headscope.core.model_spec import ModelSpec
    from headscope.core.run import Run, TextSpec
    from headscope.core.selection import Selection
    from headscope.core.site import Site
    from headscope.core.stream_reading import Rotary, StreamNorm, StreamReading
    from headscope.core.token_map import TokenMap
    from headscope.core.verdict import MEANINGS, Comparison, Entry, Evidence, Ledger, Source, Trend, Verdict, verdict_of
    from headscope.core.weights import (
        AfterHeads,
        Embedding,
        FeedForward,
        HeadWeights,
        Vocabulary,
        WeightSource,
        WeightStatus,
    )

__all__ = [
    "MEANINGS",
    "About",
    "AfterHeads",
    "Comparison",
    "Curves",
    "Embedding",
    "Entry",
    "Evidence",
    "FeedForward",
    "Figure",
    "Finding",
    "Flow",
    "HeadCurve",
    "HeadNumber",
    "HeadPatterns",
    "HeadQuantity",
    "HeadView",
    "HeadViews",
    "HeadWeights",
    "Headline",
    "HeatMap",
    "Histogram",
    "Ledger",
    "ModelSpec",
    "Mosaic",
    "Network",
    "Rotary",
    "Run",
    "Selection",
    "Series",
    "Site",
    "SitePatterns",
    "Source",
    "StreamNorm",
    "StreamReading",
    "TextSpec",
    "TokenMap",
    "Trend",
    "Verdict",
    "Vocabulary",
    "WeightSource",
    "WeightStatus",
    "read_about",
    "verdict_of",
]

__getattr__ = lazy_names(
    __name__,
    {
        "figure": "Curves Figure Flow HeatMap Histogram Mosaic Network Series",
        "finding": "Finding Headline HeadQuantity",
        "head_curve": "HeadCurve",
        "head_patterns": "HeadPatterns SitePatterns",
        "head_view": "HeadNumber HeadView HeadViews",
        "model_spec": "ModelSpec",
        "run": "Run TextSpec",
        "selection": "Selection",
        "site": "Site",
        "stream_reading": "Rotary StreamNorm StreamReading",
        "token_map": "TokenMap",
        "verdict": "MEANINGS Comparison Entry Evidence Ledger Source Trend Verdict verdict_of",
        "weights": "AfterHeads Embedding FeedForward HeadWeights Vocabulary WeightSource WeightStatus",
    },
)

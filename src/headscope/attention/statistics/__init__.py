"""Statistics of attention rows without the map, and the exact merge of outputs."""

from headscope.attention.sparse.merge import merge
from headscope.attention.statistics.records import Observed, Request, RowStatistics
from headscope.attention.statistics.rows import observe, row_statistics
from headscope.attention.statistics.stored import pattern_statistics
from headscope.attention.statistics.uniform import uniform_statistics

__all__ = [
    "Observed",
    "Request",
    "RowStatistics",
    "merge",
    "observe",
    "pattern_statistics",
    "row_statistics",
    "uniform_statistics",
]

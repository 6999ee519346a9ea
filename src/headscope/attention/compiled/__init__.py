"""An optional kernel in C++ for rows of attention, built at its first use."""

from headscope.attention.compiled.block_kernel import (
    added_to,
    band_gradients,
    block_gradients,
    block_rows,
    padded,
    row_values,
)
from headscope.attention.compiled.build import is_used, takes, use
from headscope.attention.compiled.linear_kernel import FEATURES, WIDEST, causal_linear
from headscope.attention.compiled.row_kernel import RowSums, row_sums

__all__ = [
    "FEATURES",
    "WIDEST",
    "RowSums",
    "added_to",
    "band_gradients",
    "block_gradients",
    "block_rows",
    "causal_linear",
    "is_used",
    "padded",
    "row_sums",
    "row_values",
    "takes",
    "use",
]

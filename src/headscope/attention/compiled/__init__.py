"""An optional kernel in C++ that computes rows of attention in one pass, built when it is first asked for."""

from headscope.attention.compiled.build import is_used, use
from headscope.attention.compiled.rows import RowSums, row_sums

__all__ = ["RowSums", "is_used", "row_sums", "use"]

"""The axes of captured tensors: their names, as in `shapes.AXES`, and how long they are."""

from collections.abc import Callable
from dataclasses import dataclass

from headscope.attention.maps import query_run_rows, sampled_rows, sampled_tokens
from headscope.attention.token_repeats import COLUMNS
from headscope.core.site import Site
from headscope.shapes import CORNER


@dataclass(frozen=True)
class Extent:
    """What the length of an axis depends on: a site, widths of its layer, the length of a window, the vocabulary."""

    site: Site
    d_model: int
    queries: int
    keys: int
    d_mlp: int = 0
    vocabulary: int = 0


@dataclass(frozen=True)
class Axis:
    """One axis of a captured tensor; `length` is that of all heads and of one window."""

    name: str
    length: Callable[[Extent], int]


def first_queries(size: int) -> Axis:
    """The axis of the first `size` queries."""
    return Axis("first_queries", lambda extent: min(size, extent.queries))


def first_keys(size: int) -> Axis:
    """The axis of the first `size` keys."""
    return Axis("first_keys", lambda extent: min(size, extent.keys))


def _visible_to_first(extent: Extent) -> int:
    return min(CORNER, extent.keys) if extent.site.causal else extent.keys


BATCH = Axis("batch", lambda extent: 1)
HEADS = Axis("heads", lambda extent: extent.site.n_heads)
KV_HEADS = Axis("kv_heads", lambda extent: extent.site.n_kv_heads)
QUERIES = Axis("queries", lambda extent: extent.queries)
KEYS = Axis("keys", lambda extent: extent.keys)
TOKENS = Axis("tokens", lambda extent: extent.queries)
D_HEAD = Axis("d_head", lambda extent: extent.site.d_head)
D_VALUE = Axis("d_value", lambda extent: extent.site.d_value)
D_MODEL = Axis("d_model", lambda extent: extent.d_model)
D_MLP = Axis("d_mlp", lambda extent: extent.d_mlp)
VOCABULARY = Axis("vocabulary", lambda extent: extent.vocabulary)
SINGLE = Axis("single", lambda extent: 1)
ROWS = Axis("sampled_rows", lambda extent: len(range(extent.queries)[sampled_rows(extent.queries)]))
SAMPLED_QUERIES = Axis("sampled_queries", lambda extent: len(sampled_tokens(extent.queries)))
SAMPLED_KEYS = Axis("sampled_keys", lambda extent: len(sampled_tokens(extent.keys)))
RUN_QUERIES = Axis("run_queries", lambda extent: len(query_run_rows(extent.queries)))
D_VALUE_AGAIN = Axis("d_value_again", lambda extent: extent.site.d_value)
VISIBLE_KEYS = Axis("visible_keys", _visible_to_first)
KEY_KINDS = Axis("key_kinds", lambda extent: COLUMNS)

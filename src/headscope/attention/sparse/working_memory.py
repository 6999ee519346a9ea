r"""The working memory of shared paths, in bytes per head of float32 vectors.

Each function gives what a path holds at its peak more than q, k, v and the output, without gradients, on torch's own
kernels with one thread. `tests/contract/test_costs.py` compares them with the allocations of every mechanism.
"""

from headscope.attention.sparse.band import BLOCK, GROUP_ENTRIES, KEPT_ENTRIES, Band, tiles

FLOAT = 4  # bytes
DOUBLE = 8
INDEX = 8
_TILE_KEYS = 512  # the flash kernel's own tile, and `flash_rows` its height
_MASK_AND_BIAS = 8  # bytes per pair: a mask of booleans, its distances or its float copy
_MADE_MASK = 5  # bytes per pair: a mask of booleans and its float copy
_MASK_BY_POSITION = 12  # bytes per pair: 64-bit distances and boolean masks


def flash_rows(queries: int) -> int:
    """The rows of a tile of torch's flash kernel on a CPU."""
    return min(queries, 256 if queries >= 768 else 64 if queries >= 192 else 32)


def flash_bytes(queries: int, keys: int, d: int) -> float:
    """One tile of scores with its output, and the log-sum-exp of all rows."""
    return FLOAT * (queries + flash_rows(queries) * (min(keys, _TILE_KEYS) + d + 2.0))


def limited_bytes(n: int, d: int) -> float:
    """Dense attention inside limits: blocks of rows, each with a mask over all keys."""
    return limited_mask_bytes(n, n) + flash_bytes(n, n, d)


def limited_mask_bytes(queries: int, keys: int) -> float:
    """The mask of one block of 256 rows over all keys."""
    return _MASK_AND_BIAS * float(min(queries, 256) * keys)


def masked_bytes(n: int, d: int) -> float:
    """Dense attention under the mask of a pattern.

    It holds n × n distances for a moment.
    """
    return float(_MASK_BY_POSITION * n * n) + flash_bytes(n, n, d)


def band_bytes(n: int, d: int, left: int, right: int) -> float:
    """A band of keys around each query.

    It holds the copied output of a group of blocks, and one tile; or a large mask, such as that of the rows at an end.
    """
    run = BLOCK + left + right
    group = min(float(n * d), GROUP_ENTRIES) + BLOCK * (2.0 * min(run, _TILE_KEYS) + d + 2.0)
    masked = [tile for tile in tiles(n, n, Band(left, right, 0, 1.0)) if tile.rows * tile.width > KEPT_ENTRIES]
    masks = [_MADE_MASK * tile.rows * tile.width + FLOAT * tile.rows * (d + 2.0) for tile in masked]
    return max(FLOAT * group, *masks, 0.0) + FLOAT * 2.0 * n


def gathered_bytes(entries: int) -> float:
    """Keys and values of at most one group of blocks.

    All blocks together hold `entries` numbers.
    """
    return 2.0 * FLOAT * min(entries, GROUP_ENTRIES)


def band_is_narrow(n: int, reach: int) -> bool:
    """Whether n positions go in tiles along the band.

    `headscope.attention.sparse.band.narrow_band` decides the same for a call.
    """
    return n >= 4 * BLOCK and 2 * (reach + BLOCK) <= n

"""The structures that are fitted: their names, sizes, and the pairs they keep."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BAND, BAND_FIRST, BAND_ENTRIES = "band", "band and first token", "band and entries"
FIRST, COLUMNS, OFFSETS, BLOCKS = "first tokens", "columns", "offsets", "blocks"
LOW_RANK, KERNEL = "low rank", "linear kernel"
ZERO, UNIFORM, VISIBLE_UNIFORM = "zero", "uniform", "visible uniform"
BASELINES = (ZERO, UNIFORM, VISIBLE_UNIFORM)

# Beyond these a window is longer than what is read of it today.
WIDTHS = (0, *(2**k for k in range(13)))
FIRST_SIZES = (1, 4, 16)
COLUMN_SIZES = (1, 2, 4, 8, 16, 32)
OFFSET_SIZES = (1, 2, 4, 8)
BLOCK_SIZES = (8, 32, 128, 512, 2048)
ENTRY_WIDTHS, ENTRY_SIZES = (1, 8), (1, 4, 16, 64, 128, 256)
RANKS = (1, 2, 4, 8, 16)
FEATURES = 16


@dataclass(frozen=True)
class Structure:
    """A form of structure with its size.

    The size is a half-width, a number of columns, offsets or tokens, the length of blocks, or a rank.
    `entries` counts the entries of each row outside the band, where the structure has such.
    """

    form: str
    size: int | None = None
    entries: int | None = None

    @property
    def words(self) -> str:
        """The structure with its size: `band 8`, `band 1 and 4 entries`, `blocks of 32`."""
        plural = "" if self.size == 1 else "s"
        texts = {
            BAND: f"band {self.size}",
            BAND_FIRST: f"band {self.size} and first token",
            BAND_ENTRIES: f"band {self.size} and {self.entries} entr{'y' if self.entries == 1 else 'ies'}",
            FIRST: "first token" if self.size == 1 else f"first {self.size} tokens",
            COLUMNS: f"{self.size} column{plural}",
            OFFSETS: f"{self.size} offset{plural}",
            BLOCKS: f"blocks of {self.size}",
            LOW_RANK: f"rank {self.size}",
            KERNEL: f"{self.size} positive features",
        }
        return texts.get(self.form, self.form)

    @property
    def keeps_pairs(self) -> bool:
        """Whether it keeps some pairs of query and key and leaves out the others."""
        return self.form not in (LOW_RANK, KERNEL, *BASELINES)


PAIR_STRUCTURES = (
    *(Structure(BAND, width) for width in WIDTHS),
    *(Structure(BAND_FIRST, width) for width in WIDTHS),
    *(Structure(BAND_ENTRIES, width, entries) for width in ENTRY_WIDTHS for entries in ENTRY_SIZES),
    *(Structure(FIRST, size) for size in FIRST_SIZES),
    *(Structure(COLUMNS, size) for size in COLUMN_SIZES),
    *(Structure(OFFSETS, size) for size in OFFSET_SIZES),
    *(Structure(BLOCKS, size) for size in BLOCK_SIZES),
)
OTHERS = (*(Structure(LOW_RANK, rank) for rank in RANKS), Structure(KERNEL, FEATURES))
STRUCTURES = (*PAIR_STRUCTURES, *OTHERS, *(Structure(name) for name in BASELINES))


def mask_of(
    structure: Structure,
    pattern: Float[Tensor, "rows keys"],
    visible: Bool[Tensor, "rows keys"],
    positions: Int[Tensor, " rows"],
) -> Bool[Tensor, "rows keys"]:
    """The visible pairs that a structure keeps of one map; for figures."""
    away = positions[:, None] - torch.arange(pattern.shape[1])
    size = structure.size or 0
    match structure.form:
        case "band":
            mask = away.abs() <= size
        case "band and first token":
            mask = (away.abs() <= size) | (torch.arange(pattern.shape[1]) == 0)
        case "band and entries":
            outside = torch.where(visible & (away.abs() > size), pattern, -1.0)
            order = outside.sort(dim=-1, descending=True, stable=True).indices[:, : structure.entries]
            mask = (away.abs() <= size) | torch.zeros_like(visible).scatter(1, order, True)
        case "first tokens":
            mask = torch.arange(pattern.shape[1]).expand_as(away) < size
        case "columns":
            best = pattern.sum(0).sort(descending=True, stable=True).indices[:size]
            mask = torch.isin(torch.arange(pattern.shape[1]), best).expand_as(away)
        case "offsets":
            masses = torch.zeros(2 * pattern.shape[1] + len(pattern), dtype=pattern.dtype)
            shifted = away + pattern.shape[1]
            masses = masses.index_add(0, shifted.flatten(), pattern.flatten())
            best = masses.sort(descending=True, stable=True).indices[:size]
            mask = torch.isin(shifted, best)
        case "blocks":
            mask = positions[:, None] // size == torch.arange(pattern.shape[1]) // size
        case _:
            mask = torch.ones_like(visible)
    return mask & visible

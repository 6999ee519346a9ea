"""TokenMap: numbers for pairs of tokens, such as the attention pattern of one head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headscope.core.card import Card, Point, Shown
from headscope.core.numbers import number, value_range
from headscope.core.token_map_html import token_map_html
from headscope.errors import UsageError

_ROWS_IN_TEXT = 5


@dataclass(frozen=True, eq=False, repr=False)
class TokenMap(Shown):
    """An array of queries × keys with the tokens of both; in a notebook it draws itself.

    Indexing and numpy functions see `values`: `token_map[3]` is the row of query 3, `np.sum(token_map)` its sum.
    `query_places` and `key_places` are the places of the tokens in their text; by default these count from 0.
    """

    values: NDArray[Any]
    query_tokens: Sequence[str]
    key_tokens: Sequence[str]
    title: str = ""
    query_places: Sequence[int] = ()
    key_places: Sequence[int] = ()

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.ndim != 2 or values.shape != (len(self.query_tokens), len(self.key_tokens)):
            raise UsageError(
                f"a map of shape {values.shape} with {len(self.query_tokens)} query tokens and "
                f"{len(self.key_tokens)} key tokens, expected a row for each query and a column for each key"
            )
        is_float = np.issubdtype(values.dtype, np.floating)
        object.__setattr__(self, "values", values if is_float else values.astype(np.float64))
        for side, size in (("query", values.shape[0]), ("key", values.shape[1])):
            places = tuple(getattr(self, f"{side}_places")) or tuple(range(size))
            if len(places) != size:
                raise UsageError(f"{len(places)} places of {size} {side} tokens, expected one for each token")
            object.__setattr__(self, f"{side}_places", places)
            object.__setattr__(self, f"{side}_tokens", tuple(getattr(self, f"{side}_tokens")))

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        n_queries, n_keys = self.values.shape
        return n_queries, n_keys

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy:
            return np.array(self.values, dtype=dtype)
        converted = np.asarray(self.values, dtype=dtype)
        if copy is False and converted.dtype != self.values.dtype:
            raise ValueError(f"values of type {self.values.dtype} cannot become {converted.dtype} without a copy")
        return converted

    def part(self, queries: range | None = None, keys: range | None = None) -> "TokenMap":
        """The map of some queries and keys, by their numbers in this map: `part(range(96, 192), range(96, 192))`.

        Raises:
            UsageError: A number is not in the map.
        """
        rows, columns = (
            range(size) if numbers is None else _checked(numbers, size, side)
            for numbers, size, side in ((queries, self.shape[0], "queries"), (keys, self.shape[1], "keys"))
        )
        return TokenMap(
            self.values[np.ix_(rows, columns)],
            [self.query_tokens[row] for row in rows],
            [self.key_tokens[column] for column in columns],
            self.title,
            [self.query_places[row] for row in rows],
            [self.key_places[column] for column in columns],
        )

    def _card(self) -> Card:
        n_queries, n_keys = self.shape
        # Evenly spread, the first and the last among them.
        rows = sorted({round(row) for row in np.linspace(0, n_queries - 1, _ROWS_IN_TEXT)}) if self.values.size else []
        points = (Point(f"{self.query_places[row]} {self.query_tokens[row]!r}", self._strongest(row)) for row in rows)
        title = self.title or "a map of tokens"
        size = ", ".join(filter(None, (f"{n_queries} queries × {n_keys} keys", value_range(self.values))))
        return Card(f"{title}: {size}", points=tuple(points))

    def _strongest(self, row: int) -> str:
        values = self.values[row]
        if not np.isfinite(values).any():
            return "no finite value"
        key = int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))
        return f"strongest key {self.key_places[key]} {self.key_tokens[key]!r}: {number(float(values[key]))}"

    def _repr_html_(self) -> str:
        return token_map_html(
            self.values,
            tuple(zip(self.query_places, self.query_tokens, strict=True)),
            tuple(zip(self.key_places, self.key_tokens, strict=True)),
            self.title,
        )


def _checked(numbers: range, size: int, side: str) -> range:
    if numbers and not (min(numbers) >= 0 and max(numbers) < size):
        raise UsageError(f"{side} {min(numbers)} to {max(numbers)}, but the map has {size} {side}: 0 to {size - 1}")
    return numbers

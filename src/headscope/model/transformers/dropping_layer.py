"""A layer of transformers' cache that drops the keys and values that no head will read again.

The heads of a model may share keys and values in groups, and groups may be read by other mechanisms, so each set of
readers has a store of its own, with as many keys as its readers need. transformers knows none of that: it is handed
keys and values of the full shape that take no memory and hold NaN, and the attention call of a session reads the stores
in their place. So this layer works only where a session answers the attention that it belongs to; elsewhere it refuses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from headscope.attention.call import head_index
from headscope.attention.kept_keys import Readers, StoredKeys, staying_runs, stored_keys
from headscope.errors import CaptureError

Stored = Float[Tensor, "batch kv_heads stored width"]


@dataclass(frozen=True)
class Readership:
    """The key/value heads of a site whose keys are read by the same mechanisms."""

    kv_heads: tuple[int, ...]
    readers: Readers
    groups: int  # query heads per key/value head

    @cached_property
    def index(self) -> slice | Tensor:
        """The heads on the axis of all key/value heads."""
        return head_index(self.kv_heads)

    @cached_property
    def query_heads(self) -> tuple[int, ...]:
        """The query heads that read them."""
        return tuple(head for kv in self.kv_heads for head in range(kv * self.groups, (kv + 1) * self.groups))

    @cached_property
    def query_index(self) -> slice | Tensor:
        """The query heads on the axis of all heads."""
        return head_index(self.query_heads)


@dataclass
class KeyStore:
    """The stored keys and values of the heads of one readership."""

    of: Readership
    keys: Stored
    values: Stored

    def positions(self, base: int, length: int) -> StoredKeys:
        """Where its keys stand."""
        return stored_keys(self.of.readers, base, length)

    def trim(self, base: int, new_base: int, length: int, new: tuple[Tensor, Tensor] | None = None) -> None:
        """Drop what is not read from the new base on, and append new keys and values of all heads of the site."""
        runs = staying_runs(self.of.readers, base, new_base, length)
        keys, values = ([x[:, :, start:stop] for start, stop in runs] for x in (self.keys, self.values))
        if new is not None:
            keys.append(new[0][:, self.of.index])
            values.append(new[1][:, self.of.index])
        # Copies, also of a single run: a view would hold the memory of what is dropped.
        self.keys = torch.cat(keys, dim=2) if keys else self.keys[:, :, :0].clone()
        self.values = torch.cat(values, dim=2) if values else self.values[:, :, :0].clone()


class DroppingLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """The stores of one layer.

    Properties:
        - what is generated is what the ordinary cache gives  (tested: test_generation_is_that_of_the_ordinary_cache)
        - it holds as many keys as its readers need  (tested: test_the_kept_keys_are_those_of_the_formula)
        - it refuses to go on without its readers  (tested: test_a_cache_goes_on_only_under_its_plan)
    """

    is_croppable = False

    def __init__(self, layer: DynamicLayer, readerships: Sequence[Readership]) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self.readerships = tuple(readerships)
        self.base, self.length = 0, layer.keys.shape[2]
        self.is_awaited = False
        self.stores = [
            KeyStore(group, layer.keys[:, group.index], layer.values[:, group.index]) for group in readerships
        ]
        self._nothing = layer.keys.new_full((1, 1, 1, 1), torch.nan)
        self._n_kv_heads = layer.keys.shape[1]
        self.trim()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the new keys to the stores; what is given back has their shape alone."""
        if not self.is_awaited:
            raise CaptureError(
                "this cache has dropped keys that the heads of its plan do not read, so only they can go on with it",
                hint="put the same plan in place again, or read the text anew without this cache",
            )
        self.is_awaited = False
        for store in self.stores:
            store.trim(self.base, self.length, self.length, (key_states, value_states))
        self.base, self.length = self.length, self.length + key_states.shape[2]
        self._show()
        return self.keys, self.values

    def trim(self) -> None:
        """Drop what no query after the last one reads."""
        for store in self.stores:
            store.trim(self.base, self.length, self.length)
        self.base = self.length
        self._show()

    def _show(self) -> None:
        """Keys and values of the full shape, which take no memory."""
        self.keys, self.values = (
            self._nothing.expand(x.shape[0], self._n_kv_heads, self.length, x.shape[3])
            for x in (self.stores[0].keys, self.stores[0].values)
        )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The sequences of a beam search in another order."""
        self.batch_select_indices(beam_idx.to(self._nothing.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Some sequences of the batch."""
        for store in self.stores:
            store.keys, store.values = store.keys[indices], store.values[indices]
        self._show()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence of the batch several times."""
        for store in self.stores:
            store.keys, store.values = (x.repeat_interleave(repeats, dim=0) for x in (store.keys, store.values))
        self._show()

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to go back: what earlier queries read is gone."""
        if tokens_to_remove:
            raise CaptureError(
                "this cache cannot go back by some tokens: the keys that earlier queries read are dropped",
                hint="generate without an assistant model",
            )

    def reset(self) -> None:
        """Refuse to begin anew: the cache would not know which heads read it."""
        raise CaptureError("a cache that drops keys cannot be used for another text", hint="let a new one be made")


def cache_bytes(cache: Any) -> int:
    """The memory of all keys and values of a cache."""
    storages = [tensor.untyped_storage() for layer in cache.layers for tensor in _tensors(layer)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(layer: Any) -> list[Tensor]:
    if isinstance(layer, DroppingLayer):
        return [tensor for store in layer.stores for tensor in (store.keys, store.values)]
    return [value for value in vars(layer).values() if isinstance(value, Tensor)]

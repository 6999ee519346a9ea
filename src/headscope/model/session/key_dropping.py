"""Lets the cache of a generation drop the keys that no replaced head will read again.

A kv group drops keys where all its query heads attend through mechanisms that say which keys they still read
(`Mechanism.still_read`). When such a site has attended, the layer of its cache is exchanged for a `DroppingLayer`;
from then on the site reads from there. A cache that is not understood stays as it is, and `reasons` says why: any other
kind of layer than transformers' growing one, keys that are not handed to the attention as they are stored, and
captures, streams or patches that need all keys.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from headscope.attention.call import Call
from headscope.attention.kept_keys import EVERYTHING, Readers, readers_of, reads_all_stored
from headscope.attention.mechanism import Mechanism
from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.session.captures import Heads, InputQuantity, MapQuantity
from headscope.model.session.registered import Registered
from headscope.model.transformers.call_reader import RawCall

Part = tuple[Call, Heads, bool]  # a call, its heads among all of the site, and whether its query reads all of its keys
_NOT_UNDERSTOOD = "its cache is none that grows token by token"
_NOT_HANDED_OVER = "its attention is not handed the keys as its cache holds them"
_READ_WHOLE = "a capture, stream or patch reads all of its keys"


class KeyDropping:
    """The caches of one model with open sessions."""

    def __init__(
        self,
        hf: Any,
        sites: tuple[Site, ...],
        registered: Registered,
        is_live: Callable[[], bool],
        has_paths: Callable[[], bool],
    ) -> None:
        self._hf, self._registered, self._is_live, self._has_paths = hf, registered, is_live, has_paths
        modules = [site.module for site in sites]
        # A module that attends several times in a forward has several caches, or none.
        self._sites = {site: None for site in sites if site.kind == "self" and modules.count(site.module) == 1}
        self._readerships: dict[Site, tuple[Any, ...]] = {}
        self._hooks: dict[Site, Any] = {}
        self._cache: Any = None
        self.obstacle = ""  # why no cache of this model can drop keys
        self.reasons: dict[Site, str] = {}

    def refresh(self, sites: Iterable[Site] | None = None) -> None:
        """Watch the caches of these sites, or of all, where they may drop keys now."""
        for site in self._sites if sites is None else [site for site in sites if site in self._sites]:
            groups = _readerships(site, self._registered.mechanisms(site))
            if groups != self._readerships.get(site, ()):
                self._forget(site)
                self._watch(site, groups)

    def release(self) -> None:
        """A forward is over: hold its cache no longer."""
        self._cache = None

    def _watch(self, site: Site, groups: tuple[Any, ...]) -> None:
        if groups and self.obstacle:
            self.reasons[site] = self.obstacle
        elif groups:
            module = self._hf.get_submodule(site.module)
            self._readerships[site] = groups
            self._hooks[site] = module.register_forward_pre_hook(self._watcher(site), with_kwargs=True)

    def _forget(self, site: Site) -> None:
        self._readerships.pop(site, None)
        self.reasons.pop(site, None)
        if site in self._hooks:
            self._hooks.pop(site).remove()

    def close(self) -> None:
        """Remove every hook."""
        for site in tuple(self._hooks):
            self._forget(site)
        self.reasons.clear()
        self.release()

    def _watcher(self, site: Site) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        from transformers.cache_utils import Cache

        from headscope.model.transformers.dropping_layer import DroppingLayer

        def watch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._is_live():
                return
            cache = next((value for value in (*kwargs.values(), *args) if isinstance(value, Cache)), None)
            self._cache = getattr(cache, "self_attention_cache", cache)
            layer = self._layer(module)
            if isinstance(layer, DroppingLayer):
                if layer.readerships != self._readerships[site] or self._is_read_whole(site):
                    raise _refusal(site)
                layer.is_awaited = True

        return watch

    def _layer(self, module: nn.Module) -> Any:
        layers, index = getattr(self._cache, "layers", ()), getattr(module, "layer_idx", None)
        return layers[index] if isinstance(index, int) and index < len(layers) else None

    def parts(self, site: Site, raw: RawCall, call: Call) -> list[Part] | None:
        """The calls of the heads whose keys are stored together; None where the call has all keys itself."""
        layer = self._layer(raw.module) if site in self._readerships else None
        if layer is None or not hasattr(layer, "stores"):
            return None
        if raw.key is not layer.keys or raw.value is not layer.values:
            raise CaptureError(f"{site.label}: {_NOT_HANDED_OVER}", hint="generate without a cache (cache=False)")
        return [_part(call, store, layer.base, layer.length) for store in layer.stores]

    def settle(self, site: Site, raw: RawCall) -> None:
        """A site has attended: drop what it will not read again."""
        if site not in self._readerships or self._cache is None:
            return
        layer = self._layer(raw.module)
        if not hasattr(layer, "stores"):
            self._exchange(site, raw, layer)
        elif layer.length - layer.base > 1:
            layer.trim()  # a single new key waits for the next step, which copies the store anyway

    def _exchange(self, site: Site, raw: RawCall, layer: Any) -> None:
        """Exchange a layer that keeps all keys for one that drops them."""
        from transformers.cache_utils import DynamicLayer

        from headscope.model.transformers.dropping_layer import DroppingLayer

        if type(layer) is not DynamicLayer or getattr(self._cache, "offloading", False):
            self.reasons[site] = _NOT_UNDERSTOOD
        elif raw.key is not layer.keys or raw.value is not layer.values or raw.key.shape[1] != site.n_kv_heads:
            self.reasons[site] = _NOT_HANDED_OVER
        elif self._is_read_whole(site):
            self.reasons[site] = _READ_WHOLE
        else:
            self._cache.layers[raw.module.layer_idx] = DroppingLayer(layer, self._readerships[site])

    def _is_read_whole(self, site: Site) -> bool:
        registered, kinds = self._registered, (InputQuantity, MapQuantity)
        captures = [quantity for capture in registered.captures for quantity in capture.quantities_at(site)]
        changes = [change.quantity for change in registered.changes if site in change.at]
        is_streamed = any(site in stream.at for stream in registered.streams)
        return (
            is_streamed or self._has_paths() or any(isinstance(quantity, kinds) for quantity in (*captures, *changes))
        )


def group_readers(site: Site, mechanisms: Mapping[int, Mechanism]) -> tuple[Readers, ...]:
    """What reads the keys of each kv head of a site, by the mechanisms of its replaced heads."""
    heads_of = (
        [head for head in range(site.n_heads) if site.kv_head(head) == kv_head] for kv_head in range(site.n_kv_heads)
    )
    return tuple(readers_of(tuple(mechanisms.get(head) for head in heads)) for heads in heads_of)


def _readerships(site: Site, mechanisms: Mapping[int, Mechanism]) -> tuple[Any, ...]:
    """The kv heads of a site by what reads them; none where all keys stay."""
    from headscope.model.transformers.dropping_layer import Readership

    kv_heads_by_readers: dict[Readers, list[int]] = {}
    for kv_head, readers in enumerate(group_readers(site, mechanisms)):
        kv_heads_by_readers.setdefault(readers, []).append(kv_head)
    if set(kv_heads_by_readers) == {EVERYTHING}:
        return ()
    return tuple(
        Readership(tuple(kv_heads), readers, site.n_heads // site.n_kv_heads)
        for readers, kv_heads in kv_heads_by_readers.items()
    )


def _part(call: Call, store: Any, base: int, length: int) -> Part:
    """The call of the heads of a store."""
    heads, index = store.of.query_heads, store.of.query_index
    stored = store.positions(base, length)
    positions = stored.positions.to(call.key_positions.device)

    def of_heads(x: Tensor | None) -> Tensor | None:
        return None if x is None else (x if x.shape[1] == 1 else x[:, index])[..., positions]

    is_read_whole = call.plain and call.q.shape[2] == 1 and call.left is None
    reads_all = is_read_whole and reads_all_stored(store.of.readers, base, length)
    part = Call(
        q=call.q[:, index],
        k=store.keys,
        v=store.values,
        scale=call.scale,
        query_positions=call.query_positions,
        key_positions=positions[None],
        left=call.left,
        right=None if reads_all else call.right,
        key_padding=None if call.key_padding is None else call.key_padding[:, positions],
        mask=of_heads(call.mask),
        bias=of_heads(call.bias),
        softcap=call.softcap,
        sinks=None if call.sinks is None else call.sinks[index],
    )
    part.__dict__["offset"] = None if stored.first is None or call.offset is None else call.offset - stored.first
    return part, heads, reads_all


def _refusal(site: Site) -> CaptureError:
    return CaptureError(
        f"{site.label}: this cache has dropped keys that its plan does not read, and now another mechanism, a capture, "
        "a stream or a patch asks for them",
        hint="read the text anew with all of it in place, or generate without a cache (cache=False)",
    )

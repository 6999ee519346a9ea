"""Families that do not dispatch through the attention interface: their maps, read off the softmax itself.

While a model of such a family runs, every softmax it takes is watched. At opening, the maps so found are
compared with what the model itself returns as attentions; only where they are the same, number by number, is
the family opened, and then only maps, scores and statistics can be had: nothing can be replaced or patched.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism
from headscope.attention.statistics import pattern_statistics, uniform_statistics
from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.dispatch import implementation
from headscope.model.feeding import forward_options, probe_inputs
from headscope.model.session import Patch, Session, Where

if TYPE_CHECKING:
    from headscope.model.opened import Model

TOLERANCE = 1e-6
_SOFTMAX = {torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax}


class Watch(TorchFunctionMode):
    """Reports the argument and the result of every softmax to `note`."""

    def __init__(self, note: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _SOFTMAX:
            self._note(args[0] if args else kwargs["input"], result)
        return result


@dataclass(frozen=True)
class SoftmaxSites:
    """The sites of a model whose maps come from softmaxes, and which softmax of a forward each one is."""

    sites: tuple[Site, ...]
    ordinal: dict[int, Site]
    total: int


def find_softmax_sites(model: Any) -> SoftmaxSites | str:
    """Match every attention map the model returns to a softmax it took; the reason unless all are matched exactly."""
    taken: list[Tensor] = []
    inputs = probe_inputs(model, batch=2)
    options = forward_options(model)
    with torch.no_grad(), implementation(model, "eager"):
        with Watch(lambda _, result: taken.append(result)):
            plain = model(**inputs, **options)
        returned = getattr(model(**inputs, **options, output_attentions=True), "attentions", None)
    del plain
    if not taken:
        return "it takes no softmax at all: it seems to have no attention, or none in the layers it was given"
    if not returned or any(each is None or each.ndim != 4 for each in returned):
        return "it returns no maps that a softmax could be checked against"
    if any(each.shape[2] != each.shape[3] for each in returned):
        return "the maps it returns are not square: it attends in bands, or shortens the text on the way"
    ordinal: dict[int, Site] = {}
    for layer, attention in enumerate(returned):
        index = _matching(attention, taken, ordinal)
        if index is None:
            return "no softmax in it gives the maps that it returns"
        ordinal[index] = _site(model, layer, attention)
    return SoftmaxSites(tuple(ordinal.values()), ordinal, len(taken))


def _matching(attention: Tensor, taken: list[Tensor], used: Iterable[int]) -> int | None:
    for index, result in enumerate(taken):
        if index in used or result.numel() != attention.numel() or result.shape[-2:] != attention.shape[-2:]:
            continue
        if float((result.reshape(attention.shape) - attention).abs().max()) <= TOLERANCE:
            return index
    return None


def _site(model: Any, layer: int, attention: Tensor) -> Site:
    text = model.config.get_text_config()
    heads = attention.shape[1]
    causal = not bool(attention.triu(1).any())
    width = int(text.hidden_size) // heads
    return Site("only", "self", layer, heads, heads, width, width, causal, module=f"softmax {layer}")


class SoftmaxSession(Session):
    """A session that can look but not touch."""

    def __init__(self, model: "Model", found: SoftmaxSites) -> None:
        super().__init__(model)
        self._found = found
        self._taken = 0
        self._running = False

    def _open(self, stack: ExitStack) -> None:
        stack.enter_context(implementation(self._hf, "eager"))
        # Either may run without the other: some heads call the parts of the body, not the body itself.
        for module in {id(m): m for m in (self._hf, self._hf.base_model)}.values():
            stack.callback(module.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(self._end, always_call=True).remove)
        stack.enter_context(Watch(self._note))

    def replace(self, at: Where, mechanism: Mechanism) -> None:
        """Refused: this family computes its attention itself."""
        raise self._refusal(f"replaced by {mechanism!r}")

    def ablate(self, at: Where) -> None:
        """Refused: this family computes its attention itself."""
        raise self._refusal("ablated")

    def patch(self, at: Where, what: str, value: Patch) -> None:
        """Refused: this family computes its attention itself."""
        raise self._refusal("patched")

    def _refusal(self, what: str) -> CaptureError:
        return CaptureError(
            f"the attention of {self._model.spec.family} models cannot be {what}: the family does not compute it "
            "through the attention interface of transformers; its maps and scores can be captured"
        )

    def _check_quantities(self, what: tuple[str, ...]) -> None:
        super()._check_quantities(what)
        if hidden := [name for name in what if name not in ("pattern", "scores")]:
            raise self._refusal(f"captured as {', '.join(hidden)}")

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super()._begin(module, args, kwargs)
        self._taken = 0
        self._running = True

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._running = False
        if output is not None and self._taken != self._found.total:
            raise self._changed_form()

    def _note(self, scores: Tensor, result: Tensor) -> None:
        if not self._running:
            return
        site = self._found.ordinal.get(self._taken)
        self._taken += 1
        if site is not None:
            self._record(site, self._as_map(site, scores), self._as_map(site, result))
            self._attended_to()

    def _as_map(self, site: Site, tensor: Tensor) -> Tensor:
        if tensor.shape[-1] != tensor.shape[-2] or tensor.ndim not in (3, 4):
            raise self._changed_form()
        return tensor.detach().reshape(-1, site.n_heads, *tensor.shape[-2:])

    def _changed_form(self) -> CaptureError:
        return CaptureError(
            f"{self._model.spec.family}: this input makes the model attend in another form than at opening "
            "(block-sparse, or with a cache), which headscope cannot read",
            hint="use a shorter text, without a cache",
        )

    def _record(self, site: Site, scores: Tensor, pattern: Tensor) -> None:
        for capture in self._captures:
            for what, tensor in (("scores", scores), ("pattern", pattern)):
                if site in capture.at and what in capture.what:
                    capture.keep(what, site, tensor[:, list(capture.at[site])])
        for stream in self._streams:
            if site in stream.at:
                heads = list(stream.at[site])
                measured, uniform = stream.frames.current()
                call = _as_call(scores[:, heads])
                real = self._clock.real_queries(site.stack, scores.shape[2])
                measured[site] = pattern_statistics(pattern[:, heads], call, stream.request, real_queries=real)
                uniform[site] = uniform_statistics(call, stream.request, real_queries=real)


def _as_call(scores: Tensor) -> Call:
    """The positions and the visible keys of a map whose masked scores are known, without its q, k and v."""
    batch, heads, queries, keys = scores.shape
    visible = scores > torch.finfo(scores.dtype).min / 2
    real = visible.any(dim=1).any(dim=1)
    return Call(
        q=scores.new_zeros(batch, heads, queries, 1),
        k=scores.new_zeros(batch, heads, keys, 1),
        v=scores.new_zeros(batch, heads, keys, 1),
        scale=1.0,
        query_positions=torch.arange(queries)[None],
        key_positions=torch.arange(keys)[None],
        key_padding=real,
        mask=visible,
    )

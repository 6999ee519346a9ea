"""What the rest of a layer makes of its heads: its own modules run on a stream and outputs of heads that are given.

A layer (the nearest element of a module list around its attention and its feed-forward part) is called by itself, with
the arguments that it got in a forward on tokens of the same number. What its heads give is exchanged where the output
projection reads it, so that W_O, skips, norms and feed-forward part are the model's own, in any family.
"""

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.core.site import Site
from headscope.core.weights import AfterHeads, FeedForward
from headscope.errors import WeightsRefused
from headscope.model.blueprint import Rows
from headscope.model.feeding import forward_options, probe_inputs

if TYPE_CHECKING:
    from headscope.model.opened import Model

# Tokens that a layer is given at once, and numbers of tokens whose arguments are kept.
TOKENS, SHAPES = 4096, 2

Given = tuple[tuple[Any, ...], dict[str, Any]]


class Rest:
    """The rest of each layer of a built model."""

    def __init__(self, model: "Model", feed_forward: tuple[FeedForward, ...]) -> None:
        self._model, self._hf = model, model.hf
        self._first = {(one.stack, one.layer): one.module for one in reversed(feed_forward) if _widens(one)}
        self._layers = {
            site: _layer(model.hf, site.module, self._first.get((site.stack, site.layer), "")) for site in model.sites
        }
        self._attends = Counter(self._layers.values())
        self._given: dict[tuple[int, int], dict[str, Given]] = {}

    def __call__(
        self,
        site: Site,
        stream: Float[Tensor, "windows tokens d_model"],
        z: Float[Tensor, "windows heads tokens d_value"],
    ) -> AfterHeads:
        """What the layer of a site makes of a stream that enters it and of what its heads give for each token."""
        output, layer = self._checked(site)
        windows, tokens = stream.shape[:2]
        size = min(windows, max(1, TOKENS // tokens))
        args, kwargs = self._arguments(layer, size, tokens)
        found: list[AfterHeads] = []
        for start in range(0, windows, size):
            part = slice(start, start + size)
            missing = size - len(stream[part])
            # Always the number of windows that the arguments are for.
            rows, heads = (torch.cat((x[part], x[:1].expand(missing, *x.shape[1:]))) for x in (stream, z))
            one = self._run(site, output, layer, (args, kwargs), rows, heads)
            kept = size - missing
            found.append(AfterHeads(None if one.normed is None else one.normed[:kept], one.out[:kept]))
        normed = [one.normed for one in found if one.normed is not None]
        return AfterHeads(torch.cat(normed) if normed else None, torch.cat([one.out for one in found]))

    def _checked(self, site: Site) -> tuple[Rows, str]:
        plan, layer = self._model.plan(site), self._layers[site]
        if plan.projections is None:
            raise WeightsRefused(f"{site.label}: {plan.status.reason}")
        if layer == site.module:
            raise WeightsRefused(f"{site.label}: no layer around its attention was found")
        if self._attends[layer] > 1:
            raise WeightsRefused(f"{site.label}: its layer attends more than once, or serves as several layers")
        return plan.projections.o, layer

    def _arguments(self, layer: str, windows: int, tokens: int) -> Given:
        """What each layer is given in a forward on so many tokens; the stream itself is left out."""
        if (windows, tokens) not in self._given:
            given: dict[str, Given] = {}

            def keep(name: str) -> Any:
                return lambda module, args, kwargs: given.__setitem__(name, _without_stream(args, kwargs))

            body = self._hf.base_model
            ids = probe_inputs(self._hf, batch=1)["input_ids"][:, :1].expand(windows, tokens)
            inputs = {"input_ids": ids}
            if self._model.spec.kind == "encoder-decoder":
                inputs["decoder_input_ids"] = ids
            with ExitStack() as stack, torch.no_grad():
                for name in self._attends:
                    hook = self._hf.get_submodule(name).register_forward_pre_hook(keep(name), with_kwargs=True)
                    stack.callback(hook.remove)
                body(**inputs, **forward_options(body))
            while len(self._given) >= SHAPES:
                self._given.pop(next(iter(self._given)))
            self._given[windows, tokens] = given
        return self._given[windows, tokens][layer]

    def _run(self, site: Site, output: Rows, layer: str, given: Given, stream: Tensor, z: Tensor) -> AfterHeads:
        """One call of the layer, with the heads' output exchanged and the input of its feed-forward part noted."""
        dtype = self._hf.dtype
        heads = z.to(dtype).movedim(1, 2)  # as the output projection reads them: windows, tokens, heads, width
        normed: list[Tensor] = []
        exchanged: list[bool] = []

        def exchange(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            read = args[0].clone()
            read.reshape(*stream.shape[:2], -1)[..., output.row] = heads
            exchanged.append(True)
            return (read, *args[1:])

        first = self._first.get((site.stack, site.layer))
        with ExitStack() as stack, torch.no_grad():
            hook = self._hf.get_submodule(output.module).register_forward_pre_hook(exchange)
            stack.callback(hook.remove)
            if first is not None:
                watch = self._hf.get_submodule(first).register_forward_pre_hook(
                    lambda module, args: normed.append(args[0].detach().reshape(stream.shape).clone())
                )
                stack.callback(watch.remove)
            args, kwargs = _with_stream(*given, stream.to(dtype).clone())
            result = self._hf.get_submodule(layer)(*args, **kwargs)
        out = result if isinstance(result, Tensor) else next((x for x in result if isinstance(x, Tensor)), None)
        if not exchanged or out is None or out.shape != stream.shape:
            raise WeightsRefused(f"{site.label}: its layer could not be run by itself")
        return AfterHeads(normed[0] if normed else None, out)


def _layer(hf: nn.Module, attention: str, feed_forward: str) -> str:
    """The nearest element of a module list that holds both, or the attention alone where the other is not known."""
    parts = attention.split(".")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        within = not feed_forward or feed_forward.startswith(f"{name}.")
        if within and isinstance(hf.get_submodule(name.rpartition(".")[0]), nn.ModuleList):
            return name
    return attention


def _widens(one: FeedForward) -> bool:
    return one.sizes[0] < one.sizes[1]


# Marks the place of the stream among the arguments of a layer.
_STREAM = object()


def _without_stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
    """The first tensor is the stream that enters: its place is marked, and it is not held."""
    for index, value in enumerate(args):
        if isinstance(value, Tensor):
            return (*args[:index], _STREAM, *args[index + 1 :]), kwargs
    name = next((key for key, value in kwargs.items() if isinstance(value, Tensor)), "")
    return args, {**kwargs, name: _STREAM} if name else kwargs


def _with_stream(args: tuple[Any, ...], kwargs: dict[str, Any], stream: Tensor) -> Given:
    return tuple(stream if x is _STREAM else x for x in args), {
        key: stream if x is _STREAM else x for key, x in kwargs.items()
    }

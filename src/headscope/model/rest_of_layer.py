"""Runs the rest of a layer on a given stream and given outputs of its heads.

A layer (the nearest element of a module list around its attention and its feed-forward part) is called alone, with the
arguments that it got in a probe of the model with a few random tokens. After its heads a layer treats all tokens alike,
so tokens of any windows can take the shape of the probe. The heads' outputs are replaced where the output projection
reads them, so that W_O, skips, norms and feed-forward part are the model's own, in any family.
"""

from collections import Counter
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.core.site import Site
from headscope.core.weights import AfterHeads, FeedForward
from headscope.errors import WeightsRefused
from headscope.model.tracing.projections import Rows
from headscope.model.transformers.layers import shared_layer
from headscope.model.transformers.linear_kernel import onednn_linear
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs

if TYPE_CHECKING:
    from headscope.model.model import Model

# Windows of the probe, of a few tokens each: the input of one call of a layer.
WINDOWS = 64

LayerArguments = tuple[tuple[Any, ...], dict[str, Any]]


class RestOfLayer:
    """The rest of each layer of a built model."""

    def __init__(self, model: "Model", feed_forward: tuple[FeedForward, ...]) -> None:
        self._model, self._hf = model, model.hf
        self._first = {
            (matrix.stack, matrix.layer): matrix.module for matrix in reversed(feed_forward) if _widens(matrix)
        }
        self._layers = {
            site: shared_layer(model.hf, site.module, self._first.get((site.stack, site.layer), ""))
            for site in model.sites
        }
        self._attends = Counter(self._layers.values())
        self._arguments_by_layer: dict[str, tuple[LayerArguments, tuple[int, int]]] = {}
        self._filling = Lock()  # lenses ask for several layers at a time

    def __call__(
        self,
        site: Site,
        stream: Float[Tensor, "windows tokens d_model"],
        z: Float[Tensor, "windows heads tokens d_value"],
    ) -> AfterHeads:
        """Compute the output of a site's layer from a stream and its heads' outputs."""
        output, layer = self._output_and_layer(site)
        arguments, (windows, tokens) = self._arguments(layer)
        rows, heads = stream.flatten(0, 1), z.movedim(1, 2).flatten(0, 1)
        normed: list[Tensor] = []
        out: list[Tensor] = []
        for start in range(0, len(rows), windows * tokens):
            part = slice(start, start + windows * tokens)
            n_rows = len(rows[part])
            # The arguments fit exactly this number of tokens.
            missing = windows * tokens - n_rows
            padded = [torch.cat((x[part], x[:1].expand(missing, *x.shape[1:]))) for x in (rows, heads)]
            after_heads = self._run(
                site, output, layer, arguments, *(x.reshape(windows, tokens, *x.shape[1:]) for x in padded)
            )
            out.append(after_heads.out.flatten(0, 1)[:n_rows])
            if after_heads.normed is not None:
                normed.append(after_heads.normed.flatten(0, 1)[:n_rows])
        normed_stream = torch.cat(normed).reshape(stream.shape) if normed else None
        return AfterHeads(normed_stream, torch.cat(out).reshape(stream.shape))

    def _output_and_layer(self, site: Site) -> tuple[Rows, str]:
        plan, layer = self._model.plan(site), self._layers[site]
        if plan.projections is None:
            raise WeightsRefused(f"{site.label}: {plan.status.reason}")
        if layer == site.module:
            raise WeightsRefused(f"{site.label}: no layer around its attention was found")
        if self._attends[layer] > 1:
            raise WeightsRefused(f"{site.label}: its layer attends more than once, or serves as several layers")
        return plan.projections.o, layer

    def _arguments(self, layer: str) -> tuple[LayerArguments, tuple[int, int]]:
        """The arguments of a layer in a probe without the stream, and the stream's shape.

        The shape is (windows, tokens).
        """
        with self._filling:
            if not self._arguments_by_layer:
                self._collect_arguments()
        return self._arguments_by_layer[layer]

    def _collect_arguments(self) -> None:
        body = self._hf.base_model

        def keep(name: str) -> Any:
            return lambda module, args, kwargs: self._arguments_by_layer.__setitem__(
                name, _without_stream(args, kwargs)
            )

        with ExitStack() as stack, torch.no_grad(), restored(self._hf):
            for name in self._attends:
                hook = self._hf.get_submodule(name).register_forward_pre_hook(keep(name), with_kwargs=True)
                stack.callback(hook.remove)
            # `forward`, not a call: hooks on the model are for forwards of a text, and this one only collects
            # arguments.
            body.forward(**probe_inputs(self._hf, batch=WINDOWS), **forward_options(body))

    def _run(
        self,
        site: Site,
        output: Rows,
        layer: str,
        arguments: LayerArguments,
        stream: Float[Tensor, "windows tokens d_model"],
        z: Float[Tensor, "windows tokens heads d_value"],
    ) -> AfterHeads:
        """Call the layer with other heads' outputs, and record its feed-forward input."""
        device, dtype = self._hf.device, self._hf.dtype
        heads = z.to(device, dtype)
        normed: list[Tensor] = []
        replacements: list[bool] = []

        def exchange(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            replaced_input = args[0].clone()
            replaced_input.reshape(*stream.shape[:2], -1)[..., output.row] = heads
            replacements.append(True)
            return (replaced_input, *args[1:])

        first = self._first.get((site.stack, site.layer))
        module = self._hf.get_submodule(layer)
        with ExitStack() as stack, torch.no_grad(), restored(module):
            hook = self._hf.get_submodule(output.module).register_forward_pre_hook(exchange)
            stack.callback(hook.remove)
            if first is not None:
                watch = self._hf.get_submodule(first).register_forward_pre_hook(
                    lambda module, args: normed.append(args[0].detach().reshape(stream.shape).clone())
                )
                stack.callback(watch.remove)
            args, kwargs = _with_stream(*arguments, stream.to(device, dtype).clone())
            with onednn_linear(module):
                result = module(*args, **kwargs)
        out = result if isinstance(result, Tensor) else next((x for x in result if isinstance(x, Tensor)), None)
        if not replacements or out is None or out.shape != stream.shape:
            raise WeightsRefused(f"{site.label}: its layer could not be run by itself")
        # On the device of the stream: lenses compute on the CPU, wherever the model is.
        return AfterHeads(normed[0].to(stream.device) if normed else None, out.to(stream.device))


def _widens(matrix: FeedForward) -> bool:
    return matrix.sizes[0] < matrix.sizes[1]


# Marks the place of the stream among the arguments of a layer.
_STREAM = object()


def _without_stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[LayerArguments, tuple[int, int]]:
    """Mark the place of the stream, the first tensor, and note its size.

    The stream itself is not kept.
    """
    for index, argument in enumerate(args):
        if isinstance(argument, Tensor):
            return ((*args[:index], _STREAM, *args[index + 1 :]), kwargs), (argument.shape[0], argument.shape[1])
    name, argument = next((key, argument) for key, argument in kwargs.items() if isinstance(argument, Tensor))
    return (args, {**kwargs, name: _STREAM}), (argument.shape[0], argument.shape[1])


def _with_stream(args: tuple[Any, ...], kwargs: dict[str, Any], stream: Tensor) -> LayerArguments:
    return tuple(stream if x is _STREAM else x for x in args), {
        key: stream if x is _STREAM else x for key, x in kwargs.items()
    }

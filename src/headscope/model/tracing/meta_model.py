"""Builds a model without weights that can run on codes.

So a large file can be read in parts. The model is built on the meta device. Its large matrices stay there; linear
modules are coded by the caller, large embeddings return random vectors, modules that hold other large tensors (experts)
pass their input through, and the small tensors that remain (norms, position tables) are made real. Any failure shows up
as a site that cannot be traced, never as a wrong row.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import CheckpointError
from headscope.model.tracing.linear_modules import is_linear, out_features

SMALL = 1 << 22  # elements; the largest norm or convolution is far below, the smallest expert bank far above
WIDEST = 1 << 21  # outputs of a linear module; the largest vocabularies are about half of this


def build_skeleton(model_class: Any, config: Any, where: str) -> Any:
    """The model of `config` on the meta device, ready for a coded forward.

    Everything that such a forward touches is real.
    """
    with torch.device("meta"):
        model = model_class._from_config(config).eval()
    _check_widths(model, where)
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if not is_linear(module) and not _make_real(module, generator):
            is_embedding = isinstance(module, nn.Embedding)
            module.__dict__["forward"] = _random_embedding(module, generator) if is_embedding else _pass_through
    return model


def _check_widths(model: nn.Module, where: str) -> None:
    """Refuse a matrix wider than any model's: a coded forward allocates its outputs."""
    for name, module in model.named_modules():
        if is_linear(module) and (width := out_features(module)) > WIDEST:
            raise CheckpointError(
                f"{where}: {name} would have {width} outputs, expected at most {WIDEST}",
                hint="a size in the configuration is damaged",
            )


def _make_real(module: nn.Module, generator: torch.Generator) -> bool:
    """Replace the module's own meta tensors by real ones.

    Returns False where one is too large for that.
    """
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    if any(tensor.numel() > SMALL for _, tensor in tensors):
        return False
    for name, tensor in module.named_parameters(recurse=False):
        random = torch.rand(tensor.shape, generator=generator) + 0.5
        setattr(module, name, nn.Parameter(random.to(tensor.dtype), requires_grad=False))
    for name, buffer in module.named_buffers(recurse=False):
        module._buffers[name] = torch.zeros(buffer.shape, dtype=buffer.dtype)
    return True


def _random_embedding(module: nn.Embedding, generator: torch.Generator) -> Any:
    def forward(ids: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.randn(*ids.shape, module.embedding_dim, generator=generator)

    return forward


def _pass_through(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x

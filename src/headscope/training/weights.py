"""The weights of a network as plain tensors, without aliases, and back."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headscope.errors import CheckpointError


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network by name, on the CPU.

    Tensors that share their memory have their first name alone.
    """
    tensors: dict[str, Tensor] = {}
    places = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if tensor.numel() == 0 or place not in places:
            tensors[name] = tensor.detach().cpu().contiguous()
        places.add(place)
    return tensors


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy weights into a network of the same names and shapes.

    Raises:
        CheckpointError: They belong to another network.
    """
    expected = weights_of(model)
    for name in sorted(expected.keys() ^ weights.keys()):
        lacks = "the network lacks" if name in weights else f"{source} lacks"
        raise CheckpointError(f"{source} belongs to another network: {lacks} {name!r}")
    for name, tensor in expected.items():
        if tensor.shape != weights[name].shape or tensor.dtype != weights[name].dtype:
            raise CheckpointError(
                f"{source} belongs to another network: {name!r} is {_form(weights[name])}, expected {_form(tensor)}"
            )
    state = model.state_dict()
    with torch.no_grad():
        for name, tensor in weights.items():
            state[name].copy_(tensor)


def digest(weights: Mapping[str, Tensor]) -> str:
    """The sha256 of names, shapes and numbers."""
    content = hashlib.sha256()
    for name in sorted(weights):
        content.update(f"{name} {_form(weights[name])}\n".encode())
        content.update(weights[name].flatten().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

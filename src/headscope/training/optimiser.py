"""AdamW as a training uses it, and the state of any optimiser as plain tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import CheckpointError
from headscope.training.recipe import Optimisation

# The optimisers of a network. The learning rate of a group at the peak is the one that it is made with.
MakeOptimisers = Callable[[nn.Module, Optimisation], Sequence[torch.optim.Optimizer]]


def adamw(model: nn.Module, optimisation: Optimisation) -> tuple[torch.optim.Optimizer]:
    """AdamW on all parameters that ask for a gradient.

    Weight decay acts on matrices alone: norms, biases and other vectors have none.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    vectors = [parameter for parameter in parameters if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": optimisation.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return (
        torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=optimisation.rate.peak,
            betas=optimisation.betas,
            eps=optimisation.epsilon,
            fused=True,
        ),
    )


def optimiser_tensors(optimisers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The state of optimisers.

    Keys are the number of the optimiser, the number of the parameter, and a name.
    """
    return {
        f"{place}.{index}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for place, optimiser in enumerate(optimisers)
        for index, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
    }


def restore_optimisers(optimisers: Sequence[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Put a saved state into optimisers that were made in the same way.

    Raises:
        CheckpointError: The state belongs to other optimisers.
    """
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimisers]
    for key, tensor in tensors.items():
        place, index, name = key.split(".", 2)
        try:
            # A copy: a tensor of a file may begin at any address, and kernels may sum from there in another order.
            states[int(place)].setdefault(int(index), {})[name] = tensor.clone()
        except (IndexError, ValueError) as error:
            raise CheckpointError(f"the checkpoint holds the state {key!r} of an optimiser that is not here") from error
    for optimiser, state in zip(optimisers, states, strict=True):
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})

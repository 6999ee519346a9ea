"""Computes logits and embeddings of tokens, also from another state of the model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.errors import CaptureError
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options

if TYPE_CHECKING:
    from headscope.model.model import Model

States = Float[Tensor, "tokens d_model"]


@dataclass(frozen=True)
class Prediction:
    """Logits of one sequence, the states that gave them, and logits of other states."""

    logits: Float[Tensor, "tokens vocabulary"]
    states: States
    other_logits: Float[Tensor, "tokens vocabulary"] | None = None


def predict(model: "Model", tokens: Int[Tensor, " tokens"], other_states: States | None = None) -> Prediction:
    """Run one forward; its output head can also read `other_states`.

    So two states of a model are compared without a second model and without keeping logits: only the states of the
    first are kept, which are far smaller than logits. The model treats both alike (a cap, a scale). The head must be
    the same in both, as it is under edits of the attention.
    """
    hf: Any = model.hf
    head = hf.get_output_embeddings()
    head_inputs: list[Tensor] = []

    def read(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        head_inputs.append(args[0].detach())
        if other_states is None:
            return None
        return (torch.cat([args[0], other_states[None].to(args[0].device, args[0].dtype)]), *args[1:])

    handle = head.register_forward_pre_hook(read)
    try:
        with torch.no_grad(), restored(hf):
            logits = hf(input_ids=tokens[None].to(hf.device), **forward_options(hf)).logits
    finally:
        handle.remove()
    if (
        len(head_inputs) != 1
        or head_inputs[0].shape[:2] != (1, len(tokens))
        or len(logits) != (1 if other_states is None else 2)
    ):
        raise CaptureError(
            f"{model.spec.name} ({model.spec.architecture}) does not compute its logits by one call of its output head"
        )
    logits = logits.cpu()
    return Prediction(logits[0], head_inputs[0][0].cpu(), None if other_states is None else logits[1])


def embedding(model: "Model", tokens: Int[Tensor, " tokens"]) -> Float[Tensor, " d_model"]:
    """The mean of the last hidden states of a text, in float64.

    Of the encoder where there is one.
    """
    body: Any = model.hf.get_encoder() if model.spec.kind == "encoder-decoder" else model.hf.base_model
    with torch.no_grad(), restored(model.hf):
        states: Tensor = body(input_ids=tokens[None].to(model.hf.device), **forward_options(body)).last_hidden_state
    return states[0].cpu().double().mean(0)

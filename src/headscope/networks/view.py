"""View: what the queries of one forward may see, in the terms of transformers and in those of a `Call`."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.networks.positions import Positions, rotary_angles

Rotation = Float[Tensor, "rows 1 tokens pairs"]


@dataclass(frozen=True)
class View:
    """The keys that queries may see.

    `mask` is what transformers' attention functions take; `real` is False at padded keys; `first_query` is the position
    of the first query, with the first key at 0.
    """

    mask: Tensor | None
    real: Bool[Tensor, "batch keys"] | None = None
    first_query: int = 0
    cosine: Rotation | None = None
    sine: Rotation | None = None


@dataclass(frozen=True)
class Text:
    """The states of the tokens of a forward, with the mask of all their keys, their positions and the cache."""

    states: Float[Tensor, "batch tokens d_model"]
    mask: Tensor | None
    positions: Positions
    cache: Any = None

    @property
    def first(self) -> int:
        """The number of tokens that the cache holds."""
        return 0 if self.cache is None else int(self.cache.get_seq_length())


def view_of_itself(config: Any, text: Text, *, causal: bool) -> View:
    """What the tokens of a text may see of it: where they are causal no later ones; padding never."""
    from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

    mask = text.mask
    if mask is not None and (bool(mask.all()) or (causal and not text.first and ends_in_padding(mask))):
        mask = None  # nothing is hidden that the order does not hide: the fast path needs no mask
    inputs = {"config": config, "inputs_embeds": text.states, "attention_mask": mask}
    keys = create_causal_mask(**inputs, past_key_values=text.cache) if causal else create_bidirectional_mask(**inputs)
    cosine, sine = _rotation(config, text.positions, text.states.dtype)
    return View(keys, None if mask is None else mask.bool(), text.first, cosine, sine)


def view_of_memory(config: Any, text: Text, memory: Tensor, mask: Tensor | None) -> View:
    """What a decoder may see of the encoder's states: all but padding."""
    from transformers.masking_utils import create_bidirectional_mask

    if mask is not None and bool(mask.all()):
        mask = None
    keys = create_bidirectional_mask(
        config=config, inputs_embeds=text.states, attention_mask=mask, encoder_hidden_states=memory
    )
    return View(keys, None if mask is None else mask.bool(), text.first)


def ends_in_padding(mask: Int[Tensor, "batch keys"] | Bool[Tensor, "batch keys"]) -> bool:
    """Whether padding follows the text in every row: a causal mask then hides it from the text."""
    real = mask.bool()
    return bool((real[:, :-1] | ~real[:, 1:]).all())


def _rotation(config: Any, positions: Tensor, dtype: torch.dtype) -> tuple[Rotation | None, Rotation | None]:
    if config.positions != "rotary":
        return None, None
    angles = rotary_angles(positions, config.d_head, config.rotary_base)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)

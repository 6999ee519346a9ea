"""What to feed a model whose family we do not know: inputs made from its config and its forward's signature."""

import inspect
from typing import Any

import torch
from torch import Tensor

from headscope.errors import CheckpointError

ENCODER_TOKENS = 7
DECODER_TOKENS = 5  # differs from the encoder's, so that cross-attention shows in the shapes


def probe_inputs(model: Any, *, batch: int, single_token: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """Seeded random inputs for one forward: tokens, an image or sound, as the model's main input asks.

    With `single_token` every text is one token long, so that rotary positions are the identity.
    """
    generator = torch.Generator().manual_seed(seed)
    wants = inspect.signature(model.forward).parameters
    length, decoder_length = (1, 1) if single_token else (ENCODER_TOKENS, DECODER_TOKENS)
    inputs: dict[str, Tensor] = {}
    main = model.main_input_name
    if main == "input_ids" or (main == "pixel_values" and "input_ids" in wants):
        inputs["input_ids"] = _tokens(model.config, batch, length, generator)
    if main == "pixel_values":
        inputs["pixel_values"] = _image(model.config, batch, generator)
    if main == "input_features":
        inputs["input_features"] = _spectrogram(model.config, batch, generator)
    if main == "input_values":
        inputs["input_values"] = torch.randn(batch, 4000, generator=generator)
    if not inputs:
        raise CheckpointError(
            f"{type(model).__name__}: headscope cannot make the input {main!r} that this family reads",
            hint="models that read token ids, pixel values, log-mel features or raw sound can be opened",
        )
    if model.config.is_encoder_decoder and "decoder_input_ids" in wants:
        inputs["decoder_input_ids"] = _tokens(model.config, batch, decoder_length, generator)
    return inputs


def forward_options(model: Any) -> dict[str, bool]:
    """Keyword arguments of a forward that only measures: no cache where the model would build one."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def vocabulary(config: Any) -> int:
    """The number of tokens the model knows."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None) or getattr(config, "vocab_size", None)
    return int(size) if size else 0


def _tokens(config: Any, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Random tokens that are none of the special ones the config names: padding would be masked."""
    size = vocabulary(config)
    named = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "decoder_start")]
    special = {token for token in named if isinstance(token, int)}
    ordinary = torch.tensor([token for token in range(min(size, 2000)) if token not in special])
    return ordinary[torch.randint(len(ordinary), (batch, length), generator=generator)]


def _image(config: Any, batch: int, generator: torch.Generator) -> Tensor:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 32)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn(batch, getattr(vision, "num_channels", 3), height, width, generator=generator)


def _spectrogram(config: Any, batch: int, generator: torch.Generator) -> Tensor:
    frames = 2 * getattr(config, "max_source_positions", 50)
    return torch.randn(batch, getattr(config, "num_mel_bins", 80), frames, generator=generator)

"""Makes inputs for a model of any family from its config and forward signature."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headscope.errors import CheckpointError

ENCODER_TOKENS = 7
DECODER_TOKENS = 5  # differs from the encoder's, so that cross-attention shows in the shapes
SOUND_SAMPLES = 4000
SOUND_FRAMES = 50

# Arguments of a forward that a probe never needs: masks, positions, caches, switches.
_OPTIONAL = (
    "mask", "position", "embeds", "past_", "cache", "labels", "output_", "return_", "token_type", "kwargs", "keep",
    "interpolate", "encoder_", "decoder_", "use_", "start_", "end_", "args", "logits",
)  # fmt: skip


def probe_inputs(model: Any, *, batch: int, single_token: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """Seeded random inputs for one forward: tokens, an image or sound.

    With `single_token` every text is one token long, so that rotary positions are the identity.
    """
    generator = torch.Generator().manual_seed(seed)
    length, decoder_length = (1, 1) if single_token else (ENCODER_TOKENS, DECODER_TOKENS)
    make: dict[str, Callable[[], Tensor]] = {
        "input_ids": lambda: _tokens(model.config, batch, length, generator),
        "pixel_values": lambda: _image(model.config, batch, generator),
        "input_features": lambda: _spectrogram(model.config, batch, generator),
        "input_values": lambda: _sound(model.config, batch, generator),
    }
    inputs = {name: _in_dtype(make[name](), model.dtype) for name in read_by(model)}
    if model.config.is_encoder_decoder and "decoder_input_ids" in _parameters(model):
        inputs["decoder_input_ids"] = _tokens(model.config, batch, decoder_length, generator)
    # Generated on the CPU, so that a model gets the same numbers on any device.
    return {name: value.to(device_of(model)) for name, value in inputs.items()}


def device_of(model: Any) -> torch.device:
    """The device of a model's inputs.

    A model without weights (the meta device) runs on the CPU.
    """
    device: torch.device = model.device
    return torch.device("cpu") if device.type == "meta" else device


def _in_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Images and sounds in the dtype of the model.

    Tokens stay whole numbers.
    """
    return values.to(dtype) if values.is_floating_point() else values


def read_by(model: Any) -> tuple[str, ...]:
    """The inputs that a forward needs and headscope can make.

    One input, or one for each of two towers.
    """
    wants = _parameters(model)
    second_input = _second_tower(model)
    main = model.main_input_name
    if main == "pixel_values" and "input_ids" in wants:
        return ("input_ids", "pixel_values")
    if second_input is not None:
        return ("input_ids", second_input)
    # Some parts of larger models do not name their input: the signature does.
    for name in (main, "input_ids", "pixel_values", "input_features", "input_values"):
        if name in wants and name in ("input_ids", "pixel_values", "input_features", "input_values"):
            return (name,)
    inputs = ", ".join(unavailable_inputs(model)) or main
    raise CheckpointError(
        f"{type(model).__name__}: headscope cannot make what this model reads ({inputs})",
        hint="models that read token ids, pixel values, log-mel features or raw sound can be opened",
    )


def unavailable_inputs(model: Any) -> tuple[str, ...]:
    """The other inputs of the forward, which headscope cannot make.

    They are the likely reason where a model cannot be run on our inputs.
    """
    makeable = {"input_ids", "pixel_values", "input_features", "input_values"}
    other_names = [name for name in _parameters(model) if name not in makeable]
    return tuple(name for name in other_names if not any(part in name for part in _OPTIONAL))


def has_two_towers(model: Any) -> bool:
    """Whether one forward runs a text tower and a second tower (CLIP and its kin)."""
    return _second_tower(model) is not None


def forward_options(model: Any) -> dict[str, bool]:
    """Keyword arguments for a forward that only measures: without a cache."""
    return {"use_cache": False} if "use_cache" in _parameters(model) else {}


def generation_options(model: Any) -> dict[str, Any]:
    """Keyword arguments for a forward as generation makes it: with a cache, and the logits of the last token alone.

    Families that cannot leave out the other logits compute them all.
    """
    return {"use_cache": True, **({"logits_to_keep": 1} if "logits_to_keep" in _parameters(model) else {})}


def vocabulary(config: Any) -> int:
    """The number of tokens that the model knows."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None) or getattr(config, "vocab_size", None)
    return int(size) if size else 0


def _parameters(model: Any) -> Any:
    return inspect.signature(model.forward).parameters


def _second_tower(model: Any) -> str | None:
    """The input of the second tower of a text–image or text–sound model.

    Such a model offers the features of either tower; a model that reads images into its text does not offer those
    of the text.
    """
    wants = _parameters(model)
    if "input_ids" not in wants or not hasattr(model, "get_text_features"):
        return None
    pairs = (("get_image_features", "pixel_values"), ("get_audio_features", "input_features"))
    return next((name for method, name in pairs if hasattr(model, method) and name in wants), None)


def _tokens(config: Any, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Random tokens without the special ones of the config: padding would be masked."""
    size = vocabulary(config)
    named = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "decoder_start")]
    special = {token for token in named if isinstance(token, int)}
    ordinary = torch.tensor([token for token in range(min(size, 2000)) if token not in special])
    if not len(ordinary):
        raise CheckpointError(
            f"the configuration of this {config.model_type} model names no vocabulary (vocab_size is {size}), so "
            "headscope does not know which tokens it reads",
            hint="models without a vocabulary, such as those that read characters, cannot be opened",
        )
    return ordinary[torch.randint(len(ordinary), (batch, length), generator=generator)]


def _image(config: Any, batch: int, generator: torch.Generator) -> Tensor:
    vision = next((tower for key in ("vision_config", "image_config") if (tower := getattr(config, key, None))), config)
    size = getattr(vision, "image_size", 32)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn(batch, getattr(vision, "num_channels", 3), height, width, generator=generator)


def _spectrogram(config: Any, batch: int, generator: torch.Generator) -> Tensor:
    """A spectrogram as Whisper reads it: bins × frames.

    Frames × features where the config gives the number of features.
    """
    names = ("feature_projection_input_dim", "input_feat_per_channel")
    if features := next((size for name in names if (size := getattr(config, name, None))), None):
        channels = getattr(config, "input_channels", 1)
        return torch.randn(batch, SOUND_FRAMES, features * channels, generator=generator)
    frames = 2 * getattr(config, "max_source_positions", SOUND_FRAMES)
    return torch.randn(batch, getattr(config, "num_mel_bins", 80), frames, generator=generator)


def _sound(config: Any, batch: int, generator: torch.Generator) -> Tensor:
    """Raw samples, or frames × bins for a spectrogram of fixed length."""
    frames, bins = getattr(config, "max_length", None), getattr(config, "num_mel_bins", None)
    if isinstance(frames, int) and isinstance(bins, int):
        return torch.randn(batch, frames, bins, generator=generator)
    return torch.randn(batch, SOUND_SAMPLES, generator=generator)

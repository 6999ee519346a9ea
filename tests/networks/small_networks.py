"""Small networks of every form, with weights that make differences visible, and texts for them."""

from typing import Any

import torch

from headscope.networks import (
    DecoderConfig,
    DecoderNetwork,
    EncoderConfig,
    EncoderNetwork,
    RecurrentConfig,
    RecurrentTranslator,
    Translator,
    TranslatorConfig,
)

SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4}
SOURCE, TARGET = 9, 7  # tokens

TRANSLATORS: dict[str, TranslatorConfig] = {
    "pre": TranslatorConfig(**SIZES, encoder_layers=2, decoder_layers=2),
    "post": TranslatorConfig(**SIZES, encoder_layers=2, decoder_layers=2, norm_place="post"),
    "untied": TranslatorConfig(**SIZES, encoder_layers=1, decoder_layers=2, tie_word_embeddings=False),
    "rotary": TranslatorConfig(**SIZES, encoder_layers=2, decoder_layers=1, positions="rotary", norm="rms"),
    "shared": TranslatorConfig(**SIZES, encoder_layers=1, decoder_layers=1, shared_queries_and_keys=True),
    "mechanisms": TranslatorConfig(
        **SIZES,
        encoder_layers=2,
        decoder_layers=2,
        mechanisms={"window(left=2)": "enc.L0.H0-1,dec.L1.self.H3", "linear": "enc.L1.H2"},
    ),
}
SINGLE_STACKS: dict[str, DecoderConfig | EncoderConfig] = {
    "gpt": DecoderConfig.gpt(**SIZES, num_hidden_layers=2),
    "sinusoidal": DecoderConfig.gpt(**SIZES, num_hidden_layers=2, positions="sinusoidal", norm_place="post"),
    "llama": DecoderConfig.llama(**SIZES, num_hidden_layers=2, num_key_value_heads=2),
    "wide heads": DecoderConfig.llama(**SIZES, num_hidden_layers=1, head_dim=10),
    "attention only": DecoderConfig.attention_only(**SIZES, num_hidden_layers=2),
    "windows": DecoderConfig.llama(**SIZES, num_hidden_layers=2, mechanisms={"window(left=3)": "L0.H0-1"}),
    "encoder": EncoderConfig(**SIZES, num_hidden_layers=2),
}
CELLS_AND_SCORES = [
    (cell, score) for cell in ("lstm", "gru") for score in ("none", "bahdanau", "luong_dot", "luong_general")
]


def recurrent(cell: str, score: str, n_layers: int = 2) -> RecurrentConfig:
    """The configuration of a small recurrent network."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "encoder_layers": n_layers, "decoder_layers": n_layers}
    return RecurrentConfig(**sizes, cell=cell, score=score)


def built(config: Any, seed: int = 0) -> Any:
    """A network in which biases, gains and tables differ from what they begin with, too."""
    classes = {
        TranslatorConfig: Translator,
        DecoderConfig: DecoderNetwork,
        EncoderConfig: EncoderNetwork,
        RecurrentConfig: RecurrentTranslator,
    }
    torch.manual_seed(seed)
    network = classes[type(config)](config)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return network.eval()


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random tokens without the special ones."""
    return torch.randint(2, 50, (batch, length), generator=torch.Generator().manual_seed(seed))


def inputs(network: Any, batch: int = 2) -> dict[str, torch.Tensor]:
    """What a network reads."""
    read = {"input_ids": tokens(batch, SOURCE)}
    if network.config.is_encoder_decoder:
        read["decoder_input_ids"] = tokens(batch, TARGET, seed=1)
    return read


def logits(network: Any, **read: Any) -> torch.Tensor:
    """The logits of a network, without a graph."""
    with torch.no_grad():
        answer: torch.Tensor = network(**read).logits
    return answer

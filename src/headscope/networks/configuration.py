"""Configurations: what each network is made of, saved as config.json like that of any other transformers model."""

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.networks.choices import check_choices
from headscope.networks.layout import single_stack_sites, spelled_mechanisms, translator_sites


class NetworkConfig(PreTrainedConfig):  # type: ignore[misc]  # transformers has no types
    """What all networks share: a vocabulary, a width, and tokens with a meaning."""

    # Configurations of transformers take any keyword, which a runtime check of the fields of a dataclass refuses.
    __no_type_check__: ClassVar[bool] = True

    vocab_size: int = 1000
    hidden_size: int = 256
    dropout: float = 0.0
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | None = 1
    tie_word_embeddings: bool = True
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_choices({**vars(self), "num_hidden_layers": getattr(self, "num_hidden_layers", None)})


class TransformerConfig(NetworkConfig):
    """A transformer: heads, positions, norms, feed-forward part, initialisation, and mechanisms by heads.

    `mechanisms` spells them as plans do: `{"window(left=4)": "enc.L0.H0-1"}`; every other head attends densely.
    `shared_queries_and_keys` is about self-attention: in cross-attention these read different texts.
    """

    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 1024
    max_position_embeddings: int = 512
    positions: str = "sinusoidal"
    rotary_base: float = 10000.0
    norm: str = "layer"
    norm_place: str = "pre"
    norm_epsilon: float = 1e-5
    feed_forward: str = "relu"
    bias: bool = True
    scale_embedding: bool = True
    attention_dropout: float = 0.0
    initialisation: str = "xavier"
    shared_queries_and_keys: bool = False
    mechanisms: dict[str, str] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        spelled_mechanisms(self.mechanisms, self.sites)

    @property
    def kv_heads(self) -> int:
        """Key/value heads of an attention layer."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def d_head(self) -> int:
        """The width of one query, key or value."""
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim

    @property
    def sites(self) -> tuple[Site, ...]:
        """Its attention sites, in the order of a forward."""
        raise NotImplementedError


class TranslatorConfig(TransformerConfig):
    """An encoder–decoder transformer, as Conti (The Math behind transformers, 1.2) describes it."""

    model_type = "headscope-translator"
    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "decoder_layers"}

    encoder_layers: int = 3
    decoder_layers: int = 3
    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = 0

    @property
    def sites(self) -> tuple[Site, ...]:
        """Its attention sites, in the order of a forward."""
        return translator_sites(self)


class DecoderConfig(TransformerConfig):
    """A decoder-only transformer; `gpt`, `llama` and `attention_only` spell out three usual forms."""

    model_type = "headscope-decoder"

    num_hidden_layers: int = 4
    positions: str = "learnt"
    feed_forward: str = "gelu"
    scale_embedding: bool = False
    is_decoder: bool = True

    @property
    def sites(self) -> tuple[Site, ...]:
        """Its attention sites, in the order of a forward."""
        return single_stack_sites(self)

    @classmethod
    def gpt(cls, **settings: Any) -> "DecoderConfig":
        """The form of GPT-2: learnt positions, LayerNorm before each part, GELU, biases."""
        return cls(**{"positions": "learnt", "norm": "layer", "feed_forward": "gelu", "bias": True, **settings})

    @classmethod
    def llama(cls, **settings: Any) -> "DecoderConfig":
        """The form of Llama: rotary positions, RMSNorm before each part, SwiGLU, no biases."""
        return cls(**{"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False, **settings})

    @classmethod
    def attention_only(cls, **settings: Any) -> "DecoderConfig":
        """Attention and skip connections alone: no feed-forward part, no norm, no biases."""
        return cls(**{"norm": "none", "feed_forward": "none", "bias": False, **settings})


class EncoderConfig(TransformerConfig):
    """An encoder-only transformer that predicts masked tokens."""

    model_type = "headscope-encoder"

    num_hidden_layers: int = 4
    positions: str = "learnt"
    feed_forward: str = "gelu"
    scale_embedding: bool = False
    is_decoder: bool = False

    @property
    def sites(self) -> tuple[Site, ...]:
        """Its attention sites, in the order of a forward."""
        return single_stack_sites(self)


class RecurrentConfig(NetworkConfig):
    """A recurrent encoder–decoder, as Conti (The Math behind transformers, 1.1.1) describes it."""

    model_type = "headscope-recurrent"
    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "decoder_layers"}

    cell: str = "lstm"
    score: str = "bahdanau"
    encoder_layers: int = 1
    decoder_layers: int = 1
    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = 0
    use_cache: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.encoder_layers != self.decoder_layers:
            raise UsageError(
                f"a recurrent encoder of {self.encoder_layers} layers cannot start a decoder of {self.decoder_layers}",
                hint="its last states are the decoder's first: give both the same number of layers",
            )

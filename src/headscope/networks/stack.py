"""Stacks of layers: an encoder, and a decoder with a cache and, in a translator, cross-attention."""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from headscope.core.site import Stack
from headscope.networks.attention_layer import AttentionLayer
from headscope.networks.configuration import TransformerConfig
from headscope.networks.embedding import placed, position_table, token_embedding
from headscope.networks.feed_forward import norm_of
from headscope.networks.layer import TransformerLayer
from headscope.networks.layout import is_causal
from headscope.networks.network_model import NetworkModel
from headscope.networks.positions import token_positions
from headscope.networks.view import Text, view_of_itself, view_of_memory


class LayerStack(NetworkModel):
    """Token vectors with positions, layers, and a last norm where the norms stand before the parts."""

    config: TransformerConfig
    config_class = TransformerConfig
    _no_split_modules = ("TransformerLayer",)

    def __init__(self, config: TransformerConfig, stack: Stack, n_layers: int) -> None:
        super().__init__(config)
        self.stack = stack
        self.embed_tokens = token_embedding(config)
        self.positions = position_table(config)
        self.layers = nn.ModuleList([TransformerLayer(config, stack, number) for number in range(n_layers)])
        self.norm = norm_of(config) if config.norm_place == "pre" else nn.Identity()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of token vectors."""
        return self.embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        """Put another table in place."""
        self.embed_tokens = value

    def text(self, input_ids: Tensor | None, vectors: Tensor | None, mask: Tensor | None, cache: Any) -> Text:
        """The states that enter the first layer."""
        vectors = self.embed_tokens(input_ids) if vectors is None else vectors
        first = 0 if cache is None else int(cache.get_seq_length())
        positions = token_positions(mask, first, vectors)
        states = placed(vectors, positions, self.positions)
        if self.training and self.config.dropout:
            states = nn.functional.dropout(states, p=self.config.dropout)
        return Text(states, mask, positions, cache)


class EncoderStack(LayerStack):
    """A stack that sees its whole text.

    Properties:
        - padding changes nothing  (tested: test_padding_changes_nothing)
    """

    _can_record_outputs: ClassVar[dict[str, Any]] = {
        "hidden_states": TransformerLayer,
        "attentions": OutputRecorder(AttentionLayer, index=1),
    }

    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """The states of a text."""
        text = self.text(input_ids, inputs_embeds, attention_mask, None)
        view = view_of_itself(self.config, text, causal=False)
        states = text.states
        for layer in self.layers:
            states = layer(states, view)
        return BaseModelOutput(last_hidden_state=self.norm(states))


class DecoderStack(LayerStack):
    """A stack in which no token sees a later one.

    Properties:
        - no output depends on later tokens  (tested: test_no_output_depends_on_later_tokens)
        - steps with a cache give what one forward gives  (tested: test_cached_steps_equal_one_forward)
    """

    _can_record_outputs: ClassVar[dict[str, Any]] = {
        "hidden_states": TransformerLayer,
        "attentions": OutputRecorder(AttentionLayer, index=1, layer_name="self_attention"),
        "cross_attentions": OutputRecorder(AttentionLayer, index=1, layer_name="cross_attention"),
    }

    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """The states of a text, given that of the encoder where there is one."""
        if use_cache and past_key_values is None:
            past_key_values = self._new_cache()
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        text = self.text(input_ids, inputs_embeds, attention_mask, cache)
        view = view_of_itself(self.config, text, causal=is_causal(self.config, self.stack))
        memory, memory_view = encoder_hidden_states, None
        if memory is not None:
            memory_view = view_of_memory(self.config, text, memory, encoder_attention_mask)
        states = text.states
        for layer in self.layers:
            states = layer(states, view, memory, memory_view, past_key_values=past_key_values)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.norm(states), past_key_values=past_key_values
        )

    def _new_cache(self) -> Any:
        return EncoderDecoderCache(DynamicCache(), DynamicCache()) if self.stack == "dec" else DynamicCache()

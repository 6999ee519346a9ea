"""Networks with one stack: a decoder that writes on, and an encoder that fills in masked tokens."""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from headscope.networks.configuration import DecoderConfig, EncoderConfig
from headscope.networks.network_model import NetworkModel, language_loss
from headscope.networks.stack import DecoderStack, EncoderStack

_TIES = {"lm_head.weight": "model.embed_tokens.weight"}


class DecoderBody(DecoderStack):
    """A decoder without its output."""

    config: DecoderConfig
    config_class = DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config, "only", config.num_hidden_layers)


class EncoderBody(EncoderStack):
    """An encoder without its output."""

    config: EncoderConfig
    config_class = EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, "only", config.num_hidden_layers)


class DecoderNetwork(NetworkModel, GenerationMixin):  # type: ignore[misc]  # transformers has no types
    """A decoder that predicts the next token.

    Properties:
        - it is GPT-2 of the same weights  (tested: test_decoder_equals_gpt2)
        - it is Llama of the same weights  (tested: test_decoder_equals_llama)
    """

    config: DecoderConfig
    config_class = DecoderConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = _TIES

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.model = DecoderBody(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """The logits of the next tokens, and their loss where labels are given: token t is a label of token t - 1."""
        answer = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=bool(use_cache) and labels is None,
            **kwargs,
        )
        logits = self.lm_head(answer.last_hidden_state[:, -logits_to_keep:])
        return CausalLMOutputWithPast(
            loss=None if labels is None else language_loss(logits[:, :-1], labels[:, 1:]),
            logits=logits,
            past_key_values=answer.past_key_values,
            hidden_states=answer.hidden_states,
            attentions=answer.attentions,
        )


class EncoderNetwork(NetworkModel):
    """An encoder that predicts the tokens that a mask hides.

    Properties:
        - it is the definition  (tested: test_single_stacks_equal_the_definition)
    """

    config: EncoderConfig
    config_class = EncoderConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = _TIES

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.model = EncoderBody(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """The logits of all tokens, and the loss of the labels where there are any."""
        answer: BaseModelOutput = self.model(input_ids, attention_mask, inputs_embeds, **kwargs)
        logits = self.lm_head(answer.last_hidden_state)
        return MaskedLMOutput(
            loss=None if labels is None else language_loss(logits, labels),
            logits=logits,
            hidden_states=answer.hidden_states,
            attentions=answer.attentions,
        )

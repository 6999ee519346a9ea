"""The encoder–decoder transformer of Conti (The Math behind transformers, 1.2)."""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from headscope.networks.configuration import TranslatorConfig
from headscope.networks.network_model import NetworkModel, language_loss, shifted_right
from headscope.networks.stack import DecoderStack, EncoderStack

_TABLE = "encoder.embed_tokens.weight"


class TranslatorBody(NetworkModel):
    """Encoder and decoder; one vocabulary, and one table of vectors where they are tied."""

    config: TranslatorConfig
    config_class = TranslatorConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {"decoder.embed_tokens.weight": _TABLE}

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__(config)
        self.encoder = EncoderStack(config, "enc", config.encoder_layers)
        self.decoder = DecoderStack(config, "dec", config.decoder_layers)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of token vectors."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        """Put another table in place, in both stacks where they share one."""
        self.encoder.embed_tokens = value
        if self.config.tie_word_embeddings:
            self.decoder.embed_tokens = value

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """The states of both texts."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(last_hidden_state=encoder_outputs[0])
        written = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=written.last_hidden_state,
            past_key_values=written.past_key_values,
            decoder_hidden_states=written.hidden_states,
            decoder_attentions=written.attentions,
            cross_attentions=written.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class Translator(NetworkModel, GenerationMixin):  # type: ignore[misc]  # transformers has no types
    """The transformer that writes: its logits are products with the table of token vectors where these are tied.

    Properties:
        - it is the definition  (tested: test_translators_equal_the_definition)
        - it is Marian of the same weights  (tested: test_translator_equals_marian)
        - the output reads with the embedding  (tested: test_the_output_is_tied_with_the_embedding)
        - what is saved opens with the same logits  (tested: test_saved_networks_open_with_the_same_logits)
    """

    config: TranslatorConfig
    config_class = TranslatorConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {
        "lm_head.weight": f"model.{_TABLE}",
        "model.decoder.embed_tokens.weight": f"model.{_TABLE}",
    }

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__(config)
        self.model = TranslatorBody(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to write the labels."""
        return shifted_right(labels, self.config)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """The logits of the next tokens, and their loss where labels are given."""
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = shifted_right(labels, self.config)
        answer = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=bool(use_cache) and labels is None,
            **kwargs,
        )
        logits = self.lm_head(answer.last_hidden_state)
        loss = None if labels is None else language_loss(logits, labels)
        states = {name: value for name, value in answer.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **states)

r"""The recurrent encoder–decoder of Conti (The Math behind transformers, 1.1.1).

An encoder of LSTM or GRU cells gives states $s_1, …, s_m$; its last ones are the first of the decoder, whose states are
$h_t$. Without attention the logits are those of $W h_t$. With attention they are those of $W [c_t; h_t]$, where

$c_t = \sum_k a_{tk} s_k$ and $a_{t\cdot} = \mathrm{softmax}_k\, \text{score}(h_t, s_k)$; the scores are those of
`recurrent_attention`. The decoder does not read $c_t$, so all of its states are known before any attention.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from headscope.errors import UsageError
from headscope.networks.configuration import RecurrentConfig
from headscope.networks.embedding import TokenEmbedding
from headscope.networks.network_model import NetworkModel, language_loss, shifted_right
from headscope.networks.recurrent_attention import Memory, RecurrentAttention, States
from headscope.networks.view import ends_in_padding

_TABLE = "encoder.embed_tokens.weight"


@dataclass
class EncodedText(BaseModelOutput):  # type: ignore[misc]  # transformers has no types
    """The states of an encoder, and its last ones: of each text, kind of state (two in an LSTM) and layer."""

    final_states: Float[Tensor, "batch kinds layers d_model"] | None = None


def cells(config: RecurrentConfig, n_layers: int) -> nn.LSTM | nn.GRU:
    """The cells of one stack."""
    cls = nn.LSTM if config.cell == "lstm" else nn.GRU
    return cls(config.hidden_size, config.hidden_size, n_layers, batch_first=True)


def embedding(config: RecurrentConfig) -> TokenEmbedding:
    """The table of token vectors, read as it is."""
    return TokenEmbedding(config.vocab_size, config.hidden_size, 1.0)


class RecurrentEncoder(NetworkModel):
    """Reads a text token by token; what follows a text as padding is not read.

    Properties:
        - padding changes nothing  (tested: test_padding_changes_nothing)
    """

    config: RecurrentConfig
    config_class = RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.embed_tokens = embedding(config)
        self.cells = cells(config, config.encoder_layers)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of token vectors."""
        return self.embed_tokens

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> EncodedText:
        """The states of a text.

        Raises:
            UsageError: Padding stands in front of a text.
        """
        vectors = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        vectors = nn.functional.dropout(vectors, self.config.dropout, self.training)
        if attention_mask is None or bool(attention_mask.all()):
            states, last = self.cells(vectors)
        else:
            states, last = self._padded(vectors, attention_mask)
        kinds = last if isinstance(last, tuple) else (last,)
        return EncodedText(last_hidden_state=states, final_states=torch.stack(kinds).permute(2, 0, 1, 3))

    def _padded(self, vectors: States, mask: Tensor) -> tuple[States, Any]:
        if not ends_in_padding(mask):
            raise UsageError("a recurrent encoder reads padding in front of a text", hint="pad on the right")
        lengths = mask.bool().sum(dim=1).cpu()
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        states, last = self.cells(packed)
        return pad_packed_sequence(states, batch_first=True, total_length=vectors.shape[1])[0], last


class RecurrentDecoder(NetworkModel):
    """Writes a text token by token, from the encoder's last states on."""

    config: RecurrentConfig
    config_class = RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.embed_tokens = embedding(config)
        self.cells = cells(config, config.decoder_layers)
        attends = config.score != "none"
        self.attention = RecurrentAttention(config) if attends else None
        self.joined = nn.Linear((1 + attends) * config.hidden_size, config.hidden_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of token vectors."""
        return self.embed_tokens

    def forward(
        self,
        input_ids: Tensor | None,
        encoded: EncodedText,
        encoder_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> tuple[States, Tensor | None]:
        """The states that the output reads, and the map of attention where it was computed."""
        vectors = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        vectors = nn.functional.dropout(vectors, self.config.dropout, self.training)
        states, _ = self.cells(vectors, _first_states(encoded))
        maps = None
        if self.attention is not None:
            mask = self._mask(states, encoded.last_hidden_state, encoder_attention_mask)
            contexts, maps = self.attention(states, encoded.last_hidden_state, mask)
            states = torch.cat([contexts, states], dim=-1)
        return self.joined(nn.functional.dropout(states, self.config.dropout, self.training)), maps

    def _mask(self, states: States, memory: Memory, mask: Tensor | None) -> Tensor | None:
        inputs = {"inputs_embeds": states, "encoder_hidden_states": memory}
        keys: Tensor | None = create_bidirectional_mask(config=self.config, attention_mask=mask, **inputs)
        return keys


def _first_states(encoded: EncodedText) -> Any:
    """The first states of a decoder, as torch's cells take them: layer by layer."""
    if encoded.final_states is None:
        raise UsageError("a recurrent decoder starts from the encoder's last states", hint="give encoder_outputs whole")
    kinds = tuple(kind.contiguous() for kind in encoded.final_states.permute(1, 2, 0, 3))
    return kinds[0] if len(kinds) == 1 else kinds


class RecurrentBody(NetworkModel):
    """Encoder and decoder; one vocabulary, and one table of vectors where they are tied."""

    config: RecurrentConfig
    config_class = RecurrentConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {"decoder.embed_tokens.weight": _TABLE}

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of token vectors."""
        return self.encoder.embed_tokens

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """The states of both texts."""
        encoded = encoder_outputs
        if encoded is None:
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds)
        states, maps = self.decoder(decoder_input_ids, encoded, attention_mask, decoder_inputs_embeds)
        wants_maps = kwargs.get("output_attentions") and maps is not None
        return Seq2SeqModelOutput(
            last_hidden_state=states,
            cross_attentions=(maps,) if wants_maps else None,
            encoder_last_hidden_state=encoded.last_hidden_state,
        )


class RecurrentTranslator(NetworkModel, GenerationMixin):  # type: ignore[misc]  # transformers has no types
    """The recurrent network that writes. It has no cache: each step of a generation reads the text so far again.

    Properties:
        - it is the definition  (tested: test_recurrent_networks_equal_the_definition)
    """

    config: RecurrentConfig
    config_class = RecurrentConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {
        "lm_head.weight": f"model.{_TABLE}",
        "model.decoder.embed_tokens.weight": f"model.{_TABLE}",
    }

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.model = RecurrentBody(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to write the labels."""
        return shifted_right(labels, self.config)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **options: Any) -> dict[str, Any]:
        """The whole text so far, whether a cache is wanted or not."""
        read = {name: options.get(name) for name in ("attention_mask", "encoder_outputs")}
        return {"decoder_input_ids": input_ids, **read}

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """The logits of the next tokens, and their loss where labels are given."""
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = shifted_right(labels, self.config)
        answer = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=encoder_outputs,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            **kwargs,
        )
        logits = self.lm_head(answer.last_hidden_state)
        loss = None if labels is None else language_loss(logits, labels)
        states = {name: value for name, value in answer.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **states)

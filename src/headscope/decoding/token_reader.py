"""A model as a function from written tokens to the logits of the next one."""

import inspect
from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscope.decoding.prompt_batch import PromptBatch
from headscope.decoding.special_ids import is_encoder_decoder
from headscope.errors import UsageError

Logits = Float[Tensor, "rows vocabulary"]
Rows = Int[Tensor, " rows"]


class TokenReader(ABC):
    """Reads the texts of all rows token by token."""

    @abstractmethod
    def first_logits(self) -> Logits:
        """The logits of the first token, one row for each prompt."""

    @abstractmethod
    def next_logits(self, tokens: Rows) -> Logits:
        """Append a token to every row; the logits of the next one."""

    @abstractmethod
    def select(self, rows: Rows, *, moves_prompts: bool) -> None:
        """Go on with these rows; a row may come several times.

        Without `moves_prompts` each row keeps its prompt.
        """


class RereadingModel(TokenReader):
    """A model without a cache, which reads each text again at every step."""

    def __init__(self, model: nn.Module, prompts: PromptBatch, start: int | None) -> None:
        self._model, self._prompts = model, prompts
        self._written = prompts.ids.new_full((len(prompts.ids), 1), start or 0)[:, : int(is_encoder_decoder(model))]

    def first_logits(self) -> Logits:
        """The logits of the first token."""
        return self._read()

    def next_logits(self, tokens: Rows) -> Logits:
        """Append a token to every row; the logits of the next one."""
        self._written = torch.cat([self._written, tokens[:, None]], dim=1)
        return self._read()

    def select(self, rows: Rows, *, moves_prompts: bool) -> None:
        """Go on with these rows."""
        mask = None if self._prompts.mask is None else self._prompts.mask[rows]
        self._prompts, self._written = PromptBatch(self._prompts.ids[rows], mask), self._written[rows]

    def _read(self) -> Logits:
        ids, mask = self._prompts.ids, self._prompts.mask
        if is_encoder_decoder(self._model):
            logits: Tensor = self._model(input_ids=ids, attention_mask=mask, decoder_input_ids=self._written).logits
            return logits[:, -1]
        ids = torch.cat([ids, self._written], dim=1)
        positions = {}
        if mask is not None:
            mask = _extended(mask, ids.shape[1])
            positions = _positions(mask) if _takes_positions(self._model) else {}
        logits = self._model(input_ids=ids, attention_mask=mask, **positions).logits
        return logits[:, -1]


class CachedModel(TokenReader):
    """A model that keeps keys and values of what it has read.

    It follows the conventions of transformers: `past_key_values`, and `encoder_outputs` in an encoder–decoder. An
    encoder reads each prompt once, whatever the number of rows.
    """

    def __init__(self, model: nn.Module, prompts: PromptBatch, start: int | None) -> None:
        self._model: Any = model
        parameters = inspect.signature(model.forward).parameters
        if "past_key_values" not in parameters:
            raise UsageError(
                f"{type(model).__name__} has no cache: its forward takes no past_key_values", hint="decode without one"
            )
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._takes_positions = _takes_positions(model)
        self._prompts, self._start = prompts, start
        self._mask = prompts.mask
        self._cache: Any = None
        self._encoded: Any = None
        self._n_read = 0  # positions in the cache of a decoder-only model

    def first_logits(self) -> Logits:
        """The logits of the first token."""
        ids = self._prompts.ids
        if not is_encoder_decoder(self._model):
            return self._read(ids)
        self._encoded = self._model.get_encoder()(input_ids=ids, attention_mask=self._mask)
        return self._read(ids.new_full((len(ids), 1), self._start or 0))

    def next_logits(self, tokens: Rows) -> Logits:
        """Append a token to every row; the logits of the next one."""
        return self._read(tokens[:, None])

    def select(self, rows: Rows, *, moves_prompts: bool) -> None:
        """Go on with these rows."""
        crossed = getattr(self._cache, "cross_attention_cache", None)
        if crossed is None:
            self._cache.reorder_cache(rows)
        else:
            self._cache.self_attention_cache.reorder_cache(rows)
            if moves_prompts:  # the keys of the encoder are those of the prompt
                crossed.reorder_cache(rows)
        if moves_prompts:
            if self._mask is not None:
                self._mask = self._mask[rows]
            if self._encoded is not None:
                self._encoded.last_hidden_state = self._encoded.last_hidden_state[rows]

    def _read(self, ids: Int[Tensor, "rows tokens"]) -> Logits:
        inputs = self._decoder_inputs(ids) if self._encoded is not None else self._inputs(ids)
        output = self._model(**inputs, past_key_values=self._cache, use_cache=True, **self._last_only)
        self._cache = output.past_key_values
        self._n_read += ids.shape[1]
        logits: Tensor = output.logits
        return logits[:, -1]

    def _decoder_inputs(self, ids: Tensor) -> dict[str, Any]:
        return {"encoder_outputs": self._encoded, "attention_mask": self._mask, "decoder_input_ids": ids}

    def _inputs(self, ids: Tensor) -> dict[str, Any]:
        if self._mask is None:
            return {"input_ids": ids}
        mask = _extended(self._mask, self._n_read + ids.shape[1])
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self._takes_positions:
            inputs |= {name: tensor[:, -ids.shape[1] :] for name, tensor in _positions(mask).items()}
        return inputs


def _extended(mask: Tensor, length: int) -> Tensor:
    """A mask of prompts, with ones for the tokens written after them."""
    return torch.cat([mask, mask.new_ones(len(mask), length - mask.shape[1])], dim=1)


def _takes_positions(model: nn.Module) -> bool:
    """Whether a model is told the positions; others count them by the mask."""
    return "position_ids" in inspect.signature(model.forward).parameters


def _positions(mask: Tensor) -> dict[str, Tensor]:
    """The positions of tokens after padding on the left."""
    return {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)}
